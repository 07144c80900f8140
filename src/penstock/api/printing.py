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

MOST_COUNTED = 10_000
"""So many rows may be asked for. All of them are printed, however fast they come."""

Printer = Callable[[Sequence[str], int, bool], None]
"""Takes lines to print, the number of rows that are left out behind them, and whether none of the lines may be left
out."""


class PrintSink(Sink):
    """The sink of `stream.print`. Its transactions are empty: nothing is left to commit."""

    def __init__(self, *, counted: bool = False, prefix: str | None = None) -> None:
        """If the rows are `counted`, there are few of them, and each is printed."""
        self._counted = counted
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
        return _Printing(self._prefix, counted=self._counted)


class _Printing(SinkWriter):
    def __init__(self, prefix: str, *, counted: bool) -> None:
        self._prefix = prefix
        self._counted = counted

    def write(self, batch: pa.RecordBatch) -> None:
        """Print the first rows of a batch, and count the others."""
        if batch.num_rows:
            shown = shown_rows(batch if self._counted else batch.slice(0, MOST_OF_A_BATCH))
            lines = [f"{self._prefix}{as_line(row)}" for row in shown]
            _printer(lines, batch.num_rows - len(shown), self._counted)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002  # nothing is held back
        """There is nothing to commit."""
        return list


def print_here(lines: Sequence[str], left_out: int, must: bool = False) -> None:  # noqa: ARG001, FBT001, FBT002  # a `Printer`
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
