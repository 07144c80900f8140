"""One record of all records that have the same key and are close to each other in event time.

The first record of a key that comes begins a *group*. All records of the key belong to the group whose times are less
than `within` after the time of the first record, and so do records that are earlier. A record that is not so close
begins the next group of its key. Only the newest group of a key is state. When the watermark has passed the last time
of a group, every record that could still belong to the group is late, and the group is forgotten. So what is forgotten
when changes no result.

Either the first record of a group is handed on, at once; or the last record of a group in event time is kept up to date
as a row of a changelog.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from penstock.api.aggregate_kinds.base import normal_keys, one_array
from penstock.api.aggregate_kinds.top_rows import OrderColumn, in_order
from penstock.api.join_steps import moved
from penstock.api.steps import LATE, DeduplicateStep
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.changes import INSERT, UPDATE_AFTER, UPDATE_BEFORE, names_of
from penstock.runtime.task.operators.grouped import key_codes
from penstock.runtime.task.operators.passed_times import PassedTimes
from penstock.runtime.task.operators.running_store import BackendStore, MemoryStore, RunningStore
from penstock.runtime.task.slices import Steps, Work, portions

Bits = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_LAST_TIME = 2**63 - 1
_ROWS_AT_ONCE = 8_192
"""At most so many records are looked up before other work of the task is looked for."""
_TURNS = 16
"""So many turns find the groups of all keys together. The records that are left are of keys with many groups."""


class DeduplicateOperator(Operator):
    """Hands on the first record of each group."""

    def __init__(self, step: DeduplicateStep) -> None:
        self._step = step
        self._passed = PassedTimes(step.late, step.keys)
        self._store: RunningStore | None = None
        self._portions = portions(_ROWS_AT_ONCE)
        self._late_dropped = 0
        self._timeless_dropped = 0

    def load(self, context: OperatorContext) -> None:
        """Restore the groups of this subtask's keys, and how far event time had come."""
        in_backend = context.make_backend is not None or context.state.backend == "rocksdb"
        make = BackendStore if in_backend else MemoryStore
        self._store = make(self._step, context, lambda: self._passed.least // 1_000)
        if not context.fresh:
            self._passed.restore(context.restored, context)
            self._store.load()

    # --- records ---------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Look the records up."""
        batch = self._on_time(batch)
        return Work.begin(self._take_in(batch)) if batch.num_rows else None

    def _on_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records that have a time, and are not late."""
        times: Any = batch.column(self._step.late.time_column)
        if times.null_count:
            self._timeless_dropped += times.null_count
            batch = batch.filter(times.is_valid())
        late = self._passed.late(batch, self.context.max_parallelism)
        if late is None:
            return batch
        if LATE in self.sides:
            self.sides[LATE].emit(batch.filter(pa.array(late)))
        else:
            self._late_dropped += int(late.sum())
        return batch.filter(pa.array(~late))

    def _take_in(self, batch: pa.RecordBatch) -> Steps:
        store, first = self._opened(), 0
        while first < batch.num_rows:
            since_ms, portion = self.slice.now_ms(), batch.slice(first, self._portions.rows)
            self._look_up(store, portion)
            store.maintain()
            first += portion.num_rows
            self._portions.took(portion.num_rows, self.slice.now_ms() - since_ms)
            if self.slice.spend(portion.num_rows) and first < batch.num_rows:
                # The records that are left are in no state yet.
                yield False

    def _look_up(self, store: RunningStore, batch: pa.RecordBatch) -> None:
        step = self._step
        given = pa.RecordBatch.from_arrays([normal_keys(batch.column(key)) for key in step.keys], list(step.keys))
        codes = key_codes(given)
        firsts = _first_places(codes, int(codes.max()) + 1)
        places: Any = pa.array(firsts)
        keys = given.take(places)
        there, kept = store.read([one_array(column) for column in keys.columns])
        groups = _Groups(codes, self._passed.times(batch), there, kept[0].to_numpy(), step.within_us)
        self._hand_on(batch, groups, kept[1:])
        changed, state = self._changed(batch, groups)
        if changed.any():
            since = groups.begun[changed]
            columns = [*(column.filter(pa.array(changed)) for column in keys.columns), pa.array(since), *state]
            # A part of a millisecond makes a row live longer, not shorter.
            store.write_some(pa.table(columns, schema=step.partial), changed, -(-since // 1_000))

    def _hand_on(self, batch: pa.RecordBatch, groups: _Groups, kept: list[Any]) -> None:  # noqa: ARG002
        if groups.begins.any():
            self.output.emit(batch if groups.begins.all() else batch.filter(pa.array(groups.begins)))

    def _changed(self, batch: pa.RecordBatch, groups: _Groups) -> tuple[Bits, list[Any]]:  # noqa: ARG002
        """Which of the keys have other state than before, and the columns of this state behind the time."""
        return groups.is_new, []

    # --- time ------------------------------------------------------------------------------

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Forget some of the groups that are over, and hand the watermark on."""
        self._passed.advance(time_us)
        self._opened().maintain()
        return super().watermark(time_us, idle=idle)

    # --- checkpoints -----------------------------------------------------------------------

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:
        """Freeze the groups by reference."""
        work, passed = self._opened().snapshot(checkpoint, options), self._passed.saved(self.context.key_groups)

        def write(writer: StateWriter) -> OperatorState:
            return structs.replace(work(writer), union_lists=passed)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """Later snapshots may refer to the files of the checkpoint."""
        if self._store is not None:
            self._store.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """No snapshot may refer to the files of the checkpoint."""
        if self._store is not None:
            self._store.aborted(checkpoint)

    def metrics(self) -> dict[str, float]:
        """How many records were late, and how many had no time."""
        return {"late_dropped": self._late_dropped, "timeless_dropped": self._timeless_dropped}

    def close(self) -> None:
        """Free the groups."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> RunningStore:
        if self._store is None:
            raise InvariantError("a deduplication is used before it is loaded or after it is closed")
        return self._store


class LastRecordOperator(DeduplicateOperator):
    """Keeps the last record of each group up to date, as a row of a changelog. The last record of the newest group of a
    key is state."""

    def __init__(self, step: DeduplicateStep) -> None:
        super().__init__(step)
        self._order = (OrderColumn(step.late.time_column, descending=True),)
        self._last_rows: Numbers = np.empty(0, np.int64)
        """For each key of the records that are looked up, the record that is the last of the key's newest group; -1 if
        that is the record in the state."""

    def _hand_on(self, batch: pa.RecordBatch, groups: _Groups, kept: list[Any]) -> None:
        step = self._step
        # Records of the state come first, and then the records of the batch.
        olds = np.flatnonzero(groups.there)
        old_rows = dict(zip(step.partial.names[len(step.keys) + 1 :], kept, strict=True))
        of_old: Any = pa.array(_first_places(groups.codes, groups.there.size)[olds])
        for key in step.keys:
            # A record of the state has the key of the records that are compared with the record.
            old_rows[key] = batch.column(key).take(of_old)
        names = step.late.schema.names
        columns = [pa.concat_arrays([one_array(old_rows[name]), batch.column(name)]) for name in names]
        records = pa.StructArray.from_arrays(columns, fields=list(step.late.schema))
        numbers = np.concatenate([groups.numbers_of_olds, groups.numbers])
        by_group = np.argsort(numbers, kind="stable")
        picked: Any = pa.array(by_group)
        order = by_group[in_order(records.take(picked), numbers[by_group], self._order)]
        lasts = order[np.flatnonzero(np.diff(numbers[order], prepend=-1))]
        self._emit(records, lasts, numbers, olds.size)
        newest = np.full(groups.there.size, -1)
        newest[np.concatenate([olds, groups.codes])[lasts]] = lasts - olds.size
        self._last_rows = np.maximum(newest, -1)

    def _emit(self, records: Any, lasts: Numbers, numbers: Numbers, olds: int) -> None:
        """Hand on the changes: `lasts` has the last record of each group, group by group, and the first `olds` records
        are the last records so far."""
        old_of_group = dict(zip(numbers[:olds].tolist(), range(olds), strict=True))
        before = np.array([old_of_group.get(number, -1) for number in numbers[lasts].tolist()], np.int64)
        changed = before != lasts
        before, after = before[changed], lasts[changed]
        if not after.size:
            return
        is_update = before >= 0
        kinds = np.stack([np.full(after.size, UPDATE_BEFORE), np.where(is_update, UPDATE_AFTER, INSERT)], axis=1)
        wanted = np.stack([is_update, np.ones(after.size, np.bool_)], axis=1).reshape(-1)
        rows = np.stack([before, after], axis=1).reshape(-1)[wanted]
        picked: Any = pa.array(rows)
        columns = records.take(picked).flatten()
        columns.append(names_of(kinds.reshape(-1)[wanted].astype(np.int8)))
        self.output.emit(pa.RecordBatch.from_arrays(columns, schema=self._step.schema))

    def _changed(self, batch: pa.RecordBatch, groups: _Groups) -> tuple[Bits, list[Any]]:  # noqa: ARG002
        changed = self._last_rows >= 0
        picked: Any = pa.array(self._last_rows[changed])
        names = self._step.partial.names[len(self._step.keys) + 1 :]
        return changed, [batch.column(name).take(picked) for name in names]


class _Groups:
    """To which group each record belongs."""

    def __init__(self, codes: Numbers, times: Numbers, there: Bits, since: Numbers, within_us: int) -> None:
        """`codes` has the number of the key of each record. `there` says which keys have a group, and `since` has the
        times at which these groups began."""
        self.codes = codes
        self.there = there
        self.begun = np.zeros(there.size, np.int64)
        """For each key the time at which its newest group began."""
        self.begun[there] = since
        self.is_new = np.zeros(there.size, np.bool_)
        """For which keys the newest group was begun by one of the records."""
        self.begins = np.zeros(codes.size, np.bool_)
        """Which records begin a group."""
        self._begin(times, within_us)

    def _begin(self, times: Numbers, within_us: int) -> None:
        """Each turn finds the next record of every key that begins a group. Records of most keys come in few groups, so
        that few turns are enough for most records. The other records are looked at one by one."""
        has_group, rows = self.there.copy(), np.arange(self.codes.size)
        for _ in range(_TURNS):
            if not rows.size:
                return
            keys = self.codes[rows]
            # A group whose end does not fit into 64 bits does not end.
            ends = self.begun <= _LAST_TIME - within_us
            is_behind = ends[keys] & (times[rows] >= moved(self.begun, within_us)[keys])
            beyond = ~has_group[keys] | is_behind
            rows, keys = rows[beyond], keys[beyond]
            first = np.full(has_group.size, -1)
            first[keys[::-1]] = rows[::-1]
            found = first[first >= 0]
            of_found = self.codes[found]
            self.begins[found] = has_group[of_found] = self.is_new[of_found] = True
            self.begun[of_found] = times[found]
            rows = rows[rows > first[keys]]
        # All keys that are left have a group, because every turn has begun one.
        begun, starts = self.begun.tolist(), list[int]()
        for row, key, time in zip(rows.tolist(), self.codes[rows].tolist(), times[rows].tolist(), strict=True):
            if time >= begun[key] + within_us:
                begun[key] = time
                starts.append(row)
        self.begun = np.array(begun, np.int64)
        self.begins[starts] = True
        self.is_new[self.codes[starts]] = True

    @property
    def numbers(self) -> Numbers:
        """The number of the group of each record. Groups are numbered key by key, from older to newer."""
        by_key = np.argsort(self.codes, kind="stable")
        # The group in the state is a group of its key whether a record belongs to the group or not.
        found = np.empty(self.codes.size, np.int64)
        found[by_key] = np.cumsum(self.begins[by_key])
        return found + np.cumsum(self.there)[self.codes]

    @property
    def numbers_of_olds(self) -> Numbers:
        """The number of each group that is in the state."""
        begun = np.bincount(self.codes[self.begins], minlength=self.there.size)
        before = np.cumsum(begun) - begun
        return (before + np.cumsum(self.there))[self.there]


def _first_places(codes: Numbers, count: int) -> Numbers:
    """For each number the place where it comes first. All numbers below `count` are there."""
    found = np.empty(count, np.int64)
    found[codes[::-1]] = np.arange(codes.size)[::-1]
    return found
