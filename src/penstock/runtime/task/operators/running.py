"""Running aggregates: partial aggregates per batch before the exchange by key, and the aggregates of all records so far
behind the exchange. The results are changes of rows.

The first half holds partials back for some milliseconds, to merge them: fewer partials cross the exchange, and fewer
changes come out. It hands them on before every barrier, and has no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import AggregateKind, Calculation, normal_keys, one_array
from penstock.api.aggregate_kinds.description import Aggregate
from penstock.api.aggregate_kinds.retracting import SIGN, RetractingKind
from penstock.api.changelog import ROW_KIND
from penstock.api.running_schema import RECORDS, running_kinds
from penstock.api.steps import RunningCombineStep, RunningStep
from penstock.api.table_of_changes import signs
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork
from penstock.runtime.task.operators.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, names_of
from penstock.runtime.task.operators.merging import merged_rows
from penstock.runtime.task.operators.record_values import adds_by_row, record_values
from penstock.runtime.task.operators.running_store import BackendStore, MemoryStore, RunningStore
from penstock.runtime.task.operators.running_table import equal
from penstock.runtime.task.operators.slow_merging import merges_by_row
from penstock.runtime.task.operators.user_code import expression_error
from penstock.runtime.task.slices import Slices, Steps, Work, portions

_HELD_ROWS = 32_768
"""Partials are held back to be merged while they have fewer rows than this."""
_HELD_MS = 20
"""Partials are held back no longer than this."""

_ROWS_AT_ONCE = 8_192
"""At most so many keys are merged before other work of the task is looked for."""
_BYTES_AT_ONCE = 1024 * 1024
"""Partials are made one row per key in pieces of about this size: a partial may be a list of many records."""


class RunningCombineOperator(Operator):
    """Makes partial aggregates per key of the records of some milliseconds."""

    def __init__(self, step: RunningCombineStep) -> None:
        self._step = step
        self._kinds = running_kinds(step.aggregates, step.input_schema, retracts=step.retracts)
        self._calculations = _of_records(self._kinds, retracts=step.retracts)
        self._merging = _of_partials(self._kinds, retracts=step.retracts)
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._slow = Slices(most=_HELD_ROWS) if merges_by_row(step.aggregates) else None
        """How many partials are merged in a few milliseconds; None if merges call no aggregate of the user's."""
        self._until: Instant | None = None

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called with every record."""
        return adds_by_row(self._step.aggregates)

    def process(self, batch: pa.RecordBatch) -> None:
        """Make one row per key of the batch."""
        if batch.num_rows == 0:
            return
        step = self._step
        columns: dict[str, Any] = {key: normal_keys(batch.column(key)) for key in step.keys}
        try:
            columns.update(record_values(batch, step.aggregates))
        except Exception as error:
            raise expression_error(error, self.context) from error
        if step.retracts:
            columns.update(self._signed(columns, signs(batch.column(ROW_KIND))))
        elif not columns:
            # A count of all records reads no column.
            columns[SIGN] = pa.array(np.ones(batch.num_rows, np.int64))
        self._hold(_grouped(pa.table(columns), step.keys, self._calculations, step.schema))

    def _signed(self, columns: dict[str, Any], added: npt.NDArray[np.int64]) -> dict[str, Any]:
        values = pa.table(columns) if columns else pa.table({SIGN: added})
        found: dict[str, Any] = {SIGN: pa.array(added)}
        for aggregate, kind in self._kinds:
            if not isinstance(kind, RetractingKind):
                raise InvariantError(f"aggregate {aggregate.name!r} of a changelog cannot take a record back")
            found.update(kind.signed_columns(aggregate, values, added))
        return found

    def _hold(self, partials: pa.Table) -> None:
        most = _HELD_ROWS if self._slow is None else self._slow.rows
        if self._slow is not None and self._held_rows + partials.num_rows > most:
            self.before_barrier()
        self._held.append(partials)
        self._held_rows += partials.num_rows
        if self._held_rows >= most:
            self.before_barrier()
        elif self._until is None:
            self._until = Instant(self.context.now() + _HELD_MS)
            self.context.wake_at(self._until)

    def tick(self, now: Instant) -> Instant | None:
        """Hand on the partials that have been held for long enough."""
        if self._until is not None and now >= self._until:
            self.before_barrier()
        return self._until

    def before_barrier(self) -> None:
        """Hand on the partials that are held."""
        held, self._held, self._held_rows, self._until = self._held, [], 0, None
        if not held:
            return
        partials = held[0]
        if len(held) > 1:
            partials, since_ms = pa.concat_tables(held), self.slice.now_ms()
            rows, partials = partials.num_rows, _grouped(partials, self._step.keys, self._merging, self._step.schema)
            if self._slow is not None:
                self._slow.took(rows, self.slice.now_ms() - since_ms)
        for part in partials.combine_chunks().to_batches():
            self.output.emit(part)

    def finish(self) -> None:
        """All data has been seen: hand on the partials that are held."""
        self.before_barrier()

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand the watermark on. Partials have no time, and wait on."""
        self.output.watermark(time_us, idle=idle)


