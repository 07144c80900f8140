"""What is in the golden snapshots of joins in runs: checkpoints of joins whose records lie in runs that several
checkpoints share. Since the first checkpoint some records were done, some marks have changed, and some records came
that are in no run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden_joins
import golden_runs
import msgspec
from golden_runs import STATE, SharedFiles
from join_rig import JoinRig, Output, Record, changes_of, join_step, regular_step, version_step

from penstock.api.join_steps import LEFT, RIGHT, Interval, JoinKind, RegularJoinStep, TwoSidedStep
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions

PARALLELISM = 2
LIMITS = RunLimits(run_rows=8, loop_rows=1_000, section_rows=2, fanout=3)
JOINS: dict[str, TwoSidedStep] = {
    "full": join_step(JoinKind.FULL, Interval(lower_us=-5, upper_us=20)),
    "regular": regular_step(JoinKind.FULL),
    "versions": version_step(JoinKind.LEFT),
}


def _records(begin: int, end: int, most_key: int) -> list[Record]:
    return [Record(number * 7 % most_key, 10 + number % 40, number) for number in range(begin, end)]


def files() -> dict[str, bytes]:
    """The files of all kinds, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind, step in JOINS.items():
        rig = JoinRig(step, Output(), parallelism=PARALLELISM, runs=RunOptions(limits=LIMITS))
        states = _stopped(rig)
        named = [file for state in states for file in state.keyed]
        found |= {f"{kind}/{file.path}": rig.store.contents[str(file.path)] for file in named}
        found[f"{kind}/{STATE}"] = msgspec.json.encode(states)
        shown = len(rig.output.rows)
        _go_on(rig, states, PARALLELISM)
        rows = golden_joins.in_order(step, rig.output.rows[shown:])
        found[f"{kind}/to-come.json"] = json.dumps(rows).encode()
    return found


def _feed(rig: JoinRig, side: int, kind: str, records: list[Record]) -> None:
    step = rig.step
    if isinstance(step, RegularJoinStep):
        rig.feed_batch(side, changes_of(step, side, records, [kind] * len(records)))
    else:
        rig.feed(side, records)


def _stopped(rig: JoinRig) -> tuple[OperatorState, ...]:
    _feed(rig, LEFT, "insert", _records(0, 300, 40))
    _feed(rig, RIGHT, "insert", _records(0, 200, 90))
    rig.checkpoint()
    if isinstance(rig.step, RegularJoinStep):
        _feed(rig, LEFT, "delete", _records(40, 48, 40))
    else:
        rig.advance(18)
    # Few records, so that few marks change.
    _feed(rig, RIGHT, "insert", [Record(number, 40, 1_000 + number) for number in (3, 80)])
    return rig.checkpoint()


def _go_on(rig: JoinRig, states: tuple[OperatorState, ...], parallelism: int) -> None:
    rig.restored(parallelism, states)
    _feed(rig, LEFT, "insert", [record._replace(time=49, number=500 + record.number) for record in _records(0, 9, 40)])
    if isinstance(rig.step, RegularJoinStep):
        _feed(rig, LEFT, "delete", _records(50, 99, 40))
        _feed(rig, RIGHT, "delete", _records(30, 60, 90))
    else:
        rig.end()


def restored(kind: str, folder: Path, parallelism: int) -> list[Any]:
    """The rows that come out of the files in a folder."""
    rig = JoinRig(JOINS[kind], Output(), runs=RunOptions(limits=LIMITS))
    rig.store = store_of(folder)
    _go_on(rig, tuple(golden_runs.states_in(folder)), parallelism)
    return golden_joins.in_order(rig.step, rig.output.rows)


def store_of(folder: Path) -> SharedFiles:
    """The files in a folder."""
    return golden_runs.store_of(folder)
