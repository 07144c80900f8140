from __future__ import annotations

import random
from collections import Counter

import msgspec
import pyarrow as pa
import pytest

from penstock.core.elements import Barrier, Watermark
from penstock.core.errors import MalformedMessage
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, SlotId, SlotIndex, TaskId, VertexId
from penstock.core.messages import Acknowledge, Credit, Register, SubtaskState, TriggerCheckpoint
from penstock.wire.codec import (
    BatchCodec,
    decode_credit,
    decode_element,
    decode_to_master,
    decode_to_slot,
    encode_element,
    encode_message,
)
from penstock.wire.frames import Channel, Header, Kind, Packet, pack, unpack

EPOCH = Epoch(3)
CHANNEL = Channel(1, 0, 2)
CONTROL = Header(sequence=0, epoch=EPOCH, kind=Kind.CONTROL)
ELEMENT = Header(sequence=1, epoch=EPOCH, kind=Kind.ELEMENT, channel=CHANNEL)
BATCH = Header(sequence=2, epoch=EPOCH, kind=Kind.BATCH, channel=CHANNEL, cost=2**40)
CREDIT = Header(sequence=3, epoch=EPOCH, kind=Kind.CREDIT)
KEEPALIVE = Header(sequence=2**60, epoch=EPOCH, kind=Kind.KEEPALIVE)


@pytest.mark.parametrize("header", [CONTROL, ELEMENT, BATCH, CREDIT], ids=lambda h: h.kind.name)
def test_a_packet_is_two_frames(header):
    frames = pack(header, b"payload")
    assert len(frames) == 2
    assert unpack(frames) == [Packet(header, b"payload")]


def test_a_keepalive_has_an_empty_payload():
    assert unpack(pack(KEEPALIVE)) == [Packet(KEEPALIVE, b"")]


def test_several_packets_may_share_a_message():
    frames = [*pack(CONTROL, b"a"), *pack(BATCH, b"b"), *pack(KEEPALIVE)]
    assert unpack(frames) == [Packet(CONTROL, b"a"), Packet(BATCH, b"b"), Packet(KEEPALIVE, b"")]


def test_payloads_are_handed_on_without_a_copy():
    payload = memoryview(b"x" * 100)
    assert unpack(pack(BATCH, payload))[0].payload is payload


def test_the_numbers_of_the_kinds_are_part_of_the_format():
    assert {kind.name: kind.value for kind in Kind} == {
        "CONTROL": 0,
        "ELEMENT": 1,
        "BATCH": 2,
        "CREDIT": 3,
        "KEEPALIVE": 4,
    }
    assert pack(BATCH)[0] == msgspec.msgpack.encode([2, 3, 2, [1, 0, 2], 2**40, 0])


def encoded(*fields):
    return [msgspec.msgpack.encode(list(fields)), b"payload"]


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([], "0 frames"),
        ([b"x"], "1 frames"),
        ([*pack(CONTROL, b"a"), b"x"], "3 frames"),
        ([b"", b"a"], "header could not be read"),
        (encoded(0, 3), "header could not be read"),
        (encoded(-1, 3, 0), "header could not be read"),
        (encoded(0, -3, 0), "header could not be read"),
        (encoded(0, 3, 5), "header could not be read"),
        (encoded(0, 3, 2, [1, 0]), "header could not be read"),
        (encoded(0, 3, 2, [1, 0, -1]), "header could not be read"),
        (encoded(0, 3, 2, [1, 0, 1], -1), "header could not be read"),
        (encoded(0, 3, 1), "element packet with channel None"),
        (encoded(0, 3, 2), "batch packet with channel None"),
        (encoded(0, 3, 0, [1, 0, 1]), "control packet with channel"),
        (encoded(0, 3, 1, [1, 0, 1], 5), "element packet that costs credit of 5 bytes"),
        (encoded(0, 3, 4), "keepalive packet with a payload of 7 bytes"),
    ],
)
def test_what_is_no_packet_is_malformed(frames, why):
    with pytest.raises(MalformedMessage, match=why):
        unpack(frames)


