"""Brings the log lines of user code in a slot to the driver's log, and what a slot prints to the driver's output.

What code of the program writes to its standard output or standard error in a slot goes where it went before, and comes
to the driver, too: not into the driver's log, but to those who ask for the lines of the job.

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
from typing import Any, TextIO, TypedDict, cast

from penstock.api.printing import MOST_COUNTED, print_here, printed_by
from penstock.core.ids import Instant, JobId, SlotId
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
        checkpoint = getattr(record, "checkpoint", None)
        self._lines.append(
            LogLine(
                level=record.levelno,
                logger=record.name,
                text=text,
                **_place(),
                checkpoint=checkpoint if isinstance(checkpoint, int) else None,
                when=Instant(round(record.created * 1_000)),
            )
        )

    def written(self, text: str, stream: str) -> None:
        """Keep a line that code has written to the standard output or the standard error of the process; or only count
        the line, if too many lines wait."""
        if len(self._lines) >= MOST_LINES:
            self._dropped += 1
            return
        self._lines.append(LogLine(level=0, logger=stream, text=text[:MOST_CHARACTERS], **_place()))

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


class _Place(TypedDict):
    step: str | None
    subtask: int | None


def _place() -> _Place:
    """The step and the subtask that log: the innermost step on the stack of this thread."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the stack, without the cost of its source lines
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Operator) and hasattr(owner, "context"):
            return {"step": owner.context.name, "subtask": owner.context.task.subtask}
        frame = frame.f_back
    return {"step": None, "subtask": None}


class _Copied:
    """A stream of text whose whole lines are kept, too. Everything else about the stream is as before."""

    def __init__(self, stream: TextIO, name: str, logs: WorkerLogs) -> None:
        self._stream = stream
        self._name = name
        self._logs = logs
        self._begun = ""

    def write(self, text: str) -> int:
        """Write to the stream, and keep the lines that are complete."""
        done = self._stream.write(text)
        *lines, begun = (self._begun + text).split("\n")
        # A line without an end must not grow for ever.
        self._begun = begun[:MOST_CHARACTERS]
        for line in lines:
            if line.strip():
                self._logs.written(line, self._name)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def collected(logs: WorkerLogs) -> Iterator[None]:
    """While the block runs, all loggers of this process hand their records to `logs`, from the level of `logs` on; and
    so does whatever prints records, or writes to the standard output or the standard error."""
    root = logging.getLogger()
    level, streams = root.level, (sys.stdout, sys.stderr)
    # Handlers that exist write to the streams themselves: a record that they write is kept already.
    copied = [_Copied(stream, name, logs) for stream, name in zip(streams, ("stdout", "stderr"), strict=True)]
    sys.stdout, sys.stderr = cast("list[TextIO]", copied)
    root.addHandler(logs)
    root.setLevel(min(level, logs.level) if level else logs.level)
    try:
        with printed_by(logs.print_lines):
            yield
    finally:
        sys.stdout, sys.stderr = streams
        root.removeHandler(logs)
        root.setLevel(level)


def tell(message: WorkerLog, job: JobId | None = None) -> None:
    """Put the log lines of a slot into this process's log, and print what `stream.print` has printed. A line of the
    logger `x` goes to the logger `x` below the logger of this file."""
    for line in message.lines:
        if not line.level:
            continue
        step = "" if line.step is None else f", step {line.step!r}"
        logger = logging.getLogger(f"{__name__}.{line.logger}")
        known = {"slot": message.slot.number, "operator": line.step, "subtask": line.subtask}
        known |= {"job": job, "checkpoint": line.checkpoint}
        logger.log(line.level, "slot %d%s: %s", message.slot.number, step, line.text, extra=known)
    if message.printed or message.unprinted:
        print_here(message.printed, message.unprinted)
    if message.dropped:
        log.warning("slot %d logged too fast: %d lines are not in this log", message.slot.number, message.dropped)
