"""The content of a snapshot: operators, their states, and the in-flight data.

The metadata is read at once, and names the files of every operator. The states of an operator are found by reading its
files, one after another, when the operator is asked about. A `Piece` is a file, or a part of a file, that can be read
alone and in any process. A reader that reads the pieces of a state one by one never holds more than one file in memory;
of files of RocksDB, it never holds more than a part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from penstock.api.arrow_bounds import NOT_ARROW, check_batch
from penstock.api.naming import id_part
from penstock.api.restoring import restore
from penstock.api.state import RAW_TYPE, StateKind
from penstock.core.errors import CorruptFile, MalformedMessage, UsageError
from penstock.core.ids import OperatorId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot
from penstock.savepoints.tables import ALL_GROUPS, FoundTable, file_sets, read_files
from penstock.state.raw_keyed import RawFile
from penstock.storage.locations import open_store
from penstock.storage.places import Anywhere
from penstock.storage.restoring import find_snapshot
from penstock.storage.snapshots import SnapshotReader
from penstock.wire.codec import BatchCodec

_PARTS: dict[str, pa.DataType] = {"subtask": pa.int32(), "part": pa.int32(), "value": pa.binary()}
PARTS = pa.schema(_PARTS)
"""The columns of operator state. Only the writer of a part knows its content. A part that a function wrote is a pickled
value; if the state is raw, the part is bytes."""
_STREAMS: dict[str, pa.DataType] = {"key_group": pa.int32(), "value": pa.binary()}
STREAMS = pa.schema(_STREAMS)
"""The columns of raw keyed state."""

_PLACES: dict[str, pa.DataType] = {
    "edge": pa.int32(),
    "side": pa.string(),
    "upstream": pa.int32(),
    "downstream": pa.int32(),
    "number": pa.int32(),
}
IN_FLIGHT = pa.schema(_PLACES)
"""The columns of in-flight data in front of the batch's own columns: the edge, the end at which the batch waited
(`input`: not yet read, `output`: not yet sent), the upstream and the downstream subtask, and the number of the batch at
that end."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a state that can be read alone. A piece can be sent to another process and read there."""

    files: tuple[StateFile, ...]
    """One file; or, in a back end's own format, all files that the back end wrote for a subtask. Their paths are full
    paths."""
    what: str
    """The name of the piece in an error text."""
    name: str
    kind: str
    groups: tuple[int, int] = ALL_GROUPS
    """The rows of other key groups are left out."""


def read_piece(piece: Piece, location: str) -> Iterator[pa.Table]:
    """The rows of a piece, in tables that are read one by one; `location` is the snapshot's folder. Blocks. Raises
    `CorruptFile` or `StorageError`."""
    content = read_files(piece.files, SnapshotReader(Anywhere(open_store(location))), what=piece.what)
    tables = content.row_tables(piece.name, piece.kind, piece.groups)
    if tables is None:
        raise CorruptFile(f"{piece.what} has no {piece.kind} {piece.name!r}", hint="read the snapshot again")
    yield from tables


@dataclass(frozen=True, kw_only=True)
class StateInfo:
    """One state of an operator, over all its subtasks."""

    name: str
    """The name of the state; `timers` for timers, `windows` for the state of a window, and `left` or `right` for a
    side of a join, which have no name."""
    kind: str
    """`value`, `list`, `map`, `reducing`, `aggregating`, `timers`, `windows` or `join` by key; `split-list`,
    `union-list` or `broadcast` by subtask; `raw-keyed` by key group."""
    type: str
    """The declared type of keyed state; `raw` for bytes that only the user's function can read."""
    key_columns: tuple[str, ...]
    """Empty for state that is not keyed."""
    columns: tuple[str, ...]
    """The columns of the state's table, as `name: type`."""
    rows: int
    size_bytes: int
    ttl_ms: int | None = None

    @property
    def is_raw(self) -> bool:
        """Whether the state is bytes that only the user's function can read."""
        return self.type == RAW_TYPE


@dataclass(frozen=True, kw_only=True)
class OperatorInfo:
    """One operator of a snapshot."""

    id: str
    name: str
    kind: str
    """What the operator does, in a word: `read`, `window`, `process`, `write`."""
    parallelism: int
    max_parallelism: int
    size_bytes: int
    finished: bool
    """All subtasks of the operator had ended for good."""
    finished_subtasks: tuple[int, ...]
    """The subtasks that had ended for good, if other subtasks still ran."""


