"""The canonical format of keyed state, which every back end can write and restore.

An operator of a subtask has one file; or several files, each complete in itself, if the state is larger than memory:

    4 bytes   PKST
    2 bytes   version of this format
    4 bytes   number of bytes of the header
    …         the header: `Header` as JSON
    …         tables, each an Arrow IPC file, at the places that the header names, counted from the end of the header

Numbers are unsigned, most significant byte first. There is one table per state, and one table for the timers if there
are timers. The rows of a table are ordered by key group. The header names the key groups of each record batch, so that
a restore decodes only the batches that it needs. The columns, by position:

    __key_group     int32
    …               the key columns, with their own names and types
    __map_key       of a map only: its key
    __value         the value, the element of a list (one row each, in order), the value of a map, the accumulator
    __written_ms    of a state with a TTL only: when the entry was written, in milliseconds since 1970

and of timers `__key_group`, the key columns, `__kind` ("event-time" or "processing-time") and `__time_us`. Values and
map keys that are declared as `object` are binary, pickled. The checksum is not in the file but in the file's handle.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.arrow_bounds import check_file, check_size, check_types
from penstock.api.state import StateKind, StateSpec, Ttl
from penstock.core.errors import CorruptFile, UsageError
from penstock.sql.python_values import to_python
from penstock.state.backend import GroupsOf, Key, StateContext, TimerKind, ttl_expired
from penstock.state.keys import key_columns, key_values, keys_of
from penstock.state.restore_bounds import check_apart
from penstock.state.values import pickled, unpickled

MAGIC = b"PKST"
VERSION = 1

KEY_GROUP = "__key_group"
MAP_KEY = "__map_key"
VALUE = "__value"
WRITTEN = "__written_ms"
TIMER_KIND = "__kind"
TIMER_TIME = "__time_us"

TIMERS = "timers"
"""The kind of the table of timers."""

PIECE_ROWS = 2_048
"""How many rows are turned into columns at a time. Between two pieces other threads may use the interpreter."""
BATCH_ROWS = 65_536
"""Rows of a record batch in the file."""

_PREFIX = struct.Struct(">4sHI")
_ALIGNMENT = 64
_PAUSE_SECONDS = 0.0003
_ARROW_ERRORS = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError)
"""The errors of Arrow for bytes that are not an Arrow file."""
_VALUE_ERRORS = (pa.ArrowException, ValueError, OverflowError)
"""The errors for values of a sound table that have no equal in Python."""
_HINT = "copy the file back from a backup, or restore from another checkpoint or savepoint"


class TableEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the header says about one table. New fields: at the end, with a default."""

    name: str
    """The name of the state; empty for timers."""
    kind: str
    """A `StateKind`, or `timers`."""
    offset: int
    length: int
    rows: int
    batches: tuple[tuple[int, int], ...]
    """First and last key group of each record batch."""
    object_value: bool = False
    object_key: bool = False
    ttl_ms: int | None = None
    ttl_reads: bool = False


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says about itself. New fields: at the end, with a default."""

    operator: str
    key_columns: tuple[str, ...]
    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]
    """First and last key group of the subtask that wrote the file."""
    tables: tuple[TableEntry, ...]


Row = tuple[Key, Any, Any]
"""Key, map key (None if the state is no map) and entry, as tables hold the entry."""

TimerRow = tuple[Key, TimerKind, int]


# --- writing ---------------------------------------------------------------------------------------------------------


def encode(
    context: StateContext, states: Iterable[tuple[StateSpec, Iterator[Row]]], timers: Iterator[TimerRow], *, now: int
) -> pa.Buffer | None:
    """The content of a file with these states; None if there is nothing to write. Entries that have expired at `now`
    are left out. The function works in pieces and reads nothing but its arguments, so that it can run off the loop."""
    sections: list[tuple[TableEntry, pa.Buffer]] = []
    offset = 0
    for spec, rows in states:
        table = _state_table(context, spec, rows, now)
        if table.num_rows:
            entry, content = _section(table, offset)
            sections.append((_described(entry, spec), content))
            offset += _padded(content.size)
    timer_table = _timer_table(context, timers)
    if timer_table.num_rows:
        sections.append(_section(timer_table, offset))
    owner = FileOwner(
        operator=context.operator, keys=context.keys, groups=context.groups, own_groups=context.own_groups
    )
    return _file(owner, sections)


@dataclass(frozen=True, kw_only=True)
class FileOwner:
    """The operator and the key groups whose state a file holds."""

    operator: str
    keys: pa.Schema
    """The key columns."""
    groups: int
    """Key groups of the job."""
    own_groups: tuple[int, int]


def encode_tables(owner: FileOwner, tables: Iterable[tuple[StateSpec | None, pa.Table]]) -> pa.Buffer | None:
    """The content of a file with these tables; None if there are no rows. Each table has the columns of its state
    (`state_schema`); a table without a `StateSpec` has the columns of timers. Key groups are not computed again. The
    rows are sorted by key group."""
    sections: list[tuple[TableEntry, pa.Buffer]] = []
    offset = 0
    for spec, table in tables:
        if table.num_rows:
            entry, content = _section(_by_group(table), offset)
            sections.append((entry if spec is None else _described(entry, spec), content))
            offset += _padded(content.size)
    return _file(owner, sections)


def _file(owner: FileOwner, sections: Sequence[tuple[TableEntry, pa.Buffer]]) -> pa.Buffer | None:
    if not sections:
        return None
    header = Header(
        operator=owner.operator,
        key_columns=tuple(owner.keys.names),
        groups=owner.groups,
        own_groups=owner.own_groups,
        tables=tuple(entry for entry, _ in sections),
    )
    return _assembled(header, [content for _, content in sections])


def _assembled(header: Header, sections: Sequence[pa.Buffer]) -> pa.Buffer:
    """The whole file. Arrow copies the large parts, and other threads may use the interpreter meanwhile."""
    text = msgspec.json.encode(header)
    # Blanks at the end of the JSON, so that the tables begin at an aligned place.
    text += b" " * (_padded(_PREFIX.size + len(text)) - _PREFIX.size - len(text))
    sink = pa.BufferOutputStream()
    sink.write(_PREFIX.pack(MAGIC, VERSION, len(text)) + text)
    for content in sections:
        sink.write(content)
        sink.write(bytes(_padded(content.size) - content.size))
    return sink.getvalue()


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def state_schema(spec: StateSpec, keys: pa.Schema) -> pa.Schema:
    """The columns of a state's table."""
    fields = [pa.field(KEY_GROUP, pa.int32()), *keys]
    if spec.kind is StateKind.MAP:
        fields.append(pa.field(MAP_KEY, pa.binary() if spec.map_key is None else spec.map_key))
    fields.append(pa.field(VALUE, pa.binary() if spec.type is None else spec.type))
    if spec.ttl is not None:
        fields.append(pa.field(WRITTEN, pa.int64()))
    return pa.schema(fields)


