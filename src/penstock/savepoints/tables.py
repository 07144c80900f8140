"""The bytes of a state file as tables, with column names for people.

    key_group      the key group of the row
    …              the key columns, with their own names and types
    map_key        of a map: its key
    value          the value, an element of a list (one row each, in order), the value of a map, the accumulator
    written_ms     of a state with a TTL: when the entry was written, in milliseconds since 1970
    timer          of timers: `event-time` or `processing-time`
    time_us        of timers: when they are due, in microseconds since 1970

Windows have `key_group`, the keys, `window_start` and one column per partial aggregate. Joins have `key_group`, the
columns of the records of one side, and `mark`: 1 if the record has matched. Running aggregates in memory have
`key_group`, the keys, one column per partial aggregate and, with a TTL, `written_ms`. Values and map keys of type
`object` are binary, pickled. If a key column has one of these names, the other column gets an underscore in front.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.state import StateSpec
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import Instant
from penstock.core.messages import StateFile
from penstock.runtime.task.operators.join_files import is_join_index
from penstock.runtime.task.operators.join_marks import MARK
from penstock.runtime.task.operators.join_snapshot import is_join, read_join
from penstock.runtime.task.operators.running_files import is_running_index
from penstock.runtime.task.operators.running_table import WRITTEN as WRITTEN_ROW
from penstock.runtime.task.operators.sorted_runs import KEY_HASH
from penstock.runtime.task.operators.table_state import ROWS, parts_of_runs
from penstock.runtime.task.operators.window_table import KEY_GROUP as WINDOW_KEY_GROUP
from penstock.runtime.task.operators.window_table import Header, is_window, read_file
from penstock.runtime.task.partitioning import key_groups
from penstock.savepoints.joined import JoinedRows
from penstock.savepoints.running import RunningRows
from penstock.settings import StateSettings
from penstock.state.backend import StateContext, StateReader
from penstock.state.format import (
    KEY_GROUP,
    MAGIC,
    MAP_KEY,
    TIMER_KIND,
    TIMER_TIME,
    TIMERS,
    VALUE,
    WRITTEN,
    CanonicalFile,
    TableEntry,
    state_schema,
    timer_schema,
)
from penstock.state.rocksdb.canonical import contents
from penstock.state.rocksdb.catalog import TIMERS_BY_KEY, StateEntry
from penstock.state.rocksdb.database import Database
from penstock.state.rocksdb.folder import LocalFolder
from penstock.state.rocksdb.native import NativeSnapshot, is_native
from penstock.state.rocksdb.table_bounds import most_entry_bytes
from penstock.state.rocksdb.tables import PREFIX_SIZE, EntryCodec, Row
from penstock.state.runs import RunSnapshot, is_runs

JOIN = "join"
"""The kind of the state of a join."""
WINDOWS = "windows"
LEAVING_WINDOWS = "leaving-windows"
"""The name of the state with the whole windows that had been put together from panes, and not been handed on."""
"""The kind, and the name, of the state of a window."""

RUNNING = "running"
"""The kind of the state of a running aggregate in memory."""
AGGREGATES = "aggregates"
"""The name of the state of a running aggregate."""
COLUMNAR = (WINDOWS, JOIN, RUNNING)
"""The kinds of state whose entries are rows, with or without a key."""

_SIDES = ("left", "right")
"""The names of the tables of both sides of a join."""

ALL_GROUPS = (0, 2**31 - 2)
_PIECE_ROWS = 200_000
"""How many rows of RocksDB are in one table, at most."""

_OURS = {
    KEY_GROUP: "key_group",
    MAP_KEY: "map_key",
    VALUE: "value",
    WRITTEN: "written_ms",
    TIMER_KIND: "timer",
    TIMER_TIME: "time_us",
    MARK: "mark",
    WRITTEN_ROW: "written_ms",
}


def column_names(columns: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The names of a table's columns for people. The columns in `keys` keep their names, which the user chose."""
    names: list[str] = []
    for column in columns:
        name = column if column in keys else _OURS.get(column, column)
        while column not in keys and name in keys:
            name = f"_{name}"
        names.append(name)
    return names


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """One table of a file."""

    name: str
    kind: str
    """A kind of keyed state, `timers`, `windows` or `join`."""
    keys: pa.Schema
    columns: pa.Schema
    """The columns of the table, with their names for people."""
    rows: int
    size_bytes: int
    spec: StateSpec | None = None
    """The declaration of the state; None for timers, windows and joins."""

    @property
    def type_text(self) -> str:
        """The declared type of the state; empty for timers and windows."""
        return "" if self.spec is None else str(self.spec)


