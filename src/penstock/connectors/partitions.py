"""Folders by the values of columns, as Spark and Hive lay them out: `day=2026-01-01/shop=7/`.

The columns are in the names of the folders and not in the files. Characters that cannot be in a name stand there as `%`
and two digits; a null, and an empty text, which Spark takes for one, is `__HIVE_DEFAULT_PARTITION__`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.core.errors import UsageError

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
LONGEST_NAME_BYTES = 255
"""What file systems take as the name of a folder."""

_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")


def check_partitions(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise `UsageError` if records of this schema cannot be laid out by these columns."""
    for column in columns:
        if column not in schema.names:
            raise UsageError(f"partition_by has {column!r}; the stream has {', '.join(schema.names)}")
        kind = schema.field(column).type
        if not (pt.is_boolean(kind) or pt.is_integer(kind) or _is_text(kind) or pt.is_date32(kind)):
            raise UsageError(
                f"partition_by has {column!r} of type {kind}, whose values make no names of folders",
                hint="cast it to a text, a whole number, a boolean or a date",
            )
    if len(columns) == len(schema.names):
        raise UsageError("partition_by has all columns of the stream", hint="leave one for the files")


def by_partition(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The records by folder, in the order they had, without the columns that are in its name. A folder that stands for
    several values may come several times."""
    found: list[Any] = [
        pc.dictionary_encode(table.column(column), null_encoding="encode").combine_chunks() for column in columns
    ]
    names = [
        [_name(column, value) for value in values.dictionary.to_pylist()]
        for column, values in zip(columns, found, strict=True)
    ]
    codes = [values.indices.to_numpy(zero_copy_only=False) for values in found]
    order = np.lexsort(codes)
    differs = [np.diff(values[order], prepend=-1) != 0 for values in codes]
    firsts = np.flatnonzero(np.logical_or.reduce(differs)).tolist()
    rest = table.drop_columns(list(columns)).take(order)
    for first, stop in zip(firsts, [*firsts[1:], table.num_rows], strict=True):
        folder = "/".join(known[values[order[first]]] for known, values in zip(names, codes, strict=True))
        yield folder, rest.slice(first, stop - first)


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind)


def _name(column: str, value: Any) -> str:
    text = NO_VALUE if value is None or value == "" else _escaped(_text(value))
    name = f"{_escaped(column)}={text}"
    if len(name.encode()) > LONGEST_NAME_BYTES:
        raise UsageError(
            f"column {column!r} has a value of {len(str(value))} characters, and a folder cannot have so long a name",
            hint="partition by something shorter",
        )
    return name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
