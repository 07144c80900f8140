"""What is in the golden snapshots of windows: state of every type of window but tumbling windows, taken in the middle
of a firing, so that some windows had been put together and not been handed on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, WindowType
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.base import Operator, OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

GROUPS = 16
PARALLELISM = 2
RECORDS = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="total", kind="sum", column="v"),
    Aggregate(name="top", kind="max", column="v"),
    Aggregate(name="average", kind="mean", column="v"),
)
WINDOWS: dict[str, tuple[WindowType, tuple[str, ...]]] = {
    "sliding": (SlidingWindow(size_us=10, slide_us=4, offset_us=1), ("k",)),
    "cumulative": (CumulativeWindow(size_us=12, step_us=4, offset_us=0), ("k",)),
    "session": (SessionWindow(gap_us=5), ("k",)),
    "sliding-over-all": (SlidingWindow(size_us=10, slide_us=4, offset_us=1), ()),
}
ROWS = [(f"key {number % 7}" if number % 7 else None, number, number * 13 % 61) for number in range(50)]
FIRED_US = 33


class Files:
    """State in memory."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.contents = contents

    def put(self, data: Any) -> StateFile:
        path = str(len(self.contents))
        self.contents[path] = bytes(memoryview(data))
        return self.handle(path)

    def get(self, file: StateFile) -> bytes:
        return self.contents[str(file.path)]

    def handle(self, path: str) -> StateFile:
        data = self.contents[path]
        return StateFile(path=path, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))


class Results:
    """An output that keeps rows."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.batches: list[pa.RecordBatch] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
        self.rows += [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
        self.batches.append(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Times are not kept."""


def steps(kind: str) -> tuple[CombineStep, WindowStep]:
    """Both halves of the window."""
    window, keys = WINDOWS[kind]
    partial = partial_schema(RECORDS, keys=keys, time_column="ts", aggregates=AGGREGATES, window=window)
    result = result_schema(RECORDS, keys=keys, time_column="ts", aggregates=AGGREGATES)
    return (
        CombineStep(keys=keys, time_column="ts", window=window, aggregates=AGGREGATES, schema=partial),
        WindowStep(keys=keys, window=window, aggregates=AGGREGATES, schema=result),
    )


def opened(
    step: CombineStep | WindowStep,
    output: Results,
    *,
    subtask: int = 0,
    parallelism: int = 1,
    store: Any = None,
    states: tuple[OperatorState, ...] = (),
    limits: RunLimits | None = None,
) -> Operator:
    """The operator, restored from `states` if there are any."""
    unused: Any = None
    context = OperatorContext(
        job=JobId("job"),
        epoch=Epoch(1),
        task=TaskId(VertexId("windows"), subtask),
        operator="windows",
        name="windows",
        parallelism=parallelism,
        max_parallelism=GROUPS,
        key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
        now=lambda: Instant(0),
        background=unused,
        restored=states,
        fresh=not states,
        reader=store,
        fail=unused,
        runs=RunOptions(limits=limits or RunLimits()),
    )
    operator = build_operator(step)
    operator.load(context)
    operator.open(context, output)
    return operator


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind in WINDOWS:
        contents, rows = saved(kind)
        found |= {f"{kind}/{path}": data for path, data in contents.items()}
        found[f"{kind}/to-come.json"] = json.dumps(rows, indent=1).encode()
    return found


def saved(kind: str) -> tuple[dict[str, bytes], list[list[Any]]]:
    """The files of one kind, by subtask and number; and the rows that were not handed on."""
    combine, step = steps(kind)
    partials, contents, to_come = Results(), {}, []
    front = opened(combine, partials)
    keys, values, times = zip(*ROWS, strict=True)
    columns = [pa.array(keys), pa.array(values), pa.array(times).cast(RECORDS.field("ts").type)]
    front.process(pa.record_batch(columns, RECORDS))
    front.before_barrier()
    (batch,) = partials.batches
    for subtask, part in enumerate(partition(batch, step.keys, parallelism=PARALLELISM, groups=GROUPS)):
        results, store = Results(), Files({})
        operator = opened(step, results, subtask=subtask, parallelism=PARALLELISM)
        operator.slice = Slice()
        operator.slice.run_by(lambda: 0.0, 3)
        operator.slice.begin()
        if part is not None:
            operator.process(part)
        work = operator.watermark(FIRED_US)
        snapshot = operator.snapshot(CheckpointId(1), CheckpointOptions())
        assert snapshot is not None
        snapshot(store)
        contents |= {f"{subtask}-{path}": data for path, data in store.contents.items()}
        results.rows.clear()
        operator.slice = Slice()
        while work is not None and work.go_on():
            pass
        operator.watermark(MAX_WATERMARK)
        to_come += results.rows
    return contents, sorted(to_come, key=repr)


def restored(kind: str, folder: Path, parallelism: int) -> Iterator[list[Any]]:
    """The rows that come out of the files in a folder, restored by so many subtasks."""
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"}
    store = Files(contents)
    states = []
    for subtask in range(PARALLELISM):
        own = tuple(store.handle(path) for path in contents if path.startswith(f"{subtask}-"))
        states.append(OperatorState(operator=OperatorId("windows"), keyed=own))
    for subtask in range(parallelism):
        results = Results()
        step = steps(kind)[1]
        operator = opened(step, results, subtask=subtask, parallelism=parallelism, store=store, states=tuple(states))
        operator.watermark(MAX_WATERMARK)
        yield from results.rows