@dataclass(frozen=True, kw_only=True)
class EdgeInfo:
    """The in-flight data of one edge."""

    edge: int
    upstream: str
    downstream: str
    """`upstream` and `downstream` are the ids of the operators that the edge joined."""
    partitioning: str
    batches: int
    size_bytes: int


class _Found(NamedTuple):
    info: StateInfo
    schema: pa.Schema
    keys: pa.Schema
    pieces: tuple[Piece, ...]
    parts: tuple[tuple[int, tuple[bytes, ...]], ...] = ()
    """The parts of operator state, by subtask."""
    table: FoundTable | None = None
    streams: tuple[tuple[str, StateFile], ...] = ()
    """The files of raw keyed state, each with its name in an error text."""


class SnapshotData:
    """The content of a savepoint or checkpoint. Calls block, and raise `CorruptFile` or `StorageError`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        chosen = restore(path).path
        self._store = open_store(chosen)
        found = find_snapshot(self._store, chosen)
        self.location = found.folder
        self.metadata: CheckpointMetadata = found.metadata
        """The metadata of the snapshot, in which all paths are full paths."""
        self._reader = SnapshotReader(Anywhere(self._store))
        self._states: dict[str, tuple[_Found, ...]] = {}

    # --- what there is -------------------------------------------------------------------

    def operators(self) -> tuple[OperatorInfo, ...]:
        """All operators, in the order of the job."""
        return tuple(_operator_info(snapshot) for snapshot in self.metadata.operators.values())

    def snapshot_of(self, operator: str) -> OperatorSnapshot:
        """An operator by its id, or by the name of its step if only one operator has that name. Raises `UsageError`."""
        known = self.metadata.operators
        if operator in known:
            return known[OperatorId(operator)]
        named = [snapshot for snapshot in known.values() if snapshot.label.name == operator]
        if len(named) == 1:
            return named[0]
        there = ", ".join(known) or "none"
        if named:
            raise UsageError(
                f"{len(named)} operators have the name {operator!r}: {', '.join(s.operator for s in named)}",
                hint="give the id of the operator",
            )
        # A savepoint that was made of tables may have no names, only the ids that are derived from names.
        made_of = OperatorId(id_part(operator))
        if made_of in known:
            return known[made_of]
        raise UsageError(f"{self.metadata.title} has no operator {operator!r}", hint=f"the operators are: {there}")

    def states(self, operator: str) -> tuple[StateInfo, ...]:
        """The states of an operator. Reads the operator's files, one at a time."""
        return tuple(found.info for found in self._found(operator))

    def edges(self) -> tuple[EdgeInfo, ...]:
        """The edges that have in-flight data."""
        counts: dict[int, list[int]] = {}
        for _, state in self._channels():
            count = counts.setdefault(state.edge, [0, 0])
            count[0] += len(state.ranges)
            count[1] += sum(length for _, length in state.ranges)
        known = {edge.number: edge for edge in self.metadata.edges}
        return tuple(
            EdgeInfo(
                edge=number,
                upstream=str(known[number].upstream) if number in known else "",
                downstream=str(known[number].downstream) if number in known else "",
                partitioning=known[number].partitioning.value if number in known else "",
                batches=batches,
                size_bytes=size,
            )
            for number, (batches, size) in sorted(counts.items())
        )

    def state(self, operator: str, name: str) -> StateInfo:
        """A state by its name, or by `kind:name` if several states have the same name. Raises `UsageError`."""
        return self._one(operator, name).info

    # --- its content ---------------------------------------------------------------------

    def schema(self, operator: str, name: str) -> pa.Schema:
        """The columns of a state's table."""
        return self._one(operator, name).schema

    def key_schema(self, operator: str, name: str) -> pa.Schema:
        """The key columns of a state's table."""
        return self._one(operator, name).keys

    def found_table(self, operator: str, name: str) -> FoundTable | None:
        """The table of a keyed state, with the state's declaration; None for operator state."""
        return self._one(operator, name).table

    def pieces(self, operator: str, name: str) -> tuple[Piece, ...]:
        """The pieces of a keyed state; no pieces for operator state, which is inside the metadata."""
        return self._one(operator, name).pieces

    def parts(self, operator: str, name: str) -> pa.Table:
        """Operator state, or raw keyed state, as a table; empty for other keyed state."""
        found = self._one(operator, name)
        if found.streams:
            return pa.concat_tables(self._stream_tables(found, ALL_GROUPS))
        rows = [
            {"subtask": subtask, "part": number, "value": part}
            for subtask, parts in found.parts
            for number, part in enumerate(parts)
        ]
        return pa.Table.from_pylist(rows, PARTS)

    def tables(self, operator: str, name: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table]:
        """The rows of a state in a range of key groups, file by file. All rows of operator state come at once."""
        found = self._one(operator, name)
        if found.parts:
            yield self.parts(operator, name)
            return
        for table in self._stream_tables(found, groups):
            if table.num_rows:
                yield table
        for piece in found.pieces:
            if piece.groups[0] <= groups[1] and piece.groups[1] >= groups[0]:
                within = (max(piece.groups[0], groups[0]), min(piece.groups[1], groups[1]))
                for table in read_piece(msgspec.structs.replace(piece, groups=within), self.location):
                    if table.num_rows:
                        yield table

    def _stream_tables(self, found: _Found, groups: tuple[int, int]) -> Iterator[pa.Table]:
        for what, file in found.streams:
            rows = [
                {"key_group": group, "value": data}
                for name, group, data in RawFile(self._reader.get(file), what=what).streams(groups)
                if name == found.info.name
            ]
            yield pa.Table.from_pylist(rows, STREAMS)

    def in_flight(self, edge: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """The in-flight data of an edge, batch by batch. A snapshot does not record the columns of a stream: `schema`
        names them. Raises `UsageError` if the batches have other columns."""
        codec = BatchCodec(schema)
        clash = [name for name in schema.names if name in IN_FLIGHT.names]
        names = [f"_{name}" if name in clash else name for name in IN_FLIGHT.names]
        contents: dict[str | None, bytes] = {}
        for side, state in self._channels():
            if state.edge != edge:
                continue
            if state.file.path is None or state.file.path not in contents:
                contents = {state.file.path: self._reader.get(state.file)}
            content = contents[state.file.path]
            for number, (start, length) in enumerate(state.ranges):
                try:
                    data = content[start : start + length]
                    check_batch(pa.py_buffer(data))
                    batch = codec.decode(data)
                except (MalformedMessage, *NOT_ARROW) as error:
                    text = error.message if isinstance(error, MalformedMessage) else str(error)
                    raise UsageError(
                        f"the batches of edge {edge} cannot be read with this schema: {text}",
                        hint="give the columns of the stream at that edge, in their order",
                    ) from error
                place = (edge, side, state.upstream, state.downstream, number)
                columns = [
                    pa.array([value] * batch.num_rows, field.type)
                    for value, field in zip(place, IN_FLIGHT, strict=True)
                ]
                yield pa.table([*columns, *batch.columns], names=[*names, *schema.names])

    def in_flight_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of `in_flight`."""
        places = [field.with_name(f"_{field.name}") if field.name in schema.names else field for field in IN_FLIGHT]
        return pa.schema([*places, *schema])

    # --- finding -------------------------------------------------------------------------

    def _channels(self) -> Iterator[tuple[str, ChannelState]]:
        for task in self.metadata.channels:
            for side, states in (("input", task.inputs), ("output", task.outputs)):
                for state in states:
                    yield side, state

    def _one(self, operator: str, name: str) -> _Found:
        states = self._found(operator)
        found = [s for s in states if s.info.name == name]
        if len(found) > 1 or not found:
            exact = [s for s in states if f"{s.info.kind}:{s.info.name}" == name]
            if len(exact) == 1:
                return exact[0]
        if len(found) == 1:
            return found[0]
        title = self.snapshot_of(operator).title
        if found:
            choices = ", ".join(f"{s.info.kind}:{s.info.name}" for s in found)
            raise UsageError(f"{title} has {len(found)} states named {name!r}", hint=f"give one of {choices}")
        there = ", ".join(s.info.name for s in states) or "none"
        raise UsageError(f"{title} has no state {name!r}", hint=f"its states are: {there}")

    def _found(self, operator: str) -> tuple[_Found, ...]:
        snapshot = self.snapshot_of(operator)
        if snapshot.operator not in self._states:
            self._states[snapshot.operator] = (
                *self._keyed(snapshot),
                *self._raw_keyed(snapshot),
                *_operator_state(snapshot),
            )
        return self._states[snapshot.operator]

    def _keyed(self, snapshot: OperatorSnapshot) -> list[_Found]:
        found: dict[tuple[str, str], list[tuple[FoundTable, Piece]]] = {}
        for subtask, state in sorted(snapshot.subtasks.items()):
            for files in file_sets(state.keyed, self._reader):
                what = _described(files[0], snapshot, subtask)
                for table in read_files(files, self._reader, what=what).tables:
                    # The metadata names the key groups of a file, so the file need not be opened to know them.
                    groups = state.key_groups or ALL_GROUPS
                    piece = Piece(files=files, what=what, name=table.name, kind=table.kind, groups=groups)
                    found.setdefault((table.name, table.kind), []).append((table, piece))
        return [_keyed_state(tables) for tables in found.values()]

    def _raw_keyed(self, snapshot: OperatorSnapshot) -> list[_Found]:
        sizes: dict[str, list[int]] = {}
        files: dict[str, dict[str, StateFile]] = {}
        for subtask, state in sorted(snapshot.subtasks.items()):
            for file in state.raw_keyed:
                what = _described(file, snapshot, subtask)
                for stream in RawFile(self._reader.get(file), what=what).header.streams:
                    sizes.setdefault(stream.name, []).append(stream.size)
                    files.setdefault(stream.name, {})[what] = file
        return [
            _Found(
                StateInfo(
                    name=name,
                    kind=StateKind.RAW_KEYED.value,
                    type=RAW_TYPE,
                    key_columns=(),
                    columns=tuple(f"{field.name}: {field.type}" for field in STREAMS),
                    rows=len(found),
                    size_bytes=sum(found),
                ),
                STREAMS,
                pa.schema([]),
                (),
                streams=tuple(files[name].items()),
            )
            for name, found in sizes.items()
        ]


def _described(file: StateFile, snapshot: OperatorSnapshot, subtask: int) -> str:
    where = "inside the metadata" if file.path is None else f"in {file.path}"
    return f"the state of {snapshot.title}, subtask {subtask}, {where}"


def _operator_info(snapshot: OperatorSnapshot) -> OperatorInfo:
    return OperatorInfo(
        id=snapshot.operator,
        name=snapshot.label.name,
        kind=snapshot.label.kind,
        parallelism=snapshot.parallelism,
        max_parallelism=snapshot.max_parallelism,
        size_bytes=snapshot.size,
        finished=snapshot.finished,
        finished_subtasks=snapshot.finished_subtasks,
    )


def _keyed_state(tables: list[tuple[FoundTable, Piece]]) -> _Found:
    # The table of a window without rows has no columns. So the columns are taken from a table that has rows.
    first = next((table for table, _ in tables if table.rows), tables[0][0])
    for table, piece in tables:
        if table.rows and table.columns != first.columns:
            raise CorruptFile(
                f"{piece.what} has other columns of {table.name!r} than another subtask",
                hint="copy the file back from a backup, or use another checkpoint or savepoint",
            )
    info = StateInfo(
        name=first.name,
        kind=first.kind,
        type=first.type_text,
        key_columns=tuple(first.keys.names),
        columns=tuple(f"{field.name}: {field.type}" for field in first.columns),
        rows=sum(table.rows for table, _ in tables),
        size_bytes=sum(table.size_bytes for table, _ in tables),
        ttl_ms=first.spec.ttl.duration_ms if first.spec is not None and first.spec.ttl is not None else None,
    )
    pieces = tuple(piece for table, piece in tables if table.rows)
    return _Found(info, first.columns, first.keys, pieces, table=first)


def _operator_state(snapshot: OperatorSnapshot) -> list[_Found]:
    found: dict[tuple[StateKind, str], dict[int, tuple[bytes, ...]]] = {}
    for subtask, state in sorted(snapshot.subtasks.items()):
        for kind, lists in _lists(state):
            for name, parts in lists.items():
                found.setdefault((kind, name), {})[subtask] = parts
    return [
        _Found(
            StateInfo(
                name=name,
                kind=kind.value,
                type=RAW_TYPE if _is_raw(snapshot, kind, name) else "",
                key_columns=(),
                columns=tuple(f"{field.name}: {field.type}" for field in PARTS),
                rows=sum(len(parts) for parts in by_subtask.values()),
                size_bytes=sum(len(part) for parts in by_subtask.values() for part in parts),
            ),
            PARTS,
            pa.schema([]),
            (),
            tuple(by_subtask.items()),
        )
        for (kind, name), by_subtask in found.items()
    ]


def _is_raw(snapshot: OperatorSnapshot, kind: StateKind, name: str) -> bool:
    said = snapshot.label.states.get(name)
    return said is not None and (said.kind, said.type) == (kind.value, RAW_TYPE)


def _lists(state: OperatorState) -> tuple[tuple[StateKind, dict[str, tuple[bytes, ...]]], ...]:
    return (
        (StateKind.SPLIT_LIST, state.split_lists),
        (StateKind.UNION_LIST, state.union_lists),
        (StateKind.BROADCAST, {name: (content,) for name, content in state.broadcast.items()}),
    )
