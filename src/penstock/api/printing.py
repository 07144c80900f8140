"""A sink that prints records on the driver as they come: for a first look at a job that runs.

Printing is at least once by design: a record is printed when a subtask has it, and not when its checkpoint is complete.
So a record that is processed again after a failure is printed again. What a slot prints travels to the driver with the
slot's log lines, bounded in number; further rows are only counted. A process that is no slot prints at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from penstock.api.changelog import Changelog
from penstock.api.connector import Sink, SinkWriter, WriterContext
from penstock.api.showing import as_line
from penstock.sql.python_values import shown_rows

MOST_OF_A_BATCH = 100
"""So many rows of a batch are printed. A person cannot read more, and texts of more rows would keep the job waiting."""

Printer = Callable[[Sequence[str], int], None]
"""Takes lines to print, and the number of rows that are left out behind them."""


class PrintSink(Sink):
    """The sink of `stream.print`. Its transactions are empty: nothing is left to commit."""

    def __init__(self, *, most: int | None, prefix: str | None) -> None:
        """`most` rows of each subtask are printed; None: of all."""
        self._most = most
        self._prefix = "" if prefix is None else f"{prefix}> "

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return "print"

    def for_changes(self, changelog: Changelog) -> Sink:  # noqa: ARG002
        """The same sink: every change is printed, with its kind."""
        return self

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002  # all subtasks print alike
        """A writer that prints."""
        return _Printing(self._most, self._prefix)


class _Printing(SinkWriter):
    def __init__(self, most: int | None, prefix: str) -> None:
        self._left = most
        self._prefix = prefix

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the first rows of a batch, and count the others."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            shown = shown_rows(batch.slice(0, MOST_OF_A_BATCH))
            _printer([f"{self._prefix}{as_line(row)}" for row in shown], batch.num_rows - len(shown))

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002  # nothing is held back
        """There is nothing to commit."""
        return list


def print_here(lines: Sequence[str], left_out: int) -> None:
    """Print in this process, in one go: other threads may print, too."""
    told = [f"({left_out:,} more rows are not printed: they came too fast)"] if left_out else []
    sys.stdout.write("".join(f"{line}\n" for line in (*lines, *told)))
    sys.stdout.flush()


_printer: Printer = print_here


@contextmanager
def printed_by(printer: Printer) -> Iterator[None]:
    """While the block runs, whatever this process is to print goes to `printer`."""
    global _printer  # noqa: PLW0603  # of the process, as its standard output is
    before, _printer = _printer, printer
    try:
        yield
    finally:
        _printer = before
