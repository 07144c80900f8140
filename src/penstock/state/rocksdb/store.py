"""Changes in memory over a database. An entry that changes often is seldom written to the database, and a snapshot
freezes the changes in constant time.

Changes go into the *live* layer, a dict. When the live layer is full, its oldest entries are written to the database, a
few at a time. A snapshot freezes the live layer and starts another live layer. If the snapshot needs the files of the
database, no later change may be written to the database before the snapshot has its files:

    live            changes since the last snapshot
    frozen, …       changes up to a snapshot, newest first; these layers wait to be written
    the database    all earlier changes

Each snapshot has a *cut*. To make a cut, the frozen layers up to the layer of the cut are written to the database, and
the files of the database are linked into a folder. The work of the snapshot makes the cut, off the loop. If the live
layer grows far beyond its size before that, the loop makes the cut. Cuts are made in the order of their snapshots, one
at a time.

Most entries are read one by one. The entries of a map, the elements of a list and timers are also read in groups. The
entries of a group have a common prefix, and layers keep them by this prefix, so that a group is found without reading
other groups.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from pathlib import Path

from penstock.core.errors import HostError
from penstock.state.backend import MISSING
from penstock.state.rocksdb.database import Change, Database

_ENTRY_BYTES = 256
"""About how much memory an entry takes, without its value."""
_SPILL_BYTES = 256 * 1024
"""How much of a full live layer is written to the database at a time."""
_FULLEST = 4
"""How many times its size the live layer may grow to, while a snapshot waits for its files."""
_PIECE = 2_000
"""How many changes are written to the database at a time. Between two writes off the loop, other threads may use the
interpreter."""
_PAUSE_SECONDS = 0.0003

Singles = dict[bytes, bytes | None]
Groups = dict[bytes, Singles]


class Layer:
    """The frozen changes of one snapshot. A layer gets no further changes."""

    __slots__ = ("groups", "singles", "written")

    def __init__(self, singles: Singles, groups: Groups) -> None:
        self.singles = singles
        self.groups = groups
        self.written = not singles and not groups
        """Whether all changes of the layer are in the database."""

    def changes(self) -> Iterator[Change]:
        """Every changed key once, with its value, in no particular order."""
        yield from self.singles.items()
        for prefix, entries in self.groups.items():
            for suffix, value in entries.items():
                yield prefix + suffix, value


class Cut:
    """The files of the database for one snapshot: with the layer of the snapshot and all earlier layers, and without
    later changes."""

    def __init__(self, layer: Layer, folder: Path | None) -> None:
        self.layer = layer
        self.folder = folder
        """The folder that the files are linked into; None if the snapshot needs no files."""
        self.made = False
        self.given_up = False


class LayeredStore:
    """The entries of one back end. Only the loop may call the methods, except for methods that say otherwise."""

    def __init__(self, db: Database, memory_bytes: int) -> None:
        self.db = db
        self._memory_bytes = memory_bytes
        self._singles: Singles = {}
        self._groups: Groups = {}
        self._weight = 0
        self._frozen: tuple[Layer, ...] = ()
        self._cuts: list[Cut] = []
        self._lock = threading.Lock()
        self._closed = False

    # --- single entries ------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if the key has no value."""
        found = self._singles.get(key, MISSING)
        if found is not MISSING:
            return found  # type: ignore[no-any-return]
        for layer in self._frozen:
            found = layer.singles.get(key, MISSING)
            if found is not MISSING:
                return found  # type: ignore[no-any-return]
        return self.db.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None removes the entry."""
        singles = self._singles
        if (old := singles.get(key, MISSING)) is MISSING:
            self._weight += _ENTRY_BYTES
        elif old is not None:
            self._weight -= len(old)
        singles[key] = value
        if value is not None:
            self._weight += len(value)
        if self._weight > self._memory_bytes:
            self._relieve()

    # --- entries of a group --------------------------------------------------------------

    def get_in(self, prefix: bytes, suffix: bytes) -> bytes | None:
        """The value of one entry of a group; None if the group does not have the entry."""
        entries = self._groups.get(prefix)
        if entries is not None and (found := entries.get(suffix, MISSING)) is not MISSING:
            return found  # type: ignore[no-any-return]
        for layer in self._frozen:
            entries = layer.groups.get(prefix)
            if entries is not None and (found := entries.get(suffix, MISSING)) is not MISSING:
                return found  # type: ignore[no-any-return]
        return self.db.get(prefix + suffix)

    def put_in(self, prefix: bytes, suffix: bytes, value: bytes | None) -> None:
        """Set the value of one entry of a group; None removes the entry."""
        entries = self._groups.get(prefix)
        if entries is None:
            entries = self._groups[prefix] = {}
            self._weight += _ENTRY_BYTES
        if (old := entries.get(suffix, MISSING)) is MISSING:
            self._weight += _ENTRY_BYTES
        elif old is not None:
            self._weight -= len(old)
        entries[suffix] = value
        if value is not None:
            self._weight += len(value)
        if self._weight > self._memory_bytes:
            self._relieve()

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Suffix and value of the entries of a group from `start` on, in order, as they are at this moment."""
        return _merged_group(self.db.items(prefix + start), prefix, start, self._changes_of(prefix))

    def last(self, prefix: bytes) -> bytes | None:
        """The last suffix of a group; None if the group has no entries. The prefix of the group must not end in FF."""
        changes, size = self._changes_of(prefix), len(prefix)
        suffixes = [suffix for suffix, value in changes.items() if value is not None]
        behind = prefix[:-1] + bytes([prefix[-1] + 1])
        for key, _ in _beginning_with(self.db.items_backwards(behind), prefix):
            if key[size:] not in changes:
                suffixes.append(key[size:])
                break
        return max(suffixes, default=None)

    def _changes_of(self, prefix: bytes) -> Singles:
        changes: Singles = {}
        for layer_groups in (*(layer.groups for layer in reversed(self._frozen)), self._groups):
            if (entries := layer_groups.get(prefix)) is not None:
                changes.update(entries)
        return changes

    def clear(self, prefix: bytes) -> None:
        """Remove all entries of a group."""
        for suffix in [suffix for suffix, _ in self.scan(prefix)]:
            self.put_in(prefix, suffix, None)

    # --- room ----------------------------------------------------------------------------

    def _relieve(self) -> None:
        """The live layer is full: write its oldest entries to the database. While a snapshot waits for its files, do so
        only if the live layer has grown far beyond its size, and make the cuts first."""
        if self._wait_for_files():
            if self._weight < _FULLEST * self._memory_bytes:
                return
            self._make_cuts()
        self.write_frozen()
        self._write_oldest(self._memory_bytes - min(_SPILL_BYTES, self._memory_bytes // 2))

    def write_all(self) -> bool:
        """Write all changes to the database, unless a snapshot waits for its files. Returns whether the changes were
        written."""
        if self._wait_for_files():
            return False
        self.write_frozen()
        self._write_oldest(0)
        return True

    def write_frozen(self) -> None:
        """Write the frozen layers to the database. May be called only while no snapshot waits for its files."""
        if self._frozen:
            with self._lock:
                self._write_layers(self._cuts)
            self._settle()

    def _wait_for_files(self) -> bool:
        self._settle()
        return any(cut.folder is not None for cut in self._cuts)

    def _settle(self) -> None:
        """Forget the cuts that are made and the layers that are written."""
        if self._cuts:
            self._cuts = [cut for cut in self._cuts if not (cut.made or (cut.folder is None and cut.layer.written))]
        if self._frozen:
            self._frozen = tuple(layer for layer in self._frozen if not layer.written)

    def _write_oldest(self, weight: int) -> None:
        while self._weight > weight and self._singles:
            self._write_some_singles(self._weight - weight)
        while self._weight > weight and self._groups:
            self._write_some_groups(self._weight - weight)
        if not self._singles and not self._groups:
            self._weight = 0

    def _write_some_singles(self, weight: int) -> None:
        changes: list[Change] = []
        for key, value in islice(self._singles.items(), _PIECE):
            changes.append((key, value))
            weight -= _ENTRY_BYTES + len(value or b"")
            if weight <= 0:
                break
        self.db.write(changes)
        for key, value in changes:
            del self._singles[key]
            self._weight -= _ENTRY_BYTES + len(value or b"")

    def _write_some_groups(self, weight: int) -> None:
        changes: list[Change] = []
        prefixes: list[bytes] = []
        freed = 0
        for prefix, entries in self._groups.items():
            prefixes.append(prefix)
            freed += _ENTRY_BYTES
            for suffix, value in entries.items():
                changes.append((prefix + suffix, value))
                freed += _ENTRY_BYTES + len(value or b"")
            if freed >= weight or len(changes) >= _PIECE:
                break
        self.db.write(changes)
        for prefix in prefixes:
            del self._groups[prefix]
        self._weight -= freed

    # --- snapshots -----------------------------------------------------------------------

    def freeze(self, folder: Path | None) -> Cut:
        """Freeze the live layer. The returned cut has all changes up to this moment. If `folder` is given, the files of
        the cut will have these changes and no later changes."""
        self._settle()
        cut = Cut(Layer(self._singles, self._groups), folder)
        if self._singles or self._groups:
            self._frozen = (cut.layer, *self._frozen)
            self._singles, self._groups, self._weight = {}, {}, 0
        with self._lock:
            self._cuts = [*self._cuts, cut]
        return cut

    def frozen_items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry that is frozen or in the database at this moment, in order. Any thread may read the iterator."""
        return _merged_all(self.db.items(b""), self._frozen)

    def make(self, cut: Cut) -> None:
        """Link the files of the cut into the cut's folder. Any thread may call this; blocks. Raises `HostError` if the
        store is closed, or if the disk fails."""
        with self._lock:
            if self._closed:
                raise HostError("the state back end was closed before its snapshot was written")
            if not cut.made and cut.folder is not None:
                cuts = self._cuts
                for earlier in cuts[: cuts.index(cut)]:
                    self._make(earlier, pause=_PAUSE_SECONDS)
                self._make(cut, pause=_PAUSE_SECONDS)

    def give_up(self, cut: Cut) -> None:
        """The files of the cut are not needed any more: remove them, if the cut is made."""
        cut.given_up = True
        with self._lock:
            folder, cut.folder = cut.folder, None
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _make_cuts(self) -> None:
        with self._lock:
            for cut in self._cuts:
                self._make(cut, pause=None)
        self._settle()

    def _make(self, cut: Cut, *, pause: float | None) -> None:
        """Make one cut. The caller has the lock, and has made all earlier cuts."""
        if cut.made:
            return
        self._write_layer(cut.layer, pause=pause)
        if cut.folder is not None:
            self.db.link_files(cut.folder)
        cut.made = True

    def _write_layers(self, cuts: list[Cut]) -> None:
        for cut in cuts:
            self._write_layer(cut.layer, pause=None)

    def _write_layer(self, layer: Layer, *, pause: float | None) -> None:
        if layer.written:
            return
        changes = layer.changes()
        while piece := list(islice(changes, _PIECE)):
            self.db.write(piece)
            if pause is not None:
                # A pause of zero would not help: this thread would have the interpreter back before another thread
                # wakes up.
                time.sleep(pause)
        layer.written = True

    def close(self) -> None:
        """Close the database and forget all changes. Waits for a cut that is being made."""
        with self._lock:
            self._closed = True
            self.db.close()
        self._singles, self._groups, self._frozen, self._cuts = {}, {}, (), []


def _merged_group(
    stored: Iterator[tuple[bytes, bytes]], prefix: bytes, start: bytes, changes: Singles
) -> Iterator[tuple[bytes, bytes]]:
    size = len(prefix)
    found = _beginning_with(stored, prefix)
    if not changes:
        return ((key[size:], value) for key, value in found)
    kept = ((key[size:], value) for key, value in found if key[size:] not in changes)
    added = sorted((suffix, value) for suffix, value in changes.items() if value is not None and suffix >= start)
    return merge(kept, added)


def _beginning_with(stored: Iterator[tuple[bytes, bytes]], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in stored:
        if not key.startswith(prefix):
            return
        yield key, value


def _merged_all(stored: Iterator[tuple[bytes, bytes]], layers: tuple[Layer, ...]) -> Iterator[tuple[bytes, bytes]]:
    changes: Singles = {}
    for layer in reversed(layers):
        changes.update(layer.changes())
    added = sorted((key, value) for key, value in changes.items() if value is not None)
    yield from merge(((key, value) for key, value in stored if key not in changes), added)
