"""Functions of jobs with side outputs and late records.

Which records are late depends on how fast each part of the input is read, and so differs from run to run. So a job with
late records makes a *unit* of every record, which has the key and the time of the record. A record that is not late is
in its last window, whatever other windows have lost it, so its last window makes the unit. A late record makes its unit
itself. So every record has one unit, late or not.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from penstock.api.changelog import DELETE, ROW_KIND, UPDATE_BEFORE
from penstock.api.functions import EPOCH, FunctionContext, KeyedContext, KeyedFunction
from penstock.api.state_declarations import value_state
from penstock.sim.window_kinds import WindowKind, is_last_window

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


class Units:
    """Makes the units of the records in a window, from the times of the records."""

    def __init__(self, kind: WindowKind, window_us: int) -> None:
        self._kind = kind
        self._window_us = window_us

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A unit for every record of which this is the last window. Of a window that shows updates, a result that is
        taken back takes its units back."""
        end_us = (row["window_end"] - EPOCH) // _MICROSECOND
        sign = -1 if row.get(ROW_KIND) in (UPDATE_BEFORE, DELETE) else 1
        for time in row["times"]:
            if is_last_window(self._kind, self._window_us, (time - EPOCH) // _MICROSECOND, end_us):
                yield {**_unit(row["key"], time), "n": sign}


def late_unit(row: dict[str, Any]) -> dict[str, Any]:
    """The unit of a late record."""
    return _unit(row["key"], row["ts"])


def _unit(key: int, time: datetime.datetime) -> dict[str, Any]:
    return {"key": key, "window_start": time, "window_end": time, "n": 1, "top": 0}
