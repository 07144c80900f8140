from __future__ import annotations

import typing
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest

from penstock.core.elements import (
    AnyElement,
    Barrier,
    CancelMarker,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from penstock.core.errors import InvariantError, MalformedMessage, UsageError
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, SlotId, SlotIndex, TaskId, VertexId
from penstock.core.messages import (
    Acknowledge,
    BarrierTaken,
    Cancelled,
    CancelTasks,
    CatchingUp,
    ChannelState,
    Credit,
    DataEnded,
    Decline,
    Deploy,
    EndData,
    EventTimeReached,
    GroupTime,
    Heartbeat,
    Leave,
    Leaving,
    LetEnd,
    LogLine,
    LoopStuck,
    NotifyAborted,
    NotifyComplete,
    OperatorEvent,
    OperatorEventTaken,
    OperatorState,
    PeerAddress,
    PeerAlive,
    PeerGone,
    Ready,
    Register,
    Run,
    SnapshotMetrics,
    SplitsRead,
    StateFile,
    StepFull,
    SubtaskState,
    TaskFailed,
    TaskFinished,
    TasksLoading,
    ToMaster,
    ToSlot,
    TriggerCheckpoint,
    WantsToEnd,
    WorkerLog,
)
from penstock.core.reasons import CheckpointFailure
from penstock.wire.codec import (
    BatchCodec,
    decode_credit,
    decode_element,
    decode_to_master,
    decode_to_slot,
    encode_element,
    encode_message,
)

SLOT = SlotId(SlotIndex(2), 1, 3)
TASK = TaskId(VertexId("window"), 2)
EPOCH = Epoch(4)
JOB = JobId("hot auctions")
CHECKPOINT = CheckpointId(7)
FILE = StateFile(path="job/chk-7/window-2-0", size=5, checksum=2**64 - 1)
STATE = SubtaskState(
    operators=(
        OperatorState(
            operator=OperatorId("window"),
            keyed=(FILE, StateFile(path=None, size=1, checksum=9, inline=b"\0")),
            key_groups=(0, 63),
            split_lists={"splits": (b"a", b"")},
        ),
    ),
    input_channels=(ChannelState(edge=1, upstream=0, downstream=2, file=FILE, ranges=((0, 3), (3, 2))),),
    finished=True,
)

TO_MASTER = [
    Register(slot=SLOT, host="höst", pid=1, ipc_address="ipc:///x", tcp_address=None),
    Heartbeat(slot=SLOT, epoch=EPOCH, metrics={"window[2]": {"rows": 1.5}}),
    LoopStuck(slot=SLOT, epoch=EPOCH, stuck_ms=9_000, operator="map", subtask=2, step_ms=8_000, stack="in f"),
    TasksLoading(slot=SLOT, epoch=EPOCH, loading_ms=9_000, operator="map", subtask=2, doing="in open()", stack="in f"),
    WorkerLog(slot=SLOT, lines=(LogLine(level=30, logger="mine", text="füll", step="map"),), dropped=2),
    Ready(slot=SLOT, epoch=EPOCH),
    Cancelled(slot=SLOT, epoch=EPOCH),
    TaskFailed(slot=SLOT, epoch=EPOCH, task=TASK, operator="map", error="it failed", user_code=True),
    DataEnded(slot=SLOT, epoch=EPOCH, task=TASK),
    WantsToEnd(slot=SLOT, epoch=EPOCH, task=TASK),
    TaskFinished(slot=SLOT, epoch=EPOCH, task=TASK),
    BarrierTaken(epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT),
    OperatorEventTaken(epoch=EPOCH, task=TASK, number=7, delivered=True),
    CatchingUp(epoch=EPOCH, task=TASK, operator=OperatorId("bids"), is_behind=True),
    SplitsRead(epoch=EPOCH, task=TASK, operator=OperatorId("bids"), count=3),
    EventTimeReached(epoch=EPOCH, task=TASK, time_us=-(2**63)),
    EventTimeReached(epoch=EPOCH, task=TASK, time_us=None),
    StepFull(epoch=EPOCH, task=TASK, operator=OperatorId("limit")),
    Acknowledge(
        job=JOB, epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT, state=STATE, metrics=SnapshotMetrics(sync_ms=0.25)
    ),
    Acknowledge(job=JOB, epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT, state=None),
    Decline(job=JOB, epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT, reason=CheckpointFailure.DECLINED_SUBSUMED),
    Leaving(slot=SLOT),
]
TO_SLOT = [
    Deploy(
        epoch=EPOCH,
        job=JOB,
        plan=bytes(range(256)),
        tasks=(TASK,),
        peers=(PeerAddress(slot=SLOT, host="h", ipc_address=None, tcp_address="tcp://10.0.0.1:5"),),
        restored_checkpoint=None,
        restore={"window[2]": b"x"},
        first_checkpoint=CHECKPOINT,
    ),
    Run(epoch=EPOCH),
    CancelTasks(epoch=EPOCH),
    PeerGone(slot=SLOT),
    PeerAlive(slot=SLOT),
    TriggerCheckpoint(
        epoch=EPOCH,
        task=TASK,
        checkpoint=CHECKPOINT,
        timestamp=Instant(1_700_000_000_000),
        options=CheckpointOptions(unaligned=True, target="save"),
    ),
    NotifyComplete(epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT, subsumed=CheckpointId(6)),
    NotifyAborted(epoch=EPOCH, task=TASK, checkpoint=CHECKPOINT),
    LetEnd(epoch=EPOCH, task=TASK),
    OperatorEvent(epoch=EPOCH, task=TASK, operator=OperatorId("read"), number=7, event=b"\x00split"),
    GroupTime(epoch=EPOCH, task=TASK, time_us=2**63 - 1),
    GroupTime(epoch=EPOCH, task=TASK, time_us=None),
    EndData(epoch=EPOCH, task=TASK),
    Leave(reason="done"),
]
ELEMENTS = [
    Barrier(checkpoint=CHECKPOINT, timestamp=Instant(5), options=CheckpointOptions(aligned_timeout_ms=100)),
    CancelMarker(checkpoint=CHECKPOINT),
    Watermark(time_us=2**63 - 1, idle=True),
    Watermark(time_us=-(2**63)),
    EndOfData(drain=False),
    EndOfPartition(),
]


@pytest.mark.parametrize("message", TO_MASTER, ids=lambda m: type(m).__name__)
def test_every_message_to_the_master_survives_the_wire(message):
    assert decode_to_master(memoryview(encode_message(message))) == message


@pytest.mark.parametrize("message", TO_SLOT, ids=lambda m: type(m).__name__)
def test_every_message_to_a_slot_survives_the_wire(message):
    assert decode_to_slot(encode_message(message)) == message


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: type(e).__name__)
def test_every_element_survives_the_wire(element):
    assert decode_element(encode_element(element)) == element


