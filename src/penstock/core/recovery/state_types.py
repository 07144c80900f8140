"""Whether the states of a snapshot fit the states that the program declares. Kinds and types are compared.

A state of the same name must have the same kind and the same type, or a wider number type in the program. Rows that a
step keeps, because they wait for something, must have the columns that the rows have in the program. If a snapshot
does not record the types of its states, nothing is refused here: a state that does not fit is found when a subtask
loads the state.
"""

from __future__ import annotations

from penstock.core.errors import UsageError
from penstock.core.graph import DeclaredState, OperatorLabel
from penstock.core.ids import OperatorId
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, described

_WIDTHS = (("int8", "int16", "int32", "int64"), ("halffloat", "float", "double"))
"""Types of numbers: each type can hold every value of the types before it."""

_RAW = "raw"
"""The type of state that is bytes, and that is given back as it is."""
_SPLIT, _UNION, _BROADCAST = "split-list", "union-list", "broadcast"
_ROWS = "rows"
"""The kind of state that is rows of the step's input."""


def check_types(metadata: CheckpointMetadata, labels: dict[OperatorId, OperatorLabel]) -> None:
    """Raise `UsageError` if states of these operators had other types in the snapshot; the error names all such
    states."""
    problems = [
        problem
        for operator, label in labels.items()
        for problem in (
            *_problems(metadata.operators[operator], label, described(operator, label)),
            *_connectors(metadata, operator, label),
        )
    ]
    if problems:
        raise UsageError(
            f"{metadata.title} does not fit the program: {'; '.join(problems)}",
            hint="go back to the types that the snapshot has; or give another name to the changed state, or to a step "
            "whose keys, windows, source or sink have changed: a state or step with another name starts without state",
        )


def _problems(snapshot: OperatorSnapshot, label: OperatorLabel, title: str) -> list[str]:
    found: list[str] = []
    if snapshot.has_keyed_state:
        before, now = snapshot.label.keys, label.keys
        if before and now and _types(before) != _types(now):
            found.append(f"the state of {title} is keyed by {', '.join(before)}, the program has {', '.join(now)}")
        pairs = [(name, was, label.states.get(name)) for name, was in snapshot.label.states.items()]
    else:
        pairs = []
    pairs += [(name, _saved(snapshot, kind, name), label.states.get(name)) for kind, name in _of_subtasks(snapshot)]
    found += [
        f"state {name!r} of {title} was {was}, the program declares {now}"
        for name, was, now in pairs
        if now is not None and now.kind != _ROWS and not _fits(was, now)
    ]
    return [*found, *_kept_rows(snapshot, label, title)]


def _kept_rows(snapshot: OperatorSnapshot, label: OperatorLabel, title: str) -> list[str]:
    """Rows that a step keeps in a list fit only if the rows of the program have the same columns."""
    found: list[str] = []
    for name, now in label.states.items():
        was = snapshot.label.states.get(name)
        if now.kind != _ROWS or was is None or was.kind != _ROWS or was.type == now.type:
            continue
        subtasks = snapshot.subtasks.values()
        parts = [part for s in subtasks for lists in (s.split_lists, s.union_lists) for part in lists.get(name, ())]
        # An empty part has no rows.
        if any(parts):
            found.append(f"{title} keeps rows with the columns {was.type}, and its rows have {now.type} in the program")
    return found


def _connectors(metadata: CheckpointMetadata, operator: OperatorId, label: OperatorLabel) -> list[str]:
    """The splits of one source mean nothing to another source, or something else; and so with sinks."""
    snapshot = metadata.operators[operator]
    was, now = snapshot.label.connector, label.connector
    if not was or not now or was == now or not (snapshot.has_state or operator in metadata.coordinators):
        return []
    return [f"{described(operator, label)} has the state of {was}, and in the program it is {now}"]


def _types(keys: tuple[str, ...]) -> list[str]:
    """The types of the key columns. The name of a key column may change."""
    return [key.rpartition(": ")[2] for key in keys]


def _of_subtasks(snapshot: OperatorSnapshot) -> list[tuple[str, str]]:
    """Kind and name of every state that is not keyed."""
    found: dict[tuple[str, str], None] = {}
    for state in snapshot.subtasks.values():
        for kind, names in ((_SPLIT, state.split_lists), (_UNION, state.union_lists), (_BROADCAST, state.broadcast)):
            found.update(dict.fromkeys((kind, name) for name in names))
    return list(found)


def _saved(snapshot: OperatorSnapshot, kind: str, name: str) -> DeclaredState:
    """The declaration of a state that is not keyed; with its type only if the snapshot records the type."""
    said = snapshot.label.states.get(name)
    return DeclaredState(kind=kind, type=said.type if said is not None and said.kind == kind else "")


def _fits(was: DeclaredState, now: DeclaredState) -> bool:
    if was.kind in (_SPLIT, _UNION, _BROADCAST):
        # The values of these states are pickled, whatever type is declared, unless the states are raw.
        return was.kind == now.kind and (not was.type or (was.type == _RAW) == (now.type == _RAW))
    if (was.kind, was.map_key) != (now.kind, now.map_key):
        return False
    return was.type == now.type or any(
        was.type in width and now.type in width and width.index(was.type) < width.index(now.type) for width in _WIDTHS
    )
