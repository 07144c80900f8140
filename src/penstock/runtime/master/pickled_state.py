"""Which state of a snapshot would be unpickled by a job that starts from it.

Unpickling runs what the pickle says. Pickled are values and map keys that are declared as `object`, state of functions
that belongs to no key, and what Python Data Sources keep; all else has a format of its own, raw state that of the
function, and rows that wait for another input that of Arrow. It is told by what the files say about themselves, without
unpickling anything. What a file says is not trusted any further: whoever loads it decodes it by the type that it says
and the program declares, both the same, and refuses what the file does not name.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.api.state import StateKind, declared_states
from penstock.api.steps import KeyedProcessStep, ProcessStep, ReadStep, WriteStep
from penstock.core.errors import UsageError
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.plan.graph import Plan
from penstock.runtime.task.operators.waiting import WAITING
from penstock.state.backend import StateReader
from penstock.state.format import CanonicalFile, is_canonical
from penstock.state.rocksdb.native import NativeSnapshot, is_native

_SHOWN = 3


def refuse_pickles(metadata: CheckpointMetadata, plan: Plan, reader: StateReader) -> None:
    """Raise `UsageError` if the snapshot has state that operators of the program would unpickle. Reads all keyed state.
    Blocks. Raises `CorruptFile` or `StorageError`, too."""
    steps = {operator.operator: operator.step for vertex in plan.vertices for operator in vertex.operators}
    found: list[str] = []
    for operator, snapshot in metadata.operators.items():
        for state in snapshot.subtasks.values():
            found += [f"{name} of {snapshot.title}" for name in _pickled(state, steps.get(operator), reader)]
    found += [f"the plan of {o}" for o in metadata.coordinators if _unpickles(steps.get(o))]
    if found:
        names = list(dict.fromkeys(found))
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UsageError(
            f"{metadata.title} has pickled state: {', '.join(names[:_SHOWN])}{more}",
            hint="unpickling runs what the snapshot says; leave unpickle=False out if you trust who made it",
        )


def _pickled(state: OperatorState, step: object, reader: StateReader) -> Iterator[str]:
    yield from _pickled_keyed(state, reader)
    if not _unpickles(step):
        return
    raw = _lists_as_they_are(step)
    for kind, lists in ((StateKind.SPLIT_LIST, state.split_lists), (StateKind.UNION_LIST, state.union_lists)):
        yield from (repr(name) for name in lists if (kind, name) not in raw)
    yield from map(repr, state.broadcast)


def _lists_as_they_are(step: object) -> list[tuple[StateKind, str]]:
    """Kind and name of the lists whose parts are not unpickled, whatever the snapshot says: a function is given raw
    state as it is, and rows that wait are read as Arrow's, by whoever has rows wait."""
    if not isinstance(step, ProcessStep | KeyedProcessStep):
        return []
    specs = (state.spec for state in declared_states(step.function).values())
    found = [(spec.kind, spec.name) for spec in specs if spec.is_raw]
    if isinstance(step, KeyedProcessStep) and step.wait is not None:
        found.append((StateKind.UNION_LIST, WAITING))
    return found


def _unpickles(step: object) -> bool:
    """Whether an operator unpickles state that belongs to no key."""
    if isinstance(step, ReadStep):
        return step.source.unpickles
    return step.sink.unpickles if isinstance(step, WriteStep) else True


def _pickled_keyed(state: OperatorState, reader: StateReader) -> Iterator[str]:
    if not state.keyed:
        return
    first = reader.get(state.keyed[0])
    if is_native(first):
        index = NativeSnapshot(first, state.keyed, what="the state of a subtask").index
        for entry in index.states:
            is_map = entry.kind == StateKind.MAP.value
            if entry.value_type is None or (is_map and entry.map_key_type is None):
                yield repr(entry.name)
        return
    for number, file in enumerate(state.keyed):
        data = first if number == 0 else reader.get(file)
        if is_canonical(data):
            header = CanonicalFile(data, what="the state of a subtask").header
            yield from (repr(table.name) for table in header.tables if table.object_value or table.object_key)
