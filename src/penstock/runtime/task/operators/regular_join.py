"""The join of two streams by key, whatever their times.

Every row of either side is kept, with the time at which it came, until the row is taken back or its time to live is
over. The side that changes is looked up among the rows of the other side, all changes of a batch at once. The results
change with them:

    a row comes          a result for each row that it matches; or the row alone, if it matches none
    a row is taken back  these results are taken back
    the other side       a row that was handed on alone is taken back when its first match comes,
                         and is handed on again when its last match has gone

A row whose side may be handed on alone has a count of the rows that it has matched. An expired row is forgotten without
a word: the results that it is part of stay as they are, and the counts of its matches, too. To take back a row that has
expired does nothing.

The changes of a batch are the changes of a table: of equal rows that come and go only the difference counts. First
rows are taken back, then rows come. So the results of a batch never have a row that is taken back before it came.

The results of a batch are handed on in parts. Between two parts a snapshot may be taken: then the changes that have not
been looked up are *pending*, and are in the snapshot. After a restore they are looked up before anything else is done.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.api.changelog import ROW_KIND
from penstock.api.join_steps import LEFT, RIGHT, WRITTEN, JoinKind, RegularJoinStep, moved
from penstock.api.table_of_changes import codes_of, signs
from penstock.core.ids import Instant
from penstock.runtime.task.operators.base import Output
from penstock.runtime.task.operators.changes import DELETE, INSERT, names_of
from penstock.runtime.task.operators.join_columns import Pairs, ResultMaker
from penstock.runtime.task.operators.join_runs import (
    GONE,
    Bits,
    Frozen,
    Int64s,
    JoinRuns,
    Marks,
    Probe,
    Run,
    one_batch,
    spread,
)
from penstock.runtime.task.operators.join_sides import RESULT_ROWS, Arrived, TwoSidedOperator
from penstock.runtime.task.operators.running_table import equal
from penstock.runtime.task.slices import Steps, Work

_FIRST_TIME, _LAST_TIME = -(2**63), 2**63 - 1


class Changes(NamedTuple):
    """Changes of the rows of one side: first the rows that are taken back, then the rows that come."""

    rows: Arrived
    adds: Bits
    """Whether each row comes, or is taken back."""

    def slice(self, begin: int, end: int) -> Changes:
        """Some of the changes."""
        return Changes(self.rows.slice(begin, end), self.adds[begin:end])

    def of(self, kept: Bits) -> Changes:
        """Some of the changes."""
        if kept.all():
            return self
        side, rows, times, hashes = self.rows
        return Changes(Arrived(side, rows.filter(pa.array(kept)), times[kept], hashes[kept]), self.adds[kept])


class Hits(NamedTuple):
    """Rows of a run that match changes: change `changes[i]` with row `rows[i]`."""

    run: Run
    changes: Int64s
    rows: Int64s


class RegularJoinOperator(TwoSidedOperator):
    """Joins the rows of two inputs that change."""

    _step: RegularJoinStep

    def __init__(self, step: RegularJoinStep) -> None:
        super().__init__(step)
        self._keys = list(zip(step.left.keys, step.right.keys, strict=True))
        self._sides = (self._make_runs(LEFT), self._make_runs(RIGHT))
        self._pending: list[Changes] = []
        self._unknown_dropped = 0
        """How many rows were to be taken back that are not kept any more."""

    def _make_runs(self, side: int) -> JoinRuns:
        step = self._step
        counts = step.how.marks(side)
        # Whether a row has matched is settled by its first match, if nothing is ever taken back.
        is_settled = not step.how.has_pairs and side == LEFT and not any(step.retracts)
        ttl_ms = _LAST_TIME if step.ttl_ms is None else step.ttl_ms
        return JoinRuns(
            last_match=lambda times: moved(times, ttl_ms),
            mark_type=np.int32 if counts or step.retracts[side] else None,
            done=_has_matched if is_settled else _is_gone,
        )

    # --- changes ---------------------------------------------------------------------------

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:
        """Join changes of one side with the rows of the other side."""
        return Work.begin(self._with(batch, number))

    def fire(self, now: Instant) -> Work | None:  # noqa: ARG002
        """Look up what was pending in the restored snapshot."""
        return Work.begin(self._join_pending())

    def finish(self) -> Work | None:
        """All data has been seen."""
        return Work.begin(self._join_pending())

    def tick(self, now: Instant) -> Instant | None:
        """Forget what has expired."""
        if self._step.ttl_ms is None:
            return None
        self._forget()
        return Instant(now + max(self._step.ttl_ms // 8, 100))

    def _forget(self) -> None:
        if self._step.ttl_ms is not None:
            for runs in self._sides:
                runs.drop(self.context.now())

    def _with(self, batch: pa.RecordBatch, side: int) -> Steps:
        yield from self._join_pending()
        if batch.num_rows:
            self._pending.append(self._changes(batch, side))
            yield from self._join_pending()

    def _changes(self, batch: pa.RecordBatch, side: int) -> Changes:
        """What a batch changes. Rows with a null key match nothing, and go their own way."""
        adds = np.ones(batch.num_rows, np.bool_)
        if self._step.retracts[side]:
            adds = signs(batch.column(ROW_KIND)) > 0
            batch = batch.drop_columns([ROW_KIND])
            if not adds.all():
                places, adds = _difference(batch, adds, renews=self._step.ttl_ms is not None)
                batch = batch.take(places)
        written: Any = pa.array(np.full(batch.num_rows, self.context.now(), np.int64))
        kept = pa.RecordBatch.from_arrays([*batch.columns, written], schema=self._step.side(side).schema)
        usable = np.ones(batch.num_rows, np.bool_)
        for key in self._step.side(side).keys:
            column: Any = batch.column(key)
            if column.null_count:
                usable &= column.is_valid().to_numpy(zero_copy_only=False)
        if not usable.all():
            self._hand_on_changes_alone(kept, ~usable, adds, side)
            kept, adds = kept.filter(pa.array(usable)), adds[usable]
        return Changes(self._hashed(kept, side), adds)

    def _hand_on_changes_alone(self, rows: pa.RecordBatch, mask: Bits, adds: Bits, side: int) -> None:
        if self._step.how.shows_unmatched(side):
            results = _Results(self._step, self._results, self.output)
            results.alone(rows, side, mask & ~adds, DELETE)
            results.alone(rows, side, mask & adds, INSERT)
            results.hand_on()

    def _join_pending(self) -> Steps:
        self._forget()
        while self._pending:
            yield from self._join(self._pending.pop(0))

    def _join(self, changes: Changes) -> Steps:
        """Look the changes up, a part of them at a time, so that a part has few results."""
        side, count = changes.rows.side, changes.adds.size
        probe = _everything(changes.rows)
        total = np.zeros(count, np.int64)
        for run in self._sides[1 - side].runs:
            found = run.found(probe)
            total += 0 if found is None else found[1]
        ends = np.cumsum(total)
        begin = 0
        while begin < count:
            most = min(RESULT_ROWS, self.slice.left)
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            made = yield from self._change(changes.slice(begin, end))
            begin = end
            if begin < count and self.slice.spend(1 + made):
                # A snapshot may be taken here, and has the rest.
                self._pending.insert(0, changes.slice(begin, count))
                yield True
                self._pending.pop(0)
        self._sides[side].tidy()

    def _change(self, changes: Changes) -> Generator[bool, None, int]:
        """Change the rows of one side, and hand on what that changes in the results. Returns how many pairs that
        were."""
        side = changes.rows.side
        counts = np.zeros(changes.adds.size, np.int64)
        if not changes.adds.all():
            counts, known = self._take_away(changes)
            self._unknown_dropped += int((~known).sum())
            changes, counts = changes.of(known), counts[known]
        hits: list[Hits] = []
        for run in self._sides[1 - side].runs:
            hit = yield from self._hits(changes, run)
            hits += [hit] if hit.rows.size else []
        for hit in hits:
            counts += np.where(changes.adds, np.bincount(hit.changes, minlength=counts.size), 0)
        results = _Results(self._step, self._results, self.output)
        came = yield from self._count(hits, changes, results)
        if self._step.how.has_pairs:
            for adds in (False, True):
                for hit in hits:
                    picked = changes.adds[hit.changes] == adds
                    yield from self._hand_on_pairs(hit, picked, changes, results, INSERT if adds else DELETE)
                self._show_own(changes, counts, results, adds=adds)
        else:
            for adds in (False, True):
                self._show_own(changes, counts, results, adds=adds)
        for run, rows in came:
            yield from self._hand_on_alone_rows(run, rows, 1 - side, results, INSERT)
        results.hand_on()
        self._add(changes, counts)
        return sum(hit.rows.size for hit in hits)

    def _add(self, changes: Changes, counts: Int64s) -> None:
        """Keep the rows that come."""
        side, rows, times, hashes = changes.of(changes.adds).rows
        self._sides[side].append(rows, times, hashes, counts[changes.adds].astype(np.int32))

    def _hits(self, changes: Changes, run: Run) -> Generator[bool, None, Hits]:
        """The rows of a run of the other side that match the changes. A single change may match millions of rows."""
        part, found = changes.rows, run.found(_everything(changes.rows))
        parts: list[tuple[Int64s, Int64s]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        for of_probe, places in spread(*found, RESULT_ROWS) if found is not None else ():
            of_part, of_run = _there(run, of_probe, run.order[places])
            if part.side == LEFT:
                pairs = Pairs(part.rows, of_part, run.rows, of_run)
            else:
                pairs = Pairs(run.rows, of_run, part.rows, of_part)
            pairs = self._results.meeting(pairs, self._keys, self.context)
            parts.append((pairs.rows(part.side), pairs.rows(1 - part.side)))
            if self.slice.spend(of_probe.size):
                yield False
        return Hits(run, *(np.concatenate(each) for each in zip(*parts, strict=True)))

    # --- rows that are taken back ----------------------------------------------------------

    def _take_away(self, changes: Changes) -> tuple[Int64s, Bits]:
        """Take rows away. Returns for each row that is taken back how many rows it had matched, and for each change
        whether it can be made: a row that is not there cannot be taken back."""
        side = changes.rows.side
        gone = changes.of(~changes.adds)
        codes, firsts = codes_of(pa.Table.from_batches([gone.rows.rows.drop_columns([WRITTEN])]))
        firsts, left = np.sort(firsts), np.bincount(codes, minlength=firsts.size)
        asked = gone.of(np.isin(np.arange(codes.size), firsts)).rows
        kinds, matched = np.empty(0, np.int64), np.empty(0, np.int64)
        for run in self._sides[side].runs:
            of_asked, of_run = self._equal_rows(asked, run)
            kind = codes[firsts[of_asked]]
            # Of equal rows as many are taken as there are copies to be taken back.
            chosen = _ranks(kind) < left[kind]
            kind, of_run = kind[chosen], of_run[chosen]
            if not kind.size:
                continue
            assert run.marks is not None
            kinds, matched = np.concatenate([kinds, kind]), np.concatenate([matched, run.marks[of_run]])
            self._sides[side].mark(run, of_run, np.full(of_run.size, GONE, np.int32))
            left = left - np.bincount(kind, minlength=left.size)
        order = np.argsort(kinds, kind="stable")
        kinds, matched = kinds[order], matched[order]
        ranks = _ranks(codes)
        found = ranks < np.bincount(kinds, minlength=left.size)[codes]
        counts, known = np.zeros(changes.adds.size, np.int64), changes.adds.copy()
        known[~changes.adds] = found
        of_found = np.searchsorted(kinds, codes[found]) + ranks[found]
        counts[np.flatnonzero(~changes.adds)[found]] = matched[of_found]
        return counts, known

    def _equal_rows(self, asked: Arrived, run: Run) -> tuple[Int64s, Int64s]:
        """The rows of a run of the same side that are equal to rows that are asked for, in every column."""
        found = run.found(_everything(asked))
        parts: list[tuple[Int64s, Int64s]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        names = [name for name in asked.rows.schema.names if name != WRITTEN]
        for of_probe, places in spread(*found, RESULT_ROWS) if found is not None else ():
            of_asked, of_run = _there(run, of_probe, run.order[places])
            for name in names:
                if not of_run.size:
                    break
                given: Any = asked.rows.column(name)
                kept: Any = run.rows.column(name)
                same = equal(given.take(of_asked), kept.take(of_run))
                of_asked, of_run = of_asked[same], of_run[same]
            parts.append((of_asked, of_run))
        first, second = zip(*parts, strict=True)
        return np.concatenate(first), np.concatenate(second)

    # --- results ---------------------------------------------------------------------------

    def _count(
        self, hits: Sequence[Hits], changes: Changes, results: _Results
    ) -> Generator[bool, None, list[tuple[Run, Int64s]]]:
        """Count the matches of the rows of the other side. Rows that are not handed on alone any more are taken back at
        once; returns the rows that are handed on alone from here on."""
        side = 1 - changes.rows.side
        came: list[tuple[Run, Int64s]] = []
        if not self._step.how.marks(side):
            return came
        for hit in hits:
            assert hit.run.marks is not None
            rows, places = np.unique(hit.rows, return_inverse=True)
            signed = np.where(changes.adds[hit.changes], 1, -1)
            before = hit.run.marks[rows].astype(np.int64)
            after = before + np.bincount(places, weights=signed, minlength=rows.size).astype(np.int64)
            self._sides[side].mark(hit.run, rows, after.astype(np.int32))
            was, is_now = self._is_shown(before, side), self._is_shown(after, side)
            yield from self._hand_on_alone_rows(hit.run, rows[was & ~is_now], side, results, DELETE)
            came.append((hit.run, rows[~was & is_now]))
        return came

    def _hand_on_alone_rows(self, run: Run, rows: Int64s, side: int, results: _Results, kind: int) -> Steps:
        """Hand on rows of a run that match no row of the other side, or take such results back: `kind` says which."""
        for begin in range(0, rows.size, RESULT_ROWS):
            part = rows[begin : begin + RESULT_ROWS]
            results.alone(run.rows, side, part, kind)
            if begin + RESULT_ROWS < rows.size and self.slice.spend(part.size):
                yield False

    def _is_shown(self, counts: Int64s, side: int) -> Bits:
        """Whether rows of a side are handed on alone, by how many rows they have matched."""
        if self._step.how is JoinKind.SEMI:
            return counts > 0
        shown: Bits = (counts == 0) & self._step.how.shows_unmatched(side)
        return shown

    def _show_own(self, changes: Changes, counts: Int64s, results: _Results, *, adds: bool) -> None:
        """Hand on the rows that change and that are alone; or take them back."""
        side = changes.rows.side
        if self._step.how.marks(side):
            shown = (changes.adds == adds) & self._is_shown(counts, side)
            results.alone(changes.rows.rows, side, shown, INSERT if adds else DELETE)

    def _hand_on_pairs(self, hit: Hits, picked: Bits, changes: Changes, results: _Results, kind: int) -> Steps:
        of_change, of_run = hit.changes[picked], hit.rows[picked]
        for begin in range(0, of_run.size, RESULT_ROWS):
            rows, others = of_change[begin : begin + RESULT_ROWS], of_run[begin : begin + RESULT_ROWS]
            if changes.rows.side == LEFT:
                pairs = Pairs(changes.rows.rows, rows, hit.run.rows, others)
            else:
                pairs = Pairs(hit.run.rows, others, changes.rows.rows, rows)
            results.add(self._results.pairs(pairs), kind)
            if begin + RESULT_ROWS < of_run.size and self.slice.spend(RESULT_ROWS):
                yield False

    # --- checkpoints -----------------------------------------------------------------------

    def _take_back(self, arrived: Arrived, marks: Marks, *, pending: bool) -> None:
        if not pending:
            super()._take_back(arrived, marks, pending=False)
            return
        for adds in (False, True):
            picked = (marks == 1) == adds
            if picked.any():
                self._pending.append(Changes(arrived, marks == 1).of(picked))

    def _pending_records(self) -> list[tuple[int, Frozen]]:
        return [(each.rows.side, Frozen(each.rows.rows, each.adds.astype(np.int32))) for each in self._pending]

    def metrics(self) -> dict[str, float]:
        """How many rows are kept, how large they are, and how many rows were to be taken back that had expired."""
        left, right = self._sides
        return {
            "left_rows_kept": left.rows,
            "right_rows_kept": right.rows,
            "bytes_kept": left.nbytes + right.nbytes,
            "unknown_dropped": self._unknown_dropped,
        }


class _Results:
    """Results on their way, with the kinds of their changes."""

    def __init__(self, step: RegularJoinStep, maker: ResultMaker, output: Output) -> None:
        self._step = step
        self._maker = maker
        self._output = output
        self._batches: list[pa.RecordBatch] = []
        self._kinds: list[int] = []
        self._rows = 0

    def alone(self, rows: pa.RecordBatch, side: int, picked: Bits | Int64s, kind: int) -> None:
        """Rows of a side without a row of the other side."""
        numbers: Any = np.flatnonzero(picked) if picked.dtype == np.bool_ else picked
        if numbers.size:
            self.add(self._maker.alone(rows.take(numbers), side), kind)

    def add(self, batch: pa.RecordBatch, kind: int) -> None:
        """Changes of one kind."""
        if batch.num_rows:
            self._batches.append(batch)
            self._kinds.append(kind)
            self._rows += batch.num_rows
            if self._rows >= RESULT_ROWS:
                self.hand_on()

    def hand_on(self) -> None:
        """Hand on all of them."""
        if not self._batches:
            return
        step = self._step
        rows = one_batch(self._batches, self._batches[0].schema)
        if step.has_changes:
            kinds = np.repeat(np.array(self._kinds, np.int8), [batch.num_rows for batch in self._batches])
            rows = pa.RecordBatch.from_arrays([*rows.columns, names_of(kinds)], schema=step.schema)
        self._batches, self._kinds, self._rows = [], [], 0
        self._output.emit(rows)


def _difference(batch: pa.RecordBatch, adds: Bits, *, renews: bool) -> tuple[Int64s, Bits]:
    """What the changes of a batch come to: the places of rows, and whether each of these rows comes or is taken back.
    Rows that are taken back are first. With `renews` a row that is taken back and comes again is taken back and comes:
    it is kept anew from here on."""
    codes, firsts = codes_of(pa.Table.from_batches([batch]))
    plus, minus = (np.bincount(codes[mask], minlength=firsts.size) for mask in (adds, ~adds))
    back = (minus > 0) & (plus > 0) & ~adds[firsts] if renews else np.zeros(firsts.size, np.bool_)
    gone, new = np.maximum(minus - plus, 0) + back, np.maximum(plus - minus, 0) + back
    order = np.argsort(firsts)
    places = [np.repeat(firsts[order], counts[order]) for counts in (gone, new)]
    return np.concatenate(places), np.repeat([False, True], [places[0].size, places[1].size])


def _ranks(kinds: Int64s) -> Int64s:
    """For each number how many equal numbers are before it."""
    order = np.argsort(kinds, kind="stable")
    ordered = kinds[order]
    ranks = np.empty_like(kinds)
    ranks[order] = np.arange(kinds.size) - np.searchsorted(ordered, ordered, side="left")
    return ranks


def _everything(rows: Arrived) -> Probe:
    """All rows with the keys of some rows, whenever they came."""
    return Probe(
        hashes=rows.hashes,
        first=np.full(rows.hashes.size, _FIRST_TIME),
        last=np.full(rows.hashes.size, _LAST_TIME),
    )


def _there(run: Run, of_part: Int64s, of_run: Int64s) -> tuple[Int64s, Int64s]:
    """The pairs whose row of the run is still there."""
    there = of_run >= run.begin
    if run.marks is not None:
        there &= run.marks[of_run] != GONE
    return (of_part, of_run) if there.all() else (of_part[there], of_run[there])


def _is_gone(marks: Marks) -> Bits:
    return marks == GONE  # type: ignore[no-any-return]


def _has_matched(marks: Marks) -> Bits:
    return marks > 0
