"""What would be unpickled is found by looking at what files say about themselves, and never by unpickling."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import golden_aggregates
import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.api.state import StateKind, StateSpec
from penstock.api.steps import AsyncMapStep, KeyedProcessStep, ProcessStep, ReadStep, RunningStep, WriteStep
from penstock.connectors.parquet import parquet
from penstock.connectors.parquet_files import ParquetFiles
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind, TaskChannels
from penstock.core.task.requests import RequestPolicy
from penstock.core.task.waiting import WaitFor
from penstock.runtime.master.pickled_state import refuse_pickles
from penstock.runtime.task.operators.async_map import REQUESTS
from penstock.runtime.task.operators.running_files import RunningHeader, RunningLayout
from penstock.runtime.task.operators.waiting import WAITING
from penstock.settings import JobSettings
from penstock.state.format import FileOwner, encode_tables, state_schema
from penstock.state.runs import encode_index
from penstock.storage.files import FileStore
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter
from penstock.testing import collect, scripted

KEYS = pa.schema([("k", pa.int64())])


class Bomb:
    """Fails the test when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


class Pickling(ParquetFiles):
    """A source whose splits are pickled."""

    unpickles = True


def metadata_of(*files: StateFile, **lists) -> CheckpointMetadata:
    state = OperatorState(operator=OperatorId("sum"), keyed=files, key_groups=(0, 127), **lists)
    snapshot = OperatorSnapshot(
        operator=OperatorId("sum"), vertex=VertexId("sum"), parallelism=1, max_parallelism=128, subtasks={0: state}
    )
    return CheckpointMetadata(
        job=JobId("job"),
        checkpoint=CheckpointId(7),
        timestamp=Instant(1),
        kind=SnapshotKind.SAVEPOINT,
        operators={OperatorId("sum"): snapshot},
    )


def plan_of(step: object):
    return SimpleNamespace(
        vertices=(SimpleNamespace(operators=(SimpleNamespace(operator=OperatorId("sum"), step=step),)),)
    )


def canonical(spec: StateSpec, value: object) -> bytes:
    schema = state_schema(spec, KEYS)
    row = {"__key_group": 3, "k": 1, "__value": value, "__map_key": value}
    table = pa.Table.from_pylist([{name: row[name] for name in schema.names}], schema)
    owner = FileOwner(operator="sum", keys=KEYS, groups=128, own_groups=(0, 127))
    return encode_tables(owner, [(spec, table)]).to_pybytes()


def look(tmp_path, *contents: bytes, step: object = None, **lists) -> None:
    store = FileStore(tmp_path)
    writer = SnapshotWriter(store, "", "sum-0", 0)
    files = tuple(writer.put(content) for content in contents)
    refuse_pickles(metadata_of(*files, **lists), plan_of(step), SnapshotReader(store))


OBJECT = StateSpec(name="seen", kind=StateKind.VALUE, type=None)
OBJECT_KEY = StateSpec(name="seen", kind=StateKind.MAP, type=pa.binary(), map_key=None)
TYPED = StateSpec(name="count", kind=StateKind.VALUE, type=pa.binary())


@pytest.mark.parametrize("spec", [OBJECT, OBJECT_KEY])
def test_values_and_keys_that_are_objects_are_refused(tmp_path, spec):
    with pytest.raises(UsageError, match="savepoint 7 has pickled state: 'seen' of sum") as caught:
        look(tmp_path, canonical(TYPED, b"1"), canonical(spec, pickle.dumps(Bomb())))
    assert "unpickle=False" in caught.value.hint


def test_state_with_a_type_is_not(tmp_path):
    look(tmp_path, canonical(TYPED, pickle.dumps(Bomb())))


def test_aggregates_whose_states_are_objects_are_refused(tmp_path):
    (window,) = golden_aggregates.files().values()
    with pytest.raises(UsageError, match="has pickled state: 'letters' of sum") as caught:
        look(tmp_path, window)
    assert "longest" not in caught.value.message


def windowed(records, function):
    return records.watermark("at", delay="1s").key_by("k").window(ps.tumbling("10s")).aggregate(x=function("s"))


def running(records, function):
    return records.key_by("k").aggregate(x=function("s"))


FUNCTIONS = pytest.mark.parametrize(
    ("function", "is_refused"), [(golden_aggregates.Letters, True), (golden_aggregates.Longest, False)]
)


def plan_with(aggregated, function):
    program = Program(JobSettings(parallelism=2))
    aggregated(program.read(scripted([], schema="k string, s string, at timestamp")), function).write(collect())
    return program.plan()


