"""Private folders, which belong to this user alone: for sockets, for state on the local disk, for landed DataFrames.

The name of a private folder can be guessed, and many private folders lie where every user may make folders, so that
another user may have made a folder of that name before. Each private folder is checked before a file is put there.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from penstock.core.errors import UsageError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOR_ALL = 0o755
_ROOT = 0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSED = _FOLDER | getattr(os, "O_PATH", 0)
"""How a folder on the way is opened: a user may pass through a folder that the user may not read."""
_MOST_LINKS = 40
"""So many links in one path are followed, as the system does."""


def make_private(folder: Path, *, what: str, setting: str) -> None:
    """Make a folder for this user alone, with the folders above it, and check the folder. Raises `UsageError` as
    `check_private` does, and `OSError`."""
    make_above(folder)
    with suppress(FileExistsError):
        folder.mkdir(mode=stat.S_IRWXU)
    check_private(folder, what=what, setting=setting)


def make_above(folder: Path) -> None:
    """Make the folders above a folder, such that `check_private` accepts them whatever the umask is. Raises
    `OSError`."""
    for above in reversed([above for above in folder.parents if not above.exists()]):
        above.mkdir(mode=_FOR_ALL, exist_ok=True)
    # Raises if a file is in the way.
    folder.parent.mkdir(exist_ok=True)


def check_private(folder: Path, *, what: str = "ipc_dir", setting: str = "ipc_dir", mode: int = stat.S_IRWXU) -> None:
    """Raise `UsageError` unless `folder` is a folder of this user, and no other user can put another folder in its
    place, or do in `folder` what `mode` does not allow. Raise `OSError` if `folder` does not exist. `what` names the
    folder in the error, and `setting` is the setting that the hint says to change."""
    hint = f"set {setting} to a folder of your own with mode {mode:04o}, or to a folder that does not exist"
    problems: list[str] = []
    try:
        # By descriptor: a name could stand for another folder at the next look, an open descriptor cannot.
        descriptor = _opened(folder.absolute(), problems)
    except NotADirectoryError as error:
        # Raises if the path leads through a file: then the error is not about `folder`.
        folder.lstat()
        raise UsageError(f"{what} {folder} is not a folder", hint=hint) from error
    except PermissionError as error:
        raise UsageError(f"{what} {folder} cannot be entered by user {os.geteuid()}", hint=hint) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise UsageError(f"{what} {folder} belongs to user {status.st_uid}, not to user {os.geteuid()}", hint=hint)
    if extra := status.st_mode & _OTHERS & ~mode:
        can = "enter" if extra & ~_WRITE else "write to"
        raise UsageError(
            f"{what} {folder} has mode {stat.S_IMODE(status.st_mode):04o}; other users can {can} the folder", hint=hint
        )
    if problems:
        raise UsageError(
            f"{what} {folder} can be replaced by another user: {problems[0]}",
            hint=f"{hint}; every folder above must belong to you or to root, and no other user may be able to write "
            "there, unless the folder has the sticky bit as /tmp has",
        )


def _opened(folder: Path, problems: list[str]) -> int:
    """The descriptor of a folder that has this full path. The folders above are opened one after another, from the root
    on. Each of these folders, and each link on the way, is looked at: `problems` gets a text for each folder or link
    that lets another user put something else in place of `folder`. Raises `OSError`; with `ENOTDIR` if `folder` is a
    link."""
    descriptor, links = os.open("/", _PASSED), 0
    # The names that are still to be followed, the next name last, each with the path to tell.
    names = _names(folder)
    try:
        while names:
            name, shown = names.pop()
            problems += _problems_above(os.fstat(descriptor), shown.parent)
            try:
                below = os.open(name, _PASSED if names else _FOLDER, dir_fd=descriptor)
            except NotADirectoryError:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if not names or not stat.S_ISLNK(status.st_mode):
                    raise
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder)) from None
                problems += _problems_of_owner(status, f"link {shown}")
                target = Path(os.readlink(name, dir_fd=descriptor))
                names += _names(target)
                below = os.open("/" if target.is_absolute() else ".", _PASSED, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _names(path: Path) -> list[tuple[str, Path]]:
    """The names in a path, the first name last, each with the path up to that name."""
    return [(each.name, each) for each in (path, *path.parents) if each.name]


def _problems_above(status: os.stat_result, folder: Path) -> list[str]:
    """Why a folder above lets other users put something else in place of what lies in the folder."""
    wide = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid())
    problems = _problems_of_owner(status, f"folder {folder}")
    if wide and not status.st_mode & stat.S_ISVTX:
        problems.append(f"folder {folder} has mode {stat.S_IMODE(status.st_mode):04o}")
    return problems


def _problems_of_owner(status: os.stat_result, what: str) -> list[str]:
    return [] if status.st_uid in (_ROOT, os.geteuid()) else [f"{what} belongs to user {status.st_uid}"]
