"""Which of several drivers has a job, decided in a store that all of them reach: a folder that they have mounted, or an
object store that can create a file for one of them only. Implements `ports.Election`.

The driver that claimed the newest term has the job. It keeps a *lease* (`storage.leases`): a file that it changes all
the time. Whoever waits watches that file, by a clock of his own, and claims the next term when it has not changed for
long enough, or at once if its owner let go of it.

A lease decides when it is worth while to take a job over. It does not keep two drivers apart: one whose lease ran out
may be alive. The terms do that (`storage.tenure`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.core.errors import JobTakenOver, StorageError
from penstock.core.ids import Term
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.tenure import Tenure
from penstock.ports import Store
from penstock.storage.leases import Leases, leases_of
from penstock.storage.records import FileRecords
from penstock.storage.tenure import End, end_of, take_over, terms_of

BEATS_PER_LEASE = 5
_RESIGNED = b"resigned"

log = logging.getLogger(__name__)


class FileElection:
    """One driver of a job, waiting for its turn."""

    def __init__(
        self,
        store: Store,
        job: JobFolder,
        *,
        lease_ms: int,
        anew: bool,
        clock_ms: Callable[[], float],
        goes_on: bool = False,
    ) -> None:
        """`anew` has a job begin once more that had ended when this driver first asked for it; `goes_on` has it go on
        from what it kept when it ended. `clock_ms` measures time, from wherever it likes."""
        self._goes_on = goes_on
        self._store = store
        self._job = job
        self._lease_ms = lease_ms
        self._looks_for_end = anew
        self._after: End | None = None
        self._clock_ms = clock_ms
        self._leases = leases_of(store, job)
        self._looked_at: float | None = None
        self._seen: tuple[Term, bytes] | None = None
        self._seen_at = 0.0
        self._has_changed = False

    def campaign(self, lost: Callable[[], None]) -> FileLeader | None:
        """Take the job over, if no other driver has it; None if one has. Where a look costs a request, it looks no more
        often than a lease is renewed, and answers None in between."""
        if self._looks_for_end:
            # A job that ends while this driver waits for it has been done: to begin it once more would do it twice.
            self._after, self._looks_for_end = end_of(self._store, self._job), False
        if not self._is_time_to_look():
            return None
        newest = terms_of(self._store, self._job).next() - 1
        if newest >= 0 and not self._is_gone(Term(newest)):
            return None
        try:
            tenure = take_over(self._store, self._job, after=self._after, goes_on=self._goes_on)
        except JobTakenOver:
            return None
        return FileLeader(self._store, self._job, tenure, self._leases, beat_ms=self._beat_ms, lost=lost)

    def close(self) -> None:
        """Nobody knows of those who wait."""

    def is_held(self) -> bool:
        """Whether another driver has the job for certain: its lease has changed since `campaign` first saw it, or it is
        known by its lock. Raises `StorageError`."""
        if self._has_changed or not self._leases.looks_are_free:
            return self._has_changed
        newest = terms_of(self._store, self._job).next() - 1
        return newest >= 0 and self._leases.is_held(Term(newest), self._leases.content(Term(newest)))

    @property
    def _beat_ms(self) -> float:
        return self._lease_ms / BEATS_PER_LEASE

    def _is_time_to_look(self) -> bool:
        now = self._clock_ms()
        if not self._leases.looks_are_free and self._looked_at is not None and now - self._looked_at < self._beat_ms:
            return False
        self._looked_at = now
        return True

    def _is_gone(self, term: Term) -> bool:
        content = self._leases.content(term)
        if content.startswith(_RESIGNED) or self._leases.is_let_go(term, content):
            return True
        now = self._clock_ms()
        if self._seen != (term, content):
            # The lease of another term says nothing about the driver that was seen before, and nothing yet about its
            # own: it may have died right after it claimed the job.
            self._has_changed = self._seen is not None and self._seen[0] == term
            self._seen, self._seen_at = (term, content), now
            return False
        return now - self._seen_at >= self._lease_ms


class FileLeader:
    """The driver that has the job. A thread of its own shows that it is alive, and looks whether it still has it."""

    def __init__(
        self,
        store: Store,
        job: JobFolder,
        tenure: Tenure,
        leases: Leases,
        *,
        beat_ms: float,
        lost: Callable[[], None],
    ) -> None:
        self.tenure = tenure
        self.records = FileRecords(store, job, term=tenure.term)
        self.is_lost = False
        self._job = job
        self._terms = terms_of(store, job)
        self._beat_s = beat_ms / 1_000
        self._lost = lost
        self._ends = threading.Event()
        self._lease = leases.open(tenure.term)
        self._beats = 0
        try:
            self._beat()
        except BaseException:
            # Kept open it would stay locked, and the job would have an owner that does not know of it.
            self._lease.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"penstock-lease-{job}", daemon=True)
        self._thread.start()

    def resign(self) -> None:
        """Let go of the job: another driver may take it over at once."""
        self._ends.set()
        self._thread.join()
        try:
            # A lease of a driver that has lost the job is looked at by nobody, and may be gone.
            if not self.is_lost:
                self._lease.show(_RESIGNED)
        except StorageError as error:
            known = {"job": self._job, "error": str(error)}
            log.info("the lease of job %s could not be given back, and runs out: %s", self._job, error, extra=known)
        finally:
            self._lease.close()

    def _run(self) -> None:
        while not self._ends.wait(self._beat_s):
            try:
                if self._terms.next() != self.tenure.term + 1:
                    self.is_lost = True
                    self._lost()
                    return
                self._beat()
            except StorageError as error:
                # Whether it has the job is looked at whenever it matters.
                known = {"job": self._job, "error": str(error)}
                log.info("the lease of job %s could not be renewed: %s", self._job, error, extra=known)

    def _beat(self) -> None:
        self._beats += 1
        self._lease.show(f"{self._beats:019d}".encode())