@FUNCTIONS
@pytest.mark.parametrize("aggregated", [windowed, running])
def test_partials_in_flight_whose_states_are_objects_are_refused(tmp_path, aggregated, function, is_refused):
    plan, reader = plan_with(aggregated, function), SnapshotReader(FileStore(tmp_path))
    file = StateFile(path="in-flight", size=8, checksum="0")
    channel = ChannelState(edge=0, upstream=0, downstream=0, file=file, ranges=((0, 8),))
    channels = TaskChannels(task=TaskId(VertexId("window"), 0), inputs=(channel,))
    with pytest.raises(UsageError, match="in-flight data of") if is_refused else nullcontext():
        refuse_pickles(msgspec.structs.replace(metadata_of(), channels=(channels,)), plan, reader)
    refuse_pickles(metadata_of(), plan, reader)


@FUNCTIONS
@pytest.mark.parametrize("lies", [False, True])
def test_running_aggregates_whose_states_are_objects_are_refused(tmp_path, function, is_refused, lies):
    plan = plan_with(running, function)
    (operator,) = (o for vertex in plan.vertices for o in vertex.operators if isinstance(o.step, RunningStep))
    header = msgspec.json.encode(RunningHeader(layout=RunningLayout.of(operator.step), sections=(), runs=()))
    content = canonical(TYPED, b"1") if lies else encode_index([], [header], groups=128, own_groups=(0, 127))
    for step, found in ((operator.step, is_refused), (None, is_refused and not lies)):
        with pytest.raises(UsageError, match="has pickled state: 'x' of sum") if found else nullcontext():
            look(tmp_path, content, step=step)


@pytest.mark.parametrize("kind", ["split_lists", "union_lists", "broadcast"])
def test_state_of_a_function_that_belongs_to_no_key_is_refused(tmp_path, kind):
    content = pickle.dumps(Bomb())
    with pytest.raises(UsageError, match="'rules' of sum"):
        look(tmp_path, **{kind: {"rules": content if kind == "broadcast" else (content,)}})


class Raw(ps.ProcessFunction):
    held = ps.raw_split_list_state("held")
    kept = ps.raw_union_list_state("kept")
    rules = ps.split_list_state("rules", bytes)

    def on_row(self, row, context):
        return row


def test_raw_lists_are_not_refused_where_the_program_says_that_they_are_raw(tmp_path):
    content, step = (pickle.dumps(Bomb()),), ProcessStep(function=Raw(), schema=KEYS)
    look(tmp_path, step=step, split_lists={"held": content}, union_lists={"kept": content})
    for lists in ({"union_lists": {"held": content}}, {"split_lists": {"rules": content}}):
        with pytest.raises(UsageError, match=r"'(held|rules)' of sum"):
            look(tmp_path, step=step, **lists)
    with pytest.raises(UsageError, match="'held' of sum"):
        look(tmp_path, split_lists={"held": content})


class Ruled(ps.KeyedBroadcastFunction):
    rules = ps.union_list_state("rules", bytes)

    def on_row(self, row, context):
        return row

    def on_broadcast(self, row, context):
        return None


def test_rows_that_wait_are_no_pickles_where_the_program_has_rows_wait(tmp_path):
    waits = KeyedProcessStep(function=Ruled(), schema=KEYS, keys=("k",), key_schema=KEYS, wait=WaitFor())
    kept = {"union_lists": {WAITING: (b"", pickle.dumps(Bomb()))}}
    look(tmp_path, step=waits, **kept)
    for step, lists in (
        (replace(waits, wait=None), kept),
        (waits, {"split_lists": kept["union_lists"]}),
        (waits, {"union_lists": {"rules": (pickle.dumps(Bomb()),)}}),
    ):
        with pytest.raises(UsageError, match="has pickled state"):
            look(tmp_path, step=step, **lists)


def test_rows_that_an_async_function_was_asked_about_are_no_pickles(tmp_path):
    asks = AsyncMapStep(
        function=None,
        kind="rows",
        policy=RequestPolicy(concurrency=1, timeout_ms=1),
        skips_failed=False,
        input_schema=KEYS,
        keys=(),
        schema=KEYS,
    )
    kept = {REQUESTS: (b"",)}
    look(tmp_path, step=asks, split_lists=kept)
    look(tmp_path, step=asks, union_lists=kept)
    with pytest.raises(UsageError, match="has pickled state"):
        look(tmp_path, step=asks, split_lists={"others": (pickle.dumps(Bomb()),)})


def test_splits_and_results_are_refused_where_they_are_pickled(tmp_path):
    lists = {"split_lists": {"splits": (b"{}",)}}
    files = {"files": (), "columns": KEYS}
    look(tmp_path, step=ReadStep(source=ParquetFiles(**files)), **lists)
    look(tmp_path, step=WriteStep(sink=parquet(str(tmp_path)), schema=KEYS), **lists)
    with pytest.raises(UsageError, match="'splits' of sum"):
        look(tmp_path, step=ReadStep(source=Pickling(**files)), **lists)