class StateFileContent:
    """One file of keyed state, of a window or of a join, read into memory. Raises `CorruptFile` if the file cannot be
    read."""

    def __init__(self, data: bytes, *, what: str) -> None:
        self._canonical: CanonicalFile | None = None
        if is_window(data):
            try:
                self._window = _join_in(data) if is_join(data) else _window_in(data)
            except CorruptFile as error:
                raise CorruptFile(f"{what} is refused: {error.message}", hint=error.hint) from error
            self.tables: tuple[FoundTable, ...] = (self._found_window(len(data)),)
        else:
            self._canonical = CanonicalFile(data, what=what)
            self.tables = tuple(self._found(entry) for entry in self._canonical.header.tables)

    def row_tables(self, name: str, kind: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table] | None:
        """The rows of a table in a range of key groups; None if the file has no such table."""
        found = next((table for table in self.tables if (table.name, table.kind) == (name, kind)), None)
        return None if found is None else iter([self._rows(found, groups)])

    def _rows(self, table: FoundTable, groups: tuple[int, int]) -> pa.Table:
        if self._canonical is None:
            found = self._named_window()
            first, last = groups
            column: Any = found.column(column_names([KEY_GROUP], table.keys.names)[0])
            numbers = column.to_numpy()
            return found.filter(pa.array((numbers >= first) & (numbers <= last)))
        entry = self._entry(table)
        read = self._canonical.timer_table if entry.kind == TIMERS else self._canonical.table
        return read(entry, groups).rename_columns(table.columns.names)

    def _entry(self, table: FoundTable) -> TableEntry:
        assert self._canonical is not None
        return next(
            entry
            for entry, found in zip(self._canonical.header.tables, self.tables, strict=True)
            if (found.name, found.kind) == (table.name, table.kind)
        )

    def _found(self, entry: TableEntry) -> FoundTable:
        file = self._canonical
        assert file is not None
        keys = file.key_schema(entry)
        spec = None if entry.kind == TIMERS else file.spec_of(entry)
        # An empty range of key groups: only the columns are wanted, and no rows.
        read = file.timer_table if spec is None else file.table
        schema = read(entry, (-2, -1)).schema
        names = column_names(schema.names, keys.names)
        return FoundTable(
            name=TIMERS if spec is None else entry.name,
            kind=entry.kind,
            keys=keys,
            columns=pa.schema([f.with_name(name) for f, name in zip(schema, names, strict=True)]),
            rows=entry.rows,
            size_bytes=entry.length,
            spec=spec,
        )

    def _found_window(self, size: int) -> FoundTable:
        table = self._named_window()
        keys = [name for name in self._window.keys if name in table.schema.names]
        return FoundTable(
            name=self._window.name,
            kind=self._window.kind,
            keys=pa.schema([table.schema.field(name) for name in keys]),
            columns=table.schema,
            rows=table.num_rows,
            size_bytes=size,
        )

    def _named_window(self) -> pa.Table:
        """The table of a window or of a join, with the names for people and the key group in front."""
        return _named(self._window.table, self._window.keys)


