"""How event time is cut into windows.

A *window type* says where windows begin and end, and when a window is complete. Three operators know what to do with
window types, and `operators/build.py` chooses the operator:

    type                        each record is in       state                       operator
    tumbling                    one window              a row per key and window    `operators/windows.py`
    sliding, cumulative         several windows         a row per key and pane      `operators/pane_windows.py`
    session                     one window, which       a row per key and window    `operators/session_windows.py`
                                grows and merges

Sliding and cumulative windows are made of panes, see `penstock.api.pane_windows`. Windows that no time cuts are in
`penstock.api.other_windows`: windows of a number of records have an operator of their own, in
`operators/count_windows.py`, and a window with all records is a single pane. Windows that show updates have the
operators in `operators/updating_windows.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError

_INT64 = np.iinfo(np.int64)

Times = npt.NDArray[np.int64]
"""Microseconds since 1970."""


class WindowType(ABC):
    """A rule that cuts event time into windows [start, end). Two window types of the same class and the same numbers
    are equal."""

    by_clock: bool
    """Whether records are put into windows by the clock, when they come, and not by their event time."""
    has_bounds: ClassVar[bool] = True
    """Whether results have the columns `window_start` and `window_end`."""

    @property
    def needs_time(self) -> bool:
        """Whether records are put into windows by their event time."""
        return self.has_bounds and not self.by_clock

    @property
    @abstractmethod
    def length_us(self) -> int | None:
        """How long every window lasts: then the end of a window is known from its start, and only the start is kept.
        None: lengths differ, and the end is kept too."""

    @property
    @abstractmethod
    def spacing_us(self) -> int | None:
        """The difference of two starts of windows is a multiple of this, and so is the difference of two ends; None if
        windows begin anywhere."""

    @abstractmethod
    def times(self) -> tuple[int, int]:
        """The first and last time whose windows have starts and ends that fit into 64 bits. The range may be
        narrower than that. Records with an earlier or a later time are dropped and counted, and never assigned."""

    def last_complete(self, watermark_us: int) -> int:
        """The latest start (latest end, if lengths differ) of a window that is complete at a watermark.

        A window is complete when the watermark has reached the last time in the window: no record of the window is to
        come. Operators rely on the rule that the result is the watermark plus a constant, except at the limits of
        64 bits.
        """
        return min(watermark_us + 1 - (self.length_us or 0), int(_INT64.max))

    def __str__(self) -> str:
        """The type and its numbers in a few words, for people."""
        return self.described()

    @property
    def _time(self) -> str:
        """The end of a description."""
        return ", processing time" if self.by_clock else ""

    @abstractmethod
    def described(self) -> str:
        """The type and its numbers. State that was kept under one description cannot go on under another
        description."""

    def saved(self) -> dict[str, Any]:
        """What a snapshot says of the type, by the fields of `Layout` in `operators/window_table.py`. Types other than
        tumbling keep this default."""
        return {"window": self.described()}


@dataclass(frozen=True, kw_only=True)
class TumblingWindow(WindowType):
    """Windows of `size_us` that follow each other; the first begins at `offset_us` after 1970."""

    size_us: int
    offset_us: int = 0
    by_clock: bool = False

    @property
    def panes(self) -> TumblingWindow:
        """The windows themselves: every window is a single pane."""
        return self

    @property
    def length_us(self) -> int:
        """The size."""
        return self.size_us

    @property
    def spacing_us(self) -> int:
        """The size: there are no gaps."""
        return self.size_us

    def times(self) -> tuple[int, int]:
        """All times but those before the first whole window and those behind the last whole window."""
        offset, size = self.offset_us, self.size_us
        first = offset - (offset - int(_INT64.min)) // size * size
        last = offset + (int(_INT64.max) - offset) // size * size - 1
        return first, last

    def assign(self, times: Times) -> Times:
        """The start of the window of each time. Starts never decrease as times increase."""
        size, offset = self.size_us, self.offset_us % self.size_us
        starts = times // size
        starts *= size
        if offset:
            # Near the limits of 64 bits a start may have wrapped around; the difference between a time and its start is
            # right all the same.
            since = times - starts - offset
            starts = times - np.where(since < 0, since + size, since)
        return starts

    def __str__(self) -> str:
        return f"{self.size_us / 1_000_000:g} s" + self._time

    def described(self) -> str:
        """Size and offset, without a name of the type: snapshots have the description in this form."""
        return f"{self.size_us} us, offset {self.offset_us} us" + self._time

    def saved(self) -> dict[str, Any]:
        """Size and offset, in fields of their own: snapshots have both numbers in this form."""
        if self.by_clock:
            return super().saved()
        return {"size_us": self.size_us, "offset_us": self.offset_us}


@dataclass(frozen=True, kw_only=True)
class SessionWindow(WindowType):
    """Windows that last from the first of some records to `gap_us` after the last of them. Windows of one key that
    touch become one window."""

    gap_us: int
    by_clock: bool = False

    @property
    def length_us(self) -> None:
        """Lengths differ."""
        return

    @property
    def spacing_us(self) -> None:
        """Sessions begin anywhere."""
        return

    def times(self) -> tuple[int, int]:
        """All times whose sum with the gap fits."""
        return int(_INT64.min), int(_INT64.max) - self.gap_us

    def last_complete(self, watermark_us: int) -> int:
        """The latest end of a session that no record is to join. A record at the end of a session joins the session, as
        in Spark. So a session is complete when the watermark has reached the end, and not one microsecond before."""
        return watermark_us

    def __str__(self) -> str:
        return f"sessions {self.gap_us / 1_000_000:g} s apart" + self._time

    def described(self) -> str:
        """The gap."""
        return f"session, gap {self.gap_us} us" + self._time


TimeOfWindows = Literal["event", "processing"]
"""What puts records into windows: the time in the records, or the clock when the records come."""


def session(gap: Duration, *, time: TimeOfWindows = "event") -> SessionWindow:
    """Windows of activity: a session of a key goes on as long as the next record of the key is at most `gap` later.

    A session lasts from its first record to `gap` after its last record. Records may come out of order: a record
    between two sessions joins the two sessions. A late record counts as long as it joins a session that is open.
    With `time="processing"` the clock says when a record came, and no watermark is needed.

    >>> import penstock as ps
    >>> str(ps.session("15 min"))
    'sessions 900 s apart'
    """
    gap_us = positive_us(gap, argument="gap", thing="the gap between two sessions")
    return SessionWindow(gap_us=gap_us, by_clock=is_by_clock(time))


def tumbling(size: Duration, *, offset: Duration = "0s", time: TimeOfWindows = "event") -> TumblingWindow:
    """Windows of one size that follow each other without a gap: each record is in exactly one window.

    Windows begin at multiples of `size` since 1970-01-01 00:00 UTC, moved by `offset`: `tumbling("1d", offset="22h")`
    gives days that begin at 22:00 UTC. With `time="processing"` a record is in the window of the clock when the record
    comes, and no watermark is needed.

    >>> import penstock as ps
    >>> str(ps.tumbling("10s"))
    '10 s'
    """
    size_us = positive_us(size, argument="size", thing="a window")
    offset_us = offset_below(size_us, offset, period=size, thing="window")
    return TumblingWindow(size_us=size_us, offset_us=offset_us, by_clock=is_by_clock(time))


def is_by_clock(time: object) -> bool:
    """Whether windows go by the clock. Raises `UsageError` if `time` says neither."""
    if time not in ("event", "processing"):
        raise UsageError(f"time is {time!r}; windows go by 'event' time or by 'processing' time")
    return time == "processing"


def positive_us(given: Duration, *, argument: str, thing: str) -> int:
    """The duration in microseconds. Raises `UsageError` if the duration is 0."""
    found = duration_us(given, argument=argument)
    if found == 0:
        raise UsageError(f"{argument} is {given!r}; {thing} must last at least 1 us")
    return found


def offset_below(period_us: int, offset: Duration, *, period: Duration, thing: str) -> int:
    """The offset in microseconds. Raises `UsageError` unless the offset is shorter than the time after which windows
    begin again."""
    offset_us = duration_us(offset, argument="offset")
    if offset_us >= period_us:
        raise UsageError(
            f"offset {offset!r} is not shorter than the {thing} of {period!r}",
            hint="give an offset below the size: an offset of whole windows changes nothing",
        )
    return offset_us
