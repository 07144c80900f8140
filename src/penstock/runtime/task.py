"""One subtask: reads its channels or its source, drives its operators, and takes its part in checkpoints.

A task makes steps: one batch or one element each. Between steps it obeys the checkpoint machines of the core, which are
asked about barriers, ends and notifications, and never about batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, assert_never

import pyarrow as pa

from penstock.api.connector import End, Pause
from penstock.core.barrier.events import (
    AbortSnapshot,
    AllBarriersIn,
    BarrierReceived,
    BlockChannel,
    CancelReceived,
    ChannelEnded,
    CorruptInput,
    HandlerEffect,
    HandlerEvent,
    InputConsumed,
    PrioritizeBarrier,
    ResumeChannel,
    StartPersisting,
    StopPersisting,
    TriggeredByMaster,
    TriggerSnapshot,
)
from penstock.core.barrier.select import BarrierHandler
from penstock.core.effects import Ticked
from penstock.core.elements import (
    MAX_WATERMARK,
    AnyElement,
    Barrier,
    CancelMarker,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from penstock.core.errors import InvariantError, MalformedMessage
from penstock.core.ids import ChannelIndex, CheckpointId, Instant, TaskId
from penstock.core.messages import SubtaskState
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.core.task.events import (
    AbortNotified,
    AcknowledgeSnapshot,
    ArmOutputTimeout,
    BroadcastBarrier,
    BroadcastCancelMarker,
    CancelSnapshot,
    CompletionNotified,
    DataFinished,
    DeclineSnapshot,
    DiscardSnapshot,
    EndTask,
    FailTask,
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
    TellCompleted,
    TellSubsumed,
)
from penstock.ports import Background, Outcome
from penstock.runtime.chain import OperatorChain, one_line, write_snapshot
from penstock.runtime.channels import InputGate
from penstock.runtime.operators.base import StateWriter
from penstock.runtime.outputs import TaskOutputs
from penstock.runtime.watermarks import WatermarkValve


class TaskHost(Protocol):
    """What a task asks of its slot."""

    background: Background

    def now(self) -> Instant:
        """The time of this turn."""
        ...

    def precise_ms(self) -> float:
        """A clock for durations."""
        ...

    def snapshot_files(self, task: TaskId, checkpoint: CheckpointId) -> StateWriter:
        """A place for the task's snapshot."""
        ...

    def discard(self, state: SubtaskState | None) -> None:
        """Delete the files of a snapshot that nobody will use."""
        ...

    def acknowledge(self, task: TaskId, effect: AcknowledgeSnapshot) -> None:
        """Tell the master."""
        ...

    def decline(self, task: TaskId, effect: DeclineSnapshot) -> None:
        """Tell the master."""
        ...

    def data_ended(self, task: TaskId) -> None:
        """Tell the master."""
        ...

    def finished(self, task: TaskId) -> None:
        """Tell the master."""
        ...

    def failed(self, task: TaskId, error: BaseException) -> None:
        """End this attempt: the task cannot go on."""
        ...


@dataclass(slots=True)
class TaskCounters:
    """Running totals for people to look at."""

    batches_in: int = 0
    rows_in: int = 0


