"""New savepoints: made of another snapshot with changes, or of tables alone.

The result is a savepoint like any other: self-contained, with paths relative to its folder. The metadata is written
last, so that a savepoint that was not finished does not count. Unchanged state is copied file by file. If a keyed state
of an operator is given anew, all keyed files of the operator are written anew, one subtask at a time, so that no more
than one subtask's part of an operator is in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import xxhash

from penstock.api.naming import id_part
from penstock.api.restoring import restore
from penstock.api.state import StateKind
from penstock.core.errors import UsageError
from penstock.core.graph import OperatorLabel
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, VertexId
from penstock.core.key_groups import range_of
from penstock.core.messages import ChannelState, OperatorState, StateFile, raw_files
from penstock.core.recovery import roots
from penstock.core.recovery.layout import METADATA_NAME, component
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind, TaskChannels
from penstock.ports import Frame, Store
from penstock.runtime.task.operators.window_table import KEY_GROUP as WINDOW_KEY_GROUP
from penstock.runtime.task.operators.window_table import read_file, write_file
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.rows import GivenState, Rows, cast
from penstock.savepoints.tables import COLUMNAR, window_files
from penstock.state.format import TIMERS, FileOwner, encode_tables
from penstock.storage.locations import open_store
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import Anywhere
from penstock.storage.snapshots import SnapshotReader

JOB = JobId("bootstrap")
"""The job id in a savepoint that was made of tables alone."""

Parts = tuple[tuple[int, tuple[bytes, ...]], ...]
"""Operator state by subtask."""

_ID = re.compile(r"[a-z0-9_.-]+")


def operator_id(given: str) -> OperatorId:
    """The operator id for a given id or step name."""
    if not given.strip():
        raise UsageError("an operator needs an id, or the name of its step")
    return OperatorId(given if _ID.fullmatch(given) else id_part(given))


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A savepoint that is to be written."""

    base: SnapshotData | None = None
    max_parallelism: int
    parallelism: int
    """The parallelism of operators that the base does not have."""
    keyed: Mapping[OperatorId, tuple[GivenState, ...]] = field(default_factory=dict)
    windows: Mapping[OperatorId, Rows] = field(default_factory=dict)
    lists: Mapping[tuple[OperatorId, StateKind, str], Parts] = field(default_factory=dict)
    removed: tuple[OperatorId, ...] = ()
    renamed: Mapping[OperatorId, OperatorId] = field(default_factory=dict)

    # --- changing ------------------------------------------------------------------------

    def with_keyed(self, operator: OperatorId, state: GivenState) -> Draft:
        """Give the rows of a keyed state, or of timers. Raises `UsageError` if the operator's other states have other
        key columns."""
        known = self.keyed.get(operator, ())
        for other in (*known, *self._kept(operator)):
            if other.keys != state.keys:
                raise UsageError(
                    f"the state of {operator} is keyed by {_columns(other.keys)}; state {state.name!r} is given with "
                    f"the keys {_columns(state.keys)}"
                )
        others = tuple(other for other in known if (other.name, other.kind) != (state.name, state.kind))
        if any(other.name == state.name for other in others if TIMERS not in (other.kind, state.kind)):
            raise UsageError(f"{operator} is given state {state.name!r} twice, with different kinds")
        return replace(self, keyed={**self.keyed, operator: (*others, state)})

    def with_windows(self, operator: OperatorId, rows: Rows) -> Draft:
        """Give the rows of a window that the base has."""
        return replace(self, windows={**self.windows, operator: rows})

    def with_parts(self, operator: OperatorId, kind: StateKind, name: str, parts: Parts) -> Draft:
        """Give the parts of an operator state."""
        return replace(self, lists={**self.lists, (operator, kind, name): parts})

    def without(self, operator: OperatorId) -> Draft:
        """Leave an operator out. Raises `UsageError` if there is in-flight data to or from the operator."""
        self._check_flow(operator)
        return replace(self, removed=(*self.removed, operator))

    def with_id(self, operator: OperatorId, new: OperatorId) -> Draft:
        """Give an operator another id."""
        known = {*(self.base.metadata.operators if self.base else ()), *self.keyed, *self.renamed.values()}
        if new in known and new not in self.removed:
            raise UsageError(
                f"there is an operator {new} already", hint="remove that operator first, or choose another id"
            )
        return replace(self, renamed={**self.renamed, operator: new})

    def _check_flow(self, operator: OperatorId) -> None:
        for edge in self.base.edges() if self.base is not None else ():
            if operator in (edge.upstream, edge.downstream):
                raise UsageError(
                    f"{operator} cannot be removed: data was in flight from {edge.upstream} to {edge.downstream}",
                    hint="take a savepoint, which has nothing in flight, and remove the operator from that savepoint",
                )

    def _kept(self, operator: OperatorId) -> Iterator[GivenState]:
        """The keyed states of the base that are not given anew."""
        base = self.base
        if base is None or operator not in base.metadata.operators:
            return
        given = [(state.name, state.kind) for state in self.keyed.get(operator, ())]
        for info in base.states(operator):
            table = base.found_table(operator, f"{info.kind}:{info.name}")
            if table is not None and info.kind not in COLUMNAR and (info.name, info.kind) not in given:
                rows = _BaseRows(base, operator, f"{info.kind}:{info.name}")
                yield GivenState(spec=table.spec, keys=table.keys, rows=rows)

    # --- writing -------------------------------------------------------------------------

    def write(self, path: str | os.PathLike[str], *, now: Instant) -> str:
        """Write the savepoint into the folder `path`, which must be empty or must not exist. Returns the full path.
        Blocks. Raises `UsageError`, `CorruptFile`, `StorageError`."""
        location = restore(path).path
        store = open_store(location)
        if store.list_files(""):
            raise UsageError(f"{roots.shown(location)} is not empty", hint="give a folder that does not exist yet")
        try:
            metadata = _Writing(self, store, now).metadata()
            store.write(METADATA_NAME, encode_metadata(metadata))
        except BaseException:
            for name in store.list_files(""):
                store.delete(name)
            raise
        return location

    def kept_states(self, operator: OperatorId) -> tuple[GivenState, ...]:
        """All keyed states of an operator in the new savepoint."""
        return (*self._kept(operator), *self.keyed.get(operator, ()))


