"""The first records of each key in an order, of all records so far: a running aggregate whose result is a list of
records, and whose changes are the changes of the records in the lists.

A list is not handed on as a whole: a record that comes into the list is an `insert`, and a record that leaves the list
is a `delete`. Where every record of a list has a place that tells the record apart, because there is a rank or because
a list has one record, a record that takes the place of another record is an update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import one_array
from penstock.api.aggregate_kinds.lists import flattened
from penstock.api.steps import TopStep
from penstock.api.table_of_changes import codes_of
from penstock.runtime.task.operators.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, Kinds, names_of
from penstock.runtime.task.operators.running import Merging, RunningOperator
from penstock.runtime.task.operators.running_table import equal

Numbers = npt.NDArray[np.int64]


class _Listed(NamedTuple):
    """The records of some lists."""

    records: Any
    """A struct for each record."""
    keys: Numbers
    """The number of the key of each record, in ascending order."""

    @property
    def places(self) -> Numbers:
        """The place of each record in its list, from 0."""
        return np.arange(self.keys.size) - np.searchsorted(self.keys, self.keys)

    def of_keys(self, wanted: npt.NDArray[np.bool_]) -> _Listed:
        """The records of some keys."""
        kept = wanted[self.keys]
        return self if kept.all() else _Listed(self.records.filter(pa.array(kept)), self.keys[kept])


class _Changes(NamedTuple):
    """Changes of records, in their order."""

    kinds: Kinds
    rows: Numbers
    """Which record: the records before come first, and then the records after."""


class TopMerging(Merging):
    """What a step computes of partials that are lists of records."""

    def __init__(self, step: TopStep) -> None:
        super().__init__(step)
        self._top = step
        self._has_places = step.rank is not None or step.most == 1

    def changes(
        self, merged: pa.Table, old: list[Any], there: npt.NDArray[np.bool_], gone: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch | None:
        """The changes of the records from the lists in `old` to the lists in `merged`; None if there is none."""
        after = self._listed(merged, np.arange(merged.num_rows)).of_keys(~gone)
        before = _Listed(after.records.slice(0, 0), after.keys[:0])
        if there.any():
            before = self._listed(pa.table(old, names=self._names), np.flatnonzero(there))
        changed = _changed_keys(before, after, merged.num_rows)
        if not changed.any():
            return None
        before, after = before.of_keys(changed), after.of_keys(changed)
        found = self._by_place(before, after) if self._has_places else _by_record(before, after)
        return self._batch(merged, before, after, found)

    def _listed(self, partials: pa.Table, keys: Numbers) -> _Listed:
        (lists,) = self.results(partials)
        return _Listed(*flattened(lists, keys))

    @property
    def _result_fields(self) -> list[Any]:
        aggregate, kind = self._kinds[0]
        return [pa.field(aggregate.name, kind.result_type(aggregate, self._top.input_schema))]

    def _by_place(self, before: _Listed, after: _Listed) -> _Changes:
        """A place of a key is a row of the table."""
        olds, news = (each.keys * self._top.most + each.places for each in (before, after))
        _, old_rows, new_rows = np.intersect1d(olds, news, assume_unique=True, return_indices=True)
        same = _equal_records(before.records, old_rows, after.records, new_rows)
        old_stays, new_stays = old_rows[same], new_rows[same]
        kinds_before = np.full(olds.size, DELETE)
        kinds_before[old_rows] = UPDATE_BEFORE
        kinds_after = np.full(news.size, INSERT)
        kinds_after[new_rows] = UPDATE_AFTER
        kept = np.ones(olds.size + news.size, np.bool_)
        kept[old_stays] = False
        kept[olds.size + new_stays] = False
        rows = np.flatnonzero(kept)
        # The sort is stable: at each place the record before comes first.
        order = np.argsort(np.concatenate([olds, news])[rows], kind="stable")
        return _Changes(np.concatenate([kinds_before, kinds_after])[rows][order].astype(np.int8), rows[order])

    def _batch(self, merged: pa.Table, before: _Listed, after: _Listed, found: _Changes) -> pa.RecordBatch | None:
        if not found.rows.size:
            return None
        step, picked = self._top, pa.array(found.rows)
        records: Any = pa.concat_arrays([before.records, after.records]).take(picked)
        keys: Any = pa.array(np.concatenate([before.keys, after.keys])[found.rows])
        columns = {name: one_array(merged.column(name)).take(keys) for name in step.keys}
        columns.update(zip((field.name for field in records.type), records.flatten(), strict=True))
        if step.rank is not None:
            places = np.concatenate([before.places, after.places])[found.rows]
            columns[step.rank] = pa.array(places + 1, pa.int32())
        columns[step.schema.names[-1]] = names_of(found.kinds)
        return pa.RecordBatch.from_arrays([columns[name] for name in step.schema.names], schema=step.schema)


class TopOperator(RunningOperator):
    """Merges lists of the first records, and hands on what changes in the lists."""

    def __init__(self, step: TopStep) -> None:
        super().__init__(step, TopMerging(step))


def _changed_keys(before: _Listed, after: _Listed, count: int) -> npt.NDArray[np.bool_]:
    """Whose lists are not the same as before."""
    old, new = (np.bincount(each.keys, minlength=count) for each in (before, after))
    changed: npt.NDArray[np.bool_] = old != new
    candidates = ~changed & (old > 0)
    if candidates.any():
        left, right = (np.flatnonzero(candidates[each.keys]) for each in (before, after))
        same = _equal_records(before.records, left, after.records, right)
        changed[before.keys[left[~same]]] = True
    return changed


def _by_record(before: _Listed, after: _Listed) -> _Changes:
    """Records are told apart by what is in them; of equal records it matters how many there are."""
    records = pa.concat_arrays([before.records, after.records])
    keys = np.concatenate([before.keys, after.keys])
    fields = [f"c{number}" for number in range(records.type.num_fields)]
    table = pa.table([pa.array(keys), *records.flatten()], names=["key", *fields])
    codes, size = codes_of(table)[0], len(before.keys)
    counts = [np.bincount(part, minlength=codes.size) for part in (codes[:size], codes[size:])]
    goes = _occurrences(codes[:size]) >= counts[1][codes[:size]]
    comes = _occurrences(codes[size:]) >= counts[0][codes[size:]]
    rows = np.flatnonzero(np.concatenate([goes, comes]))
    # The sort is stable: of each key records go before records come, so that there are never too many.
    rows = rows[np.argsort(keys[rows], kind="stable")]
    return _Changes(np.where(rows < size, DELETE, INSERT).astype(np.int8), rows)


def _occurrences(codes: Numbers) -> Numbers:
    """For each entry how many equal entries come before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    found = np.empty(codes.size, np.int64)
    found[order] = np.arange(codes.size) - np.searchsorted(ordered, ordered)
    return found


def _equal_records(left: Any, left_rows: Numbers, right: Any, right_rows: Numbers) -> npt.NDArray[np.bool_]:
    same = np.ones(left_rows.size, np.bool_)
    if same.size:
        of_left, of_right = left.take(pa.array(left_rows)), right.take(pa.array(right_rows))
        for one, other in zip(of_left.flatten(), of_right.flatten(), strict=True):
            same &= equal(one, other)
    return same
