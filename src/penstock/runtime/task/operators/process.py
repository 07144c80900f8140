"""Functions without a key: over rows or over batches, with operator state.

`FunctionOperator` is the part that functions over keyed streams need, too: a function object of the user's whose
declared states are replaced by handles, and operator state.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.functions import EPOCH, Function, FunctionContext, ProcessFunction, is_overridden
from penstock.api.metrics import Metrics
from penstock.api.state_declarations import declared_states
from penstock.api.steps import LATE, KeyedProcessStep, LateRecords, ProcessStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import UsageError, UserCodeError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, Side, SnapshotWork, StateWriter
from penstock.runtime.task.operators.functions import emitted, from_arrow, results_of
from penstock.runtime.task.operators.rows import SOME_ROWS, add_more, add_some, batch_of, rows_of
from penstock.runtime.task.operators.side_rows import SideRows
from penstock.runtime.task.operators.user_code import guarded, user_error, wrong_result
from penstock.runtime.task.slices import Steps, Work
from penstock.runtime.task.watermarks import BEFORE_TIME
from penstock.state.operator_state import OperatorStates

EMITTED_ROWS = 65_536
"""Rows that a function makes are handed on in batches of at most this many."""
Pieces = Iterator[tuple[list[Any], bool | None]]
"""Rows that calls of a function have made, one piece per slice. With each piece comes whether a snapshot may be taken
behind the piece: False in the middle of the rows of a call or the calls of a batch; None behind the last piece."""
UPKEEP = 1_000
"""Steps of upkeep at every tick."""

_LATEST = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_EARLIEST = datetime.datetime.min.replace(tzinfo=datetime.UTC)


class RunningContext(FunctionContext):
    """The context of a function in a running subtask."""

    def __init__(self, context: OperatorContext, side_rows: SideRows) -> None:
        self._context = context
        self._side_rows = side_rows
        self._metrics = Metrics(context.operator)
        self.watermark_us: int | None = None

    @property
    def name(self) -> str:
        """The name of the step."""
        return self._context.name

    @property
    def subtask(self) -> int:
        """The number of the subtask."""
        return self._context.task.subtask

    @property
    def parallelism(self) -> int:
        """How many subtasks the step has."""
        return self._context.parallelism

    @property
    def watermark(self) -> datetime.datetime | None:
        """How far event time has come; None before event time has begun."""
        if self.watermark_us is None or self.watermark_us == BEFORE_TIME:
            return None
        try:
            return EPOCH + datetime.timedelta(microseconds=self.watermark_us)
        except OverflowError:
            # Event time may go beyond the years that Python has.
            return _LATEST if self.watermark_us > 0 else _EARLIEST

    @property
    def processing_time(self) -> datetime.datetime:
        """The time on the clock."""
        return EPOCH + datetime.timedelta(milliseconds=self._context.now())

    @property
    def metrics(self) -> Metrics:
        """The metrics of the function in this subtask."""
        return self._metrics

    def emit(self, side: str, row: Mapping[str, Any] | pa.RecordBatch | pa.Table) -> None:
        """Put a row into a side output."""
        self._side_rows.add(side, row)


class FunctionOperator(Operator):
    """Runs a function object of the user's."""

    def __init__(self, function: Function, step: ProcessStep | KeyedProcessStep) -> None:
        self._function = function
        self._schema = step.schema
        self._side_rows = SideRows(step.declared_sides)
        self._late_records = step.late
        self._late: Side | None = None
        """Where late records go; None if nothing reads late records, and the function gets all records."""
        self._declared = declared_states(function)
        self._opened = False
        self._closed = False
        self._may_write_broadcast = True

    def load(self, context: OperatorContext) -> None:
        """Restore state, put handles in the place of declarations, and open the function."""
        self.context = context
        self._wrong = wrong_result(context)
        operator_states = {n: state for n, state in self._declared.items() if state.spec.kind.is_of_subtask}
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
        self.doing = "in open()"
        guarded(lambda: self._function.open(self._running), context)
        if self._closed:
            # The task was stopped meanwhile, and will not close this operator again.
            self.close()

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start: from here on the function may make rows."""
        super().open(context, output)
        self._side_rows.open(self.sides, self._wrong)
        self._late = self.sides.get(LATE)

    def _load_keyed(self, context: OperatorContext) -> None:
        """Restore keyed state, if the operator has keyed state."""

    def _make_context(self, context: OperatorContext) -> RunningContext:
        return RunningContext(context, self._side_rows)

    def _bind(self, handles: Mapping[str, object]) -> None:
        for attribute, handle in handles.items():
            object.__setattr__(self._function, attribute, handle)

    def _check_broadcast_write(self) -> None:
        if not self._may_write_broadcast:
            raise UsageError(
                "broadcast state was written where the records of one key are handled",
                hint="write broadcast state in on_broadcast only, which every subtask calls for the same records",
            )

    @property
    def is_row_wise(self) -> bool:
        """True: the operator calls a function for every row."""
        return True

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Put the watermark into the function's context, then hand the watermark on."""
        self._running.watermark_us = time_us
        self.output.watermark(time_us, idle=idle)
        return None

    def _on_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records of a batch that the function gets. Late records go to the stream of late records, if that stream
        is read. A record without a time is never late."""
        return on_time(batch, self._late_records, self._late, self._running.watermark_us)

    def _emit(self, rows: Sequence[Any]) -> None:
        """Hand on rows: at least one row, and at most `EMITTED_ROWS`."""
        self.output.emit(batch_of(rows, self._schema, self._wrong))

    def _handed_on(self, pieces: Pieces) -> Steps:
        """Hand on the rows that calls of the function make, in slices."""
        for rows, cut in pieces:
            if self._side_rows.has_rows:
                self._side_rows.flush()
            last = 0
            for start in range(0, len(rows) - EMITTED_ROWS, EMITTED_ROWS):
                self._emit(rows[start : start + EMITTED_ROWS])
                last = start + EMITTED_ROWS
                if self.slice.is_over:
                    yield False
            if rows:
                self._emit(rows[last:] if last else rows)
            if cut is not None and self.slice.is_over:
                yield cut

    def _called(self, call: Callable[[], Any]) -> Pieces:
        """The rows that one call makes."""
        made: list[Any] = []
        try:
            result = call()
            rest = None if result is None else add_some(made, result)
            while rest is not None:
                if len(made) >= EMITTED_ROWS or self.slice.spend(SOME_ROWS):
                    yield made, False
                    made.clear()
                rest = add_more(made, rest)
        except Exception as error:
            raise self._user_error(error) from error
        yield made, None

    def _user_error(self, error: Exception) -> UserCodeError:
        return error if isinstance(error, UserCodeError) else user_error(error, self.context)

    def metrics(self) -> dict[str, float]:
        """What the function counts and measures."""
        # Before the state is restored the function has no context.
        running: RunningContext | None = getattr(self, "_running", None)
        return {} if running is None else running.metrics.totals()

    def before_barrier(self) -> None:
        """Hand on what the function holds back, all at once: the barrier goes out next."""
        for _ in self._flushed():
            """Nothing else may be done meanwhile."""

    def finish(self) -> Work | None:
        """All data has been seen: hand on what the function holds back, and the rows of its `on_end`."""
        return Work.begin(self._finished())

    def _flushed(self) -> Steps:
        if self._is_written("before_barrier"):
            yield from self._handed_on(self._called(lambda: self._function.before_barrier(self._running)))

    def _finished(self) -> Steps:
        yield from self._flushed()
        yield from self._handed_on(self._called(self._on_end))

    def _on_end(self) -> Any:
        raise NotImplementedError

    def _is_written(self, method: str) -> bool:
        return is_overridden(self._function, Function, method)

    def _tell_function(self, method: str, checkpoint: CheckpointId) -> None:
        """Call a method of the function that is about checkpoints, if the user wrote the method."""
        if self._is_written(method):
            # A row that is emitted here would be behind the barrier, and in no state.
            self._side_rows.may_emit = False
            guarded(lambda: getattr(self._function, method)(int(checkpoint)), self.context)
            self._side_rows.may_emit = True

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:  # noqa: ARG002
        """Freeze operator state."""
        self._tell_function("on_snapshot", checkpoint)
        if not self._declared:
            return None
        work, operator = self._operator_states.snapshot(checkpoint), OperatorId(self.context.operator)

        def write(writer: StateWriter) -> OperatorState:  # noqa: ARG001  # operator state travels in the handle
            return work(operator)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Release what was frozen for the checkpoint, and tell the function."""
        self._operator_states.completed(checkpoint)
        self._tell_function("on_checkpoint_complete", checkpoint)

    def subsumed(self, checkpoint: CheckpointId) -> None:
        """Tell the function, which may have kept something for the checkpoint."""
        self._tell_function("on_checkpoint_subsumed", checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Release what was frozen for the checkpoint, and tell the function."""
        self._operator_states.aborted(checkpoint)
        self._tell_function("on_checkpoint_aborted", checkpoint)

    def close(self) -> None:
        """Close the function."""
        self._closed = True
        if self._opened:
            self._opened = False
            self._function.close()


def on_time(
    batch: pa.RecordBatch, records: LateRecords | None, late: Side | None, watermark_us: int | None
) -> pa.RecordBatch:
    """The records of a batch that are not late. The others go to `late`. Without `late` no record is taken out. A
    record without a time is never late."""
    if late is None or records is None or watermark_us is None:
        return batch
    times: Any = batch.column(records.time_column)
    # The watermark is moved, and not the times: a time near the limits of 64 bits plus the offset may not fit.
    last_us = pa.scalar(min(watermark_us - records.time_offset_us, MAX_WATERMARK), pa.int64())
    is_late: Any = pc.less_equal(times.view(pa.int64()), last_us).fill_null(fill_value=False)
    if not is_late.true_count:
        return batch
    late.emit(batch.filter(is_late))
    return batch.filter(pc.invert(is_late))


class ProcessOperator(FunctionOperator):
    """A function over the rows or batches of a stream."""

    def __init__(self, step: ProcessStep) -> None:
        super().__init__(step.function, step)
        self._step = step
        self._by_batch = is_overridden(step.function, ProcessFunction, "on_batch")

    @property
    def is_row_wise(self) -> bool:
        """Whether the operator calls the function for every row."""
        return not self._by_batch

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on what the function makes of the batch, or of its rows."""
        batch = self._on_time(batch)
        if batch.num_rows == 0:
            return None
        return Work.begin(self._processed(batch))

    def _processed(self, batch: pa.RecordBatch) -> Steps:
        function, running = self._step.function, self._running
        if self._by_batch:
            results = results_of(lambda: function.on_batch(batch, running), self.context)
            yield from emitted(
                self, (made for result in results for made in from_arrow(result, self._schema, self._wrong))
            )
            self._side_rows.flush()
        else:
            yield from self._handed_on(self._each(rows_of(batch)))
        self._operator_states.maintain(UPKEEP)

    def _each(self, rows: list[dict[str, Any]]) -> Pieces:
        on_row, running, made = self._step.function.on_row, self._running, list[Any]()
        try:
            for row in rows:
                result = on_row(row, running)
                if result is None:
                    continue
                rest = add_some(made, result)
                while rest is not None or len(made) >= EMITTED_ROWS:
                    if len(made) >= EMITTED_ROWS or self.slice.spend(SOME_ROWS):
                        yield made, False
                        made.clear()
                    if rest is not None:
                        rest = add_more(made, rest)
        except Exception as error:
            raise self._user_error(error) from error
        yield made, None

    def _on_end(self) -> Any:
        return self._step.function.on_end(self._running)
