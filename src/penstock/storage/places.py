"""Files by path: below the root of a job's store, or anywhere by their full path.

A full path inside the store's own directory is opened from that directory, and no name below the directory may be a
link. Any other full path is opened from the folder above the file's folder, so that the file's folder cannot be a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.core.errors import StorageError
from penstock.core.recovery import layout
from penstock.core.recovery.places import is_full
from penstock.core.recovery.roots import below, inside, is_local, split
from penstock.core.recovery.tenure import Foreign
from penstock.ports import Store


class Anywhere:
    """Reads files of a store by their paths, and any other files by their full paths."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file, of at most `limit` bytes. Raises `StorageError`."""
        return read_file(self._store, path, limit=limit)

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces, of at most `limit` bytes together. Raises `StorageError`."""
        place, name = _located(self._store, path)
        return place.read_pieces(name, limit=limit)


def read_file(store: Store, path: str, *, limit: int | None = None) -> bytes:
    """The whole file, of at most `limit` bytes. Raises `StorageError`."""
    place, name = _located(store, path)
    return place.read(name, limit=limit)


def delete_file(store: Store, path: str) -> None:
    """Delete one file. Nothing happens if the file does not exist. Raises `StorageError`."""
    place, name = _located(store, path)
    place.delete(name)


def delete_folder(store: Store, path: str) -> None:
    """Delete a folder with all its content. Raises `StorageError`."""
    place, name = _located(store, path)
    place.delete_tree(name)


def delete_foreign(store: Store, places: Iterable[Foreign]) -> None:
    """Delete the files that a job owns outside its folder. Files that do not exist are skipped. Raises
    `StorageError`."""
    for place in places:
        if place.folder is not None:
            delete_snapshot(store, place.folder, place.paths)
            continue
        for path in place.paths:
            if is_full(path):
                delete_file(store, path)


def delete_snapshot(store: Store, folder: str, paths: Iterable[str]) -> None:
    """Delete a snapshot that lies in `folder`, outside the folder of the job. `paths` are the files of the snapshot.
    Everything else in `folder` does not belong to the job, and stays. Raises `StorageError`."""
    # The metadata is deleted first. Otherwise a snapshot that is half deleted would look like a whole snapshot.
    delete_file(store, below(folder, layout.METADATA_NAME))
    failed: StorageError | None = None
    for path in paths:
        if inside(folder, path) is None:
            continue
        try:
            delete_file(store, path)
        except StorageError as error:
            failed = error
    if failed is not None:
        raise failed
    place, name = _located(store, folder)
    place.delete_empty(name)


def _located(store: Store, path: str) -> tuple[Store, str]:
    if not is_full(path):
        return store, path
    own = store.names(path)
    if own is not None:
        return store, own
    folder, name = split(path)
    above, last = split(folder)
    if not is_local(folder) or not last:
        return store.at(folder), name
    return store.at(above), f"{last}/{name}"
