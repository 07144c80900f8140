"""What a snapshot has in it: operators, their states, and what was in flight.

The metadata is read at once; it says which files belong to whom. What states are in the files is found by reading them,
one after another, when an operator is asked about. A `Piece` is a file, or a part of one, that can be read alone and
anywhere: whoever reads all pieces of a state one by one never holds more than one file in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import pyarrow as pa

from penstock.api.naming import id_part
from penstock.api.restoring import restore
from penstock.api.state import StateKind
from penstock.core.errors import CorruptFile, MalformedMessage, UsageError
from penstock.core.ids import OperatorId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot
from penstock.savepoints.tables import ALL_GROUPS, FoundTable, file_sets, read_files
from penstock.storage.locations import open_store
from penstock.storage.places import Anywhere
from penstock.storage.restoring import find_snapshot
from penstock.storage.snapshots import SnapshotReader
from penstock.wire.codec import BatchCodec

_PARTS: dict[str, pa.DataType] = {"subtask": pa.int32(), "part": pa.int32(), "value": pa.binary()}
PARTS = pa.schema(_PARTS)
"""The columns of operator state. What is in a part is the business of who wrote it: of functions, a pickled value."""

_PLACES: dict[str, pa.DataType] = {
    "edge": pa.int32(),
    "side": pa.string(),
    "upstream": pa.int32(),
    "downstream": pa.int32(),
    "number": pa.int32(),
}
IN_FLIGHT = pa.schema(_PLACES)
"""The columns of in-flight data before those of the batch: the edge, at which end it waited (`input`: not yet read,
`output`: not yet sent), between which subtasks, and the number of the batch there."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a state that lie in one file. Can be sent to another process and read there."""

    files: tuple[StateFile, ...]
    """With full paths: one file, or all that a back end in its own format has written for a subtask."""
    what: str
    """How to name it in a message."""
    name: str
    kind: str
    groups: tuple[int, int] = ALL_GROUPS
    """Only these key groups."""


def read_piece(piece: Piece, location: str) -> pa.Table:
    """The rows of a piece; `location` is that of the snapshot. Blocks. Raises `CorruptFile` or `StorageError`."""
    content = read_files(piece.files, SnapshotReader(Anywhere(open_store(location))), what=piece.what)
    for table in content.tables:
        if (table.name, table.kind) == (piece.name, piece.kind):
            return content.rows(table, piece.groups)
    raise CorruptFile(f"{piece.what} has no {piece.kind} {piece.name!r}", hint="read the snapshot again")


@dataclass(frozen=True, kw_only=True)
class StateInfo:
    """One state of an operator, over all its subtasks."""

    name: str
    """`timers` and `windows` for what has no name of its own."""
    kind: str
    """`value`, `list`, `map`, `reducing`, `aggregating`, `timers` or `windows` by key; `split-list`, `union-list` or
    `broadcast` by subtask."""
    type: str
    """Of keyed state, what it was declared as."""
    key_columns: tuple[str, ...]
    """Empty for state that is not keyed."""
    columns: tuple[str, ...]
    """The columns of its table, as `name: type`."""
    rows: int
    size_bytes: int
    ttl_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class OperatorInfo:
    """One operator of a snapshot."""

    id: str
    name: str
    kind: str
    """What it does, in a word: `read`, `window`, `process`, `write`."""
    parallelism: int
    max_parallelism: int
    size_bytes: int
    finished: bool
    """All its subtasks had ended for good."""
    finished_subtasks: tuple[int, ...]
    """Those that had, if not all."""


@dataclass(frozen=True, kw_only=True)
class EdgeInfo:
    """What was in flight on one edge."""

    edge: int
    upstream: str
    downstream: str
    """The ids of the operators that it joined."""
    partitioning: str
    batches: int
    size_bytes: int


class _Found(NamedTuple):
    info: StateInfo
    schema: pa.Schema
    keys: pa.Schema
    pieces: tuple[Piece, ...]
    parts: tuple[tuple[int, tuple[bytes, ...]], ...] = ()
    """Of operator state: by subtask."""
    table: FoundTable | None = None


