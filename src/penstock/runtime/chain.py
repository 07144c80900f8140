"""The operators of one task, called one after another without a queue between them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable

import pyarrow as pa

from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.operators.source import SourceOperator
from penstock.runtime.operators.user_code import one_line
from penstock.runtime.operators.watermark import WatermarkOperator
from penstock.runtime.outputs import TaskOutputs


class _Next:
    """An operator's output: the operator behind it."""

    __slots__ = ("emit", "watermark")

    def __init__(self, operator: Operator) -> None:
        self.emit: Callable[[pa.RecordBatch], None] = operator.process
        self.watermark = operator.watermark


class OperatorChain:
    """Head to tail for data, tail to head for snapshots."""

    def __init__(self, operators: list[Operator], contexts: list[OperatorContext]) -> None:
        self.operators = operators
        self._contexts = contexts
        self.head = operators[0]
        if isinstance(self.head, SourceOperator):
            for operator in operators:
                if isinstance(operator, WatermarkOperator):
                    operator.progress = self.head.progress

    @property
    def source(self) -> SourceOperator | None:
        """The head, if it is a source."""
        return self.head if isinstance(self.head, SourceOperator) else None

    @property
    def is_row_wise(self) -> bool:
        """Whether an operator calls a function of the user's for every row, which may be slow."""
        return any(operator.is_row_wise for operator in self.operators)

    def load(self) -> None:
        """The blocking part of a start. Runs off the loop."""
        for operator, context in zip(self.operators, self._contexts, strict=True):
            operator.load(context)

    def open(self, outputs: TaskOutputs) -> None:
        """Start all operators, the last one first, so that none emits into one that is not open."""
        behind = None
        for operator, context in reversed(list(zip(self.operators, self._contexts, strict=True))):
            operator.open(context, outputs if behind is None else _Next(behind))
            behind = operator

    def finish(self) -> None:
        """All input has been seen: each operator emits what is left, before the one behind it does."""
        for operator in self.operators:
            operator.finish()

    def tick(self, now: Instant) -> Instant | None:
        """Processing time has come to `now`; the next time an operator wants to be called."""
        times = [t for t in (operator.tick(now) for operator in self.operators) if t is not None]
        return min(times, default=None)

    def prepare(self, checkpoint: CheckpointId) -> None:
        """Emit what must come before the barrier."""
        for operator in self.operators:
            operator.prepare(checkpoint)

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
        for operator in self.operators:
            operator.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""
        for operator in self.operators:
            operator.aborted(checkpoint)

    @property
    def pending(self) -> bool:
        """Whether an operator still has something under way that must end before the task may."""
        return any(operator.pending for operator in self.operators)

    def close(self) -> None:
        """Let go of everything; errors of one operator do not keep the others from closing."""
        for operator in self.operators:
            with contextlib.suppress(Exception):
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


def write_snapshot(work: list[SnapshotWork], writer: StateWriter) -> tuple[OperatorState, ...]:
    """The asynchronous part: write what every operator froze. Runs off the loop."""
    states = [piece(writer) for piece in work]
    return tuple(state for state in reversed(states) if not state.is_empty)


def describe_failure(error: BaseException, *, vertex: str) -> tuple[str, str, str, bool]:
    """(operator, one line, traceback, whether it was user code) of what a task raised."""
    if isinstance(error, UserCodeError):
        line = error.traceback_text.strip().splitlines()[-1] if error.traceback_text.strip() else str(error)
        return error.operator, line, error.traceback_text, True
    return vertex, one_line(error), "".join(traceback.format_exception(error)), False
