"""The logs that the server shows: the last lines of the driver's log, and of each slot as far as the driver has them.

Another part of the program may supply its own logs, with the same methods.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Protocol

LINES_KEPT = 5_000
SLOTS_KEPT = 64


class Logs(Protocol):
    """Where logs come from. `job` and `slot` are None for the driver."""

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The logs, each with `name`, `size` and `mtime`."""
        ...

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """One log; None if there is no such log."""
        ...


class RecentLines(logging.Handler):
    """Keeps the last lines of Penstock's log in this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._driver: deque[str] = deque(maxlen=LINES_KEPT)
        self._changed_ms = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a record."""
        self._show_as_before(record)
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # the arguments do not fit the text: the text alone is worth having
            line = str(record.msg)
        self._driver.append(line)
        self._changed_ms = time.time_ns() // 1_000_000

    def _show_as_before(self, record: logging.LogRecord) -> None:
        """In a program that sets up no logging, Python shows warnings by itself, as long as there is no handler at all.
        This handler must not make the warnings of the program disappear."""
        last, logger = logging.lastResort, logging.getLogger(record.name)
        while last is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            if not logger.propagate or logger.parent is None:
                break
            logger = logger.parent
        if last is not None and record.levelno >= last.level:
            last.handle(record)

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The log of the driver."""
        if slot is not None or job is not None:
            return []
        size = sum(len(line) + 1 for line in tuple(self._driver))
        return [{"name": "penstock.log", "size": size, "mtime": self._changed_ms}]

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """The last lines."""
        if name != "penstock.log" or slot is not None or job is not None:
            return None
        return "".join(f"{line}\n" for line in tuple(self._driver))
