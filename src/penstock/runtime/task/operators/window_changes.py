"""How results of windows change when partials are added, for whole tables at once.

All functions here are pure. Changes are partials with the kind of the change in the column `row_kind`: a partial of
`update_before` or `delete` gives the result as it was, a partial of `insert` or `update_after` gives the result as it
is. The changes of one window follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.aggregate_kinds.base import Calculation
from penstock.api.changelog import ROW_KIND
from penstock.api.pane_windows import PaneWindow
from penstock.api.window_schema import WINDOW_END, WINDOW_START, window_columns
from penstock.api.windows import WindowType
from penstock.runtime.task.operators.aggregation import group
from penstock.runtime.task.operators.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, names_of
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.sessions import codes_of, find_sessions

Times = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]

_NUMBER = "\0number"
"""The column with the number of each row's group, while rows are grouped."""


class Added(NamedTuple):
    """What becomes of rows when others are added."""

    gone: Bits
    """Which of the rows that were there are replaced."""
    rows: pa.Table
    """The rows that take their place, and new rows."""


def repeated(rows: pa.Table, window: PaneWindow, first: Times, last: Times) -> pa.Table:
    """Each pane once for every window with an end from `first` to `last` of the pane: with the end of the window in
    place of the start of the pane."""
    # A last end may lie so far before the first end that their difference does not fit into 64 bits.
    counts = (np.maximum(last, first - window.spacing_us) - first) // window.spacing_us + 1
    found = np.flatnonzero(counts)
    if found.size == counts.size and (counts == 1).all() and (last == last[:1]).all():
        place, time_type = rows.schema.get_field_index(WINDOW_START), rows.schema.field(WINDOW_START).type
        starts = int64_values(rows.column(WINDOW_START))
        if (starts[1:] >= starts[:-1]).all():
            return rows.set_column(place, WINDOW_END, pa.array(first).view(time_type))
    # Lists have their values in the order of the panes.
    found = found[np.argsort(int64_values(rows.column(WINDOW_START))[found], kind="stable")]
    first, counts = first[found], counts[found]
    taken = np.repeat(found, counts)
    # The number of each repetition among the repetitions of its row.
    numbers = np.arange(taken.size) - np.repeat(np.cumsum(counts) - counts, counts)
    ends = np.repeat(first, counts) + numbers * window.spacing_us
    table, time_type = rows.take(taken), rows.schema.field(WINDOW_START).type
    place = table.schema.get_field_index(WINDOW_START)
    filled: Any = pa.array(ends).view(time_type)
    return table.set_column(place, WINDOW_END, filled)


def add_panes(
    there: pa.Table, added: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, window: PaneWindow
) -> Added:
    """The panes when panes are added. `there` has one row per key and pane, `added` any number of rows."""
    columns = [*keys, WINDOW_START]
    codes = codes_of(pa.concat_tables([there, added]), columns)
    gone = np.isin(codes[: there.num_rows], codes[there.num_rows :])
    parts = pa.concat_tables([there.filter(pa.array(gone)), added])
    merged = group(parts, columns, calculations, window=window.panes)
    return Added(gone, merged.select(there.schema.names).cast(there.schema))


