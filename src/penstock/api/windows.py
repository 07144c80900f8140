"""How event time is cut into windows.

A *window type* says which windows a time belongs to, and when a window is complete. A window type is asked once per
batch, with all times of the batch. Everything else (grouping, the exchange, state, firing, late records) is the same
for every type. To add a type, write one class here, and the function with which users make an object of the class; then
export the function in `penstock/__init__.py` and run `make surface docs`.

    type                        overlaps    merges      length_us       spacing_us
    tumbling                    no          no          size            size
    (sliding)                   yes         no          size            slide
    (cumulative)                yes         no          None            None
    (session)                   no          yes         None            None

The types in brackets do not exist. `tests/runtime/task/operators/test_window_types.py` defines sliding and cumulative
windows, to show that the operators work with such types. The operators do not merge windows: a type that merges also
needs an operator of its own (`operators/build.py`). Windows of a number of records need an operator of their own, too,
because no time belongs to such a window.
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
    """The windows of a batch's records, as columns: a record in three windows has three entries."""

    rows: npt.NDArray[np.intp] | None
    """Which record of the batch; None: each record once, in the order of the batch."""
    starts: Times
    ends: Times | None
    """The first time behind each window; None if all windows have the same length."""


class WindowType(ABC):
    """A rule that cuts event time into windows [start, end). Two window types of the same class and the same numbers
    are equal."""

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
        """The difference of two starts of windows is a multiple of this; None if windows begin anywhere."""

    @abstractmethod
    def times(self) -> tuple[int, int]:
        """The first and last time whose windows have starts and ends that fit into 64 bits. The range may be
        narrower than that. Records with an earlier or a later time are dropped and counted, and never assigned."""

    @abstractmethod
    def assign(self, times: Times) -> Assigned:
        """The windows of these times. A type that does not overlap gives each time one window, and the starts of
        windows never decrease as times increase."""

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
        """All times but those before the first whole window and those behind the last whole window."""
        offset, size = self.offset_us, self.size_us
        first = offset - (offset - int(_INT64.min)) // size * size
        last = offset + (int(_INT64.max) - offset) // size * size - 1
        return first, last

    def assign(self, times: Times) -> Assigned:
        """One window for each time."""
        size, offset = self.size_us, self.offset_us % self.size_us
        starts = times // size
        starts *= size
        if offset:
            # Near the limits of 64 bits a start may have wrapped around; the difference between a time and its start is
            # right all the same.
            since = times - starts - offset
            starts = times - np.where(since < 0, since + size, since)
        return Assigned(rows=None, starts=starts, ends=None)

    def __str__(self) -> str:
        return f"{self.size_us / 1_000_000:g} s"

    def described(self) -> str:
        """Size and offset, without a name of the type: snapshots have the description in this form."""
        return f"{self.size_us} us, offset {self.offset_us} us"

    def saved(self) -> dict[str, Any]:
        """Size and offset, in fields of their own: snapshots have both numbers in this form."""
        return {"size_us": self.size_us, "offset_us": self.offset_us}


def tumbling(size: Duration, *, offset: Duration = "0s") -> TumblingWindow:
    """Windows of one size that follow each other without a gap: each record is in exactly one window.

    Windows begin at multiples of `size` since 1970-01-01 00:00 UTC, moved by `offset`: `tumbling("1d", offset="22h")`
    gives days that begin at 22:00 UTC.
    """
    size_us = duration_us(size, argument="size")
    offset_us = duration_us(offset, argument="offset")
    if size_us == 0:
        raise UsageError(f"size is {size!r}; a window must last at least 1 us")
    if offset_us >= size_us:
        raise UsageError(
            f"offset {offset!r} is not shorter than the window of {size!r}",
            hint="give an offset below the size: an offset of whole windows changes nothing",
        )
    return TumblingWindow(size_us=size_us, offset_us=offset_us)
