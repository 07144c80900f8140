"""The last lines of a job's log, kept in the driver, so that one command finds them: what the code of the program has
logged and printed in its slots, and what the driver has logged about the job.

The number of lines is bounded: the oldest lines are forgotten. With a folder, the lines go to a file of JSON lines,
too, which is bounded as well.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import threading
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

from penstock.core.ids import JobId
from penstock.core.messages import WorkerLog
from penstock.ports import Clock
from penstock.runtime import worker_logs
from penstock.runtime.keeping_handler import KeepingHandler
from penstock.runtime.log_lines import LOGGER
from penstock.settings import JobSettings

log = logging.getLogger(__name__)

MOST_LINES = 5_000
FILE_BYTES = 10_000_000
FILES = 5


class JobLines(KeepingHandler):
    """The lines of one job, numbered from 1."""

    def __init__(self, job: JobId, clock: Clock, *, folder: Path | None = None, most: int = MOST_LINES) -> None:
        super().__init__(logging.DEBUG)
        self._job = job
        self._clock = clock
        self._lines: deque[dict[str, Any]] = deque(maxlen=most)
        self._count = 0
        self._kept = threading.Lock()
        """Held while a line is kept, or while lines are copied."""
        self._file = None if folder is None else _file_in(folder, job)
        logging.getLogger(LOGGER).addHandler(self)

    def keep(self, record: logging.LogRecord) -> None:
        """Keep a record of the driver, unless it is about another job, or repeats a line of a slot."""
        if getattr(record, "job", self._job) != self._job or record.name.startswith(worker_logs.__name__):
            return
        self._keep(
            {
                "time": round(record.created * 1_000),
                "slot": None,
                "level": record.levelname,
                "logger": record.name,
                "operator": getattr(record, "operator", None),
                "subtask": getattr(record, "subtask", None),
                "checkpoint": getattr(record, "checkpoint", None),
                "text": record.getMessage(),
            }
        )

    def hear(self, message: WorkerLog) -> None:
        """Keep the lines of a slot."""
        now = self._clock.now()
        for line in message.lines:
            self._keep(
                {
                    "time": now if line.when is None else line.when,
                    "slot": message.slot.number,
                    "level": logging.getLevelName(line.level) if line.level else None,
                    "logger": line.logger,
                    "operator": line.step,
                    "subtask": line.subtask,
                    "checkpoint": line.checkpoint,
                    "text": line.text,
                }
            )
        for text in message.printed:
            self._keep(_said(now, message, "print", text))
        for count, what in (
            (message.dropped, "lines were logged or printed"),
            (message.unprinted, "rows were printed"),
        ):
            if count:
                self._keep(_said(now, message, "penstock", f"{count} more {what}, too fast to be kept"))

    def _keep(self, line: dict[str, Any]) -> None:
        with self._kept:
            self._count += 1
            self._lines.append({"number": self._count, **line})
        if self._file is not None:
            text = json.dumps({"job": self._job, **line})
            self._file.emit(logging.LogRecord(LOGGER, logging.INFO, "", 0, "%s", (text,), None))

    def after(self, number: int, *, slot: int | None, lines: int) -> dict[str, Any]:
        """The last lines behind this number, of one slot or of all; the number of the newest line; and how many lines
        behind `number` are left out, because they are forgotten or because more than `lines` were found."""
        with self._kept:
            newest = self._count
            # Only the lines behind `number` are copied.
            found = list(islice(reversed(self._lines), max(0, newest - number)))
        found = [line for line in reversed(found) if slot is None or line["slot"] == slot]
        forgotten = max(0, newest - number - self._lines.maxlen) if self._lines.maxlen else 0
        return {"lines": found[-lines:], "next": newest, "left_out": forgotten + max(0, len(found) - lines)}

    def close(self) -> None:
        """Take no more records. The lines stay."""
        logging.getLogger(LOGGER).removeHandler(self)
        if self._file is not None:
            self._file.close()
        super().close()


def lines_of(job: JobId, clock: Clock, settings: JobSettings) -> JobLines:
    """The lines of a job, which go to a file if the settings name a folder."""
    folder = settings.slot.log_folder
    return JobLines(job, clock, folder=None if folder is None else Path(folder).expanduser())


def _said(now: int, message: WorkerLog, logger: str, text: str) -> dict[str, Any]:
    known = {"operator": None, "subtask": None, "checkpoint": None}
    return {"time": now, "slot": message.slot.number, "level": None, "logger": logger, **known, "text": text}


def _file_in(folder: Path, job: JobId) -> logging.Handler | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return logging.handlers.RotatingFileHandler(
            folder / f"{job}.log", maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8"
        )
    except OSError as error:
        log.warning("the lines of job %s are not written to %s: %s", job, folder, error, extra={"job": job})
        return None
