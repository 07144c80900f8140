"""Functions over keyed streams: row by row, with state and timers per key. A connected function has a broadcast input,
too.

The cost of a batch is mostly user code and the making of Python values. So the loop over rows does nothing that can be
done for the whole batch: key groups and keys are computed by columns, and the results become one batch.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.functions import (
    EPOCH,
    KeyedBroadcastFunction,
    KeyedContext,
    KeyedFunction,
    Row,
    Rows,
    Timer,
    Timers,
    keyed_states,
    time_in_us,
)
from penstock.api.state import StateKind
from penstock.api.steps import KeyedProcessStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import InvariantError, UsageError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState, raw_files
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.process import EMITTED_ROWS, UPKEEP, FunctionOperator, Pieces, RunningContext
from penstock.runtime.task.operators.rows import SOME_ROWS, add_more, add_some, rows_of
from penstock.runtime.task.operators.side_rows import SideRows
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Steps, Work
from penstock.state.backend import KeyedBackend, StateContext, TimerKind
from penstock.state.backends import make_backend
from penstock.state.handles import keyed_handle
from penstock.state.keys import keys_of
from penstock.state.raw_keyed import RawKeyedStates

_LEAST_UPKEEP = 256
"""At least this many steps of upkeep follow every batch, however small the batch is."""
_BROADCAST_INPUT = 1

OnRow = Callable[[Row, KeyedContext], Rows]
"""A method of a function that is called for every row."""


class _KeyedTimers(Timers):
    """The timers of the current key. The back end keeps them."""

    def __init__(self, operator: KeyedOperator, backend: KeyedBackend, *, has_event_time: bool) -> None:
        self._operator = operator
        self._timers = backend.timers
        self._has_event_time = has_event_time

    def at_event_time(self, time: datetime.datetime | int) -> None:
        """Set an event-time timer."""
        if not self._has_event_time:
            raise UsageError(
                "at_event_time needs event time, and no step before this step has a watermark: the timer would fire "
                "only when all data has been seen",
                hint='add .watermark("<column>", delay="...") before key_by; or use at_processing_time, or on_end',
            )
        time_us = time_in_us(time)
        self._timers.add(TimerKind.EVENT_TIME, time_us)
        self._operator.event_timer_set(time_us)

    def at_processing_time(self, time: datetime.datetime | int) -> None:
        """Set a processing-time timer."""
        time_us = time_in_us(time)
        self._timers.add(TimerKind.PROCESSING_TIME, time_us)
        self._operator.context.wake_at(_in_ms(time_us))

    def delete_event_time(self, time: datetime.datetime | int) -> None:
        """Delete an event-time timer."""
        self._timers.remove(TimerKind.EVENT_TIME, time_in_us(time))

    def delete_processing_time(self, time: datetime.datetime | int) -> None:
        """Delete a processing-time timer."""
        self._timers.remove(TimerKind.PROCESSING_TIME, time_in_us(time))

    def event_times(self) -> list[datetime.datetime]:
        """The times of the key's event-time timers."""
        return [EPOCH + datetime.timedelta(microseconds=t) for t in self._timers.of_key(TimerKind.EVENT_TIME)]

    def processing_times(self) -> list[datetime.datetime]:
        """The times of the key's processing-time timers."""
        return [EPOCH + datetime.timedelta(microseconds=t) for t in self._timers.of_key(TimerKind.PROCESSING_TIME)]


class _KeyedContext(RunningContext, KeyedContext):
    def __init__(self, context: OperatorContext, side_rows: SideRows, timers: Timers, backend: KeyedBackend) -> None:
        super().__init__(context, side_rows)
        self.key: Any = None
        self.timers = timers
        self._backend = backend

    @property
    def key_group(self) -> int | None:
        """The key group of the current key."""
        return self._backend.key_group()