def _state_table(context: StateContext, spec: StateSpec, rows: Iterator[Row], now: int) -> pa.Table:
    schema = state_schema(spec, context.keys)
    value_type = schema.field(VALUE).type
    batches: list[pa.RecordBatch] = []
    for piece in _pieces(rows):
        found = piece
        if spec.ttl is not None:
            found = [row for row in piece if not ttl_expired(spec.ttl, row[2][1], now)]
            if not found:
                continue
        keys, inner, entries = zip(*found, strict=True)
        columns = [*_key_part(keys, context.keys, context.groups_of)]
        if spec.kind is StateKind.MAP:
            columns.append(
                pa.array([pickled(key) for key in inner], pa.binary())
                if spec.map_key is None
                else pa.array(inner, spec.map_key)
            )
        values = entries if spec.ttl is None else [value for value, _ in entries]
        columns.append(pa.array([pickled(value) for value in values] if spec.type is None else values, value_type))
        if spec.ttl is not None:
            columns.append(pa.array([written for _, written in entries], pa.int64()))
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return _by_group(pa.Table.from_batches(batches, schema))


def timer_schema(keys: pa.Schema) -> pa.Schema:
    """The columns of a table of timers."""
    columns = (pa.field(TIMER_KIND, pa.string()), pa.field(TIMER_TIME, pa.int64()))
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *keys, *columns])


def _timer_table(context: StateContext, timers: Iterator[TimerRow]) -> pa.Table:
    schema = timer_schema(context.keys)
    batches: list[pa.RecordBatch] = []
    for piece in _pieces(timers):
        keys, kinds, times = zip(*piece, strict=True)
        parts = _key_part(keys, context.keys, context.groups_of)
        named = pa.array([kind.value for kind in kinds], pa.string())
        batches.append(pa.RecordBatch.from_arrays([*parts, named, pa.array(times, pa.int64())], schema=schema))
    return _by_group(pa.Table.from_batches(batches, schema))


