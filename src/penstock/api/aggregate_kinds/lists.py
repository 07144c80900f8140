"""Lists with one list per group: made of values, and taken apart into values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.errors import UsageError

_MOST_VALUES = 2**31 - 1

Numbers = npt.NDArray[np.intp]


def as_lists(values: Any, numbers: Numbers, groups: int) -> Any:
    """One list per group. `numbers` are the groups of the values, in ascending order; a group without values has an
    empty list. Raises `UsageError` if the lists have more values than one array can have."""
    if len(values) > _MOST_VALUES:
        raise UsageError(
            f"the lists of a window have {len(values)} values together; {_MOST_VALUES} are possible",
            hint="use smaller windows, more key columns, or top_n instead of lists of all values",
        )
    offsets = np.searchsorted(numbers, np.arange(groups + 1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def flattened(lists: Any, numbers: Numbers) -> tuple[Any, Numbers]:
    """The values of lists, and the group of each value. `numbers` are the groups of the lists."""
    lengths = np.asarray(pc.list_value_length(lists).to_numpy())
    return lists.flatten(), np.repeat(numbers, lengths)
