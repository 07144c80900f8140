"""The join of a stream with a table.

The table is read before the step begins, in every attempt, and is no state: the snapshot of a job does not have it. The
rows of the table lie in *buckets* by the hash of their keys. A batch is looked up at once: each record finds its bucket
without a search, and keys are compared afterwards.

A table may be read anew every so often. The driver makes versions of the table. A subtask looks now and then for a
newer version, reads the version in the background, piece by piece, and joins with the older version meanwhile. All
records of a batch meet the same version, and no record meets an earlier version than a record before it: every attempt
begins with the newest version that there is. Results that a checkpoint covers are not made again, whatever the table is
after a restore; records that are read again meet the table as it is by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.join_steps import LEFT, JoinKind, TableJoinStep
from penstock.api.static_tables import RefreshedTable, TableVersion
from penstock.core.ids import Instant
from penstock.ports import WorkResult
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output
from penstock.runtime.task.operators.join_columns import Pairs, ResultMaker
from penstock.runtime.task.operators.join_runs import Int64s, one_batch, spread
from penstock.runtime.task.operators.user_code import one_line
from penstock.runtime.task.partitioning import key_groups, row_hashes
from penstock.runtime.task.slices import Steps, Work

RESULT_ROWS = 65_536
"""Results are handed on in batches of at most about this many rows."""
_SEED = 0x7461626C
_ROOM = 2
"""There are at least this many buckets for each row."""
_LOOKS = 20
"""A subtask looks for a newer version so many times between two versions, within the following bounds."""
_LEAST_LOOK_MS, _MOST_LOOK_MS = 200, 30_000
_MOST_TRIES = 3
"""So many times the newest version is looked for at the start, if versions go away while they are read."""
_PIECE_ROWS = 262_144
"""About how many rows of a version are read before other background work has its turn."""

Reading = Iterator[tuple[TableVersion | None, "Buckets | None"] | None]
"""Reads a version: None after each piece; at the end the version, or a pair of nothing if there is no newer version."""

log = logging.getLogger(__name__)


class Buckets:
    """The rows of a table, by the hash of their keys."""

    def __init__(self, rows: pa.RecordBatch, keys: tuple[str, ...]) -> None:
        self.rows = rows
        count = 1 << max(4, (rows.num_rows * _ROOM).bit_length())
        self._mask = np.uint32(count - 1)
        places = row_hashes(rows, keys, seed=_SEED) & self._mask
        self._order = np.argsort(places, kind="stable")
        self._starts = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(places, minlength=count), out=self._starts[1:])

    def of(self, batch: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Int64s, Int64s]:
        """For each record of a batch: where its bucket begins, and how many rows are in the bucket."""
        places = (row_hashes(batch, keys, seed=_SEED) & self._mask).astype(np.int64)
        begins = self._starts[places]
        return begins, self._starts[places + 1] - begins

    def at(self, places: Int64s) -> Int64s:
        """The numbers of the rows at some places in the buckets."""
        return self._order[places]


class TableJoinOperator(Operator):
    """Joins records with the rows of a table."""

    def __init__(self, step: TableJoinStep) -> None:
        self._step = step
        self._results = ResultMaker(step)
        self._keys = list(zip(step.keys, step.table_keys, strict=True))
        self._rows = 0
        """How many rows of the table are kept. People may look before the table has been read."""
        self._refreshed = step.table if isinstance(step.table, RefreshedTable) else None
        self._version = TableVersion(0, 0)
        self._look_at: Instant | None = None
        """When to look for a newer version; None while the operator looks, or reads."""
        self._refreshes_failed = 0
        self._is_closed = False

    def load(self, context: OperatorContext) -> None:
        """Read the table."""
        table = self._refreshed
        if table is None:
            self._take(self._made(self._step.table.batches(), context))
            return
        for tries_left in range(_MOST_TRIES - 1, -1, -1):
            version = table.newest()
            try:
                self._take(self._made(table.batches_of(version), context))
            except FileNotFoundError:
                # Newer versions have taken its place.
                if not tries_left:
                    raise
            else:
                self._version = version
                return

    def _made(self, batches: Iterable[pa.RecordBatch], context: OperatorContext) -> Buckets:
        return self._bucketed([self._wanted(batch, context) for batch in batches])

    def _bucketed(self, parts: list[pa.RecordBatch]) -> Buckets:
        return Buckets(one_batch(parts, self._step.table.schema), self._step.table_keys)

    def _take(self, buckets: Buckets) -> None:
        self._buckets, self._rows = buckets, buckets.rows.num_rows

    # --- newer versions --------------------------------------------------------------------

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start. If the table is read anew, look for a newer version every now and then."""
        super().open(context, output)
        if self._refreshed is not None:
            self._look_at = self._next_look(self._refreshed)
            context.wake_at(self._look_at)

    def _next_look(self, table: RefreshedTable) -> Instant:
        return Instant(self.context.now() + min(max(table.every_ms // _LOOKS, _LEAST_LOOK_MS), _MOST_LOOK_MS))

    def tick(self, now: Instant) -> Instant | None:
        """Look for a newer version, if it is time. Returns when to look next."""
        table = self._refreshed
        if table is not None and self._look_at is not None and now >= self._look_at:
            self._look_at = None
            self._go_on(table, self._read(table, self._version, self.context))
        return self._look_at

    def _read(self, table: RefreshedTable, known: TableVersion, context: OperatorContext) -> Reading:
        """Look for a newer version, and read it, in pieces that do not hold up other background work. Runs off the
        loop, and touches nothing of the operator that changes."""
        version = table.newest()
        if version.number <= known.number:
            yield None, None
        parts: list[pa.RecordBatch] = []
        rows = 0
        for batch in table.batches_of(version):
            parts.append(self._wanted(batch, context))
            rows += batch.num_rows
            if rows >= _PIECE_ROWS:
                rows = 0
                yield None
        yield version, self._bucketed(parts)

    def _go_on(self, table: RefreshedTable, reading: Reading) -> None:
        self.context.background.submit(lambda: next(reading), lambda outcome: self._went_on(table, reading, outcome))

    def _went_on(self, table: RefreshedTable, reading: Reading, outcome: WorkResult) -> None:
        """A piece of a version was read, or the version, or there is no newer version."""
        if self._is_closed:
            return
        if outcome.error is None and outcome.value is None:
            self._go_on(table, reading)
            return
        if outcome.error is not None:
            self._refreshes_failed += 1
            context, why = self.context, one_line(outcome.error)
            extra = {"job": context.job, "task": str(context.task), "operator": context.name, "error": why}
            text = "a newer version of the table of %r could not be read; version %s stays: %s"
            log.warning(text, context.name, self._version.number, why, extra=extra)
        else:
            version, buckets = outcome.value
            if version is not None:
                self._version = version
                self._take(buckets)
        self._look_at = self._next_look(table)
        self.context.wake_at(self._look_at)

    # --- records ---------------------------------------------------------------------------

    def _wanted(self, batch: pa.RecordBatch, context: OperatorContext) -> pa.RecordBatch:
        """The rows that may match a record of this subtask."""
        keys = self._step.table_keys
        wanted = _without_nulls(batch, keys)
        if self._step.by_key:
            groups, (first, last) = key_groups(batch, keys, context.max_parallelism), context.key_groups
            wanted &= (groups >= first) & (groups <= last)
        return batch if wanted.all() else batch.filter(pa.array(wanted))

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Hand on the results of a batch."""
        return Work.begin(self._joined(batch)) if batch.num_rows else None

    def _joined(self, batch: pa.RecordBatch) -> Steps:
        """The results, a part of the batch at a time, so that the records of a part match few rows."""
        # A newer version may come between two slices.
        buckets = self._buckets
        begins, counts = buckets.of(batch, self._step.keys)
        has_key = _without_nulls(batch, self._step.keys)
        if not has_key.all():
            counts = np.where(has_key, counts, 0)
        ends = np.cumsum(counts)
        begin = 0
        while begin < batch.num_rows:
            most = min(RESULT_ROWS, self.slice.left)
            before = int(ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
            part, matched = batch.slice(begin, end - begin), np.zeros(end - begin, np.bool_)
            for of_part, places in spread(begins[begin:end], counts[begin:end], RESULT_ROWS):
                pairs = Pairs(part, of_part, buckets.rows, buckets.at(places))
                pairs = self._results.meeting(pairs, self._keys, self.context)
                matched[pairs.rows(LEFT)] = True
                if self._step.how.has_pairs and pairs.count:
                    self.output.emit(self._results.pairs(pairs))
                if self.slice.spend(pairs.count):
                    yield False
            self._show_alone(part, matched)
            begin = end
            if begin < batch.num_rows and self.slice.spend(part.num_rows):
                yield False

    def _show_alone(self, part: pa.RecordBatch, matched: npt.NDArray[np.bool_]) -> None:
        """Hand on the records of a part that come out without a row of the table."""
        how = self._step.how
        if how is JoinKind.INNER:
            return
        shown: Any = matched if how is JoinKind.SEMI else ~matched
        if shown.any():
            alone = part if shown.all() else part.filter(pa.array(shown))
            self.output.emit(self._results.alone(alone, LEFT))

    def close(self) -> None:
        """Read no newer versions."""
        self._is_closed = True

    def metrics(self) -> dict[str, float]:
        """How many rows of the table this subtask keeps. Of a table that is read anew also the version, how long ago
        the driver began to read the version, and how many versions could not be read."""
        if self._refreshed is None:
            return {"table_rows": self._rows}
        return {
            "table_rows": self._rows,
            "table_version": self._version.number,
            "table_age_seconds": max(0, self.context.now() - self._version.read_ms) / 1_000,
            "table_reads_failed": self._refreshes_failed,
        }


def _without_nulls(batch: pa.RecordBatch, keys: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Which rows have no null in their keys."""
    found = np.ones(batch.num_rows, np.bool_)
    for key in keys:
        column: Any = batch.column(key)
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found
