"""The deletions of files: numbered, counted, and tried again when they fail.

    clean_… ──► under way ──FilesDeleted──► gone
                   ▲  │
              due  │  └─ with an error ──► waiting ── too often ──► given up, and told
                   └───────────────────────┘

Rules of this file:

* Checkpoints whose deletion is under way are counted: too many such deletions at once hold back new checkpoints. A
  deletion that waits for its next try is not counted, so that a storage that cannot delete does not stop the job.
* Only one failed deletion is tried again at a time. The pause of a deletion doubles with each of its failures. When a
  deletion has failed again, all waiting deletions pause: a storage that is out of order is asked equally seldom whether
  one deletion waits or a thousand.
* A path that is in use when its deletion would be tried again is left out: the path belongs to another file by now.
* When the job has ended, the waiting deletions are tried a few more times, from short pauses on, and then given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.core.coordinator.effects import CleaningGivenUp, DeleteFiles
from penstock.core.ids import Instant
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Foreign

MAX_PAUSE_MS = 5 * 60_000
"""The longest pause between two tries of a deletion."""
MOST_WAITING = 1_000
"""When more deletions than this wait for their next try, the oldest deletion is given up."""
TRIES_AT_THE_END = 5
"""After the job has ended: how often a deletion is tried, and how many tries in a row may fail."""


class _Place(NamedTuple):
    """The files, and perhaps the folder, of one deletion."""

    paths: tuple[str, ...]
    folder: str | None
    root: str | None
    """The folder that the paths are relative to; None: the checkpoint directory."""


class _Cleaning:
    """One deletion."""

    __slots__ = ("counts", "due", "error", "failures", "number", "place")

    def __init__(self, number: int, place: _Place, *, counts: bool) -> None:
        self.number = number
        self.place = place
        self.counts = counts
        self.failures = 0
        self.due = Instant(0)
        self.error = ""


class Cleaner:
    """Deletions that are under way, and failed deletions that wait for their next try."""

    def __init__(self, *, tries: int, retry_ms: int) -> None:
        self._tries = tries
        self._retry_ms = retry_ms
        self._next_number = 1
        self._under_way: dict[int, _Cleaning] = {}
        self._waiting: list[_Cleaning] = []
        self._retrying: int | None = None
        self._failures_in_a_row = 0
        self._paused_until = Instant(0)
        self._is_ending = False

    def clean_checkpoint(self, paths: Iterable[str], folder: str | None, root: str | None = None) -> list[DeleteFiles]:
        """Delete the files and the folder of one checkpoint; paths are relative to `root`. The deletion is counted
        until it has ended."""
        return self._begin(_Place(tuple(dict.fromkeys(paths)), folder, root), counts=True)

    def clean_leftovers(self, paths: Iterable[str], root: str | None = None) -> list[DeleteFiles]:
        """Delete single files; paths are relative to `root`. The deletion is not counted."""
        return self._begin(_Place(tuple(dict.fromkeys(paths)), None, root), counts=False)

    def _begin(self, place: _Place, *, counts: bool) -> list[DeleteFiles]:
        if not place.paths and place.folder is None:
            return []
        cleaning = _Cleaning(self._next_number, place, counts=counts)
        self._next_number += 1
        return [self._start(cleaning)]

    def _start(self, cleaning: _Cleaning) -> DeleteFiles:
        self._under_way[cleaning.number] = cleaning
        place = cleaning.place
        return DeleteFiles(cleaning=cleaning.number, paths=place.paths, folder=place.folder, root=place.root)

    def ended(self, number: int, error: str | None, now: Instant) -> list[CleaningGivenUp]:
        """A deletion has ended; it succeeded if `error` is None. A second call for the same deletion changes
        nothing."""
        cleaning = self._under_way.pop(number, None)
        if cleaning is None:
            return []
        was_retried = number == self._retrying
        if was_retried:
            self._retrying = None
        if error is None:
            if was_retried:
                self._failures_in_a_row = 0
                self._paused_until = now
            return []
        cleaning.failures += 1
        cleaning.error = error
        cleaning.due = self._after(cleaning.failures, now)
        if was_retried:
            self._failures_in_a_row += 1
            self._paused_until = self._after(self._failures_in_a_row, now)
        return self._keep_or_give_up(cleaning)

    def _keep_or_give_up(self, failed: _Cleaning) -> list[CleaningGivenUp]:
        if self._is_ending and self._failures_in_a_row >= TRIES_AT_THE_END:
            given_up, self._waiting = [*self._waiting, failed], []
        elif failed.failures >= (TRIES_AT_THE_END if self._is_ending else self._tries):
            given_up = [failed]
        else:
            self._waiting.append(failed)
            surplus = max(0, len(self._waiting) - MOST_WAITING)
            given_up, self._waiting = self._waiting[:surplus], self._waiting[surplus:]
        return [CleaningGivenUp(paths=c.place.paths, folder=c.place.folder, error=c.error) for c in given_up]

    def retry(self, is_used: Callable[[str], bool], now: Instant) -> list[DeleteFiles]:
        """Try a failed deletion again, if a deletion is due. Paths for which `is_used` is true stay."""
        while self._retrying is None and now >= self._paused_until:
            due = [c for c in self._waiting if now >= c.due]
            if not due:
                break
            cleaning = min(due, key=lambda c: (c.due, c.number))
            self._waiting.remove(cleaning)
            cleaning.place = _unused(cleaning.place, is_used)
            if cleaning.place.paths or cleaning.place.folder is not None:
                self._retrying = cleaning.number
                return [self._start(cleaning)]
        return []

    def next_deadline(self) -> Instant | None:
        """When `retry` must be called; None while a deletion is being tried again, and None if no deletion waits."""
        if self._retrying is not None or not self._waiting:
            return None
        return max(self._paused_until, min(c.due for c in self._waiting))

    def shut_down(self, now: Instant) -> None:
        """The job has ended: the waiting deletions are tried from now on, a few times."""
        self._is_ending = True
        self._failures_in_a_row = 0
        self._paused_until = now
        for cleaning in (*self._waiting, *self._under_way.values()):
            cleaning.failures = 0
            cleaning.due = now

    def _after(self, failures: int, now: Instant) -> Instant:
        return Instant(now + min(self._retry_ms << min(failures - 1, 32), MAX_PAUSE_MS))

    def foreign(self) -> list[Foreign]:
        """The full paths that are not deleted yet. Cleaning the folder of the job would not find them."""
        open_cleanings = (*self._under_way.values(), *self._waiting)
        found = (_foreign(cleaning.place) for cleaning in open_cleanings)
        return [place for place in found if place is not None]

    @property
    def num_checkpoints(self) -> int:
        """How many checkpoints are being deleted."""
        return sum(cleaning.counts for cleaning in self._under_way.values())

    @property
    def is_idle(self) -> bool:
        """Whether no deletion is under way and no deletion waits."""
        return not self._under_way and not self._waiting


def _foreign(place: _Place) -> Foreign | None:
    if place.root is not None:
        # Only failed savepoints have a root. A failed savepoint is deleted once more when the job ends.
        return None
    folder = place.folder if place.folder is not None and is_full(place.folder) else None
    paths = place.paths if folder is not None else tuple(path for path in place.paths if is_full(path))
    return Foreign(folder=folder, paths=paths) if folder is not None or paths else None


def _unused(place: _Place, is_used: Callable[[str], bool]) -> _Place:
    """The place without the paths that are in use. The files of a savepoint have names of their own, so no other
    checkpoint uses them."""
    if place.root is not None:
        return place
    return place._replace(paths=tuple(path for path in place.paths if not is_used(path)))
