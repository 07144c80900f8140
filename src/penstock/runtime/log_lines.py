"""Log records as lines: as text for people, or as JSON for a system that collects logs. Both have the job, the slot,
the step, the subtask and the checkpoint that a record is about, as far as the record says so.

    2026-11-19T21:51:09.120Z INFO penstock.runtime: checkpoint 7 completed in 41 ms [job=orders checkpoint=7]
    {"time": "2026-11-19T21:51:09.120Z", "level": "INFO", "logger": "penstock.runtime", "message": "…", "job": "orders"}
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any, Literal

from penstock.core.errors import UsageError
from penstock.settings import LOG_LEVELS

FIELDS = ("job", "slot", "operator", "subtask", "checkpoint", "epoch", "reason")
"""What a record may say besides its text, as `extra`."""
LOGGER = "penstock"


def configure_logging(
    format: Literal["text", "json"] = "text",  # noqa: A002  # the word that people look for
    *,
    level: str = "INFO",
    stream: IO[str] | None = None,
) -> None:
    """Write the log of Penstock, and what the code of the program logs in slots, to a stream: one line per record, as
    text or as JSON. A second call replaces the first. Other loggers of the program are left alone.

    Each line has the time, the level, the logger and the message; and the job, the slot, the operator, the subtask and
    the checkpoint that the line is about. In JSON these are the fields `time`, `level`, `logger`, `message`, `job`,
    `slot`, `operator`, `subtask` and `checkpoint`, and `traceback` if there is one.

    Without a call, the log goes where Python's logging sends it: warnings and errors to standard error.

    >>> import logging, sys
    >>> import penstock as ps
    >>> ps.configure_logging("json", stream=sys.stdout)
    >>> logging.getLogger("penstock").info("ready", extra={"job": "orders-1"})  # doctest: +ELLIPSIS
    {"time": "...", "level": "INFO", "logger": "penstock", "message": "ready", "job": "orders-1"}

    Args:
        format: `text` or `json`.
        level: records below this level are left out.
        stream: where the lines go. Default: standard error.

    """
    if format not in ("text", "json"):
        raise UsageError(f"format is {format!r}; choose 'text' or 'json'")
    if level not in LOG_LEVELS:
        raise UsageError(f"level is {level!r}; choose one of {', '.join(LOG_LEVELS)}")
    logger = logging.getLogger(LOGGER)
    for handler in [each for each in logger.handlers if isinstance(each, _OwnHandler)]:
        logger.removeHandler(handler)
    own = _OwnHandler(sys.stderr if stream is None else stream)
    own.setFormatter(JsonLines() if format == "json" else TextLines())
    logger.addHandler(own)
    logger.setLevel(level)
    # The records have been written; the handlers of the root logger would write them a second time.
    logger.propagate = False


class _OwnHandler(logging.StreamHandler[Any]):
    """A handler that `configure_logging` has made."""


def facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says about itself, besides its text."""
    found = {name: getattr(record, name, None) for name in FIELDS}
    return {name: value for name, value in found.items() if value is not None}


def clock_text(seconds: float) -> str:
    """A time to the millisecond, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": clock_text(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A record as one line of text, and a traceback below the line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        facts = " ".join(f"{name}={value}" for name, value in facts_of(record).items())
        line = f"{clock_text(record.created)} {record.levelname} {record.name}: {record.getMessage()}"
        line += f" [{facts}]" if facts else ""
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
