"""Functions that are called once per key and batch.

Rows are grouped by columns: before the calls only the key columns become Python values, one row per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.api.functions import keyed_states
from penstock.api.grouped import GroupedFunction
from penstock.api.steps import KeyedProcessStep
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.keyed import KeyedOperator
from penstock.runtime.task.operators.process import EMITTED_ROWS, Pieces
from penstock.runtime.task.operators.rows import add_more
from penstock.runtime.task.operators.user_code import guarded
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Work
from penstock.state.handles import keyed_table
from penstock.state.keys import key_values, keys_of


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """The rows of a batch, grouped by key: the rows of one key are next to each other, and the keys are in the order of
    their first rows."""

    rows: pa.RecordBatch
    firsts: pa.RecordBatch
    """The key columns, one row per key."""
    bounds: list[int]
    """Where the rows of each key begin, followed by where the rows of the last key end."""


def group_rows(batch: pa.RecordBatch, keys: Sequence[str]) -> Grouped:
    """Group the rows of a batch by key. The batch must not be empty. Rows of one key keep their order."""
    columns = batch.select(list(keys))
    codes = key_codes(columns)
    counts = np.bincount(codes)
    bounds = np.concatenate(([0], np.cumsum(counts)))
    if len(counts) == batch.num_rows:
        return Grouped(rows=batch, firsts=columns, bounds=bounds.tolist())
    order = np.argsort(codes, kind="stable")
    firsts = columns.take(order[bounds[:-1]])
    rows = batch if len(counts) == 1 else batch.take(order)
    return Grouped(rows=rows, firsts=firsts, bounds=bounds.tolist())


def key_codes(columns: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The number of the key of every row. Keys are numbered from 0, in the order of their first rows."""
    first, *rest = zip(columns.schema.names, columns.columns, strict=True)
    codes = _column_codes(*first)
    for name, column in rest:
        others = _column_codes(name, column)
        codes = codes * (int(others.max()) + 1) + others
        _, firsts, numbers = np.unique(codes, return_index=True, return_inverse=True)
        ranks = np.empty(len(firsts), np.int64)
        ranks[np.argsort(firsts, kind="stable")] = np.arange(len(firsts))
        codes = ranks[numbers]
    return codes


def _column_codes(name: str, column: Any) -> npt.NDArray[np.int64]:
    if pt.is_floating(column.type):
        # All NaNs are one key, and so are 0.0 and -0.0.
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(value, len(numbers)) for value in key_values(name, column)], np.int64)
    indices = column.dictionary_encode(null_encoding="encode").indices
    return indices.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


class GroupedOperator(KeyedOperator):
    """Runs a function that is called once per key and batch."""

    def __init__(self, step: KeyedProcessStep, function: GroupedFunction) -> None:
        super().__init__(step)
        self._grouped = function

    def load(self, context: OperatorContext) -> None:
        """Restore state and open the function. If there is nothing to restore, let the function make its initial
        state."""
        super().load(context)
        if context.fresh and not self._closed:
            guarded(lambda: self._take_initial(context), context)

    def _dropped_states(self) -> tuple[str, ...]:
        return self._grouped.dropped_states

    def _bind_keyed(self, context: OperatorContext) -> None:
        states = keyed_states(self._declared)
        self._bind({name: keyed_table(state, self._backend, context.now) for name, state in states.items()})

    def _take_initial(self, context: OperatorContext) -> None:
        first, last = context.key_groups
        for batch in self._grouped.initial_batches():
            groups = key_groups(batch, self._step.keys, context.max_parallelism)
            own = batch.filter(pa.array((groups >= first) & (groups <= last)))
            if own.num_rows:
                for _ in self._each_key(own, self._grouped.on_initial):
                    """`on_initial` makes state, and no rows."""

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Call the function for every key, with the rows and the state of the key."""
        batch = self._on_time(batch)
        admitted = self._grouped.admitted(batch, self._keyed_context.watermark)
        pieces = self._each_key(admitted, self._grouped.on_group) if admitted.num_rows else iter(())
        return self._begin(pieces, batch.num_rows)

    def _each_key(self, batch: pa.RecordBatch, call: Any) -> Pieces:
        grouped = group_rows(batch, self._step.keys)
        firsts, bounds = grouped.firsts, grouped.bounds
        keys = keys_of(dict(zip(firsts.schema.names, firsts.columns, strict=True)))
        groups = key_groups(firsts, self._step.keys, self.context.max_parallelism).tolist()
        rows = self._grouped.rows_of(grouped.rows)
        made: list[Any] = []
        context, set_key = self._keyed_context, self._backend.set_key
        try:
            for key, group, start, stop in zip(keys, groups, bounds[:-1], bounds[1:], strict=True):
                set_key(key, group)
                context.key = key
                result = call(rows[start:stop], context)
                if result is None:
                    continue
                rest = add_more(made, iter(result))
                if rest is not None or len(made) >= EMITTED_ROWS:
                    yield from self._many(made, rest, key, group)
        except Exception as error:
            raise self._user_error(error) from error
        finally:
            self._leave_key()
        yield made, None

    def _emit(self, rows: Sequence[Any]) -> None:
        for batch in self._grouped.batches_of(rows, self._wrong):
            if batch.num_rows:
                self.output.emit(batch)
