"""What is in the golden snapshots of runs of windows that show updates, and of windows of a number of records:
checkpoints whose runs several checkpoints share. Some rows had left the runs since the runs were written. More records
come after the restore, so that rows are found again and changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden_updates
import golden_windows
import msgspec
from golden_runs import STATE, SharedFiles, states_in, store_of
from golden_updates import LATER, given, steps
from golden_windows import PARALLELISM, Results

from penstock.api.changelog import DELETE, UPDATE_BEFORE
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.task.operators.sorted_runs import RunLimits

WINDOWS = tuple(golden_updates.WINDOWS)
LIMITS = RunLimits(
    run_rows=8, block_rows=4, part_blocks=2, loop_rows=64, section_rows=2, first_fanout=3, once_fanout=3, fanout=3
)
ROWS = [(f"key {number % 23}" if number % 23 else None, number, number * 13 % 61) for number in range(120)]


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind in WINDOWS:
        contents, rows = saved(kind)
        found |= {f"{kind}/{path}": data for path, data in contents.items()}
        found[f"{kind}/to-come.json"] = json.dumps(rows, indent=1).encode()
    return found


def saved(kind: str) -> tuple[dict[str, bytes], list[list[Any]]]:
    """The files of one kind: the state of each subtask as JSON, and what the state names; and the rows that come
    later."""
    step, store, to_come = steps(kind)[1], SharedFiles({}), list[list[Any]]()
    states: list[OperatorState] = []
    later = given(kind, LATER, PARALLELISM)
    parts = [given(kind, ROWS[begin:end], PARALLELISM) for begin, end in pairwise([0, 40, 80, 110, len(ROWS)])]
    for subtask in range(PARALLELISM):
        results = Results()
        operator = golden_windows.opened(step, results, subtask=subtask, parallelism=PARALLELISM, limits=LIMITS)
        for number, part in enumerate(parts):
            batch = part[subtask]
            if batch is not None:
                operator.process(batch)
            if number == len(parts) - 2:
                _take(operator, 1, store)
                operator.completed(CheckpointId(1))
        operator.watermark(golden_windows.FIRED_US)
        states.append(_take(operator, 2, store))
        to_come += _to_come(operator, results, later[subtask])
    named = [file for state in states for file in state.keyed]
    contents = {str(file.path): store.contents[str(file.path)] for file in named}
    return {STATE: msgspec.json.encode(states), **contents}, left(kind, to_come)


def _take(operator: Operator, checkpoint: int, store: SharedFiles) -> OperatorState:
    snapshot = operator.snapshot(CheckpointId(checkpoint), CheckpointOptions())
    assert snapshot is not None
    return snapshot(store)


def _to_come(operator: Any, results: Results, part: Any) -> list[list[Any]]:
    results.rows.clear()
    if part is not None:
        operator.process(part)
    operator.watermark(MAX_WATERMARK)
    return results.rows


def left(kind: str, rows: Iterable[list[Any]]) -> list[list[Any]]:
    """What the rows do to the table of results, whatever the steps: each result, and how often it comes less how often
    it goes."""
    found: dict[str, int] = {}
    for row in rows:
        is_change = golden_updates.WINDOWS[kind][1] is not None
        result = json.dumps(row[:-1] if is_change else row)
        goes = is_change and row[-1] in (UPDATE_BEFORE, DELETE)
        found[result] = found.get(result, 0) + (-1 if goes else 1)
    return [[*json.loads(result), count] for result, count in sorted(found.items()) if count]


def restored(kind: str, folder: Path, parallelism: int) -> Iterator[list[Any]]:
    """The rows that come out of the files in a folder, restored by so many subtasks."""
    step, later = steps(kind)[1], given(kind, LATER, parallelism)
    for subtask in range(parallelism):
        results = Results()
        operator = golden_windows.opened(
            step,
            results,
            subtask=subtask,
            parallelism=parallelism,
            store=store_of(folder),
            states=tuple(states_in(folder)),
            limits=LIMITS,
        )
        yield from _to_come(operator, results, later[subtask])
