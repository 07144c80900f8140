"""The join of two streams by key and time.

A record that comes is looked up among the records of the other side at once, with all records of its batch, and is kept
until no match can come. Both sides have the event time of the input that is further behind. A record whose time is not
after the watermark is late: it is dropped and counted, or is in the stream of late records.

A record without a match is handed on, if the kind of the join wants that, when the watermark has reached the last time
of records that match it. At the end of all data no match can come either. But after a stop with drain the data goes on
if a job starts from the savepoint. So at the end of all data such records are handed on, marked, and kept.

The watermark behind a join is held back by the time that a record may wait for its match: the time of a result is the
time of a record that waited.

The results of a batch are handed on in slices. Where a snapshot is taken between two slices, the records of the batch
that have met no record of the other side are *pending*, and are in the snapshot. After a restore they are looked up
before anything else is done.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.join_steps import LATE_OF_RIGHT, LEFT, RIGHT, JoinKind, JoinSide, JoinStep, moved
from penstock.api.steps import LATE
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.fired import Fired
from penstock.runtime.task.operators.join_columns import Pairs, ResultMaker
from penstock.runtime.task.operators.join_runs import (
    MATCHED,
    SHOWN,
    UNMATCHED,
    Frozen,
    Int64s,
    JoinRuns,
    Marks,
    Probe,
    Run,
    UInt32s,
    spread,
)
from penstock.runtime.task.operators.join_snapshot import JoinHeader, decode, encode
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.runtime.task.partitioning import key_groups, row_hashes
from penstock.runtime.task.slices import Steps, Work
from penstock.state.restore_bounds import check_named_once

RESULT_ROWS = 65_536
"""Results are handed on in batches of at most this many rows."""
_SEED = 0x6A6F696E
_FIRST_TIME = -(2**63)
_LATE = (LATE, LATE_OF_RIGHT)


class _Arrived(NamedTuple):
    """Records of one side that have a key and a time, and that are not late."""

    side: int
    rows: pa.RecordBatch
    times: Int64s
    hashes: UInt32s

    def slice(self, begin: int, end: int) -> _Arrived:
        """Some of the records."""
        rows = self.rows.slice(begin, end - begin)
        return _Arrived(self.side, rows, self.times[begin:end], self.hashes[begin:end])


class JoinOperator(Operator):
    """Joins the records of two inputs."""

    def __init__(self, step: JoinStep) -> None:
        self._step = step
        self._results = ResultMaker(step)
        self._keys = list(zip(step.left.keys, step.right.keys, strict=True))
        self._sides = tuple(self._make_runs(side) for side in (LEFT, RIGHT))
        self._passed = Fired()
        self._pending: list[_Arrived] = []
        """Records that have come and that have met no record of the other side."""
        self._late_dropped = [0, 0]

    def _make_runs(self, side: int) -> JoinRuns:
        how, reach = self._step.how, self._step.reach
        return JoinRuns(
            last_match=lambda times: reach.of(side, times)[1],
            has_marks=how.marks(side),
            drops_matched=not how.has_pairs and side == LEFT,
        )

    # --- records ---------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Join records of the left side."""
        return self.process_input(batch, LEFT)

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Join records of one side with the records of the other side that have come before."""
        return Work.begin(self._with(batch, number))

    def _with(self, batch: pa.RecordBatch, side: int) -> Steps:
        yield from self._join_pending()
        schema = self._step.side(side).schema
        if not batch.schema.equals(schema, check_metadata=True):
            # Batches that become one batch must have the same schema, metadata included.
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        times, batch = self._times(batch, side)
        batch, times = self._without_late(batch, times, side)
        batch, times = self._without_hopeless(batch, times, side)
        if batch.num_rows:
            hashes = row_hashes(batch, self._step.side(side).keys, seed=_SEED)
            self._pending.append(_Arrived(side, batch, times, hashes))
            yield from self._join_pending()

    def _times(self, batch: pa.RecordBatch, side: int) -> tuple[Int64s, pa.RecordBatch]:
        """The times of records, once the records without a time have gone."""
        given: JoinSide = self._step.side(side)
        times: Any = batch.column(given.time_column)
        if times.null_count:
            has_time = times.is_valid()
            self._hand_on_alone(batch.filter(times.is_null()), side)
            batch = batch.filter(has_time)
            times = batch.column(given.time_column)
        return moved(int64_values(times), given.time_offset_us), batch

    def _without_late(self, batch: pa.RecordBatch, times: Int64s, side: int) -> tuple[pa.RecordBatch, Int64s]:
        keys = self._step.side(side).keys
        late = self._passed.late(times, lambda: key_groups(batch, keys, self.context.max_parallelism))
        if late is None or not late.any():
            return batch, times
        if _LATE[side] in self.sides:
            self.sides[_LATE[side]].emit(batch.filter(pa.array(late)))
        else:
            self._late_dropped[side] += int(late.sum())
        return batch.filter(pa.array(~late)), times[~late]

    def _without_hopeless(self, batch: pa.RecordBatch, times: Int64s, side: int) -> tuple[pa.RecordBatch, Int64s]:
        """Hand on the records with a null key, which match nothing, and return the other records."""
        has_key = np.ones(batch.num_rows, np.bool_)
        for key in self._step.side(side).keys:
            column: Any = batch.column(key)
            if column.null_count:
                has_key &= column.is_valid().to_numpy(zero_copy_only=False)
        if has_key.all():
            return batch, times
        self._hand_on_alone(batch.filter(pa.array(~has_key)), side)
        return batch.filter(pa.array(has_key)), times[has_key]

    def _hand_on_alone(self, batch: pa.RecordBatch, side: int) -> None:
        if batch.num_rows and self._step.how.shows_unmatched(side):
            self.output.emit(self._results.alone(batch, side))

    def _join_pending(self) -> Steps:
        while self._pending:
            arrived = self._pending.pop(0)
            yield from self._join(arrived)

    def _join(self, arrived: _Arrived) -> Steps:
        """Look the records up, a part of them at a time, so that a part has few results."""
        side, (first, last) = arrived.side, self._step.reach.of(arrived.side, arrived.times)
        probe = Probe(hashes=arrived.hashes, first=first, last=last)
        others = [(run, found) for run in self._sides[1 - side].runs if (found := run.found(probe)) is not None]
        total = np.zeros(arrived.times.size, np.int64)
        for _, (_, counts) in others:
            total += counts
        ends = np.cumsum(total)
        begin = 0
        while begin < arrived.times.size:
            most = min(RESULT_ROWS, self.slice.left)
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            part = arrived.slice(begin, end)
            matched, was_cut = np.zeros(end - begin, np.bool_), False
            for run, (begins, counts) in others:
                for may_snapshot in self._meet(part, run, begins[begin:end], counts[begin:end], matched):
                    was_cut = True
                    yield may_snapshot
            marks = matched.astype(np.uint8) * np.uint8(MATCHED)
            self._sides[side].append(part.rows, part.times, part.hashes, marks)
            begin = end
            if begin < arrived.times.size and (self.slice.spend(end - begin) or was_cut):
                # A snapshot may be taken here, and has the rest.
                self._pending.insert(0, arrived.slice(begin, arrived.times.size))
                yield True
                self._pending.pop(0)

    def _meet(self, part: _Arrived, run: Run, begins: Int64s, counts: Int64s, matched: npt.NDArray[np.bool_]) -> Steps:
        """Hand on the results of the records and the records of a run that match them."""
        for of_part, places in spread(begins, counts, RESULT_ROWS):
            of_run = run.order[places]
            pairs = self._matching(part, run, of_part, of_run)
            rows = pairs.rows(part.side), pairs.rows(1 - part.side)
            fresh = ~matched[rows[0]]
            matched[rows[0]] = True
            if self._step.how.has_pairs:
                self._emit(self._results.pairs(pairs)) if pairs.count else None
            elif part.side == LEFT:
                self._show_semi(part.rows, np.unique(rows[0][fresh]))
            else:
                assert run.marks is not None
                self._show_semi(run.rows, np.unique(rows[1][run.marks[rows[1]] == UNMATCHED]))
            if run.marks is not None and rows[1].size:
                run.mark(rows[1], MATCHED)
            if self.slice.spend(pairs.count):
                yield False

    def _matching(self, part: _Arrived, run: Run, of_part: Int64s, of_run: Int64s) -> Pairs:
        """The pairs that match, of pairs that match by the hashes of their keys and, nearly, by their times."""
        first, last = self._step.reach.of(part.side, part.times)
        times = run.times[of_run]
        fits = (first[of_part] <= times) & (times <= last[of_part])
        if run.marks is not None and not self._step.how.has_pairs:
            fits &= run.marks[of_run] == UNMATCHED
        of_part, of_run = of_part[fits], of_run[fits]
        if part.side == LEFT:
            pairs = Pairs(part.rows, of_part, run.rows, of_run)
        else:
            pairs = Pairs(run.rows, of_run, part.rows, of_part)
        return self._results.meeting(pairs, self._keys, self.context)

    def _show_semi(self, rows: pa.RecordBatch, numbers: Int64s) -> None:
        if self._step.how is JoinKind.SEMI and numbers.size:
            self._emit(self._results.alone(rows.take(numbers), LEFT))

    def _emit(self, results: pa.RecordBatch) -> None:
        self.output.emit(results)

    # --- time ------------------------------------------------------------------------------

    def fire(self, now: Instant) -> Work | None:  # noqa: ARG002
        """Look up what was pending in the restored snapshot."""
        return Work.begin(self._join_pending())

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Hand on the records that no match can come for, then the watermark."""
        return Work.begin(self._to_watermark(time_us, idle=idle))

    def _to_watermark(self, time_us: int, *, idle: bool) -> Steps:
        yield from self._join_pending()
        is_end = time_us == MAX_WATERMARK
        if not is_end:
            # Records that are done are in the state until they have been handed on. So a snapshot may be taken between
            # two slices; after a restore they are handed on at the next watermark.
            self._passed.advance(time_us)
        for side, runs in enumerate(self._sides):
            if self._step.how.shows_unmatched(side):
                for run in list(runs.runs):
                    yield from self._show_done(run, side, runs.due(run, time_us), is_end=is_end)
            if not is_end:
                runs.drop(time_us)
        is_limit = time_us in (MAX_WATERMARK, _FIRST_TIME)
        held = time_us if is_limit else max(time_us - self._step.hold_us, _FIRST_TIME)
        self.output.watermark(held, idle=idle)

    def _show_done(self, run: Run, side: int, due: int, *, is_end: bool) -> Steps:
        """Hand on the records of a run, up to a record, that have no match."""
        assert run.marks is not None
        begin, end = run.begin, int(run.times.size) if is_end else due
        while begin < end:
            until = min(end, begin + min(RESULT_ROWS, self.slice.left))
            alone = begin + np.flatnonzero(run.marks[begin:until] == UNMATCHED)
            if alone.size:
                self._emit(self._results.alone(run.rows.take(alone), side))
            if is_end:
                run.mark(alone, SHOWN)
            else:
                run.begin = until
            spent, begin = until - begin, until
            if self.slice.spend(spent):
                yield True

    def finish(self) -> Work | None:
        """All data has been seen. The watermark at the end of event time comes before, if there is event time."""
        return Work.begin(self._join_pending())

    # --- checkpoints -----------------------------------------------------------------------

    def load(self, context: OperatorContext) -> None:
        """Restore the records of this subtask's key groups, and how far event time had come."""
        if context.fresh or not context.restored:
            return
        passed: list[FiredRange] = []
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the join")
        for state in context.restored:
            for file in state.keyed:
                found = decode(
                    context.reader.get(file),
                    self._step,
                    context.key_groups,
                    groups=context.max_parallelism,
                    name=context.name,
                )
                passed += found.header.passed
                self._restore(found.rows, found.marks, found.header)
        self._passed.restore(passed, context.key_groups)

    def _restore(self, rows: pa.RecordBatch, marks: Marks, header: JoinHeader) -> None:
        if rows.num_rows == 0:
            return
        times, kept = self._times(rows, header.side)
        hashes = row_hashes(kept, self._step.side(header.side).keys, seed=_SEED)
        if header.pending:
            self._pending.append(_Arrived(header.side, kept, times, hashes))
        else:
            self._sides[header.side].append(kept, times, hashes, marks)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Freeze the records by reference. The returned work orders them by key group and writes them."""
        context, step = self.context, self._step
        passed = self._passed.ranges(context.key_groups)
        frozen: list[tuple[int, bool, tuple[Frozen, ...]]] = [
            (side, False, runs.freeze()) for side, runs in enumerate(self._sides)
        ]
        for side in (LEFT, RIGHT):
            pending = tuple(Frozen(each.rows, None) for each in self._pending if each.side == side)
            frozen += [(side, True, pending)] if pending else []

        def write(writer: StateWriter) -> OperatorState:
            files = []
            for side, is_pending, parts in frozen:
                given = step.side(side)
                header = JoinHeader(
                    join=step.described(), side=side, keys=given.keys, passed=passed, pending=is_pending
                )
                files.append(writer.put(encode(parts, given.schema, header, context.max_parallelism)))
            return OperatorState(
                operator=OperatorId(context.operator), keyed=tuple(files), key_groups=context.key_groups
            )

        return write

    def metrics(self) -> dict[str, float]:
        """How many records are kept, and how many came too late."""
        left, right = self._sides
        return {
            "left_rows_kept": left.rows,
            "right_rows_kept": right.rows,
            "late_dropped": sum(self._late_dropped),
        }
