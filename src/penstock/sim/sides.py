"""Functions of jobs with side outputs and late records.

Which records are late depends on how fast each part of the input is read, and so differs from run to run. So a job with
late records makes a *unit* of every record: a window makes as many units as it counts, and a late record makes a single
unit. How many units each key and window has does not depend on which records were late.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from penstock.api.functions import EPOCH, FunctionContext, KeyedContext, KeyedFunction
from penstock.api.state import value_state

ODD = "odd"
"""The side output of `SortOut`."""

_MICROSECOND = datetime.timedelta(microseconds=1)


class SortOut(KeyedFunction):
    """Hands records with even values on, and emits records with odd values to a side output. Odd records are held back
    until the next record or the next barrier."""

    seen = value_state("seen", "bigint", default=0)

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> dict[str, Any] | None:
        """Return an even record; hold an odd record back."""
        self.before_barrier(context)
        self.seen.set(self.seen.get() + 1)
        if row["value"] % 2 == 0:
            return row
        self._held.append(row)
        return None

    def before_barrier(self, context: FunctionContext) -> None:
        """Emit the records that are held back."""
        for row in self._held:
            context.emit(ODD, row)
        self._held.clear()


def units(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A unit for every record that the result of a window counts."""
    for _ in range(row["n"]):
        yield {**row, "n": 1, "top": 0}


class LateUnit:
    """Makes the unit of a late record."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The unit that the window of the record would have made."""
        start_us = (row["ts"] - EPOCH) // _MICROSECOND // self._window_us * self._window_us
        start, end = (EPOCH + datetime.timedelta(microseconds=time) for time in (start_us, start_us + self._window_us))
        return {"key": row["key"], "window_start": start, "window_end": end, "n": 1, "top": 0}