def test_a_malformed_packet_spoils_the_whole_message():
    with pytest.raises(MalformedMessage):
        unpack([*pack(CONTROL, b"a"), *encoded(0, 3, 99)])


# --- fuzzing ---------------------------------------------------------------------------------------------------------

RECORDS = pa.record_batch(
    {
        "n": pa.array([None if i % 5 == 0 else i for i in range(40)], pa.int64()),
        "s": pa.array([None if i % 7 == 0 else f"näme {i}" for i in range(40)]),
        "l": pa.array([[i] * (i % 3) for i in range(40)], pa.list_(pa.int16())),
        "r": pa.array([{"x": i, "y": str(i)} for i in range(40)]),
        "b": pa.array([i % 2 == 0 for i in range(40)]),
    }
)
CODEC = BatchCodec(RECORDS.schema)
TASK = TaskId(VertexId("window"), 2)
WELL_FORMED = [
    pack(
        CONTROL,
        encode_message(
            Register(slot=SlotId(SlotIndex(1), 2), host="here", pid=5, ipc_address=None, tcp_address="tcp://h:1")
        ),
    ),
    pack(
        CONTROL,
        encode_message(
            Acknowledge(
                job=JobId("j"), epoch=EPOCH, task=TASK, checkpoint=CheckpointId(7), state=SubtaskState(finished=True)
            )
        ),
    ),
    pack(
        CONTROL,
        encode_message(
            TriggerCheckpoint(epoch=EPOCH, task=TASK, checkpoint=CheckpointId(7), timestamp=Instant(1_700_000_000_000))
        ),
    ),
    pack(ELEMENT, encode_element(Barrier(checkpoint=CheckpointId(7), timestamp=Instant(9)))),
    pack(CREDIT, encode_message(Credit(epoch=EPOCH, edge=1, upstream=2, downstream=3, bytes_granted=4))),
    pack(BATCH, CODEC.encode(RECORDS)),
    [*pack(ELEMENT, encode_element(Watermark(time_us=5))), *pack(BATCH, CODEC.encode(RECORDS)), *pack(KEEPALIVE)],
]
READERS = {
    Kind.CONTROL: (decode_to_master, decode_to_slot),
    Kind.ELEMENT: (decode_element,),
    Kind.CREDIT: (decode_credit,),
    Kind.BATCH: (CODEC.decode,),
    Kind.KEEPALIVE: (),
}
EXTREMES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xdf\xff\xff\xff\xff", b"\x93\x92\x91")


def mutate_frame(frame: bytes, chance: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                del changed[at:]
            case 3:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                extreme = chance.choice(EXTREMES)
                changed[at : at + len(extreme)] = extreme
            case _:
                del changed[at : at + chance.randrange(1, 9)]
    return bytes(changed)


def mutate(message: list[bytes], chance: random.Random) -> list[bytes]:
    frames = [bytes(frame) for frame in message]
    at = chance.randrange(len(frames))
    match chance.randrange(12):
        case 0:
            del frames[at]
        case 1:
            frames.insert(at, chance.randbytes(chance.randrange(40)))
        case 2:
            frames.reverse()
        case 3:
            frames[at] = bytes(chance.choice(chance.choice(WELL_FORMED)))
        case _:
            frames[at] = mutate_frame(frames[at], chance)
    return frames


def read_everything(frames: list[bytes]) -> str:
    """What came of a message. Anything raised but `MalformedMessage` gets out and fails the test."""
    try:
        packets = unpack(frames)
    except MalformedMessage:
        return "bad frames"
    outcome = "read"
    for packet in packets:
        for reader in READERS[packet.header.kind]:
            try:
                value = reader(packet.payload)
            except MalformedMessage:
                outcome = "bad payload"
            else:
                # A batch that was let through must be safe to look at.
                str(value)
    return outcome


def test_mutated_messages_are_read_or_malformed_and_nothing_else():
    chance = random.Random(20_000)
    outcomes = Counter(read_everything(mutate(chance.choice(WELL_FORMED), chance)) for _ in range(20_000))
    assert min(outcomes["read"], outcomes["bad frames"], outcomes["bad payload"]) > 1_000
