"""Deletes a savepoint on request."""

from __future__ import annotations

from typing import Any

from penstock.core.errors import UsageError
from penstock.storage.locations import open_store
from penstock.storage.places import delete_folder
from penstock.storage.restoring import find_snapshot


def dispose(place: str) -> dict[str, Any]:
    """Delete the savepoint in this folder. A folder that is no savepoint is left alone.

    Raises:
        UsageError: the folder is no savepoint.

    """
    store = open_store(place)
    found = find_snapshot(store, store.location)
    if found.folder.rstrip("/") != store.location.rstrip("/"):
        raise UsageError(
            f"{place} is not the folder of a savepoint", hint="give the folder that has the savepoint's _metadata"
        )
    if not found.metadata.kind.is_savepoint:
        raise UsageError(f"{place} is a checkpoint, and no savepoint; the job deletes its checkpoints itself")
    delete_folder(store, found.folder)
    return {}