class Task:
    """A subtask in one epoch."""

    def __init__(
        self,
        task: TaskId,
        *,
        chain: OperatorChain,
        gate: InputGate,
        outputs: TaskOutputs,
        handler: BarrierHandler,
        checkpoints: TaskCheckpoints,
        host: TaskHost,
    ) -> None:
        self.task = task
        self.chain = chain
        self.gate = gate
        self.outputs = outputs
        self.counters = TaskCounters()
        self._handler = handler
        self._checkpoints = checkpoints
        self._host = host
        self._source = chain.source
        self._valve = WatermarkValve(len(gate.channels))
        self._data_open = len(gate.channels)
        """Channels whose data has not ended."""
        self._poll_at: Instant | None = None
        self._tick_at: Instant | None = None
        self._watermark_us: int | None = None
        self._running = False
        self._data_ended = False
        self._ending = False
        self._stopped = False

    # --- life ----------------------------------------------------------------------------

    def open(self) -> None:
        """Start the operators; everything that blocks has been done."""
        if not self._stopped:
            self.chain.open(self.outputs)

    def run(self, now: Instant) -> None:
        """Begin: let upstream send."""
        if self._stopped:
            return
        self._running = True
        self._perform_task(self._checkpoints.handle(TaskStarted(), now), now)
        for channel in self.gate.channels:
            channel.open()

    def stop(self, now: Instant) -> None:
        """End at once: nothing more is read, emitted, acknowledged or committed."""
        if not self._stopped:
            self._stopped = True
            self._running = False
            self._perform_task(self._checkpoints.handle(TaskStopped(), now), now)
            self.chain.close()

    def fail(self, error: BaseException) -> None:
        """Something that was under way off the loop went wrong. A task that has stopped has nothing to fail: the
        attempt that it belonged to is over."""
        if not self._stopped:
            self._host.failed(self.task, error)

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self._handler.validate()
        self._checkpoints.validate()

    def metrics(self) -> dict[str, float]:
        """Running totals, by name."""
        found: dict[str, float] = {
            "rows_in": self.counters.rows_in,
            "batches_in": self.counters.batches_in,
            "rows_out": self.outputs.rows_out,
            "queued_bytes": self.outputs.queued_bytes,
        }
        if self._watermark_us is not None:
            found["watermark_us"] = self._watermark_us
        return found

    # --- steps ---------------------------------------------------------------------------

    def step(self, now: Instant, max_rows: int) -> bool:
        """Do one thing if there is one to do, and send what came of it; whether there was."""
        if not self._running or not self._step(now, max_rows):
            return False
        self._send()
        return True

    def _step(self, now: Instant, max_rows: int) -> bool:
        if self._ending:
            return self._try_to_end(now)
        if not self.outputs.has_room:
            return False
        if self._source is not None and not self._data_ended:
            return self._poll(now, max_rows)
        taken = self.gate.next()
        if taken is None:
            return False
        index, item, cost = taken
        if isinstance(item, pa.RecordBatch):
            self._process(index, item, cost, now)
        else:
            self._take(index, item, now)
        return True

    def _poll(self, now: Instant, max_rows: int) -> bool:
        if self._source is None or (self._poll_at is not None and now < self._poll_at):
            return False
        polled = self._source.poll(max_rows, now)
        if isinstance(polled, Pause):
            self._poll_at = Instant(now + max(polled.wait_ms, 1))
            return False
        self._poll_at = None
        if isinstance(polled, End):
            self._finish_data(now)
            return True
        self.counters.batches_in += 1
        self.counters.rows_in += polled.num_rows
        self.chain.head.process(polled)
        return True

    def _process(self, index: ChannelIndex, batch: pa.RecordBatch, cost: int, now: Instant) -> None:
        self.counters.batches_in += 1
        self.counters.rows_in += batch.num_rows
        self.chain.head.process(batch)
        self.gate.channels[index].consumed(cost)
        if self._handler.pending is not None:
            self._feed(InputConsumed(bytes_processed=cost), now)

    def _take(self, index: ChannelIndex, element: AnyElement, now: Instant) -> None:
        match element:
            case Barrier():
                self._feed(BarrierReceived(channel=index, barrier=element), now)
            case CancelMarker():
                self._feed(CancelReceived(channel=index, checkpoint=element.checkpoint), now)
            case Watermark():
                self._advance(self._valve.advance(index, element))
            case EndOfData():
                self._data_open -= 1
                self._advance(self._valve.end(index))
                if self._data_open == 0:
                    self._finish_data(now, drain=element.drain)
            case EndOfPartition():
                self.gate.channels[index].ended = True
                self._feed(ChannelEnded(channel=index), now)
            case _:
                assert_never(element)

    def _advance(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            if watermark.time_us < MAX_WATERMARK:
                self._watermark_us = watermark.time_us
            self.chain.head.watermark(watermark.time_us, idle=watermark.idle)

    def _finish_data(self, now: Instant, *, drain: bool = True) -> None:
        """All input has been seen."""
        self._data_ended = True
        if drain:
            self.chain.finish()
        self.outputs.broadcast(EndOfData(drain=drain))
        self._perform_task(self._checkpoints.handle(DataFinished(drained=drain), now), now)
        self._host.data_ended(self.task)

    def _try_to_end(self, now: Instant) -> bool:
        self.outputs.flush()
        if not self.outputs.is_empty or self.chain.pending:
            return False
        self.stop(now)
        self._host.finished(self.task)
        return True

    # --- time ----------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Time has passed: operators' processing time, and the deadlines of the barrier handler."""
        if not self._running:
            return
        if not self._data_ended and not self._ending and (self._tick_at is None or now >= self._tick_at):
            self._tick_at = self.chain.tick(now) or Instant(now + 1_000)
        deadline = self._handler.next_deadline()
        if deadline is not None and now >= deadline:
            self._feed(Ticked(), now)
        self._send()

    def next_deadline(self) -> Instant | None:
        """When `tick` or `step` must be called at the latest; None if only a message can help."""
        if not self._running:
            return None
        reads = not self._data_ended and not self._ending
        # Without room the source is not asked, however late it is: the credit that makes room wakes the slot.
        polls = reads and self._source is not None and self.outputs.has_room
        times = [
            self._poll_at if polls else None,
            self._tick_at if reads else None,
            self._handler.next_deadline(),
        ]
        return min((t for t in times if t is not None), default=None)

    @property
    def wants_step(self) -> bool:
        """Whether `step` would do something now, as far as can be told without asking the source."""
        if not self._running or self._ending:
            return self._running and self.outputs.is_empty and not self.chain.pending
        if not self.outputs.has_room:
            return False
        if self._source is not None and not self._data_ended:
            return self._poll_at is None
        return self.gate.has_work

    # --- checkpoints ---------------------------------------------------------------------

    def trigger(self, barrier: Barrier, now: Instant) -> None:
        """The master starts a checkpoint at this task."""
        if self.gate.channels:
            self._feed(TriggeredByMaster(barrier=barrier), now)
        else:
            self._decide(SnapshotDue(barrier=barrier), now)
        self._send()

    def notify(self, event: CompletionNotified | AbortNotified, now: Instant) -> None:
        """The master says what became of a checkpoint."""
        self._decide(event, now)
        self._send()

    def _send(self) -> None:
        if self._running:
            self.outputs.flush()

    def _feed(self, event: HandlerEvent, now: Instant) -> None:
        self._perform_handler(self._handler.handle(event, now), now)

    def _perform_handler(self, effects: list[HandlerEffect], now: Instant) -> None:
        for effect in effects:
            match effect:
                case BlockChannel():
                    self.gate.block(effect.channel)
                case ResumeChannel():
                    self.gate.resume(effect.channel)
                case TriggerSnapshot():
                    self._decide(SnapshotDue(barrier=effect.barrier, metrics=effect.metrics), now)
                case AbortSnapshot():
                    self._decide(SnapshotImpossible(checkpoint=effect.checkpoint, reason=effect.reason), now)
                case AllBarriersIn():
                    self._decide(InputStateComplete(checkpoint=effect.checkpoint, metrics=effect.metrics), now)
                case CorruptInput():
                    raise MalformedMessage(f"input of {self.task} is corrupt: {effect.text}")
                case PrioritizeBarrier() | StartPersisting() | StopPersisting():
                    raise InvariantError(f"{type(effect).__name__} in a job whose checkpoints are aligned")
                case _:
                    assert_never(effect)

    def _decide(self, event: TaskEvent, now: Instant) -> None:
        self._perform_task(self._checkpoints.handle(event, now), now)

    def _perform_task(self, effects: list[TaskEffect], now: Instant) -> None:
        for effect in effects:
            match effect:
                case PrepareOperators():
                    self.chain.prepare(effect.checkpoint)
                case BroadcastBarrier():
                    self.outputs.broadcast(effect.barrier)
                case BroadcastCancelMarker():
                    self.outputs.broadcast(CancelMarker(checkpoint=effect.checkpoint))
                case TakeSnapshot():
                    self._snapshot(effect, now)
                case AcknowledgeSnapshot():
                    self._host.acknowledge(self.task, effect)
                case DeclineSnapshot():
                    self._host.decline(self.task, effect)
                case DiscardSnapshot():
                    self._host.discard(effect.state)
                case TellCompleted():
                    self.chain.completed(effect.checkpoint)
                case TellAborted():
                    self.chain.aborted(effect.checkpoint)
                case TellSubsumed() | CancelSnapshot():
                    # Work that is under way is let run to its end; what it wrote is then discarded.
                    pass
                case EndTask():
                    self._ending = True
                    self.outputs.broadcast(EndOfPartition())
                case FailTask():
                    raise InvariantError(effect.text)
                case ArmOutputTimeout() | SaveOutput():
                    raise InvariantError(f"{type(effect).__name__} in a job whose checkpoints are aligned")
                case _:
                    assert_never(effect)

    def _snapshot(self, effect: TakeSnapshot, now: Instant) -> None:
        """The synchronous part, and the start of the asynchronous one."""
        checkpoint = effect.barrier.checkpoint
        begun = self._host.precise_ms()
        work = self.chain.snapshot(checkpoint, effect.barrier.options)
        frozen = self._host.precise_ms()
        self._decide(SnapshotTaken(checkpoint=checkpoint, sync_ms=frozen - begun), now)
        files = self._host.snapshot_files(self.task, checkpoint)
        after_data = effect.after_data

        def write() -> SubtaskState | None:
            operators = write_snapshot(work, files)
            if not operators and not after_data:
                return None
            return SubtaskState(operators=operators, finished=after_data)

        self._host.background.submit(write, self._written(checkpoint, frozen))

    def _written(self, checkpoint: CheckpointId, frozen: float) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            event: SnapshotWritten | SnapshotWriteFailed
            if outcome.error is not None:
                event = SnapshotWriteFailed(checkpoint=checkpoint, error=one_line(outcome.error))
            else:
                state: SubtaskState | None = outcome.value
                event = SnapshotWritten(
                    checkpoint=checkpoint,
                    state=state,
                    async_ms=self._host.precise_ms() - frozen,
                    checkpointed_bytes=state.size if state is not None else 0,
                )
            try:
                self._decide(event, self._host.now())
            except Exception as error:  # noqa: BLE001  # an operator's or connector's; the attempt ends with it
                self.fail(error)

        return done
