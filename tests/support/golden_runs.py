"""What is in the golden snapshots of runs: checkpoints of windows whose rows lie in runs that several checkpoints
share. Some rows had left the runs since the runs were written, and some rows were in no run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden_windows
import msgspec
import pyarrow as pa
from golden_windows import AGGREGATES, GROUPS, PARALLELISM, RECORDS, Files, Results

from penstock.api.pane_windows import SlidingWindow
from penstock.api.steps import CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow, WindowType
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import OperatorState, StateFile
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.partitioning import partition

WINDOWS: dict[str, WindowType] = {
    "tumbling": TumblingWindow(size_us=10, offset_us=3),
    "sliding": SlidingWindow(size_us=10, slide_us=4, offset_us=1),
}
LIMITS = RunLimits(
    run_rows=8, block_rows=4, part_blocks=2, loop_rows=64, section_rows=2, first_fanout=3, once_fanout=3, fanout=3
)
ROWS = [(f"key {number % 13}" if number % 13 else None, number, number * 13 % 61) for number in range(93)]
FIRED_US = 22
STATE = "state.json"


class SharedFiles(Files):
    """State in memory, with files that checkpoints share."""

    def put_shared(self, data: Any, key: str) -> StateFile:
        self.contents[key] = bytes(memoryview(data))
        return msgspec.structs.replace(self.handle(key), shared_key=key)

    def pieces(self, file: StateFile) -> Iterator[bytes]:
        yield self.get(file)


def steps(kind: str) -> tuple[CombineStep, WindowStep]:
    """Both halves of the window."""
    window = WINDOWS[kind]
    shape: dict[str, Any] = {"keys": ("k",), "aggregates": AGGREGATES}
    partial = partial_schema(RECORDS, time_column="ts", window=window, **shape)
    result = result_schema(RECORDS, time_column="ts", **shape)
    return (
        CombineStep(time_column="ts", window=window, schema=partial, **shape),
        WindowStep(window=window, schema=result, **shape),
    )


def opened(step: CombineStep | WindowStep, output: Results, **options: Any) -> Operator:
    """The operator, restored if there are states."""
    return golden_windows.opened(step, output, limits=LIMITS, **options)


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind in WINDOWS:
        contents, rows = saved(kind)
        found |= {f"{kind}/{path}": data for path, data in contents.items()}
        found[f"{kind}/to-come.json"] = json.dumps(rows, indent=1).encode()
    return found


def saved(kind: str) -> tuple[dict[str, bytes], list[list[Any]]]:
    """The files of one kind: the state of each subtask as JSON, and what the state names; and the rows that had not
    been handed on."""
    combine, step = steps(kind)
    partials, store, to_come, states = Results(), SharedFiles({}), [], []
    front = opened(combine, partials)
    for begin, end in pairwise([0, 30, 60, 90, len(ROWS)]):
        keys, values, times = zip(*ROWS[begin:end], strict=True)
        columns = [pa.array(keys, pa.string()), pa.array(values), pa.array(times).cast(RECORDS.field("ts").type)]
        front.process(pa.record_batch(columns, RECORDS))
        front.before_barrier()
    for subtask in range(PARALLELISM):
        results = Results()
        operator = opened(step, results, subtask=subtask, parallelism=PARALLELISM)
        for number, batch in enumerate(partials.batches):
            part = partition(batch, ("k",), parallelism=PARALLELISM, groups=GROUPS)[subtask]
            if part is not None:
                operator.process(part)
            if number == len(partials.batches) - 2:
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


def states_in(folder: Path) -> list[OperatorState]:
    """The state of each subtask. Each file is named as in the metadata of a completed checkpoint."""
    states = msgspec.json.decode((folder / STATE).read_bytes(), type=list[OperatorState])
    return [
        msgspec.structs.replace(
            state, keyed=tuple(msgspec.structs.replace(file, placeholder=False) for file in state.keyed)
        )
        for state in states
    ]


def store_of(folder: Path) -> SharedFiles:
    """The files in a folder."""
    return SharedFiles({path.name: path.read_bytes() for path in folder.iterdir()})


def restored(kind: str, folder: Path, parallelism: int) -> Iterator[list[Any]]:
    """The rows that come out of the files in a folder, restored by so many subtasks."""
    step = steps(kind)[1]
    for subtask in range(parallelism):
        results = Results()
        states = tuple(states_in(folder))
        operator = opened(
            step, results, subtask=subtask, parallelism=parallelism, store=store_of(folder), states=states
        )
        operator.watermark(MAX_WATERMARK)
        yield from results.rows
