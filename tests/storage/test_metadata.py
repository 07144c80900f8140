"""The metadata file: what was written comes back, or the file is refused by name; nothing in between."""

from __future__ import annotations

import struct
from random import Random

import msgspec
import pytest
import xxhash

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.metadata import (
    METADATA_VERSION,
    CheckpointMetadata,
    OperatorSnapshot,
    SnapshotKind,
    TaskChannels,
)
from penstock.storage.metadata import decode_metadata, encode_metadata

PATH = "job/chk-7/_metadata"
HEADER_BYTES = 22

INLINE = StateFile(path=None, size=4, checksum=2**64 - 1, inline=b"\x00\xff\x01\x02")
SHARED = StateFile(path="job/shared/x", size=2**40, checksum=17, shared_key="k", placeholder=True)

METADATA = CheckpointMetadata(
    job=JobId("job-ünïcode"),
    checkpoint=CheckpointId(7),
    timestamp=Instant(1_700_000_000_000),
    kind=SnapshotKind.SAVEPOINT,
    operators={
        OperatorId("window"): OperatorSnapshot(
            operator=OperatorId("window"),
            vertex=VertexId("source"),
            parallelism=3,
            max_parallelism=128,
            subtasks={
                0: OperatorState(operator=OperatorId("window"), keyed=(INLINE, SHARED), key_groups=(0, 42)),
                2: OperatorState(
                    operator=OperatorId("window"),
                    split_lists={"splits": (b"a", b"")},
                    union_lists={"all": (b"b",)},
                    broadcast={"rules": b"c"},
                ),
            },
            finished_subtasks=(1,),
            ended_subtasks=(2,),
        )
    },
    channels=(
        TaskChannels(
            task=TaskId(VertexId("window"), 1),
            inputs=(ChannelState(edge=0, upstream=1, downstream=1, file=SHARED, ranges=((0, 10), (10, 5))),),
        ),
    ),
    coordinators={OperatorId("source"): b"\x80"},
    hooks={"hook": b"state"},
    settings={"parallelism": 3, "checkpoint": {"interval_ms": None, "mode": "exactly-once"}, "list": [1, 2.5, True]},
)
CONTENT = encode_metadata(METADATA)


def refused(content, text):
    """The error for content that must be refused; its words must say why."""
    with pytest.raises(CorruptFile, match=text) as caught:
        decode_metadata(PATH, content)
    assert PATH in caught.value.message
    assert caught.value.hint
    return caught.value


def test_everything_comes_back_as_it_was():
    assert decode_metadata(PATH, CONTENT) == METADATA


def test_metadata_without_anything_optional_comes_back():
    least = CheckpointMetadata(
        job=JobId("j"), checkpoint=CheckpointId(1), timestamp=Instant(0), kind=SnapshotKind.CHECKPOINT
    )
    assert decode_metadata(PATH, encode_metadata(least)) == least


def test_the_same_metadata_gives_the_same_bytes():
    assert encode_metadata(decode_metadata(PATH, CONTENT)) == CONTENT


def test_the_format_of_the_header_is_what_the_documentation_says():
    magic, version, size, _ = struct.unpack_from(">4sHQQ", CONTENT)
    assert (magic, version, size) == (b"PMET", METADATA_VERSION, len(CONTENT) - HEADER_BYTES)


@pytest.mark.parametrize("length", range(HEADER_BYTES))
def test_a_file_without_a_whole_header_is_cut(length):
    refused(CONTENT[:length], "is cut")


@pytest.mark.parametrize("missing", [1, 10, len(CONTENT) - HEADER_BYTES])
def test_a_file_that_is_cut_behind_its_header_is_refused(missing):
    refused(CONTENT[:-missing], "bytes of data instead of")


def test_a_file_with_something_behind_its_end_is_refused():
    refused(CONTENT + b"\x00", "bytes of data instead of")


def test_a_changed_byte_of_the_data_does_not_fit_the_checksum():
    changed = bytearray(CONTENT)
    changed[-1] ^= 1
    refused(bytes(changed), "checksum")


@pytest.mark.parametrize("content", [b"PCKP" + CONTENT[4:], b"\x00" * 100, b"PAR1" * 30])
def test_a_foreign_file_is_refused(content):
    refused(content, "is not the metadata of a checkpoint")


def test_a_newer_file_is_refused_with_both_versions_and_what_to_do():
    newer = CONTENT[:4] + struct.pack(">H", METADATA_VERSION + 1) + CONTENT[6:]
    error = refused(newer, f"version {METADATA_VERSION + 1}.* up to {METADATA_VERSION}")
    assert error.hint == "use a newer penstock"


def with_data(data):
    """A file whose header fits data that this program cannot have written."""
    return struct.pack(">4sHQQ", b"PMET", METADATA_VERSION, len(data), xxhash.xxh3_64_intdigest(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, 2, 3]),
        msgspec.msgpack.encode({"job": "j"}),
        msgspec.msgpack.encode({**msgspec.to_builtins(METADATA), "kind": "Something Else"}),
        msgspec.msgpack.encode({**msgspec.to_builtins(METADATA), "checkpoint": "seven"}),
        b"\xa4\xff\xff\xff\xff",
        b"\x91" * 100_000,
    ],
    ids=[
        "nothing",
        "no msgpack",
        "a list",
        "a field short",
        "unknown kind",
        "wrong type",
        "no text",
        "endless nesting",
    ],
)
def test_data_that_says_something_else_is_refused(data):
    refused(with_data(data), "cannot be read")


def test_a_field_of_a_later_program_of_the_same_version_is_left_aside():
    data = msgspec.msgpack.encode({**msgspec.to_builtins(METADATA, builtin_types=(bytes,)), "later": 1})
    assert decode_metadata(PATH, with_data(data)) == METADATA


def mutated(content, how, place, amount):
    place = min(place, len(content))
    match how:
        case "change":
            return content[:place] + bytes(b ^ amount for b in content[place : place + 1]) + content[place + 1 :]
        case "cut":
            return content[:place]
        case "insert":
            return content[:place] + bytes([amount]) + content[place:]
        case "remove":
            return content[:place] + content[place + amount :]
        case _:
            return content[: place + amount] + content[place:]


def test_a_damaged_file_is_refused_or_was_not_damaged_at_all():
    chance = Random(7)
    refusals = 0
    for _ in range(5_000):
        content = CONTENT
        for _ in range(chance.randint(1, 3)):
            how = chance.choice(("change", "change", "cut", "insert", "remove", "repeat"))
            place = chance.choice((chance.randrange(HEADER_BYTES), chance.randrange(len(CONTENT))))
            content = mutated(content, how, place, chance.randint(1, 255))
        try:
            found = decode_metadata(PATH, content)
        except CorruptFile:
            refusals += 1
        else:
            assert found == METADATA
    assert refusals > 4_900
