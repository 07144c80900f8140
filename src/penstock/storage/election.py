"""Which of several drivers has a job, decided in a store that all drivers reach: a mounted folder, or an object store
that can create a file for one of several writers only. Implements `ports.Election`.

The driver that claimed the newest term has the job. This driver keeps a *lease* (`storage.leases`): a file that the
driver changes all the time. A waiting driver watches the lease by its own clock, and claims the next term when the
lease has not changed for long enough, or at once if the owner of the lease has let go of it.

A lease decides when it is worth while to take a job over. A lease does not keep two drivers apart: a driver whose lease
ran out may be alive. The terms keep drivers apart (`storage.tenure`).
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
    """The part of one waiting driver in the election that decides which driver has a job."""

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
        """With `anew`, a job that had already ended at this driver's first `campaign` begins anew. With `goes_on`, a
        job that has ended goes on from the checkpoints that it kept. `clock_ms` measures time, from any starting
        point."""
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
        """Take the job over, if no other driver has the job; None if another driver has the job. Where a look at the
        lease costs a request, the lease is looked at no more often than its owner renews it, and calls in between
        return None."""
        if self._looks_for_end:
            # A job that ends while this driver waits has done its work: to begin the job anew would do the work twice.
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
        """Nothing is to be done: waiting drivers are not listed anywhere."""

    def is_held(self) -> bool:
        """Whether it is certain that another driver has the job: the lease of that driver has changed since `campaign`
        first saw the lease, or the lock of the lease is held. Raises `StorageError`."""
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
            # If only the term is another, no driver is known to be alive: the driver of that term may have died right
            # after it claimed the job.
            self._has_changed = self._seen is not None and self._seen[0] == term
            self._seen, self._seen_at = (term, content), now
            return False
        return now - self._seen_at >= self._lease_ms


class FileLeader:
    """The hold of the driver that has the job. A thread renews the lease, and checks whether another driver has claimed
    a later term."""

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
            # An open lease would stay locked: other drivers would wait for this driver, which does not have the job.
            self._lease.close()
            raise
        self._thread = threading.Thread(target=self._run, name=f"penstock-lease-{job}", daemon=True)
        self._thread.start()

    def resign(self) -> None:
        """Let go of the job: another driver may take the job over at once."""
        self._ends.set()
        self._thread.join()
        try:
            # After another driver has taken the job over, no driver looks at this lease, and the lease may be deleted.
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
                # A missed renewal alone loses nothing: before anything that only one driver may do, the driver checks
                # that it has the job.
                known = {"job": self._job, "error": str(error)}
                log.info("the lease of job %s could not be renewed: %s", self._job, error, extra=known)

    def _beat(self) -> None:
        self._beats += 1
        self._lease.show(f"{self._beats:019d}".encode())
