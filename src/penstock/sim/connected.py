"""A step of a world whose keyed rows wait for a broadcast stream, and the check that the keyed rows wait.

The step knows from the input of the world which broadcast rows must come before the first keyed row: all broadcast
rows, or the broadcast rows before the point of event time that keyed rows wait for. If such a broadcast row is missing
when a keyed row is handled, in any attempt, the keyed row did not wait. Where keyed rows wait for a length of time, an
attempt that begins at the beginning handles no keyed row before that time has passed, unless all broadcast rows have
come.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.api.functions import EPOCH, KeyedBroadcastFunction, KeyedContext
from penstock.api.state_declarations import broadcast_state
from penstock.core.task.waiting import WaitFor
from penstock.sim.external import system_of
from penstock.sim.jobs import TICK_US, Workload


def draw_wait(random: Random, *, rule_rows: int) -> WaitFor:
    """What keyed rows wait for; every split of the broadcast stream has `rule_rows` rows."""
    return random.choice(
        (
            WaitFor(),
            WaitFor(watermark_us=TICK_US * random.randint(1, rule_rows)),
            WaitFor(time_ms=random.choice((20, 100, 400))),
        )
    )


class Guarded(KeyedBroadcastFunction):
    """Hands keyed rows on, and checks that the first keyed row has waited."""

    rules = broadcast_state("rules", key="string", value="bigint")

    def __init__(self, world: int, workload: Workload, wait: WaitFor) -> None:
        self._world = world
        self._workload = workload
        self._wait = wait
        self._opened_ms = 0
        self._has_looked = False

    def open(self, context: Any) -> None:  # noqa: ARG002
        """Remember when the subtask was opened; the subtask begins to read later."""
        self._opened_ms = system_of(self._world).now_ms
        self._has_looked = False

    def on_broadcast(self, row: dict[str, Any], context: KeyedContext) -> None:  # noqa: ARG002
        """Keep the broadcast row in the state."""
        self.rules.set(f"{row['key']}/{row['seq']}", _us(row["ts"]))

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> dict[str, Any]:  # noqa: ARG002
        """Hand the keyed row on."""
        if not self._has_looked:
            # Broadcast rows that have come stay in the state, so a look at the first keyed row is enough.
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
        text = f"{waited_ms} ms after its subtask was opened, before {len(missing)} broadcast rows such as {missing[0]}"
        system.on_unwaited(f"a keyed row was handled {text}")

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
