"""The table that a changelog has made so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.changelog import DELETE, INSERT, ROW_KIND, UPDATE_AFTER, UPDATE_BEFORE, Changelog, without_row_kind
from penstock.sql.python_values import shown_rows

_NUMBER = "\0number"


def table_of_changes(changes: pa.Table, changelog: Changelog) -> pa.Table:
    """The rows after all changes, which are in their order, without `row_kind`. The rows are in the order in which they
    were inserted first."""
    rows = changes.select(without_row_kind(changes.schema).names)
    if changelog.keys is None:
        return _remaining(rows, changes.column(ROW_KIND))
    numbered = changes.append_column(_NUMBER, pa.array(np.arange(changes.num_rows)))
    grouping = pa.TableGroupBy(numbered, list(changelog.keys), use_threads=False)
    newest: Any = grouping.aggregate([(_NUMBER, "max")]).column(f"{_NUMBER}_max").drop_null()
    kinds: Any = changes.column(ROW_KIND)
    gone: Any = pc.is_in(kinds.take(newest), pa.array([UPDATE_BEFORE, DELETE]))
    left: Any = newest.filter(pc.invert(gone))
    return rows.take(left)


def signs(kinds: Any) -> npt.NDArray[np.int64]:
    """What each change adds to the number of its rows: 1, or -1 if the change takes a row away."""
    adds = pc.is_in(kinds, pa.array([INSERT, UPDATE_AFTER]))
    return np.where(adds.to_numpy(zero_copy_only=False) if isinstance(adds, pa.Array) else adds.to_numpy(), 1, -1)


def _remaining(rows: pa.Table, kinds: Any) -> pa.Table:
    """The rows, each as often as it was inserted more often than it was taken away."""
    if rows.num_rows == 0:
        return rows
    codes, firsts = codes_of(rows)
    counts = np.zeros(len(firsts), np.int64)
    np.add.at(counts, codes, signs(kinds))
    left: Any = pa.array(np.repeat(firsts, np.maximum(counts, 0)))
    return rows.take(left)


def codes_of(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each row the number of the first of the rows that are equal to it, and the places of these first rows."""
    if any(pt.is_nested(field.type) for field in rows.schema):
        # Arrow does not group by nested columns.
        seen: dict[str, int] = {}
        codes = np.array([seen.setdefault(repr(row), len(seen)) for row in shown_rows(rows)], np.int64)
        return codes, np.unique(codes, return_index=True)[1]
    numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    grouped = pa.TableGroupBy(numbered, rows.schema.names, use_threads=False).aggregate([(_NUMBER, "list")])
    lists: Any = grouped.column(f"{_NUMBER}_list").combine_chunks()
    places = lists.flatten().to_numpy()
    lengths = pc.list_value_length(lists).to_numpy()
    codes = np.empty(rows.num_rows, np.int64)
    codes[places] = np.repeat(np.arange(len(lengths)), lengths)
    return codes, places[np.cumsum(lengths) - lengths]
