"""Rows as text for people: as a table like Spark's `show`, and as a line."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.sql.python_values import shown_values

_LEAST_WIDTH = 3
_DOTS = "..."


def as_shown(table: pa.Table, *, truncate: int | None, more: bool) -> str:
    """A table as Spark's `show` prints it. `more` says that there are further rows.

    >>> print(as_shown(pa.table({"word": ["to", None], "n": [1, 20]}), truncate=20, more=True), end="")
    +----+---+
    |word|  n|
    +----+---+
    |  to|  1|
    |NULL| 20|
    +----+---+
    only showing top 2 rows
    """
    cells = [[_cut(as_text(value), truncate) for value in shown_values(column)] for column in table.columns]
    names = [_cut(name, truncate) for name in table.schema.names]
    widths = [
        max(_LEAST_WIDTH, len(name), *(len(cell) for cell in column)) for name, column in zip(names, cells, strict=True)
    ]
    rule = f"+{'+'.join('-' * width for width in widths)}+\n"

    def line(values: Sequence[str]) -> str:
        # Spark aligns values to the right if it cuts them, and else to the left.
        padded = (
            value.ljust(width) if truncate is None else value.rjust(width)
            for value, width in zip(values, widths, strict=True)
        )
        return f"|{'|'.join(padded)}|\n"

    lines = [line(row) for row in zip(*cells, strict=True)]
    told = f"only showing top {table.num_rows} {'row' if table.num_rows == 1 else 'rows'}\n" if more else ""
    return "".join((rule, line(names), rule, *lines, rule, told))


def as_line(row: Mapping[str, Any]) -> str:
    """A row as one line.

    >>> as_line({"word": "to", "n": None})
    '{word: to, n: NULL}'
    """
    return f"{{{', '.join(f'{name}: {as_text(value)}' for name, value in row.items())}}}"


def as_text(value: Any) -> str:
    """A value as Spark shows it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case datetime.datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case bytes():
            return f"[{value.hex(' ').upper()}]"
        case Mapping():
            return f"{{{', '.join(as_text(each) for each in value.values())}}}"
        case tuple() if len(value) == 2:  # an entry of a map
            return f"{as_text(value[0])} -> {as_text(value[1])}"
        case list() if value and all(isinstance(each, tuple) for each in value):
            return f"{{{', '.join(as_text(each) for each in value)}}}"
        case list():
            return f"[{', '.join(as_text(each) for each in value)}]"
        case _:
            return _one_line(str(value))


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _cut(text: str, longest: int | None) -> str:
    if longest is None or len(text) <= longest:
        return text
    return text[: longest - len(_DOTS)] + _DOTS if longest > len(_DOTS) else text[:longest]
