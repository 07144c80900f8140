"""Changes in memory over a database: what is written often is written to it seldom, and a snapshot freezes at once.

Changes go into the *live* layer, a dict. When it is full, its oldest entries are written to the database, a few at a
time. A snapshot freezes the live layer and starts another one; from then on nothing that comes later may get into the
database before the snapshot has its files:

    live            changes since the last snapshot
    frozen, …       changes up to a snapshot, newest first; they wait to be written
    the database    everything before

A *cut* writes the frozen layers up to its own and links the files of the database into a folder. The snapshot's work
makes it, off the loop. The loop makes it itself if the live layer has grown far beyond its size meanwhile. Cuts are
made in the order of their snapshots, one at a time.

Most entries have a key of their own. Those that are also read in groups (the entries of a map, the elements of a list,
timers) are kept in memory by the prefix that they have in common, so that a group is found without looking at others.
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
"""What an entry takes in memory, beside its value."""
_SPILL_BYTES = 256 * 1024
"""So much leaves the live layer at a time."""
_FULLEST = 4
"""How many times its size the live layer may grow to, while a cut is to be made."""
_PIECE = 2_000
"""Changes of one write off the loop; in between others get hold of the interpreter."""
_PAUSE_SECONDS = 0.0003

Singles = dict[bytes, bytes | None]
Groups = dict[bytes, Singles]


class Layer:
    """Changes that were frozen. Nobody changes them."""

    __slots__ = ("groups", "singles", "written")

    def __init__(self, singles: Singles, groups: Groups) -> None:
        self.singles = singles
        self.groups = groups
        self.written = not singles and not groups
        """Whether the database has all of it."""

    def changes(self) -> Iterator[Change]:
        """Every key that was changed, once, in no order."""
        yield from self.singles.items()
        for prefix, entries in self.groups.items():
            for suffix, value in entries.items():
                yield prefix + suffix, value


class Cut:
    """One snapshot's claim to the files of the database, as they are with all layers up to its own written."""

    def __init__(self, layer: Layer, folder: Path | None) -> None:
        self.layer = layer
        self.folder = folder
        """Where the files are linked to; None if the snapshot needs none."""
        self.made = False
        self.given_up = False


class LayeredStore:
    """The entries of one back end. To be used on the loop, but for what says otherwise."""

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
        """The value of a key; None if there is none."""
        found = self._singles.get(key, MISSING)
        if found is not MISSING:
            return found  # type: ignore[no-any-return]
        for layer in self._frozen:
            found = layer.singles.get(key, MISSING)
            if found is not MISSING:
                return found  # type: ignore[no-any-return]
        return self.db.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a value; None removes it."""
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
        """The value of one entry of a group."""
        entries = self._groups.get(prefix)
        if entries is not None and (found := entries.get(suffix, MISSING)) is not MISSING:
            return found  # type: ignore[no-any-return]
        for layer in self._frozen:
            entries = layer.groups.get(prefix)
            if entries is not None and (found := entries.get(suffix, MISSING)) is not MISSING:
                return found  # type: ignore[no-any-return]
        return self.db.get(prefix + suffix)

    def put_in(self, prefix: bytes, suffix: bytes, value: bytes | None) -> None:
        """Set one entry of a group; None removes it."""
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
        """The entries of a group from `start` on, as suffix and value, in order, as they are now."""
        return _merged_group(self.db.items(prefix + start), prefix, start, self._changes_of(prefix))

    def last(self, prefix: bytes) -> bytes | None:
        """The last suffix of a group, whose prefix does not end in FF; None if it has no entries."""
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
        """The live layer is full: write some of it to the database, if that is possible now."""
        if self._wait_for_files():
            if self._weight < _FULLEST * self._memory_bytes:
                return
            self._make_cuts()
        self.write_frozen()
        self._write_oldest(self._memory_bytes - min(_SPILL_BYTES, self._memory_bytes // 2))

    def write_all(self) -> bool:
        """Write all changes to the database, unless a snapshot must have its files first; whether it was done."""
        if self._wait_for_files():
            return False
        self.write_frozen()
        self._write_oldest(0)
        return True

    def write_frozen(self) -> None:
        """Write what snapshots that need no files have frozen. On the loop, and only while none waits for files."""
        if self._frozen:
            with self._lock:
                self._write_layers(self._cuts)
            self._settle()

    def _wait_for_files(self) -> bool:
        self._settle()
        return any(cut.folder is not None for cut in self._cuts)

    def _settle(self) -> None:
        """Forget what was written."""
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
        """Everything up to now belongs to the cut. If it is to have files, nothing that comes later is in them."""
        self._settle()
        cut = Cut(Layer(self._singles, self._groups), folder)
        if self._singles or self._groups:
            self._frozen = (cut.layer, *self._frozen)
            self._singles, self._groups, self._weight = {}, {}, 0
        with self._lock:
            self._cuts = [*self._cuts, cut]
        return cut

    def frozen_items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry that is frozen or in the database now, in order. May be read by any thread."""
        return _merged_all(self.db.items(b""), self._frozen)

    def make(self, cut: Cut) -> None:
        """Link the files of the cut into its folder. By any thread; blocks. Raises `HostError` when the store is
        closed, or the disk fails."""
        with self._lock:
            if self._closed:
                raise HostError("the state was closed before its snapshot was written")
            if not cut.made and cut.folder is not None:
                cuts = self._cuts
                for earlier in cuts[: cuts.index(cut)]:
                    self._make(earlier, pause=_PAUSE_SECONDS)
                self._make(cut, pause=_PAUSE_SECONDS)

    def give_up(self, cut: Cut) -> None:
        """Nobody needs the files of the cut any more."""
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
        """To be called with the lock, in the order of cuts."""
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
                # A thread that lets go of the interpreter for no time at all gets it back before another one wakes up.
                time.sleep(pause)
        layer.written = True

    def close(self) -> None:
        """Let go of everything; waits for a cut that is being made."""
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
