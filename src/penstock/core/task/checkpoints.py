"""A subtask's part in checkpoints: take, acknowledge, decline, abort, and know when the task may end.

Per checkpoint, after the barrier handler (or, for a source, the master) says that the snapshot is due:

    1  if the checkpoint was aborted, a cancel marker goes out and nothing else happens
    2  operators emit the records that must come before the barrier
    3  the task's own barrier goes out
    4  data that the barrier overtook in the output queues is saved, if the checkpoint is or may become unaligned
    5  the synchronous part of the snapshot is taken, and the operator coordinators are told at once
    6  the asynchronous part of the snapshot is written, and the master is told of its end:

           RUNNING ──written──► acknowledged
              │ └────failed───► declined
              └──abort──► DISCARDED ──written──► files deleted

Exactly one of the three ends counts. A later event finds no entry for the checkpoint, and deletes files at most.

Rules of this file:

* Ids only grow. Notifications may be lost, so the completion of a checkpoint covers all earlier checkpoints, and an
  abort carries the id of the latest completed checkpoint.
* A task that has stopped says nothing to the master.
* A task that is restored from the savepoint that was to end the task has its final checkpoint, and takes no other.
* A task whose final checkpoint is complete asks to end, and takes part in checkpoints until the master agrees: its data
  may wait behind back-pressure for long, and checkpoints must not wait that long. The master agrees when no checkpoint
  waits for the task. Behind the end of its channels a task sends nothing.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.events import (
    AbortNotified,
    AcknowledgeSnapshot,
    ArmOutputTimeout,
    AskToEnd,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    CompletionNotified,
    DataFinished,
    DeclineSnapshot,
    DiscardSnapshot,
    EndAllowed,
    EndTask,
    FailTask,
    GiveUpStop,
    InputStateComplete,
    PrepareOperators,
    SaveOutput,
    SnapshotDue,
    SnapshotImpossible,
    SnapshotTaken,
    SnapshotWriteFailed,
    SnapshotWritten,
    TakeSnapshot,
    TaskEffect,
    TaskEvent,
    TaskStarted,
    TaskStopped,
    TellAborted,
    TellBarrierPassed,
    TellCompleted,
    TellSubsumed,
)

MOST_REMEMBERED_ABORTS = 256
"""More aborted ids than this are never remembered, however many checkpoints may run at once."""


class _Running:
    """A snapshot whose asynchronous part is under way."""

    def __init__(self, metrics: AlignmentMetrics, target: str | None) -> None:
        self.metrics = metrics
        self.target = target
        self.sync_ms = 0.0
        self.discarded = False


class TaskCheckpoints:
    """The checkpoint machine of one subtask."""

    def __init__(
        self,
        *,
        restored: CheckpointId | None,
        max_concurrent: int,
        after_tasks_finish: bool = True,
        restored_is_last: bool = False,
    ) -> None:
        """`restored_is_last` says that the restored savepoint is the last checkpoint of the task."""
        self._restored_is_last = restored_is_last
        self._last = CheckpointId(restored or 0)
        """The newest checkpoint that this task has begun or given up."""
        self._last_completed = CheckpointId(restored or 0)
        self._after_tasks_finish = after_tasks_finish
        self._remember = max(1, min(max_concurrent, MOST_REMEMBERED_ABORTS))
        self._aborted: dict[CheckpointId, None] = {}
        """Checkpoints that were aborted before their barriers came."""
        self._newest_aborted = CheckpointId(0)
        self._running: dict[CheckpointId, _Running] = {}
        self._started = False
        self._stopped = False
        self._data_finished = False
        self._final: CheckpointId | None = None
        """The first checkpoint that the task took after the end of its data. Without `after_tasks_finish`: the newest
        checkpoint that was taken after the data of all tasks had ended."""
        self._savepoint: CheckpointId | None = None
        """The synchronous savepoint that ends the task."""
        self._asks = False
        """Whether `AskToEnd` has been returned."""
        self._ended = False

    # --- the machine's contract ----------------------------------------------------------

    def handle(self, event: TaskEvent, now: Instant) -> list[TaskEffect]:
        """Take one event in; say what to do."""
        del now  # The coordinator and the barrier handler watch the deadlines of checkpoints.
        match event:
            case TaskStarted():
                self._started = True
                return []
            case SnapshotDue():
                return self._handle_due(event)
            case SnapshotImpossible():
                return self._handle_impossible(event)
            case InputStateComplete():
                return self._handle_input_complete(event)
            case SnapshotTaken():
                return self._handle_taken(event)
            case SnapshotWritten():
                return self._handle_written(event)
            case SnapshotWriteFailed():
                return self._handle_write_failed(event)
            case CompletionNotified():
                return self._handle_completion(event.checkpoint, event.subsumed)
            case AbortNotified():
                return self._handle_abort(event)
            case DataFinished():
                # After a stop without drain the operators have not finished: after a restore the operators go on.
                self._data_finished = self._data_finished or event.drained
                return self._end_with_restored() if self._restored_is_last else []
            case EndAllowed():
                return self._handle_end_allowed()
            case TaskStopped():
                self._stopped = True
                return [CancelSnapshot(checkpoint=c) for c, run in self._running.items() if not run.discarded]
            case Ticked():
                return []
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """Only events move this machine."""
        return None

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        if len(self._aborted) > self._remember:
            raise InvariantError(f"{len(self._aborted)} aborted ids are remembered, at most {self._remember} may be")
        if any(checkpoint > self._last for checkpoint in self._running):
            raise InvariantError(f"a snapshot newer than checkpoint {self._last} is being written")

    @property
    def remembered_aborts(self) -> int:
        """How many aborted ids wait for their barrier."""
        return len(self._aborted)

    # --- taking a snapshot ---------------------------------------------------------------

    def _handle_due(self, event: SnapshotDue) -> list[TaskEffect]:
        barrier = event.barrier
        checkpoint = barrier.checkpoint
        if self._stopped:
            return []
        if checkpoint <= self._last:
            # Late: this task has given the checkpoint up, or has taken a newer checkpoint.
            return [CancelSnapshot(checkpoint=checkpoint)]
        self._last = checkpoint
        if self._ended:
            # The master aborted the checkpoint before the master let the task end, or the checkpoint never waited for
            # the task.
            reason = CheckpointFailure.DECLINED_TASK_CLOSING
            return [DeclineSnapshot(checkpoint=checkpoint, reason=reason, error="the task is about to end")]
        if not self._started:
            return [
                BroadcastCancelMarker(checkpoint=checkpoint),
                DeclineSnapshot(
                    checkpoint=checkpoint,
                    reason=CheckpointFailure.DECLINED_TASK_NOT_READY,
                    error="the task has not been restored yet",
                ),
            ]
        if self._was_aborted(checkpoint):
            return [CancelSnapshot(checkpoint=checkpoint), BroadcastCancelMarker(checkpoint=checkpoint)]
        if barrier.options.synchronous:
            if self._savepoint is not None:
                return [
                    FailTask(text=f"savepoint {checkpoint} came while savepoint {self._savepoint} is to end the task")
                ]
            self._savepoint = checkpoint
        return self._steps(barrier, event.metrics)

    def _steps(self, barrier: Barrier, metrics: AlignmentMetrics) -> list[TaskEffect]:
        checkpoint = barrier.checkpoint
        # An input edge may have forced the barrier to align; the task's own barrier may overtake again.
        outgoing = msgspec.structs.replace(
            barrier, options=msgspec.structs.replace(barrier.options, forced_aligned=False)
        )
        effects: list[TaskEffect] = [PrepareOperators(checkpoint=checkpoint), BroadcastBarrier(barrier=outgoing)]
        if outgoing.options.timeoutable:
            effects.append(ArmOutputTimeout(barrier=outgoing))
        if outgoing.options.timeoutable or outgoing.options.unaligned:
            effects.append(SaveOutput(checkpoint=checkpoint))
        if self._data_finished and (self._final is None if self._after_tasks_finish else barrier.options.final):
            self._final = checkpoint
        self._running[checkpoint] = _Running(metrics, barrier.options.target)
        effects.append(TakeSnapshot(barrier=barrier, after_data=self._data_finished))
        return effects

    def _was_aborted(self, checkpoint: CheckpointId) -> bool:
        """Whether the checkpoint was aborted before its barrier came. An id that is too old to be remembered counts as
        aborted."""
        for older in [c for c in self._aborted if c < checkpoint]:
            del self._aborted[older]
        if checkpoint in self._aborted:
            del self._aborted[checkpoint]
            return True
        return checkpoint + self._remember < self._newest_aborted

    def _handle_impossible(self, event: SnapshotImpossible) -> list[TaskEffect]:
        checkpoint = event.checkpoint
        running = self._running.get(checkpoint)
        is_open = checkpoint > self._last or (running is not None and not running.discarded)
        self._last = max(self._last, checkpoint)
        for known in [c for c in self._aborted if c <= checkpoint]:
            del self._aborted[known]
        if self._stopped:
            return []
        effects: list[TaskEffect] = [CancelSnapshot(checkpoint=checkpoint)]
        if not is_open or self._ended:
            # This task has given the checkpoint up before, and the master and all downstream tasks know: the barrier
            # handler learns it only when a newer barrier comes. Or the task has ended, and no checkpoint waits for its
            # part.
            return effects
        if running is not None:
            running.discarded = True
        decline = DeclineSnapshot(checkpoint=checkpoint, reason=event.reason, error=event.error)
        return [*effects, BroadcastCancelMarker(checkpoint=checkpoint), decline]

    def _handle_input_complete(self, event: InputStateComplete) -> list[TaskEffect]:
        running = self._running.get(event.checkpoint)
        if running is not None:
            running.metrics = event.metrics
        return []

    def _handle_taken(self, event: SnapshotTaken) -> list[TaskEffect]:
        running = self._running.get(event.checkpoint)
        if running is None or self._stopped:
            return []
        running.sync_ms = event.sync_ms
        return [TellBarrierPassed(checkpoint=event.checkpoint)]

    # --- the end of the asynchronous part ------------------------------------------------

    def _handle_written(self, event: SnapshotWritten) -> list[TaskEffect]:
        running = self._running.pop(event.checkpoint, None)
        if running is None or running.discarded or self._stopped:
            target = None if running is None else running.target
            return [DiscardSnapshot(checkpoint=event.checkpoint, state=event.state, target=target)]
        return [
            AcknowledgeSnapshot(
                checkpoint=event.checkpoint,
                state=event.state,
                metrics=running.metrics,
                sync_ms=running.sync_ms,
                async_ms=event.async_ms,
                checkpointed_bytes=event.checkpointed_bytes,
                bytes_persisted=event.bytes_persisted,
            )
        ]

    def _handle_write_failed(self, event: SnapshotWriteFailed) -> list[TaskEffect]:
        running = self._running.pop(event.checkpoint, None)
        if running is None or running.discarded or self._stopped:
            return []
        reason = CheckpointFailure.ASYNC_PART_FAILED
        return [DeclineSnapshot(checkpoint=event.checkpoint, reason=reason, error=event.error)]

    # --- notifications -------------------------------------------------------------------

    def _handle_completion(self, checkpoint: CheckpointId, subsumed: CheckpointId | None) -> list[TaskEffect]:
        if self._stopped or checkpoint <= self._last_completed:
            # The notification is repeated, or a newer notification has overtaken it: the operators have been told
            # already.
            return []
        self._last_completed = checkpoint
        effects: list[TaskEffect] = [TellCompleted(checkpoint=checkpoint)]
        if subsumed is not None:
            effects.append(TellSubsumed(checkpoint=subsumed))
        if self._may_end(checkpoint) and not self._asks:
            self._asks = True
            effects.append(AskToEnd())
        return effects

    def _may_end(self, completed: CheckpointId) -> bool:
        if self._savepoint is not None:
            return completed == self._savepoint
        if not self._after_tasks_finish:
            # Any other completed checkpoint was not taken by all tasks after the end of their data: some tasks would
            # stay behind.
            return completed == self._final
        return self._final is not None and completed >= self._final

    def _end_with_restored(self) -> list[TaskEffect]:
        """The savepoint that was to end the task is complete, and nobody says so a second time. Operators may wait for
        that: what the savepoint promised must be committed before the task ends."""
        self._asks = True
        return [TellCompleted(checkpoint=self._last_completed), AskToEnd()]

    def _handle_end_allowed(self) -> list[TaskEffect]:
        if self._stopped or self._ended:
            return []
        if not self._asks:
            return [FailTask(text="the master lets the task end, and the task has not asked to end")]
        self._ended = True
        return [EndTask()]

    def _handle_abort(self, event: AbortNotified) -> list[TaskEffect]:
        if self._stopped:
            return []
        effects: list[TaskEffect] = []
        if event.latest_completed is not None:
            effects += self._handle_completion(event.latest_completed, None)
        checkpoint = event.checkpoint
        if checkpoint > self._last:
            self._aborted[checkpoint] = None
            self._newest_aborted = max(self._newest_aborted, checkpoint)
            for oldest in sorted(self._aborted)[: -self._remember]:
                del self._aborted[oldest]
        running = self._running.get(checkpoint)
        if running is not None and not running.discarded:
            running.discarded = True
            effects.append(CancelSnapshot(checkpoint=checkpoint))
        effects.append(TellAborted(checkpoint=checkpoint))
        if checkpoint == self._savepoint:
            effects.append(GiveUpStop(checkpoint=checkpoint))
        return effects
