"""Keyed state in RocksDB: the back end itself.

    tables, timers      the keys in the database, and how entries are read             tables.py, timers.py
    store               changes in memory, over the database                           store.py
    database            RocksDB                                                        database.py

A snapshot freezes the changes in memory, in a time that does not grow with their number. The work of the snapshot
writes the changes to the database, links the database's files into a folder, and uploads the files that no completed
checkpoint has. The work of a canonical snapshot reads the frozen changes and the database through an iterator instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.state.backend import (
    Key,
    SnapshotFiles,
    StateContext,
    StateReader,
    StateWriter,
    TabledBackend,
)
from penstock.state.rocksdb import canonical
from penstock.state.rocksdb.catalog import Catalog
from penstock.state.rocksdb.database import Database
from penstock.state.rocksdb.folder import LocalFolder
from penstock.state.rocksdb.native import Index, upload
from penstock.state.rocksdb.ordered import KeyCodec
from penstock.state.rocksdb.restore import Restored
from penstock.state.rocksdb.store import Cut, LayeredStore
from penstock.state.rocksdb.sweep import Sweep
from penstock.state.rocksdb.tables import (
    NO_KEY_BYTES,
    Counter,
    EntryCodec,
    Row,
    Scope,
    Table,
    make_table,
)
from penstock.state.rocksdb.timers import RocksTimers, TimerLimits

_SHARE_IN_MEMORY = 4
"""Changes in memory may take this part of the memory that RocksDB's write buffers may take: a fourth."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much of the state is in memory at once."""

    changes_bytes: int = 16 * 1024 * 1024
    """The size of the changes that are not yet written to the database. While a snapshot waits for its files, the
    changes may grow beyond this size."""
    piece_rows: int = 200_000
    """About how many rows a canonical file has."""
    timers: TimerLimits = field(default_factory=TimerLimits)


