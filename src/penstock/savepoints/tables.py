"""The bytes of a state file as tables, with column names for people.

    key_group      the key group of the row
    …              the key columns, with their own names and types
    map_key        of a map: its key
    value          the value, an element of a list (one row each, in order), the value of a map, the accumulator
    written_ms     of a state with a TTL: when the entry was written, in milliseconds since 1970
    timer          of timers: `event-time` or `processing-time`
    time_us        of timers: when they are due, in microseconds since 1970

Windows have `key_group`, the keys, `window_start` and one column per partial aggregate. Values and map keys of type
`object` are binary, pickled. If a key column has one of these names, the other column gets an underscore in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.api.state import StateSpec
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import StateFile
from penstock.ports import Frame
from penstock.runtime.task.operators.window_table import KEY_GROUP as WINDOW_KEY_GROUP
from penstock.runtime.task.operators.window_table import read_file
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings
from penstock.state.backend import StateContext, StateReader
from penstock.state.backends import make_backend
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
)
from penstock.state.rocksdb.native import NativeSnapshot, is_native

WINDOWS = "windows"
"""The kind, and the name, of the state of a window."""
STREAM_START = b"\xff\xff\xff\xff"
"""The first bytes of an Arrow stream. The state of a window is saved as an Arrow stream."""

ALL_GROUPS = (0, 2**31 - 2)

_OURS = {
    KEY_GROUP: "key_group",
    MAP_KEY: "map_key",
    VALUE: "value",
    WRITTEN: "written_ms",
    TIMER_KIND: "timer",
    TIMER_TIME: "time_us",
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
    """A kind of keyed state, `timers` or `windows`."""
    keys: pa.Schema
    columns: pa.Schema
    """The columns of the table, with their names for people."""
    rows: int
    size_bytes: int
    spec: StateSpec | None = None
    """The declaration of the state; None for timers and windows."""

    @property
    def type_text(self) -> str:
        """The declared type of the state; empty for timers and windows."""
        return "" if self.spec is None else str(self.spec)


class StateFileContent:
    """One file of keyed state or of a window, read into memory. Raises `CorruptFile` if the file cannot be read."""

    def __init__(self, data: bytes, *, what: str) -> None:
        self._canonical: CanonicalFile | None = None
        if data[:4] == STREAM_START:
            try:
                self._window, self._window_header = read_file(data)
            except CorruptFile as error:
                raise CorruptFile(f"{what} is refused: {error.message}", hint=error.hint) from error
            self.tables: tuple[FoundTable, ...] = (self._found_window(len(data)),)
        else:
            self._canonical = CanonicalFile(data, what=what)
            self.tables = tuple(self._found(entry) for entry in self._canonical.header.tables)

    def rows(self, table: FoundTable, groups: tuple[int, int] = ALL_GROUPS) -> pa.Table:
        """The rows of a table in a range of key groups."""
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
        keys = [name for name in self._window_header.layout.keys if name in table.schema.names]
        return FoundTable(
            name=WINDOWS,
            kind=WINDOWS,
            keys=pa.schema([table.schema.field(name) for name in keys]),
            columns=table.schema,
            rows=table.num_rows,
            size_bytes=size,
        )

    def _named_window(self) -> pa.Table:
        """The window's table with the names for people and the key group in front."""
        table, keys = self._window.replace_schema_metadata(None), self._window_header.layout.keys
        last = table.num_columns - 1
        assert table.schema.names[last] == WINDOW_KEY_GROUP
        ordered = table.select([last, *range(last)])
        return ordered.rename_columns(column_names(ordered.schema.names, keys))


class SeveralFiles:
    """Several files that together are the state of one subtask."""

    def __init__(self, contents: Sequence[StateFileContent]) -> None:
        self._contents = contents
        found: dict[tuple[str, str], FoundTable] = {}
        for content in contents:
            for table in content.tables:
                known = found.get((table.name, table.kind))
                more = (0, 0) if known is None else (known.rows, known.size_bytes)
                found[table.name, table.kind] = replace(
                    table, rows=table.rows + more[0], size_bytes=table.size_bytes + more[1]
                )
        self.tables: tuple[FoundTable, ...] = tuple(found.values())

    def rows(self, table: FoundTable, groups: tuple[int, int] = ALL_GROUPS) -> pa.Table:
        """The rows of a table in a range of key groups."""
        return pa.concat_tables(
            content.rows(found, groups)
            for content in self._contents
            for found in content.tables
            if (found.name, found.kind) == (table.name, table.kind)
        )


def file_sets(files: tuple[StateFile, ...], reader: StateReader) -> list[tuple[StateFile, ...]]:
    """The files of one subtask, in sets that can be read alone: each file by itself; or all files together, if they are
    in a back end's own format."""
    return [(file,) for file in files] if files and _is_ours(reader.get(files[0])) else [files] * bool(files)


def read_files(files: tuple[StateFile, ...], reader: StateReader, *, what: str) -> StateFileContent | SeveralFiles:
    """The content of one of the `file_sets`. Blocks. Raises `CorruptFile` or `StorageError`; and `UsageError` for files
    in a back end's own format that is not known here."""
    data = reader.get(files[0])
    if _is_ours(data):
        return StateFileContent(data, what=what)
    if is_native(data):
        return SeveralFiles([StateFileContent(content, what=what) for content in _canonical(files, reader, what)])
    raise UsageError(
        f"{what} was saved by a state back end in its own format, which cannot be read as a table",
        hint="start the job from this snapshot, take a canonical savepoint, and read that savepoint",
    )


def _is_ours(data: bytes) -> bool:
    return data[:4] in (MAGIC, STREAM_START)


class _Kept:
    """A writer that keeps the files of a back end in memory, because they are read at once."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def put(self, data: Frame) -> StateFile:
        self.contents.append(bytes(memoryview(data)))
        return StateFile(path=None, size=len(self.contents[-1]), checksum=0)

    def put_shared(self, data: Frame, key: str) -> StateFile:  # noqa: ARG002  # nothing is shared
        return self.put(data)


def _canonical(files: tuple[StateFile, ...], reader: StateReader, what: str) -> list[bytes]:
    """Files of RocksDB, converted to the canonical format: they are restored into a database, which writes a canonical
    snapshot. No entry expires meanwhile."""
    index = NativeSnapshot(reader.get(files[0]), files, what=what).index
    keys = index.key_schema
    backend = make_backend(
        StateContext(
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
    )
    kept = _Kept()
    try:
        backend.restore([files], reader)
        backend.snapshot(CheckpointId(1), CheckpointOptions(canonical=True))(kept)
    finally:
        backend.close()
    return kept.contents
