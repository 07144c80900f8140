"""Sources that end long before the others, with data behind back-pressure."""

from __future__ import annotations

from typing import Any

import pytest
from planted_bugs import found, shows

from penstock.core.coordinator.tasks import TaskBoard
from penstock.runtime.task.outputs import TaskOutputs
from penstock.settings import NetworkSettings
from penstock.sim.faults import CrashAfterCheckpoint
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import UserRequest, Wish

UNALIGNED = {"unaligned": True}
TURNING = {"unaligned": True, "aligned_timeout_ms": 20}


def pressed(make: Any, number: int, requests: tuple[UserRequest, ...] = (), **checkpointing: object) -> Scenario:
    """A second source that ends at once, and a step behind both that takes seconds for what is in the channels."""
    quiet = make.plain(number, latency_us=(20, 2_000), safety_ms=0, requests=requests)
    plain = make.shape(quiet, Shape.HASH_HASH)
    slow = make.workload(
        plain, rows=60, other_rows=(24,), splits=2, batch_rows=6, burst=10, pause_ms=5, slow_us=300_000
    )
    slow = make.settings(slow, network=NetworkSettings(channel_bytes=100, output_bytes=4_000, batch_bytes=100))
    return make.checkpoints(slow, interval_ms=200, timeout_ms=25_000, **checkpointing)


@pytest.mark.parametrize("checkpointing", [UNALIGNED, TURNING], ids=["unaligned", "turning unaligned"])
def test_a_finished_source_behind_back_pressure_stops_no_checkpoint(make: Any, checkpointing: dict[str, object]):
    worlds = [pressed(make, number, **checkpointing) for number in range(3)]
    assert found(worlds) == []


def test_checkpoints_that_wait_for_a_finished_source_behind_back_pressure_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    honest = TaskBoard.is_any_leaving.fget
    assert honest is not None
    monkeypatch.setattr(TaskBoard, "is_any_leaving", property(lambda board: honest(board) or bool(board._settled)))
    assert shows(Rule.NO_STARVATION, [pressed(make, number, **UNALIGNED) for number in range(3)])


@pytest.mark.parametrize("wish", [Wish.CHECKPOINT, Wish.SAVEPOINT, Wish.STOP, Wish.DRAIN])
@pytest.mark.parametrize("checkpointing", [{}, UNALIGNED, TURNING], ids=["aligned", "unaligned", "turning unaligned"])
def test_what_a_user_asks_for_while_a_finished_source_waits_is_granted(
    make: Any, wish: Wish, checkpointing: dict[str, object]
):
    asked = UserRequest(at_ms=1_500, wish=wish)
    result = run_scenario(pressed(make, 1, requests=(asked,), **checkpointing))
    assert (result.violations, result.granted) == ((), (wish,))


def ending(make: Any, number: int) -> Scenario:
    """A source that ends while most of its data waits, unread, at the step behind it; a slot dies later."""
    crash = CrashAfterCheckpoint(at_ms=3_000 + 250 * number, slot=1, delay_ms=5, notice=Notice.TOLD)
    plain = make.plain(number, latency_us=(20, 2_000), faults=(crash,), safety_ms=8_000)
    slow = make.workload(plain, rows=60, splits=2, batch_rows=6, burst=10, pause_ms=5, slow_us=200_000)
    slow = make.settings(slow, network=NetworkSettings(channel_bytes=4_000, output_bytes=400, batch_bytes=100))
    return make.checkpoints(slow, interval_ms=300, timeout_ms=10_000, unaligned=True, aligned_timeout_ms=100)


def test_what_was_not_read_when_its_source_ended_is_not_lost(make: Any):
    assert found([ending(make, number) for number in range(6)]) == []


def test_a_source_that_ends_when_all_was_sent_and_not_all_was_processed_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    """A step whose sources have all ended begins its checkpoints by itself. What then waits in its channels is ahead of
    no barrier, and nobody has it: the source is not started again."""
    monkeypatch.setattr(TaskOutputs, "is_taken", TaskOutputs.is_empty)
    assert found([ending(make, number) for number in range(6)]) == [Rule.EXACTLY_ONCE]
