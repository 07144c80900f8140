"""What user code logs in a slot, on its way to the driver's log.

A handler of Python's logging takes records in whichever thread they are made, and never waits: it keeps a bounded
number of them, and counts the others. The slot sends what was kept with its heartbeats, and beside its loop when the
loop does not turn.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from penstock.core.ids import SlotId
from penstock.core.messages import LogLine, WorkerLog
from penstock.runtime.task.operators.base import Operator

log = logging.getLogger(__name__)

MOST_LINES = 200
"""How many lines wait at most until the slot sends them: with a heartbeat twice a second, 400 lines a second."""
MOST_CHARACTERS = 2_000
"""Of a line. The rest is cut."""


class WorkerLogs(logging.Handler):
    """Keeps what is logged in one slot until the slot sends it."""

    def __init__(self, level: str) -> None:
        super().__init__(level)
        self._lines: deque[LogLine] = deque()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, or count it if too many wait."""
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            return
        try:
            text = self.format(record)[:MOST_CHARACTERS]
        except Exception:  # noqa: BLE001  # arguments that do not fit the text: the text alone is worth having
            text = str(record.msg)[:MOST_CHARACTERS]
        self._lines.append(LogLine(level=record.levelno, logger=record.name, text=text, step=_step()))

    def take(self, slot: SlotId) -> WorkerLog | None:
        """What was kept since it was last taken; None if nothing was."""
        lines: list[LogLine] = []
        while self._lines and len(lines) < MOST_LINES:
            lines.append(self._lines.popleft())
        dropped, self._dropped = self._dropped, 0
        return WorkerLog(slot=slot, lines=tuple(lines), dropped=dropped) if lines or dropped else None


def _step() -> str | None:
    """The step that logs, as people call it: the innermost on the stack of this thread."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the stack, without the cost of its source lines
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Operator) and hasattr(owner, "context"):
            return owner.context.name
        frame = frame.f_back
    return None


@contextmanager
def collected(logs: WorkerLogs) -> Iterator[None]:
    """Have this process's loggers hand their records to `logs`, from its level on, while the block runs."""
    root = logging.getLogger()
    level = root.level
    root.addHandler(logs)
    root.setLevel(min(level, logs.level) if level else logs.level)
    try:
        yield
    finally:
        root.removeHandler(logs)
        root.setLevel(level)


def tell(message: WorkerLog) -> None:
    """Put what a slot's code logged into this process's log, under the same loggers below ours."""
    for line in message.lines:
        step = "" if line.step is None else f", step {line.step!r}"
        logger = logging.getLogger(f"{__name__}.{line.logger}")
        logger.log(line.level, "slot %d%s: %s", message.slot.number, step, line.text)
    if message.dropped:
        log.warning("slot %d logged %d lines more than are handed on", message.slot.number, message.dropped)
