"""Finds state in a snapshot that a job would unpickle if the job started from the snapshot.

To unpickle is to run code that the pickle names. Three kinds of state are pickled: values, map keys and aggregates that
are declared as `object`, state of functions that belongs to no key, and the state of Python Data Sources. All other
state has a format of its own: raw state has the format of the function; rows that wait for another input, and rows
about which an async function was asked, have Arrow's format.

The files of a snapshot say which state is pickled, so that nothing is unpickled here. A file that lies gains nothing:
the operator that loads the file decodes each state by its type, which must be the same in the file and in the program,
and refuses state that the file does not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.api.aggregate_kinds.description import Aggregate, SavedAggregate
from penstock.api.state import StateKind
from penstock.api.state_declarations import declared_states
from penstock.api.steps import (
    REQUESTS,
    WAITING,
    AsyncMapStep,
    CombineStep,
    DeduplicateStep,
    KeyedProcessStep,
    PatternStep,
    ProcessStep,
    ReadStep,
    RunningCombineStep,
    RunningStep,
    WindowStep,
    WriteStep,
)
from penstock.core.errors import UsageError
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.plan.graph import Plan
from penstock.runtime.task.operators.join_files import is_join_index
from penstock.runtime.task.operators.join_snapshot import is_join
from penstock.runtime.task.operators.passed_times import PASSED
from penstock.runtime.task.operators.running_files import RunningSnapshot, is_running_index
from penstock.runtime.task.operators.window_table import is_window, read_file
from penstock.state.backend import StateReader
from penstock.state.format import CanonicalFile, is_canonical
from penstock.state.rocksdb.native import NativeSnapshot, is_native
from penstock.state.runs import RunSnapshot, is_runs

_SHOWN = 3


def refuse_pickles(metadata: CheckpointMetadata, plan: Plan, reader: StateReader) -> None:
    """Raise `UsageError` if the snapshot has state that operators of the program would unpickle. Reads all keyed state.
    Blocks. Also raises `CorruptFile` and `StorageError`."""
    steps = {operator.operator: operator.step for vertex in plan.vertices for operator in vertex.operators}
    found: list[str] = []
    for operator, snapshot in metadata.operators.items():
        for state in snapshot.subtasks.values():
            found += [f"{name} of {snapshot.title}" for name in _pickled(state, steps.get(operator), reader)]
    found += [f"the plan of {o}" for o in metadata.coordinators if _unpickles(steps.get(o))]
    if metadata.channels:
        found += [f"in-flight data of {o}" for o, step in steps.items() if _sends_pickles(step)]
    if found:
        names = list(dict.fromkeys(found))
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UsageError(
            f"{metadata.title} has pickled state: {', '.join(names[:_SHOWN])}{more}",
            hint="unpickling runs code from the snapshot; leave unpickle=False out only if you trust its makers",
        )


def _pickled(state: OperatorState, step: object, reader: StateReader) -> Iterator[str]:
    if isinstance(step, WindowStep | RunningStep) and state.keyed:
        # Whatever the files say: these are the aggregates that the operator unpickles.
        yield from _objects(step.aggregates)
    yield from _pickled_keyed(state, reader)
    if not _unpickles(step):
        return
    raw = _lists_as_they_are(step)
    for kind, lists in ((StateKind.SPLIT_LIST, state.split_lists), (StateKind.UNION_LIST, state.union_lists)):
        yield from (repr(name) for name in lists if (kind, name) not in raw)
    yield from map(repr, state.broadcast)


def _lists_as_they_are(step: object) -> list[tuple[StateKind, str]]:
    """Kind and name of the lists whose parts the step does not unpickle, whatever the snapshot says. A function is
    given raw state as it is. Rows that wait for another input, and rows about which an async function was asked, are
    read as Arrow data. How far event time has come is read as numbers."""
    if isinstance(step, AsyncMapStep):
        return [(StateKind.UNION_LIST, REQUESTS), (StateKind.SPLIT_LIST, REQUESTS)]
    if isinstance(step, DeduplicateStep | PatternStep):
        return [(StateKind.UNION_LIST, PASSED)]
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


def _sends_pickles(step: object) -> bool:
    """Whether the records that a step sends to other subtasks may have pickled values: partials of aggregates whose
    states are objects. The schema of in-flight data does not tell such values from other bytes."""
    return isinstance(step, CombineStep | RunningCombineStep) and bool(_objects(step.aggregates))


def _objects(aggregates: Iterable[Aggregate]) -> list[str]:
    """The names of aggregates whose states are objects."""
    return [repr(each.name) for each in aggregates if each.saved().is_pickled]


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
    if is_runs(first) and is_running_index(first, state.keyed):
        running = RunningSnapshot(first, state.keyed, what="the state of a subtask")
        yield from _pickled_aggregates(running.header.layout.aggregates)
        return
    if is_runs(first) and is_join_index(first, state.keyed):
        return
    if is_runs(first):
        for section in RunSnapshot(first, state.keyed, what="the state of a subtask").sections:
            yield from _pickled_windows(section)
        return
    for number, file in enumerate(state.keyed):
        data = first if number == 0 else reader.get(file)
        if is_canonical(data):
            header = CanonicalFile(data, what="the state of a subtask").header
            yield from (repr(table.name) for table in header.tables if table.object_value or table.object_key)
        elif is_window(data) and not is_join(data):
            yield from _pickled_windows(data)


def _pickled_windows(data: bytes) -> Iterator[str]:
    return _pickled_aggregates(read_file(data)[1].layout.aggregates)


def _pickled_aggregates(saved: Iterable[SavedAggregate]) -> Iterator[str]:
    return (repr(each.name) for each in saved if each.is_pickled)
