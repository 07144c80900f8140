"""The operators of one task, called one after another: what is handed to the first comes out of the last at once, or in
slices if it takes long."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile, InvariantError, UsageError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.operators.user_code import one_line, step_of, user_error, with_hint
from penstock.runtime.task.operators.watermark import WatermarkOperator
from penstock.runtime.task.outputs import TaskOutputs
from penstock.runtime.task.slices import MOST_ROWS, Slice, Slices
from penstock.runtime.task.stages import Stage

_PACKAGE = str(Path(__file__).parents[2])


class StepFailed(Exception):
    """A step could not be loaded; the cause says why."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class OperatorChain:
    """Head to tail for data, tail to head for snapshots.

    What is handed to the head goes through all operators at once, unless it is too much for one slice: then the chain
    `is_busy`, takes nothing more in, and `go_on` does another slice.
    """

    def __init__(self, operators: list[Operator], contexts: list[OperatorContext]) -> None:
        self.operators = operators
        self._contexts = contexts
        self.head = operators[0]
        self.is_busy = False
        """Whether an operator has something left to do."""
        self.row_slices: Slices | None = None
        """How many rows the chain takes at once; None if no operator is slow for a row."""
        self._slice = Slice()
        self._stages = [Stage(operator, self._slice) for operator in operators]
        self._firings = Slices()
        self._unit: tuple[Slices, int] | None = None
        """What is under way and cannot be cut by a snapshot, and how many rows, timers or results it began with."""
        self._unit_ms = 0.0
        self._to_finish: deque[Stage] = deque()
        self._has_begun_to_finish = False
        if isinstance(self.head, SourceOperator):
            for operator in operators:
                if isinstance(operator, WatermarkOperator):
                    operator.progress = self.head.progress

    def run_by(self, clock_ms: Callable[[], float], most: int) -> None:
        """Slices end by this clock, and have at most so many rows, timers or results."""
        self._slice.run_by(clock_ms, most)
        self._firings = Slices(most=most)
        if any(operator.is_row_wise for operator in self.operators):
            self.row_slices = Slices(most=most)
        for stage in self._stages[1:]:
            stage.cut_rows()

    @property
    def source(self) -> SourceOperator | None:
        """The head, if it is a source."""
        return self.head if isinstance(self.head, SourceOperator) else None

    def load(self) -> None:
        """The blocking part of a start. Runs off the loop."""
        for operator, context in zip(self.operators, self._contexts, strict=True):
            try:
                operator.load(context)
            except UserCodeError:
                raise
            except BaseException as error:
                raise StepFailed(context.name) from error

    def open(self, outputs: TaskOutputs) -> None:
        """Start all operators, the last one first, so that none emits into one that is not open."""
        behind: Output = outputs
        for stage, context in reversed(list(zip(self._stages, self._contexts, strict=True))):
            stage.operator.slice = self._slice
            stage.operator.open(context, behind)
            behind = stage

    # --- slices --------------------------------------------------------------------------

    @property
    def may_snapshot(self) -> bool:
        """Whether all that is left to do is in the state of the operators, as timers that are due are, and all that has
        been done has been handed on."""
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

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Tell the head how far event time has come."""
        begun_ms = self._slice.begin(self._firings.rows)
        self._stages[0].watermark(time_us, idle=idle)
        self._settle(begun_ms, (self._firings, self._slice.spent))

    def tick(self, now: Instant) -> Instant | None:
        """Processing time has come to `now`; the next time an operator wants to be called. Not while it is busy."""
        begun_ms = self._slice.begin(self._firings.rows)
        for stage in self._stages:
            stage.left(stage.operator.fire(now))
        times = [t for t in (operator.tick(now) for operator in self.operators) if t is not None]
        self._settle(begun_ms, (self._firings, self._slice.spent))
        return min(times, default=None)

    def finish(self) -> None:
        """All input has been seen: each operator emits what is left, before the one behind it does. Nothing comes out
        of it any more when it is not busy."""
        self._to_finish.extend(self._stages)
        if not self.is_busy:
            self.is_busy = True
            self.go_on()

    def go_on(self) -> None:
        """Do another slice of what is left, but never beyond a point where a snapshot may be taken: one may be due."""
        is_firing = self.may_snapshot
        begun_ms = self._slice.begin(self._firings.rows if is_firing else MOST_ROWS)
        while self.is_busy and not self._slice.is_over:
            self._advance()
            if not is_firing and self.may_snapshot:
                break
        self._settle(begun_ms, (self._firings, self._slice.spent) if is_firing else None)

    def _advance(self) -> None:
        """Go on with the last operator that has something left: what is on its way comes before what it was made of."""
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
        """See whether something is left, and learn from how long a unit took that is through."""
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
        """Emit what must come before the barrier: each operator before the one behind it does. All of it goes to the
        end of the chain at once."""
        for number, operator in enumerate(self.operators):
            operator.before_barrier()
            while any(stage.is_busy for stage in self._stages[number + 1 :]):
                self._slice.begin()
                self._advance()

    # --- checkpoints ---------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> list[SnapshotWork]:
        """The synchronous part of every operator, from tail to head; the returned work writes what was frozen."""
        taken = (operator.snapshot(checkpoint, options) for operator in reversed(self.operators))
        return [work for work in taken if work is not None]

    def handle_event(self, operator: OperatorId, event: bytes) -> None:
        """Hand on what the coordinator of an operator says. One that had ended for good needs to hear nothing."""
        for known, context in zip(self.operators, self._contexts, strict=True):
            if context.operator == operator:
                known.handle_event(event)

    def completed(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` and all before it are durable."""
        self._tell_all(lambda operator: operator.completed(checkpoint))

    def subsumed(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` and all before it are deleted."""
        self._tell_all(lambda operator: operator.subsumed(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""
        self._tell_all(lambda operator: operator.aborted(checkpoint))

    def _tell_all(self, tell: Callable[[Operator], None]) -> None:
        """Tell every operator, even if another raises: what is not let go now is never let go. The first error is
        raised when all have been told."""
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
        """Whether an operator still has something under way that must end before the task may."""
        return any(operator.pending for operator in self.operators)

    def close(self) -> None:
        """Let go of everything; errors of one operator do not keep the others from closing."""
        for stage in self._stages:
            with contextlib.suppress(BaseException):
                stage.drop()
        for operator in self.operators:
            with contextlib.suppress(BaseException):
                operator.close()


class _Ended(Operator):
    """Stands where operators were that had ended for good."""

    def process(self, batch: pa.RecordBatch) -> None:
        raise InvariantError(f"{batch.num_rows} records came to a task that had ended for good")

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        pass


class FinishedChain(OperatorChain):
    """The operators of a task that had ended for good in the restored checkpoint: none is made, so no code of the
    user's runs."""

    def __init__(self) -> None:
        super().__init__([_Ended()], [])
        self.operators = []

    def open(self, outputs: TaskOutputs) -> None:
        """There is nothing to start."""


def write_snapshot(work: list[SnapshotWork], writer: StateWriter) -> tuple[OperatorState, ...]:
    """The asynchronous part: write what every operator froze. Runs off the loop."""
    states = [piece(writer) for piece in work]
    return tuple(state for state in reversed(states) if not state.is_empty)


def describe_failure(error: BaseException, *, vertex: str) -> tuple[str, str, str, bool]:
    """(operator, one line, traceback, whether it was user code) of what a task raised."""
    if isinstance(error, StepFailed) and error.__cause__ is not None:
        return describe_failure(error.__cause__, vertex=error.step)
    if isinstance(error, UserCodeError):
        line = error.traceback_text.strip().splitlines()[-1] if error.traceback_text.strip() else str(error)
        return error.operator, line, error.traceback_text, True
    step = step_of(error)
    if step is not None and not isinstance(error, Exception):
        # `SystemExit` and the like: nobody but user code raises them.
        return describe_failure(user_error(error, step), vertex=vertex)
    named = vertex if step is None else step.name
    if isinstance(error, UsageError | CorruptFile) and _is_raised_here(error):
        # What has to be changed is said by the line, and is not in this package.
        return named, with_hint(error), "", False
    return named, one_line(error), "".join(traceback.format_exception(error)), False


def _is_raised_here(error: BaseException) -> bool:
    """Whether no code but that of this package led to an error."""
    return all(frame.filename.startswith(_PACKAGE) for frame in traceback.extract_tb(error.__traceback__))
