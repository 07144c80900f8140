"""The store on a file system that this host has mounted.

A file is written under a temporary name, made durable, then renamed: a reader sees the whole file or no file. After a
crash there is at worst a leftover temporary file, which is never listed and is deleted with its folder. Folders are
made durable too, up to the root, before a write returns.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.core.errors import MissingFile, Retry, StorageError, UsageError
from penstock.core.recovery import roots
from penstock.descents import opened_folder, read_regular, regular_pieces, remove_tree, unlink
from penstock.ports import Frame, Store
from penstock.storage.paths import check_path, is_temporary, temporary_name
from penstock.storage.seals import PLAIN, SEAL_BYTES, StoreOptions

_REMEMBERED_FOLDERS = 64
_WRITE_BYTES = 16 * 1024 * 1024
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
_STAYS = (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST)
"""The errors that say that there is no folder to remove, or that the folder is not empty."""

_MAKING = ("writing", "creating", "making")
"""Actions that make missing folders: `ENOENT` has another cause there than when a file is read."""

_HINTS = {
    errno.ENOENT: "the file or folder may have been deleted by hand, or may belong to another directory",
    errno.EACCES: "see that the user of this process may read and write there",
    errno.EPERM: "see that the user of this process may read and write there",
    errno.EROFS: "the file system is read-only; choose another directory",
    errno.ENOSPC: "free some space, or choose another directory",
    errno.EDQUOT: "free some space, or choose another directory",
    errno.ENOTDIR: "a file is in the way; remove the file or choose another directory",
    errno.EEXIST: "a file is in the way; remove the file or choose another directory",
    errno.EISDIR: "a folder is in the way; remove the folder or choose another directory",
    errno.ELOOP: "links below the directory are not followed; put the folder itself there, or give its own path",
    errno.ENXIO: "no job writes anything but files; do not use what was put there",
    errno.EFBIG: "no job writes such a large file there; restore the file from a copy",
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
    """Files below `root`, a local path or `file:` URL. The folder is made together with its first file. Implements
    `ports.Store`.

    May be used from several threads and processes at once. A path that leads out of the root raises `UsageError`. Links
    below the root are not followed: a file behind a link cannot be read or written, and a delete removes the link
    itself.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        opener: Callable[[str], Store] | None = None,
        options: StoreOptions = PLAIN,
    ) -> None:
        """`opener` makes the stores that `at` returns; without an `opener`, `at` returns a `FileStore`."""
        self._root = _local_path(root)
        self.options = options
        self._open = opener or partial(FileStore, options=options)
        # Folders that are durable together with all folders above them, as far as this process knows.
        self._durable_folders: set[tuple[str, ...]] = set()

    @property
    def root(self) -> Path:
        """The absolute path of the root."""
        return self._root

    @property
    def location(self) -> str:
        """The absolute path of the root, as text."""
        return str(self._root)

    def at(self, root: str) -> Store:
        """The files below another root."""
        return self._open(root)

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of a file or folder that has a full path; None if the file or folder lies
        elsewhere. Links are followed: two names of one folder give the same path."""
        if not roots.is_local(place):
            return None
        real, root = os.path.realpath(_local_path(place)), os.path.realpath(self._root)
        return os.path.relpath(real, root) if real.startswith(f"{root.rstrip('/')}/") else None

    def names(self, place: str) -> str | None:
        """The path, below this root, that a full path has by its names; None if the full path names something
        elsewhere. Links below the root are not followed. Links in the path of the root are the user's, and are
        followed."""
        if not roots.is_local(place):
            return None
        whole = str(_local_path(place))
        above = dict.fromkeys((str(self._root), os.path.realpath(self._root)))
        return next((path for root in above if (path := roots.inside(root, whole)) is not None), None)

    def followed(self, place: str) -> str:
        """A full path with all links resolved."""
        return os.path.realpath(_local_path(place)) if roots.is_local(place) else place

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing. The file is durable when the call returns."""
        folder, name, target = self._locate(path)
        with _translated("writing", target):
            try:
                self._write(folder, name, _as_bytes(data))
            except FileNotFoundError:
                # Another process has removed the folder since this process last used the folder.
                self._durable_folders.clear()
                self._write(folder, name, _as_bytes(data))

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless the file exists. The file is durable when the call returns."""
        folder, name, target = self._locate(path)
        with _translated("creating", target):
            try:
                return self._create(folder, name, _as_bytes(data))
            except FileNotFoundError:
                self._durable_folders.clear()
                return self._create(folder, name, _as_bytes(data))

    def obstacle_to_create(self) -> str | None:
        """Always None: only one of several writers can make a link of the same name. On a file system without links
        `create` raises."""
        return None

    def make_folder(self, path: str = "") -> None:
        """Make a folder, durably, with the folders above it up to the root. Programs that know nothing of `options` may
        then write files into the folder. The empty path is the root. Folders that exist below the root are narrowed as
        `narrow` does."""
        parts = self._parts(path) if path else ()
        with _translated("making", self._root.joinpath(*parts)):
            # Another process may have removed a folder that this process has made.
            self._durable_folders.clear()
            self._make_durable(parts)
            self._narrow(parts)

    def narrow(self, path: str) -> None:
        """Take from the folders below the root, down to `path`, the rights that `options` do not allow, as far as the
        folders exist and belong to this user. The root is left as it is: the user may have other things there."""
        parts = self._parts(path)
        with _translated("narrowing", self._root.joinpath(*parts)), suppress(FileNotFoundError):
            self._narrow(parts)

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file. Raises `StorageError`, and reads nothing, if the file has more than `limit` bytes. Raises
        `MissingFile` if the file does not exist. If the root is missing or empty, the error is a `StorageError` and no
        `MissingFile`: the file system of the root may not be mounted at present."""
        folder, name, target = self._locate(path)
        with self._reading(target), opened_folder(self._root, folder) as inside:
            content = read_regular(inside, name, limit=None if limit is None else limit + SEAL_BYTES)
        return self.options.opened(content, str(target))

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces, of which one is in memory at a time. Raises like `read`; a wrong seal raises after the
        last piece."""
        folder, name, target = self._locate(path)
        with self._reading(target), opened_folder(self._root, folder) as inside:
            pieces = regular_pieces(inside, name, limit=None if limit is None else limit + SEAL_BYTES)
            yield from self.options.opened_pieces(pieces, str(target))

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted; empty if there is no such folder. The empty prefix is the root."""
        return [path for path in self._list(prefix) if not is_temporary(path)]

    def list_temporary(self, prefix: str) -> list[str]:
        """The temporary files below a folder, sorted. A writer is at work on such a file, or was interrupted."""
        return [path for path in self._list(prefix) if is_temporary(path)]

    def delete(self, path: str) -> None:
        """Remove one file, durably. Nothing happens if the file does not exist."""
        self._delete(*self._locate(path))

    def delete_temporary(self, path: str) -> None:
        """Remove a temporary file that an interrupted writer left, durably."""
        folder, _, name = path.rpartition("/")
        above = self._parts(folder) if folder else ()
        self._delete(above, name, self._root.joinpath(*above, name))

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all its content, durably. Nothing happens if the folder does not exist."""
        folder, name, target = self._locate(prefix)
        self._durable_folders.clear()
        with _translated("deleting", target):
            try:
                with opened_folder(self._root, folder) as inside:
                    remove_tree(inside, name)
                    _sync(inside)
            except (FileNotFoundError, NotADirectoryError):
                return

    def delete_empty(self, prefix: str) -> None:
        """Remove a folder, durably, if the folder is empty. Nothing happens if the folder is not empty or does not
        exist."""
        folder, name, target = self._locate(prefix)
        self._durable_folders.clear()
        with _translated("deleting", target):
            try:
                with opened_folder(self._root, folder) as inside:
                    os.rmdir(name, dir_fd=inside)
                    _sync(inside)
            except OSError as error:
                if error.errno not in _STAYS:
                    raise

    @contextmanager
    def _reading(self, target: Path) -> Iterator[None]:
        try:
            with _translated("reading", target):
                yield
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError) and self._has_content():
                raise MissingFile(error.message, hint=error.hint) from error.__cause__
            raise

    def _has_content(self) -> bool:
        try:
            with os.scandir(self._root) as entries:
                return any(entries)
        except OSError:
            return False

    def _list(self, prefix: str) -> list[str]:
        parts = self._parts(prefix) if prefix else ()
        found: list[str] = []
        with _translated("listing", self._root.joinpath(*parts)):
            try:
                with opened_folder(self._root, parts) as inside:
                    for parent, _, names, _ in os.fwalk(".", dir_fd=inside, onerror=_raise_unless_missing):
                        below = "/".join((*parts, *parent.split("/")[1:]))
                        found += [f"{below}/{name}" if below else name for name in names]
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(found)

    def _delete(self, folder: Sequence[str], name: str, target: Path) -> None:
        with _translated("deleting", target):
            try:
                with opened_folder(self._root, folder) as inside:
                    os.unlink(name, dir_fd=inside)
                    _sync(inside)
            except (FileNotFoundError, NotADirectoryError):
                return

    def _parts(self, path: str) -> tuple[str, ...]:
        check_path(path, str(self._root))
        return tuple(path.split("/"))

    def _locate(self, path: str) -> tuple[tuple[str, ...], str, Path]:
        """The folders down to a file, the name of the file, and the whole path for error texts."""
        *folder, name = self._parts(path)
        return tuple(folder), name, self._root.joinpath(*folder, name)

    def _write(self, folder: tuple[str, ...], name: str, data: memoryview) -> None:
        with self._written_aside(folder, data) as (inside, temporary):
            os.replace(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
            _sync(inside)

    def _create(self, folder: tuple[str, ...], name: str, data: memoryview) -> bool:
        created = True
        with self._written_aside(folder, data) as (inside, temporary):
            # Unlike a rename, a link does not replace an existing file.
            try:
                os.link(temporary, name, src_dir_fd=inside, dst_dir_fd=inside, follow_symlinks=False)
            except FileExistsError:
                created = False
            os.unlink(temporary, dir_fd=inside)
            _sync(inside)
        return created

    @contextmanager
    def _written_aside(self, folder: tuple[str, ...], data: memoryview) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder, and the temporary name of a durable file in the folder."""
        self._make_durable(folder)
        temporary = temporary_name()
        with opened_folder(self._root, folder) as inside:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(temporary, flags, self.options.file_mode, dir_fd=inside)
                try:
                    os.fchmod(descriptor, self.options.file_mode)
                    for part in (data, memoryview(self.options.seal_of(data))):
                        written = 0
                        while written < len(part):
                            written += os.write(descriptor, part[written : written + _WRITE_BYTES])
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                yield inside, temporary
            except BaseException:
                unlink(inside, temporary)
                raise

    def _narrow(self, folder: tuple[str, ...]) -> None:
        for depth in range(1, len(folder) + 1):
            with opened_folder(self._root, folder[:depth]) as inside:
                status = os.fstat(inside)
                mode = stat.S_IMODE(status.st_mode)
                extra = mode & (stat.S_IRWXG | stat.S_IRWXO) & ~self.options.folder_mode
                if extra and status.st_uid == os.geteuid():
                    os.fchmod(inside, mode & ~extra)

    def _make_durable(self, folder: tuple[str, ...]) -> None:
        """Make `folder`, and make it durable together with all folders above it.

        Folders that another process made are synced as well: that process may have died before it synced them.
        """
        if folder in self._durable_folders:
            return
        if not folder:
            for missing in reversed([f for f in (self._root, *self._root.parents) if not f.exists()]):
                missing.mkdir(mode=self.options.folder_mode if missing == self._root else 0o777, exist_ok=True)
                with opened_folder(missing.parent, ()) as above:
                    _sync(above)
        else:
            self._make_durable(folder[:-1])
            with opened_folder(self._root, folder[:-1]) as above:
                with suppress(FileExistsError):
                    os.mkdir(folder[-1], self.options.folder_mode, dir_fd=above)
                _sync(above)
        if len(self._durable_folders) >= _REMEMBERED_FOLDERS:
            self._durable_folders.clear()
        self._durable_folders.add(folder)


def _local_path(root: str | os.PathLike[str]) -> Path:
    text = os.fspath(root)
    if not roots.is_local(text):
        raise UsageError(
            f"directory {roots.shown(text)!r} is on a file system of kind {roots.scheme_of(text)!r}, "
            "and is no mounted folder",
            hint="use a path that every host of the job has mounted",
        )
    if roots.scheme_of(text) == "file":
        text = unquote(urlsplit(text).path)
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is not a directory", hint="give the path of the directory for checkpoints")
    return Path(text).absolute()


def _hint_of(action: str, code: int) -> str:
    if code == errno.ENOENT and action in _MAKING:
        return "the folder of the file could not be made; choose another directory"
    return _HINTS.get(code, "see whether the file system works")


@contextmanager
def _translated(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        raise StorageError(
            f"{action} {path} failed: {error.strerror or error}",
            hint=_hint_of(action, code),
            retry=Retry.LATER if code in _LATER else Retry.NEVER,
        ) from error


def _as_bytes(data: Frame) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        # Some network file systems cannot sync a folder. Whether the folder is durable then depends on the file system.
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
