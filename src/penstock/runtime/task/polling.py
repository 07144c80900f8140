"""Asks the source of a task for what comes next, and says when to ask again.

A source gives a batch or the end of the data. If marks in the data say where checkpoints begin, the barrier of a
checkpoint may come next as well.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.api.connector import End, Pause
from penstock.core.elements import Barrier
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.induced import InducedCheckpoints
from penstock.runtime.task.chain import OperatorChain
from penstock.runtime.task.operators.source import SourceOperator


class SourcePolling:
    """The polling of one task whose first operator is a source."""

    def __init__(self, chain: OperatorChain, source: SourceOperator, first_checkpoint: CheckpointId) -> None:
        """Checkpoints below `first_checkpoint` belong to earlier attempts."""
        self._chain = chain
        self._source = source
        self._induced = InducedCheckpoints(first_checkpoint) if source.induces else None
        self._alignment = chain.alignment
        self._is_unneeded = False
        """Whether nothing needs the records of the source any more."""
        self.at: Instant | None = None
        """When to ask the source again, if the source had nothing to give; None: ask at once."""

    def next(self, max_rows: int, now: Instant) -> pa.RecordBatch | Barrier | End | None:
        """Ask the source, if it is time to ask. Returns None if nothing comes yet."""
        if self._is_unneeded:
            self._source.leave_off()
            return End()
        if self.at is not None and now < self.at:
            return None
        if self._induced is not None:
            barrier = self._reached(self._induced)
            if barrier is not None or self._induced.awaits_trigger:
                return barrier
        if self._alignment is not None:
            self._alignment.look(now)
            if self._alignment.is_held:
                return None
        slices = self._chain.row_slices
        polled = self._source.poll(max_rows if slices is None else min(max_rows, slices.rows), now)
        if isinstance(polled, Pause):
            self.at = Instant(now + max(polled.wait_ms, 1))
            return None
        self.at = None
        return polled

    def _reached(self, induced: InducedCheckpoints) -> Barrier | None:
        """The barrier of the checkpoint that begins at this place in the data; None if no checkpoint begins there."""
        passed = None
        # Several marks may stand at one place. Marks of checkpoints that are over are passed by, because the mark of an
        # awaited checkpoint may stand behind them, before the next record.
        while not induced.awaits_trigger and (mark := self._source.mark()) is not None and mark != passed:
            barrier = induced.reach(mark)
            if barrier is not None:
                return barrier
            passed = mark
        return None

    def ask_again(self) -> None:
        """The source may have something to give: ask at once."""
        self.at = None

    def end(self) -> None:
        """Nothing needs the records of the source any more: its data ends at once, wherever the source stands."""
        self._is_unneeded, self.at = True, None

    @property
    def must_wait(self) -> bool:
        """Whether the source must not be asked before a message has come: the data is at a mark whose trigger has not
        come, or the source is too far ahead of its watermark group."""
        if self._is_unneeded:
            return False
        if self._alignment is not None and self._alignment.is_held:
            return True
        return self._induced is not None and self._induced.awaits_trigger

    def group_time(self, time_us: int | None, now: Instant) -> None:
        """The watermark group of the source has come so far."""
        if self._alignment is not None:
            self._alignment.told(time_us, now)
            self.at = None

    def tick(self, now: Instant) -> None:
        """Time has passed: the watermark group may be waiting to hear of the source."""
        if self._alignment is not None:
            self._alignment.look(now)

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called at the latest."""
        return None if self._alignment is None else self._alignment.next_deadline()

    def trigger(self, barrier: Barrier) -> Barrier | None:
        """The master triggers a checkpoint. Returns the barrier if the checkpoint begins at once."""
        if self._induced is None:
            return barrier
        # A mark in the data says where the checkpoint begins. The source is asked for the mark at once.
        self.at = None
        return self._induced.trigger(barrier)

    def aborted(self, checkpoint: CheckpointId) -> Barrier | None:
        """A checkpoint will never complete. Returns the barrier if the checkpoint was triggered and waits for a
        mark."""
        return None if self._induced is None else self._induced.abort(checkpoint)

    def unmarked(self) -> list[Barrier]:
        """The data has ended, so no further mark comes. Returns the barriers of all checkpoints that were triggered and
        wait for a mark: these checkpoints begin at the end of the data."""
        return [] if self._induced is None else self._induced.end()
