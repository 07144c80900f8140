"""Folders on the local disk, each of one back end, that are never left behind for good.

Beside a folder lies a file of the same name with `.lock` at its end, which its owner keeps locked as long as it lives.
The system lets go of the lock however the process ends. Whoever makes a folder removes those whose lock can be had.

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
    """A fresh folder, for one back end, that is removed when it is told, when nobody has this object any more, or when
    the process ends. Raises `HostError` if none can be made, and `UsageError` if others could reach it."""

    def __init__(self, local_directory: str | None) -> None:
        base = Path(local_directory or tempfile.gettempdir()).absolute() / f"penstock-state-{os.geteuid()}"
        try:
            # Its name can be guessed, and in a folder for temporary files everybody may make one.
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
        """Remove the folder with everything in it. Nothing happens the second time."""
        self._remove()


def _remove_own(path: Path, lock_path: Path, lock: int, owner: int) -> None:
    # A process that the owner has forked has the same object.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)


def _locked_file(base: Path) -> tuple[int, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(suffix=_LOCK, dir=base)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody who cleans up may have been faster than the lock.
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
