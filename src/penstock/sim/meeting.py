"""A function of a world over two keyed streams, which share the state and the timers of their keys.

For each key the n-th record of the one stream meets the n-th record of the other stream: when both have come, the
function hands on the number n. And each time of a record, of either stream, is handed on once, when event time has come
to it. So the rows do not depend on how the records of the two streams are mixed. A record that comes when event time
has passed the record makes a row that no job must show: then event time was not the event time of the stream that is
behind.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.api.functions import EPOCH, KeyedCoFunction, KeyedContext, Timer
from penstock.api.state_declarations import map_state, value_state
from penstock.sim.inputs import Row

_MICROSECOND = datetime.timedelta(microseconds=1)
_MET, _TIME, _LATE = 1, 2, 3
"""The values of the rows: what a row tells."""


class Meets(KeyedCoFunction):
    """Hands on how many records of both streams have met, and the times of all records."""

    left = value_state("left", "bigint", default=0)
    right = value_state("right", "bigint", default=0)
    times = map_state("times", key="bigint", value="boolean")

    def on_left(self, row: dict[str, Any], context: KeyedContext) -> Iterator[dict[str, Any]]:
        """Count a record of the left stream."""
        self.left.set(self.left.get() + 1)
        if self.left.get() <= self.right.get():
            yield _row(context.key, self.left.get(), _MET)
        yield from self._timed(row, context)

    def on_right(self, row: dict[str, Any], context: KeyedContext) -> Iterator[dict[str, Any]]:
        """Count a record of the right stream."""
        self.right.set(self.right.get() + 1)
        if self.right.get() <= self.left.get():
            yield _row(context.key, self.right.get(), _MET)
        yield from self._timed(row, context)

    def on_timer(self, timer: Timer, context: KeyedContext) -> dict[str, Any]:
        """Event time has come to the time of a record."""
        # A drain fires timers early: a record of the same time, which comes when the data goes on, sets no timer.
        self.times[timer.time_us] = True
        return _row(context.key, timer.time_us, _TIME)

    def _timed(self, row: dict[str, Any], context: KeyedContext) -> Iterator[dict[str, Any]]:
        if context.watermark is not None and row["ts"] <= context.watermark:
            yield _row(context.key, row["seq"], _LATE)
        time_us = (row["ts"] - EPOCH) // _MICROSECOND
        if time_us not in self.times:
            context.timers.at_event_time(time_us)


def _row(key: int, number: int, value: int) -> dict[str, Any]:
    return {"key": key, "seq": number, "value": value, "ts": EPOCH}


def expected_meetings(left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    """The rows that are shown, from the records of both streams."""
    lefts, rights = (Counter[int](record[0] for record in records) for records in (left, right))
    rows = Counter((key, n + 1, _MET, 0) for key in sorted(lefts) for n in range(min(lefts[key], rights[key])))
    rows.update({(key, time, _TIME, 0) for key, _, _, time in (*left, *right)})
    return rows
