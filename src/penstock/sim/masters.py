"""The driver processes of a world. When one dies, or sleeps too long, another takes the job over, if it is lasting; the
one that slept wakes up beside it.

boot ──► takes the job over ──► master takes turns ──► the job has ended
 ▲            └─ the storage says no: again, soon       └──► crashes
 └───────────────────────── after a while ◄───────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.core.errors import JobTakenOver, StorageError
from penstock.core.ids import JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import EPOCHS_PER_TERM, Tenure
from penstock.runtime.master.driver import MasterDriver
from penstock.sim.disk import Disk
from penstock.sim.world import Actor, Crash, World
from penstock.storage.tenure import take_over

MASTER = "master"

AWAY_US = (1_000, 3_000_000)
"""How long it takes until another driver takes a job over."""
BOOT_AGAIN_US = 300_000
CALL_AGAIN_US = 100_000
TOLD_US = (1_000, 2_000_000)
"""How long it takes until a driver that wakes up is told that another has the job, if it does not find out itself."""


class Terms(Protocol):
    """How a driver comes to have the job of a world."""

    def begin(self, actor: Actor) -> Tenure:
        """A driver takes the job, in a process that comes up. Raises `StorageError` or `JobTakenOver`."""
        ...

    def end(self, actor: Actor) -> JobState | None:
        """How the job has ended, if the next driver has nothing to do with that."""
        ...


class TakenOver:
    """A job that another driver takes over when one dies."""

    def __init__(self, disk: Disk, job: JobId) -> None:
        self._disk = disk
        self._folder = layout.job_folder(job)

    def begin(self, actor: Actor) -> Tenure:
        """Take it over."""
        return take_over(self._disk.store(actor), self._folder)

    def end(self, actor: Actor) -> None:
        """Whoever takes over a job that has ended cleans up after it."""


class MasterHost:
    """Holds the driver process that a world has at the moment."""

    def __init__(
        self,
        world: World,
        *,
        build: Callable[[Actor, Tenure | None], MasterDriver],
        died: Callable[[str], None],
        set_aside: Callable[[int], None],
        terms: Terms | None,
    ) -> None:
        """`set_aside` is told below which number slots belong to drivers that were taken over from. `terms` says how a
        driver comes to have the job; None: there is one driver, and it never dies."""
        self._world = world
        self._build = build
        self._died = died
        self._set_aside = set_aside
        self._terms = terms
        self.actor: Actor | None = None
        """None while no driver is there."""
        self.driver: MasterDriver | None = None
        """The newest one, dead or alive."""
        self.first_incarnation = 1
        """Slots of the newest driver are numbered from here on."""
        self.crashes = 0
        self.ended_as: JobState | None = None
        """How the job has ended, if its driver died over that."""
        self.aside: list[Actor] = []
        """Drivers that were taken over from while they lived."""

    def start(self) -> None:
        """The user starts the job; or another driver finds it without one."""
        actor = Actor(self._world, MASTER)
        try:
            with self._world.as_actor(actor):
                if self._has_ended_meanwhile(actor):
                    return
                tenure = self._take_over(actor, self._terms) if self._terms is not None else None
        except (StorageError, JobTakenOver):
            self._world.after(BOOT_AGAIN_US, self.start)
            return
        actor.on_crash = self.crash
        driver = self._build(actor, tenure)
        actor.driver = driver
        self.actor, self.driver = actor, driver
        if tenure is not None and tenure.term > 0:
            self.first_incarnation = tenure.first_epoch
            self._world.note(MASTER, f"takes the job over, term {tenure.term}")
        with self._world.as_actor(actor):
            driver.start(actor.now())
        actor.wake()

    @staticmethod
    def _take_over(actor: Actor, terms: Terms) -> Tenure:
        tenure = terms.begin(actor)
        actor.unsynced.clear()
        return tenure

    def _has_ended_meanwhile(self, actor: Actor) -> bool:
        if self._terms is not None and self.driver is not None:
            self.ended_as = self._terms.end(actor)
        return self.ended_as is not None

    def crash(self) -> None:
        """The driver's process dies at once. Its slots live on until they notice."""
        actor = self.actor
        if actor is None:
            return
        self.actor = None
        actor.crash()
        self._died(MASTER)
        self.crashes += 1
        self._world.note(MASTER, "crashed")
        self._world.after(self._world.between(*AWAY_US), self.start)

    def oversleep(self, for_us: int, taken_over_us: int) -> None:
        """The driver gets no processor for a while, and another takes the job over meanwhile. It then goes on as if
        nothing had been."""
        actor, driver = self.actor, self.driver
        if actor is None or driver is None or self._terms is None:
            return
        actor.pause(for_us)

        def take_over() -> None:
            if self.actor is not actor or driver.outcome is not None:
                return
            self.aside.append(actor)
            self.actor = None
            actor.name = f"{MASTER}-{len(self.aside)}"
            actor.on_crash = actor.crash
            actor.fuse = None
            # It has the job until the other one has claimed it, which may take as long as the storage says no.
            self._world.note(actor.name, "is to be taken over from")
            self._set_aside(self.first_incarnation + EPOCHS_PER_TERM // 2)
            self.start()
            wakes_us = max(0, for_us - taken_over_us)
            self._world.after(wakes_us + self._world.between(*TOLD_US), lambda: actor.when_awake(tell))

        def tell() -> None:
            with self._world.as_actor(actor):
                driver.lose()
            actor.wake()

        self._world.after(taken_over_us, take_over)

    def call(self, what: Callable[[MasterDriver], None]) -> None:
        """The user asks something of the job; when no driver is there, the next one."""
        actor, driver = self.actor, self.driver
        if self.ended_as is not None:
            return
        if actor is None or driver is None:
            self._world.after(CALL_AGAIN_US, lambda: self.call(what))
            return
        try:
            with self._world.as_actor(actor):
                what(driver)
                actor.check_crash()
        except Crash:
            actor.on_crash()
            return
        actor.wake()

    def leave(self) -> None:
        """The driver's process goes away with the job."""
        if self.actor is not None:
            self.actor.die()
            self.actor = None

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, and somebody knows it."""
        if self.ended_as is not None:
            return True
        return self.actor is not None and self.driver is not None and self.driver.outcome is not None
