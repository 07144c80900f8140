"""The coordinator of a sink that commits on the driver, and holds on jobs, without a job around them."""

from __future__ import annotations

import msgspec

from penstock.api.connector import Committer
from penstock.api.hold import Hold
from penstock.core.errors import JobTakenOver
from penstock.core.ids import CheckpointId
from penstock.ports import WorkResult
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.operator_coordinators.commits import DriverCommits
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost


class Later:
    """A background whose work a test performs when it likes."""

    def __init__(self) -> None:
        self.work: list = []

    def submit(self, work, done) -> None:
        self.work.append((work, done))

    def collect(self) -> None:
        """Nothing ends by itself."""

    def perform(self, *, count=1_000) -> None:
        """Do what waits, and what follows from it."""
        while self.work and count:
            work, done = self.work.pop(0)
            count -= 1
            try:
                done(WorkResult(value=work()))
            except Exception as error:  # noqa: BLE001  # as a background does
                done(WorkResult(error=error))


class Told(Committer):
    def __init__(self) -> None:
        self.story: list = []
        self.refuses: set[int] = set()
        self.looks_again = False

    def commit(self, checkpoint, committables):
        if self.looks_again:
            self.hold.check()
        self.story.append(("commit", checkpoint, *sorted(committables)))
        if checkpoint in self.refuses:
            raise ValueError("locked")

    def clean_up(self, job, epoch, keep):
        self.story.append(("clean up", job, epoch, *sorted(keep)))

    def abandon(self, checkpoint, promised):
        self.story.append(("abandon", checkpoint, *sorted(promised)))

    def close(self, *, owes):
        self.story.append(("close", owes))


class Rig:
    """One whose hold on the job a test takes away when it likes."""

    def __init__(self, *, runs: bool = True, **options) -> None:
        self.background, self.told, self.failed = Later(), Told(), []
        self.looks: list[Exception | None] = []
        """What the next looks at the hold raise."""
        self.lost = 0
        """How often the master was told that the job is lost."""
        self.hold = Hold(self._look)
        host = CoordinatorHost(
            name="sink",
            job="job",
            background=self.background,
            say=lambda *_: None,
            fail=lambda cause: self.failed.append(cause.text),
            guard=Guard(self.hold, self._taken_over),
        )
        self.commits = DriverCommits(host, self.told, **options)
        if runs:
            self.commits.start(None, (), parallelism=2)
            self.commits.run()

    @property
    def story(self):
        told, self.told.story = self.told.story, []
        return told

    def take_away(self) -> None:
        """Another driver takes the job over, and this one does not know it yet."""
        self.looks = [JobTakenOver("another driver has it")]

    def complete(self, checkpoint: int, *parts: bytes) -> None:
        self.commits.snapshot(CheckpointId(checkpoint))
        self.commits.completed(CheckpointId(checkpoint), parts)

    def _look(self) -> None:
        error = self.looks.pop(0) if self.looks else None
        if error is not None:
            raise error

    def _taken_over(self) -> None:
        self.lost += 1


def part(checkpoint: int, committable: bytes) -> bytes:
    return msgspec.msgpack.encode((checkpoint, committable))


def hold_that(*says: Exception | None) -> Hold:
    """One of which the looks say this, one after another, and then that it is held."""
    left = list(says)

    def look() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return Hold(look)
