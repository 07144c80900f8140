"""The messages of slots to the master, and which part of the master each message goes to."""

from __future__ import annotations

from typing import assert_never

from penstock.core.coordinator.events import (
    Acknowledged,
    BacklogChanged,
    BarrierPassed,
    Declined,
    TaskAsksToEnd,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
)
from penstock.core.errors import InvariantError
from penstock.core.ids import SlotId
from penstock.core.job.events import AttemptFailed, SlotCancelled, SlotReady, SlotTurned, TaskDone
from penstock.core.messages import (
    Acknowledge,
    BarrierTaken,
    Cancelled,
    CatchingUp,
    DataEnded,
    Decline,
    EventTimeReached,
    Heartbeat,
    Leaving,
    LoopStuck,
    OperatorEventTaken,
    Ready,
    Register,
    SplitsRead,
    StepFull,
    TaskFailed,
    TaskFinished,
    TasksLoading,
    ToMaster,
    WantsToEnd,
    WorkerLog,
)
from penstock.runtime.full_steps import UnneededSources
from penstock.runtime.master.alignment import GroupTimes
from penstock.runtime.master.closing import Closing
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.master.deployment import Deployment
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators
from penstock.runtime.master.progress import JobProgress, cause_of


class Hearing:
    """Passes the messages of registered slots on to the parts of the master."""

    def __init__(
        self,
        decisions: Decisions,
        *,
        deployment: Deployment,
        coordinators: OperatorCoordinators,
        groups: GroupTimes,
        unneeded: UnneededSources,
        progress: JobProgress,
        closing: Closing,
    ) -> None:
        self._decisions = decisions
        self._deployment = deployment
        self._coordinators = coordinators
        self._groups = groups
        self._unneeded = unneeded
        self._progress = progress
        self._closing = closing

    def hear(self, message: ToMaster) -> None:
        """Take one message."""
        feed_job, feed_coordinator = self._decisions.feed_job, self._decisions.feed_coordinator
        match message:
            case Register():
                raise InvariantError(
                    f"the registration of {message.slot} came to a part that hears registered slots only"
                )
            case WorkerLog():
                self._progress.said(message)
            case LoopStuck():
                feed_job(self._progress.slot_stuck(message, self._decisions.now))
            case TasksLoading():
                feed_job(self._progress.slot_loading(message))
            case Heartbeat():
                self._on_heartbeat(message)
            case Ready():
                feed_job(SlotReady(slot=message.slot, epoch=message.epoch))
            case Cancelled():
                feed_job(SlotCancelled(slot=message.slot, epoch=message.epoch, tasks=message.tasks))
            case TaskFailed():
                self._on_task_failed(message)
            case DataEnded() | WantsToEnd():
                event = TaskDataEnded if isinstance(message, DataEnded) else TaskAsksToEnd
                feed_coordinator(event(task=message.task, epoch=message.epoch))
                self._groups.data_ended(message.task, message.epoch)
            case TaskFinished():
                # A job that was cancelled must not count as stopped because its last task then ends by itself: the
                # coordinator is not told.
                if not self._closing.is_decided:
                    feed_coordinator(TaskEnded(task=message.task, epoch=message.epoch))
                self._progress.chronicle.task_ended(message.task, self._decisions.now)
                feed_job(TaskDone(task=message.task, epoch=message.epoch))
            case Acknowledge():
                feed_coordinator(Acknowledged(message=message))
            case Decline():
                feed_coordinator(Declined(message=message))
            case BarrierTaken():
                feed_coordinator(BarrierPassed(task=message.task, epoch=message.epoch, checkpoint=message.checkpoint))
            case OperatorEventTaken():
                self._coordinators.taken(message)
            case SplitsRead() | CatchingUp() | EventTimeReached() | StepFull():
                self._on_reading(message)
            case Leaving():
                pass
            case _:
                assert_never(message)

    def hear_dump(self, slot: SlotId, stacks: str) -> None:
        """Native code in a slot holds Python's lock, and the slot has dumped its stacks."""
        self._decisions.feed_job(self._progress.slot_mute(slot, stacks, self._decisions.now))

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._progress.slot_turns(message.slot, self._decisions.now)
        self._progress.process_is(message.slot, message.process)
        self._decisions.feed_job(SlotTurned(slot=message.slot))
        # A slot that was replaced may still live, and report on tasks that another slot runs by now.
        if message.epoch == self._deployment.attempt and message.slot in self._decisions.lifecycle.slots:
            self._progress.heard(message.metrics)

    def _on_reading(self, message: SplitsRead | CatchingUp | EventTimeReached | StepFull) -> None:
        """A subtask of a source says how far it has come, or a step that it needs nothing more of its sources."""
        match message:
            case SplitsRead():
                if message.epoch == self._decisions.lifecycle.epoch:
                    self._coordinators.splits_read(message)
            case CatchingUp():
                told = BacklogChanged(
                    operator=message.operator, backlog=message.is_behind, task=message.task, epoch=message.epoch
                )
                self._decisions.feed_coordinator(told)
            case EventTimeReached():
                self._groups.heard(message)
            case StepFull():
                self._unneeded.heard(message)
            case _:
                assert_never(message)

    def _on_task_failed(self, message: TaskFailed) -> None:
        # In a job that is being stopped, the sources of all regions have ended: no region can restart alone.
        whole = message.whole or self._decisions.coordinator.is_stopping
        self._decisions.feed_coordinator(TaskFailing(task=message.task, epoch=message.epoch, error=message.error))
        self._decisions.feed_job(
            AttemptFailed(epoch=message.epoch, cause=cause_of(message), task=message.task, whole=whole)
        )
