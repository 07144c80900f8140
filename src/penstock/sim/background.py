"""Background work of a simulated process: runs later in virtual time, one piece after another.

A piece of work touches the world at one moment and ends at a later moment. A process that dies between the two moments
has done the work and never learns of its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.ports import WorkResult
from penstock.sim.world import Actor, Crash, World

Done = Callable[[WorkResult], None]


class Pace:
    """How long background work takes. Slow storage makes the work of all processes longer."""

    def __init__(self, world: World, *, work_us: tuple[int, int]) -> None:
        self._world = world
        self._work_us = work_us
        self._slow_until_us = 0
        self._slow_us = 0

    def slow_down(self, *, for_us: int, by_us: int) -> None:
        """For `for_us`, each half of a piece of work takes up to `by_us` longer."""
        self._slow_until_us = self._world.now_us + for_us
        self._slow_us = by_us

    def draw_us(self) -> int:
        """The time of half a piece of work."""
        slow_us = self._slow_us if self._world.now_us < self._slow_until_us else 0
        return self._world.between(*self._work_us) + (self._world.between(0, slow_us) if slow_us else 0)


class SimBackground:
    """`Background` of one actor."""

    def __init__(self, actor: Actor, pace: Pace) -> None:
        self._actor = actor
        self._pace = pace
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()
        self._ended: deque[tuple[Done, WorkResult]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` later; a later `collect` calls `done` with the result."""
        self._actor.used("submit")
        self._waiting.append((work, done))
        if not self._busy:
            self._begin()

    def collect(self) -> None:
        """Call `done` for every piece of work that has ended since the last call."""
        while self._ended:
            done, result = self._ended.popleft()
            self._actor.used("collect")
            done(result)

    def _begin(self) -> None:
        self._busy = True
        self._actor.world.after(self._pace.draw_us(), lambda: self._actor.when_awake(self._work))

    def _work(self) -> None:
        work, done = self._waiting.popleft()
        world = self._actor.world
        world.trace("work", self._actor.name)
        self._actor.unsynced.clear()
        try:
            with world.as_actor(self._actor):
                result = WorkResult(value=work())
        except Crash:
            self._actor.on_crash()
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # also `sys.exit()` of user code: the driver decides what an error means
            result = WorkResult(error=error)
        if self._actor.is_crashing:
            self._actor.on_crash()
            return
        world.after(self._pace.draw_us(), lambda: self._actor.when_awake(lambda: self._end(done, result)))

    def _end(self, done: Done, result: WorkResult) -> None:
        self._actor.unsynced.clear()
        self._ended.append((done, result))
        self._busy = False
        if self._waiting:
            self._begin()
        self._actor.wake()
