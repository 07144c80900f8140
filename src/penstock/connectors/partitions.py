"""Folders that are named by the values of columns, as Spark and Hive name them: `day=2026-01-01/shop=7/`.

The columns are in the names of the folders and not in the files. A character that a name cannot have is written as `%`
and two hexadecimal digits. A null is written as `__HIVE_DEFAULT_PARTITION__`, and so is an empty text, which Spark
takes for a null.
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
from penstock.sql.python_values import shown_values

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
LONGEST_NAME_BYTES = 255
"""The longest name of a folder that file systems accept."""

_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")


def check_partitions(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise `UsageError` if records of this schema cannot be laid out by these columns."""
    for column in columns:
        if column not in schema.names:
            raise UsageError(
                f"partition_by has {column!r}, which is no column of the stream; the stream has the columns "
                f"{', '.join(schema.names)}"
            )
        kind = schema.field(column).type
        if not (pt.is_boolean(kind) or pt.is_integer(kind) or _is_text(kind) or pt.is_date32(kind)):
            raise UsageError(
                f"partition_by has {column!r} of type {kind}, whose values cannot be names of folders",
                hint="cast the column to a text, a whole number, a boolean or a date",
            )
    if len(columns) == len(schema.names):
        raise UsageError(
            "partition_by has all columns of the stream, and no column is left for the files",
            hint="leave at least one column out of partition_by",
        )


def by_partition(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Folders, each with its records, in the order that the records had. The columns that are in the name of the folder
    are left out. A folder that stands for several values may come several times."""
    found: list[Any] = [
        pc.dictionary_encode(table.column(column), null_encoding="encode").combine_chunks() for column in columns
    ]
    names = [
        [_name(column, value) for value in shown_values(values.dictionary)]
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
            f"column {column!r} of partition_by has a value of {len(str(value))} characters, which is too long for the "
            "name of a folder",
            hint="partition by a column with shorter values",
        )
    return name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