def test_a_credit_survives_the_wire():
    credit = Credit(epoch=EPOCH, edge=1, upstream=2, downstream=3, bytes_granted=4, data_taken=True)
    assert decode_credit(encode_message(credit)) == credit


@pytest.mark.parametrize(("samples", "union"), [(TO_MASTER, ToMaster), (TO_SLOT, ToSlot), (ELEMENTS, AnyElement)])
def test_no_kind_of_message_is_left_out_above(samples, union):
    assert {type(sample) for sample in samples} == set(typing.get_args(union))


@pytest.mark.parametrize("decode", [decode_to_master, decode_to_slot, decode_credit, decode_element])
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "Unheard"}),
        msgspec.msgpack.encode({"type": "Leave", "reason": 5}),
        msgspec.msgpack.encode({"type": "Register"}),
        b"\x81\xa4type\xa2\xff\xfe",
        msgspec.msgpack.encode(["Run"]),
    ],
    ids=["empty", "reserved", "cut", "deep", "unknown", "wrong-type", "incomplete", "not-utf-8", "list"],
)
def test_what_is_no_message_is_malformed(decode, payload):
    with pytest.raises(MalformedMessage, match="could not be read") as caught:
        decode(payload)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_message_to_a_slot_is_none_to_the_master():
    with pytest.raises(MalformedMessage):
        decode_to_master(encode_message(Run(epoch=EPOCH)))