class KeyedOperator(FunctionOperator):
    """Runs a function over the rows of a keyed stream."""

    def __init__(self, step: KeyedProcessStep) -> None:
        super().__init__(step.function, step)
        self._step = step
        self._past_timer = False
        """Whether an event-time timer was set for a time that has passed."""
        self.timers_fired = 0
        self._ends_at: int | None = None
        """While event time is at its end and the function has not finished: the time of the last timer that fires.
        Otherwise None."""
        self._to_close: KeyedBackend | None = None

    def _load_keyed(self, context: OperatorContext) -> None:
        step = self._step
        states = keyed_states(self._declared)
        self._may_write_broadcast = not step.is_connected
        self._backend = (context.make_backend or make_backend)(
            StateContext(
                operator=context.operator,
                name=context.name,
                subtask=context.task.subtask,
                keys=step.key_schema,
                groups=context.max_parallelism,
                own_groups=context.key_groups,
                groups_of=lambda batch: key_groups(batch, step.keys, context.max_parallelism),
                specs=tuple({state.spec.name: state.spec for state in states.values()}.values()),
                now=context.now,
                settings=context.state,
                dropped=self._dropped_states(),
            )
        )
        self._to_close = self._backend
        raw = {name: state for name, state in self._declared.items() if state.spec.kind is StateKind.RAW_KEYED}
        self._raw_states = RawKeyedStates(
            raw,
            operator=context.operator,
            name=context.name,
            groups=context.max_parallelism,
            own_groups=context.key_groups,
        )
        if not context.fresh:
            self._backend.restore([state.keyed for state in context.restored if state.keyed], context.reader)
            self._raw_states.restore(context.restored, context.reader)
            ends = (state.last_timer_us for state in context.restored)
            self._ends_at = max((end for end in ends if end is not msgspec.UNSET), default=None)
        self._bind(self._raw_states.handles)
        self._bind_keyed(context)

    def _dropped_states(self) -> tuple[str, ...]:
        return ()

    def _bind_keyed(self, context: OperatorContext) -> None:
        states = keyed_states(self._declared)
        self._bind({name: keyed_handle(state, self._backend, context.now) for name, state in states.items()})

    def _make_context(self, context: OperatorContext) -> _KeyedContext:
        timers = _KeyedTimers(self, self._backend, has_event_time=self._step.has_event_time)
        self._keyed_context = _KeyedContext(context, self._side_rows, timers, self._backend)
        return self._keyed_context

    @property
    def timeless_inputs(self) -> tuple[int, ...]:
        """The broadcast input, if there is a broadcast input and it has no event time."""
        return () if self._step.broadcast_has_time or not self._step.is_connected else (_BROADCAST_INPUT,)

    # --- rows ----------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Call the function for every row, with the state of the row's key."""
        function = self._step.function
        if not isinstance(function, KeyedFunction):
            raise InvariantError(f"the function of {self.context.name!r} has no on_row")
        return self._call_by_row(self._on_time(batch), self._step.keys, function.on_row)

    def _call_by_row(self, batch: pa.RecordBatch, columns: tuple[str, ...], method: OnRow) -> Work | None:
        """Call a method of the function for every row. `columns` are the key columns."""
        if batch.num_rows == 0:
            return None
        keys = keys_of({key: batch.column(key) for key in columns})
        groups = key_groups(batch, columns, self.context.max_parallelism).tolist()
        return self._begin(self._rows(rows_of(batch), keys, groups, method), batch.num_rows)

    def _begin(self, pieces: Pieces, rows: int) -> Work | None:
        self._ends_at = None
        return Work.begin(self._processed(pieces, rows))

    def _processed(self, pieces: Pieces, rows: int) -> Steps:
        """Hand on the rows that the calls for a batch make, and fire the timers that these calls set for a time that
        has passed."""
        yield from self._handed_on(pieces)
        if self._past_timer:
            yield from self._fire_event_time(self._keyed_context.watermark_us)
        self._backend.maintain(max(_LEAST_UPKEEP, 2 * rows))
        self._operator_states.maintain(_LEAST_UPKEEP)

    def _rows(self, rows: list[dict[str, Any]], keys: list[Any], groups: list[int], on_row: OnRow) -> Pieces:
        made: list[Any] = []
        append, some = made.append, SOME_ROWS
        longest: Any = None
        context, set_key = self._keyed_context, self._backend.set_key
        try:
            for row, key, group in zip(rows, keys, groups, strict=True):
                set_key(key, group)
                context.key = key
                result: Any = on_row(row, context)
                if result is None:
                    continue
                kind = type(result)
                if kind is dict:
                    append(result)
                elif kind is GeneratorType:
                    # Most generators make few rows, and are read without a call. A generator that is met twice at a
                    # count of `SOME_ROWS` makes many rows.
                    for each in result:
                        append(each)
                        if len(made) >= some:
                            some = len(made) + SOME_ROWS
                            if longest is result or len(made) >= EMITTED_ROWS:
                                yield from self._many(made, result, key, group)
                                some = len(made) + SOME_ROWS
                                break
                            longest = result
                elif (rest := add_some(made, result)) is not None or len(made) >= EMITTED_ROWS:
                    yield from self._many(made, rest, key, group)
                    some = len(made) + SOME_ROWS
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._leave_key()
        yield made, None

    def _many(self, made: list[Any], rest: Iterator[Any] | None, key: Any, group: int) -> Pieces:
        """The rows of one call that makes many rows. The key is left between two pieces, and set again before the call
        goes on."""
        while rest is not None or len(made) >= EMITTED_ROWS:
            if len(made) >= EMITTED_ROWS or self.slice.spend(SOME_ROWS):
                self._leave_key()
                yield made, False
                made.clear()
                self._backend.set_key(key, group)
                self._keyed_context.key = key
            if rest is not None:
                rest = add_more(made, rest)

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Hand rows of the broadcast input to `on_broadcast`, and rows of the keyed input to `process`."""
        if number != _BROADCAST_INPUT:
            return self.process(batch)
        function = self._step.function
        if not isinstance(function, KeyedBroadcastFunction):
            raise InvariantError(f"{self.context.name!r} has a broadcast input, and its function has no on_broadcast")
        return self._begin(self._broadcast_rows(function, rows_of(batch)), 0)

    def _broadcast_rows(self, function: KeyedBroadcastFunction, rows: list[dict[str, Any]]) -> Pieces:
        context = self._keyed_context
        made: list[Any] = []
        try:
            for row in rows:
                self._may_write_broadcast = True
                result = function.on_broadcast(row, context)
                rest = None if result is None else add_some(made, result)
                while rest is not None or len(made) >= EMITTED_ROWS:
                    if len(made) >= EMITTED_ROWS or self.slice.spend(SOME_ROWS):
                        self._may_write_broadcast = False
                        yield made, False
                        self._may_write_broadcast = True
                        made.clear()
                    if rest is not None:
                        rest = add_more(made, rest)
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._may_write_broadcast = False
        yield made, None

    def finish(self) -> Work | None:
        """All data has been seen: hand on what the function holds back, and the rows of its `on_end`."""
        self._ends_at = None
        return super().finish()

    def _on_end(self) -> Any:
        return self._step.function.on_end(self._keyed_context)

    def _leave_key(self) -> None:
        self._backend.unset_key()
        self._keyed_context.key = None

    # --- time ----------------------------------------------------------------------------

    def event_timer_set(self, time_us: int) -> None:
        """An event-time timer was set. A timer for a time that has passed fires after the rows that are being
        processed."""
        watermark_us = self._keyed_context.watermark_us
        if watermark_us is not None and time_us <= watermark_us < MAX_WATERMARK:
            self._past_timer = True

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Fire the timers that are due, then hand the watermark on."""
        horizon, ends_at = time_us, self._ends_at
        self._ends_at = None
        if time_us == MAX_WATERMARK:
            # Without a limit a timer that sets itself again would fire without end. The limit is the last timer that is
            # set before the first timer fires. A snapshot that was taken between two of these timers has the limit.
            last = self._backend.timers.last(TimerKind.EVENT_TIME) if ends_at is None else ends_at
            horizon = time_us if last is None else last
            self._ends_at = last
        self._keyed_context.watermark_us = time_us
        return Work.begin(self._to_watermark(horizon, time_us, idle=idle))

    def _to_watermark(self, horizon: int, time_us: int, *, idle: bool) -> Steps:
        yield from self._fire_event_time(horizon)
        self.output.watermark(time_us, idle=idle)

    def fire(self, now: Instant) -> Work | None:
        """Fire the processing-time timers that are due, and event-time timers that they set for a time that has
        passed."""
        return Work.begin(self._to_time(now))

    def _to_time(self, now: Instant) -> Steps:
        yield from self._handed_on(self._fire(TimerKind.PROCESSING_TIME, now * 1_000))
        if self._past_timer:
            yield from self._fire_event_time(self._keyed_context.watermark_us)

    def tick(self, now: Instant) -> Instant | None:
        """Do some upkeep. Returns when the next processing-time timer is due."""
        self._backend.maintain(UPKEEP)
        first = self._backend.timers.first(TimerKind.PROCESSING_TIME)
        return None if first is None else max(_in_ms(first), Instant(now + 1))

    def _fire_event_time(self, until_us: int | None) -> Steps:
        if until_us is not None:
            yield from self._handed_on(self._fire(TimerKind.EVENT_TIME, until_us))
        self._past_timer = False

    def _fire(self, kind: TimerKind, until_us: int) -> Pieces:
        """Call the function for every timer that is due, also for timers that the function sets meanwhile. A timer is
        in the state until it fires, so a snapshot may be taken between two timers."""
        timers, set_key, context = self._backend.timers, self._backend.set_key, self._keyed_context
        on_timer, name, spend = self._step.function.on_timer, kind.value, self.slice.spend
        made: list[Any] = []
        try:
            while (due := timers.pop_due(kind, until_us)) is not None:
                time_us, key, group = due
                set_key(key, group)
                context.key = key
                result = on_timer(Timer(name, time_us), context)
                if result is not None and ((rest := add_some(made, result)) is not None or len(made) >= EMITTED_ROWS):
                    yield from self._many(made, rest, key, group)
                self.timers_fired += 1
                if spend():
                    self._leave_key()
                    self._backend.maintain(UPKEEP)
                    yield made, True
                    made.clear()
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._leave_key()
        yield made, None

    # --- checkpoints ---------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze keyed state, timers, operator state and raw state."""
        self._tell_function("on_snapshot", checkpoint)
        keyed = self._backend.snapshot(checkpoint, options)
        lists, raw = self._operator_states.snapshot(checkpoint), self._raw_states.snapshot()
        operator, groups, ends_at = OperatorId(self.context.operator), self.context.key_groups, self._ends_at

        def write(writer: StateWriter) -> OperatorState:
            found = lists(operator)
            return OperatorState(
                operator=operator,
                keyed=keyed(writer),
                key_groups=groups,
                split_lists=found.split_lists,
                union_lists=found.union_lists,
                broadcast=found.broadcast,
                last_timer_us=msgspec.UNSET if ends_at is None else ends_at,
                raw=raw_files(raw(writer)),
            )

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Tell the back end and the function."""
        self._backend.completed(checkpoint)
        super().completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Tell the back end and the function."""
        self._backend.aborted(checkpoint)
        super().aborted(checkpoint)

    def metrics(self) -> dict[str, float]:
        """How many timers have fired, and what the function counts and measures."""
        return {"timers_fired": self.timers_fired, **super().metrics()}

    def close(self) -> None:
        """Close the function and the back end. The back end may exist although the function was never opened."""
        backend, self._to_close = self._to_close, None
        try:
            super().close()
        finally:
            if backend is not None:
                backend.close()


def _in_ms(time_us: int) -> Instant:
    """The first millisecond that is not before a time."""
    return Instant(-(-time_us // 1_000))
