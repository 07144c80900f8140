"""A connected function whose keyed rows wait until the broadcast input has come far enough.

The rows wait unread in their channels: the task does not read these channels meanwhile (`InputGate.hold`). Only rows
that stand before a barrier, or before the end of the data, are read, because barriers must not wait. The operator keeps
these rows, and the snapshot has them. So every checkpoint that is taken meanwhile adds at most as many rows as the
channels have room for.

In a snapshot the rows are a list. After a restore every subtask gets all parts of the list, and takes the rows of its
own keys. A snapshot with such a list was taken while rows had to wait. A snapshot without the list was taken when the
wait was over.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from msgspec import structs

from penstock.api.steps import WAITING, KeyedProcessStep
from penstock.core.elements import CheckpointOptions, EndOfData, Watermark
from penstock.core.errors import InvariantError
from penstock.core.ids import ChannelIndex, CheckpointId, Instant
from penstock.core.messages import OperatorState
from penstock.core.task.waiting import InputWait
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.kept_rows import as_part, own_rows
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.slices import Steps, Work


class WaitingOperator(KeyedOperator):
    """Runs a function over a keyed and a broadcast stream; the rows of the keyed stream wait at first."""

    def __init__(self, step: KeyedProcessStep) -> None:
        super().__init__(step)
        if step.wait is None:
            raise InvariantError("a waiting operator was built for a step that waits for nothing")
        self._wait = InputWait(step.wait)
        self.is_waiting = True
        self._is_due = False
        """Whether there is nothing left to wait for. The next `fire` handles the rows."""
        self._rows_before: list[pa.RecordBatch] = []
        self._watermark_before: tuple[int, bool] | None = None

    def load(self, context: OperatorContext) -> None:
        """Take back the rows of this subtask's keys that waited in the snapshot, and load the function."""
        parts = [part for state in context.restored for part in state.union_lists.get(WAITING, ())]
        self.is_waiting = context.fresh or bool(parts)
        for part in parts:
            self._rows_before += own_rows(part, self._step.keys, context, self._step.waiting_schema)
        without = tuple(
            structs.replace(state, union_lists={n: p for n, p in state.union_lists.items() if n != WAITING})
            for state in context.restored
        )
        super().load(replace(context, restored=without))

    # --- what is waited for --------------------------------------------------------------

    def begin_waiting(self, channels: tuple[ChannelIndex, ...], now: Instant) -> None:
        """The subtask begins. `channels` are the channels of the broadcast input."""
        self._wait.begin(channels, now)
        self._look(now)

    def heard(self, channel: ChannelIndex, element: Watermark | EndOfData) -> None:
        """How far a channel of the broadcast input has come."""
        if not isinstance(element, EndOfData):
            self._wait.advanced(channel, element.time_us, idle=element.idle)
        elif element.drain:
            # Data that was stopped without drain goes on after a restore, so the rows go on waiting for it.
            self._wait.ended(channel)
        self._look(self.context.now())

    def _look(self, now: Instant) -> None:
        if self._wait.is_over(now):
            self._is_due = True
            self.context.wake_at(now)

    def fire(self, now: Instant) -> Work | None:
        """Time has passed: if the rows have waited long enough, the rows are handled first."""
        if not self.is_waiting:
            return super().fire(now)
        self._is_due = self._is_due or self._wait.is_over(now)
        return Work.begin(self._released(now)) if self._is_due else super().fire(now)

    def tick(self, now: Instant) -> Instant | None:
        """Do some upkeep. Returns when the operator must be called next."""
        times = (super().tick(now), self._wait.next_deadline() if self.is_waiting and not self._is_due else None)
        return min((time for time in times if time is not None), default=None)

    def _released(self, now: Instant) -> Steps:
        yield from self._waited()
        yield from self._to_time(now)

    def _waited(self) -> Steps:
        """Handle the rows that were read while they had to wait. A snapshot between two batches has the batches that
        are left."""
        while self._rows_before:
            batch = self._rows_before.pop(0)
            yield from _steps_of(super().process(batch))
            if self.slice.spend(batch.num_rows):
                yield True
        self.is_waiting = False
        if self._watermark_before is not None:
            time_us, idle = self._watermark_before
            yield from _steps_of(super().watermark(time_us, idle=idle))

    # --- meanwhile -----------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """While rows have to wait, keep the rows: they stood before a barrier or the end of the data."""
        if not self.is_waiting:
            return super().process(batch)
        self._rows_before.append(batch)
        return None

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """While rows have to wait, keep the watermark, too: no row may be late because it had to wait."""
        if not self.is_waiting:
            return super().watermark(time_us, idle=idle)
        self._watermark_before = time_us, idle
        return None

    def _finished(self) -> Steps:
        """All data has been seen, the data of the broadcast input included."""
        if self.is_waiting:
            yield from self._waited()
        yield from super()._finished()

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the state, and the rows that the operator keeps."""
        work = super().snapshot(checkpoint, options)
        if not self.is_waiting:
            return work
        waiting = tuple(self._rows_before)

        def write(writer: StateWriter) -> OperatorState:
            state = work(writer)
            # The first part is empty, so that the list exists even without rows.
            parts = (b"", *(as_part(batch) for batch in waiting))
            return structs.replace(state, union_lists={**state.union_lists, WAITING: parts})

        return write


def _steps_of(work: Work | None) -> Steps:
    while work is not None:
        yield work.may_snapshot
        work = work if work.go_on() else None
