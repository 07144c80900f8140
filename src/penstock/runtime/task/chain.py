"""The operators of one task, called one after another. The results of a batch leave the last operator at once, or in
slices if the work takes long."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.api.connector import UserCodeRaised
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, InvariantError, UsageError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.alignment import SourceAlignment
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.operators.user_code import one_line, step_of, user_code_raised, user_error, with_hint
from penstock.runtime.task.operators.watermark import WatermarkOperator
from penstock.runtime.task.outputs import SideOutput, TaskOutputs
from penstock.runtime.task.slices import MOST_ROWS, Slice, Slices
from penstock.runtime.task.stages import Stage

_PACKAGE = str(Path(__file__).parents[2])


class StepFailed(Exception):
    """A step could not be loaded; the cause says why."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class OperatorChain:
    """The operators of one task: data goes from head to tail, snapshots are taken from tail to head.

    A batch or a watermark goes through all operators at once, unless the work is too much for one slice. Then the chain
    `is_busy` and must be given nothing more, and `go_on` does the next slice.
    """

    def __init__(self, operators: list[Operator], contexts: list[OperatorContext]) -> None:
        self.operators = operators
        self._contexts = contexts
        self.head = operators[0]
        self.is_busy = False
        """Whether an operator has work left."""
        self.row_slices: Slices | None = None
        """How many rows the chain takes at once; None if no operator calls user code for every row."""
        self._slice = Slice()
        self._stages = [Stage(operator, self._slice) for operator in operators]
        self._firings = Slices()
        self._unit: tuple[Slices, int] | None = None
        """The work under way up to the next point where a snapshot may be taken: the `Slices` that learn from how long
        the work takes, and how many rows, timers or results the work began with."""
        self._unit_ms = 0.0
        self._to_finish: deque[Stage] = deque()
        self.alignment: SourceAlignment | None = None
        """Keeps the source from reading too far ahead of other sources; None: the source reads as far as it likes."""
        self._has_begun_to_finish = False
        if isinstance(self.head, SourceOperator):
            for operator in operators:
                if isinstance(operator, WatermarkOperator):
                    operator.progress = self.head.progress
                    if operator.align is not None:
                        self.alignment = SourceAlignment(operator.align, self.head, operator)

    def run_by(self, clock_ms: Callable[[], float], most: int) -> None:
        """From here on slices end by this clock, and have at most `most` rows, timers or results."""
        self._slice.run_by(clock_ms, most)
        self._firings = Slices(most=most)
        if any(operator.is_row_wise for operator in self.operators):
            self.row_slices = Slices(most=most)
        for stage in self._stages[1:]:
            stage.cut_rows()

    @property
    def source(self) -> SourceOperator | None:
        """The head, if the head is a source; otherwise None."""
        return self.head if isinstance(self.head, SourceOperator) else None

    @property
    def caller(self) -> AsyncMapOperator | None:
        """The head, if the head calls an async function; otherwise None."""
        return self.head if isinstance(self.head, AsyncMapOperator) else None

    def load(self) -> None:
        """The blocking part of the start of every operator. Runs off the loop. Raises `UserCodeError` or
        `StepFailed`."""
        for operator, context in zip(self.operators, self._contexts, strict=True):
            # A load that takes long is reported with the name of the step.
            operator.context = context
            try:
                operator.load(context)
            except UserCodeError:
                raise
            except BaseException as error:
                raise StepFailed(context.name) from error

    def open(self, outputs: TaskOutputs) -> None:
        """Start all operators, the last operator first, so that no operator emits into an operator that is not open."""
        behind: Output = outputs
        for stage, context in reversed(list(zip(self._stages, self._contexts, strict=True))):
            operator, sides = stage.operator, outputs.sides_of(context.operator)
            operator.slice = self._slice
            operator.sides = sides
            operator.main_is_read = behind is not outputs or outputs.main_is_read
            operator.open(context, _WithSides(behind, tuple(sides.values())) if sides else behind)
            behind = stage

    # --- slices --------------------------------------------------------------------------

    @property
    def may_snapshot(self) -> bool:
        """Whether a snapshot may be taken: all work that is left is in the state of the operators, as timers that are
        due are, and all results of the work that is done have left the chain."""
        if not self.is_busy:
            return True
        head, *behind = self._stages
        return not self._has_begun_to_finish and head.may_snapshot and not any(stage.is_busy for stage in behind)

    def process(self, batch: pa.RecordBatch, input_number: int = 0) -> None:
        """Hand records to the head."""
        head, slices = self._stages[0], self.row_slices
        begun_ms = self._slice.begin()
        head.left(head.operator.process_input(batch, input_number))
        self._settle(begun_ms, None if slices is None else (slices, batch.num_rows))

    def release(self, caller: AsyncMapOperator) -> None:
        """Let the results of the head's calls go down the chain."""
        begun_ms = self._slice.begin()
        caller.release()
        self._settle(begun_ms, None)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Tell the head how far event time has come."""
        begun_ms = self._slice.begin(self._firings.rows)
        self._stages[0].watermark(time_us, idle=idle)
        self._settle(begun_ms, (self._firings, self._slice.spent))

    def tick(self, now: Instant) -> Instant | None:
        """Processing time has come to `now`. Returns the next time at which an operator must be called, if there is
        one. Must not be called while the chain `is_busy`."""
        begun_ms = self._slice.begin(self._firings.rows)
        for stage in self._stages:
            stage.left(stage.operator.fire(now))
        times = [t for t in (operator.tick(now) for operator in self.operators) if t is not None]
        self._settle(begun_ms, (self._firings, self._slice.spent))
        return min(times, default=None)

    def finish(self) -> None:
        """All input has been seen: each operator emits what it still holds, before the operator behind it does. When
        the chain is not busy, everything has left the chain."""
        self._to_finish.extend(self._stages)
        if not self.is_busy:
            self.is_busy = True
            self.go_on()

    def go_on(self) -> None:
        """Do the next slice of the work that is left. A slice that begins where no snapshot may be taken ends at the
        first point where a snapshot may be taken, because a snapshot may be due."""
        is_firing = self.may_snapshot
        begun_ms = self._slice.begin(self._firings.rows if is_firing else MOST_ROWS)
        while self.is_busy and not self._slice.is_over:
            self._advance()
            if not is_firing and self.may_snapshot:
                break
        self._settle(begun_ms, (self._firings, self._slice.spent) if is_firing else None)

    def _advance(self) -> None:
        """Go on with the last operator that has work left: records that are in the chain leave the chain before the
        operators further in front make more records."""
        busy = self._last_busy()
        if busy is not None:
            busy.go_on()
        elif self._to_finish:
            self._has_begun_to_finish = True
            stage = self._to_finish.popleft()
            stage.left(stage.operator.finish())
        else:
            self.is_busy = self._has_begun_to_finish = False

    def _last_busy(self) -> Stage | None:
        return next((stage for stage in reversed(self._stages) if stage.is_busy), None)

    def _settle(self, begun_ms: float, unit: tuple[Slices, int] | None) -> None:
        """Find out whether work is left. If a unit of work is done, learn from how long the unit took."""
        if self._slice.was_ended or self.is_busy:
            self.is_busy = bool(self._to_finish) or self._has_begun_to_finish or self._last_busy() is not None
        self._unit = self._unit or unit
        if self._unit is None:
            return
        self._unit_ms += self._slice.now_ms() - begun_ms
        if self.may_snapshot:
            slices, rows = self._unit
            slices.took(rows, self._unit_ms)
            self._unit, self._unit_ms = None, 0.0

    def before_barrier(self) -> None:
        """Each operator emits what must come before the barrier, before the operator behind it does. When the call
        returns, everything that was emitted has left the chain."""
        for number, operator in enumerate(self.operators):
            operator.before_barrier()
            while any(stage.is_busy for stage in self._stages[number + 1 :]):
                self._slice.begin()
                self._advance()

    # --- checkpoints ---------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> list[SnapshotWork]:
        """The synchronous part of a snapshot: freeze the state of every operator, from tail to head. The returned work
        writes the frozen state."""
        taken = (operator.snapshot(checkpoint, options) for operator in reversed(self.operators))
        return [work for work in taken if work is not None]

    def handle_event(self, operator: OperatorId, event: bytes) -> None:
        """Hand an event of an operator coordinator to its operator. The event is dropped if the operator had ended for
        good in the restored checkpoint."""
        for known, context in zip(self.operators, self._contexts, strict=True):
            if context.operator == operator:
                known.handle_event(event)

    def completed(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` is complete: everything up to its barrier is durable."""
        self._tell_all(lambda operator: operator.completed(checkpoint))

    def subsumed(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` and all checkpoints before it are deleted."""
        self._tell_all(lambda operator: operator.subsumed(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""
        self._tell_all(lambda operator: operator.aborted(checkpoint))

    def _tell_all(self, tell: Callable[[Operator], None]) -> None:
        """Tell every operator, even if another operator raises: an operator that is not told never releases what it
        keeps for the checkpoint. The first error is raised when all operators have been told."""
        first: BaseException | None = None
        for operator in self.operators:
            try:
                tell(operator)
            except BaseException as error:  # noqa: BLE001  # raised below
                first = first or error
        if first is not None:
            raise first

    @property
    def pending(self) -> bool:
        """Whether an operator has something under way that must end before the task may end."""
        return any(operator.pending for operator in self.operators)

    def close(self) -> None:
        """Drop the work that is left, and close all operators. An error of one operator does not keep the other
        operators from closing."""
        for stage in self._stages:
            with contextlib.suppress(BaseException):
                stage.drop()
        for operator in self.operators:
            with contextlib.suppress(BaseException):
                operator.close()


class _WithSides:
    """The output of an operator whose side outputs are read: event time goes on in the side outputs, too. A watermark
    that an operator further down the chain makes, or holds back, does not concern the side outputs of this operator."""

    def __init__(self, main: Output, sides: tuple[SideOutput, ...]) -> None:
        self.emit = main.emit
        self._main = main
        self._sides = sides

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand the watermark on, to the side outputs first."""
        for side in self._sides:
            side.watermark(time_us, idle=idle)
        self._main.watermark(time_us, idle=idle)


class _Ended(Operator):
    """Takes the place of the operators of a task that had ended for good."""

    def process(self, batch: pa.RecordBatch) -> None:
        raise InvariantError(f"{batch.num_rows} records came to a task that had ended for good")

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        pass


class FinishedChain(OperatorChain):
    """The chain of a task that had ended for good in the restored checkpoint. The chain has no operators, so no user
    code runs."""

    def __init__(self) -> None:
        super().__init__([_Ended()], [])
        self.operators = []

    def open(self, outputs: TaskOutputs) -> None:
        """There is nothing to start."""


def write_snapshot(work: list[SnapshotWork], writer: StateWriter) -> tuple[OperatorState, ...]:
    """The asynchronous part of a snapshot: write the frozen state of every operator. Runs off the loop."""
    states = [piece(writer) for piece in work]
    return tuple(state for state in reversed(states) if not state.is_empty)


def describe_failure(error: BaseException, *, vertex: str) -> tuple[str, str, str, bool]:
    """An error of a task as (operator, error in one line, traceback, whether user code raised)."""
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return describe_failure(error.__cause__, vertex=error.step)
    if isinstance(error, UserCodeError):
        line = error.traceback_text.strip().splitlines()[-1] if error.traceback_text.strip() else str(error)
        return error.operator, line, error.traceback_text, True
    step = step_of(error)
    if step is not None and not isinstance(error, Exception):
        # Only user code raises `SystemExit` and the like.
        return describe_failure(user_error(error, step), vertex=vertex)
    if step is not None and isinstance(error, UserCodeRaised):
        return describe_failure(user_code_raised(error, step), vertex=vertex)
    named = vertex if step is None else step.name
    if isinstance(error, UsageError | CorruptFile) and _is_raised_here(error):
        # The line says what the user must change. A traceback of this package would not help.
        return named, with_hint(error), "", False
    return named, one_line(error), "".join(traceback.format_exception(error)), False


def _is_raised_here(error: BaseException) -> bool:
    """Whether all frames of the traceback of an error belong to this package."""
    return all(frame.filename.startswith(_PACKAGE) for frame in traceback.extract_tb(error.__traceback__))
