"""In-flight data read back: in order, and at another parallelism each its own rows."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
import xxhash

from penstock.api.steps import MapBatchesStep
from penstock.core.errors import CorruptFile, StorageError
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, DealtChannel, StateFile
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.task.channels import ChannelKey
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.partitioning import key_groups
from penstock.wire.codec import BatchCodec

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
GROUPS = 16
CODEC = BatchCodec(SCHEMA)


def plan_of(parallelism: int):
    step = MapBatchesStep(function=lambda batch: batch, kind="arrow", schema=SCHEMA)
    nodes = (
        Node(number=0, operator=OperatorId("up"), name="up", step=step, is_source=True),
        Node(
            number=1,
            operator=OperatorId("down"),
            name="down",
            step=step,
            inputs=(Input(node=0, partitioning=Partitioning.HASH, keys=("k",)),),
        ),
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=GROUPS)


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"k": list(numbers), "n": list(numbers)}, schema=SCHEMA)


class Files:
    """Saved channels, and how often each was read."""

    def __init__(self):
        self.content: dict[str, bytes] = {}
        self.reads: list[str | None] = []

    def save(self, path: str | None, *batches: pa.RecordBatch, upstream=0, downstream=0, edge=0) -> ChannelState:
        pieces = [CODEC.encode(batch).to_pybytes() for batch in batches]
        content, starts = b"".join(pieces), [0]
        for piece in pieces:
            starts.append(starts[-1] + len(piece))
        if path is not None:
            self.content[path] = content
        file = StateFile(
            path=path,
            size=len(content),
            checksum=xxhash.xxh3_64_intdigest(content),
            inline=content if path is None else None,
        )
        ranges = tuple((start, len(piece)) for start, piece in zip(starts, pieces, strict=False))
        return ChannelState(edge=edge, upstream=upstream, downstream=downstream, file=file, ranges=ranges)

    def get(self, file: StateFile) -> bytes:
        self.reads.append(file.path)
        return file.inline if file.inline is not None else self.content[file.path or ""]


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def task(subtask: int) -> TaskId:
    return TaskId(VertexId("down"), subtask)


def test_each_subtask_takes_its_own_rows_in_their_order_and_no_row_is_taken_twice():
    files = Files()
    parts = (
        files.save("a", batch_of(*range(40)), batch_of(*range(40, 50)), upstream=1, downstream=0),
        files.save(None, batch_of(*range(50, 100)), upstream=1, downstream=0),
    )
    dealt = (DealtChannel(parts=parts, upstream=2, own_keys_only=True),)
    taken = []
    for subtask in range(3):
        reader = ChannelReader(plan_of(3), files, {0: CODEC})
        found = reader.read_dealt(task(subtask), dealt)
        assert list(found) == [ChannelKey(0, 2, subtask)]
        rows = numbers(found[ChannelKey(0, 2, subtask)])
        assert rows == sorted(rows)
        groups = key_groups(batch_of(*rows), ["k"], GROUPS)
        assert {int(g) * 3 // GROUPS for g in groups} == {subtask}
        taken += rows
    assert sorted(taken) == list(range(100))


def test_without_a_filter_all_rows_are_taken():
    files = Files()
    part = files.save("a", batch_of(1, 2, 3))
    found = ChannelReader(plan_of(3), files, {0: CODEC}).read_dealt(task(1), (DealtChannel(parts=(part,), upstream=0),))
    assert numbers(found[ChannelKey(0, 0, 1)]) == [1, 2, 3]


def test_two_channels_of_then_may_go_into_one_of_today_one_after_the_other():
    files = Files()
    dealt = (
        DealtChannel(parts=(files.save("a", batch_of(1, 2)),), upstream=0),
        DealtChannel(parts=(files.save("b", batch_of(3, 4), upstream=1),), upstream=0),
    )
    found = ChannelReader(plan_of(1), files, {0: CODEC}).read_dealt(task(0), dealt)
    assert numbers(found[ChannelKey(0, 0, 0)]) == [1, 2, 3, 4]


def test_a_subtask_that_owns_no_row_gets_no_batch():
    files = Files()
    own = next(n for n in range(100) if int(key_groups(batch_of(n), ["k"], GROUPS)[0]) * 2 // GROUPS == 0)
    dealt = (DealtChannel(parts=(files.save("a", batch_of(own)),), upstream=0, own_keys_only=True),)
    reader = ChannelReader(plan_of(2), files, {0: CODEC})
    assert reader.read_dealt(task(1), dealt) == {}
    assert numbers(reader.read_dealt(task(0), dealt)[ChannelKey(0, 0, 0)]) == [own]


def test_a_file_is_read_once_for_all_tasks_of_a_slot():
    files = Files()
    states = (files.save("a", batch_of(1)), files.save("a", batch_of(1), upstream=1))
    reader = ChannelReader(plan_of(2), files, {0: CODEC})
    for state in states:
        assert [numbers(batches) for batches in reader.read((state,)).values()] == [[1]]
    assert files.reads == ["a"]


def repeated(state, times):
    """The same batches, as if one channel had sent them several times."""
    return (msgspec.structs.replace(state, ranges=state.ranges * times),)


def named_by_several(state, times):
    """The same batches, as if several channels had sent them."""
    return tuple(msgspec.structs.replace(state, upstream=number) for number in range(times))


@pytest.mark.parametrize("craft", [repeated, named_by_several])
@pytest.mark.parametrize("is_dealt", [False, True])
def test_data_in_flight_that_is_named_twice_is_refused(craft, is_dealt):
    files = Files()
    states = craft(files.save("a", batch_of(1), batch_of(2)), 2)
    reader = ChannelReader(plan_of(2), files, {0: CODEC})
    dealt = tuple(DealtChannel(parts=(state,), upstream=0, own_keys_only=False) for state in states)
    with pytest.raises(CorruptFile, match="the ranges of in-flight data overlap at 0") as caught:
        _ = reader.read_dealt(task(0), dealt) if is_dealt else reader.read(states)
    assert "restore from another checkpoint" in caught.value.hint


def test_data_of_an_edge_that_there_is_not_is_refused():
    files = Files()
    with pytest.raises(StorageError, match="edge 4"):
        ChannelReader(plan_of(2), files, {0: CODEC}).read((files.save("a", batch_of(1), edge=4),))
