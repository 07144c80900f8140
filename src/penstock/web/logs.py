"""The logs that the server shows: the last lines of the driver's log, and of each slot as far as the driver has them.

Another part of the program may supply its own logs, with the same methods.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from penstock.runtime.keeping_handler import KeepingHandler
from penstock.runtime.log_lines import clock_text

LINES_KEPT = 5_000
SLOT_LINES = 5_000


class Logs(Protocol):
    """Where logs come from. `job` and `slot` are None for the driver."""

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The logs, each with `name`, `size` and `mtime`."""
        ...

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """One log; None if there is no such log."""
        ...


class RecentLines(KeepingHandler):
    """Keeps the last lines of Penstock's log in this process."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._driver: deque[str] = deque(maxlen=LINES_KEPT)
        self._changed_ms = 0

    def keep(self, record: logging.LogRecord) -> None:
        """Keep the line of a record."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001  # the arguments do not fit the text: the text alone is worth having
            line = str(record.msg)
        self._driver.append(line)
        self._changed_ms = int(record.created * 1_000)

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


LinesOf = Callable[[str], Callable[..., dict[str, Any]] | None]
"""From the id of a job to its `log_lines`; None if the job is not there any more."""


class DriverAndSlots:
    """The log of the driver, and the lines of slots as the driver of each job keeps them."""

    def __init__(self, driver: RecentLines, lines_of: LinesOf) -> None:
        self._driver = driver
        self._lines_of = lines_of

    def names(self, job: str | None, slot: int | None) -> list[dict[str, object]]:
        """The log of the driver, or the log of a slot."""
        if job is None or slot is None:
            return self._driver.names(job, slot)
        lines = self._lines(job, slot)
        text = _text(lines)
        return [{"name": f"slot-{slot}.log", "size": len(text), "mtime": lines[-1]["time"] if lines else 0}]

    def read(self, job: str | None, slot: int | None, name: str) -> str | None:
        """One log; of a slot also `stdout`, what the code of the program has printed there."""
        if job is None or slot is None:
            return self._driver.read(job, slot, name)
        lines = self._lines(job, slot)
        if name == "stdout":
            return "".join(f"{line['text']}\n" for line in lines if line["logger"] == "print")
        return _text(lines) if name == f"slot-{slot}.log" else None

    def _lines(self, job: str, slot: int) -> list[dict[str, Any]]:
        lines_of = self._lines_of(job)
        found: list[dict[str, Any]] = [] if lines_of is None else lines_of(slot=slot, lines=SLOT_LINES)["lines"]
        return found


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(
        f"{clock_text(line['time'] / 1_000)} {line['level'] or '-'} {line['logger']}{_place(line)}: {line['text']}\n"
        for line in lines
    )


def _place(line: dict[str, Any]) -> str:
    return "" if line["operator"] is None else f" {line['operator']}[{line['subtask']}]"