BATCH = pa.record_batch(
    {
        "number": pa.array([1, None, 3], pa.int64()),
        "text": pa.array(["a", None, "äöü"]),
        "many": pa.array([[1], [], None], pa.list_(pa.int32())),
        "row": pa.array([{"x": 1.5}, None, {"x": None}]),
        "money": pa.array([Decimal("1.10"), None, Decimal("-2.00")], pa.decimal128(12, 2)),
        "at": pa.array([0, 1, None], pa.timestamp("us", tz="UTC")),
        "flag": pa.array([True, False, None]),
        "raw": pa.array([b"\0", b"", None], pa.binary()),
        "id": pa.array([bytes(16), None, bytes(range(16))], pa.uuid()),
    }
)
CODEC = BatchCodec(BATCH.schema)


@pytest.mark.parametrize("batch", [BATCH, BATCH.slice(1, 1), BATCH.slice(0, 0)], ids=["whole", "slice", "empty"])
def test_a_batch_survives_the_wire(batch):
    decoded = CODEC.decode(CODEC.encode(batch))
    assert decoded.schema.equals(BATCH.schema)
    assert decoded.to_pylist() == batch.to_pylist()


def test_a_slice_carries_only_its_own_rows():
    long = pa.record_batch({"n": pa.array(range(100_000))})
    assert len(BatchCodec(long.schema).encode(long.slice(5, 10))) < 1_000


def test_a_batch_shares_the_memory_it_came_in():
    payload = CODEC.encode(BATCH)
    numbers = CODEC.decode(payload).column("number").buffers()[1]
    assert payload.address <= numbers.address < payload.address + payload.size


def test_a_batch_at_an_odd_address_is_moved_to_an_even_one():
    shifted = memoryview(b"\0" * 3 + CODEC.encode(BATCH).to_pybytes())[3:]
    decoded = CODEC.decode(shifted)
    assert decoded.equals(BATCH)
    assert decoded.column("number").buffers()[1].address % 8 == 0


@pytest.mark.parametrize("cut", [0, 3, 8, 100, -1, -64])
def test_a_cut_batch_is_malformed(cut):
    with pytest.raises(MalformedMessage, match="record batch could not be read"):
        CODEC.decode(CODEC.encode(BATCH).to_pybytes()[:cut])


def test_a_batch_whose_offsets_point_outside_is_malformed():
    schema = pa.schema([("text", pa.string())])
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in (0, 2**30, 2)))
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"ab"))
    payload = pa.RecordBatch.from_arrays([broken], schema=schema).serialize()
    with pytest.raises(MalformedMessage, match="offset"):
        BatchCodec(schema).decode(payload)


def test_a_batch_read_with_the_schema_of_another_stream_is_malformed():
    other = BatchCodec(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with pytest.raises(MalformedMessage):
        other.decode(BatchCodec(pa.schema([("a", pa.int64())])).encode(pa.record_batch({"a": [1]})))


def test_a_batch_of_another_schema_is_not_sent():
    with pytest.raises(InvariantError, match="schema"):
        CODEC.encode(pa.record_batch({"number": [1]}))


DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    "kind",
    [DICTIONARY, pa.list_(DICTIONARY), pa.struct([("x", DICTIONARY)]), pa.map_(pa.string(), pa.list_(DICTIONARY))],
    ids=str,
)
def test_dictionary_columns_are_refused_by_name(kind):
    with pytest.raises(UsageError, match="column 'city' is dictionary-encoded") as caught:
        BatchCodec(pa.schema([("n", pa.int64()), ("city", kind)]))
    assert "cast the column" in caught.value.hint
