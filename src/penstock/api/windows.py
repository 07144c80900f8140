"""How event time is cut into windows.

A *window type* says which windows a time belongs to, and when a window is complete. It is asked once per batch, with
all times of the batch. Everything else (grouping, the exchange, state, firing, late records) is the same for every
type. To add a type is to write one class here, and the function that users make it with.

    type                        overlaps    merges      length_us       spacing_us
    tumbling                    no          no          size            size
    (sliding)                   yes         no          size            slide
    (cumulative)                yes         no          None            None
    (session)                   no          yes         None            None

The types in brackets are not there yet; what the operators do for them is tested with types that tests define. What
the operators do not do is merging: a type that merges also needs an operator of its own (`operators/build.py`). So do
windows of a number of records, to which no time belongs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError

_INT64 = np.iinfo(np.int64)

Times = npt.NDArray[np.int64]
"""Microseconds since 1970."""


class Assigned(NamedTuple):
    """The windows of a batch's records, as columns: a record of three windows is in three places."""

    rows: npt.NDArray[np.intp] | None
    """Which record of the batch; None: each record once, in the order of the batch."""
    starts: Times
    ends: Times | None
    """The first time behind each window; None if all windows have one length."""


class WindowType(ABC):
    """A rule that cuts event time into windows [start, end). A value: two of the same kind and numbers are equal."""

    overlaps: ClassVar[bool]
    """Whether a record can be in several windows."""
    merges: ClassVar[bool]
    """Whether windows of one key that touch become one window."""

    @property
    @abstractmethod
    def length_us(self) -> int | None:
        """How long every window lasts: then the end of a window is known from its start, and only the start is kept.
        None: lengths differ, and the end is kept too."""

    @property
    @abstractmethod
    def spacing_us(self) -> int | None:
        """Starts of windows are whole multiples of this apart; None if they begin anywhere."""

    @abstractmethod
    def times(self) -> tuple[int, int]:
        """The first and last time whose windows have their starts and ends in 64 bits. Records before and behind are
        dropped and counted, and never assigned."""

    @abstractmethod
    def assign(self, times: Times) -> Assigned:
        """The windows of these times. A type that does not overlap gives each time one window, and a later time no
        earlier window."""

    def last_complete(self, watermark_us: int) -> int:
        """Which windows are complete at a watermark: those whose start (end, if lengths differ) is at or before this.

        Complete means that no record of the window is to come: the watermark has reached the last time in it.
        """
        return min(watermark_us + 1 - (self.length_us or 0), int(_INT64.max))

    @abstractmethod
    def described(self) -> str:
        """The type and its numbers. State that was kept for one description does not go on under another."""

    def saved(self) -> dict[str, Any]:
        """What a snapshot says of the type, by fields of its `Layout`."""
        return {"window": self.described()}


@dataclass(frozen=True, kw_only=True)
class TumblingWindow(WindowType):
    """Windows of `size_us` that follow each other; the first begins at `offset_us` after 1970."""

    size_us: int
    offset_us: int = 0

    overlaps = False
    merges = False

    @property
    def length_us(self) -> int:
        """The size."""
        return self.size_us

    @property
    def spacing_us(self) -> int:
        """The size: there are no gaps."""
        return self.size_us

    def times(self) -> tuple[int, int]:
        """All but the times before the first whole window, and behind the last."""
        offset, size = self.offset_us, self.size_us
        first = offset - (offset - int(_INT64.min)) // size * size
        last = offset + (int(_INT64.max) - offset) // size * size - 1
        return first, last

    def assign(self, times: Times) -> Assigned:
        """One window each."""
        size, offset = self.size_us, self.offset_us % self.size_us
        starts = times // size
        starts *= size
        if offset:
            # Near the limits a start may have wrapped around; what lies between it and its time is right all the same.
            since = times - starts - offset
            starts = times - np.where(since < 0, since + size, since)
        return Assigned(rows=None, starts=starts, ends=None)

    def __str__(self) -> str:
        return f"{self.size_us / 1_000_000:g} s"

    def described(self) -> str:
        """Size and offset; a type without a name, since there was no other when the first snapshots were written."""
        return f"{self.size_us} us, offset {self.offset_us} us"

    def saved(self) -> dict[str, Any]:
        """The two numbers, in fields of their own, as in all snapshots so far."""
        return {"size_us": self.size_us, "offset_us": self.offset_us}


def tumbling(size: Duration, *, offset: Duration = "0s") -> TumblingWindow:
    """Windows of one size that follow each other without a gap: each record is in exactly one.

    They begin at multiples of `size` since 1970-01-01 00:00 UTC, moved by `offset`: `tumbling("1d", offset="22h")`
    gives days that begin at 22:00 UTC.
    """
    size_us = duration_us(size, argument="size")
    offset_us = duration_us(offset, argument="offset")
    if size_us == 0:
        raise UsageError(f"size is {size!r}; a window must last at least 1 us")
    if offset_us >= size_us:
        raise UsageError(
            f"offset {offset!r} is not shorter than the window of {size!r}",
            hint="only the part that is left after whole windows counts; give that part",
        )
    return TumblingWindow(size_us=size_us, offset_us=offset_us)
