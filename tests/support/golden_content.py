"""What the golden snapshots hold: a savepoint and the checkpoint directory of a job, with every kind of file and state.

`files()` writes them anew with the code of today; what lies in `tests/golden` was written once.
"""

from __future__ import annotations

import datetime
import decimal
import pickle

import msgspec
import pyarrow as pa
import xxhash
from state_rig import EVENT_TIME, GROUPS, PROCESSING_TIME, Step

import penstock as ps
from penstock.api.steps import Aggregate, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.graph import CheckpointEdge, CheckpointVertex, OperatorLabel, Partitioning
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, Term, VertexId
from penstock.core.job.events import JobState
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    CompletedCheckpoint,
    DiscardRules,
    EdgeSnapshot,
    OperatorSnapshot,
    SnapshotKind,
    TaskChannels,
)
from penstock.core.recovery.tenure import Inheritance, JobOutcome, Start
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.window_table import FiredRange, Header, Layout, WindowTable
from penstock.storage.completed import Counter, FileCompletedStore, checkpoint_ids
from penstock.storage.metadata import encode_metadata
from penstock.storage.records import FileRecords
from penstock.storage.tenure import inheritance_format
from penstock.wire.codec import BatchCodec

JOB = JobId("job-1")
CHECKPOINT = CheckpointId(7)
SAVEPOINT_FOLDER = "savepoint"
DIRECTORY = "checkpoints"
PARALLELISM = 2
UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 3, 29, 1, 59, 59, 123456, tzinfo=UTC)
BY_PAIR = pa.schema([pa.field("name", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))])
IN_FLIGHT = pa.schema([pa.field("k", pa.int64()), pa.field("text", pa.string())])


class Every:
    """Every kind of keyed state, and every type."""

    tiny = ps.value_state("tiny", "tinyint")
    small = ps.value_state("small", "smallint")
    whole = ps.value_state("whole", "int")
    big = ps.value_state("big", "bigint")
    single = ps.value_state("single", "float")
    double = ps.value_state("double", "double")
    truth = ps.value_state("truth", "boolean")
    text = ps.value_state("text", "string")
    raw = ps.value_state("raw", "binary")
    day = ps.value_state("day", "date")
    moment = ps.value_state("moment", "timestamp")
    local = ps.value_state("local", "timestamp_ntz")
    price = ps.value_state("price", "decimal(20, 4)")
    tags = ps.value_state("tags", "array<string>")
    place = ps.value_state("place", "struct<x: double, y: double>")
    thing = ps.value_state("thing", object)
    events = ps.list_state("events", "bigint")
    kept = ps.list_state("kept", "string", ttl=ps.ttl("1h"))
    scores = ps.map_state("scores", key="string", value="double", ttl=ps.ttl("2h", on="read-and-write"))
    by_thing = ps.map_state("by thing", key=object, value=object)
    total = ps.reducing_state("total", "bigint", lambda a, b: a + b)
    mean = ps.aggregating_state("mean", "struct<n: bigint, sum: double>", create=dict, add=lambda a, _: a)
    seen = ps.value_state("seen", "bigint", ttl=ps.ttl("30 min"))


class Pairs:
    """Keys of two columns."""

    count = ps.value_state("count", "bigint")


KEYS = (*range(-3, 9), 2**62, None)
PAIRS = (("a", MOMENT), ("b", MOMENT), ("ü", None), (None, MOMENT))


