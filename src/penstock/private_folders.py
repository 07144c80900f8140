"""Private folders, which belong to this user alone: for sockets, for state on the local disk.

The name of a private folder can be guessed, and many private folders lie where every user may make folders, so that
another user may have made a folder of that name before. Each private folder is checked before a file is put there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from penstock.core.errors import UsageError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(folder: Path, *, what: str, setting: str) -> None:
    """Make a folder for this user alone, with the folders above it, and check the folder. Raises `UsageError` as
    `check_private` does, and `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=stat.S_IRWXU)
    check_private(folder, what=what, setting=setting)


def check_private(folder: Path, *, what: str = "ipc_dir", setting: str = "ipc_dir") -> None:
    """Raise `UsageError` unless `folder` is a folder of this user, and no other user can enter `folder` or put another
    folder in its place. Raise `OSError` if `folder` does not exist. `what` names the folder in the error, and `setting`
    is the setting that the hint says to change."""
    hint = f"set {setting} to a folder of your own with mode 0700, or to a folder that does not exist"
    try:
        # By descriptor: a name could stand for another folder at the next look, an open descriptor cannot.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        # Raises if the path leads through a file: then the error is not about `folder`.
        folder.lstat()
        raise UsageError(f"{what} {folder} is not a folder", hint=hint) from error
    except PermissionError as error:
        raise UsageError(f"{what} {folder} cannot be entered by user {os.geteuid()}", hint=hint) from error
    try:
        status = os.fstat(descriptor)
        above = os.stat("..", dir_fd=descriptor)
    finally:
        os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise UsageError(f"{what} {folder} belongs to user {status.st_uid}, not to user {os.geteuid()}", hint=hint)
    if status.st_mode & _OTHERS:
        raise UsageError(
            f"{what} {folder} has mode {stat.S_IMODE(status.st_mode):04o}; other users can enter the folder", hint=hint
        )
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise UsageError(
            f"{what} {folder} lies in a folder with mode {stat.S_IMODE(above.st_mode):04o}; other users can put "
            "another folder in its place",
            hint=f"{hint}, in a folder that only you can write to, or that has the sticky bit as /tmp has",
        )