class _BaseRows:
    """Rows of an unchanged state, in an operator whose files are written anew."""

    def __init__(self, base: SnapshotData, operator: str, name: str) -> None:
        self._base = base
        self._operator = operator
        self._name = name

    def of_groups(self, first: int, last: int) -> pa.Table:
        """The rows of these key groups."""
        tables = list(self._base.tables(self._operator, self._name, (first, last)))
        return pa.concat_tables(tables) if tables else self._base.schema(self._operator, self._name).empty_table()


class _Writing:
    """One savepoint being written."""

    def __init__(self, draft: Draft, store: Store, now: Instant) -> None:
        self._draft = draft
        self._store = store
        self._now = now
        self._base = draft.base
        self._reader = SnapshotReader(Anywhere(store))
        self._copies: dict[str, StateFile] = {}
        self._names: dict[str, int] = {}

    def metadata(self) -> CheckpointMetadata:
        """Write all state files. Returns the metadata of the savepoint."""
        draft, base = self._draft, self._base.metadata if self._base is not None else None
        known = dict(base.operators) if base is not None else {}
        added = [o for o in (*draft.keyed, *(o for o, _, _ in draft.lists)) if o not in known]
        for operator in dict.fromkeys(added):
            known[operator] = OperatorSnapshot(
                operator=operator,
                vertex=VertexId(operator),
                parallelism=draft.parallelism,
                max_parallelism=draft.max_parallelism,
                label=OperatorLabel(name=operator),
            )
        operators = {
            draft.renamed.get(operator, operator): self._operator(snapshot)
            for operator, snapshot in known.items()
            if operator not in draft.removed
        }
        if base is None:
            return CheckpointMetadata(
                job=JOB,
                checkpoint=CheckpointId(1),
                timestamp=self._now,
                kind=SnapshotKind.SAVEPOINT,
                operators=operators,
            )
        kept = {o: state for o, state in base.coordinators.items() if o not in draft.removed}
        return msgspec.structs.replace(
            base,
            kind=base.kind if base.kind.is_savepoint else SnapshotKind.SAVEPOINT,
            operators=operators,
            channels=tuple(self._task_channels(task) for task in base.channels),
            coordinators={draft.renamed.get(o, o): state for o, state in kept.items()},
            edges=tuple(
                msgspec.structs.replace(
                    edge,
                    upstream=draft.renamed.get(edge.upstream, edge.upstream),
                    downstream=draft.renamed.get(edge.downstream, edge.downstream),
                )
                for edge in base.edges
            ),
        )

    # --- operators -----------------------------------------------------------------------

    def _operator(self, snapshot: OperatorSnapshot) -> OperatorSnapshot:
        draft, operator = self._draft, snapshot.operator
        new = draft.renamed.get(operator, operator)
        subtasks: dict[int, OperatorState] = {}
        given = operator in draft.keyed
        numbers = range(snapshot.parallelism) if given else sorted(snapshot.subtasks)
        states = draft.kept_states(operator) if given else ()
        for subtask in numbers:
            old = snapshot.subtasks.get(subtask, OperatorState(operator=operator))
            if given:
                state = self._keyed(snapshot, subtask, states)
            elif operator in draft.windows:
                state = self._window(snapshot, subtask, old)
            else:
                state = msgspec.structs.replace(old, keyed=tuple(self._copied(f, snapshot, subtask) for f in old.keyed))
            subtasks[subtask] = msgspec.structs.replace(
                state,
                operator=new,
                split_lists=old.split_lists,
                union_lists=old.union_lists,
                broadcast=old.broadcast,
                raw=raw_files(tuple(self._copied(f, snapshot, subtask) for f in old.raw_keyed)),
            )
        self._add_lists(operator, new, subtasks)
        found = {n: state for n, state in sorted(subtasks.items()) if not state.is_empty}
        label = snapshot.label
        if given or operator in draft.windows or any(operator == changed for changed, _, _ in draft.lists):
            # The label has the declarations of the program that took the base. The changed state may differ from them.
            label = OperatorLabel(name=label.name, kind=label.kind)
        return msgspec.structs.replace(snapshot, operator=new, subtasks=found, label=label)

    def _keyed(self, snapshot: OperatorSnapshot, subtask: int, states: tuple[GivenState, ...]) -> OperatorState:
        own = range_of(subtask, parallelism=snapshot.parallelism, groups=snapshot.max_parallelism)
        owner = FileOwner(
            operator=snapshot.operator, keys=states[0].keys, groups=snapshot.max_parallelism, own_groups=own
        )
        tables = ((state.spec, state.table(own, now_ms=self._now)) for state in states)
        # Timers come last in a file.
        data = encode_tables(owner, sorted(tables, key=lambda pair: pair[0] is None))
        files = () if data is None else (self._put(data, snapshot, subtask),)
        return OperatorState(operator=snapshot.operator, keyed=files, key_groups=own)

    def _window(self, snapshot: OperatorSnapshot, subtask: int, old: OperatorState) -> OperatorState:
        """The window's file with other rows. The header stays, and with it the record of the windows that have
        fired."""
        own = range_of(subtask, parallelism=snapshot.parallelism, groups=snapshot.max_parallelism)
        rows = self._draft.windows[snapshot.operator].of_groups(*own)
        files: list[StateFile] = []
        for data in window_files(old.keyed, self._reader):
            _, header = read_file(data)
            if header.leaving is True:
                files.append(self._put(data, snapshot, subtask))
                continue
            files.append(self._put(write_file(_ordered(rows), header), snapshot, subtask))
            rows = rows.slice(0, 0)
        if rows.num_rows:
            raise UsageError(f"the windows given for {snapshot.title} belong to a subtask that had no state")
        return OperatorState(operator=snapshot.operator, keyed=tuple(files), key_groups=old.key_groups)

    def _add_lists(self, operator: OperatorId, new: OperatorId, subtasks: dict[int, OperatorState]) -> None:
        for (owner, kind, name), parts in self._draft.lists.items():
            if owner != operator:
                continue
            for subtask, state in subtasks.items():
                subtasks[subtask] = _without_list(state, kind, name)
            for subtask, found in parts:
                state = subtasks.get(subtask, OperatorState(operator=new))
                subtasks[subtask] = _with_list(state, kind, name, found)

    # --- files ---------------------------------------------------------------------------

    def _put(self, data: Frame, snapshot: OperatorSnapshot, subtask: int) -> StateFile:
        prefix = f"{component(snapshot.operator)}-{subtask}"
        number = self._names.get(prefix, 0)
        self._names[prefix] = number + 1
        view = memoryview(data)
        path = f"{prefix}-{number}"
        self._store.write(path, view)
        return StateFile(path=path, size=view.nbytes, checksum=xxhash.xxh3_64_intdigest(view))

    def _copied(self, file: StateFile, snapshot: OperatorSnapshot, subtask: int) -> StateFile:
        if file.path is None:
            return file
        if file.path not in self._copies:
            # A savepoint shares no file, so the copy has no shared key.
            self._copies[file.path] = self._put(self._reader.get(file), snapshot, subtask)
        return self._copies[file.path]

    def _task_channels(self, task: TaskChannels) -> TaskChannels:
        return msgspec.structs.replace(task, inputs=self._channels(task.inputs), outputs=self._channels(task.outputs))

    def _channels(self, states: tuple[ChannelState, ...]) -> tuple[ChannelState, ...]:
        found: list[ChannelState] = []
        for state in states:
            file = state.file
            if file.path is not None:
                if file.path not in self._copies:
                    path = f"channels-{len(self._copies)}"
                    self._store.write(path, self._reader.get(file))
                    self._copies[file.path] = msgspec.structs.replace(file, path=path)
                file = self._copies[file.path]
            found.append(msgspec.structs.replace(state, file=file))
        return tuple(found)