def changes_of_panes(
    before: pa.Table, added: pa.Table, keys: Sequence[str], calculations: Sequence[Calculation], *, window: PaneWindow
) -> pa.Table:
    """The changes of windows when panes are added: `before` and `added` have a row for every pane and window, as
    `repeated` makes them. Every window that has an added pane changes."""
    rows = pa.concat_tables([before, added.select(before.schema.names)])
    codes = codes_of(rows, [*keys, WINDOW_END])
    changed, firsts = np.unique(codes[before.num_rows :], return_index=True)
    numbers = np.searchsorted(changed, codes)
    held = np.flatnonzero(changed[np.minimum(numbers, changed.size - 1)] == codes)
    was = held[held < before.num_rows]
    # The groups of each window: what it was, if it was there, and what it is.
    groups = np.concatenate([2 * numbers[was], 2 * numbers[held] + 1])
    names = (*keys, WINDOW_END)
    # A calculation may read columns that it does not name.
    others: dict[str, Any] = {name: rows.column(name) for name in rows.schema.names if name not in names}
    values = pa.table(others).take(np.concatenate([was, held]))
    made = group(values.append_column(_NUMBER, pa.array(groups)), [_NUMBER], calculations, window=window)
    numbered = int64_values(made.column(_NUMBER))
    order = None if (numbered[1:] > numbered[:-1]).all() else np.argsort(numbered)
    if order is not None:
        made, numbered = made.take(order), numbered[order]
    is_new = numbered % 2 == 1
    follows = np.zeros(numbered.size, np.bool_)
    follows[1:] = numbered[1:] == numbered[:-1] + is_new[1:]
    kinds = np.where(is_new, np.where(follows, UPDATE_AFTER, INSERT), UPDATE_BEFORE).astype(np.int8)
    places: Any = before.num_rows + firsts[numbered // 2]
    columns: dict[str, Any] = {name: rows.column(name).take(places) for name in names}
    time_type = rows.schema.field(WINDOW_END).type
    columns[WINDOW_START] = pa.array(window.starts_of(int64_values(columns[WINDOW_END]))).view(time_type)
    columns.update({c.name: made.column(c.name) for c in calculations})
    selected = [*keys, *window_columns(window), *(c.name for c in calculations)]
    return pa.table({name: columns[name] for name in selected}).append_column(ROW_KIND, names_of(kinds))


def changes_of_sessions(
    there: pa.Table,
    added: pa.Table,
    keys: Sequence[str],
    calculations: Sequence[Calculation],
    *,
    window: WindowType,
    shown: Times | None,
) -> tuple[Added, pa.Table]:
    """The sessions when sessions are added, and how the results change. `there` are sessions of the same keys that do
    not touch each other. A session is shown if it ends at `shown` of its row at the latest; None: every session is
    shown. A session that grows or merges is deleted, and another session is inserted when that session is shown."""
    rows = pa.concat_tables([there, added.select(there.schema.names)])
    found = find_sessions(rows, keys)
    changed = np.zeros(found.starts.size, np.bool_)
    changed[found.of_row[there.num_rows :]] = True
    held = changed[found.of_row]
    gone = held[: there.num_rows]
    numbers = (np.cumsum(changed) - 1)[found.of_row]
    places = np.flatnonzero(held)
    time_type = there.schema.field(WINDOW_START).type
    columns: dict[str, Any] = {key: rows.column(key).take(found.rows[changed]) for key in keys}
    for name, times in ((WINDOW_START, found.starts), (WINDOW_END, found.ends)):
        columns[name] = pa.array(times[changed]).view(time_type)
    names = (*keys, WINDOW_START, WINDOW_END)
    values = pa.table({name: rows.column(name).take(places) for name in rows.schema.names if name not in names})
    made = group(
        values.append_column(_NUMBER, pa.array(numbers[places])), [_NUMBER], calculations, window=window
    ).sort_by(_NUMBER)
    columns.update({c.name: made.column(c.name) for c in calculations})
    merged = pa.table(columns).select(there.schema.names).cast(there.schema)
    old, new = there.filter(pa.array(gone)), merged
    of_old = numbers[: there.num_rows][gone]
    starts, ends = int64_values(old.column(WINDOW_START)), int64_values(old.column(WINDOW_END))
    stays = (starts == found.starts[changed][of_old]) & (ends == found.ends[changed][of_old])
    is_update = np.zeros(new.num_rows, np.bool_)
    is_update[of_old[stays]] = True
    kinds = np.concatenate([np.where(stays, UPDATE_BEFORE, DELETE), np.where(is_update, UPDATE_AFTER, INSERT)])
    both, of_both = pa.concat_tables([old, new]), np.concatenate([of_old, np.arange(new.num_rows)])
    if shown is not None:
        limits = np.concatenate([shown[: there.num_rows][gone], shown[found.rows[changed]]])
        is_shown = int64_values(both.column(WINDOW_END)) <= limits
        both, of_both, kinds = both.filter(pa.array(is_shown)), of_both[is_shown], kinds[is_shown]
    return Added(gone, merged), _in_order(both, kinds.astype(np.int8), of_both)


def inserts(rows: pa.Table) -> pa.Table:
    """Results that are new."""
    return rows.append_column(ROW_KIND, names_of(np.full(rows.num_rows, INSERT, np.int8)))


def _in_order(rows: pa.Table, kinds: npt.NDArray[np.int8], numbers: npt.NDArray[np.int64]) -> pa.Table:
    """Changes, the changes of each number together: what was before comes first."""
    order = np.argsort(numbers, kind="stable")
    return rows.append_column(ROW_KIND, names_of(kinds)).take(order)
