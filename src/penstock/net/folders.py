"""Private folders for the sockets of processes on one host.

Every process that may open the folder may call the process behind the socket, because such a socket asks for no key. So
only one user may open the folder.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from penstock.core.errors import HostError, Retry
from penstock.private_folders import check_private, make_above

_LONGEST_ADDRESS = 107
"""The longest path of a unix socket in bytes, without the zero at its end."""
_SOCKET = "s"
_NAME_SHOWN = 16
_TRIES = 3
_ALTERNATIVE = Path("/tmp")


class SocketFolder:
    """A fresh folder that only this user can open, for one socket of one process.

    The folder lies in `ipc_dir`. If `ipc_dir` is missing, it is made for this user alone. If `ipc_dir` belongs to
    another user, or other users may enter it, it is refused with `UsageError`. If paths in `ipc_dir` would be too long
    for a socket, the folder lies in the system's folder for temporary files instead.
    """

    def __init__(self, name: str, ipc_dir: str | os.PathLike[str]) -> None:
        label = re.sub(r"[^A-Za-z0-9.-]", "_", name)[:_NAME_SHOWN]
        self._made: Path | None = None
        self._folder = self._make_inside(Path(ipc_dir).absolute(), f"{label}-")

    @property
    def socket_path(self) -> Path:
        """The path for the socket."""
        return self._folder / _SOCKET

    @property
    def address(self) -> str:
        """The address for ZeroMQ."""
        return f"ipc://{self.socket_path}"

    def remove(self) -> None:
        """Remove the socket and its folder, and `ipc_dir` if `ipc_dir` was made for this folder and is empty."""
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
            f"the paths of all folders for sockets, {ipc_dir} included, are too long for a unix socket",
            hint="set ipc_dir to a short path",
        )

    def _claim(self, ipc_dir: Path, prefix: str) -> Path:
        for _ in range(_TRIES):
            try:
                make_above(ipc_dir)
                ipc_dir.mkdir(mode=stat.S_IRWXU)
                self._made = ipc_dir
            except FileExistsError:
                pass
            try:
                check_private(ipc_dir)
                return _private(ipc_dir, prefix)
            except FileNotFoundError:
                # Another process has just removed the folder, because it was the last process with a socket there.
                self._made = None
        raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", str(ipc_dir))


def _private(base: Path, prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base))


def make_root() -> Path:
    """A new folder for the sockets of a job's processes on this host. The path of the folder is so short that the
    folders of all slots fit into it: what a slot that dies leaves there goes with the folder."""
    inside = Path("penstock-" + "x" * 8, "x" * (_NAME_SHOWN + 1 + 8), _SOCKET)
    wanted = Path(tempfile.gettempdir())
    base = wanted if len(os.fsencode(wanted / inside)) <= _LONGEST_ADDRESS else _ALTERNATIVE
    return _private(base, "penstock-")
