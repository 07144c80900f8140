"""The join of a stream with a table that does not change while the job runs.

The table is read before the step begins, in every attempt, and is no state: the snapshot of a job does not have it. The
rows of the table lie in *buckets* by the hash of their keys. A batch is looked up at once: each record finds its bucket
without a search, and keys are compared afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.join_steps import LEFT, JoinKind, TableJoinStep
from penstock.runtime.task.operators.base import Operator, OperatorContext
from penstock.runtime.task.operators.join_columns import Pairs, ResultMaker
from penstock.runtime.task.operators.join_runs import Int64s, one_batch, spread
from penstock.runtime.task.partitioning import key_groups, row_hashes
from penstock.runtime.task.slices import Steps, Work

RESULT_ROWS = 65_536
"""Results are handed on in batches of at most about this many rows."""
_SEED = 0x7461626C
_ROOM = 2
"""There are at least this many buckets for each row."""


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

    def load(self, context: OperatorContext) -> None:
        """Read the table."""
        step = self._step
        parts = [self._wanted(batch, context) for batch in step.table.batches()]
        self._buckets = Buckets(one_batch(parts, step.table.schema), step.table_keys)
        self._rows = self._buckets.rows.num_rows

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
        begins, counts = self._buckets.of(batch, self._step.keys)
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
                pairs = Pairs(part, of_part, self._buckets.rows, self._buckets.at(places))
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

    def metrics(self) -> dict[str, float]:
        """How many rows of the table this subtask keeps."""
        return {"table_rows": self._rows}


def _without_nulls(batch: pa.RecordBatch, keys: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Which rows have no null in their keys."""
    found = np.ones(batch.num_rows, np.bool_)
    for key in keys:
        column: Any = batch.column(key)
        if column.null_count:
            found &= column.is_valid().to_numpy(zero_copy_only=False)
    return found
