"""The matches of a pattern, among the records of each key in the order of event time.

Records are cheap until they matter: the parts of the conditions that follow from a record alone are computed for whole
batches, and a record that fulfils none of them is dropped, unless the pattern says that records follow each other
directly. The other records wait in the state until event time has come to them. Each time of a waiting record, and each
time at which something that was taken runs out of time, is a timer of its key.

Timers are handled some at a time, in the order of time and key, and keys that are handled together ask their questions
together. How many timers are handled together changes no result and no order: no timer that is set meanwhile is for a
time before the last of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.pattern_steps import MATCH_TIME, MATCHES, TIMED_OUT, WAITING, PatternStep, Reference
from penstock.api.state import StateKind, StateSpec
from penstock.api.steps import LATE
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.columns import condition_masks
from penstock.runtime.task.operators.passed_times import PassedTimes
from penstock.runtime.task.operators.pattern_automaton import Automaton
from penstock.runtime.task.operators.pattern_matches import (
    Asked,
    KeyMatches,
    Link,
    Moment,
    Question,
    Row,
    rows_by_name,
    rows_taken,
)
from penstock.runtime.task.operators.process import UPKEEP
from penstock.runtime.task.operators.rows import rows_of
from penstock.runtime.task.operators.user_code import expression_error
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Slices, Steps, Work
from penstock.sql.column_values import array_of
from penstock.state.backend import MISSING, Key, KeyedBackend, StateContext, TimerKind
from penstock.state.backends import make_backend
from penstock.state.keys import keys_of

_ROWS_AT_ONCE = 2_048
"""So many records are put into the state before other work of the task is looked for."""
_RESULTS_AT_ONCE = 4_096
_MOST_TIMERS = 4_096
_LEAST_TIMERS = 128
"""Fewer timers are not worth the cost of asking the questions of all their keys together."""

_EVENT_TIME = TimerKind.EVENT_TIME

_Due = tuple[int, Key, int]
"""The time of a timer, its key and the key group of the key."""


class _Run:
    """A key that is being handled: its partial matches, and the timers that are due."""

    def __init__(self, key: Key, group: int, matches: KeyMatches) -> None:
        self.key = key
        self.group = group
        self.matches = matches
        self.due: list[int] = []
        """The number of the timer of each moment."""
        self.moments: list[Moment] = []


class PatternOperator(Operator):
    """Hands on matches, and partial matches that ran out of time."""

    def __init__(self, step: PatternStep) -> None:
        self._step = step
        self._automaton = Automaton(step.shape)
        self._referring = sum(1 << n for n, each in enumerate(step.conditions) if each.referring is not None)
        self._passed = PassedTimes(step.late, step.keys)
        self._backend: KeyedBackend | None = None
        self._slices = Slices(most=_MOST_TIMERS)
        self._counts = dict.fromkeys(("late_dropped", "timeless_dropped", "matches", "timed_out"), 0)

    def load(self, context: OperatorContext) -> None:
        """Restore what waits, the partial matches of this subtask's keys, and how far event time had come."""
        step, types = self._step, self._step.state_types
        self._backend = (context.make_backend or make_backend)(
            StateContext(
                operator=context.operator,
                name=context.name,
                subtask=context.task.subtask,
                keys=step.key_schema,
                groups=context.max_parallelism,
                own_groups=context.key_groups,
                groups_of=lambda batch: key_groups(batch, step.keys, context.max_parallelism),
                specs=(
                    StateSpec(name=WAITING, kind=StateKind.MAP, type=types[WAITING], map_key=pa.int64()),
                    StateSpec(name=MATCHES, kind=StateKind.VALUE, type=types[MATCHES]),
                ),
                now=context.now,
                settings=context.state,
            )
        )
        if not context.fresh:
            self._backend.restore([state.keyed for state in context.restored if state.keyed], context.reader)
            self._passed.restore(context.restored, context)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start."""
        super().open(context, output)
        backend = self._opened()
        self._waiting, self._matches = backend.map_table(WAITING), backend.value_table(MATCHES)

    # --- records ---------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Let the records wait for event time."""
        batch = self._on_time(batch)
        return Work.begin(self._take_in(batch)) if batch.num_rows else None

    def _on_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that have a time, and are not late."""
        times: Any = batch.column(self._step.late.time_column)
        if times.null_count:
            self._counts["timeless_dropped"] += times.null_count
            batch = batch.filter(times.is_valid())
        late = self._passed.late(batch, self.context.max_parallelism)
        if late is None:
            return batch
        if LATE in self.sides:
            self.sides[LATE].emit(batch.filter(pa.array(late)))
        else:
            self._counts["late_dropped"] += int(late.sum())
        return batch.filter(pa.array(~late))

    def _take_in(self, batch: pa.RecordBatch) -> Steps:
        truths = self._truths(batch)
        if not self._step.shape.needs_all_records and not truths.all():
            chosen: Any = pa.array(truths != 0)
            batch, truths = batch.filter(chosen), truths[truths != 0]
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            self._wait(batch.slice(first, _ROWS_AT_ONCE), truths[first : first + _ROWS_AT_ONCE])
            if self.slice.spend(_ROWS_AT_ONCE) and first + _ROWS_AT_ONCE < batch.num_rows:
                # The records that are left are in no state yet.
                yield False

    def _truths(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """For each record the conditions that may be true, as far as they follow from the record alone."""
        conditions = self._step.conditions
        alone = [(number, each.alone) for number, each in enumerate(conditions) if each.alone is not None]
        always = sum(1 << number for number, each in enumerate(conditions) if each.alone is None)
        found = np.full(batch.num_rows, always, np.int64)
        if alone:
            try:
                masks = condition_masks(batch, [condition for _, condition in alone])
            except Exception as error:
                raise expression_error(error, self.context) from error
            for (number, _), mask in zip(alone, masks, strict=True):
                found |= mask.astype(np.int64) << number
        return found

    def _wait(self, batch: pa.RecordBatch, truths: npt.NDArray[np.int64]) -> None:
        backend, waiting, step = self._opened(), self._waiting, self._step
        get, put, set_key, set_timer = waiting.get, waiting.put, backend.set_key, backend.timers.add
        keys = keys_of({key: batch.column(key) for key in step.keys})
        groups = key_groups(batch, step.keys, self.context.max_parallelism).tolist()
        times = self._passed.times(batch).tolist()
        for key, group, time, true, row in zip(keys, groups, times, truths.tolist(), rows_of(batch), strict=True):
            set_key(key, group)
            entry = {"truths": true, "record": row if true else None}
            found = get(time)
            if found is MISSING:
                put(time, [entry])
                set_timer(_EVENT_TIME, time)
            else:
                found.append(entry)
                put(time, found)
        backend.unset_key()
        backend.maintain(2 * batch.num_rows)

    # --- time ------------------------------------------------------------------------------

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Take in the records that event time has come to, then hand the watermark on."""
        self._passed.advance(time_us)
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        backend = self._opened()
        while due := self._due(time_us):
            since_ms = self.slice.now_ms()
            yield from self._handle(due)
            backend.maintain(2 * len(due))
            self._slices.took(len(due), self.slice.now_ms() - since_ms)
            if self.slice.spend(len(due)):
                yield True
        self.output.watermark(time_us, idle=idle)

    def _due(self, time_us: int) -> list[_Due]:
        """The next timers. No timer that they set is for a time before the last of them."""
        timers, shortest = self._opened().timers, self._step.shape.shortest_us
        first = timers.first(_EVENT_TIME)
        if first is None or first > time_us:
            return []
        until = time_us if shortest is None else min(time_us, first + shortest - 1)
        most = min(max(self._slices.rows, _LEAST_TIMERS), self.slice.left)
        found: list[_Due] = []
        while len(found) < most and (due := timers.pop_due(_EVENT_TIME, until)) is not None:
            found.append(due)
        return found

    def _handle(self, due: Sequence[_Due]) -> Steps:
        """Handle some timers together. No snapshot may be taken meanwhile."""
        runs = self._begun(due)
        begun = [run.matches.run(run.moments) for run in runs]
        waiting = [(asking, asked) for asking in begun if (asked := next(asking, None)) is not None]
        while waiting:
            if self.slice.is_over:
                yield False
            answers = self._answers([asked for _, asked in waiting])
            told = [(asking, _sent(asking, answer)) for (asking, _), answer in zip(waiting, answers, strict=True)]
            waiting = [(asking, asked) for asking, asked in told if asked is not None]
        self._write(runs)
        yield from self._emit(runs, due)

    def _begun(self, due: Sequence[_Due]) -> list[_Run]:
        """The keys of timers, with their partial matches and with the records that wait."""
        backend, waiting, runs = self._opened(), self._waiting, dict[Key, _Run]()
        for number, (time, key, group) in enumerate(due):
            backend.set_key(key, group)
            run = runs.get(key)
            if run is None:
                matches = KeyMatches(self._step.shape, self._automaton, referring=self._referring)
                saved = self._matches.get()
                if saved is not MISSING:
                    matches.load(saved)
                run = runs[key] = _Run(key, group, matches)
            records = waiting.get(time)
            if records is MISSING:
                records = []
            else:
                waiting.remove(time)
            run.due.append(number)
            run.moments.append((time, [(each["truths"], each["record"]) for each in records]))
        backend.unset_key()
        return list(runs.values())

    def _write(self, runs: Sequence[_Run]) -> None:
        backend = self._opened()
        for run in runs:
            backend.set_key(run.key, run.group)
            if run.matches.is_empty:
                self._matches.remove()
            else:
                self._matches.put(run.matches.saved())
            for deadline in run.matches.deadlines:
                if deadline < MAX_WATERMARK:
                    backend.timers.add(_EVENT_TIME, deadline)
        backend.unset_key()

    # --- conditions that refer to earlier records ------------------------------------------

    def _answers(self, asked: Sequence[tuple[Row | None, list[Question]]]) -> list[list[bool]]:
        """Whether the conditions are true. The questions of all keys are answered condition by condition."""
        answers = [[False] * len(questions) for _, questions in asked]
        by_condition: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, (_, questions) in enumerate(asked):
            for place, (condition, _) in enumerate(questions):
                by_condition[condition].append((number, place))
        for condition, places in by_condition.items():
            rows: list[Any] = [asked[number][0] for number, _ in places]
            lasts = [asked[number][1][place][1] for number, place in places]
            for (number, place), answer in zip(places, self._holds(condition, rows, lasts), strict=True):
                answers[number][place] = answer
        return answers

    def _holds(self, number: int, rows: list[Row], lasts: list[Link | None]) -> list[bool]:
        condition = self._step.conditions[number]
        schema, expression = condition.schema, condition.referring
        if schema is None or expression is None:
            raise InvariantError(f"condition {number} of {self._step.text} refers to nothing")
        values = [[row[column] for row in rows] for column in condition.columns]
        try:
            values += [[_value(reference, last) for last in lasts] for reference in condition.references]
            columns = [array_of(each, field.type) for each, field in zip(values, schema, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            found: list[bool] = condition_masks(batch, [expression])[0].tolist()
        except Exception as error:
            raise expression_error(error, self.context) from error
        return found

    # --- results ---------------------------------------------------------------------------

    def _emit(self, runs: Sequence[_Run], due: Sequence[_Due]) -> Steps:
        found = [(run.due[each.moment], each.is_match, each.last) for run in runs for each in run.matches.outcomes]
        # The outcomes of a timer stay in the order in which they were found.
        found.sort(key=lambda each: each[0])
        for is_match in (False, True):
            wanted = [(due[number][0], last) for number, kind, last in found if kind is is_match]
            self._counts["matches" if is_match else "timed_out"] += len(wanted)
            output = self.output if is_match else self.sides.get(TIMED_OUT)
            if output is None or (is_match and not self.main_is_read):
                continue
            for first in range(0, len(wanted), _RESULTS_AT_ONCE):
                output.emit(self._batch(wanted[first : first + _RESULTS_AT_ONCE]))
                if self.slice.is_over and first + _RESULTS_AT_ONCE < len(wanted):
                    yield False

    def _batch(self, results: Sequence[tuple[int, Link]]) -> pa.RecordBatch:
        """Matches, each with the time at which it was certain."""
        step = self._step
        rows = [rows_by_name(last, len(step.names)) for _, last in results]
        columns = [array_of([last.row[key] for _, last in results], step.schema.field(key).type) for key in step.keys]
        for number, (name, is_repeated) in enumerate(zip(step.names, step.repeated, strict=True)):
            taken = [row[number] for row in rows]
            values = taken if is_repeated else [each[0] if each else None for each in taken]
            columns.append(array_of(values, step.schema.field(name).type))
        times: Any = pa.array([time for time, _ in results], pa.int64())
        columns.append(times.view(step.schema.field(MATCH_TIME).type))
        return pa.RecordBatch.from_arrays(columns, schema=step.schema)

    # --- checkpoints -----------------------------------------------------------------------

    def tick(self, now: Instant) -> Instant | None:  # noqa: ARG002
        """Do some upkeep."""
        self._opened().maintain(UPKEEP)
        return None

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze what waits, and the partial matches."""
        keyed = self._opened().snapshot(checkpoint, options)
        operator, groups = OperatorId(self.context.operator), self.context.key_groups
        passed = self._passed.saved(groups)

        def write(writer: StateWriter) -> OperatorState:
            return OperatorState(operator=operator, keyed=keyed(writer), key_groups=groups, union_lists=passed)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later snapshots may refer to the files of the checkpoint."""
        if self._backend is not None:
            self._backend.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No snapshot may refer to the files of the checkpoint."""
        if self._backend is not None:
            self._backend.aborted(checkpoint)

    def metrics(self) -> dict[str, float]:
        """How many records were late, how many had no time, and what was found."""
        return dict(self._counts)

    def close(self) -> None:
        """Free the state."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _opened(self) -> KeyedBackend:
        if self._backend is None:
            raise InvariantError("a pattern is used before it is loaded or after it is closed")
        return self._backend


def _sent(generator: Asked, answers: list[bool]) -> tuple[Row | None, list[Question]] | None:
    """The next questions of a key; None if all its records are taken in."""
    try:
        return generator.send(answers)
    except StopIteration:
        return None


def _value(reference: Reference, last: Link | None) -> Any:
    """The value of a reference. Nulls are left out, but not of what is first and last."""
    rows = rows_taken(last, reference.name)
    column = reference.column
    if column is None:
        return sum(1 for _ in rows)
    values = (row[column] for row in rows)
    if reference.function == "last":
        return next(values, None)
    if reference.function == "first":
        return next(reversed(list(values)), None)
    return _aggregate(reference.function, (value for value in values if value is not None))


def _aggregate(function: str, values: Iterator[Any]) -> Any:
    there = list(values)
    if function == "count":
        return len(there)
    if not there:
        return None
    there.reverse()
    match function:
        case "sum":
            return sum(there)
        case "avg":
            return sum(there) / len(there)
        case "max":
            return max(there, key=_ranked)
        case _:
            return min(there, key=_ranked)


def _ranked(value: Any) -> tuple[bool, Any]:
    """NaN is greater than every number, as in Spark."""
    return (True, 0.0) if value != value else (False, value)
