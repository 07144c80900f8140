"""The snapshots a task has under way: what its operators froze, and the in-flight data that belongs to them.

A snapshot is written when its operators' state is durable and, if the checkpoint is unaligned or may have become so,
when all in-flight data has been collected and is durable too.
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
        """Delete what was written here: nobody will be told of it."""
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
        """Write a task's in-flight data, together with that of the slot's other tasks."""
        ...

    def save_no_channels(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The task gives the checkpoint up: others need not wait for its in-flight data."""
        ...

    def discard(self, state: SubtaskState | None, target: str | None = None) -> None:
        """Delete the files of a snapshot that nobody will use; `target` is the folder of a savepoint."""
        ...

    def failed(self, task: TaskId, error: BaseException) -> None:
        """End this attempt: the task cannot go on."""
        ...


@dataclass(slots=True)
class _Open:
    """One snapshot under way."""

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
        """What the barrier that was sent last overtook."""
        self._waiting: CheckpointId | None = None
        """The checkpoint whose barrier still waits in an output queue and may time out there."""
        self._deadline: Instant | None = None

    # --- in-flight data ------------------------------------------------------------------

    def start_input(self, checkpoint: CheckpointId) -> bool:
        """Collect the input that is ahead of the checkpoint's barriers and not read. False if it cannot be told any
        more which that is."""
        collected = InFlight(checkpoint)
        if not self._gate.start_saving(checkpoint, collected.add_input):
            return False
        self._open[checkpoint] = _Open(collected=collected)
        return True

    def input_ended(self, checkpoint: CheckpointId, *, aborted: bool) -> None:
        """All barriers are in, or the checkpoint is over."""
        self._gate.stop_saving(checkpoint)
        found = self._open.get(checkpoint)
        if found is not None and found.collected is not None and not aborted:
            found.collected.input_complete = True
            self._advance(checkpoint)

    def barrier_sent(self, barrier: Barrier, overtaken: dict[ChannelKey, list[pa.RecordBatch]]) -> None:
        """The task's own barrier is in its output queues, and has overtaken this."""
        self._overtaken = overtaken if barrier.options.unaligned else {}

    def save_output(self, checkpoint: CheckpointId) -> None:
        """What the barrier overtook belongs to the checkpoint; if it may still time out, more may follow."""
        found = self._open.get(checkpoint)
        if found is None or found.collected is None:
            # Nothing was in flight on the way in: it is a source, or its barriers were aligned.
            found = self._open[checkpoint] = _Open(collected=InFlight(checkpoint, input_complete=True))
        if found.collected is None:
            raise InvariantError(f"in-flight data of checkpoint {checkpoint} is nowhere to be collected")
        found.collected.add_outputs(self._overtaken)
        self._overtaken = {}
        if self._outputs.is_waiting(checkpoint):
            self._waiting = checkpoint
        else:
            found.collected.output_complete = True
            self._advance(checkpoint)

    def arm(self, barrier: Barrier) -> None:
        """When the barrier is too old and still waits to be sent, it overtakes."""
        self._deadline = Instant(barrier.timestamp + (barrier.options.aligned_timeout_ms or 0))

    def tick(self, now: Instant) -> None:
        """Time has passed."""
        checkpoint = self._waiting
        if checkpoint is None or self._deadline is None or now < self._deadline:
            return
        self._output_known(checkpoint, self._outputs.time_out(checkpoint))

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called; None if nothing can time out."""
        return self._deadline if self._waiting is not None else None

    def output_sent(self) -> None:
        """Something left the output queues."""
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
        """Start the asynchronous part."""
        checkpoint = barrier.checkpoint
        found = self._open.setdefault(checkpoint, _Open())
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
                # Its in-flight data could not be written, and the checkpoint was declined.
                self._host.discard(SubtaskState(operators=outcome.value), barrier.options.target)

        def is_cancelled() -> bool:
            return found.cancelled

        def write_unless_cancelled() -> tuple[OperatorState, ...]:
            # A slot that is behind must not spend its time on snapshots that nobody waits for any more.
            if is_cancelled():
                return ()
            try:
                written = write_snapshot(work, files)
            except BaseException:
                # There are no handles of what was written before: only the place knows.
                files.discard()
                raise
            if is_cancelled():
                # At once, since the slot may be about to leave and hear no outcome any more.
                files.discard()
                return ()
            return written

        self._host.background.submit(write_unless_cancelled, done)

    def cancel(self, checkpoint: CheckpointId) -> None:
        """Nobody needs this snapshot. What is being written is let run to its end, and is then discarded."""
        if self._waiting == checkpoint:
            # Its barrier overtakes nothing any more, and leaves in its turn.
            self._waiting = None
        self._host.save_no_channels(self._task, checkpoint)
        found = self._open.get(checkpoint)
        if found is not None:
            found.cancelled = True
            self._advance(checkpoint)

    def stop(self) -> None:
        """The task has stopped."""
        for checkpoint in list(self._open):
            self.cancel(checkpoint)

    def _advance(self, checkpoint: CheckpointId) -> None:
        """Go on with a snapshot of which something has become known."""
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
            # What code of the user's was given is gone with its failure: the next checkpoint could do no better.
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
