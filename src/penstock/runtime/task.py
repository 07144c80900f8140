"""One subtask: reads its channels or its source, drives its operators, and takes its part in checkpoints.

A task makes steps: one batch or one element each. Between steps it obeys the checkpoint machines of the core, which are
asked about barriers, ends and notifications, and never about batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, assert_never

import pyarrow as pa

from penstock.api.connector import End, Pause
from penstock.core.barrier.events import (
    AbortSnapshot,
    AllBarriersIn,
    BarrierAnnounced,
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
from penstock.core.ids import ChannelIndex, CheckpointId, Instant, OperatorId, TaskId
from penstock.core.messages import TaskRestore
from penstock.core.reasons import CheckpointFailure
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
from penstock.core.task.induced import InducedCheckpoints
from penstock.runtime.chain import OperatorChain
from penstock.runtime.channels import InputGate
from penstock.runtime.inflight import Batches, ChannelReader
from penstock.runtime.operators.source import SourceOperator
from penstock.runtime.outputs import TaskOutputs
from penstock.runtime.slices import Slices
from penstock.runtime.snapshots import SnapshotHost, TaskSnapshots
from penstock.runtime.watermarks import WatermarkValve


class TaskHost(SnapshotHost, Protocol):
    """What a task asks of its slot."""

    def now(self) -> Instant:
        """The time of this turn."""
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

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:
        """Tell the master."""
        ...


@dataclass(slots=True)
class TaskCounters:
    """Running totals for people to look at."""

    batches_in: int = 0
    rows_in: int = 0


class Task:
    """A subtask in one epoch."""

    def __init__(  # noqa: PLR0913  # one keyword per part
        self,
        task: TaskId,
        *,
        chain: OperatorChain,
        gate: InputGate,
        outputs: TaskOutputs,
        handler: BarrierHandler,
        checkpoints: TaskCheckpoints,
        host: TaskHost,
        first_checkpoint: CheckpointId = CheckpointId(0),
    ) -> None:
        """Checkpoints below `first_checkpoint` belong to earlier attempts."""
        self.task = task
        self.chain = chain
        self.gate = gate
        self.outputs = outputs
        self.counters = TaskCounters()
        self._handler = handler
        self._checkpoints = checkpoints
        self._host = host
        self._snapshots = TaskSnapshots(task, gate=gate, outputs=outputs, host=host, written=self._written)
        self._slices = Slices() if chain.is_row_wise else None
        gate.on_announced = self._announced
        self._source = chain.source
        self._induced: InducedCheckpoints | None = None
        if chain.source is not None and chain.source.induces:
            self._induced = InducedCheckpoints(first_checkpoint)
        self._valve = WatermarkValve(len(gate.channels))
        for index, channel in enumerate(gate.channels):
            if channel.input_number in chain.head.timeless_inputs:
                self._valve.end(index)
        self._data_open = len(gate.channels)
        """Channels whose data has not ended."""
        self._drains = True
        """Whether the data of all channels that have ended went to its end, or was taken there by a stop with drain."""
        self._drained_by_stop = False
        """Whether a stop with drain ended the data of a channel."""
        self._restored_inputs: Batches = {}
        self._restored_outputs: Batches = {}
        self._dealt_inputs: Batches = {}
        self._holds_back = False
        """Whether upstream has not been let in, because what was in flight elsewhere comes first."""
        self._has_finished = False
        """Whether the operators finished before the checkpoint that was restored."""
        self._poll_at: Instant | None = None
        self._tick_at: Instant | None = None
        self._watermark_us: int | None = None
        self._running = False
        self._data_ended = False
        self._ending = False
        self._stopped = False

    # --- life ----------------------------------------------------------------------------

    def load(self, restore: TaskRestore, channels: ChannelReader) -> None:
        """Do everything about the start that blocks. Runs off the loop."""
        self._has_finished = restore.finished or restore.data_ended
        self.chain.load()
        self._restored_inputs = channels.read(restore.input_channels)
        self._restored_outputs = channels.read(restore.output_channels)
        self._dealt_inputs = channels.read_dealt(self.task, restore.dealt_channels)

    def open(self) -> None:
        """Start the operators, and put back what was in flight, before anything new; all that blocks has been done."""
        if self._stopped:
            return
        self.chain.open(self.outputs)
        for key, batches in self._restored_outputs.items():
            self.outputs.restore(key, batches)
        self._holds_back = bool(self._dealt_inputs)
        if self._holds_back:
            self.gate.restore_all_first(self._restored_inputs)
            self.gate.restore_all_first(self._dealt_inputs)
        else:
            for key, batches in self._restored_inputs.items():
                self.gate.restore(key, batches)
        self._restored_inputs, self._restored_outputs, self._dealt_inputs = {}, {}, {}

    def run(self, now: Instant) -> None:
        """Begin: let upstream send, unless there is something to do first."""
        if self._stopped:
            return
        self._running = True
        self._perform_task(self._checkpoints.handle(TaskStarted(), now), now)
        if not self._holds_back:
            self._let_in()
        if self._has_finished and not self.gate.channels:
            self._finish_data(now)
            self._send()

    def _let_in(self) -> None:
        self._holds_back = False
        for channel in self.gate.channels:
            channel.open()

    def stop(self, now: Instant) -> None:
        """End at once: nothing more is read, emitted, acknowledged or committed."""
        if not self._stopped:
            self._stopped = True
            self._running = False
            self._perform_task(self._checkpoints.handle(TaskStopped(), now), now)
            self._snapshots.stop()
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
        for operator in self.chain.operators:
            found.update(operator.metrics())
        return found

    @property
    def is_active(self) -> bool:
        """Whether it takes part in checkpoints."""
        return self._running and not self._ending

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
            return self._take_barrier(now)
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

    def _take_barrier(self, now: Instant) -> bool:
        """Barriers need no room, and one that overtakes must not wait for the data that keeps the room taken."""
        taken = self.gate.next_barrier()
        if taken is None:
            return False
        self._take(*taken, now)
        return True

    def _poll(self, now: Instant, max_rows: int) -> bool:
        if self._source is None or (self._poll_at is not None and now < self._poll_at):
            return False
        if self._induced is not None and self._take_mark(self._induced, self._source, now):
            return True
        if self._awaits_trigger:
            return False
        polled = self._source.poll(max_rows if self._slices is None else min(max_rows, self._slices.rows), now)
        if isinstance(polled, Pause):
            self._poll_at = Instant(now + max(polled.wait_ms, 1))
            return False
        self._poll_at = None
        if isinstance(polled, End):
            self._finish_data(now)
            self._take_unmarked(now)
            return True
        self._run_chain(polled)
        return True

    def _run_chain(self, batch: pa.RecordBatch, input_number: int = 0) -> None:
        self.counters.batches_in += 1
        self.counters.rows_in += batch.num_rows
        if self._slices is None:
            self.chain.head.process_input(batch, input_number)
            return
        begun = self._host.precise_ms()
        self.chain.head.process_input(batch, input_number)
        self._slices.took(batch.num_rows, self._host.precise_ms() - begun)

    def _process(self, index: ChannelIndex, batch: pa.RecordBatch, cost: int, now: Instant) -> None:
        if self._slices is not None and batch.num_rows > self._slices.rows:
            batch, rest, left = self._slices.cut(batch, cost)
            self.gate.give_back(index, rest, left)
            cost -= left
        channel = self.gate.channels[index]
        self._run_chain(batch, channel.input_number)
        channel.consumed(cost)
        if self._holds_back and self.gate.is_drained:
            self._let_in()
        if self._handler.pending is not None:
            self._feed(InputConsumed(bytes_processed=cost), now)

    def _take(self, index: ChannelIndex, element: AnyElement, now: Instant) -> None:
        # It took no room; but if nothing waits behind it, the credit that is owed for earlier batches is due.
        self.gate.channels[index].consumed(0)
        match element:
            case Barrier():
                self._feed(BarrierReceived(channel=index, barrier=element), now)
            case CancelMarker():
                self._feed(CancelReceived(channel=index, checkpoint=element.checkpoint), now)
            case Watermark():
                self._advance(self._valve.advance(index, element))
            case EndOfData():
                self._data_open -= 1
                self._drains = self._drains and element.drain
                self._drained_by_stop = self._drained_by_stop or element.stopped
                # Stopped without drain, the channel's data goes on after a restore, and must not be late then.
                if element.drain:
                    self._advance(self._valve.end(index, stopped=element.stopped))
                if self._data_open == 0:
                    self._finish_data(now, drain=self._drains, stopped=self._drained_by_stop)
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

    def _finish_data(self, now: Instant, *, drain: bool = True, stopped: bool = False) -> None:
        """All input has been seen."""
        self._data_ended = True
        if drain and self._has_finished:
            # Operators that finished before the restored checkpoint do not finish again; what they said of event time
            # was not saved.
            self.outputs.watermark(MAX_WATERMARK)
        elif drain:
            self.chain.finish()
        self.outputs.broadcast(EndOfData(drain=drain, stopped=stopped and drain))
        self._perform_task(self._checkpoints.handle(DataFinished(drained=drain), now), now)
        if drain:
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
        self._snapshots.tick(now)
        self._send()

    def wake_at(self, time: Instant) -> None:
        """An operator wants to be called at `time`, if not before."""
        if self._tick_at is not None:
            self._tick_at = min(self._tick_at, max(time, Instant(self._host.now() + 1)))

    def next_deadline(self) -> Instant | None:
        """When `tick` or `step` must be called at the latest; None if only a message can help."""
        if not self._running:
            return None
        reads = not self._data_ended and not self._ending
        # Without room the source is not asked, however late it is: the credit that makes room wakes the slot.
        polls = reads and self._source is not None and self.outputs.has_room and not self._awaits_trigger
        times = [
            self._poll_at if polls else None,
            self._tick_at if reads else None,
            self._handler.next_deadline(),
            self._snapshots.next_deadline(),
        ]
        return min((t for t in times if t is not None), default=None)

    @property
    def wants_step(self) -> bool:
        """Whether `step` would do something now, as far as can be told without asking the source."""
        if not self._running or self._ending:
            return self._running and self.outputs.is_empty and not self.chain.pending
        if not self.outputs.has_room:
            return self.gate.has_barrier
        if self._source is not None and not self._data_ended:
            return self._poll_at is None and not self._awaits_trigger
        return self.gate.has_work

    # --- checkpoints ---------------------------------------------------------------------

    def trigger(self, barrier: Barrier, now: Instant) -> None:
        """The master starts a checkpoint at this task."""
        if self.gate.channels:
            self._feed(TriggeredByMaster(barrier=barrier), now)
        elif self._induced is not None and self.is_active and not self._data_ended:
            # A mark in the data says where; the source is asked for it at once.
            self._poll_at = None
            if self._induced.trigger(barrier) is not None:
                self._begin(barrier, now)
        else:
            self._begin(barrier, now)
        self._send()

    def _begin(self, barrier: Barrier, now: Instant) -> None:
        """A checkpoint begins in this source, here and now."""
        if barrier.options.synchronous and self._running and not self._data_ended:
            # The savepoint ends the task: nothing is read after it.
            self._finish_data(now, drain=barrier.options.drain, stopped=True)
        self._decide(SnapshotDue(barrier=barrier), now)

    @property
    def _awaits_trigger(self) -> bool:
        return self._induced is not None and self._induced.awaits_trigger

    def _take_mark(self, induced: InducedCheckpoints, source: SourceOperator, now: Instant) -> bool:
        """See whether a checkpoint begins here; whether one did."""
        mark = None if induced.awaits_trigger else source.mark()
        barrier = None if mark is None else induced.reach(mark)
        if barrier is None:
            return False
        self._begin(barrier, now)
        self._take_unmarked(now)
        return True

    def _take_unmarked(self, now: Instant) -> None:
        """When the data has ended: no mark comes any more."""
        if self._induced is not None and self._data_ended:
            for barrier in self._induced.end():
                self._begin(barrier, now)

    def handle_event(self, operator: OperatorId, event: bytes) -> None:
        """The coordinator of one of its operators says something. Only while it `is_alive`."""
        self.chain.handle_event(operator, event)
        self._poll_at = None

    @property
    def is_alive(self) -> bool:
        """Whether it has not stopped; one that has stopped hears nothing."""
        return not self._stopped

    def notify(self, event: CompletionNotified | AbortNotified, now: Instant) -> None:
        """The master says what became of a checkpoint."""
        if self._induced is not None and isinstance(event, AbortNotified):
            self._induced.abort(event.checkpoint)
        self._decide(event, now)
        self._send()

    def _send(self) -> None:
        if self._running:
            self.outputs.flush()
            self._snapshots.output_sent()

    def _announced(self, index: ChannelIndex, barrier: Barrier, number: int) -> None:
        """A barrier that may time out waits in an input queue."""
        if self._running:
            now = self._host.now()
            self._feed(BarrierAnnounced(channel=index, barrier=barrier, sequence=number), now)

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
                case PrioritizeBarrier():
                    self.gate.prioritize(effect.channel, effect.sequence)
                case StartPersisting():
                    self._start_persisting(effect.checkpoint, now)
                case StopPersisting():
                    self._snapshots.input_ended(effect.checkpoint, aborted=effect.aborted)
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
                    self._snapshots.barrier_sent(effect.barrier, self.outputs.send_barrier(effect.barrier))
                case BroadcastCancelMarker():
                    self.outputs.broadcast(CancelMarker(checkpoint=effect.checkpoint))
                case TakeSnapshot():
                    self._snapshot(effect, now)
                case AcknowledgeSnapshot():
                    self._host.acknowledge(self.task, effect)
                case DeclineSnapshot():
                    self._host.decline(self.task, effect)
                case DiscardSnapshot():
                    self._host.discard(effect.state, effect.target)
                case TellCompleted():
                    self.chain.completed(effect.checkpoint)
                case TellAborted():
                    self.chain.aborted(effect.checkpoint)
                case CancelSnapshot():
                    self._snapshots.cancel(effect.checkpoint)
                case TellSubsumed():
                    pass
                case EndTask():
                    self._ending = True
                    self.outputs.broadcast(EndOfPartition())
                case FailTask():
                    raise InvariantError(effect.text)
                case ArmOutputTimeout():
                    self._snapshots.arm(effect.barrier)
                case SaveOutput():
                    self._snapshots.save_output(effect.checkpoint)
                case _:
                    assert_never(effect)

    def _start_persisting(self, checkpoint: CheckpointId, now: Instant) -> None:
        if not self._snapshots.start_input(checkpoint):
            reason = CheckpointFailure.DECLINED_SUBSUMED
            self._decide(SnapshotImpossible(checkpoint=checkpoint, reason=reason), now)

    def _snapshot(self, effect: TakeSnapshot, now: Instant) -> None:
        """The synchronous part, and the start of the asynchronous one."""
        checkpoint = effect.barrier.checkpoint
        begun = self._host.precise_ms()
        work = self.chain.snapshot(checkpoint, effect.barrier.options)
        frozen = self._host.precise_ms()
        self._decide(SnapshotTaken(checkpoint=checkpoint, sync_ms=frozen - begun), now)
        self._snapshots.write(effect.barrier, work, after_data=effect.after_data, frozen=frozen)

    def _written(self, event: SnapshotWritten | SnapshotWriteFailed) -> None:
        try:
            self._decide(event, self._host.now())
        except Exception as error:  # noqa: BLE001  # an operator's or connector's; the attempt ends with it
            self.fail(error)