def expected(key: int | None) -> dict[str, object]:
    """What a key of `Every` holds."""
    n = 0 if key is None else key
    low = n % 100
    return {
        "tiny": low,
        "small": low * 300,
        "whole": low * 70_000,
        "big": n,
        "single": low / 4,
        "double": n / 3,
        "truth": n % 2 == 0,
        "text": f"schlüssel {n}",
        "raw": bytes([0, 255, low]),
        "day": datetime.date(2026, 3, 1) + datetime.timedelta(days=low),
        "moment": MOMENT + datetime.timedelta(seconds=low),
        "local": datetime.datetime(2026, 3, 29, 2, 30, low % 60),  # noqa: DTZ001  # it has none
        "price": decimal.Decimal(low) + decimal.Decimal("0.1234"),
        "tags": [f"t{i}" for i in range(low % 3)],
        "place": {"x": float(low), "y": -0.5},
        "thing": {"key": n, "set": frozenset({1, low})},
        "events": [low, 2, 3],
        "kept": ["first", f"{low}"],
        "scores": {"a": low / 2, "b": 1.0},
        "by_thing": {(1, "x"): [low], "y": None},
        "total": low + 1,
        "mean": {"n": 2, "sum": float(low)},
        "seen": n,
    }


def check_every_key(step: Step) -> None:
    """A step that was restored holds, of every key, what was saved, and with its type."""
    for key in KEYS:
        handles = step.at(key)
        for name, value in expected(key).items():
            found = handles[name]
            got = dict(found.items()) if isinstance(value, dict) and name in ("scores", "by_thing") else found.get()
            assert got == value, (key, name)
            assert type(got) is type(value)


def every(kind: str = "memory") -> Step:
    """The step with every kind of state, filled."""
    step = Step(kind, Every, parallelism=PARALLELISM)
    fill(step, KEYS)
    return step


def fill(step: Step, keys: tuple[int | None, ...]) -> None:
    """Give these keys what they are expected to hold."""
    for key in keys:
        handles, values = step.at(key), expected(key)
        for name, value in values.items():
            if name in ("events", "kept"):
                handles[name].extend(value)
            elif name in ("scores", "by_thing"):
                for inner, found in value.items():
                    handles[name].set(inner, found)
            elif name == "total":
                handles[name].add(value)
            elif name == "mean":
                pass
            else:
                handles[name].set(value)
        # An accumulator is whatever the user's function makes of it.
        step.backends[step._enter(key)].value_table("mean").put(values["mean"])
        step.timers(key).add(EVENT_TIME, 1_000 if key is None else 1_000 + key % 7)
        step.timers(key).add(PROCESSING_TIME, 2**61)


def pairs() -> Step:
    """The step with a key of two columns, filled."""
    step = Step("memory", Pairs, parallelism=1, keys=BY_PAIR)
    for number, pair in enumerate(PAIRS):
        step.at(pair)["count"].set(number)
    return step


AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="total", kind="sum", column="v"),
    Aggregate(name="top", kind="max", column="v"),
    Aggregate(name="average", kind="mean", column="v"),
)
RECORDS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
WINDOW_SHAPE = {"keys": ("k",), "aggregates": AGGREGATES}
WINDOW_STEP = WindowStep(
    window=TumblingWindow(size_us=10_000_000, offset_us=0),
    schema=result_schema(RECORDS, time_column="ts", **WINDOW_SHAPE),
    **WINDOW_SHAPE,
)
WINDOW_ROWS = 9
FIRED_US = 5_000_000


def window_file() -> bytes:
    """The state of a window, of all key groups."""
    schema = partial_schema(RECORDS, time_column="ts", **WINDOW_SHAPE)
    columns = []
    for number, field in enumerate(schema):
        values = [(number + 1) * (row + 1) for row in range(WINDOW_ROWS)]
        if field.name == "window_start":
            values = [10_000_000 * (1 + row % 3) for row in range(WINDOW_ROWS)]
        columns.append(pa.array(values, pa.int64()).cast(field.type))
    table = WindowTable(WINDOW_STEP)
    table.append(pa.table(columns, schema=schema))
    fired = (
        FiredRange(first_group=0, last_group=7, fired_us=FIRED_US),
        FiredRange(first_group=8, last_group=GROUPS - 1, fired_us=None),
    )
    header = Header(layout=Layout.of(WINDOW_STEP), fired=fired)
    return table.encode(table.freeze(), header=header, groups=GROUPS)