def _pieces(rows: Iterator[Any]) -> Iterator[list[Any]]:
    """The rows, in pieces. Between two pieces the loop may use the interpreter."""
    piece = list(islice(rows, PIECE_ROWS))
    while piece:
        yield piece
        piece = list(islice(rows, PIECE_ROWS))
        if piece:
            # A pause of zero would not help: this thread would have the interpreter back before another thread wakes
            # up.
            time.sleep(_PAUSE_SECONDS)


def _key_part(keys: Sequence[Key], schema: pa.Schema, groups_of: GroupsOf) -> list[Any]:
    columns = key_columns(keys, schema)
    groups = groups_of(pa.RecordBatch.from_arrays(columns, schema=schema))
    return [pa.array(groups, pa.int32()), *columns]


def _by_group(table: pa.Table) -> pa.Table:
    """The rows sorted by key group. The rows of one key group keep their order."""
    groups = np.asarray(table.column(0).to_numpy())
    if (groups[1:] >= groups[:-1]).all():
        return table
    # A stable sort of 16-bit numbers is a radix sort.
    return table.take(np.argsort(groups.astype(np.uint16), kind="stable"))


def _section(table: pa.Table, offset: int) -> tuple[TableEntry, pa.Buffer]:
    batches = [batch for batch in table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS) if batch.num_rows]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content = sink.getvalue()
    spans = tuple((batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()) for batch in batches)
    entry = TableEntry(name="", kind=TIMERS, offset=offset, length=content.size, rows=table.num_rows, batches=spans)
    return entry, content


