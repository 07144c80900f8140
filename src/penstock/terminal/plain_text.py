"""Texts that Penstock did not write, on a terminal: names of files and steps, values of state, and errors that quote
them.

Such a text may have control characters. If control characters were printed, they could move the cursor, change earlier
output, or end the line and begin another line that says that all is well.
"""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def plain(text: str) -> str:
    """The text in one line, with an escape sequence in the place of each character that cannot be printed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def add_plain_row(table: Table, *cells: str) -> None:
    """Add a row of texts, in which no markup is read."""
    table.add_row(*(Text(plain(cell)) for cell in cells))
