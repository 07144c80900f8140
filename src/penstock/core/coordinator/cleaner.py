"""The deletions: numbered, counted, and tried again when they fail.

    clean_… ──► under way ──FilesDeleted──► gone
                   ▲  │
              due  │  └─ with an error ──► waiting ── too often ──► given up, and told
                   └───────────────────────┘

Rules of this file:

* Checkpoints whose deletion is under way are counted: too many at once hold back new checkpoints. Those that wait to be
  tried again are not, so that a storage that cannot delete does not stop the job.
* Of those that failed one is under way at a time. The pause of each doubles with its failures, and when one has failed
  again the others pause too: a storage that is out of order is asked equally seldom whether one waits or a thousand.
* What is in use by the time it would be tried again is left out: its name has been given to another file.
* When the job has ended they are tried a few more times, from short pauses on, and then given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.core.coordinator.effects import CleaningGivenUp, DeleteFiles
from penstock.core.ids import Instant
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Foreign

MAX_PAUSE_MS = 5 * 60_000
"""No pause between two tries is longer."""
MOST_WAITING = 1_000
"""When more deletions wait the oldest is given up."""
ATTEMPTS_AT_THE_END = 5
"""How often a deletion is tried, and how many may fail in a row, after the job has ended."""


class _Place(NamedTuple):
    """What is to be deleted."""

    paths: tuple[str, ...]
    folder: str | None
    root: str | None
    """Where the paths begin; None: in the checkpoint directory."""


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
    """Deletions that are under way, and those that failed and wait for their next try."""

    def __init__(self, *, attempts: int, retry_ms: int) -> None:
        self._attempts = attempts
        self._retry_ms = retry_ms
        self._next_number = 1
        self._under_way: dict[int, _Cleaning] = {}
        self._waiting: list[_Cleaning] = []
        self._retrying: int | None = None
        self._failures_in_a_row = 0
        self._paused_until = Instant(0)
        self._is_ending = False

    def clean_checkpoint(self, paths: Iterable[str], folder: str | None, root: str | None = None) -> list[DeleteFiles]:
        """Delete what belongs to one checkpoint; paths begin at `root`. Counts until it has ended."""
        return self._begin(_Place(tuple(dict.fromkeys(paths)), folder, root), counts=True)

    def clean_leftovers(self, paths: Iterable[str], root: str | None = None) -> list[DeleteFiles]:
        """Delete single files; paths begin at `root`. Does not count."""
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
        """A deletion has ended; without an error, in success. Saying it twice does no harm."""
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
        if self._is_ending and self._failures_in_a_row >= ATTEMPTS_AT_THE_END:
            given_up, self._waiting = [*self._waiting, failed], []
        elif failed.failures >= (ATTEMPTS_AT_THE_END if self._is_ending else self._attempts):
            given_up = [failed]
        else:
            self._waiting.append(failed)
            surplus = max(0, len(self._waiting) - MOST_WAITING)
            given_up, self._waiting = self._waiting[:surplus], self._waiting[surplus:]
        return [CleaningGivenUp(paths=c.place.paths, folder=c.place.folder, error=c.error) for c in given_up]

    def retry(self, is_used: Callable[[str], bool], now: Instant) -> list[DeleteFiles]:
        """Try one again, if one is due. Paths that `is_used` stay."""
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
        """When `retry` must be called; None while one is under way that was tried again, or none waits."""
        if self._retrying is not None or not self._waiting:
            return None
        return max(self._paused_until, min(c.due for c in self._waiting))

    def shut_down(self, now: Instant) -> None:
        """The job has ended: what waits is tried from now on, a few times."""
        self._is_ending = True
        self._failures_in_a_row = 0
        self._paused_until = now
        for cleaning in (*self._waiting, *self._under_way.values()):
            cleaning.failures = 0
            cleaning.due = now

    def _after(self, failures: int, now: Instant) -> Instant:
        return Instant(now + min(self._retry_ms << min(failures - 1, 32), MAX_PAUSE_MS))

    def foreign(self) -> list[Foreign]:
        """What is not yet deleted and has a full path: nobody who cleans the folder of the job would find it."""
        open_cleanings = (*self._under_way.values(), *self._waiting)
        found = (_foreign(cleaning.place) for cleaning in open_cleanings)
        return [place for place in found if place is not None]

    @property
    def num_checkpoints(self) -> int:
        """How many checkpoints are being deleted."""
        return sum(cleaning.counts for cleaning in self._under_way.values())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being deleted, and nothing waits to be."""
        return not self._under_way and not self._waiting


def _foreign(place: _Place) -> Foreign | None:
    if place.root is not None:
        # A savepoint that failed: it is deleted once more when the job ends.
        return None
    folder = place.folder if place.folder is not None and is_full(place.folder) else None
    paths = place.paths if folder is not None else tuple(path for path in place.paths if is_full(path))
    return Foreign(folder=folder, paths=paths) if folder is not None or paths else None


def _unused(place: _Place, is_used: Callable[[str], bool]) -> _Place:
    """Files of a savepoint have names of their own: nobody else uses them."""
    if place.root is not None:
        return place
    return place._replace(paths=tuple(path for path in place.paths if not is_used(path)))
