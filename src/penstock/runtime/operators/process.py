"""Functions with state that know no key: over rows or over batches, with operator state.

`FunctionOperator` is what they have in common with functions over keyed streams: a function object of the user's with
handles in the places of its declarations, and operator state.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.api.functions import EPOCH, Function, FunctionContext, ProcessFunction, is_overridden
from penstock.api.state import declared_states
from penstock.api.steps import ProcessStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.operators.functions import from_arrow, results_of
from penstock.runtime.operators.rows import add_rows, batch_of, rows_of
from penstock.runtime.operators.user_code import guarded, wrong_result
from penstock.runtime.watermarks import BEFORE_TIME
from penstock.state.operator_state import OperatorStates

EMITTED_ROWS = 65_536
"""Rows that a function makes are handed on in batches of at most this many."""
UPKEEP = 1_000
"""Steps of upkeep at every tick."""

_LATEST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class RunningContext(FunctionContext):
    """Where a function runs."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self.watermark_us: int | None = None

    @property
    def name(self) -> str:
        """The name of the step."""
        return self._context.name

    @property
    def subtask(self) -> int:
        """Which subtask this is."""
        return self._context.task.subtask

    @property
    def parallelism(self) -> int:
        """How many there are."""
        return self._context.parallelism

    @property
    def watermark(self) -> datetime.datetime | None:
        """How far event time has come."""
        if self.watermark_us is None or self.watermark_us == BEFORE_TIME:
            return None
        if self.watermark_us == MAX_WATERMARK:
            return _LATEST
        return EPOCH + datetime.timedelta(microseconds=self.watermark_us)

    @property
    def processing_time(self) -> datetime.datetime:
        """The time on the clock."""
        return EPOCH + datetime.timedelta(milliseconds=self._context.now())


class FunctionOperator(Operator):
    """Runs a function object of the user's."""

    def __init__(self, function: Function, schema: pa.Schema) -> None:
        self._function = function
        self._schema = schema
        self._declared = declared_states(function)
        self._opened = False
        self._closed = False
        self._may_write_broadcast = True

    def load(self, context: OperatorContext) -> None:
        """Restore state, put handles in the place of declarations, and open the function."""
        self.context = context
        self._wrong = wrong_result(context)
        operator_states = {n: state for n, state in self._declared.items() if not state.spec.kind.is_keyed}
        self._operator_states = OperatorStates(
            operator_states,
            name=context.name,
            subtask=context.task.subtask,
            check_write=self._check_broadcast_write,
        )
        if not context.fresh:
            self._operator_states.restore(context.restored)
        self._bind(self._operator_states.handles)
        self._load_keyed(context)
        self._running = self._make_context(context)
        self._opened = True
        guarded(lambda: self._function.open(self._running), context)
        if self._closed:
            # The attempt was given up meanwhile, and nobody will close it any more.
            self.close()

    def _load_keyed(self, context: OperatorContext) -> None:
        """Restore keyed state, where there is such."""

    def _make_context(self, context: OperatorContext) -> RunningContext:
        return RunningContext(context)

    def _bind(self, handles: Mapping[str, object]) -> None:
        for attribute, handle in handles.items():
            object.__setattr__(self._function, attribute, handle)

    def _check_broadcast_write(self) -> None:
        if not self._may_write_broadcast:
            raise UsageError(
                "broadcast state was written where the records of one key are handled",
                hint="write it in on_broadcast, which every subtask calls for the same records",
            )

    @property
    def is_row_wise(self) -> bool:
        """It calls a function for every row."""
        return True

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Tell the function's context, then hand it on."""
        self._running.watermark_us = time_us
        self.output.watermark(time_us, idle=idle)

    def _emit(self, rows: Sequence[Any]) -> None:
        for start in range(0, len(rows), EMITTED_ROWS):
            self.output.emit(batch_of(rows[start : start + EMITTED_ROWS], self._schema, self._wrong))

    def _emit_result(self, result: Any) -> None:
        """Hand on what one call returned."""
        if result is not None:
            made: list[Any] = []
            guarded(lambda: add_rows(made, result), self.context)
            self._emit(made)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:  # noqa: ARG002
        """Freeze operator state."""
        if not self._declared:
            return None
        work, operator = self._operator_states.snapshot(checkpoint), OperatorId(self.context.operator)

        def write(writer: StateWriter) -> OperatorState:  # noqa: ARG001  # it travels in the handle
            return work(operator)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """What was frozen for it can be let go."""
        self._operator_states.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """What was frozen for it can be let go."""
        self._operator_states.aborted(checkpoint)

    def close(self) -> None:
        """Close the function."""
        self._closed = True
        if self._opened:
            self._opened = False
            self._function.close()


class ProcessOperator(FunctionOperator):
    """A function over the rows or batches of a stream."""

    def __init__(self, step: ProcessStep) -> None:
        super().__init__(step.function, step.schema)
        self._step = step
        self._by_batch = is_overridden(step.function, ProcessFunction, "on_batch")

    @property
    def is_row_wise(self) -> bool:
        """Whether it calls a function for every row."""
        return not self._by_batch

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand on what the function makes of the batch, or of its rows."""
        if batch.num_rows == 0:
            return
        function, running = self._step.function, self._running
        if self._by_batch:
            for result in results_of(lambda: function.on_batch(batch, running), self.context):
                for made in from_arrow(result, self._schema, self._wrong):
                    if made.num_rows:
                        self.output.emit(made)
        else:
            made_rows: list[Any] = []
            guarded(lambda: self._each(rows_of(batch), made_rows), self.context)
            self._emit(made_rows)
        self._operator_states.maintain(UPKEEP)

    def _each(self, rows: Iterable[dict[str, Any]], made: list[Any]) -> None:
        on_row, running = self._step.function.on_row, self._running
        for row in rows:
            result = on_row(row, running)
            if result is not None:
                add_rows(made, result)

    def finish(self) -> None:
        """All data has been seen."""
        self._emit_result(guarded(lambda: self._step.function.on_end(self._running), self.context))
