"""How the states of two snapshots differ, key by key.

Keyed state is compared range by range of key groups, so that only the files of one range are in memory at a time. If
the two snapshots have different numbers of key groups, a state is compared as a whole. The time at which an entry of a
state with a TTL was written is not compared. The list of a key is compared as a whole. Parts of split and union lists
have no identity: a part that only one of the two snapshots has counts as added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.api.state import StateKind
from penstock.core.errors import UsageError
from penstock.savepoints.catalog import SnapshotData, StateInfo
from penstock.savepoints.tables import ALL_GROUPS, COLUMNAR, JOIN, RUNNING, WINDOWS
from penstock.sql.python_values import shown_rows, shown_values
from penstock.state.format import TIMERS
from penstock.state.keys import key_values

_ABSENT = object()
_RAW_KEYED = StateKind.RAW_KEYED.value


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One entry that differs."""

    change: str
    """`added`, `removed` or `changed`."""
    key: tuple[Any, ...]
    """The values that identify the entry: the key, and a map's key, a timer's kind and time, or a window's start."""
    old: Any = None
    new: Any = None


@dataclass(kw_only=True)
class StateDifference:
    """How one state differs."""

    operator: str
    state: str
    kind: str
    identity: tuple[str, ...] = ()
    """The names of the values in `Difference.key`."""
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    first: list[Difference] = field(default_factory=list)
    note: str = ""
    """Why the state could not be compared; empty if it was compared."""

    @property
    def differs(self) -> bool:
        """Whether the two sides are not the same."""
        return bool(self.added or self.removed or self.changed or self.note)


def compare(
    old: SnapshotData, new: SnapshotData, *, operator: str | None = None, state: str | None = None, shown: int = 10
) -> list[StateDifference]:
    """The differences of every state, or of the states of one operator, or of one state. Up to `shown` differences of
    each state are named, the others only counted. Raises `UsageError` for an operator or a state that neither snapshot
    has."""
    if operator is not None:
        pairs = [operator]
    else:
        pairs = list(dict.fromkeys([*old.metadata.operators, *new.metadata.operators]))
    found: list[StateDifference] = []
    for name in pairs:
        sides = [_states(snapshot, name) for snapshot in (old, new)]
        if operator is not None and not any(_has(snapshot, name) for snapshot in (old, new)):
            new.snapshot_of(name)
        found.extend(
            _compare_state(old, new, name, (sides[0].get(key), sides[1].get(key)), shown)
            for key in dict.fromkeys([*sides[0], *sides[1]])
            if state is None or state in (key[1], f"{key[0]}:{key[1]}")
        )
    if state is not None and not found:
        raise UsageError(f"neither snapshot has state {state!r} of {operator!r}")
    return found


def _has(snapshot: SnapshotData, operator: str) -> bool:
    return any(operator in (info.id, info.name) for info in snapshot.operators())


def _states(snapshot: SnapshotData, operator: str) -> dict[tuple[str, str], StateInfo]:
    if not _has(snapshot, operator):
        return {}
    return {(info.kind, info.name): info for info in snapshot.states(operator)}


def _compare_state(
    old: SnapshotData,
    new: SnapshotData,
    operator: str,
    infos: tuple[StateInfo | None, StateInfo | None],
    shown: int,
) -> StateDifference:
    # The table of a window without rows does not name its keys, so the table with more columns is taken.
    info = max((found for found in infos if found is not None), key=lambda found: len(found.columns))
    result = StateDifference(operator=operator, state=info.name, kind=info.kind, identity=_identity(info))
    columns = [found.columns for found in infos if found is not None and found.rows]
    if len(dict.fromkeys(columns)) > 1:
        result.note = f"columns were {', '.join(columns[0])} and are {', '.join(columns[1])}"
        return result
    for groups in _ranges(old, new, operator, infos):
        sides = [
            {} if found is None else _entries(snapshot, operator, found, groups)
            for snapshot, found in zip((old, new), infos, strict=True)
        ]
        _count(result, sides[0], sides[1], shown)
    return result


