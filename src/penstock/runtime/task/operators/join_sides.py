"""What joins of two streams with event time share: which records take part, and how the records of both sides are saved
and restored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.api.join_steps import LATE_OF_RIGHT, LEFT, RIGHT, TwoSidedStep, moved
from penstock.api.steps import LATE
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.join_columns import ResultMaker
from penstock.runtime.task.operators.join_run import Frozen, Int64s, Marks, UInt32s
from penstock.runtime.task.operators.join_runs import JoinRuns
from penstock.runtime.task.operators.join_state import Given, JoinState
from penstock.runtime.task.partitioning import key_groups, row_hashes
from penstock.runtime.task.slices import Work

RESULT_ROWS = 65_536
"""Results are handed on in batches of at most this many rows."""
_SEED = 0x6A6F696E
_LATE = (LATE, LATE_OF_RIGHT)


class Arrived(NamedTuple):
    """Records of one side that have a key and a time."""

    side: int
    rows: pa.RecordBatch
    times: Int64s
    hashes: UInt32s

    def slice(self, begin: int, end: int) -> Arrived:
        """Some of the records."""
        rows = self.rows.slice(begin, end - begin)
        return Arrived(self.side, rows, self.times[begin:end], self.hashes[begin:end])


class TwoSidedOperator(Operator):
    """Keeps records of two inputs."""

    _sides: tuple[JoinRuns, JoinRuns]
    """The records of the left and of the right side."""

    def __init__(self, step: TwoSidedStep) -> None:
        self._step = step
        self._results = ResultMaker(step)
        self._passed = Fired()
        self._late_dropped = [0, 0]
        self._state: JoinState | None = None

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take records of the left side in."""
        return self.process_input(batch, LEFT)

    # --- which records take part -----------------------------------------------------------

    def _arrived(self, batch: pa.RecordBatch, side: int) -> Arrived:
        """The records of a batch that may match something: late records, records without a time and records with a null
        key go their own way."""
        usable, hopeless = self._parted(batch, side)
        if hopeless is not None:
            timed = hopeless.filter(hopeless.column(self._step.side(side).time_column).is_valid())
            on_time = self._without_late(timed, self._times(timed, side), side)
            timeless = hopeless.filter(hopeless.column(self._step.side(side).time_column).is_null())
            for alone in (timeless, on_time):
                self._hand_on_alone(alone, side)
        kept = self._without_late(usable, self._times(usable, side), side)
        return self._hashed(kept, side)

    def _usable(self, batch: pa.RecordBatch, side: int) -> Arrived:
        """The records of a batch that have a key and a time."""
        return self._hashed(self._parted(batch, side)[0], side)

    def _parted(self, batch: pa.RecordBatch, side: int) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The records that have a key and a time, and the other records; None if there are no others."""
        given = self._step.side(side)
        if not batch.schema.equals(given.schema, check_metadata=True):
            # Batches that become one batch must have the same schema, metadata included.
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=given.schema)
        usable = np.ones(batch.num_rows, np.bool_)
        for name in (*given.keys, given.time_column):
            column: Any = batch.column(name)
            if column.null_count:
                usable &= column.is_valid().to_numpy(zero_copy_only=False)
        if usable.all():
            return batch, None
        return batch.filter(pa.array(usable)), batch.filter(pa.array(~usable))

    def _times(self, batch: pa.RecordBatch, side: int) -> Int64s:
        given = self._step.side(side)
        return moved(int64_values(batch.column(given.time_column)), given.time_offset_us)

    def _hashed(self, batch: pa.RecordBatch, side: int) -> Arrived:
        return Arrived(side, batch, self._times(batch, side), self._hashes(batch, side))

    def _hashes(self, batch: pa.RecordBatch, side: int) -> UInt32s:
        return row_hashes(batch, self._step.side(side).keys, seed=_SEED)

    def _without_late(self, batch: pa.RecordBatch, times: Int64s, side: int) -> pa.RecordBatch:
        keys = self._step.side(side).keys
        late = self._passed.late(times, lambda: key_groups(batch, keys, self.context.max_parallelism))
        if late is None or not late.any():
            return batch
        if _LATE[side] in self.sides:
            self.sides[_LATE[side]].emit(batch.filter(pa.array(late)))
        else:
            self._late_dropped[side] += int(late.sum())
        return batch.filter(pa.array(~late))

    def _hand_on_alone(self, batch: pa.RecordBatch, side: int) -> None:
        if batch.num_rows and self._step.how.shows_unmatched(side):
            self.output.emit(self._results.alone(batch, side))

    # --- checkpoints -----------------------------------------------------------------------

    def load(self, context: OperatorContext) -> None:
        """Restore the records of this subtask's key groups, and how far event time had come."""
        self._state = state = JoinState(self._sides, self._step, context, self._hashes)
        if context.fresh or not context.restored:
            return

        def take_back(given: Given) -> None:
            for rows, marks in given.parts:
                if rows.num_rows:
                    marks_ = np.zeros(rows.num_rows, np.uint8) if marks is None else marks
                    self._take_back(self._hashed(rows, given.side), marks_, pending=given.pending)

        self._passed.restore(state.load(take_back), context.key_groups)

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. From here on large runs are merged in the background."""
        super().open(context, output)
        for runs in self._sides:
            runs.merge_in(context.background, context.fail)

    def close(self) -> None:
        """Let go of the records."""
        state, self._state = self._state, None
        if state is not None:
            state.close()

    def _take_back(self, arrived: Arrived, marks: Marks, *, pending: bool) -> None:
        """Take restored records in."""
        if pending:
            raise InvariantError("records are pending in the state of a join that has no pending records")
        self._sides[arrived.side].append(arrived.rows, arrived.times, arrived.hashes, marks)

    def _pending_records(self) -> list[tuple[int, Frozen]]:
        """The records that have come and have met no record of the other side, each with its side."""
        return []

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the records by reference. The returned work writes what no completed checkpoint has."""
        if self._state is None:
            raise InvariantError("a join is used before it is loaded or after it is closed")
        pending = self._pending_records()
        parts = [(side, tuple(part for of, part in pending if of == side)) for side in (LEFT, RIGHT)]
        return self._state.snapshot(
            checkpoint,
            options,
            passed=self._passed.ranges(self.context.key_groups),
            pending=[Given(side, of_side, pending=True) for side, of_side in parts if of_side],
        )

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later checkpoints may refer to the files of this checkpoint."""
        if self._state is not None:
            self._state.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No checkpoint may refer to the files of this checkpoint."""
        if self._state is not None:
            self._state.aborted(checkpoint)
