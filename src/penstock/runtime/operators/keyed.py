"""Functions over keyed streams: row by row, with state and timers per key, and a broadcast input if they are connected.

What a batch costs is mostly the user's own code and the making of Python values, so the loop over rows does nothing
that can be done for the whole batch: key groups and keys are computed by columns, results become one batch.
"""

from __future__ import annotations

import datetime
from types import GeneratorType
from typing import Any

import pyarrow as pa

from penstock.api.functions import (
    EPOCH,
    KeyedBroadcastFunction,
    KeyedContext,
    Timer,
    Timers,
    keyed_states,
    time_in_us,
)
from penstock.api.steps import KeyedProcessStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import InvariantError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.keys import key_groups
from penstock.runtime.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.operators.process import EMITTED_ROWS, UPKEEP, FunctionOperator, RunningContext
from penstock.runtime.operators.rows import add_rows, rows_of
from penstock.runtime.operators.user_code import guarded, user_error
from penstock.state.backend import KeyedBackend, StateContext, TimerKind
from penstock.state.backends import make_backend
from penstock.state.handles import keyed_handle
from penstock.state.keys import keys_of

_LEAST_UPKEEP = 256
"""Steps of upkeep after every batch, however small."""
_BROADCAST_INPUT = 1


class _KeyedTimers(Timers):
    """The timers of the current key, over those of the back end."""

    def __init__(self, operator: KeyedOperator, backend: KeyedBackend) -> None:
        self._operator = operator
        self._timers = backend.timers

    def at_event_time(self, time: datetime.datetime | int) -> None:
        """Set an event-time timer."""
        time_us = time_in_us(time)
        self._timers.add(TimerKind.EVENT_TIME, time_us)
        self._operator.event_timer_set(time_us)

    def at_processing_time(self, time: datetime.datetime | int) -> None:
        """Set a processing-time timer."""
        time_us = time_in_us(time)
        self._timers.add(TimerKind.PROCESSING_TIME, time_us)
        self._operator.context.wake_at(_in_ms(time_us))

    def delete_event_time(self, time: datetime.datetime | int) -> None:
        """Take an event-time timer back."""
        self._timers.remove(TimerKind.EVENT_TIME, time_in_us(time))

    def delete_processing_time(self, time: datetime.datetime | int) -> None:
        """Take a processing-time timer back."""
        self._timers.remove(TimerKind.PROCESSING_TIME, time_in_us(time))

    def event_times(self) -> list[datetime.datetime]:
        """For when event-time timers are set."""
        return [EPOCH + datetime.timedelta(microseconds=t) for t in self._timers.of_key(TimerKind.EVENT_TIME)]

    def processing_times(self) -> list[datetime.datetime]:
        """For when processing-time timers are set."""
        return [EPOCH + datetime.timedelta(microseconds=t) for t in self._timers.of_key(TimerKind.PROCESSING_TIME)]


class _KeyedContext(RunningContext, KeyedContext):
    def __init__(self, context: OperatorContext, timers: Timers) -> None:
        super().__init__(context)
        self.key: Any = None
        self.timers = timers


