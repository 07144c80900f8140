"""Private folders for the sockets of processes on one host.

Who may open the folder may call the process: such sockets ask for no key. So the folder is for one user alone.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from penstock.core.errors import HostError, Retry, UsageError

_LONGEST_ADDRESS = 107
"""Bytes of the path of a unix socket, without the zero at its end."""
_SOCKET = "s"
_NAME_SHOWN = 16
_ATTEMPTS = 3
_ALTERNATIVE = Path("/tmp")


class SocketFolder:
    """A fresh folder that only this user can open, for one socket of one process.

    It lies in `ipc_dir`, which is made for this user alone if it is missing, and refused with `UsageError` if it
    belongs to someone else or others may enter it. Where paths in `ipc_dir` would be too long for a socket, it lies in
    the system's folder for temporary files instead.
    """

    def __init__(self, name: str, ipc_dir: str | os.PathLike[str]) -> None:
        label = re.sub(r"[^A-Za-z0-9.-]", "_", name)[:_NAME_SHOWN]
        self._made: Path | None = None
        self._folder = self._make_inside(Path(ipc_dir).absolute(), f"{label}-")

    @property
    def socket_path(self) -> Path:
        """Where the socket goes."""
        return self._folder / _SOCKET

    @property
    def address(self) -> str:
        """The address for ZeroMQ."""
        return f"ipc://{self.socket_path}"

    def remove(self) -> None:
        """Remove the socket and its folder, and `ipc_dir` if it was made for this one and nobody else is in it."""
        try:
            self.socket_path.unlink(missing_ok=True)
            self._folder.rmdir()
        except FileNotFoundError:
            pass
        if self._made is not None:
            try:
                self._made.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise

    def _make_inside(self, ipc_dir: Path, prefix: str) -> Path:
        for base in (ipc_dir, Path(tempfile.gettempdir()), _ALTERNATIVE):
            # `mkdtemp` adds eight characters.
            longest = base / f"{prefix}{'x' * 8}" / _SOCKET
            if len(os.fsencode(longest)) > _LONGEST_ADDRESS:
                continue
            try:
                return self._claim(base, prefix) if base is ipc_dir else _private(base, prefix)
            except OSError as error:
                raise HostError(
                    f"no socket can be made in folder {base}: {error.strerror}",
                    hint="set ipc_dir to a folder that this user can write to",
                    retry=Retry.LATER if error.errno in (errno.ENOSPC, errno.EDQUOT) else Retry.NEVER,
                ) from error
        raise HostError(
            f"every folder for sockets has too long a path, {ipc_dir} too", hint="set ipc_dir to a short path"
        )

    def _claim(self, ipc_dir: Path, prefix: str) -> Path:
        for _ in range(_ATTEMPTS):
            try:
                ipc_dir.parent.mkdir(parents=True, exist_ok=True)
                ipc_dir.mkdir(mode=stat.S_IRWXU)
                self._made = ipc_dir
            except FileExistsError:
                pass
            try:
                check_private(ipc_dir)
                return _private(ipc_dir, prefix)
            except FileNotFoundError:
                # Another process has just removed the folder, being the last in it.
                self._made = None
        raise FileNotFoundError(errno.ENOENT, "it is removed again and again", str(ipc_dir))


def check_private(folder: Path) -> None:
    """Raise `UsageError` unless `folder` is a folder of this user that nobody else can enter."""
    status = folder.lstat()
    hint = "set ipc_dir to a folder of your own with mode 0700, or to one that does not exist"
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"ipc_dir {folder} is not a folder", hint=hint)
    if status.st_uid != os.geteuid():
        raise UsageError(f"ipc_dir {folder} belongs to user {status.st_uid}, not to user {os.geteuid()}", hint=hint)
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"ipc_dir {folder} has mode {stat.S_IMODE(status.st_mode):04o}; others can enter it", hint=hint
        )


def _private(base: Path, prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
