"""Folders and files below a root, opened one folder after another by descriptor.

No link below the root is followed: a user who can write below the root could make a link that leads anywhere, or
replace a folder by a link between a check of the folder and its use. A descriptor goes on naming the folder or file
that was opened. Links in the path of the root itself are followed: the user chose that path.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK = os.O_NOFOLLOW
_LINK = "the path is a symbolic link, or leads through a symbolic link"
_READ_BYTES = 4 * 1024 * 1024


@contextmanager
def opened_folder(root: Path, names: Sequence[str]) -> Iterator[int]:
    """The descriptor of the folder that is reached from `root` by these names. Raises `OSError`; with `ELOOP` if one of
    the names is a link."""
    folder = os.open(root, _FOLDER)
    try:
        for name in names:
            below = open_below(folder, name)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def open_below(folder: int, name: str) -> int:
    """The descriptor of the folder `name` in `folder`. Raises `OSError`; with `ELOOP` if `name` is a link."""
    try:
        return os.open(name, _FOLDER | _NO_LINK, dir_fd=folder)
    except NotADirectoryError as error:
        # `open` raises the same error for a link.
        if is_link(folder, name):
            raise OSError(errno.ELOOP, _LINK, name) from error
        raise


def make_folders(root: Path, names: Sequence[str], *, mode: int = 0o777) -> None:
    """Make the folder that is reached from `root` by these names, with the folders on the way. Raises `OSError`."""
    for depth, name in enumerate(names):
        with opened_folder(root, names[:depth]) as above, suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=above)


def create_file(folder: int, name: str, *, mode: int = 0o666) -> int:
    """Create a file, and return its descriptor for writing. A file or a link that has the name loses the name, and is
    not written to: a file may have other names, and a link may lead anywhere. Raises `OSError`."""
    unlink(folder, name)
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _NO_LINK, mode, dir_fd=folder)


def is_link(folder: int, name: str) -> bool:
    """Whether a symbolic link has that name."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


class TooLarge(OSError):
    """A file has more bytes than its reader allows."""


def read_regular(folder: int, name: str, *, limit: int | None) -> bytes:
    """The content of a file. Raises `OSError` like `regular_pieces`."""
    # Pieces in a list would be in memory a second time when they are joined.
    content = io.BytesIO()
    for piece in regular_pieces(folder, name, limit=limit):
        content.write(piece)
    return content.getvalue()


def regular_pieces(folder: int, name: str, *, limit: int | None) -> Iterator[bytes]:
    """The content of a file, in pieces. Raises `OSError` if `name` is no regular file: a pipe would keep its reader
    waiting for ever, and a device has no end. Raises `TooLarge`, and reads nothing, if the file has more than `limit`
    bytes."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | _NO_LINK, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _LINK, name) from error
        raise
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123  # a descriptor has no path
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, "the path names no file, but a pipe, a socket or a device", name)
        if limit is not None and status.st_size > limit:
            raise TooLarge(errno.EFBIG, f"it has {status.st_size} bytes, and at most {limit} are expected", name)
        # A file that grows meanwhile is read to its former end. A file that is cut meanwhile gives fewer bytes, which
        # the checksum of the file shows.
        left = status.st_size
        while left > 0 and (piece := os.read(file.fileno(), min(left, _READ_BYTES))):
            left -= len(piece)
            yield piece


def remove_tree(folder: int, name: str) -> None:
    """Remove the folder `name` in `folder` with everything in it, or, if `name` is a link, the link. Nothing happens if
    there is no `name`. Raises `OSError`."""
    try:
        inner = open_below(folder, name)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        unlink(folder, name)
        return
    try:
        with os.scandir(inner) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_folder in found:
            (remove_tree if is_folder else unlink)(inner, entry)
    finally:
        os.close(inner)
    try:
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        # Another process removes the same tree.
        return


def unlink(folder: int, name: str) -> None:
    """Remove the file or the link `name` in `folder`. Nothing happens if there is no `name`."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
