"""What is in the golden snapshots of sorts: checkpoints of records that wait for their time, in runs that several
checkpoints share. Some records had left the runs since the runs were written, and some records were in no run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden_windows
import msgspec
import pyarrow as pa
from golden_runs import LIMITS, STATE, SharedFiles, states_in, store_of
from golden_windows import GROUPS, PARALLELISM, Results

from penstock.api.steps import LateRecords, SortStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.partitioning import partition

KINDS = {"by-key": ("k",), "all": ()}
SCHEMA = pa.schema(
    [pa.field("k", pa.string()), pa.field("ts", pa.timestamp("us", tz="UTC")), pa.field("n", pa.int64())]
)
ROWS = [(f"key {number % 13}" if number % 13 else None, number * 13 % 61, number) for number in range(93)]
FIRED_US = 22


def step(kind: str) -> SortStep:
    """The sort."""
    late = LateRecords(time_column="ts", schema=SCHEMA)
    return SortStep(keys=KINDS[kind], late=late, order=(), schema=SCHEMA)


def opened(kind: str, output: Results, **options: Any) -> Operator:
    """The operator, restored if there are states."""
    given: Any = step(kind)
    return golden_windows.opened(given, output, limits=LIMITS, **options)


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind in KINDS:
        contents, rows = saved(kind)
        found |= {f"{kind}/{path}": data for path, data in contents.items()}
        found[f"{kind}/to-come.json"] = json.dumps(rows, indent=1).encode()
    return found


def saved(kind: str) -> tuple[dict[str, bytes], list[list[Any]]]:
    """The files of one kind: the state of each subtask as JSON, and what the state names; and the records that had not
    left, sorted."""
    store, to_come, states = SharedFiles({}), list[list[Any]](), list[OperatorState]()
    for subtask in range(PARALLELISM):
        results = Results()
        operator = opened(kind, results, subtask=subtask, parallelism=PARALLELISM)
        bounds = [0, 30, 60, 90, len(ROWS)]
        for begin, end in pairwise(bounds):
            keys, times, numbers = zip(*ROWS[begin:end], strict=True)
            columns = [pa.array(keys, pa.string()), pa.array(times).cast(SCHEMA.field("ts").type), pa.array(numbers)]
            batch = pa.record_batch(columns, SCHEMA)
            part = partition(batch, KINDS[kind], parallelism=PARALLELISM, groups=GROUPS)[subtask]
            if part is not None:
                operator.process(part)
            if end == bounds[-2]:
                operator.watermark(5)
                _take(operator, 1, store)
                operator.completed(CheckpointId(1))
        operator.watermark(FIRED_US)
        states.append(_take(operator, 2, store))
        results.rows.clear()
        operator.watermark(MAX_WATERMARK)
        to_come += results.rows
    named = [file for state in states for file in state.keyed]
    contents = {str(file.path): store.contents[str(file.path)] for file in named}
    return {STATE: msgspec.json.encode(states), **contents}, sorted(to_come, key=repr)


def _take(operator: Operator, checkpoint: int, store: SharedFiles) -> OperatorState:
    snapshot = operator.snapshot(CheckpointId(checkpoint), CheckpointOptions())
    assert snapshot is not None
    return snapshot(store)


def restored(kind: str, folder: Path, parallelism: int) -> Iterator[list[list[Any]]]:
    """The records that come out of the files in a folder, of each of so many subtasks."""
    for subtask in range(parallelism):
        results = Results()
        states = tuple(states_in(folder))
        operator = opened(
            kind, results, subtask=subtask, parallelism=parallelism, store=store_of(folder), states=states
        )
        operator.watermark(MAX_WATERMARK)
        yield results.rows