def _identity(info: StateInfo) -> tuple[str, ...]:
    if info.kind == _RAW_KEYED:
        return ("key_group",)
    if info.kind == RUNNING and not info.key_columns:
        # There is a single row.
        return ("key_group",)
    if not info.key_columns and info.kind != WINDOWS:
        return ("subtask",) if info.kind == "broadcast" else ("part", "occurrence")
    extra = {"map": ("map_key",), TIMERS: ("timer", "time_us"), WINDOWS: ("window_start",)}.get(info.kind, ())
    names = [text.partition(": ")[0] for text in info.columns]
    if info.kind == JOIN:
        # Several records of a key are kept. The key group comes first, and the mark comes last.
        return tuple(names[1:-1])
    if info.kind == WINDOWS and "window_end" in names:
        # Windows that begin together differ in their ends.
        extra = (*extra, "window_end")
    return (*info.key_columns, *(name if name in names else f"_{name}" for name in extra))


def _ranges(
    old: SnapshotData, new: SnapshotData, operator: str, infos: tuple[StateInfo | None, StateInfo | None]
) -> Iterator[tuple[int, int]]:
    """Ranges of key groups that together are all key groups: the ranges of the snapshot with more subtasks."""
    known = [snapshot.snapshot_of(operator) for snapshot, info in zip((old, new), infos, strict=True) if info]
    keyed = any(info is not None and info.key_columns for info in infos)
    if not keyed or len(dict.fromkeys(snapshot.max_parallelism for snapshot in known)) > 1:
        yield ALL_GROUPS
        return
    widest = max(known, key=lambda snapshot: len(snapshot.subtasks))
    bounds = sorted(state.key_groups[0] for state in widest.subtasks.values() if state.key_groups is not None)
    starts = [0, *bounds[1:]]
    yield from zip(starts, [*(start - 1 for start in starts[1:]), ALL_GROUPS[1]], strict=True)


def _entries(
    snapshot: SnapshotData, operator: str, info: StateInfo, groups: tuple[int, int]
) -> dict[tuple[Any, ...], Any]:
    """Every entry, by the values that identify the entry."""
    found: dict[tuple[Any, ...], Any] = {}
    identity = _identity(info)
    for table in snapshot.tables(operator, f"{info.kind}:{info.name}", groups):
        if not info.key_columns and info.kind not in COLUMNAR:
            _add_parts(found, table, info.kind)
            continue
        keys = zip(*(_key_values(name, table.column(name).combine_chunks()) for name in identity), strict=True)
        ours = [name for name in table.schema.names if name not in identity]
        values = _values(table, ours, info.kind)
        for key, value in zip(keys, values, strict=True):
            if info.kind == "list":
                found.setdefault(key, []).append(value)
            else:
                found[key] = value
    return found


def _key_values(name: str, column: Any) -> list[Any]:
    """The values of a key column, such that equal keys are equal values. Times that Python does not have are texts."""
    try:
        return key_values(name, column)
    except UsageError:
        return shown_values(column)


def _values(table: pa.Table, columns: list[str], kind: str) -> list[Any]:
    if kind == TIMERS:
        return [None] * table.num_rows
    if kind in COLUMNAR:
        return shown_rows(table.select([name for name in columns if name != table.schema.names[0]]))
    # The key group comes first, then the value, then the time of writing if the state has a TTL.
    return shown_values(table.column(columns[1]))


def _add_parts(found: dict[tuple[Any, ...], Any], table: pa.Table, kind: str) -> None:
    seen: dict[bytes, int] = {}
    for row in table.to_pylist():
        if kind in ("broadcast", _RAW_KEYED):
            found[(row["subtask" if kind == "broadcast" else "key_group"],)] = row["value"]
            continue
        part = row["value"]
        seen[part] = seen.get(part, 0) + 1
        found[(part, seen[part])] = None


def _count(
    result: StateDifference, old: dict[tuple[Any, ...], Any], new: dict[tuple[Any, ...], Any], shown: int
) -> None:
    for key, value in old.items():
        other = new.get(key, _ABSENT)
        if other is _ABSENT:
            result.removed += 1
            _note(result, Difference(change="removed", key=key, old=value), shown)
        elif value == other or repr(value) == repr(other):
            # By text, too: a NaN is not equal to itself, but two NaNs are no difference.
            result.same += 1
        else:
            result.changed += 1
            _note(result, Difference(change="changed", key=key, old=value, new=other), shown)
    for key, value in new.items():
        if key not in old:
            result.added += 1
            _note(result, Difference(change="added", key=key, new=value), shown)


def _note(result: StateDifference, difference: Difference, shown: int) -> None:
    if len(result.first) < shown:
        result.first.append(difference)