def _named(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """A table whose last column is the key group, with the names for people and the key group in front."""
    last = table.num_columns - 1
    assert table.schema.names[last] == WINDOW_KEY_GROUP
    ordered = table.replace_schema_metadata(None).select([last, *range(last)])
    return ordered.rename_columns(column_names(ordered.schema.names, keys))


def _name_of(header: Header) -> str:
    """The name of the table of a window's file. Windows that show updates have several tables."""
    if header.leaving is not True:
        return WINDOWS
    return LEAVING_WINDOWS if header.part is msgspec.UNSET else f"{header.part}-windows"


class RunsContent:
    """The files of one subtask's windows, whose runs lie in files of their own. The runs are read one after another.
    Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> None:
        self._snapshot = RunSnapshot(index, files, what=what)
        self._reader = reader
        self._sections = [StateFileContent(section, what=what) for section in self._snapshot.sections]
        headers = [read_file(section)[1] for section in self._snapshot.sections if is_window(section)]
        self._parts = parts_of_runs(headers, len(self._snapshot.files), what=what)
        if not self._sections or any(table.kind != WINDOWS for section in self._sections for table in section.tables):
            raise CorruptFile(f"{what} does not say what its runs are", hint="restore from another snapshot")
        self._keys: tuple[str, ...] = read_file(self._snapshot.sections[0])[1].layout.keys

    @cached_property
    def tables(self) -> tuple[FoundTable, ...]:
        """The windows, with the rows of all runs; and the windows that had not been handed on. A key and a window may
        have several rows, which a restore merges."""
        found = [table for section in self._sections for table in section.tables]
        return tuple(self._with_runs(table) for table in found)

    def _with_runs(self, table: FoundTable) -> FoundTable:
        numbers = self._numbers(table.name)
        if not numbers:
            return table
        rows, columns = table.rows, table.columns
        for run in self._runs(numbers, ALL_GROUPS):
            rows, columns = rows + run.num_rows, run.schema
        size = table.size_bytes + sum(self._snapshot.files[number].size for number in numbers)
        keys = pa.schema([columns.field(name) for name in self._keys])
        return replace(table, rows=rows, columns=columns, keys=keys, size_bytes=size)

    def _numbers(self, name: str) -> list[int]:
        """The runs whose rows are in a table. Runs of no given part have the rows of the windows."""
        names = [WINDOWS if part in (None, ROWS) else f"{part}-windows" for part in self._parts]
        return [number for number, found in enumerate(names) if found == name]

    def row_tables(self, name: str, kind: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table] | None:
        """The rows of a table in a range of key groups, run by run; None if the files have no such table."""
        sections = [each.row_tables(name, kind, groups) for each in self._sections]
        if all(found is None for found in sections):
            return None
        return self._rows([found for found in sections if found is not None], name, groups)

    def _rows(self, sections: list[Iterator[pa.Table]], name: str, groups: tuple[int, int]) -> Iterator[pa.Table]:
        for found in sections:
            # A section without rows has no columns.
            yield from (table for table in found if table.num_rows)
        yield from self._runs(self._numbers(name), groups)

    def _runs(self, numbers_of_runs: Sequence[int], groups: tuple[int, int]) -> Iterator[pa.Table]:
        snapshot = self._snapshot
        for number in numbers_of_runs:
            file, entry, gone = snapshot.files[number], snapshot.index.runs[number], snapshot.gone[number]
            data = pa.py_buffer(self._reader.get(file))
            blocks = snapshot.blocks(number, data, block_rows=_PIECE_ROWS)
            if not blocks:
                continue
            table = pa.Table.from_batches(blocks)
            numbers = np.concatenate([key_groups(block, self._keys, snapshot.index.groups) for block in blocks])
            kept = (numbers >= groups[0]) & (numbers <= groups[1])
            kept[: entry.first] = False
            if gone is not None:
                kept &= ~gone
            plain = table.drop_columns([KEY_HASH])
            plain = plain.add_column(0, WINDOW_KEY_GROUP, pa.array(numbers)).filter(pa.array(kept))
            yield plain.rename_columns(column_names(plain.schema.names, self._keys))


class RunningContent:
    """The files of one subtask's running aggregates. Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> None:
        self._rows = RunningRows(index, files, reader, what=what)

    @property
    def tables(self) -> tuple[FoundTable, ...]:
        """The aggregates."""
        found = self._named(self._rows.table)
        keys = pa.schema([found.schema.field(name) for name in self._rows.keys])
        size = self._rows.size_bytes
        return (
            FoundTable(
                name=AGGREGATES, kind=RUNNING, keys=keys, columns=found.schema, rows=found.num_rows, size_bytes=size
            ),
        )

    def row_tables(self, name: str, kind: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table] | None:
        """The rows in a range of key groups; None if the files have no such table."""
        return map(self._named, self._rows.iterate(groups)) if (name, kind) == (AGGREGATES, RUNNING) else None

    def _named(self, rows: pa.Table) -> pa.Table:
        return rows.rename_columns(column_names(rows.schema.names, self._rows.keys))


class JoinedContent:
    """The files of one subtask's join, whose runs lie in files of their own. The runs are read one after another.
    Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> None:
        self._rows = JoinedRows(index, files, reader, what=what)
        self._parts = [StateFileContent(part, what=what) for part in self._rows.parts]

    @cached_property
    def tables(self) -> tuple[FoundTable, ...]:
        """The records of both sides, and the records whose results were being handed on."""
        found = {table.name: table for part in self._parts for table in part.tables}
        for side in self._rows.sides:
            name, keys = _SIDES[side], self._rows.keys[side]
            rows, size = 0, self._rows.size_bytes(side)
            schema = pa.schema([])
            for table in self._runs(side, ALL_GROUPS):
                rows, schema = rows + table.num_rows, table.schema
            if name in found:
                rows, size = rows + found[name].rows, size + found[name].size_bytes
            fields = pa.schema([schema.field(key) for key in keys])
            found[name] = FoundTable(name=name, kind=JOIN, keys=fields, columns=schema, rows=rows, size_bytes=size)
        return tuple(found.values())

    def row_tables(self, name: str, kind: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table] | None:
        """The rows of a table in a range of key groups, run by run; None if the files have no such table."""
        if kind != JOIN or all(name != table.name for table in self.tables):
            return None
        return self._of(name, groups)

    def _of(self, name: str, groups: tuple[int, int]) -> Iterator[pa.Table]:
        for side in self._rows.sides:
            if _SIDES[side] == name:
                yield from self._runs(side, groups)
        for part in self._parts:
            yield from (table for table in part.row_tables(name, JOIN, groups) or () if table.num_rows)

    def _runs(self, side: int, groups: tuple[int, int]) -> Iterator[pa.Table]:
        for table in self._rows.iterate(side, groups):
            yield _named(table, self._rows.keys[side])


class _Windowed(NamedTuple):
    """The table of a window or of a join, with the key groups in the last column."""

    table: pa.Table
    keys: tuple[str, ...]
    name: str
    kind: str


def _window_in(data: bytes) -> _Windowed:
    table, header = read_file(data)
    return _Windowed(table, header.layout.keys, _name_of(header), WINDOWS)


def _join_in(data: bytes) -> _Windowed:
    table, header = read_join(data)
    side = _SIDES[header.side]
    return _Windowed(table, header.keys, f"{side}-pending" if header.pending else side, JOIN)


class NativeContent:
    """The files of RocksDB that are the state of one subtask. Entries are read in order, and at most one piece of the
    entries is in memory. No entry expires meanwhile. Raises `CorruptFile` if the files cannot be read."""

    def __init__(self, index: bytes, files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> None:
        self._snapshot = NativeSnapshot(index, files, what=what)
        self._reader = reader
        self._what = what
        self._stored_bytes = sum(file.size for file in files[1:])
        self._entries = {(entry.name, entry.kind): entry for entry in self._snapshot.index.states}

    @cached_property
    def tables(self) -> tuple[FoundTable, ...]:
        """The tables that have rows. Entries are counted, and are not decoded."""
        counts: dict[bytes, list[int]] = {}
        with self._opened() as db:
            for key, value in self._bounded(db.items(b"")):
                count = counts.setdefault(key[2:PREFIX_SIZE], [0, 0])
                count[0] += 1
                count[1] += len(key) + len(value)
        numbered = [(entry.number, entry) for entry in self._entries.values()]
        return tuple(
            self._found(entry, *counts[prefix])
            for number, entry in (*numbered, (TIMERS_BY_KEY, None))
            if (prefix := number.to_bytes(2, "big")) in counts
        )

    def row_tables(self, name: str, kind: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table] | None:
        """The rows of a table in a range of key groups, piece by piece; None if the files have no such table."""
        if kind == TIMERS:
            return self._read(None, groups)
        entry = self._entries.get((name, kind))
        return None if entry is None else self._read(entry, groups)

    def _read(self, entry: StateEntry | None, groups: tuple[int, int]) -> Iterator[pa.Table]:
        number, codecs = TIMERS_BY_KEY, []
        name, kind = TIMERS, TIMERS
        if entry is not None:
            number, codecs = entry.number, [EntryCodec(entry, unpickles=False)]
            name, kind = entry.name, entry.kind
        own = self._snapshot.index.own_groups
        within = (max(groups[0], own[0]), min(groups[1], own[1]))
        with self._opened() as db:
            items = self._bounded(_items_of(db, number, within))
            for data in contents(self._context(), codecs, items, now=0, piece_rows=_PIECE_ROWS):
                yield from StateFileContent(data.to_pybytes(), what=self._what).row_tables(name, kind, groups) or ()

    def _bounded(self, items: Iterator[Row]) -> Iterator[Row]:
        """The same rows. Raises `CorruptFile` as soon as the rows have more bytes than honest table files can have."""
        most = most_entry_bytes(self._stored_bytes)
        found = 0
        for key, value in items:
            found += len(key) + len(value)
            if found > most:
                raise CorruptFile(
                    f"{self._what} has table files of {self._stored_bytes} bytes, and the entries in these files have "
                    f"at least {found} bytes; at most {most} bytes are read",
                    hint="do not use the snapshot unless a job of yours has written it; if so, start the job from the "
                    "snapshot, take a canonical savepoint, and read that savepoint",
                )
            yield key, value

    @contextmanager
    def _opened(self) -> Iterator[Database]:
        folder = LocalFolder(None)
        try:
            self._snapshot.download(folder.path / "db", self._reader)
            db = Database(folder.path / "db", StateSettings(backend="rocksdb"), read_only=True)
            try:
                self._snapshot.check_rows(db)
                yield db
            finally:
                db.close()
        finally:
            folder.remove()

    def _found(self, entry: StateEntry | None, rows: int, size_bytes: int) -> FoundTable:
        keys = self._snapshot.index.key_schema
        spec = None if entry is None else entry.spec()
        schema = timer_schema(keys) if spec is None else state_schema(spec, keys)
        names = column_names(schema.names, keys.names)
        return FoundTable(
            name=TIMERS if spec is None else spec.name,
            kind=TIMERS if spec is None else spec.kind.value,
            keys=keys,
            columns=pa.schema([f.with_name(name) for f, name in zip(schema, names, strict=True)]),
            rows=rows,
            size_bytes=size_bytes,
            spec=spec,
        )

    def _context(self) -> StateContext:
        index = self._snapshot.index
        keys = index.key_schema
        return StateContext(
            operator=index.operator,
            name=index.operator,
            subtask=0,
            keys=keys,
            groups=index.groups,
            own_groups=index.own_groups,
            groups_of=lambda batch: key_groups(batch, keys.names, index.groups),
            specs=(),
            now=lambda: Instant(0),
            settings=StateSettings(backend="rocksdb"),
            unpickles=False,
        )


def _items_of(db: Database, number: int, groups: tuple[int, int]) -> Iterator[Row]:
    """The entries of a state in a range of key groups. The entries of other states are skipped."""
    group, last = groups
    while group <= last:
        prefix = group.to_bytes(2, "big") + number.to_bytes(2, "big")
        for key, value in db.items(prefix):
            if not key.startswith(prefix):
                group = max(group + 1, int.from_bytes(key[:2], "big"))
                break
            yield key, value
        else:
            return


def file_sets(files: tuple[StateFile, ...], reader: StateReader) -> list[tuple[StateFile, ...]]:
    """The files of one subtask, in sets that can be read alone: each file by itself; or all files together, if they are
    in a back end's own format."""
    if len(files) > 1 and _is_ours(next(reader.pieces(files[0]), b"")):
        return [(file,) for file in files]
    return [files] * bool(files)


Content = StateFileContent | RunsContent | RunningContent | JoinedContent | NativeContent


def read_files(files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> Content:
    """The content of one of the `file_sets`. Blocks. Raises `CorruptFile` or `StorageError`; and `UsageError` for files
    in a back end's own format that is not known here."""
    pieces = reader.pieces(files[0])
    # The first bytes tell the format. Of a file in no known format no more than a piece is kept, however large it is.
    start = next(pieces, b"")
    if _is_ours(start):
        return StateFileContent(_joined(start, pieces), what=what)
    if is_runs(start):
        index = _joined(start, pieces)
        if is_join_index(index, files):
            return JoinedContent(index, files, reader, what=what)
        kind = RunningContent if is_running_index(index, files) else RunsContent
        return kind(index, files, reader, what=what)
    if is_native(start):
        return NativeContent(_joined(start, pieces), files, reader, what=what)
    for _ in pieces:
        # A file that was changed is corrupt. Only the checksum tells this from a file in another format.
        pass
    raise UsageError(
        f"{what} was saved by a state back end in its own format, which cannot be read as a table",
        hint="start the job from this snapshot, take a canonical savepoint, and read that savepoint",
    )


def window_files(files: tuple[StateFile, ...], reader: StateReader) -> Iterator[bytes]:
    """The files of a window's state that say what its rows are; in the place of an index of runs its sections."""
    for number, file in enumerate(files):
        data = reader.get(file)
        if number == 0 and is_runs(data):
            yield from RunSnapshot(data, files, what="the state of a window").sections
            return
        yield data


def _joined(start: bytes, rest: Iterator[bytes]) -> bytes:
    # Pieces in a list would be in memory a second time when they are joined.
    content = io.BytesIO()
    content.write(start)
    for piece in rest:
        content.write(piece)
    return content.getvalue()


def _is_ours(data: bytes) -> bool:
    return data[:4] == MAGIC or is_window(data)
