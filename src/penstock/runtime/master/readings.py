"""Checkpoints that somebody reads while the job runs: until the reader has let go of a checkpoint, none of its files is
deleted.

    reading ── hold ──► held ── let go, too old, job ends ──► free: deletions that waited are done

Rules of this file:

* Only deletions of files that a held checkpoint has wait; all other deletions go on. So few deletions wait, however
  long a reader takes: those of the held checkpoint, and of files that it shares with others.
* A reader that does not let go is forgotten after `LONGEST_MS`. When the job ends, all readers are forgotten: a
  reader must be prepared to find no files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.coordinator.effects import DeleteFiles
from penstock.core.ids import Instant
from penstock.core.recovery.metadata import CompletedCheckpoint

LONGEST_MS = 10 * 60_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A checkpoint that is being read."""

    number: int
    completed: CompletedCheckpoint
    until: Instant

    def needs(self, deletion: DeleteFiles) -> bool:
        """Whether the deletion would take a file of the checkpoint away."""
        if deletion.folder == self.completed.location:
            return True
        completed = self.completed
        files = {*completed.private_files, *(shared.file.path for shared in completed.shared_files)}
        return deletion.root is None and not files.isdisjoint(deletion.paths)


class Readings:
    """The checkpoints of a job that are being read. Belongs to the thread of the master's loop."""

    def __init__(self) -> None:
        self._held: dict[int, Reading] = {}
        self._waiting: list[tuple[DeleteFiles, Callable[[], None]]] = []
        self._count = 0
        self._is_over = False

    def hold(self, completed: CompletedCheckpoint, now: Instant) -> Reading | None:
        """Keep the files of a checkpoint until `let_go`. None if the job ends: nothing is kept then."""
        if self._is_over:
            return None
        self._count += 1
        reading = Reading(number=self._count, completed=completed, until=Instant(now + LONGEST_MS))
        self._held[reading.number] = reading
        return reading

    def let_go(self, number: int) -> None:
        """A reader has read what it wanted."""
        if self._held.pop(number, None) is not None:
            self._go_on()

    def postponed(self, deletion: DeleteFiles, delete: Callable[[], None]) -> bool:
        """Whether a deletion has to wait. If so, `delete` is called when no reader needs the files any more."""
        if not any(reading.needs(deletion) for reading in self._held.values()):
            return False
        self._waiting.append((deletion, delete))
        return True

    def turn(self, now: Instant) -> None:
        """Forget readers that have not let go for too long."""
        for reading in [each for each in self._held.values() if each.until <= now]:
            log.warning("%s has been read for too long, and its files are not kept any more", reading.completed.title)
            self.let_go(reading.number)

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        return min((reading.until for reading in self._held.values()), default=None)

    def end(self) -> None:
        """The job ends: forget all readers, and take no more."""
        self._is_over = True
        self._held.clear()
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for deletion, delete in waiting:
            if not self.postponed(deletion, delete):
                delete()
