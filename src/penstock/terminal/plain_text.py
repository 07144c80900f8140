"""Text of others on a terminal: names of files and steps, values of state, errors that tell of them.

A name may have control characters in it. Shown as they are, they would move the cursor, change what was printed before,
or end the line and begin another that says that all is well.
"""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def plain(text: str) -> str:
    """The text in one line, with whatever cannot be seen written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def add_plain_row(table: Table, *cells: str) -> None:
    """A row of texts that are no markup."""
    table.add_row(*(Text(plain(cell)) for cell in cells))
