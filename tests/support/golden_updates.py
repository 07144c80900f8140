"""What is in the golden snapshots of windows that show updates, and of windows of a number of records: rows, changes
that had not been handed on, and partials that waited for early results. More records come after the restore, so that
rows are found again and changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_windows as base
import pyarrow as pa

from penstock.api.changelog import with_row_kind
from penstock.api.other_windows import CountWindow
from penstock.api.pane_windows import SlidingWindow
from penstock.api.steps import ROW_COUNT, Aggregate, CombineStep, Updates, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, TumblingWindow, WindowType
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

SLIDING = SlidingWindow(size_us=10, slide_us=4, offset_us=1)
WINDOWS: dict[str, tuple[WindowType, Updates | None]] = {
    "tumbling": (TumblingWindow(size_us=10), Updates()),
    "sliding": (SLIDING, Updates()),
    "session": (SessionWindow(gap_us=5), Updates()),
    "waiting": (SLIDING, Updates(every_ms=1_000)),
    "counting": (SLIDING, Updates(every_rows=4)),
    "count": (CountWindow(size=3, slide=2), None),
}
LATER = [(key, number, time + 1) for key, number, time in base.ROWS[::3]]
KEYS = ("k",)


def steps(kind: str) -> tuple[CombineStep | None, WindowStep]:
    """Both halves of the window. Windows of a number of records have no first half."""
    window, updates = WINDOWS[kind]
    aggregates = base.AGGREGATES
    if updates is None or updates.every_rows is not None:
        aggregates = (*aggregates, Aggregate(name=ROW_COUNT, kind="count", column=None))
    time_column = "ts" if window.needs_time else None
    shape: Any = {"keys": KEYS, "time_column": time_column, "window": window}
    partial = partial_schema(base.RECORDS, aggregates=aggregates, **shape)
    result = result_schema(base.RECORDS, aggregates=base.AGGREGATES, **shape)
    step = WindowStep(
        keys=KEYS,
        window=window,
        aggregates=aggregates,
        schema=result if updates is None else with_row_kind(result),
        lateness_us=0 if updates is None else 20,
        updates=updates,
        partials=partial,
    )
    combine = CombineStep(aggregates=aggregates, schema=partial, holds=False, **shape)
    return (None if updates is None else combine), step


def given(kind: str, rows: list[tuple[Any, ...]], parallelism: int) -> list[pa.RecordBatch | None]:
    """What each subtask of the window gets."""
    keys, values, times = zip(*rows, strict=True)
    columns = [pa.array(keys), pa.array(values), pa.array(times).cast(base.RECORDS.field("ts").type)]
    batch, combine = pa.record_batch(columns, base.RECORDS), steps(kind)[0]
    if combine is not None:
        partials = base.Results()
        front = base.opened(combine, partials)
        front.process(batch)
        (batch,) = partials.batches
    return partition(batch, KEYS, parallelism=parallelism, groups=base.GROUPS)


def _to_come(operator: Any, results: base.Results, part: pa.RecordBatch | None) -> Iterator[list[Any]]:
    results.rows.clear()
    if part is not None:
        operator.process(part)
    operator.watermark(MAX_WATERMARK)
    yield from results.rows


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind in WINDOWS:
        contents, rows = saved(kind)
        found |= {f"{kind}/{path}": data for path, data in contents.items()}
        found[f"{kind}/to-come.json"] = json.dumps(rows, indent=1).encode()
    return found


def saved(kind: str) -> tuple[dict[str, bytes], list[list[Any]]]:
    """The files of one kind, by subtask and number; and the rows that come later."""
    contents: dict[str, bytes] = {}
    to_come: list[list[Any]] = []
    step = steps(kind)[1]
    first, later = (given(kind, rows, base.PARALLELISM) for rows in (base.ROWS, LATER))
    for subtask in range(base.PARALLELISM):
        results, store = base.Results(), base.Files({})
        operator = base.opened(step, results, subtask=subtask, parallelism=base.PARALLELISM)
        operator.slice = Slice()
        operator.slice.run_by(lambda: 0.0, 3)
        operator.slice.begin()
        part = first[subtask]
        work = None if part is None else operator.process(part)
        if work is None:
            operator.slice.begin()
            work = operator.watermark(base.FIRED_US)
        snapshot = operator.snapshot(CheckpointId(1), CheckpointOptions())
        assert snapshot is not None
        snapshot(store)
        contents |= {f"{subtask}-{path}": data for path, data in store.contents.items()}
        again = base.opened(
            step,
            results,
            subtask=subtask,
            parallelism=base.PARALLELISM,
            store=store,
            states=(state_of(store, list(store.contents)),),
        )
        to_come += _to_come(again, results, later[subtask])
    return contents, sorted(to_come, key=repr)


def state_of(store: base.Files, paths: list[str]) -> OperatorState:
    """The state of a subtask, in these files."""
    return OperatorState(operator=OperatorId("windows"), keyed=tuple(map(store.handle, paths)))


def restored(kind: str, folder: Path, parallelism: int) -> Iterator[list[Any]]:
    """The rows that come out of the files in a folder, restored by so many subtasks."""
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"}
    store = base.Files(contents)
    owned = [[path for path in contents if path.startswith(f"{subtask}-")] for subtask in range(base.PARALLELISM)]
    states = tuple(state_of(store, paths) for paths in owned)
    later = given(kind, LATER, parallelism)
    for subtask in range(parallelism):
        results, step = base.Results(), steps(kind)[1]
        operator = base.opened(step, results, subtask=subtask, parallelism=parallelism, store=store, states=states)
        yield from _to_come(operator, results, later[subtask])
