"""The driver processes of a world. If the job is lasting, another driver takes the job over when a driver dies or
sleeps too long. A driver that slept wakes up beside the other driver.

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
"""How long after a crash of the driver another driver takes the job over."""
BOOT_AGAIN_US = 300_000
CALL_AGAIN_US = 100_000
TOLD_US = (1_000, 2_000_000)
"""How long after its waking up a driver is told that another driver has the job, if the driver has not found out."""


class Terms(Protocol):
    """How a driver gets the job of a world."""

    def begin(self, actor: Actor) -> Tenure:
        """A driver takes the job, in a process that comes up. Raises `StorageError` or `JobTakenOver`."""
        ...

    def end(self, actor: Actor) -> JobState | None:
        """How the job has ended; None if the job has not ended, or if the next driver must clean up after the job."""
        ...


class TakenOver:
    """A job that another driver takes over when its driver dies."""

    def __init__(self, disk: Disk, job: JobId) -> None:
        self._disk = disk
        self._folder = layout.job_folder(job)

    def begin(self, actor: Actor) -> Tenure:
        """Take the job over."""
        return take_over(self._disk.store(actor), self._folder)

    def end(self, actor: Actor) -> None:
        """None: a driver that takes over a job that has ended cleans up after the job."""


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
        """`set_aside` is called when a living driver's job is taken over, with a number: slots whose incarnation is
        below the number belong to earlier drivers. `terms` says how a driver gets the job; None: there is one driver,
        which never dies."""
        self._world = world
        self._build = build
        self._died = died
        self._set_aside = set_aside
        self._terms = terms
        self.actor: Actor | None = None
        """The process of the newest driver; None while there is no driver."""
        self.driver: MasterDriver | None = None
        """The newest driver, dead or alive."""
        self.first_incarnation = 1
        """The incarnations of the newest driver's slots begin with this number."""
        self.crashes = 0
        self.ended_as: JobState | None = None
        """How the job has ended, if the driver died after the end and no other driver has to follow."""
        self.aside: list[Actor] = []
        """The drivers whose job was taken over while they lived."""

    def start(self) -> None:
        """The user starts the job, or another driver takes the job over."""
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
        """The driver gets no processor for `for_us`. After `taken_over_us` another driver takes the job over. When the
        first driver gets its processor back, it goes on, and does not know of the other driver."""
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
            # This driver has the job until the other driver has claimed it. While the storage fails, the other driver
            # cannot claim the job.
            self._world.note(actor.name, "sleeps, and another driver takes the job over")
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
        """The user asks the driver for something. While there is no driver, the request waits for the next driver."""
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
        """The job has ended: the driver's process ends, too."""
        if self.actor is not None:
            self.actor.die()
            self.actor = None

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, and a living driver or the records of the job say so."""
        if self.ended_as is not None:
            return True
        return self.actor is not None and self.driver is not None and self.driver.outcome is not None
