"""One subtask: reads its channels or its source, drives its operators, and takes its part in checkpoints.

A task makes steps. Each step takes one batch or one element. The machines of the core decide about barriers, ends and
notifications, and never see batches.

    life       where the task is between its restore and its end           core/task/life.py
    restored   the batches that were in flight in the restored checkpoint  restored.py
    admission  which inputs may be read                                    admission.py
    polling    what comes next out of the source, if the task has one      polling.py
    part       barriers, snapshots and notifications                       checkpoint_part.py
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from penstock.api.connector import End
from penstock.core.barrier.events import (
    AlignmentMetrics,
    BarrierReceived,
    CancelReceived,
    ChannelEnded,
    InputConsumed,
    TriggeredByMaster,
)
from penstock.core.barrier.select import BarrierHandler
from penstock.core.elements import (
    MAX_WATERMARK,
    AnyElement,
    Barrier,
    CancelMarker,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from penstock.core.ids import ChannelIndex, CheckpointId, Instant, OperatorId, TaskId
from penstock.core.messages import TaskRestore
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.core.task.data_ends import DataEnds
from penstock.core.task.events import (
    AbortNotified,
    CompletionNotified,
    DataFinished,
    EndAllowed,
    SnapshotDue,
    TaskStarted,
)
from penstock.core.task.life import LifeEvent, LifeState, TaskLife
from penstock.runtime.task.admission import InputAdmission
from penstock.runtime.task.chain import OperatorChain
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.checkpoint_part import CheckpointPart
from penstock.runtime.task.host import TaskHost
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.meter import TaskCounters
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.runtime.task.outputs import TaskOutputs
from penstock.runtime.task.polling import SourcePolling
from penstock.runtime.task.restored import Restored
from penstock.runtime.task.slices import cut
from penstock.runtime.task.watermarks import WatermarkValve


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
        self._host = host
        self._life = TaskLife()
        self._restored = Restored()
        self._admission = InputAdmission(gate, chain.head)
        self._part = CheckpointPart(
            task,
            life=self._life,
            chain=chain,
            gate=gate,
            outputs=outputs,
            handler=handler,
            checkpoints=checkpoints,
            host=host,
            admission=self._admission,
            restored=self._restored,
            settle=self._settle,
        )
        chain.run_by(host.precise_ms, host.slice_rows)
        source = chain.source
        self._polling = None if source is None else SourcePolling(chain, source, first_checkpoint)
        self._valve = WatermarkValve(len(gate.channels))
        for index, channel in enumerate(gate.channels):
            if channel.input_number in chain.head.timeless_inputs:
                self._valve.end(index)
        self._ends = DataEnds(len(gate.channels))
        self._end = EndOfData()
        """The end of the data that goes downstream when the operators have no work left."""
        self._tick_at: Instant | None = None

    # --- life ----------------------------------------------------------------------------

    def load(self, restore: TaskRestore, channels: ChannelReader) -> None:
        """The blocking part of the start: load the operators, and read the in-flight data. Runs off the loop."""
        self._restored.has_finished = restore.finished or restore.data_ended
        self.chain.load()
        self._restored.load(self.task, restore, channels)

    def open(self) -> None:
        """Start the operators, and put the restored in-flight data into the queues. `load` has done everything that
        blocks."""
        if self.is_alive:
            self.chain.open(self.outputs)
            self._admission.holds_back = self._restored.put_back(self.gate, self.outputs)

    def run(self, now: Instant) -> None:
        """Begin: let upstream send, unless restored batches must be read first."""
        if not self.is_alive:
            return
        self._life.handle(LifeEvent.STARTED)
        self._part.decide(TaskStarted(), now)
        self._admission.begin(now)
        if self._restored.has_finished and not self.gate.channels:
            self._finish_data(now)
            self._send()

    def stop(self, now: Instant) -> None:
        """End at once: nothing more is read, emitted, acknowledged or committed."""
        self._stop(LifeEvent.STOPPED, now)

    def _stop(self, why: LifeEvent, now: Instant) -> None:
        if self.is_alive:
            self._life.handle(why)
            self._part.stop(now)
            self.chain.close()

    def fail(self, error: BaseException) -> None:
        """Work of the task off the loop has failed: fail the task, unless the task is over."""
        self._part.fail(error)

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self._part.validate()

    def metrics(self) -> dict[str, float]:
        """Running totals, by name."""
        counters = self.counters
        found: dict[str, float] = {
            "rows_in": counters.rows_in,
            "batches_in": counters.batches_in,
            "bytes_in": counters.bytes_in,
            "rows_out": self.outputs.rows_out,
            "bytes_out": self.outputs.bytes_out,
            "queued_bytes": self.outputs.queued_bytes,
            "waiting_bytes": self.gate.waiting_bytes,
            "busy_ms": counters.busy_ms,
            "waiting_ms": counters.waiting_ms,
            "blocked_ms": counters.blocked_ms,
            "idle_ms": counters.idle_ms,
        }
        if counters.watermark_us is not None:
            found["watermark_us"] = counters.watermark_us
        # Operators that have not been opened have no totals.
        for operator in () if self._life.state is LifeState.RESTORING else self.chain.operators:
            found.update(operator.metrics())
        return found

    @property
    def is_alive(self) -> bool:
        """Whether the task is not over. A task that is over hears nothing."""
        return not self._life.state.is_over

    @property
    def has_room(self) -> bool:
        """Whether the task may make more output."""
        return self.outputs.has_room

    @property
    def is_active(self) -> bool:
        """Whether the task takes part in checkpoints."""
        return self._life.state.takes_part

    # --- steps ---------------------------------------------------------------------------

    def step(self, now: Instant, max_rows: int) -> bool:
        """Make one step, if there is anything to do, and send the results. Returns whether a step was made."""
        if not self._life.state.takes_steps or not self._step(now, max_rows):
            return False
        self._send()
        return True

    def _step(self, now: Instant, max_rows: int) -> bool:
        state = self._life.state
        if not state.takes_part:
            return self._try_to_end(now)
        if state.may_ask and self._is_done:
            self._life.handle(LifeEvent.ASKED)
            self._host.wants_to_end(self.task)
            return True
        if self.chain.is_busy:
            return self._go_on(now)
        if not self.outputs.has_room:
            return self._take_without_room(now)
        if self._caller is not None and state.reads:
            if self._caller.has_results:
                return self._release(self._caller)
            if self._caller.ending is not None and self._caller.is_empty:
                return self._end_after_calls(self._caller.ending, now)
            if self._caller.is_overfull:
                return self._take_without_room(now)
        if self._polling is not None and state.reads:
            return self._poll(self._polling, now, max_rows)
        taken = self.gate.next()
        if taken is None:
            return False
        index, item, cost = taken
        if isinstance(item, pa.RecordBatch):
            self._process(index, item, cost, now)
        else:
            self._take(index, item, now)
        return True

    @property
    def wants_step(self) -> bool:
        """Whether `step` would do something now, as far as can be told without asking the source."""
        state = self._life.state
        if not state.takes_part:
            return state.takes_steps and self.outputs.is_empty and not self.chain.pending
        if state.may_ask and self._is_done:
            return True
        if not self.outputs.has_room:
            return self._is_awaited
        if self.chain.is_busy:
            return True
        if self._caller is not None and state.reads:
            if self._caller.has_results or (self._caller.ending is not None and self._caller.is_empty):
                return True
            if self._caller.is_overfull:
                return self.gate.has_without_room
        if self._polling is not None and state.reads:
            return self._polling.at is None and not self._polling.must_wait
        return self.gate.has_work

    def _go_on(self, now: Instant) -> bool:
        """Do the next slice of the operators' work. As long as operators have work left, only elements that need no
        room are read, and only where a snapshot may be taken. Returns whether a step was made."""
        may_snapshot = self.chain.may_snapshot
        if may_snapshot and self._take_without_room(now):
            return True
        # A barrier does not cut the rows that one call of a function makes. So if a checkpoint waits for these rows,
        # they are emitted even without room.
        if not self.outputs.has_room and (may_snapshot or not self._is_awaited):
            return False
        self.chain.go_on()
        self._admission.release_if_waited()
        self._settle(now)
        return True

    @property
    def _caller(self) -> AsyncMapOperator | None:
        """The first operator, if it calls an async function; otherwise None."""
        return self.chain.caller

    def _release(self, caller: AsyncMapOperator) -> bool:
        """Let the results of calls go down the chain, and read further records if there is room for them."""
        self.chain.release(caller)
        self._admission.release_if_waited()
        return True

    @property
    def _is_awaited(self) -> bool:
        """Whether a checkpoint waits for a step of the task. The task makes such a step even without room."""
        return self.gate.has_without_room or self._part.waits_for_operators

    def _settle(self, now: Instant) -> None:
        """Do what waits for the operators: tell downstream of the end of the data, and take the snapshots that are
        due."""
        if self._life.state is LifeState.FINISHING and not self.chain.is_busy:
            self._life.handle(LifeEvent.OPERATORS_THROUGH)
            self._data_is_through(self._end, now)
        self._part.take_due(now)

    def _send(self) -> None:
        if self._life.state.takes_steps:
            self.outputs.flush()
            self._part.output_sent()

    # --- input ---------------------------------------------------------------------------

    def _poll(self, polling: SourcePolling, now: Instant, max_rows: int) -> bool:
        polled = polling.next(max_rows, now)
        if polled is None:
            return False
        if isinstance(polled, pa.RecordBatch):
            self._run_chain(polled)
            return True
        if isinstance(polled, End):
            self._finish_data(now)
        else:
            self._begin(polled, now)
        if not self._life.state.reads:
            for barrier in polling.unmarked():
                self._begin(barrier, now)
        return True

    def _run_chain(self, batch: pa.RecordBatch, input_number: int = 0) -> None:
        self.counters.batches_in += 1
        self.counters.rows_in += batch.num_rows
        self.chain.process(batch, input_number)

    def _process(self, index: ChannelIndex, batch: pa.RecordBatch, cost: int, now: Instant) -> None:
        caller, slices = self._caller, self.chain.row_slices
        most = caller.room if caller is not None else None if slices is None else slices.rows
        if most is not None and batch.num_rows > most:
            batch, rest, left = cut(batch, most, cost)
            self.gate.give_back(index, rest, left)
            cost -= left
        channel = self.gate.channels[index]
        self.counters.bytes_in += cost
        self._run_chain(batch, channel.input_number)
        channel.consumed(cost)
        if self._admission.holds_back:
            self._admission.has_read()
        if caller is not None:
            self._admission.hold_if_waiting(barriers_are_due=self._part.handler.pending is not None)
        if self._part.handler.pending is not None:
            self._part.feed(InputConsumed(bytes_processed=cost), now)

    def _take_without_room(self, now: Instant) -> bool:
        """Take the next element that needs no room in the output queues. Returns whether there was such an element. A
        barrier that overtakes must not wait for the data that fills the queues. Nor must the end of a channel, which
        stands for all further barriers of the channel."""
        taken = self.gate.next_without_room()
        if taken is None:
            return False
        self._take(*taken, now)
        return True

    def _take(self, index: ChannelIndex, element: AnyElement, now: Instant) -> None:
        # An element costs nothing. But if nothing waits behind the element, the credit that is owed for batches is due.
        self.gate.channels[index].consumed(0)
        match element:
            case Barrier():
                self._part.feed(BarrierReceived(channel=index, barrier=element), now)
            case CancelMarker():
                self._part.feed(CancelReceived(channel=index, checkpoint=element.checkpoint), now)
            case Watermark():
                self._admission.heard(index, element)
                self._advance(self._valve.advance(index, element))
            case EndOfData():
                self._admission.heard(index, element)
                end = self._ends.ended(element)
                # Data that was stopped without drain goes on after a restore, and must not be late then.
                if element.drain:
                    self._advance(self._valve.end(index, stopped=element.stopped))
                if end is not None:
                    self._finish_data(now, drain=end.drain, stopped=end.stopped)
                self.gate.channels[index].data_processed()
            case EndOfPartition():
                self.gate.channels[index].ended = True
                self._part.feed(ChannelEnded(channel=index), now)
            case _:
                assert_never(element)

    def _advance(self, watermark: Watermark | None) -> None:
        if watermark is not None:
            if watermark.time_us < MAX_WATERMARK:
                self.counters.watermark_us = watermark.time_us
            self.chain.watermark(watermark.time_us, idle=watermark.idle)

    # --- the end -------------------------------------------------------------------------

    def _finish_data(self, now: Instant, *, drain: bool = True, stopped: bool = False) -> None:
        """All input has been seen: let the operators finish, then tell downstream of the end of the data."""
        if drain and self._caller is not None and not self._caller.is_empty and not self._restored.has_finished:
            # The end waits for the calls under way. Barriers do not: a snapshot has the rows of these calls, and after
            # a restore the end comes again.
            self._caller.ending = EndOfData(drain=drain, stopped=stopped)
            return
        self._life.handle(LifeEvent.DATA_SEEN)
        self._end = EndOfData(drain=drain, stopped=stopped and drain)
        if drain and not self._restored.has_finished:
            self.chain.finish()
        self._settle(now)

    def _end_after_calls(self, ending: EndOfData, now: Instant) -> bool:
        """The calls that the end of the data waited for have ended, and their results have left."""
        self._finish_data(now, drain=ending.drain, stopped=ending.stopped)
        return True

    def _data_is_through(self, end: EndOfData, now: Instant) -> None:
        if end.drain and self._restored.has_finished:
            # Operators that finished before the restored checkpoint do not finish again. Watermarks are not saved, so
            # the end of event time is sent again, to the readers of side outputs, too.
            self.outputs.broadcast(Watermark(time_us=MAX_WATERMARK))
        if not end.drain and not self._restored.has_finished:
            self.chain.before_barrier()
        self.outputs.broadcast(end)
        self._part.decide(DataFinished(drained=end.drain), now)
        if end.drain:
            self._host.data_ended(self.task)

    @property
    def _is_done(self) -> bool:
        """Whether downstream has processed all data and no operator has anything under way."""
        return self.outputs.is_taken and not self.chain.pending

    def let_end(self, now: Instant) -> None:
        """The master lets the task end."""
        self._part.decide(EndAllowed(), now)

    def _try_to_end(self, now: Instant) -> bool:
        self.outputs.flush()
        if not self.outputs.is_empty or self.chain.pending:
            return False
        self._stop(LifeEvent.ALL_SENT, now)
        self._host.finished(self.task)
        return True

    # --- time ----------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Time has passed: for the operators' processing time, and for the deadlines of barriers."""
        if not self._life.state.takes_steps:
            return
        if self._caller is not None:
            self._caller.look(now)
            if not self.is_alive:
                # A call has failed for good, and the task with it.
                return
            # Results may have left before a barrier, without a step of the task.
            self._admission.release_if_waited()
        if self._reads and (self._tick_at is None or now >= self._tick_at):
            self._tick_at = self.chain.tick(now) or Instant(now + 1_000)
            self._admission.release_if_waited()
        if self._polling is not None and self._life.state.reads:
            self._polling.tick(now)
        self._part.tick(now)
        self._send()

    def wake_at(self, time: Instant) -> None:
        """Have `tick` call the operators at `time` at the latest."""
        if self._tick_at is not None:
            self._tick_at = min(self._tick_at, max(time, Instant(self._host.now() + 1)))

    @property
    def _reads(self) -> bool:
        """Whether more data may come, and the operators have no work left."""
        return self._life.state.reads and not self.chain.is_busy

    def next_deadline(self) -> Instant | None:
        """When `tick` or `step` must be called at the latest; None if only a message can help."""
        if not self._life.state.takes_steps:
            return None
        times = [*self._part.next_deadlines()]
        if self._caller is not None:
            times.append(self._caller.next_deadline())
        if self._reads:
            times.append(self._tick_at)
            # Without room the source is not asked, even if the source is due: the credit that makes room wakes the
            # slot.
            if self._polling is not None and self.outputs.has_room and not self._polling.must_wait:
                times.append(self._polling.at)
            if self._polling is not None:
                times.append(self._polling.next_deadline())
        return min((t for t in times if t is not None), default=None)

    # --- what the master says ------------------------------------------------------------

    def trigger(self, barrier: Barrier, now: Instant) -> None:
        """The master triggers a checkpoint at this task."""
        if self.gate.channels:
            self._part.feed(TriggeredByMaster(barrier=barrier), now)
        elif self._polling is None or not self._life.state.reads or self._polling.trigger(barrier) is not None:
            self._begin(barrier, now)
        self._send()

    def _begin(self, barrier: Barrier, now: Instant) -> None:
        """A checkpoint begins at this task: take the snapshot as soon as the operators allow it."""
        if barrier.options.synchronous and self._life.state.reads:
            # The savepoint ends the task: no data is read after the savepoint.
            self._finish_data(now, drain=barrier.options.drain, stopped=True)
        metrics = AlignmentMetrics(start_delay_ms=max(0, now - barrier.timestamp), rows_in=self.counters.rows_in)
        self._part.snapshot_due(SnapshotDue(barrier=barrier, metrics=metrics), now)

    def notify(self, event: CompletionNotified | AbortNotified, now: Instant) -> None:
        """The master says that a checkpoint is complete or aborted."""
        unmarked: Barrier | None = None
        if self._polling is not None and isinstance(event, AbortNotified):
            unmarked = self._polling.aborted(event.checkpoint)
        self._part.decide(event, now)
        if unmarked is not None:
            # Tasks behind may have the barriers of other sources, and must not wait for this source.
            self._part.snapshot_due(SnapshotDue(barrier=unmarked, metrics=AlignmentMetrics()), now)
        self._send()

    def group_time(self, time_us: int | None, now: Instant) -> None:
        """The watermark group of the task has come so far."""
        if self._polling is not None and self._life.state.reads:
            self._polling.group_time(time_us, now)

    def end_data(self) -> None:
        """Nothing needs the records of the source any more: the source is not read again, and its data has ended."""
        if self._polling is not None:
            self._polling.end()

    def handle_event(self, operator: OperatorId, event: bytes) -> None:
        """Hand an event of an operator coordinator to its operator. Must be called only while the task `is_alive`."""
        self.chain.handle_event(operator, event)
        if self._polling is not None:
            self._polling.ask_again()
