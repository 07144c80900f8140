"""The first phases of a checkpoint: its folder, then the operator coordinators, then the hooks, then the triggers.

Only one checkpoint at a time is in these phases. Operator coordinators take their snapshots before any task does, and
their gateways keep later events back (`gateway`). A snapshot of an operator coordinator counts when the events that
were sent before the snapshot have arrived. Hooks run after the operator coordinators, so that an outside system is told
only when the driver's side is safe. At the first failure the lifecycle aborts the checkpoint, which opens the gateways
again.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import msgspec

from penstock.core.coordinator.effects import (
    AckVerdict,
    CoordinatorEffect,
    FailJob,
    FailTask,
    SendToTask,
    SnapshotOperatorCoordinator,
    TriggerHook,
)
from penstock.core.coordinator.events import (
    BarrierPassed,
    HookFailed,
    HookTriggered,
    OperatorCoordinatorFailed,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
)
from penstock.core.coordinator.gateway import Gateways
from penstock.core.coordinator.pending import PendingCheckpoint, Phase
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId
from penstock.core.messages import TriggerCheckpoint
from penstock.core.reasons import CheckpointFailure

MasterEvent = (
    OperatorCoordinatorSnapshotted
    | OperatorCoordinatorFailed
    | OperatorEventSubmitted
    | OperatorEventDelivered
    | OperatorEventLost
    | BarrierPassed
    | HookTriggered
    | HookFailed
)


class TriggerFailure(NamedTuple):
    """Why the checkpoint that is being triggered cannot go on."""

    reason: CheckpointFailure
    text: str
    fails_job: FailJob | None = None
    """Set if not only the checkpoint but the whole job fails."""


class Triggering:
    """The checkpoint that is being triggered, if there is one. Effects are appended to `effects`."""

    def __init__(self, graph: CheckpointGraph, board: TaskBoard, effects: list[CoordinatorEffect]) -> None:
        self.gateways = Gateways(graph, board)
        self.current: PendingCheckpoint | None = None
        self._board = board
        self._hooks = graph.hooks
        self._effects = effects

    def locate(self, pending: PendingCheckpoint, location: str) -> None:
        """The folder of the checkpoint has been made."""
        pending.location = location
        if pending.kind.is_savepoint:
            pending.options = msgspec.structs.replace(pending.options, target=location)
        pending.await_coordinators(self.gateways.operators)
        self.gateways.mark(pending.checkpoint)
        self._effects += [
            SnapshotOperatorCoordinator(operator=operator, checkpoint=pending.checkpoint)
            for operator in self.gateways.operators
        ]
        self._after_coordinators(pending)

    def leave(self, pending: PendingCheckpoint) -> None:
        """The checkpoint has ended, perhaps while it was being triggered."""
        if self.current is pending:
            self.current = None

    def handle(self, event: MasterEvent) -> TriggerFailure | None:
        """Handle an event about an operator coordinator, its events, or a hook. A late event changes nothing."""
        match event:
            case OperatorCoordinatorSnapshotted():
                self._handle_snapshotted(event)
            case OperatorCoordinatorFailed():
                pending = self._current_if(event.checkpoint)
                if pending is not None and pending.awaits_coordinator(event.operator):
                    return _coordinator_failed(event)
            case OperatorEventSubmitted() | OperatorEventDelivered() | OperatorEventLost() | BarrierPassed():
                return self._handle_operator_event(event)
            case HookTriggered():
                pending = self._current_if(event.checkpoint)
                if pending is not None and pending.acknowledge_hook(event.hook, event.state) is AckVerdict.ACCEPTED:
                    self._after_hooks(pending)
            case HookFailed():
                pending = self._current_if(event.checkpoint)
                if pending is not None and pending.awaits_hook(event.hook):
                    return TriggerFailure(event.reason, f"hook {event.hook}: {event.error}")
            case _:
                assert_never(event)
        return None

    def _current_if(self, checkpoint: CheckpointId) -> PendingCheckpoint | None:
        pending = self.current
        return pending if pending is not None and pending.checkpoint == checkpoint else None

    def _handle_snapshotted(self, event: OperatorCoordinatorSnapshotted) -> None:
        # An aborted checkpoint has lost its marks: a late snapshot closes no gateway, so events go on flowing.
        if not self.gateways.try_close(event.operator, event.checkpoint):
            return
        pending = self._current_if(event.checkpoint)
        if pending is None:
            return
        on_the_way = self.gateways.on_the_way(event.operator)
        if pending.acknowledge_coordinator(event.operator, event.state, on_the_way) is AckVerdict.ACCEPTED:
            self._after_coordinators(pending)

    def _handle_operator_event(
        self, event: OperatorEventSubmitted | OperatorEventDelivered | OperatorEventLost | BarrierPassed
    ) -> TriggerFailure | None:
        match event:
            case OperatorEventSubmitted():
                self._effects += self.gateways.submit(
                    event.operator, event.subtask, event.event, may_be_lost=event.may_be_lost
                )
            case OperatorEventDelivered():
                self._handle_delivered(event)
            case OperatorEventLost():
                return self._handle_lost(event)
            case BarrierPassed():
                if self._board.is_current(event.task, event.epoch):
                    self._effects += self.gateways.open_for_task(event.task, event.checkpoint)
            case _:
                assert_never(event)
        return None

    def _handle_delivered(self, event: OperatorEventDelivered) -> None:
        sent = self.gateways.settle(event.number)
        pending = self.current
        if sent is not None and pending is not None and pending.waits_for_event(sent.operator, event.number):
            pending.event_arrived(sent.operator, event.number)
            self._after_coordinators(pending)

    def _handle_lost(self, event: OperatorEventLost) -> TriggerFailure | None:
        sent = self.gateways.settle(event.number)
        if sent is None:
            return None
        text = f"an event of operator {sent.operator} to task {sent.task} was lost"
        if self._board.is_running(sent.task) and not (sent.may_be_lost and event.task_not_running):
            self._effects.append(FailTask(task=sent.task, reason=CheckpointFailure.TASK_FAILED, text=text))
        if self.current is not None and self.current.waits_for_event(sent.operator, event.number):
            return TriggerFailure(CheckpointFailure.TRIGGER_FAILED, text)
        return None

    def _after_coordinators(self, pending: PendingCheckpoint) -> None:
        if pending.awaits_coordinators:
            return
        pending.await_hooks(self._hooks)
        self._effects += [
            TriggerHook(hook=hook, checkpoint=pending.checkpoint, timestamp=pending.created) for hook in self._hooks
        ]
        self._after_hooks(pending)

    def _after_hooks(self, pending: PendingCheckpoint) -> None:
        if pending.awaited_hooks:
            return
        pending.phase = Phase.TASKS
        self.current = None
        for task in pending.plan.trigger:
            trigger = TriggerCheckpoint(
                epoch=self._board.epoch_of(task),
                task=task,
                checkpoint=pending.checkpoint,
                timestamp=pending.created,
                options=pending.options,
            )
            self._effects.append(SendToTask(task=task, message=trigger))


def _coordinator_failed(event: OperatorCoordinatorFailed) -> TriggerFailure:
    text = f"operator coordinator {event.name or event.operator}: {event.error}"
    fails = FailJob(
        reason=event.reason, text=event.error, operator=event.name or event.operator, traceback=event.traceback
    )
    return TriggerFailure(event.reason, text, fails)
