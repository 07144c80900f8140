"""The simulated world: virtual time, one source of chance, one heap of timed events, and actors that take turns.

    heap ──► event ──► message delivered / work done / fault strikes ──► actor woken ──► its driver takes a turn
      ▲                                                                                      │
      └───────────────────────── what the ports were asked to do, at random delays ◄─────────┘

Rules of this file:
* Nothing here reads a clock or draws a number that the seed does not decide. Virtual time is kept in microseconds, so
  that the events of one millisecond still have an order; drivers see milliseconds.
* An actor is one process: that of the job master, or one process of a slot. An actor takes a turn when something has
  arrived for the actor, and when the time has come that its last turn asked for. A paused or dead actor takes no turn.
* Every event goes into a running digest. Two runs of one seed must end with the same digest.

Not handled here: what a message, a file or a fault is. The ports and `faults` put their events on the heap.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import NoReturn, Protocol

import xxhash

from penstock.core.ids import Instant
from penstock.sim.rules import Rule, Violation

BEGINNING_MS = 1_700_000_000_000
"""The time on all clocks when a world begins."""

IDLE_TURNS_ALLOWED = 1_000
"""A driver that asks so many times in a row for another turn at once, and uses no port, is caught in a loop."""

WAKES_WITHIN_US = 1_000
"""A process gets the processor within this time after something has arrived for the process."""


def seeded(seed: int) -> Random:
    """The source of chance for a seed."""
    return Random(seed)


class Crash(BaseException):
    """The process dies here. Code that catches the crash gets no further than the next call of a port, and the process
    is dead when its turn or work is over."""


BEATS_EVERY_US = 500_000
"""How often a process looks, beside its loop, whether the loop turns."""


class Driver(Protocol):
    """What an actor runs."""

    def turn(self, now: Instant) -> Instant | None:
        """Do a bounded amount of work; say when to be called again at the latest."""
        ...

    def beat(self, now: Instant) -> None:
        """Say that the process lives, if its loop has not turned for a while."""
        ...


class World:
    """Time, chance and the heap of the events to come."""

    def __init__(self, seed: int, *, keep_log: bool = False) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.violations: list[Violation] = []
        self.log: list[str] = []
        self.stopped = False
        """Set by a violation after which going on makes no sense."""
        self.acting: Actor | None = None
        """The actor whose turn or background work runs at this moment."""
        self.loses_unsynced = False
        """Whether a crash may undo the changes that a piece of work, which has not ended, has made to the storage."""
        self._keep_log = keep_log
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        self._digest = xxhash.xxh3_64()

    # --- time -----------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Virtual milliseconds since the world began."""
        return self.now_us // 1_000

    def now(self) -> Instant:
        """The time on a clock that is right."""
        return Instant(BEGINNING_MS + self.now_us // 1_000)

    def at(self, time_us: int, action: Callable[[], None]) -> None:
        """Have `action` happen at a point in time. Actions of the same time happen in the order of the calls."""
        self._pushed += 1
        heapq.heappush(self._heap, (max(time_us, self.now_us), self._pushed, action))

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Have `action` happen `delay_us` from now."""
        self.at(self.now_us + delay_us, action)

    def between(self, least_us: int, most_us: int) -> int:
        """A delay, drawn evenly between both limits."""
        # As `randint` does, at a fifth of its cost.
        return least_us + int(self.random.random() * (most_us - least_us + 1))

    def run(self, done: Callable[[], bool], *, until_us: int) -> bool:
        """Let events happen until `done` is true, the time is up, no event is left, or the world has stopped. Returns
        whether `done` is true."""
        heap = self._heap
        while heap and not self.stopped:
            if done():
                return True
            time_us, _, action = heapq.heappop(heap)
            if time_us > until_us:
                self.at(time_us, action)
                self.now_us = until_us
                return False
            self.now_us = time_us
            action()
        return not self.stopped and done()

    # --- what people and checkers see -----------------------------------------------------------------------

    def trace(self, kind: str, who: str, detail: bytes = b"") -> None:
        """Put an event into the digest."""
        self._digest.update(f"{self.now_us} {kind} {who} ".encode())
        self._digest.update(detail)

    def note(self, who: str, text: str) -> None:
        """Put an event into the digest, and into the log."""
        self.trace("note", who, text.encode())
        self.say(who, text)

    def say(self, who: str, text: str) -> None:
        """Put an event into the log only."""
        if self._keep_log:
            self.log.append(f"{self.now_us / 1_000:12.3f}  {who:<12}  {text}")

    @property
    def digest(self) -> str:
        """The digest of all events so far."""
        return self._digest.hexdigest()

    def violate(self, rule: Rule, text: str) -> None:
        """A rule did not hold."""
        self.violations.append(Violation(rule=rule, at_ms=self.now_ms, text=text))
        self.note("world", f"VIOLATION {rule.name}: {text}")

    def stop(self, rule: Rule, text: str) -> None:
        """A rule did not hold, and the world stops: the events that would follow mean nothing."""
        self.violate(rule, text)
        self.stopped = True

    def crash_acting(self) -> NoReturn:
        """The acting process dies in the middle of its turn or work. Raises `Crash`."""
        assert self.acting is not None, "no process acts at this moment"
        self.acting.crash_here()

    @contextmanager
    def as_actor(self, actor: Actor) -> Iterator[None]:
        """While this context is open, `actor` is the acting process."""
        before, self.acting = self.acting, actor
        try:
            yield
        finally:
            self.acting = before


class Fuse:
    """Kills an actor in the middle of its turn or work: at the n-th call of one kind, or (None) of any kind."""

    def __init__(self, call: str | None, calls_left: int) -> None:
        self._call = call
        self._calls_left = calls_left

    def burn(self, call: str) -> bool:
        """The actor has called a port: count the call, if the fuse is for calls of this kind. Returns whether the actor
        dies at this call."""
        if self._call is not None and call != self._call:
            return False
        self._calls_left -= 1
        return self._calls_left <= 0


class Actor:
    """One simulated process. The ports of a process die and pause with their actor, and tell the actor of each call."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.driver: Driver | None = None
        self.fuse: Fuse | None = None
        self.on_crash: Callable[[], None] = self.die
        """What the host does about a `Crash`."""
        self.after_turn: Callable[[], None] = lambda: None
        self.turns = 0
        self.unsynced: list[Callable[[], None]] = []
        """The functions that undo the changes of the piece of work under way to the storage, one for each step."""
        self.spent_us = 0
        """How much processor time the turn under way has taken so far."""
        self.is_crashing = False
        """Whether the actor dies when its turn or work under way is over, even if some code has caught the `Crash`."""
        self._port_calls = 0
        self._idle_turns = 0
        self._paused_until_us = 0
        self._busy_until_us = 0
        self._next_turn_us: int | None = None
        self._clock_ahead_us = 0
        self._clock_shown = Instant(0)

    def now(self) -> Instant:
        """The time on the clock of this process: the clock may be wrong, and never goes back."""
        shown = Instant(BEGINNING_MS + (self.world.now_us + self._clock_ahead_us) // 1_000)
        self._clock_shown = max(self._clock_shown, shown)
        return self._clock_shown

    def jump(self, by_us: int) -> None:
        """The clock is set. A clock that is set back stands still until the time that it showed last has come."""
        self._clock_ahead_us += by_us
        self.wake()

    def die(self) -> None:
        """Die. Events that were scheduled for this actor do nothing."""
        self.alive = False
        self.driver = None

    def crash(self) -> None:
        """Die without a warning. Changes to the storage that are not synced may be undone, the last steps first: a step
        begins only when the steps before it are durable."""
        if self.world.loses_unsynced and self.unsynced:
            for undo in reversed(self.unsynced[self.world.random.randint(0, len(self.unsynced)) :]):
                undo()
        self.die()

    def pause(self, for_us: int) -> None:
        """Get no processor for a while, like a process that was sent SIGSTOP."""
        self._paused_until_us = max(self._paused_until_us, self.world.now_us + for_us)

    def spend(self, time_us: int) -> None:
        """Spend processor time: the turn under way lasts longer, and the next turn comes later. Background work goes
        on."""
        self.spent_us += time_us
        self._busy_until_us = self.world.now_us + self.spent_us

    def keep_busy(self, for_us: int) -> None:
        """The loop takes no turn for `for_us`, as with a step that does not return. Background work and beats go on."""
        self._busy_until_us = max(self._busy_until_us, self.world.now_us + for_us)
        self.world.after(BEATS_EVERY_US, lambda: self.when_awake(self._beat))

    def _beat(self) -> None:
        if self.driver is None or self.world.now_us >= self._busy_until_us:
            return
        self.world.trace("beat", self.name)
        try:
            with self.world.as_actor(self):
                self.driver.beat(self.now())
                self.check_crash()
        except Crash:
            self.on_crash()
            return
        self.world.after(BEATS_EVERY_US, lambda: self.when_awake(self._beat))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Do `action` at once, or when the pause of the actor is over; never if the actor is dead by then."""
        if not self.alive:
            return
        if self.world.now_us < self._paused_until_us:
            self.world.at(self._paused_until_us, lambda: self.when_awake(action))
            return
        action()

    def used(self, call: str) -> None:
        """A port was called. Raises `Crash` if this is where the actor dies."""
        self._port_calls += 1
        if self.fuse is not None and self.fuse.burn(call):
            self.crash_here()
        self.check_crash()

    def crash_here(self) -> NoReturn:
        """Die in the middle of the turn or work under way. Raises `Crash`."""
        self.fuse = None
        self.is_crashing = True
        raise Crash(self.name)

    def check_crash(self) -> None:
        """Raise `Crash` if the actor is to die."""
        if self.is_crashing:
            raise Crash(self.name)

    def wake(self) -> None:
        """Something arrived: a turn is due very soon."""
        if self._next_turn_us is None or self._next_turn_us > self.world.now_us + WAKES_WITHIN_US:
            self.turn_at(self.world.now_us + self.world.between(0, WAKES_WITHIN_US))

    def turn_at(self, time_us: int) -> None:
        """Take a turn at that time, unless a turn comes sooner."""
        if self._next_turn_us is None or time_us < self._next_turn_us:
            self._next_turn_us = time_us
            self.world.at(time_us, lambda: self._turn_if_due(time_us))

    def _turn_if_due(self, time_us: int) -> None:
        if self._next_turn_us != time_us:
            return
        if self.world.now_us < self._busy_until_us:
            self.world.at(self._busy_until_us, lambda: self._turn_if_due(time_us))
        else:
            self.when_awake(self._take_turn)

    def _take_turn(self) -> None:
        driver, world = self.driver, self.world
        if driver is None:
            return
        self._next_turn_us = None
        self.turns += 1
        self.spent_us = 0
        now, calls_before = self.now(), self._port_calls
        world.trace("turn", self.name)
        try:
            with world.as_actor(self):
                deadline = driver.turn(now)
                self.check_crash()
                validate = getattr(driver, "validate", None)
                if validate is not None:
                    validate()
        except Crash:
            self.on_crash()
            return
        except Exception:  # noqa: BLE001  # any way out of a turn but a return is a bug of the driver
            if self.is_crashing:
                self.on_crash()
                return
            world.stop(Rule.NO_BUG, f"the driver of {self.name} raised\n{traceback.format_exc().rstrip()}")
            return
        self._count_idle(deadline, now, calls_before)
        if deadline is not None:
            self._plan_next(deadline, now)
        self.after_turn()

    def _count_idle(self, deadline: Instant | None, now: Instant, calls_before: int) -> None:
        if deadline is None or deadline > now or self._port_calls > calls_before:
            self._idle_turns = 0
            return
        self._idle_turns += 1
        if self._idle_turns >= IDLE_TURNS_ALLOWED:
            self.world.stop(
                Rule.NO_LIVELOCK,
                f"{self.name} asked {self._idle_turns} times in a row for a turn at once and used no port, the last "
                f"time with deadline {deadline} at {now}",
            )

    def _plan_next(self, deadline: Instant, now: Instant) -> None:
        world = self.world
        if deadline <= now:
            self.turn_at(world.now_us + world.between(20, 300))
            return
        # A loop is never woken early, and often a little late.
        late_us = world.between(0, 1_000) if world.random.random() < 0.9 else world.between(0, 20_000)
        self.turn_at((deadline - BEGINNING_MS) * 1_000 - self._clock_ahead_us + late_us)
