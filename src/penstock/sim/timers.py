"""Windows of a world that a function with timers makes, and a step behind the function that makes very many rows.

The results are those of the window operator. But more may be half done when a barrier comes: some timers of a watermark
have fired, and others have not; some rows of one call are on their way, and others are not made yet. The counts are
managed state. The greatest values are raw state: numbers in a format of the function's own, by key group.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator
from typing import Any

from penstock.api.functions import EPOCH, FunctionContext, KeyedContext, KeyedFunction, Timer
from penstock.api.state_declarations import map_state, raw_keyed_state
from penstock.runtime.task.operators.rows import SOME_ROWS

_MICROSECOND = datetime.timedelta(microseconds=1)
_TOP = struct.Struct(">qqq")
"""Key, start of the window, and the greatest value."""

COPIES = SOME_ROWS + 3
"""How many rows are made of each result: more rows than a generator is asked for at once."""


class WindowsByTimers(KeyedFunction):
    """How many records a key has in each window, and the greatest value among them."""

    counts = map_state("counts", key="bigint", value="bigint")
    tops = raw_keyed_state("tops")

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._tops: dict[int, dict[tuple[int, int], int]] = {}
        """By key group: the greatest values, by key and start of the window."""

    def open(self, context: FunctionContext) -> None:  # noqa: ARG002
        """Read the greatest values of the subtask's key groups."""
        self._tops = {
            group: {(key, start): top for key, start, top in _TOP.iter_unpack(data)}
            for group, data in self.tops.items()
        }

    def on_snapshot(self, checkpoint: int) -> None:  # noqa: ARG002
        """Write the greatest values into the raw state."""
        for group, tops in self._tops.items():
            self.tops.set(group, b"".join(_TOP.pack(*place, top) for place, top in tops.items()))

    def on_row(self, row: dict[str, Any], context: KeyedContext) -> None:
        """Count the record, and wait for the end of its window."""
        start = (row["ts"] - EPOCH) // _MICROSECOND // self._window_us * self._window_us
        self.counts.set(start, self.counts.get(start, 0) + 1)
        tops, place = self._tops.setdefault(_group_of(context), {}), (context.key, start)
        tops[place] = max(tops.get(place, row["value"]), row["value"])
        context.timers.at_event_time(start + self._window_us - 1)

    def on_timer(self, timer: Timer, context: KeyedContext) -> dict[str, Any]:
        """A window is over. Returns the result of the window."""
        end = timer.time_us + 1
        start = end - self._window_us
        count, top = self.counts.get(start), self._tops.get(_group_of(context), {}).pop((context.key, start), None)
        self.counts.remove(start)
        times = (EPOCH + datetime.timedelta(microseconds=time) for time in (start, end))
        return dict(
            zip(("key", "window_start", "window_end", "n", "top"), (context.key, *times, count, top), strict=True)
        )


def _group_of(context: KeyedContext) -> int:
    assert context.key_group is not None
    return context.key_group


def copies(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Many copies of the row with the count 0, which no window has, and the row itself once."""
    for number in range(COPIES):
        yield row if number == COPIES - 1 else {**row, "n": 0}
