"""Files by path: below the root of a job's store, or anywhere by their full path."""

from __future__ import annotations

from penstock.core.recovery.places import folder_and_name, is_full
from penstock.ports import Store


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


def _located(store: Store, path: str) -> tuple[Store, str]:
    if not is_full(path):
        return store, path
    folder, name = folder_and_name(path)
    return store.at(folder), name
