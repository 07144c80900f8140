"""Folders on the local disk, one for each back end. A folder that is left behind is removed sooner or later.

Beside each folder lies a lock file with the same name and the ending `.lock`. The process that made the folder keeps
the lock as long as the folder is in use. The operating system frees the lock however the process ends. A process that
makes a folder first removes every folder whose lock is free.

    <local directory>/penstock-state-<user>/<name>.lock
    <local directory>/penstock-state-<user>/<name>/…
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from penstock.core.errors import HostError, Retry
from penstock.private_folders import make_private

_LOCK = ".lock"


class LocalFolder:
    """An empty folder for one back end. The folder is removed by `remove`, when this object is garbage-collected, or
    when the process ends. Raises `HostError` if no folder can be made, and `UsageError` if other users could reach the
    folder."""

    def __init__(self, local_directory: str | None) -> None:
        base = Path(local_directory or tempfile.gettempdir()).absolute() / f"penstock-state-{os.geteuid()}"
        try:
            # The name of the folder can be guessed, and every user may make a folder among temporary files. So another
            # user could have made the folder before.
            make_private(base, what="the folder for state", setting="local_directory of the state settings")
            _remove_abandoned(base)
            lock, lock_path = _locked_file(base)
            self.path = lock_path.with_suffix("")
            self._remove = weakref.finalize(self, _remove_own, self.path, lock_path, lock, os.getpid())
            self.path.mkdir(mode=stat.S_IRWXU)
        except OSError as error:
            raise HostError(
                f"no folder for state can be made in {base}: {error.strerror}",
                hint="set local_directory of the state settings to a folder that this user can write to",
                retry=Retry.LATER if error.errno in (errno.ENOSPC, errno.EDQUOT) else Retry.NEVER,
            ) from error

    @property
    def name(self) -> str:
        """The folder's own name, which no other folder has."""
        return self.path.name

    def remove(self) -> None:
        """Remove the folder and its content. A second call does nothing."""
        self._remove()


def _remove_own(path: Path, lock_path: Path, lock: int, owner: int) -> None:
    # A process that the owner has forked has a copy of the object, and must not remove the owner's folder.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)


def _locked_file(base: Path) -> tuple[int, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(suffix=_LOCK, dir=base)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Before the lock was taken, another process may have taken the file for abandoned and removed it.
            if os.fstat(descriptor).st_nlink:
                return descriptor, Path(name)
        os.close(descriptor)


def _remove_abandoned(base: Path) -> None:
    for lock_path in sorted(base.glob(f"*{_LOCK}")):
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                lock_path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
