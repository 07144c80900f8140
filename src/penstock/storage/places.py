"""Files by path: below the root of a job's store, or anywhere by their full path."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.recovery import layout
from penstock.core.recovery.places import is_full
from penstock.core.recovery.roots import below, split
from penstock.core.recovery.tenure import Foreign
from penstock.ports import Store


class Anywhere:
    """Files of a store, and any others by their full paths, to read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, path: str) -> bytes:
        """The whole file. Raises `StorageError`."""
        return read_file(self._store, path)


def read_file(store: Store, path: str) -> bytes:
    """The whole file. Raises `StorageError`."""
    place, name = _located(store, path)
    return place.read(name)


def delete_file(store: Store, path: str) -> None:
    """Remove one file; nothing happens if it is not there. Raises `StorageError`."""
    place, name = _located(store, path)
    place.delete(name)


def delete_folder(store: Store, path: str) -> None:
    """Remove a folder with all that is in it. Raises `StorageError`."""
    place, name = _located(store, path)
    place.delete_tree(name)


def delete_foreign(store: Store, places: Iterable[Foreign]) -> None:
    """Remove what a job had outside its folder; nothing happens where it is not there. Raises `StorageError`."""
    for place in places:
        if place.folder is not None:
            # The metadata goes first, or something that is half deleted would look like a checkpoint.
            delete_file(store, below(place.folder, layout.METADATA_NAME))
        for path in place.paths:
            if is_full(path):
                delete_file(store, path)
        if place.folder is not None:
            delete_folder(store, place.folder)


def _located(store: Store, path: str) -> tuple[Store, str]:
    if not is_full(path):
        return store, path
    folder, name = split(path)
    return store.at(folder), name
