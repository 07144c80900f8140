"""The changes of rows, a batch at a time: their kinds as small numbers, and what becomes of an update that is cut in
two."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.changelog import ROW_KIND, ROW_KINDS

Kinds = npt.NDArray[np.int8]
"""The kinds of changes, as their places in `ROW_KINDS`."""
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)


@cache
def _names() -> Any:
    """The names of the kinds. Not made on import: Arrow imports pandas to look at a list, and few slots need pandas."""
    return pa.array(ROW_KINDS)


def kinds_of(batch: pa.RecordBatch) -> Kinds:
    """The kinds of the changes of a batch. Raises `ValueError` if there are others."""
    found: Any = pc.index_in(batch.column(ROW_KIND), value_set=_names())
    if found.null_count:
        wrong = batch.column(ROW_KIND).filter(found.is_null())[0].as_py()
        raise ValueError(f"{wrong!r} is no kind of a change; there are {', '.join(ROW_KINDS)}")
    return found.to_numpy().astype(np.int8)  # type: ignore[no-any-return]


def names_of(kinds: Kinds) -> Any:
    """The kinds as the column `row_kind` has them."""
    return _names().take(pa.array(kinds))


def kept_changes(batch: pa.RecordBatch, kept: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """The changes that are kept. Where only one half of an update is kept, that half is a row that is gone, or a new
    row. So is a half that came in another batch than the other half: that says the same."""
    kinds = kinds_of(batch)
    pairs = kept[:-1] & kept[1:] & (kinds[:-1] == UPDATE_BEFORE) & (kinds[1:] == UPDATE_AFTER)
    whole = np.zeros(len(kinds), np.bool_)
    whole[:-1] |= pairs
    whole[1:] |= pairs
    kinds[~whole & (kinds == UPDATE_BEFORE)] = DELETE
    kinds[~whole & (kinds == UPDATE_AFTER)] = INSERT
    place = batch.schema.get_field_index(ROW_KIND)
    return batch.set_column(place, batch.schema.field(place), names_of(kinds)).filter(pa.array(kept))
