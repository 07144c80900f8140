"""A task's part in checkpoints: feeds the barrier handler and the checkpoint machine, and performs their effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import assert_never

import msgspec

from penstock.core.barrier.events import (
    AbortSnapshot,
    AllBarriersIn,
    BarrierAnnounced,
    BarrierReceived,
    BlockChannel,
    CorruptInput,
    HandlerEffect,
    HandlerEvent,
    PrioritizeBarrier,
    ResumeChannel,
    StartPersisting,
    StopPersisting,
    TriggerSnapshot,
)
from penstock.core.barrier.select import BarrierHandler
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier, CancelMarker, EndOfPartition
from penstock.core.errors import InvariantError, MalformedMessage, SnapshotFailed
from penstock.core.ids import ChannelIndex, CheckpointId, Instant, TaskId
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.core.task.events import (
    AcknowledgeSnapshot,
    ArmOutputTimeout,
    AskToEnd,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    DeclineSnapshot,
    DiscardSnapshot,
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
    TaskStopped,
    TellAborted,
    TellBarrierPassed,
    TellCompleted,
    TellSubsumed,
)
from penstock.core.task.life import LifeEvent, LifeState, TaskLife
from penstock.runtime.task.admission import InputAdmission
from penstock.runtime.task.chain import OperatorChain
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.host import TaskHost
from penstock.runtime.task.outputs import TaskOutputs
from penstock.runtime.task.restored import Restored
from penstock.runtime.task.snapshots import TaskSnapshots


class CheckpointPart:
    """The part of one task. A snapshot waits until the chain of operators allows it. `settle` is called when a snapshot
    is due, and must call `take_due`."""

    def __init__(  # noqa: PLR0913  # one keyword per part of the task
        self,
        task: TaskId,
        *,
        life: TaskLife,
        chain: OperatorChain,
        gate: InputGate,
        outputs: TaskOutputs,
        handler: BarrierHandler,
        checkpoints: TaskCheckpoints,
        host: TaskHost,
        admission: InputAdmission,
        restored: Restored,
        settle: Callable[[Instant], None],
    ) -> None:
        self.handler = handler
        self._task = task
        self._life = life
        self._chain = chain
        self._gate = gate
        self._outputs = outputs
        self._checkpoints = checkpoints
        self._host = host
        self._admission = admission
        self._restored = restored
        self._settle = settle
        self._snapshots = TaskSnapshots(task, gate=gate, outputs=outputs, host=host, written=self._written)
        self._due: deque[SnapshotDue] = deque()
        """Snapshots that wait until the chain of operators allows them."""
        gate.on_announced = self._announced

    def stop(self, now: Instant) -> None:
        """The task is over: give up every snapshot that is under way."""
        self.decide(TaskStopped(), now)
        self._snapshots.stop()

    def fail(self, error: BaseException) -> None:
        """Work of the task off the loop has failed: fail the task, unless the task is over."""
        if not self._life.state.is_over:
            self._host.failed(self._task, error)

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self.handler.validate()
        self._checkpoints.validate()

    # --- time ----------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Time has passed."""
        deadline = self.handler.next_deadline()
        if deadline is not None and now >= deadline:
            self.feed(Ticked(), now)
        self._snapshots.tick(now)

    def next_deadlines(self) -> tuple[Instant | None, Instant | None]:
        """When `tick` must be called: for barriers that come in, and for barriers that go out."""
        return self.handler.next_deadline(), self._snapshots.next_deadline()

    # --- barriers ------------------------------------------------------------------------

    def feed(self, event: HandlerEvent, now: Instant) -> None:
        """Feed an event to the barrier handler, and perform the effects."""
        arrived = event.channel if isinstance(event, BarrierReceived) and len(self._gate.channels) > 1 else None
        self._perform_handler(self.handler.handle(event, now), now, arrived)
        self._admission.look_for_barriers(are_due=self.handler.pending is not None)

    def _announced(self, index: ChannelIndex, barrier: Barrier, number: int) -> None:
        """A barrier that may time out waits in an input queue."""
        if self._life.state.takes_steps:
            now = self._host.now()
            self.feed(BarrierAnnounced(channel=index, barrier=barrier, sequence=number), now)

    def _perform_handler(self, effects: list[HandlerEffect], now: Instant, arrived: ChannelIndex | None) -> None:
        """`arrived` is the channel whose barrier has come, if the task may have waited for other channels."""
        for effect in effects:
            match effect:
                case BlockChannel():
                    self._gate.block(effect.channel)
                case ResumeChannel():
                    self._gate.resume(effect.channel)
                case TriggerSnapshot():
                    metrics = msgspec.structs.replace(effect.metrics, last_channel=arrived)
                    self.snapshot_due(SnapshotDue(barrier=effect.barrier, metrics=metrics), now)
                case AbortSnapshot():
                    self.decide(SnapshotImpossible(checkpoint=effect.checkpoint, reason=effect.reason), now)
                case AllBarriersIn():
                    metrics = msgspec.structs.replace(effect.metrics, last_channel=arrived)
                    self.decide(InputStateComplete(checkpoint=effect.checkpoint, metrics=metrics), now)
                case CorruptInput():
                    raise MalformedMessage(f"the input of {self._task} is corrupt: {effect.text}")
                case PrioritizeBarrier():
                    self._gate.prioritize(effect.channel, effect.sequence)
                case StartPersisting():
                    self._start_persisting(effect.checkpoint, now)
                case StopPersisting():
                    self._snapshots.input_ended(effect.checkpoint, aborted=effect.aborted)
                case _:
                    assert_never(effect)

    def _start_persisting(self, checkpoint: CheckpointId, now: Instant) -> None:
        if not self._snapshots.start_input(checkpoint):
            reason = CheckpointFailure.DECLINED_SUBSUMED
            self.decide(SnapshotImpossible(checkpoint=checkpoint, reason=reason), now)

    # --- when a snapshot may be taken ----------------------------------------------------

    def snapshot_due(self, due: SnapshotDue, now: Instant) -> None:
        """Take a snapshot as soon as the operators allow it."""
        self._due.append(due)
        self._settle(now)

    def take_due(self, now: Instant) -> None:
        """Take the snapshots that are due, as far as the operators allow it."""
        while self._due and self._may_take(self._due[0]):
            self.decide(self._due.popleft(), now)

    def _may_take(self, due: SnapshotDue) -> bool:
        # A savepoint that ends the task is taken after the operators have emitted everything at the end of the data.
        caller = self._chain.caller
        has_calls = caller is not None and caller.ending is not None and self._life.state.reads
        is_finishing = has_calls or self._life.state is LifeState.FINISHING
        return self._chain.may_snapshot and not (is_finishing and due.barrier.options.synchronous)

    @property
    def waits_for_operators(self) -> bool:
        """Whether a snapshot is due that cannot be taken before the operators have done more of their work."""
        return bool(self._due) and not self._chain.may_snapshot

    # --- snapshots -----------------------------------------------------------------------

    def output_sent(self) -> None:
        """An item may have left the output queues."""
        self._snapshots.output_sent()

    def decide(self, event: TaskEvent, now: Instant) -> None:
        """Feed an event to the checkpoint machine, and perform the effects."""
        for effect in self._checkpoints.handle(event, now):
            self._perform(effect, now)

    def _perform(self, effect: TaskEffect, now: Instant) -> None:
        match effect:
            case PrepareOperators():
                # After the end of the data no record may follow. Records that operators held back have gone out before
                # the end.
                if self._life.state.emits and not self._restored.has_finished:
                    self._chain.before_barrier()
            case BroadcastBarrier():
                self._snapshots.barrier_sent(effect.barrier, self._outputs.send_barrier(effect.barrier))
            case BroadcastCancelMarker():
                self._outputs.broadcast(CancelMarker(checkpoint=effect.checkpoint))
            case TakeSnapshot():
                self._snapshot(effect, now)
            case TellBarrierPassed():
                self._host.barrier_taken(self._task, effect.checkpoint)
            case AcknowledgeSnapshot():
                self._host.acknowledge(self._task, effect)
            case DeclineSnapshot():
                self._host.decline(self._task, effect)
            case DiscardSnapshot():
                self._host.discard(effect.state, effect.target)
            case TellCompleted() | TellSubsumed() | TellAborted():
                self._tell_operators(effect)
            case CancelSnapshot():
                self._snapshots.cancel(effect.checkpoint)
            case AskToEnd():
                self._life.handle(LifeEvent.LAST_CHECKPOINT_COMPLETE)
            case EndTask():
                self._life.handle(LifeEvent.LET_GO)
                self._outputs.broadcast(EndOfPartition())
            case GiveUpStop():
                raise SnapshotFailed(
                    f"savepoint {effect.checkpoint} was given up after {self._task} had ended its data for it",
                    hint="the task restarts from the latest checkpoint; stop the job again",
                )
            case FailTask():
                raise InvariantError(effect.text)
            case ArmOutputTimeout():
                self._snapshots.arm(effect.barrier)
            case SaveOutput():
                self._snapshots.save_output(effect.checkpoint)
            case _:
                assert_never(effect)

    def _tell_operators(self, effect: TellCompleted | TellSubsumed | TellAborted) -> None:
        match effect:
            case TellCompleted():
                self._chain.completed(effect.checkpoint)
            case TellSubsumed():
                self._chain.subsumed(effect.checkpoint)
            case TellAborted():
                self._chain.aborted(effect.checkpoint)
            case _:
                assert_never(effect)

    def _snapshot(self, effect: TakeSnapshot, now: Instant) -> None:
        """Do the synchronous part of a snapshot, and start the asynchronous part."""
        checkpoint = effect.barrier.checkpoint
        begun = self._host.precise_ms()
        work = self._chain.snapshot(checkpoint, effect.barrier.options)
        frozen = self._host.precise_ms()
        self.decide(SnapshotTaken(checkpoint=checkpoint, sync_ms=frozen - begun), now)
        self._snapshots.write(effect.barrier, work, after_data=effect.after_data, frozen=frozen)

    def _written(self, event: SnapshotWritten | SnapshotWriteFailed) -> None:
        try:
            self.decide(event, self._host.now())
        except BaseException as error:  # noqa: BLE001  # an operator's or connector's; the attempt ends with it
            self.fail(error)