def _described(entry: TableEntry, spec: StateSpec) -> TableEntry:
    return msgspec.structs.replace(
        entry,
        name=spec.name,
        kind=spec.kind.value,
        object_value=spec.type is None,
        object_key=spec.kind is StateKind.MAP and spec.map_key is None,
        ttl_ms=None if spec.ttl is None else spec.ttl.duration_ms,
        ttl_reads=spec.ttl is not None and spec.ttl.renewed_by_reads,
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def is_canonical(data: bytes) -> bool:
    """Whether data begins like a file of this format."""
    return data[:4] == MAGIC


class CanonicalFile:
    """A file that was read; `what` names the file in errors. Raises `CorruptFile` for a file that is cut short, was
    changed, was not written by this package, or has a newer format."""

    def __init__(self, data: bytes, *, what: str) -> None:
        self._what = what
        if len(data) < _PREFIX.size:
            raise self._corrupt(f"is cut short: it has {len(data)} bytes, and its prefix alone has {_PREFIX.size}")
        magic, version, header_size = _PREFIX.unpack_from(data)
        if magic != MAGIC:
            raise self._corrupt("is not keyed state in the canonical format")
        if version > VERSION:
            raise CorruptFile(
                f"{what} has format version {version}; this program reads up to {VERSION}", hint="use a newer penstock"
            )
        body = _PREFIX.size + header_size
        if len(data) < body:
            raise self._corrupt(f"is cut short: it has {len(data)} bytes, and its header alone ends at {body}")
        try:
            self.header = msgspec.json.decode(data[_PREFIX.size : body], type=Header)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"has a header that cannot be read: {error}") from error
        self._body = pa.py_buffer(data).slice(body)
        for entry in self.header.tables:
            if entry.offset < 0 or entry.length < 0 or entry.offset + entry.length > self._body.size:
                raise self._corrupt(f"is cut short: the table of {entry.name or entry.kind!r} is not complete")
        names = [(entry.name, entry.kind == TIMERS) for entry in self.header.tables]
        if len(dict.fromkeys(names)) < len(names):
            raise self._corrupt("has two tables with the same name")
        # Otherwise a long header could name the rows of one table thousands of times.
        spans = [(entry.offset, entry.offset + entry.length) for entry in self.header.tables]
        check_apart(spans, what=f"the tables in {what}")

    def table(self, entry: TableEntry, own: tuple[int, int]) -> pa.Table:
        """The rows of one table whose key groups are from `own[0]` to `own[1]`; other batches are not decoded."""
        reader = self._reader(entry)
        try:
            check_file(self._body.slice(entry.offset, entry.length))
            if reader.num_record_batches != len(entry.batches):
                raise self._corrupt(
                    f"has {reader.num_record_batches} batches of {entry.name!r}, but its header names "
                    f"{len(entry.batches)}"
                )
            batches = [
                reader.get_batch(number)
                for number, (first, last) in enumerate(entry.batches)
                if first <= own[1] and last >= own[0]
            ]
            table = pa.Table.from_batches(batches, reader.schema)
            # Without this check, an offset that points outside of the memory would crash the process when the value is
            # read.
            table.validate(full=True)
            check_size(table, entry.length)
        except _ARROW_ERRORS as error:
            raise self._unreadable(entry, error) from error
        column: Any = table.column(0)
        groups = np.asarray(column.to_numpy())
        if column.null_count or not (groups[1:] >= groups[:-1]).all():
            raise self._corrupt(f"has a table of {entry.name or entry.kind!r} that is not in order of key groups")
        if len(batches) == len(entry.batches) and table.num_rows != entry.rows:
            raise self._corrupt(
                f"has {table.num_rows} rows of {entry.name or entry.kind!r}, but its header names {entry.rows}"
            )
        first, last = np.searchsorted(groups, [own[0], own[1] + 1])
        return table.slice(int(first), int(last - first)).combine_chunks()

    def key_schema(self, entry: TableEntry) -> pa.Schema:
        """The key columns of a table."""
        schema = self._reader(entry).schema
        return pa.schema([schema.field(number) for number in range(1, 1 + len(self.header.key_columns))])

    def _reader(self, entry: TableEntry) -> pa.ipc.RecordBatchFileReader:
        """The reader of a table. Raises `CorruptFile` unless the table begins with the key group and the key
        columns."""
        try:
            reader = pa.ipc.open_file(self._body.slice(entry.offset, entry.length))
            schema = reader.schema
            check_names(schema)
            check_types(schema)
        except _ARROW_ERRORS as error:
            raise self._unreadable(entry, error) from error
        if schema.names[: 1 + len(self.header.key_columns)] != [KEY_GROUP, *self.header.key_columns]:
            raise self._corrupt(f"has a table of {entry.name or entry.kind!r} without its key columns")
        if schema.field(0).type != pa.int32():
            raise self._corrupt(f"has a table of {entry.name or entry.kind!r} whose key groups are not of type int32")
        return reader

    def spec_of(self, entry: TableEntry) -> StateSpec:
        """The declaration of the state when the file was written."""
        schema = self._reader(entry).schema
        try:
            kind = StateKind(entry.kind)
        except ValueError as error:
            raise self._corrupt(f"has a state of the unknown kind {entry.kind!r}") from error
        first = 1 + len(self.header.key_columns)
        types = [schema.field(number).type for number in range(first, len(schema))]
        is_map = kind is StateKind.MAP
        names = [MAP_KEY] * is_map + [VALUE] + [WRITTEN] * (entry.ttl_ms is not None)
        if not kind.is_keyed or schema.names[first:] != names:
            raise self._corrupt(f"has a table of {entry.name!r} with other columns than its header names")
        wanted = {VALUE: pa.binary() if entry.object_value else None, WRITTEN: pa.int64()}
        wanted[MAP_KEY] = pa.binary() if entry.object_key else None
        for name, found in zip(names, types, strict=True):
            if wanted[name] is not None and found != wanted[name]:
                raise self._corrupt(f"has a table of {entry.name!r} whose column {name} is of type {found}")
        return StateSpec(
            name=entry.name,
            kind=kind,
            type=None if entry.object_value else types[is_map],
            map_key=types[0] if is_map and not entry.object_key else None,
            ttl=None if entry.ttl_ms is None else Ttl(duration_ms=entry.ttl_ms, renewed_by_reads=entry.ttl_reads),
        )

    def rows(self, entry: TableEntry, spec: StateSpec, own: tuple[int, int], *, now: int) -> Iterator[Row]:
        """The rows of a state, as tables of `spec` hold them. If `spec` has a TTL and the file has no times, the
        entries count as written at `now`."""
        found = self.spec_of(entry)
        table = self.table(entry, own)
        try:
            return self._rows(table, found, spec, now)
        except _VALUE_ERRORS as error:
            raise self._unreadable(entry, error) from error

    def _rows(self, table: pa.Table, found: StateSpec, spec: StateSpec, now: int) -> Iterator[Row]:
        count = len(self.header.key_columns)
        keys = keys_of(self._key_columns_of(table))
        rest = table.columns[1 + count :]
        inner: Iterable[Any] = [None] * len(keys)
        if found.kind is StateKind.MAP:
            column = _whole(rest.pop(0))
            inner = self._objects(column) if found.map_key is None else key_values(found.name, column)
        column = _whole(rest.pop(0))
        if found.type is None:
            values: Iterable[Any] = self._objects(column)
        else:
            values = to_python(column if column.type == spec.type else column.cast(spec.type))
        if spec.ttl is not None:
            written = to_python(_whole(rest.pop(0))) if rest else [now] * len(keys)
            if None in written:
                raise self._corrupt(f"has an entry of {spec.name!r} without its time of writing")
            values = zip(values, written, strict=True)
        return zip(keys, inner, values, strict=True)

    def _key_columns_of(self, table: pa.Table) -> dict[str, Any]:
        names = self.header.key_columns
        return {name: _whole(table.column(number)) for number, name in enumerate(names, start=1)}

    def timers(self, own: tuple[int, int]) -> Iterator[tuple[Key, int, TimerKind, int]]:
        """Key, key group, kind and time of every timer."""
        count = len(self.header.key_columns)
        for entry in self.header.tables:
            if entry.kind == TIMERS:
                table = self.timer_table(entry, own)
                try:
                    keys = keys_of(self._key_columns_of(table))
                except _VALUE_ERRORS as error:
                    raise self._unreadable(entry, error) from error
                groups, kinds, times = (to_python(_whole(table.column(n))) for n in (0, 1 + count, 2 + count))
                for key, group, kind, time_us in zip(keys, groups, kinds, times, strict=True):
                    yield key, group, self._timer_kind(kind), time_us

    def timer_table(self, entry: TableEntry, own: tuple[int, int]) -> pa.Table:
        """The table of timers, as `table` gives it."""
        table = self.table(entry, own)
        has_gaps = any(column.null_count for column in table.columns[-2:])
        if has_gaps or not table.schema.equals(timer_schema(self.key_schema(entry))):
            raise self._corrupt("has a table of timers with other columns than timers have")
        return table

    def _timer_kind(self, text: str) -> TimerKind:
        try:
            return TimerKind(text)
        except ValueError as error:
            raise self._corrupt(f"has a timer of the unknown kind {text!r}") from error

    def _objects(self, column: Any) -> list[Any]:
        return [unpickled(data, what=self._what) for data in column.to_pylist()]

    def _unreadable(self, entry: TableEntry, error: BaseException) -> CorruptFile:
        return self._corrupt(f"has a table of {entry.name or entry.kind!r} that cannot be read: {error}")

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(f"{self._what} {text}", hint=_HINT)