class RocksBackend(TabledBackend):
    """Keyed state on the disk of the slot."""

    def __init__(self, context: StateContext, limits: Limits | None = None) -> None:
        self._context = context
        self._limits = limits or Limits()
        self._folder = LocalFolder(context.settings.local_directory)
        self._keys = KeyCodec(context.keys)
        self._encode_key = self._keys.encode
        self._group_bytes = [group.to_bytes(2, "big") for group in range(context.groups)]
        self._scope = Scope()
        self._counter = Counter()
        self._cuts: dict[CheckpointId, Cut] = {}
        self._cuts_made = 0
        self._reusable: dict[str, StateFile] = {}
        self._uploaded: dict[CheckpointId, dict[str, StateFile]] = {}
        self._tables: dict[str, Table] = {}
        self._timers: RocksTimers | None = None
        self._catalog = Catalog()
        self._catalog.declare(context.specs)
        try:
            self._use(Database(self._folder.path / "db", context.settings))
        except BaseException:
            self._folder.remove()
            raise

    def _use(self, db: Database) -> None:
        memory = min(self._limits.changes_bytes, self._context.settings.write_buffer_bytes // _SHARE_IN_MEMORY)
        self._store = LayeredStore(db, memory)
        unpickles = self._context.unpickles
        self._codecs = {entry.name: EntryCodec(entry, unpickles=unpickles) for entry in self._catalog.entries}
        for name, codec in self._codecs.items():
            if (table := self._tables.get(name)) is not None:
                table.bind(codec, self._store)
            else:
                self._tables[name] = make_table(codec, self._store, self._scope, self._counter)
        own = self._context.own_groups
        if self._timers is None:
            self._timers = self.timers = RocksTimers(
                self._keys, own, self._store, self._scope, limits=self._limits.timers
            )
        else:
            self._timers.bind(self._store)
        self._sweep = Sweep(self._store, self._codecs.values(), self._keys, own)

    # --- the current key -----------------------------------------------------------------

    def set_key(self, key: Key, group: int) -> None:
        """`key` is the current key from now on: tables and timers are the key's."""
        scope = self._scope
        scope.key = self._encode_key(key)
        scope.group = self._group_bytes[group]

    def unset_key(self) -> None:
        """There is no current key."""
        self._scope.key = NO_KEY_BYTES

    def key_group(self) -> int | None:
        """The key group of the current key; None if there is no current key."""
        scope = self._scope
        return None if scope.key is NO_KEY_BYTES else int.from_bytes(scope.group, "big")

    # --- snapshots -----------------------------------------------------------------------

    def restore(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> None:
        """Take in the state that old subtasks saved. Only the entries of this subtask's key groups are taken."""
        restored = Restored(self._context, self._folder.path, self._folder.path / "restored")
        db = restored.open(snapshots, reader)
        self._store.close()
        shutil.rmtree(self._folder.path / "db", ignore_errors=True)
        self._catalog = restored.catalog
        self._counter.next = restored.counter.next
        self._reusable = restored.reusable
        self._use(db)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        """Freeze the changes in memory, and return the work that uploads the database with the frozen changes, or
        writes both in the canonical format."""
        return self._canonical(checkpoint) if options.canonical else self._native(checkpoint, options)

    def _canonical(self, checkpoint: CheckpointId) -> SnapshotFiles:
        self._cuts[checkpoint] = cut = self._store.freeze(None)
        items: Iterator[Row] | None = self._store.frozen_items()
        codecs = tuple(self._codecs.values())
        context, now, piece_rows = self._context, self._context.now(), self._limits.piece_rows

        def write(writer: StateWriter) -> tuple[StateFile, ...]:
            nonlocal items
            frozen, items = items, None
            if cut.given_up or frozen is None:
                return ()
            return canonical.write(context, codecs, frozen, writer, now=now, piece_rows=piece_rows)

        return write

    def _native(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotFiles:
        self._cuts_made += 1
        folder = self._folder.path / f"cut-{self._cuts_made}"
        self._cuts[checkpoint] = cut = self._store.freeze(folder)
        shares_nothing = options.savepoint
        known = {} if options.full or shares_nothing else self._reusable
        index = self._index()
        context, token, store, uploaded_by = self._context, self._folder.name, self._store, self._uploaded

        def write(writer: StateWriter) -> tuple[StateFile, ...]:
            if cut.given_up:
                return ()
            store.make(cut)
            try:
                files, uploaded = upload(
                    folder,
                    index,
                    writer,
                    known=known,
                    # The key is unique: a subtask of another attempt has another folder, and a later snapshot of this
                    # subtask has another checkpoint id.
                    key_of=lambda name: f"{context.operator}-{context.subtask}-{token}-{checkpoint}-{name}",
                )
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if not shares_nothing:
                uploaded_by[checkpoint] = uploaded
            return files

        return write

    def _index(self) -> Index:
        context = self._context
        return Index(
            operator=context.operator,
            keys=context.keys.serialize().to_pybytes(),
            groups=context.groups,
            own_groups=context.own_groups,
            states=self._catalog.entries,
            next_element=self._counter.next,
        )

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: later snapshots may refer to its table files. The snapshots of earlier
        checkpoints are given up."""
        if (uploaded := self._uploaded.get(checkpoint)) is not None:
            self._reusable = uploaded
        # A checkpoint that was aborted while its snapshot was being written has no cut any more, but may have uploaded
        # files since then.
        for earlier in [known for known in (*self._cuts, *self._uploaded) if known <= checkpoint]:
            self._forget(earlier)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is aborted: its snapshot is given up."""
        self._forget(checkpoint)

    def _forget(self, checkpoint: CheckpointId) -> None:
        self._uploaded.pop(checkpoint, None)
        if (cut := self._cuts.pop(checkpoint, None)) is not None:
            self._store.give_up(cut)

    # --- upkeep --------------------------------------------------------------------------

    def maintain(self, budget: int) -> bool:
        """Remove expired entries."""
        return self._sweep.run(self._context.now(), budget)

    def is_compacting(self) -> bool:
        """Whether the database is rewriting its files."""
        return self._store.db.is_compacting()

    def close(self) -> None:
        """Close the database, and remove the local folder."""
        self._store.close()
        self._folder.remove()
