"""What is in the golden snapshots of joins: both sides, records that have matched and records that have not, rows that
were taken back, and records of a batch whose results were being handed on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash
from join_rig import JoinRig, Output, Record, changes_of, join_step, regular_step, version_step

from penstock.api.join_steps import LEFT, RIGHT, Interval, JoinKind, RegularJoinStep, SameWindow, TwoSidedStep
from penstock.api.windows import TumblingWindow
from penstock.core.ids import OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.plan.key_groups import range_of

PARALLELISM = 2
_REACH = Interval(lower_us=-5, upper_us=20)
JOINS: dict[str, TwoSidedStep] = {
    "full": join_step(JoinKind.FULL, _REACH),
    "regular": regular_step(JoinKind.FULL),
    "semi": join_step(JoinKind.SEMI, _REACH),
    "versions": version_step(JoinKind.LEFT),
    "window": join_step(JoinKind.LEFT, SameWindow(window=TumblingWindow(size_us=15))),
}
LEFT_RECORDS = [Record(number % 6 or None, 10 + number % 25, number) for number in range(40)]
RIGHT_RECORDS = [Record(number % 8, 12 + number % 20, number) for number in range(40)]
LAST = [Record(number % 6, 33 + number, 100 + number) for number in range(6)]


def files() -> dict[str, bytes]:
    """The files of all joins, and the rows that are to come out of them."""
    found: dict[str, bytes] = {}
    for kind, step in JOINS.items():
        rig = _stopped(step)
        states = rig.snapshot()
        for subtask, state in enumerate(states):
            for number, file in enumerate(state.keyed):
                found[f"{kind}/{subtask}-{number}"] = rig.store.get(file)
        shown = len(rig.output.rows)
        _go_on(rig, states, PARALLELISM)
        found[f"{kind}/to-come.json"] = json.dumps(in_order(step, rig.output.rows[shown:])).encode()
    return found


def _stopped(step: TwoSidedStep) -> JoinRig:
    """A join that was stopped while it handed the results of a batch on."""
    rig = JoinRig(step, Output(), parallelism=PARALLELISM, most=3)
    if isinstance(step, RegularJoinStep):
        _change(rig, step, LEFT, "insert", [*LEFT_RECORDS[:30], Record(99, 5, 99)])
        rig.now_ms = 500
        _change(rig, step, RIGHT, "insert", RIGHT_RECORDS[:20])
        _change(rig, step, LEFT, "delete", LEFT_RECORDS[5:9])
        batch = changes_of(step, RIGHT, RIGHT_RECORDS[18:], ["delete"] * 2 + ["insert"] * 20)
        rig.feed_batch(RIGHT, batch, cut=lambda: True)
        return rig
    rig.feed(LEFT, LEFT_RECORDS[:30])
    rig.feed(RIGHT, RIGHT_RECORDS[:20])
    rig.advance(11)
    rig.feed(RIGHT, RIGHT_RECORDS[20:], cut=lambda: True)
    return rig


def _go_on(rig: JoinRig, states: tuple[OperatorState, ...], parallelism: int) -> None:
    rig.restored(parallelism, states)
    if isinstance(rig.step, RegularJoinStep):
        _change(rig, rig.step, LEFT, "delete", LEFT_RECORDS[9:20])
        _change(rig, rig.step, LEFT, "insert", LEFT_RECORDS[30:])
        _change(rig, rig.step, RIGHT, "delete", RIGHT_RECORDS[22:30])
        return
    rig.feed(LEFT, LEFT_RECORDS[30:])
    rig.feed(RIGHT, LAST)
    rig.end()


def restored(kind: str, folder: Path, parallelism: int) -> list[Any]:
    """The rows that come out of the files in a folder."""
    rig = JoinRig(JOINS[kind], Output())
    states = []
    for subtask in range(PARALLELISM):
        paths = sorted(folder.glob(f"{subtask}-*"))
        rig.store.contents.update({f"{kind}/{path.name}": path.read_bytes() for path in paths})
        states.append(
            OperatorState(
                operator=OperatorId("join"),
                keyed=tuple(_handle(f"{kind}/{path.name}", path.read_bytes()) for path in paths),
                key_groups=range_of(subtask, parallelism=PARALLELISM, groups=16),
            )
        )
    _go_on(rig, tuple(states), parallelism)
    return in_order(rig.step, rig.output.rows)


def _change(rig: JoinRig, step: RegularJoinStep, side: int, kind: str, records: Sequence[Record]) -> None:
    rig.feed_batch(side, changes_of(step, side, records, [kind] * len(records)))


def in_order(step: TwoSidedStep, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Rows in an order of their own. What changes come to does not depend on how many of them come at once."""
    if not isinstance(step, RegularJoinStep):
        return sorted(map(list, rows), key=repr)
    found = Counter[Any]()
    for *values, kind in rows:
        found[tuple(values)] += 1 if kind == "insert" else -1
    return sorted(([*values, times] for values, times in found.items() if times), key=repr)


def _handle(path: str, data: bytes) -> StateFile:
    return StateFile(path=path, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))