def check_names(columns: Iterable[Any]) -> None:
    """Raise `ValueError` if the names of columns, or of fields inside of columns, are not valid text. Arrow itself
    checks a name only when the name is used."""
    for field in columns:
        _ = field.name
        check_names(field.type.field(number) for number in range(field.type.num_fields))


def _whole(column: Any) -> Any:
    """A column of a table as one array."""
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


# --- what fits -------------------------------------------------------------------------------------------------------


def check_keys(found: pa.Schema, context: StateContext) -> None:
    """Raise `UsageError` unless the key columns of a snapshot have the types that the program's key columns have."""
    if [field.type for field in found] != [field.type for field in context.keys]:
        raise UsageError(
            f"the state of {context.name!r} is keyed by {_columns(found)}; the program has {_columns(context.keys)}",
            hint="give the changed step another name, so that it starts without state",
        )


def check_fits(found: StateSpec, declared: StateSpec, context: StateContext) -> None:
    """Raise `UsageError` unless the entries of a snapshot fit the program's declaration."""
    same_map = found.map_key == declared.map_key
    if found.kind is not declared.kind or not same_map or not _widens(found.type, declared.type):
        raise UsageError(
            f"state {declared.name!r} of {context.name!r} was {found} when the snapshot was taken; the program "
            f"declares {declared}",
            hint="give the changed state another name; the old state is kept under its old name",
        )


def _widens(old: pa.DataType | None, new: pa.DataType | None) -> bool:
    if old is None or new is None or old == new:
        return old is new or old == new
    both_whole = pa.types.is_signed_integer(old) and pa.types.is_signed_integer(new)
    both_floating = pa.types.is_floating(old) and pa.types.is_floating(new)
    return (both_whole or both_floating) and old.bit_width < new.bit_width


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
