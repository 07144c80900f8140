"""The world: time, turns, pauses, crashes and the guard against livelock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.errors import InvariantError
from penstock.core.ids import Instant
from penstock.sim.clock import SimClock
from penstock.sim.rules import Rule
from penstock.sim.world import BEGINNING_MS, Actor, Crash, Fuse, World


class Scripted:
    """A driver whose turns are a function of time."""

    def __init__(self, turn: Callable[[Instant], Instant | None]) -> None:
        self.turns: list[int] = []
        self._turn = turn

    def turn(self, now: Instant) -> Instant | None:
        self.turns.append(now - BEGINNING_MS)
        return self._turn(now)


def actor_with(world: World, turn: Callable[[Instant], Instant | None], name: str = "a") -> tuple[Actor, Scripted]:
    actor = Actor(world, name)
    driver = Scripted(turn)
    actor.driver = driver
    return actor, driver


def test_events_happen_in_the_order_of_their_times_and_then_of_their_making():
    world = World(1)
    seen: list[str] = []
    world.at(20, lambda: seen.append("late"))
    world.at(10, lambda: seen.append("first"))
    world.at(10, lambda: seen.append("second"))
    world.run(lambda: False, until_us=100)
    assert seen == ["first", "second", "late"]


def test_time_stops_at_the_limit_and_goes_on_from_there():
    world = World(1)
    seen: list[int] = []
    world.at(5_000, lambda: seen.append(world.now_us))
    assert not world.run(lambda: False, until_us=1_000)
    assert (world.now_us, seen) == (1_000, [])
    assert world.run(lambda: bool(seen), until_us=9_000)
    assert seen == [5_000]


def test_a_turn_comes_when_its_deadline_has_and_never_before():
    world = World(3)
    actor, driver = actor_with(world, lambda now: Instant(now + 50) if now < BEGINNING_MS + 400 else None)
    actor.wake()
    world.run(lambda: False, until_us=10_000_000)
    gaps = [after - before for before, after in zip(driver.turns, driver.turns[1:], strict=False)]
    assert len(gaps) >= 5
    assert all(50 <= gap <= 50 + 20 for gap in gaps)


def test_waking_an_actor_brings_its_next_turn_forward():
    world = World(3)
    actor, driver = actor_with(world, lambda now: Instant(BEGINNING_MS + 1_000) if now < BEGINNING_MS + 900 else None)
    actor.wake()
    world.at(200_000, actor.wake)
    world.run(lambda: False, until_us=2_000_000)
    assert driver.turns[0] == 0
    assert driver.turns[1] == 200
    assert driver.turns[2] >= 1_000
    assert len(driver.turns) == 3


def test_a_paused_actor_takes_its_turn_when_the_pause_is_over():
    world = World(3)
    actor, driver = actor_with(world, lambda now: None)
    actor.pause(300_000)
    actor.wake()
    world.at(100_000, actor.wake)
    world.run(lambda: False, until_us=1_000_000)
    assert driver.turns == [300]


def test_a_dead_actor_takes_no_turn():
    world = World(3)
    actor, driver = actor_with(world, lambda now: None)
    actor.wake()
    actor.die()
    world.run(lambda: False, until_us=1_000_000)
    assert driver.turns == []


def test_a_fuse_kills_at_the_given_call_of_the_given_kind():
    world = World(3)
    actor, _ = actor_with(world, lambda now: None)
    actor.fuse = Fuse("send", 2)
    actor.used("send")
    actor.used("submit")
    with pytest.raises(Crash):
        actor.used("send")


def test_a_crash_in_a_turn_is_handed_to_the_host():
    world = World(3)
    crashed: list[str] = []

    def turn(now: Instant) -> Instant | None:
        actor.used("send")
        raise AssertionError("the fuse did not burn")

    actor, _ = actor_with(world, turn)
    actor.fuse = Fuse("send", 1)
    actor.on_crash = lambda: crashed.append(actor.name)
    actor.wake()
    world.run(lambda: False, until_us=1_000_000)
    assert crashed == ["a"]
    assert world.violations == []


def test_a_driver_that_raises_is_a_violation_and_ends_the_world():
    world = World(3)

    def turn(now: Instant) -> Instant | None:
        raise ValueError("oops")

    actor, _ = actor_with(world, turn)
    actor.wake()
    world.run(lambda: False, until_us=1_000_000)
    assert world.stopped
    assert [violation.rule for violation in world.violations] == [Rule.NO_BUG]
    assert "oops" in world.violations[0].text


def test_a_driver_that_contradicts_itself_is_a_violation():
    world = World(3)
    actor, driver = actor_with(world, lambda now: None)

    def validate() -> None:
        raise InvariantError("two and two is five")

    driver.validate = validate
    actor.wake()
    world.run(lambda: False, until_us=1_000_000)
    assert [violation.rule for violation in world.violations] == [Rule.NO_BUG]


@pytest.mark.parametrize("stale_ms", [0, 5])
def test_asking_for_turns_for_ever_without_progress_is_a_livelock(stale_ms: int):
    world = World(3)
    actor, _ = actor_with(world, lambda now: Instant(now - stale_ms))
    actor.wake()
    world.run(lambda: False, until_us=60_000_000)
    assert [violation.rule for violation in world.violations] == [Rule.NO_LIVELOCK]


def test_asking_for_turns_while_using_ports_is_no_livelock():
    world = World(3)

    def turn(now: Instant) -> Instant | None:
        actor.used("send")
        return now

    actor, driver = actor_with(world, turn)
    actor.wake()
    world.run(lambda: len(driver.turns) > 3_000, until_us=60_000_000)
    assert world.violations == []


def test_what_happens_changes_the_digest_and_the_log_does_not():
    def run(seed: int, *, keep_log: bool) -> str:
        world = World(seed, keep_log=keep_log)
        actor, _ = actor_with(world, lambda now: Instant(now + 10))
        actor.wake()
        world.run(lambda: False, until_us=1_000_000)
        world.note("a", "done")
        world.say("a", "nobody needs this")
        return world.digest

    assert run(1, keep_log=False) == run(1, keep_log=True)
    assert run(1, keep_log=False) != run(2, keep_log=False)


def test_an_actor_that_works_for_long_takes_its_next_turn_later_and_sees_its_clock_move():
    world = World(1)
    seen: list[float] = []

    def turn(now: Instant) -> Instant | None:
        clock = SimClock(actor)
        begun = clock.precise_ms()
        for _ in range(2):
            actor.spend(15_000)
            seen.append(clock.precise_ms() - begun)
        return now if len(seen) < 4 else None

    actor, driver = actor_with(world, turn)
    actor.wake()
    world.at(10_000, lambda: actor.when_awake(lambda: seen.append(-1.0)))
    world.run(lambda: False, until_us=1_000_000)
    # What is not a turn goes on beside it.
    assert seen == [15.0, 30.0, -1.0, 15.0, 30.0]
    assert driver.turns[1] - driver.turns[0] == 30
