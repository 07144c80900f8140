"""A step of a world whose keyed rows wait for a broadcast stream, and what is checked of the waiting.

The step knows, by the input of the world, which broadcast rows must have come before the first keyed row: all of them,
or all that are earlier than the point of event time that is waited for. If one is missing when a keyed row is handled,
in whatever attempt, the row did not wait. Where a time is waited for, no row of an attempt that begins at the beginning
is handled earlier, unless the broadcast stream has ended.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.api.functions import EPOCH, KeyedBroadcastFunction, KeyedContext
from penstock.api.state import broadcast_state
from penstock.core.task.waiting import WaitFor
from penstock.sim.external import system_of
from penstock.sim.jobs import TICK_US, Workload


def draw_wait(random: Random, *, rule_rows: int) -> WaitFor:
    """What keyed rows wait for, if every split of the broadcast stream has so many rows."""
    return random.choice(
        (
            WaitFor(),
            WaitFor(watermark_us=TICK_US * random.randint(1, rule_rows)),
            WaitFor(time_ms=random.choice((20, 100, 400))),
        )
    )


class Guarded(KeyedBroadcastFunction):
    """Hands keyed rows on, and looks whether they have waited."""

    rules = broadcast_state("rules", key="string", value="bigint")

    def __init__(self, world: int, workload: Workload, wait: WaitFor) -> None:
        self._world = world
        self._workload = workload
        self._wait = wait
        self._opened_ms = 0
        self._has_looked = False

    def open(self, context: Any) -> None:  # noqa: ARG002
        """The subtask comes up, and begins later."""
        self._opened_ms = system_of(self._world).now_ms
        self._has_looked = False

    def on_broadcast(self, row: dict[str, Any], context: KeyedContext) -> None:  # noqa: ARG002
        """Keep the rule."""
        self.rules.set(f"{row['key']}/{row['seq']}", _us(row["ts"]))

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> dict[str, Any]:  # noqa: ARG002
        """Hand the row on."""
        if not self._has_looked:
            # What has come stays: once is enough.
            self._has_looked = True
            self._look()
        return row

    def _look(self) -> None:
        system, wait = system_of(self._world), self._wait
        known = dict(self.rules.items())
        missing = [rule for rule in self._wanted() if rule not in known]
        if not missing or system.is_drained:
            return
        waited_ms = system.now_ms - self._opened_ms
        if wait.time_ms is not None and (not system.begins_at_beginning or waited_ms >= wait.time_ms):
            return
        text = f"{waited_ms} ms after its subtask came up, before {len(missing)} rows such as {missing[0]}"
        system.on_unwaited(f"a row was handled {text}")

    def _wanted(self) -> dict[str, int]:
        until_us = self._wait.watermark_us
        tables = system_of(self._world).inputs[self._workload.splits :]
        columns = [
            (t.column("key").to_pylist(), t.column("seq").to_pylist(), t.column("ts").to_pylist()) for t in tables
        ]
        rules = {f"{key}/{seq}": _us(ts) for parts in columns for key, seq, ts in zip(*parts, strict=True)}
        return {rule: time_us for rule, time_us in rules.items() if until_us is None or time_us < until_us}


def _us(time: Any) -> int:
    return int((time - EPOCH).total_seconds() * 1_000_000 + 0.5)