class SnapshotData:
    """A savepoint or checkpoint that was found. Calls block, and raise `CorruptFile` or `StorageError`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        chosen = restore(path).path
        self._store = open_store(chosen)
        found = find_snapshot(self._store, chosen)
        self.location = found.folder
        self.metadata: CheckpointMetadata = found.metadata
        """With full paths."""
        self._reader = SnapshotReader(Anywhere(self._store))
        self._states: dict[str, tuple[_Found, ...]] = {}

    # --- what there is -------------------------------------------------------------------

    def operators(self) -> tuple[OperatorInfo, ...]:
        """All operators, in the order of the job."""
        return tuple(_operator_info(snapshot) for snapshot in self.metadata.operators.values())

    def snapshot_of(self, operator: str) -> OperatorSnapshot:
        """An operator by its id, or by the name of its step if only one has it. Raises `UsageError`."""
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
                hint="give the id",
            )
        # One that was made by hand may have no names, only the ids that follow from them.
        made_of = OperatorId(id_part(operator))
        if made_of in known:
            return known[made_of]
        raise UsageError(f"{self.metadata.title} has no operator {operator!r}", hint=f"there are: {there}")

    def states(self, operator: str) -> tuple[StateInfo, ...]:
        """The states of an operator. Reads its files, one at a time."""
        return tuple(found.info for found in self._found(operator))

    def edges(self) -> tuple[EdgeInfo, ...]:
        """The edges on which something was in flight."""
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
        """A state by its name, or by `kind:name` where several have one name. Raises `UsageError`."""
        return self._one(operator, name).info

    # --- its content ---------------------------------------------------------------------

    def schema(self, operator: str, name: str) -> pa.Schema:
        """The columns of a state's table."""
        return self._one(operator, name).schema

    def key_schema(self, operator: str, name: str) -> pa.Schema:
        """The key columns among them."""
        return self._one(operator, name).keys

    def found_table(self, operator: str, name: str) -> FoundTable | None:
        """What a keyed state was declared as; None for operator state."""
        return self._one(operator, name).table

    def pieces(self, operator: str, name: str) -> tuple[Piece, ...]:
        """The files that hold a state; none for operator state, which is inside the metadata."""
        return self._one(operator, name).pieces

    def parts(self, operator: str, name: str) -> pa.Table:
        """Operator state as a table; empty for keyed state."""
        rows = [
            {"subtask": subtask, "part": number, "value": part}
            for subtask, parts in self._one(operator, name).parts
            for number, part in enumerate(parts)
        ]
        return pa.Table.from_pylist(rows, PARTS)

    def tables(self, operator: str, name: str, groups: tuple[int, int] = ALL_GROUPS) -> Iterator[pa.Table]:
        """The rows of a state, file by file, those of a range of key groups; of operator state, all at once."""
        found = self._one(operator, name)
        if found.parts:
            yield self.parts(operator, name)
            return
        for piece in found.pieces:
            if piece.groups[0] <= groups[1] and piece.groups[1] >= groups[0]:
                within = (max(piece.groups[0], groups[0]), min(piece.groups[1], groups[1]))
                table = read_piece(msgspec.structs.replace(piece, groups=within), self.location)
                if table.num_rows:
                    yield table

    def in_flight(self, edge: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """What was in flight on an edge, batch by batch. A snapshot does not say what columns a stream had: `schema`
        does. Raises `UsageError` if the batches are of another."""
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
                    batch = codec.decode(content[start : start + length])
                except MalformedMessage as error:
                    raise UsageError(
                        f"the batches of edge {edge} cannot be read with this schema: {error.message}",
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
        raise UsageError(f"{title} has no state {name!r}", hint=f"it has: {there}")

    def _found(self, operator: str) -> tuple[_Found, ...]:
        snapshot = self.snapshot_of(operator)
        if snapshot.operator not in self._states:
            self._states[snapshot.operator] = (*self._keyed(snapshot), *_operator_state(snapshot))
        return self._states[snapshot.operator]

    def _keyed(self, snapshot: OperatorSnapshot) -> list[_Found]:
        found: dict[tuple[str, str], list[tuple[FoundTable, Piece]]] = {}
        for subtask, state in sorted(snapshot.subtasks.items()):
            for files in file_sets(state.keyed, self._reader):
                what = _described(files[0], snapshot, subtask)
                for table in read_files(files, self._reader, what=what).tables:
                    # The key groups of a file are known without opening it.
                    groups = state.key_groups or ALL_GROUPS
                    piece = Piece(files=files, what=what, name=table.name, kind=table.kind, groups=groups)
                    found.setdefault((table.name, table.kind), []).append((table, piece))
        return [_keyed_state(tables) for tables in found.values()]


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
    # A window without rows has no columns; whatever has rows says what they are.
    first = next((table for table, _ in tables if table.rows), tables[0][0])
    for table, piece in tables:
        if table.rows and table.columns != first.columns:
            raise CorruptFile(
                f"{piece.what} has other columns of {table.name!r} than another subtask",
                hint="restore it from a copy, or use another checkpoint or savepoint",
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
                type="",
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


def _lists(state: OperatorState) -> tuple[tuple[StateKind, dict[str, tuple[bytes, ...]]], ...]:
    return (
        (StateKind.SPLIT_LIST, state.split_lists),
        (StateKind.UNION_LIST, state.union_lists),
        (StateKind.BROADCAST, {name: (content,) for name, content in state.broadcast.items()}),
    )
