"""The snapshots that a task has under way: the frozen state of the operators, and the in-flight data.

A snapshot counts as written when the state of the operators is durable. If the checkpoint is unaligned, or may have
become unaligned, all in-flight data must also have been collected and be durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError, UserCodeError
from penstock.core.ids import CheckpointId, Instant, TaskId
from penstock.core.messages import OperatorState, SubtaskState
from penstock.core.task.events import SnapshotWriteFailed, SnapshotWritten
from penstock.ports import Background, WorkResult
from penstock.runtime.task.chain import write_snapshot
from penstock.runtime.task.channels import ChannelKey, InputGate
from penstock.runtime.task.inflight import InFlight, SavedChannels
from penstock.runtime.task.operators.base import SnapshotWork, StateWriter
from penstock.runtime.task.operators.user_code import one_line
from penstock.runtime.task.outputs import TaskOutputs


class SnapshotPlace(StateWriter, Protocol):
    """Where a snapshot is written. Calls block."""

    def discard(self) -> None:
        """Delete all files that were written here, because the snapshot will not be acknowledged."""
        ...


class SnapshotHost(Protocol):
    """What snapshots ask of the slot."""

    background: Background

    def precise_ms(self) -> float:
        """A clock for durations."""
        ...

    def snapshot_files(self, task: TaskId, barrier: Barrier) -> SnapshotPlace:
        """A place for the task's snapshot."""
        ...

    def save_channels(self, task: TaskId, collected: InFlight, saved: Callable[[WorkResult], None]) -> None:
        """Write a task's in-flight data, together with the in-flight data of the slot's other tasks."""
        ...

    def save_no_channels(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The task gives the checkpoint up: the slot's other tasks need not wait for the task's in-flight data."""
        ...

    def discard(self, state: SubtaskState | None, target: str | None = None) -> None:
        """Delete the files of a snapshot that was not acknowledged; `target` is the folder of a savepoint."""
        ...

    def failed(self, task: TaskId, error: BaseException) -> None:
        """The task cannot go on: drop the task with its region, and tell the master why."""
        ...


@dataclass(slots=True)
class _Open:
    """One snapshot under way."""

    begun: bool = False
    """Whether the operators' state is being written, or is written."""
    frozen: float = 0.0
    after_data: bool = False
    operators: tuple[OperatorState, ...] | None = None
    collected: InFlight | None = None
    """None if nothing can be in flight."""
    submitted: bool = False
    channels: SavedChannels | None = None
    cancelled: bool = False


class TaskSnapshots:
    """All snapshots of one task that are not written yet."""

    def __init__(
        self,
        task: TaskId,
        *,
        gate: InputGate,
        outputs: TaskOutputs,
        host: SnapshotHost,
        written: Callable[[SnapshotWritten | SnapshotWriteFailed], None],
    ) -> None:
        self._task = task
        self._gate = gate
        self._outputs = outputs
        self._host = host
        self._written = written
        self._open: dict[CheckpointId, _Open] = {}
        self._overtaken: dict[ChannelKey, list[pa.RecordBatch]] = {}
        """The batches that the last barrier overtook in the output queues."""
        self._waiting: CheckpointId | None = None
        """The checkpoint whose barrier still waits in an output queue and may time out there."""
        self._deadline: Instant | None = None

    # --- in-flight data ------------------------------------------------------------------

    def start_input(self, checkpoint: CheckpointId) -> bool:
        """Collect the unread input that is ahead of the checkpoint's barriers. Returns False if the barrier of a newer
        checkpoint has arrived: then it is not known which input that is."""
        collected = InFlight(checkpoint)
        if not self._gate.start_saving(checkpoint, collected.add_input):
            return False
        self._open[checkpoint] = _Open(collected=collected)
        return True

    def input_ended(self, checkpoint: CheckpointId, *, aborted: bool) -> None:
        """All barriers of the checkpoint have come in, or the checkpoint is aborted: collect no more input."""
        self._gate.stop_saving(checkpoint)
        found = self._open.get(checkpoint)
        if found is not None and found.collected is not None and not aborted:
            found.collected.input_complete = True
            self._advance(checkpoint)

    def barrier_sent(self, barrier: Barrier, overtaken: dict[ChannelKey, list[pa.RecordBatch]]) -> None:
        """The task's own barrier is in the output queues, and has overtaken these batches."""
        self._overtaken = overtaken if barrier.options.unaligned else {}

    def save_output(self, checkpoint: CheckpointId) -> None:
        """Add the batches that the barrier overtook to the checkpoint. If the barrier may still time out, more batches
        may follow."""
        found = self._open.get(checkpoint)
        if found is None or found.collected is None:
            # No input is in flight: the task is a source, or the barriers of its inputs are aligned.
            found = self._open[checkpoint] = _Open(collected=InFlight(checkpoint, input_complete=True))
        if found.collected is None:
            raise InvariantError(f"checkpoint {checkpoint} has no collection for in-flight data")
        found.collected.add_outputs(self._overtaken)
        self._overtaken = {}
        if self._outputs.is_waiting(checkpoint):
            self._waiting = checkpoint
        else:
            found.collected.output_complete = True
            self._advance(checkpoint)

    def arm(self, barrier: Barrier) -> None:
        """Set the time at which the barrier overtakes, if the barrier still waits to be sent."""
        self._deadline = Instant(barrier.timestamp + (barrier.options.aligned_timeout_ms or 0))

    def tick(self, now: Instant) -> None:
        """Time has passed: a barrier that has waited for too long overtakes."""
        checkpoint = self._waiting
        if checkpoint is None or self._deadline is None or now < self._deadline:
            return
        self._output_known(checkpoint, self._outputs.time_out(checkpoint))

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called; None if nothing can time out."""
        return self._deadline if self._waiting is not None else None

    def output_sent(self) -> None:
        """An item may have left the output queues."""
        if self._waiting is not None and not self._outputs.is_waiting(self._waiting):
            self._output_known(self._waiting, {})

    def _output_known(self, checkpoint: CheckpointId, overtaken: dict[ChannelKey, list[pa.RecordBatch]]) -> None:
        self._waiting = None
        found = self._open.get(checkpoint)
        if found is not None and found.collected is not None:
            found.collected.add_outputs(overtaken)
            found.collected.output_complete = True
            self._advance(checkpoint)

    # --- writing -------------------------------------------------------------------------

    def write(self, barrier: Barrier, work: list[SnapshotWork], *, after_data: bool, frozen: float) -> None:
        """Start the asynchronous part of a snapshot."""
        checkpoint = barrier.checkpoint
        found = self._open.setdefault(checkpoint, _Open())
        found.begun = True
        found.after_data = after_data
        found.frozen = frozen
        files = self._host.snapshot_files(self._task, barrier)

        def done(outcome: WorkResult) -> None:
            if outcome.error is not None:
                self._failed(checkpoint, outcome.error)
                return
            found.operators = outcome.value
            if self._open.get(checkpoint) is found:
                self._advance(checkpoint)
            else:
                # The in-flight data of the snapshot could not be written, and the task has declined the checkpoint.
                self._host.discard(SubtaskState(operators=outcome.value), barrier.options.target)

        def is_cancelled() -> bool:
            return found.cancelled

        def write_unless_cancelled() -> tuple[OperatorState, ...]:
            # A slot that is behind must not spend its time on snapshots that are cancelled.
            if is_cancelled():
                return ()
            try:
                written = write_snapshot(work, files)
            except BaseException:
                # Files that were written before the error have no handles: only the place knows these files.
                files.discard()
                raise
            if is_cancelled():
                # Discarded here and not in `done`: a slot that is about to leave may not call `done`.
                files.discard()
                return ()
            return written

        self._host.background.submit(write_unless_cancelled, done)

    def cancel(self, checkpoint: CheckpointId) -> None:
        """Give a snapshot up. A write that is under way runs to its end, and the files are then discarded."""
        if self._waiting == checkpoint:
            # The barrier stays in line in the output queues, and does not overtake.
            self._waiting = None
        self._host.save_no_channels(self._task, checkpoint)
        found = self._open.get(checkpoint)
        if found is None:
            return
        found.cancelled = True
        if found.begun:
            self._advance(checkpoint)
        else:
            # In-flight data was collected, and the operators froze nothing: no write will end this snapshot.
            del self._open[checkpoint]

    def stop(self) -> None:
        """The task has stopped: give up every snapshot."""
        for checkpoint in list(self._open):
            self.cancel(checkpoint)

    def _advance(self, checkpoint: CheckpointId) -> None:
        """Do the next step of a snapshot, as far as its parts allow it."""
        found = self._open[checkpoint]
        collected = found.collected
        if collected is not None and collected.is_complete and not found.submitted and not found.cancelled:
            found.submitted = True
            self._host.save_channels(self._task, collected, lambda outcome: self._saved(checkpoint, found, outcome))
        needs_channels = collected is not None and not found.cancelled
        if found.operators is None or (needs_channels and found.channels is None):
            return
        if self._open.pop(checkpoint, None) is not None:
            self._written(self._event(checkpoint, found))

    def _saved(self, checkpoint: CheckpointId, found: _Open, outcome: WorkResult) -> None:
        if outcome.error is not None:
            self._failed(checkpoint, outcome.error)
            return
        found.channels = outcome.value
        if checkpoint in self._open:
            self._advance(checkpoint)
        else:
            saved: SavedChannels = outcome.value
            self._host.discard(SubtaskState(input_channels=saved.inputs, output_channels=saved.outputs))

    def _failed(self, checkpoint: CheckpointId, error: BaseException) -> None:
        if self._open.pop(checkpoint, None) is None:
            return
        self._host.save_no_channels(self._task, checkpoint)
        if isinstance(error, UserCodeError):
            # The records that the failed user code was given are lost, so the next checkpoint would miss them: the task
            # must restart.
            self._host.failed(self._task, error)
            return
        self._written(SnapshotWriteFailed(checkpoint=checkpoint, error=one_line(error)))

    def _event(self, checkpoint: CheckpointId, found: _Open) -> SnapshotWritten:
        channels = found.channels or SavedChannels()
        state: SubtaskState | None = SubtaskState(
            operators=found.operators or (),
            input_channels=channels.inputs,
            output_channels=channels.outputs,
            finished=found.after_data,
        )
        if not found.operators and not channels.size and not found.after_data:
            state = None
        return SnapshotWritten(
            checkpoint=checkpoint,
            state=state,
            async_ms=self._host.precise_ms() - found.frozen,
            checkpointed_bytes=state.size if state is not None else 0,
            bytes_persisted=channels.size,
        )