class KeyedOperator(FunctionOperator):
    """Runs a function over the rows of a keyed stream."""

    def __init__(self, step: KeyedProcessStep) -> None:
        super().__init__(step.function, step.schema)
        self._step = step
        self._past_timer = False
        """Whether an event-time timer was set that is due already."""
        self.timers_fired = 0
        self._to_close: KeyedBackend | None = None

    def _load_keyed(self, context: OperatorContext) -> None:
        step = self._step
        states = keyed_states(self._declared)
        self._may_write_broadcast = not step.is_connected
        self._backend = make_backend(
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
        if not context.fresh:
            self._backend.restore([state.keyed for state in context.restored if state.keyed], context.reader)
        self._bind_keyed(context)

    def _dropped_states(self) -> tuple[str, ...]:
        return ()

    def _bind_keyed(self, context: OperatorContext) -> None:
        states = keyed_states(self._declared)
        self._bind({name: keyed_handle(state, self._backend, context.now) for name, state in states.items()})

    def _make_context(self, context: OperatorContext) -> _KeyedContext:
        self._keyed_context = _KeyedContext(context, _KeyedTimers(self, self._backend))
        return self._keyed_context

    @property
    def timeless_inputs(self) -> tuple[int, ...]:
        """The broadcast input, if it has no event time."""
        return () if self._step.broadcast_has_time or not self._step.is_connected else (_BROADCAST_INPUT,)

    # --- rows ----------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> None:
        """Call the function for every row, with the state of its key."""
        if batch.num_rows == 0:
            return
        keys = keys_of([batch.column(key) for key in self._step.keys])
        groups = key_groups(batch, self._step.keys, self.context.max_parallelism).tolist()
        self._emit(self._rows(rows_of(batch), keys, groups))
        if self._past_timer:
            self._fire_event_time(self._keyed_context.watermark_us)
        self._backend.maintain(max(_LEAST_UPKEEP, 2 * batch.num_rows))
        self._operator_states.maintain(_LEAST_UPKEEP)

    def _rows(self, rows: list[dict[str, Any]], keys: list[Any], groups: list[int]) -> list[Any]:
        made: list[Any] = []
        append, extend = made.append, made.extend
        context, set_key, on_row = self._keyed_context, self._backend.set_key, self._step.function.on_row
        try:
            for row, key, group in zip(rows, keys, groups, strict=True):
                set_key(key, group)
                context.key = key
                result = on_row(row, context)
                if result is None:
                    continue
                kind = type(result)
                if kind is dict:
                    append(result)
                elif kind is GeneratorType:
                    extend(result)
                else:
                    add_rows(made, result)
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._leave_key()
        return made

    def process_input(self, batch: pa.RecordBatch, number: int) -> None:
        """Rows of the broadcast input go to `on_broadcast`, others are those of a key."""
        if number != _BROADCAST_INPUT:
            self.process(batch)
            return
        function = self._step.function
        if not isinstance(function, KeyedBroadcastFunction):
            raise InvariantError(f"{self.context.name!r} has a second input and no function for it")
        context = self._keyed_context
        made: list[Any] = []
        self._may_write_broadcast = True
        try:
            for row in rows_of(batch):
                result = function.on_broadcast(row, context)
                if result is not None:
                    add_rows(made, result)
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._may_write_broadcast = False
        self._emit(made)
        self._operator_states.maintain(_LEAST_UPKEEP)

    def finish(self) -> None:
        """All data has been seen."""
        self._emit_result(guarded(lambda: self._step.function.on_end(self._keyed_context), self.context))

    def _leave_key(self) -> None:
        self._backend.unset_key()
        self._keyed_context.key = None

    def _user_error(self, error: Exception) -> UserCodeError:
        return error if isinstance(error, UserCodeError) else user_error(error, self.context)

    # --- time ----------------------------------------------------------------------------

    def event_timer_set(self, time_us: int) -> None:
        """An event-time timer was set; one that is due already fires after the rows at hand."""
        watermark_us = self._keyed_context.watermark_us
        if watermark_us is not None and time_us <= watermark_us < MAX_WATERMARK:
            self._past_timer = True

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Fire the timers that are due, then hand the watermark on."""
        horizon = time_us
        if time_us == MAX_WATERMARK:
            # A timer that sets itself again would have no end.
            last = self._backend.timers.last(TimerKind.EVENT_TIME)
            horizon = time_us if last is None else last
        self._keyed_context.watermark_us = time_us
        self._fire_event_time(horizon)
        self.output.watermark(time_us, idle=idle)

    def tick(self, now: Instant) -> Instant | None:
        """Fire processing-time timers; when the next one is due."""
        self._fire(TimerKind.PROCESSING_TIME, now * 1_000)
        if self._past_timer:
            self._fire_event_time(self._keyed_context.watermark_us)
        self._backend.maintain(UPKEEP)
        first = self._backend.timers.first(TimerKind.PROCESSING_TIME)
        return None if first is None else max(_in_ms(first), Instant(now + 1))

    def _fire_event_time(self, until_us: int | None) -> None:
        if until_us is not None:
            self._fire(TimerKind.EVENT_TIME, until_us)
        self._past_timer = False

    def _fire(self, kind: TimerKind, until_us: int) -> None:
        """Call the function for every timer that is due, also for those it sets meanwhile."""
        timers, set_key, context = self._backend.timers, self._backend.set_key, self._keyed_context
        on_timer, name = self._step.function.on_timer, kind.value
        made: list[Any] = []
        due = timers.pop_due(kind, until_us)
        try:
            while due is not None:
                time_us, context.key, group = due
                set_key(context.key, group)
                result = on_timer(Timer(name, time_us), context)
                if result is not None:
                    add_rows(made, result)
                self.timers_fired += 1
                if len(made) >= EMITTED_ROWS:
                    self._emit(made)
                    made = []
                due = timers.pop_due(kind, until_us)
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._leave_key()
        self._emit(made)

    # --- checkpoints ---------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze keyed state, timers and operator state."""
        keyed = self._backend.snapshot(checkpoint, options)
        lists = self._operator_states.snapshot(checkpoint)
        operator, groups = OperatorId(self.context.operator), self.context.key_groups

        def write(writer: StateWriter) -> OperatorState:
            found = lists(operator)
            return OperatorState(
                operator=operator,
                keyed=keyed(writer),
                key_groups=groups,
                split_lists=found.split_lists,
                union_lists=found.union_lists,
                broadcast=found.broadcast,
            )

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Tell the back end."""
        super().completed(checkpoint)
        self._backend.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Tell the back end."""
        super().aborted(checkpoint)
        self._backend.aborted(checkpoint)

    def metrics(self) -> dict[str, float]:
        """Timers that have fired."""
        return {"timers_fired": self.timers_fired}

    def close(self) -> None:
        """Close the function and the back end, which may be there although the function was never opened."""
        backend, self._to_close = self._to_close, None
        try:
            super().close()
        finally:
            if backend is not None:
                backend.close()


def _in_ms(time_us: int) -> Instant:
    """The first millisecond that is not before a time."""
    return Instant(-(-time_us // 1_000))
