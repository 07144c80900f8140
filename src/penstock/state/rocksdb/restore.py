"""How the database of a subtask is restored from the snapshots of old subtasks.

If at least half of the key groups of a snapshot in RocksDB's own format belong to the subtask, the database of that
snapshot becomes the database of the subtask. The rows of other subtasks are removed, and the next checkpoint may refer
to the table files. From all other snapshots, in the own format or canonical, the rows of the subtask's key groups are
read and added to the database.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.core.messages import StateFile
from penstock.state.backend import StateContext, StateReader
from penstock.state.format import CanonicalFile, check_keys
from penstock.state.restore_bounds import check_apart, check_named_once
from penstock.state.rocksdb.canonical import Loader, load
from penstock.state.rocksdb.catalog import TIMERS_BY_KEY, TIMERS_BY_TIME, Catalog, StateEntry
from penstock.state.rocksdb.database import Database
from penstock.state.rocksdb.native import NativeSnapshot, is_native
from penstock.state.rocksdb.tables import Counter, Row

_END_OF_GROUPS = b"\xff\xff\xff"


class Restored:
    """A database with the state that old subtasks saved."""

    def __init__(self, context: StateContext, folder: Path, database: Path) -> None:
        self._context = context
        self._folder = folder
        self._database = database
        self.catalog = Catalog()
        self.counter = Counter()
        self.reusable: dict[str, StateFile] = {}
        """The table files that the next checkpoint may refer to, by name."""

    def open(self, snapshots: Sequence[Sequence[StateFile]], reader: StateReader) -> Database:
        """Read the snapshots into a database. Returns the database."""
        natives: list[NativeSnapshot] = []
        canonical: list[StateFile] = []
        for files in snapshots:
            if files:
                first = reader.get(files[0])
                if is_native(first):
                    natives.append(NativeSnapshot(first, files, what=self._described(files[0])))
                    check_keys(natives[-1].index.key_schema, self._context)
                else:
                    canonical += files
        what = f"the state of {self._context.name!r}"
        check_named_once(canonical, what=what)
        owned = [native.index.own_groups for native in natives]
        check_apart([(first, last + 1) for first, last in owned], what=f"the key groups of the snapshots of {what}")
        base = max(natives, key=self._owned_groups, default=None)
        if base is not None and 2 * self._owned_groups(base) < _size(base.index.own_groups):
            base = None
        db = self._open_base(base, reader)
        try:
            loader = Loader(db, self._folder)
            for number, snapshot in enumerate(natives):
                if snapshot is not base:
                    self._take_in(snapshot, self._folder / f"restored-{number}", loader, reader)
            for file in canonical:
                read = CanonicalFile(reader.get(file), what=self._described(file))
                load(read, self._context, self.catalog, loader, self.counter)
            loader.finish()
            self.catalog.declare(self._context.specs)
        except BaseException:
            db.close()
            raise
        return db

    def _owned_groups(self, snapshot: NativeSnapshot) -> int:
        return _size(_common(snapshot.index.own_groups, self._context.own_groups))

    def _open_base(self, base: NativeSnapshot | None, reader: StateReader) -> Database:
        if base is None:
            return Database(self._database, self._context.settings)
        base.download(self._database, reader)
        self.catalog.adopt(base.index.states)
        self._describe(base)
        self.reusable = {name: file for name, file in base.tables.items() if file.shared_key is not None}
        db = Database(self._database, self._context.settings)
        try:
            base.check_rows(db)
        except BaseException:
            db.close()
            raise
        first, last = self._context.own_groups
        if base.index.own_groups[0] < first:
            db.remove_range(b"", first.to_bytes(2, "big"))
        if base.index.own_groups[1] > last:
            db.remove_range((last + 1).to_bytes(2, "big"), _END_OF_GROUPS)
        for entry in base.index.states:
            if entry.name in self._context.dropped:
                for group in range(first, last + 1):
                    start = (group << 16) + entry.number
                    db.remove_range(start.to_bytes(4, "big"), (start + 1).to_bytes(4, "big"))
                self.catalog.drop(entry.name)
        return db

    def _describe(self, snapshot: NativeSnapshot) -> None:
        found = [(entry.spec(), entry) for entry in self._wanted(snapshot)]
        self.catalog.take_in(found, self._context, now=self._context.now())
        self.counter.next = max(self.counter.next, snapshot.index.next_element)

    def _take_in(self, snapshot: NativeSnapshot, folder: Path, loader: Loader, reader: StateReader) -> None:
        self._describe(snapshot)
        snapshot.download(folder, reader)
        db = Database(folder, self._context.settings, read_only=True)
        try:
            snapshot.check_rows(db)
            loader.add(self._rows(db, snapshot))
        finally:
            db.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _rows(self, db: Database, snapshot: NativeSnapshot) -> Iterator[Row]:
        numbers = {entry.number: self.catalog.number_of(entry.name) for entry in self._wanted(snapshot)}
        numbers |= {number: number for number in (TIMERS_BY_TIME, TIMERS_BY_KEY)}
        renumbered = {old.to_bytes(2, "big"): new.to_bytes(2, "big") for old, new in numbers.items()}
        first, last = _common(snapshot.index.own_groups, self._context.own_groups)
        end = (last + 1).to_bytes(3, "big")[1:] if last < 0xFFFF else _END_OF_GROUPS
        for key, value in db.items(first.to_bytes(2, "big")):
            if key >= end:
                return
            if (number := renumbered.get(key[2:4])) is not None:
                yield key[:2] + number + key[4:], value

    def _wanted(self, snapshot: NativeSnapshot) -> list[StateEntry]:
        return [entry for entry in snapshot.index.states if entry.name not in self._context.dropped]

    def _described(self, file: StateFile) -> str:
        where = "inside the metadata" if file.path is None else f"in {file.path}"
        return f"the state of {self._context.name!r} {where}"


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


def _size(groups: tuple[int, int]) -> int:
    return max(0, groups[1] - groups[0] + 1)
