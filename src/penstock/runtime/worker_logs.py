"""Brings the log lines of user code in a slot to the driver's log, and what a slot prints to the driver's output.

A handler of Python's logging takes the log records of all threads, and never waits. The handler keeps a bounded number
of lines, and only counts further records. The slot sends the kept lines with its heartbeats. While the loop of the slot
does not turn, a thread beside the loop sends them.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from penstock.api.printing import MOST_COUNTED, print_here, printed_by
from penstock.core.ids import SlotId
from penstock.core.messages import LogLine, WorkerLog
from penstock.runtime.task.operators.base import Operator

log = logging.getLogger(__name__)

MOST_LINES = 200
"""How many lines wait at most until the slot sends them. With a heartbeat twice a second, that is 400 lines a
second."""
MOST_PRINTED = 200
"""How many lines of `stream.print` wait at most, besides."""
MOST_CHARACTERS = 2_000
"""The longest line. The rest of a longer line is cut off."""


class WorkerLogs(logging.Handler):
    """Keeps the log lines of one slot until the slot sends them."""

    def __init__(self, level: str) -> None:
        super().__init__(level)
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self._printed: deque[str] = deque()
        self._unprinted = 0

    def print_lines(self, lines: Sequence[str], left_out: int, must: bool = False) -> None:  # noqa: FBT001, FBT002  # a `Printer`
        """Keep lines that are to be printed on the driver; or only count them, if too many lines wait, and they are not
        lines that `must` be printed."""
        room = max(0, (MOST_COUNTED if must else MOST_PRINTED) - len(self._printed))
        self._printed.extend(line[:MOST_CHARACTERS] for line in lines[:room])
        self._unprinted += left_out + len(lines[room:])

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a log record; or only count the record, if too many lines wait."""
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            return
        try:
            text = self.format(record)[:MOST_CHARACTERS]
        except Exception:  # noqa: BLE001  # the arguments do not fit the text: the text alone is worth having
            text = str(record.msg)[:MOST_CHARACTERS]
        self._lines.append(LogLine(level=record.levelno, logger=record.name, text=text, step=_step()))

    def take(self, slot: SlotId) -> WorkerLog | None:
        """The lines that wait, and the numbers of lines that were only counted since the last call; None if there are
        neither."""
        lines: list[LogLine] = []
        while self._lines and len(lines) < MOST_LINES:
            lines.append(self._lines.popleft())
        dropped, self._dropped = self._dropped, 0
        printed: list[str] = []
        while self._printed and len(printed) < MOST_PRINTED:
            printed.append(self._printed.popleft())
        unprinted, self._unprinted = self._unprinted, 0
        if not (lines or dropped or printed or unprinted):
            return None
        return WorkerLog(slot=slot, lines=tuple(lines), dropped=dropped, printed=tuple(printed), unprinted=unprinted)


def _step() -> str | None:
    """The name of the step that logs: the innermost step on the stack of this thread; None if no step logs."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the stack, without the cost of its source lines
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Operator) and hasattr(owner, "context"):
            return owner.context.name
        frame = frame.f_back
    return None


@contextmanager
def collected(logs: WorkerLogs) -> Iterator[None]:
    """While the block runs, all loggers of this process hand their records to `logs`, from the level of `logs` on; and
    so does whatever prints records."""
    root = logging.getLogger()
    level = root.level
    root.addHandler(logs)
    root.setLevel(min(level, logs.level) if level else logs.level)
    try:
        with printed_by(logs.print_lines):
            yield
    finally:
        root.removeHandler(logs)
        root.setLevel(level)


def tell(message: WorkerLog) -> None:
    """Put the log lines of a slot into this process's log, and print what the slot has printed. A line of the logger
    `x` goes to the logger `x` below the logger of this file."""
    for line in message.lines:
        step = "" if line.step is None else f", step {line.step!r}"
        logger = logging.getLogger(f"{__name__}.{line.logger}")
        logger.log(line.level, "slot %d%s: %s", message.slot.number, step, line.text)
    if message.printed or message.unprinted:
        print_here(message.printed, message.unprinted)
    if message.dropped:
        log.warning("slot %d logged too fast: %d lines are not in this log", message.slot.number, message.dropped)
