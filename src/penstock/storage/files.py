"""The store on a file system that this host has mounted.

A file is written under a temporary name, made durable, then renamed: a reader sees all of it or nothing, and after a
crash there is at worst a leftover temporary file, which is never listed and goes with its folder. Folders are made
durable too, up to the root, before a write returns.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.core.errors import Retry, StorageError, UsageError
from penstock.core.recovery import roots
from penstock.ports import Frame, Store
from penstock.storage.paths import check_path, is_temporary, temporary_name

_REMEMBERED_FOLDERS = 64
_WRITE_BYTES = 16 * 1024 * 1024
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)

_HINTS = {
    errno.ENOENT: "it may have been deleted by hand, or belong to another directory",
    errno.EACCES: "see that the user of this process may read and write there",
    errno.EPERM: "see that the user of this process may read and write there",
    errno.EROFS: "the file system is read-only; choose another directory",
    errno.ENOSPC: "free some space, or choose another directory",
    errno.EDQUOT: "free some space, or choose another directory",
    errno.ENOTDIR: "a file is in the way; remove it or choose another directory",
    errno.EEXIST: "a file is in the way; remove it or choose another directory",
    errno.EISDIR: "a folder is in the way; remove it or choose another directory",
    errno.ENAMETOOLONG: "use shorter names for the job and its steps",
}
_LATER = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOTEMPTY,
)


class FileStore:
    """Files below `root`, a local path or `file:` URL; the folder is made when the first file is. Implements
    `ports.Store`.

    May be used from several threads and processes at once. A path that leads out of the root raises `UsageError`;
    links inside the root are followed, and removed rather than followed by deletes.
    """

    def __init__(self, root: str | os.PathLike[str], *, opener: Callable[[str], Store] | None = None) -> None:
        """`opener` makes the stores of `at`; without it they are of this kind."""
        self._root = _local_path(root)
        self._open = opener or FileStore
        # Folders that are recorded durably all the way up, as far as this process knows.
        self._durable_folders: set[Path] = set()

    @property
    def root(self) -> Path:
        """The absolute path of the root."""
        return self._root

    @property
    def location(self) -> str:
        """The same as text."""
        return str(self._root)

    def at(self, root: str) -> Store:
        """The files below another root."""
        return self._open(root)

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing; durable when it returns."""
        target = self._locate(path)
        with _translated("writing", target):
            try:
                self._write(target, _as_bytes(data))
            except FileNotFoundError:
                # Another process has removed the folder since it was last used here.
                self._durable_folders.clear()
                self._write(target, _as_bytes(data))

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless there is one; durable when it returns."""
        target = self._locate(path)
        with _translated("creating", target):
            try:
                return self._create(target, _as_bytes(data))
            except FileNotFoundError:
                self._durable_folders.clear()
                return self._create(target, _as_bytes(data))

    def read(self, path: str) -> bytes:
        """The whole file."""
        target = self._locate(path)
        with _translated("reading", target):
            return target.read_bytes()

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted; none if there is no such folder. The empty prefix is the root."""
        return [path for path in self._list(prefix) if not is_temporary(path)]

    def list_temporary(self, prefix: str) -> list[str]:
        """What interrupted writers left below a folder, sorted."""
        return [path for path in self._list(prefix) if is_temporary(path)]

    def delete(self, path: str) -> None:
        """Remove one file, durably; nothing happens if it is not there."""
        self._delete(self._locate(path))

    def delete_temporary(self, path: str) -> None:
        """Remove what an interrupted writer left, durably."""
        folder, _, name = path.rpartition("/")
        self._delete((self._locate(folder) if folder else self._root) / name)

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all that is in it, durably; nothing happens if it is not there."""
        target = self._locate(prefix)
        self._durable_folders.clear()
        with _translated("deleting", target):
            try:
                if target.is_symlink():
                    target.unlink()
                _remove_tree(target)
                _sync_folder(target.parent)
            except (FileNotFoundError, NotADirectoryError):
                return

    def _list(self, prefix: str) -> list[str]:
        folder = self._locate(prefix) if prefix else self._root
        found: list[str] = []
        with _translated("listing", folder):
            for parent, _, names in os.walk(folder, onerror=_raise_unless_missing):
                below = Path(parent).relative_to(self._root)
                found += [(below / name).as_posix() for name in names]
        return sorted(found)

    def _delete(self, target: Path) -> None:
        with _translated("deleting", target):
            try:
                target.unlink()
                _sync_folder(target.parent)
            except (FileNotFoundError, NotADirectoryError):
                return

    def _locate(self, path: str) -> Path:
        check_path(path, str(self._root))
        return self._root.joinpath(*path.split("/"))

    def _write(self, target: Path, data: memoryview) -> None:
        with self._written_aside(target, data) as temporary:
            temporary.replace(target)
        _sync_folder(target.parent)

    def _create(self, target: Path, data: memoryview) -> bool:
        created = True
        with self._written_aside(target, data) as temporary:
            # Unlike a rename, a link does not replace what is there.
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                created = False
            temporary.unlink()
        _sync_folder(target.parent)
        return created

    @contextmanager
    def _written_aside(self, target: Path, data: memoryview) -> Iterator[Path]:
        """A durable file in the same folder, under a temporary name."""
        self._make_durable(target.parent)
        temporary = target.parent / temporary_name()
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written : written + _WRITE_BYTES])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _make_durable(self, folder: Path) -> None:
        """Make `folder`, and see to it that it and all above it are recorded durably.

        Folders that another process made are synced as well: it may have died before it did so itself.
        """
        if folder in self._durable_folders:
            return
        if folder == self._root:
            for missing in reversed([f for f in (folder, *folder.parents) if not f.exists()]):
                missing.mkdir(exist_ok=True)
                _sync_folder(missing.parent)
        else:
            self._make_durable(folder.parent)
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)
        if len(self._durable_folders) >= _REMEMBERED_FOLDERS:
            self._durable_folders.clear()
        self._durable_folders.add(folder)


def _local_path(root: str | os.PathLike[str]) -> Path:
    text = os.fspath(root)
    if not roots.is_local(text):
        raise UsageError(
            f"directory {roots.shown(text)!r} is on a file system of kind {roots.scheme_of(text)!r}",
            hint="use a path that every host of the job has mounted",
        )
    if roots.scheme_of(text) == "file":
        text = unquote(urlsplit(text).path)
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not a directory", hint="give the path of the directory for checkpoints")
    return Path(text).absolute()


@contextmanager
def _translated(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        raise StorageError(
            f"{action} {path} failed: {error.strerror or error}",
            hint=_HINTS.get(code, "see whether the file system is well"),
            retry=Retry.LATER if code in _LATER else Retry.NEVER,
        ) from error


def _as_bytes(data: Frame) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder; what they promise without it is all there is.
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _remove_tree(folder: Path) -> None:
    for parent, folders, names in os.walk(folder, topdown=False, onerror=_raise_unless_missing):
        inside = Path(parent)
        for name in names:
            (inside / name).unlink(missing_ok=True)
        for name in folders:
            # A link to a folder is listed among the folders, and not followed.
            if (inside / name).is_symlink():
                (inside / name).unlink(missing_ok=True)
        _remove_folder(inside)


def _remove_folder(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        # Another process removes the same tree.
        return


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