LISTS = {
    0: OperatorState(
        operator=OperatorId("lists"),
        split_lists={"split": (pickle.dumps("a", 5), pickle.dumps("b", 5))},
        union_lists={"union": (pickle.dumps([1], 5),)},
        broadcast={"rules": pickle.dumps({"x": 1}, 5)},
    ),
    1: OperatorState(
        operator=OperatorId("lists"),
        split_lists={"split": (pickle.dumps("c", 5),)},
        union_lists={"union": ()},
        broadcast={"rules": pickle.dumps({"x": 1}, 5)},
    ),
}

FLYING = [
    pa.record_batch([pa.array([1, 2], pa.int64()), pa.array(["eins", None])], schema=IN_FLIGHT),
    pa.record_batch([pa.array([3], pa.int64()), pa.array(["drei"])], schema=IN_FLIGHT),
]


def channel_file() -> tuple[bytes, list[tuple[int, int]]]:
    """In-flight data, and where each batch lies in it."""
    pieces = [BatchCodec(IN_FLIGHT).encode(batch).to_pybytes() for batch in FLYING]
    return b"".join(pieces), [(0, len(pieces[0])), (len(pieces[0]), len(pieces[1]))]


class Tree:
    """A store in memory."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def write(self, path, data) -> None:
        self.contents[path] = bytes(memoryview(data))

    def read(self, path, *, limit=None):
        return self.contents[path]

    def list_files(self, prefix):
        return sorted(path for path in self.contents if not prefix or path.startswith(f"{prefix}/"))

    def delete(self, path) -> None:
        self.contents.pop(path, None)


def handle(data: bytes, path: str | None) -> StateFile:
    """How the metadata refers to a piece of state."""
    checksum = xxhash.xxh3_64_intdigest(data)
    return StateFile(path=path, size=len(data), checksum=checksum, inline=data if path is None else None)


def snapshot(store: Tree, folder: str, *, start: str, kind: SnapshotKind) -> CheckpointMetadata:
    """Write the state into `folder`, and what the metadata says; its paths begin with `start`."""

    def keyed(name: str, subtask: int, data: bytes, groups: tuple[int, int], *, inline: bool = False) -> OperatorState:
        path = f"{name}-{subtask}-0"
        if not inline:
            store.write(f"{folder}/{path}", data)
        return OperatorState(
            operator=OperatorId(name),
            keyed=(handle(data, None if inline else f"{start}{path}"),),
            key_groups=groups,
        )

    full, two = every(), pairs()
    contents = [full.store.get(files[0]) for files in full.save()]
    ((pair_file,),) = two.save()
    ranges = [range_of(i, parallelism=PARALLELISM, groups=GROUPS) for i in range(PARALLELISM)]
    everywhere = (0, GROUPS - 1)
    subtasks = {
        "every": {i: keyed("every", i, data, ranges[i], inline=i == 1) for i, data in enumerate(contents)},
        "pairs": {0: keyed("pairs", 0, two.store.get(pair_file), everywhere)},
        "windows": {0: keyed("windows", 0, window_file(), everywhere)},
        "lists": LISTS,
        "source": {0: OperatorState(operator=OperatorId("source"), split_lists={"splits": (b"\x00position",)})},
    }
    kinds = {"every": "process", "pairs": "process", "windows": "window", "lists": "process", "source": "read"}
    operators = {
        OperatorId(name): OperatorSnapshot(
            operator=OperatorId(name),
            vertex=VertexId(name),
            parallelism=1 if name in ("pairs", "windows") else PARALLELISM,
            max_parallelism=GROUPS,
            subtasks=found,
            finished_subtasks=(1,) if name == "source" else (),
            label=OperatorLabel(name=name.title(), kind=kinds[name]),
        )
        for name, found in subtasks.items()
    }
    return CheckpointMetadata(
        job=JOB,
        checkpoint=CHECKPOINT,
        timestamp=Instant(1_790_000_000_000),
        kind=kind,
        operators=operators,
        channels=() if kind.is_savepoint else in_flight(store, folder, start),
        coordinators={OperatorId("source"): b"\x01"},
        hooks={"hook": b"\x02"},
        settings={"parallelism": PARALLELISM},
        edges=(
            EdgeSnapshot(
                number=0,
                upstream=OperatorId("source"),
                downstream=OperatorId("every"),
                partitioning=Partitioning.HASH,
                upstream_parallelism=PARALLELISM,
                downstream_parallelism=PARALLELISM,
                keys=("k",),
            ),
        ),
    )


def in_flight(store: Tree, folder: str, start: str) -> tuple[TaskChannels, ...]:
    """Write what was in flight: one batch that was not read, and one that was not sent."""
    data, ranges = channel_file()
    store.write(f"{folder}/channels-0", data)
    file = handle(data, f"{start}channels-0")
    received = ChannelState(edge=0, upstream=0, downstream=1, file=file, ranges=tuple(ranges[:1]))
    waiting = ChannelState(edge=0, upstream=1, downstream=0, file=file, ranges=tuple(ranges[1:]))
    return (
        TaskChannels(task=TaskId(VertexId("every"), 1), inputs=(received,)),
        TaskChannels(task=TaskId(VertexId("source"), 1), outputs=(waiting,)),
    )


OUTCOME = JobOutcome(state=JobState.FAILED, cause="it broke", retained=(CHECKPOINT,))
VERTICES = (
    CheckpointVertex(
        vertex=VertexId("source"),
        parallelism=PARALLELISM,
        operators=(OperatorId("source"),),
        is_source=True,
        labels={OperatorId("source"): OperatorLabel(name="the source", kind="read")},
    ),
    CheckpointVertex(vertex=VertexId("every"), parallelism=PARALLELISM, operators=(OperatorId("every"),)),
)
EDGES = (
    CheckpointEdge(
        upstream=VertexId("source"), downstream=VertexId("every"), partitioning=Partitioning.HASH, keys=("k",)
    ),
)
SPLITS = {OperatorId("source"): (b"first", b"second")}
INHERITANCE = Inheritance(start=Start(splits=SPLITS, max_parallelism=GROUPS, vertices=VERTICES, edges=EDGES))


def completed(metadata: CheckpointMetadata, size: int) -> CompletedCheckpoint:
    """The pointer to the checkpoint."""
    return CompletedCheckpoint(
        job=JOB,
        checkpoint=CHECKPOINT,
        timestamp=metadata.timestamp,
        completed=Instant(metadata.timestamp + 1_500),
        kind=metadata.kind,
        location=f"{JOB}/chk-{CHECKPOINT}",
        path=f"{JOB}/chk-{CHECKPOINT}/_metadata",
        size=metadata.size,
        metadata_size=size,
        discard=DiscardRules(subsumed=True, finished=True),
        private_files=metadata.private_files,
    )


def files() -> dict[str, bytes]:
    """Every golden file, by its path, as today's code writes it."""
    whole = Tree()
    saved = snapshot(whole, SAVEPOINT_FOLDER, start="", kind=SnapshotKind.SAVEPOINT)
    whole.write(f"{SAVEPOINT_FOLDER}/_metadata", encode_metadata(saved))
    job = Tree()
    folder = layout.job_folder(JOB)
    own = layout.checkpoint_folder(folder, CHECKPOINT)
    metadata = snapshot(job, own, start=f"{own}/", kind=SnapshotKind.CHECKPOINT)
    content = encode_metadata(metadata)
    job.write(layout.metadata_file(folder, CHECKPOINT), content)
    record = msgspec.msgpack.encode(completed(metadata, len(content)))
    FileCompletedStore(job, folder).record(CHECKPOINT, record)
    checkpoint_ids(job, folder).advance(CHECKPOINT + 1)
    term = Term(0)
    Counter(job, layout.drivers_folder(folder), first=0).advance(term + 1)
    job.write(layout.tenure_file(folder, term), inheritance_format.encode(INHERITANCE))
    FileRecords(job, folder, term=term).record_outcome(OUTCOME)
    return {**whole.contents, **{f"{DIRECTORY}/{path}": data for path, data in job.contents.items()}}