def window_rows(given: pa.Table, schema: pa.Schema) -> pa.Table:
    """The given rows with the columns and types of the window; the key group in front. Raises `UsageError`."""
    if sorted(given.schema.names) != sorted(schema.names):
        raise UsageError(
            f"windows are given with the columns {', '.join(given.schema.names)} instead of {', '.join(schema.names)}",
            hint="give a table with the same columns as the table that reading the state returns",
        )
    columns = [cast(given.column(f.name), f.type, what=f"column {f.name!r} of the windows") for f in schema]
    return pa.table(columns, schema=schema)


def _ordered(table: pa.Table) -> pa.Table:
    """The rows in the form of a file: ordered by key group, with the key group as the last column."""
    first, names = table.schema.names[0], table.schema.names[1:]
    ordered = table.sort_by(first)
    return ordered.select([*names, first]).rename_columns([*names, WINDOW_KEY_GROUP]).combine_chunks()


def _without_list(state: OperatorState, kind: StateKind, name: str) -> OperatorState:
    return msgspec.structs.replace(
        state,
        split_lists={n: p for n, p in state.split_lists.items() if (kind, n) != (StateKind.SPLIT_LIST, name)},
        union_lists={n: p for n, p in state.union_lists.items() if (kind, n) != (StateKind.UNION_LIST, name)},
        broadcast={n: p for n, p in state.broadcast.items() if (kind, n) != (StateKind.BROADCAST, name)},
    )


def _with_list(state: OperatorState, kind: StateKind, name: str, parts: tuple[bytes, ...]) -> OperatorState:
    if kind is StateKind.SPLIT_LIST:
        return msgspec.structs.replace(state, split_lists={**state.split_lists, name: parts})
    if kind is StateKind.UNION_LIST:
        return msgspec.structs.replace(state, union_lists={**state.union_lists, name: parts})
    return msgspec.structs.replace(state, broadcast={**state.broadcast, name: parts[0]})


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name}: {f.type}" for f in schema)
