"""The logs that the server shows: the last lines of the driver's log, and of each slot as far as the driver has them.

Another part of the program may supply its own logs, with the same methods.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.log_lines import Listener, clock_text

LINES_KEPT = 5_000
SLOT_LOG = "slot.log"
PRINTED = ("stdout", "print")


class Logs(Protocol):
    """Where logs come from. `job` and `slot` are None for the driver."""

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The logs, each with `name`, `size` and `mtime`."""
        ...

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """One log; None if there is no such log."""
        ...


class RecentLines(Listener):
    """Keeps the last lines of Penstock's log in this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._driver: deque[str] = deque(maxlen=LINES_KEPT)
        self._changed_ms = 0
        self.slot_lines: Callable[[str, int], list[dict[str, Any]]] = lambda _job, _slot: []
        """The last lines of a slot of a job, as `Job.log_lines` gives them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a record."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # the arguments do not fit the text: the text alone is worth having
            line = str(record.msg)
        self._driver.append(line)
        self._changed_ms = time.time_ns() // 1_000_000

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The log of the driver, or of a slot."""
        if job is not None and slot is not None:
            lines = self.slot_lines(job, slot)
            size = sum(len(_text_of(line)) + 1 for line in lines)
            return [{"name": SLOT_LOG, "size": size, "mtime": lines[-1]["time"]}] if lines else []
        if slot is not None or job is not None:
            return []
        size = sum(len(line) + 1 for line in tuple(self._driver))
        return [{"name": "penstock.log", "size": size, "mtime": self._changed_ms}]

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """The last lines. The standard output of a slot is what its code has printed."""
        if job is not None and slot is not None and name in (SLOT_LOG, "stdout"):
            lines = [line for line in self.slot_lines(job, slot) if name == SLOT_LOG or line["logger"] in PRINTED]
            return "".join(f"{_text_of(line) if name == SLOT_LOG else line['text']}\n" for line in lines)
        if name != "penstock.log" or slot is not None or job is not None:
            return None
        return "".join(f"{line}\n" for line in tuple(self._driver))


def _text_of(line: dict[str, Any]) -> str:
    """A line of a slot, with what it is about."""
    level = f"{line['level']} " if line["level"] else ""
    subtask = "" if line["subtask"] is None else f"[{line['subtask']}]"
    step = "" if line["operator"] is None else f"{line['operator']}{subtask} "
    return f"{clock_text(line['time'] / 1_000)} {level}{step}{line['logger']}: {line['text']}"
