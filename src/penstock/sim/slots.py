"""The cluster of a world: starts slots, loses slots, and tells the master of lost slots, or does not.

start ──► (boots) ──► actor takes turns ──► leaves as told ──────────► SlotEnded, error None
            │                    └────────► crashes, is stopped ─────► SlotEnded later | silence | started again
            └─► does not come up ────────────────────────────────────► SlotEnded with an error
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from penstock.core.ids import Instant, SlotId
from penstock.ports import SlotEnded
from penstock.sim.world import Actor, World


class Notice(Enum):
    """How the master learns of a crash of a slot."""

    TOLD = "told"
    """The cluster tells the master, after a while."""
    SILENT = "silent"
    """The cluster says nothing, and the master misses the heartbeats of the slot. If the master has not heard from the
    slot yet, the cluster tells the master."""
    AGAIN = "again"
    """The cluster says nothing, and starts the slot again by itself, with the same incarnation."""


class SlotLike(Protocol):
    """The object that runs a slot, as far as `SlotHost` and the slot's actor use the object."""

    left: bool
    error: str | None

    def turn(self, now: Instant) -> Instant | None:
        """Do a bounded amount of work; say when to be called again at the latest."""
        ...

    def beat(self, now: Instant) -> None:
        """Say that the process lives, if its loop has not turned for a while."""
        ...

    def close(self) -> None:
        """Let go of all that the slot holds."""
        ...


class SlotsOfDriver:
    """`Slots` of one driver: the driver hears only of the slots that it started."""

    def __init__(self, host: SlotHost, first_incarnation: int, wake: Callable[[], None]) -> None:
        self.first_incarnation = first_incarnation
        self.news: list[SlotEnded] = []
        self.wake = wake
        self._host = host

    def start(self, slot: SlotId) -> None:
        """Ask for a slot."""
        self._host.start(slot)

    def stop(self, slot: SlotId) -> None:
        """Kill a slot, however often the cluster has started this incarnation of the slot again."""
        self._host.stop(slot)

    def ended(self) -> list[SlotEnded]:
        """Slots that have ended since the last call."""
        news, self.news = self.news, []
        return news


class SlotHost:
    """`Slots` of the master. Holds every living slot of the world."""

    def __init__(
        self,
        world: World,
        *,
        build: Callable[[SlotId, Actor], SlotLike],
        died: Callable[[str], None],
        start_us: tuple[int, int],
        failing_starts: int,
    ) -> None:
        self._world = world
        self._build = build
        self._died = died
        self._start_us = start_us
        self._failing_starts = failing_starts
        self._stopped: dict[tuple[int, int], None] = {}
        self._news: list[SlotEnded] = []
        self._drivers: list[SlotsOfDriver] = []
        self._starting = 0
        self.living: dict[SlotId, Actor] = {}
        self.started: dict[SlotId, None] = {}
        """Every slot that ever came up."""
        self.crashes = 0
        self.losses = 0
        """How many slots died, did not come up, were stopped or gave up."""
        self.notice = Notice.TOLD
        """How the next crash is made known."""
        self.wake_master: Callable[[], None] = lambda: None
        self.has_called: Callable[[str], bool] = lambda _name: True
        """Whether the master has heard from a slot's process."""

    # --- the port -----------------------------------------------------------------------

    def start(self, slot: SlotId) -> None:
        """Ask for a slot."""
        self._starting += 1
        self._world.after(self._world.between(*self._start_us), lambda: self._boot(slot))

    def stop(self, slot: SlotId) -> None:
        """Kill a slot, however often the cluster has started this incarnation of the slot again."""
        self._world.after(self._world.between(1_000, 2_000_000), lambda: self._kill(slot))

    def ended(self) -> list[SlotEnded]:
        """Slots that have ended since the last call."""
        news, self._news = self._news, []
        return news

    def of_driver(self, first_incarnation: int, wake: Callable[[], None]) -> SlotsOfDriver:
        """`Slots` of a driver; the incarnations of the driver's slots begin with `first_incarnation`."""
        made = SlotsOfDriver(self, first_incarnation, wake)
        self._drivers.append(made)
        return made

    # --- what happens to slots -----------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no slot lives, and no slot is being started."""
        return not self.living and not self._starting

    def current(self, number: int) -> SlotId | None:
        """The living slot of that number with the highest incarnation; None if no slot of that number lives."""
        alive = [slot for slot in self.living if slot.number == number]
        return max(alive, default=None)

    def crash(self, slot: SlotId, notice: Notice) -> None:
        """A slot's process dies at once."""
        actor = self.living.pop(slot)
        actor.crash()
        self._died(actor.name)
        self.crashes += 1
        self.losses += 1
        self._world.note(actor.name, f"crashed ({notice.value})")
        if notice is Notice.TOLD or (notice is Notice.SILENT and not self.has_called(actor.name)):
            self._tell_later(slot, "its process was killed")
        elif notice is Notice.AGAIN:
            again = slot._replace(attempt=slot.attempt + 1)
            self._starting += 1
            self._world.after(self._world.between(*self._start_us), lambda: self._boot(again))

    def _boot(self, slot: SlotId) -> None:
        self._starting -= 1
        if slot[:2] in self._stopped:
            self._tell_later(slot, "it was stopped before it came up")
            return
        if self._failing_starts > 0 and slot.incarnation > 1:
            self._failing_starts -= 1
            self.losses += 1
            self._world.note(str(slot), "did not come up")
            self._tell_later(slot, "its process could not be started")
            return
        actor = Actor(self._world, str(slot))
        self.living[slot] = actor
        self.started[slot] = None
        driver = self._build(slot, actor)
        actor.driver = driver
        actor.on_crash = lambda: self.crash(slot, self.notice)
        actor.after_turn = lambda: self._see_off(slot, driver)
        self._world.note(actor.name, "started")
        actor.wake()

    def _see_off(self, slot: SlotId, driver: SlotLike) -> None:
        if not driver.left:
            return
        actor = self.living.pop(slot)
        driver.close()
        actor.die()
        self.losses += driver.error is not None
        self._died(actor.name)
        self._world.note(actor.name, "left" if driver.error is None else f"left: {driver.error.splitlines()[0]}")
        self._tell_later(slot, driver.error)

    def _kill(self, slot: SlotId) -> None:
        self._stopped[slot[:2]] = None
        for living in [s for s in self.living if s[:2] == slot[:2]]:
            actor = self.living.pop(living)
            actor.die()
            self._died(actor.name)
            self.losses += 1
            self._world.note(actor.name, "was stopped")
            self._tell_later(living, "it was stopped")

    def _tell_later(self, slot: SlotId, error: str | None) -> None:
        def tell() -> None:
            # As Spark does: Spark knows a slot by the Spark job that was submitted, however often Spark has run its
            # task.
            ended = SlotEnded(slot._replace(attempt=0), error)
            owners = [driver for driver in self._drivers if driver.first_incarnation <= slot.incarnation]
            if owners:
                owners[-1].news.append(ended)
                owners[-1].wake()
            else:
                self._news.append(ended)
                self.wake_master()

        self._world.after(self._world.between(1_000, 800_000), tell)
