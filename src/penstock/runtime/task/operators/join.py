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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.join_steps import LEFT, RIGHT, JoinKind, JoinStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.ids import Instant
from penstock.runtime.task.operators.join_columns import Pairs
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
    spread,
)
from penstock.runtime.task.operators.join_sides import RESULT_ROWS, Arrived, TwoSidedOperator
from penstock.runtime.task.slices import Steps, Work

_FIRST_TIME = -(2**63)


class JoinOperator(TwoSidedOperator):
    """Joins the records of two inputs."""

    _step: JoinStep

    def __init__(self, step: JoinStep) -> None:
        super().__init__(step)
        self._keys = list(zip(step.left.keys, step.right.keys, strict=True))
        self._sides = (self._make_runs(LEFT), self._make_runs(RIGHT))
        self._pending: list[Arrived] = []
        """Records that have come and that have met no record of the other side."""

    def _make_runs(self, side: int) -> JoinRuns:
        how, reach = self._step.how, self._step.reach
        return JoinRuns(
            last_match=lambda times: reach.of(side, times)[1],
            mark_type=np.uint8 if how.marks(side) else None,
            done=_has_matched if not how.has_pairs and side == LEFT else None,
        )

    # --- records ---------------------------------------------------------------------------

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Join records of one side with the records of the other side that have come before."""
        return Work.begin(self._with(batch, number))

    def _with(self, batch: pa.RecordBatch, side: int) -> Steps:
        yield from self._join_pending()
        arrived = self._arrived(batch, side)
        if arrived.rows.num_rows:
            self._pending.append(arrived)
            yield from self._join_pending()

    def _join_pending(self) -> Steps:
        while self._pending:
            arrived = self._pending.pop(0)
            yield from self._join(arrived)

    def _join(self, arrived: Arrived) -> Steps:
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

    def _meet(self, part: Arrived, run: Run, begins: Int64s, counts: Int64s, matched: npt.NDArray[np.bool_]) -> Steps:
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

    def _matching(self, part: Arrived, run: Run, of_part: Int64s, of_run: Int64s) -> Pairs:
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

    def _take_back(self, arrived: Arrived, marks: Marks, *, pending: bool) -> None:
        if pending:
            self._pending.append(arrived)
        else:
            super()._take_back(arrived, marks, pending=False)

    def _pending_records(self) -> list[tuple[int, Frozen]]:
        return [(each.side, Frozen(each.rows, None)) for each in self._pending]

    def metrics(self) -> dict[str, float]:
        """How many records are kept, how large they are, and how many came too late."""
        left, right = self._sides
        return {
            "left_rows_kept": left.rows,
            "right_rows_kept": right.rows,
            "bytes_kept": left.nbytes + right.nbytes,
            "late_dropped": sum(self._late_dropped),
        }


def _has_matched(marks: Marks) -> npt.NDArray[np.bool_]:
    return marks == MATCHED  # type: ignore[no-any-return]