class Merging:
    """What a running aggregate computes of partials."""

    def __init__(self, step: RunningStep) -> None:
        self._step = step
        self._kinds = running_kinds(step.aggregates, step.input_schema, retracts=step.retracts)
        self._calculations = _of_partials(self._kinds, retracts=step.retracts)
        self._names = step.partial.names[len(step.keys) :]

    def distinct(self, partials: pa.Table) -> pa.Table:
        """One row per key."""
        return _grouped(partials, self._step.keys, self._calculations, self._step.partial)

    def merged(self, old: list[Any], new: pa.Table, there: npt.NDArray[np.bool_]) -> pa.Table:
        """The partials of all records so far. `old` are the columns of the partials so far, for the keys that are
        `there`."""
        if not there.any():
            return new
        picked: Any = np.flatnonzero(there)
        before = pa.table(old, names=self._names)
        some = new if len(picked) == new.num_rows else new.take(picked)
        columns = merged_rows(before, some, self._calculations)
        if len(picked) == new.num_rows:
            return self._as_partial([*new.columns[: len(self._step.keys)], *(columns[name] for name in self._names)])
        order = np.arange(new.num_rows)
        order[picked] = np.arange(len(picked)) + new.num_rows
        both = [
            pa.concat_arrays([one_array(new.column(name)), _of_type(columns[name], new.column(name).type)])
            for name in self._names
        ]
        keys = new.columns[: len(self._step.keys)]
        return self._as_partial([*keys, *(column.take(pa.array(order)) for column in both)])

    def _as_partial(self, columns: list[Any]) -> pa.Table:
        fields = self._step.partial
        typed = [_of_type(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.table(typed, schema=fields)

    def results(self, partials: pa.Table) -> list[Any]:
        """The result columns behind the keys."""
        return [
            _of_type(kind.result(aggregate, partials), field.type)
            for (aggregate, kind), field in zip(self._kinds, self._result_fields, strict=True)
        ]

    @property
    def _result_fields(self) -> list[Any]:
        return list(self._step.schema)[len(self._step.keys) : -1]

    def changes(
        self, merged: pa.Table, old: list[Any], there: npt.NDArray[np.bool_], gone: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch | None:
        """The changes of the rows from `old` to `merged`; None if there is none."""
        rows = np.arange(merged.num_rows)
        position = np.cumsum(there) - 1
        after = self.results(merged)
        before: list[Any] = []
        changed = ~(there & ~gone)
        if there.any():
            before = self.results(pa.table(old, names=self._names))
            same = np.ones(len(old[0]), np.bool_)
            kept = pa.array(np.flatnonzero(there))
            for one, other in zip(before, after, strict=True):
                same &= equal(one, other.take(kept))
            changed[there] |= ~same
        changed &= there | ~gone
        # For each row the change that takes the row away, and the change that adds a row.
        takes, adds = changed & there, changed & ~gone
        kinds = np.stack([np.where(gone, DELETE, UPDATE_BEFORE), np.where(there, UPDATE_AFTER, INSERT)], axis=1)
        wanted = np.stack([takes, adds], axis=1).reshape(-1)
        if not wanted.any():
            return None
        # Results before are behind results after.
        sources = np.stack([position + merged.num_rows, rows], axis=1).reshape(-1)[wanted]
        keys = pa.array(np.repeat(rows, 2)[wanted])
        picked: Any = pa.array(sources)
        columns = [one_array(column).take(keys) for column in merged.columns[: len(self._step.keys)]]
        for number, column in enumerate(after):
            both = pa.concat_arrays([column, before[number]]) if before else column
            columns.append(both.take(picked))
        columns.append(names_of(kinds.reshape(-1)[wanted].astype(np.int8)))
        return pa.RecordBatch.from_arrays(columns, schema=self._step.schema)


class RunningOperator(Operator):
    """Merges partials into the aggregates of all records so far, and hands on what changes in the results."""

    def __init__(self, step: RunningStep, merging: Merging | None = None) -> None:
        self._step = step
        self._merging = Merging(step) if merging is None else merging
        self._store: RunningStore | None = None
        self._portions = portions(_ROWS_AT_ONCE)

    @property
    def is_row_wise(self) -> bool:
        """Whether an aggregate of the user's is called for every partial that comes."""
        return merges_by_row(self._step.aggregates)

    def load(self, context: OperatorContext) -> None:
        """Restore the rows of this subtask's key groups."""
        in_backend = context.make_backend is not None or context.state.backend == "rocksdb"
        is_large = in_backend and self._step.keys
        self._store = BackendStore(self._step, context) if is_large else MemoryStore(self._step, context)
        if not context.fresh:
            self._store.load()

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take partials in, and hand on the changes."""
        return Work.begin(self._take_in(batch)) if batch.num_rows else None

    def _take_in(self, batch: pa.RecordBatch) -> Steps:
        store, begin = self._opened(), 0
        piece_rows = max(1, batch.num_rows * _BYTES_AT_ONCE // max(batch.nbytes, 1))
        while begin < batch.num_rows:
            piece = batch.slice(begin, piece_rows)
            begin += piece.num_rows
            partials, first = self._merging.distinct(pa.Table.from_batches([piece])), 0
            while first < partials.num_rows:
                since_ms, portion = self.slice.now_ms(), partials.slice(first, self._portions.rows)
                self._change(store, portion.combine_chunks())
                store.maintain()
                first += portion.num_rows
                self._portions.took(portion.num_rows, self.slice.now_ms() - since_ms)
                if self.slice.spend(portion.num_rows) and (first < partials.num_rows or begin < batch.num_rows):
                    # The partials that are left are in no state yet.
                    yield False

    def _change(self, store: RunningStore, partials: pa.Table) -> None:
        keys = [one_array(column) for column in partials.columns[: len(self._step.keys)]]
        there, old = store.read(keys)
        merged = self._merging.merged(old, partials, there)
        gone = np.zeros(merged.num_rows, np.bool_)
        if self._step.retracts:
            gone = merged.column(RECORDS).to_numpy() == 0
        changes = self._merging.changes(merged, old, there, gone)
        store.write(merged, gone)
        if changes is not None:
            self.output.emit(changes)

    def tick(self, now: Instant) -> Instant | None:
        """Forget what has expired, a little at a time."""
        if self._step.ttl is None:
            return None
        self._opened().maintain()
        return Instant(now + max(self._step.ttl.duration_ms // 8, 100))

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the rows by reference."""
        return self._opened().snapshot(checkpoint, options)

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later snapshots may refer to the files of the checkpoint."""
        if self._store is not None:
            self._store.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No snapshot may refer to the files of the checkpoint."""
        if self._store is not None:
            self._store.aborted(checkpoint)

    def close(self) -> None:
        """Free the rows."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> RunningStore:
        if self._store is None:
            raise InvariantError("a running aggregate is used before it is loaded or after it is closed")
        return self._store


def _of_type(column: Any, wanted: pa.DataType) -> Any:
    array = one_array(column)
    return array if array.type == wanted else array.cast(wanted)


def _of_records(kinds: Sequence[tuple[Aggregate, AggregateKind]], *, retracts: bool) -> list[Calculation]:
    found = [calculation for aggregate, kind in kinds for calculation in kind.of_records(aggregate)]
    return [*found, Calculation(SIGN, "sum", RECORDS)] if retracts else found


def _of_partials(kinds: Sequence[tuple[Aggregate, AggregateKind]], *, retracts: bool) -> list[Calculation]:
    found = [calculation for aggregate, kind in kinds for calculation in kind.of_partials(aggregate)]
    return [*found, Calculation(RECORDS, "sum", RECORDS)] if retracts else found


def _grouped(table: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], schema: pa.Schema) -> pa.Table:
    grouped = group(table, keys, calculations, window=None).select(schema.names).combine_chunks()
    return grouped if grouped.schema.equals(schema) else grouped.cast(schema)
