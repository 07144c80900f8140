"""Texts of rows: parts of one long text of random letters, and names from lists.

A part of the long text costs some nanoseconds, here and in Spark SQL, whatever its length is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.nexmark.draws import Draws, Int64s, picks

PLACES = 4096
"""A part of the text begins at one of so many places."""
LONGEST = 512


@cache
def letters() -> bytes:
    """The long text. It is the same for all seeds."""
    drawn = Draws(seed=0, salt=1).of(0, PLACES + LONGEST)
    return bytes((picks(drawn, 0, 26) + ord("a")).astype(np.uint8))


@cache
def _prefixes() -> npt.NDArray[np.int32]:
    """The four letters at every place, as one number."""
    text = np.frombuffer(letters(), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(text, 4).copy().view(np.int32).reshape(-1)


def parts(places: Int64s, lengths: Int64s | int) -> pa.StringArray:
    """The parts of the text that begin at these places. Each has at least 13 letters, because shorter texts have
    another form in Arrow."""
    views = np.zeros((len(places), 4), np.int32)
    views[:, 0] = lengths
    views[:, 1] = _prefixes().take(places)
    views[:, 3] = places
    buffers = [None, pa.py_buffer(views.data), pa.py_buffer(letters())]
    found: pa.StringArray = pa.Array.from_buffers(pa.string_view(), len(places), buffers).cast(pa.string())  # type: ignore[assignment]
    return found


def short_parts(places: Int64s, lengths: Int64s) -> pa.StringArray:
    """As `parts`, for texts of any length."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    index = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(places - starts, lengths)
    text = np.frombuffer(letters(), np.uint8).take(index)
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(text.data)]
    found: pa.StringArray = pa.Array.from_buffers(pa.string(), len(places), buffers)  # type: ignore[assignment]
    return found


def chosen(names: Sequence[str], indices: Int64s) -> pa.StringArray:
    """A name from a list for each index."""
    return pa.array(names).take(indices)


def parts_sql(place: str, length: str | int) -> str:
    """As `parts` and `short_parts`."""
    return f"substr('{letters().decode()}', CAST({place} AS INT) + 1, CAST({length} AS INT))"


def chosen_sql(names: Sequence[str], index: str) -> str:
    """As `chosen`."""
    listed = ", ".join(f"'{name}'" for name in names)
    return f"element_at(array({listed}), CAST({index} AS INT) + 1)"
