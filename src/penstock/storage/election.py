"""Which of several drivers has a job, decided in a folder that all of them have mounted. Implements `ports.Election`.

The driver that claimed the newest term has the job. It keeps a *lease*: a file that it changes all the time. Whoever
waits watches that file, by a clock of his own, and claims the next term when it has not changed for long enough, or at
once if its owner let go of it: an owner that died on the same host does, since the file is locked.

A lease decides when it is worth while to take a job over. It does not keep two drivers apart: one whose lease ran out
may be alive. The terms do that (`storage.tenure`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.core.errors import JobTakenOver, StorageError
from penstock.core.ids import Term
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.tenure import Tenure
from penstock.storage.files import FileStore
from penstock.storage.records import FileRecords
from penstock.storage.tenure import End, end_of, take_over, terms_of

BEATS_PER_LEASE = 5
_RESIGNED = b"resigned"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class FileElection:
    """One driver of a job, waiting for its turn."""

    def __init__(
        self, store: FileStore, job: JobFolder, *, lease_ms: int, anew: bool, clock_ms: Callable[[], float]
    ) -> None:
        """`anew` has a job begin once more that had ended when this driver first asked for it. `clock_ms` measures
        time, from wherever it likes."""
        self._store = store
        self._job = job
        self._lease_ms = lease_ms
        self._looks_for_end = anew
        self._after: End | None = None
        self._clock_ms = clock_ms
        self._seen: tuple[Term, bytes] | None = None
        self._seen_at = 0.0

    def campaign(self, lost: Callable[[], None]) -> FileLeader | None:
        """Take the job over, if no other driver has it; None if one has."""
        if self._looks_for_end:
            # A job that ends while this driver waits for it has been done: to begin it once more would do it twice.
            self._after, self._looks_for_end = end_of(self._store, self._job), False
        newest = terms_of(self._store, self._job).next() - 1
        if newest >= 0 and not self._is_gone(Term(newest)):
            return None
        try:
            tenure = take_over(self._store, self._job, after=self._after)
        except JobTakenOver:
            return None
        return FileLeader(self._store, self._job, tenure, beat_ms=self._lease_ms / BEATS_PER_LEASE, lost=lost)

    def close(self) -> None:
        """Nobody knows of those who wait."""

    def _is_gone(self, term: Term) -> bool:
        path = self._store.root / layout.lease_file(self._job, term)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            # Its owner has just claimed its term, or did not come so far.
            content = b""
        except OSError as error:
            raise StorageError(f"reading {path} failed: {error.strerror or error}") from error
        if content.startswith(_RESIGNED) or (content.endswith(_this_host()) and _is_unlocked(path)):
            return True
        now = self._clock_ms()
        if self._seen != (term, content):
            self._seen, self._seen_at = (term, content), now
            return False
        return now - self._seen_at >= self._lease_ms


class FileLeader:
    """The driver that has the job. A thread of its own shows that it is alive, and looks whether it still has it."""

    def __init__(
        self, store: FileStore, job: JobFolder, tenure: Tenure, *, beat_ms: float, lost: Callable[[], None]
    ) -> None:
        self.tenure = tenure
        self.records = FileRecords(store, job, term=tenure.term)
        self.is_lost = False
        self._job = job
        self._terms = terms_of(store, job)
        self._beat_s = beat_ms / 1_000
        self._lost = lost
        self._ends = threading.Event()
        self._lease = _open_lease(store, job, tenure.term)
        self._beats = 0
        try:
            self._beat()
        except OSError as error:
            # Kept open it would stay locked, and the job would have an owner that does not know of it.
            os.close(self._lease)
            raise _unwritten(store, job, tenure.term, error) from error
        self._thread = threading.Thread(target=self._run, name=f"penstock-lease-{job}", daemon=True)
        self._thread.start()

    def resign(self) -> None:
        """Let go of the job: another driver may take it over at once."""
        self._ends.set()
        self._thread.join()
        try:
            os.pwrite(self._lease, _RESIGNED, 0)
        except OSError as error:
            log.info("the lease could not be given back; it runs out", extra={"job": self._job, "error": str(error)})
        finally:
            os.close(self._lease)

    def _run(self) -> None:
        while not self._ends.wait(self._beat_s):
            try:
                if self._terms.next() != self.tenure.term + 1:
                    self.is_lost = True
                    self._lost()
                    return
                self._beat()
            except (OSError, StorageError) as error:
                # Whether it has the job is looked at whenever it matters.
                log.info("a lease could not be renewed", extra={"job": self._job, "error": str(error)})

    def _beat(self) -> None:
        self._beats += 1
        # In place: the lock is on this very file.
        os.pwrite(self._lease, f"{self._beats:019d} ".encode() + _this_host(), 0)


def _open_lease(store: FileStore, job: JobFolder, term: Term) -> int:
    path = store.root / layout.lease_file(job, term)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            if other.name < path.name:
                other.unlink(missing_ok=True)
        lease = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks: then the lease has to run out.
            log.info("a lease could not be locked", extra={"path": str(path), "error": str(error)})
    except OSError as error:
        raise _unwritten(store, job, term, error) from error
    return lease


def _unwritten(store: FileStore, job: JobFolder, term: Term, error: OSError) -> StorageError:
    path = store.root / layout.lease_file(job, term)
    return StorageError(f"the lease {path} could not be written: {error.strerror or error}")


def _is_unlocked(path: Path) -> bool:
    try:
        lease = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        # Only if it is still the file of that name does the lock say anything about its owner.
        return path.exists() and os.fstat(lease).st_ino == path.stat().st_ino
    finally:
        os.close(lease)


def _this_host() -> bytes:
    """Names the kernel that this process runs on: locks of the same one can be believed."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return socket.gethostname().encode()
