"""Merges partial aggregates row by row: row n of one table with row n of another table.

A running aggregate knows which partials belong together, so nothing is grouped by key. What Arrow computes element by
element is computed so; any other calculation gets groups of two rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.base import Calculation, Groups, one_array
from penstock.core.errors import UsageError


def merged_rows(old: pa.Table, new: pa.Table, calculations: Sequence[Calculation]) -> dict[str, Any]:
    """The merged columns, by name. Rows of `old` came before rows of `new`. Raises `UsageError` if a sum does not fit
    into 64 bits."""
    both: pa.Table | None = None
    groups = Groups(np.arange(0), np.arange(0))
    found: dict[str, Any] = {}
    for calculation in calculations:
        function = calculation.function
        if isinstance(function, str):
            name = str(calculation.column)
            pair = one_array(old.column(name)), one_array(new.column(name))
            found[calculation.name] = _by_function(function, *pair, name=calculation.name)
            continue
        if both is None:
            both = pa.concat_tables([old, new.select(old.schema.names)])
            rows = np.arange(old.num_rows)
            order = np.stack([rows, rows + old.num_rows], axis=1).reshape(-1)
            groups = Groups(order, np.arange(0, 2 * old.num_rows, 2))
        found[calculation.name] = function(both, groups)
    return found


def _by_function(function: str, old: Any, new: Any, *, name: str) -> Any:
    if function == "sum":
        return _sum(old, new, name)
    if function in ("min", "max"):
        return _extreme(function, old, new)
    known = pc.and_(old.is_valid(), new.is_valid())
    both = (pc.or_ if function == "any" else pc.and_)(old, new)
    return pc.if_else(known, both, pc.coalesce(old, new))


def _extreme(function: str, old: Any, new: Any) -> Any:
    if not pt.is_floating(old.type):
        known = pc.and_(old.is_valid(), new.is_valid())
        chosen = pc.if_else((pc.less if function == "min" else pc.greater)(new, old), new, old)
        return pc.if_else(known, chosen, pc.coalesce(old, new))
    if function == "min":
        # NaN is the greatest value, and Arrow prefers a number to NaN.
        return pc.min_element_wise(old, new)
    no = pa.scalar(False)  # noqa: FBT003  # a value
    nans = pc.or_(pc.coalesce(pc.is_nan(old), no), pc.coalesce(pc.is_nan(new), no))
    return pc.if_else(nans, pa.scalar(float("nan"), old.type), pc.max_element_wise(old, new))


def _sum(old: Any, new: Any, name: str) -> Any:
    if old.null_count or new.null_count:
        known = pc.and_(old.is_valid(), new.is_valid())
        zero = pa.scalar(0, old.type)
        both = _added(pc.if_else(known, old, zero), pc.if_else(known, new, zero), name)
        return pc.if_else(known, both, pc.coalesce(old, new))
    return _added(old, new, name)


def _added(old: Any, new: Any, name: str) -> Any:
    try:
        return pc.add_checked(old, new).cast(old.type)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the sum {name!r} of a key does not fit into its type, {old.type}: {error}",
            hint="cast the column to double before the aggregate",
        ) from error
