"""What joins of two streams with event time share: which records take part, and how the records of both sides are saved
and restored."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from penstock.api.join_steps import LATE_OF_RIGHT, LEFT, RegularJoinStep, TwoSidedStep, moved
from penstock.api.steps import LATE
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.join_columns import ResultMaker
from penstock.runtime.task.operators.join_runs import Frozen, Int64s, Marks, UInt32s
from penstock.runtime.task.operators.join_snapshot import JoinHeader, decode, encode
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.runtime.task.partitioning import key_groups, row_hashes
from penstock.runtime.task.slices import Work
from penstock.state.restore_bounds import check_named_once

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

    def __init__(self, step: TwoSidedStep) -> None:
        self._step = step
        self._results = ResultMaker(step)
        self._passed = Fired()
        self._late_dropped = [0, 0]

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
        hashes = row_hashes(batch, self._step.side(side).keys, seed=_SEED)
        return Arrived(side, batch, self._times(batch, side), hashes)

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
        if context.fresh or not context.restored:
            return
        passed: list[FiredRange] = []
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the join")
        for state in context.restored:
            for file in state.keyed:
                data, groups = context.reader.get(file), context.max_parallelism
                found = decode(data, self._step, context.key_groups, groups=groups, name=context.name)
                passed += found.header.passed
                if found.rows.num_rows:
                    arrived = self._hashed(found.rows, found.header.side)
                    self._take_back(arrived, found.marks, pending=found.header.pending)
        self._passed.restore(passed, context.key_groups)

    @abstractmethod
    def _take_back(self, arrived: Arrived, marks: Marks, *, pending: bool) -> None:
        """Take restored records in."""

    @abstractmethod
    def _frozen(self) -> list[tuple[int, bool, tuple[Frozen, ...]]]:
        """What a snapshot has, a file each: the side, whether the records are pending, and the records."""

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze the records by reference. The returned work orders them by key group and writes them."""
        context, step, frozen = self.context, self._step, self._frozen()
        passed = self._passed.ranges(context.key_groups)

        def write(writer: StateWriter) -> OperatorState:
            files = []
            for side, is_pending, parts in frozen:
                given = step.side(side)
                header = JoinHeader(
                    join=step.described(),
                    side=side,
                    keys=given.keys,
                    passed=passed,
                    pending=is_pending,
                    counts=True if isinstance(step, RegularJoinStep) else UNSET,
                )
                files.append(writer.put(encode(parts, given.schema, header, context.max_parallelism)))
            return OperatorState(
                operator=OperatorId(context.operator), keyed=tuple(files), key_groups=context.key_groups
            )

        return write
