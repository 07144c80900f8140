"""Windows that overlap, and share panes.

A *pane* is a stretch of event time that is never cut: each window is made of whole panes, and no two panes overlap. A
record is added to a single pane, in however many windows the pane is. A window is put together from its panes when the
window fires.

    sliding(10, 4)      window      [0 ─────────── 10)
                                        [4 ─────────── 14)
                        panes       [0 2 4 6 8 10 12 14)                    pane: gcd(size, slide)

    cumulative(6, 2)    window      [0 ─ 2)
                                    [0 ───── 4)
                                    [0 ───────── 6)
                        panes       [0 ─ 2 ─ 4 ─ 6)                         pane: step

The windows that hold a pane are told apart by their ends. These ends lie `spacing_us` apart, from a first end to a last
end. Neither end decreases from one pane to the next pane.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import gcd

import numpy as np

from penstock.api.windows import (
    TimeOfWindows,
    Times,
    TumblingWindow,
    WindowType,
    is_by_clock,
    offset_below,
    positive_us,
)
from penstock.core.durations import Duration
from penstock.core.errors import UsageError

_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, kw_only=True)
class PaneWindow(WindowType):
    """Windows of at most `size_us` that are made of panes."""

    size_us: int
    offset_us: int = 0
    by_clock: bool = False

    @property
    @abstractmethod
    def spacing_us(self) -> int:
        """The time from the end of a window to the end of the next window."""

    @property
    @abstractmethod
    def panes(self) -> TumblingWindow:
        """The panes, as tumbling windows."""

    @abstractmethod
    def last_end(self, panes: Times) -> Times:
        """The end of the last window that holds each of these panes, given by their starts."""

    @abstractmethod
    def starts_of(self, ends: Times) -> Times:
        """The starts of the windows with these ends."""

    @abstractmethod
    def first_kept(self, end_us: int) -> int:
        """The start of the first pane that a window behind the window with this end needs."""

    def first_end(self, panes: Times) -> Times:
        """The end of the first window that holds each of these panes, given by their starts."""
        return self.end_after(panes + (self.panes.size_us - 1))

    def end_after(self, times: Times) -> Times:
        """The first end of a window that is later than each of these times."""
        # No window that is ever assigned ends beyond these limits, see `times`. Without them the sums below would not
        # fit into 64 bits.
        limit = 2 * self.size_us
        times = np.clip(times, _INT64.min + limit, _INT64.max - limit)
        return times + self.spacing_us - (times - self._any_end) % self.spacing_us

    def times(self) -> tuple[int, int]:
        """All times that are four sizes away from the limits of 64 bits."""
        return int(_INT64.min) + 4 * self.size_us, int(_INT64.max) - 4 * self.size_us

    @property
    def _any_end(self) -> int:
        return (self.offset_us + self.size_us) % self.spacing_us


@dataclass(frozen=True, kw_only=True)
class SlidingWindow(PaneWindow):
    """Windows of `size_us`. A window begins every `slide_us`."""

    slide_us: int

    @property
    def length_us(self) -> int:
        """The size."""
        return self.size_us

    @property
    def spacing_us(self) -> int:
        """The slide."""
        return self.slide_us

    @property
    def panes(self) -> TumblingWindow:
        """Panes of the greatest length that divides the size and the slide."""
        pane_us = gcd(self.size_us, self.slide_us)
        return TumblingWindow(size_us=pane_us, offset_us=self.offset_us % pane_us)

    def last_end(self, panes: Times) -> Times:
        """The end of the window that begins last, at the start of the pane or before."""
        return panes - (panes - self.offset_us) % self.slide_us + self.size_us

    def starts_of(self, ends: Times) -> Times:
        """All windows have the same length."""
        return ends - self.size_us

    def first_kept(self, end_us: int) -> int:
        """The start of the next window."""
        return end_us - self.size_us + self.slide_us

    def __str__(self) -> str:
        return f"{self.size_us / 1_000_000:g} s every {self.slide_us / 1_000_000:g} s" + self._time

    def described(self) -> str:
        """Size, slide and offset."""
        return f"sliding {self.size_us} us by {self.slide_us} us, offset {self.offset_us} us" + self._time


@dataclass(frozen=True, kw_only=True)
class CumulativeWindow(PaneWindow):
    """Windows that begin together, every `size_us`, and last for one `step_us`, for two, and so on up to the size."""

    step_us: int

    @property
    def length_us(self) -> None:
        """Lengths differ."""
        return

    @property
    def spacing_us(self) -> int:
        """The step."""
        return self.step_us

    @property
    def panes(self) -> TumblingWindow:
        """Panes of one step."""
        return TumblingWindow(size_us=self.step_us, offset_us=self.offset_us % self.step_us)

    def last_end(self, panes: Times) -> Times:
        """The end of the window that has the whole size."""
        return self._begin(panes) + self.size_us

    def starts_of(self, ends: Times) -> Times:
        """Every `size_us` there is a start."""
        return self._begin(ends - 1)

    def first_kept(self, end_us: int) -> int:
        """The start of the window, unless the window has the whole size: then the end of the window."""
        return end_us - (end_us - self.offset_us) % self.size_us

    def _begin(self, times: Times) -> Times:
        return times - (times - self.offset_us) % self.size_us

    def __str__(self) -> str:
        return f"up to {self.size_us / 1_000_000:g} s by {self.step_us / 1_000_000:g} s"

    def described(self) -> str:
        """Size, step and offset."""
        return f"cumulative {self.size_us} us by {self.step_us} us, offset {self.offset_us} us"


def sliding(
    size: Duration, slide: Duration, *, offset: Duration = "0s", time: TimeOfWindows = "event"
) -> SlidingWindow:
    """Windows of one size that begin every `slide`: each record is in about `size / slide` windows.

    `sliding("5 min", "10s")` gives the last five minutes, every ten seconds. The size need not be a multiple of the
    slide. Windows begin at multiples of `slide` since 1970-01-01 00:00 UTC, moved by `offset`. Each record is added
    once, however many windows the record is in: windows share panes of the greatest length that divides the size and
    the slide. So a size and a slide without a common measure, such as 10 s and 7 ms, make many small panes. With
    `time="processing"` the clock says when a record came, and no watermark is needed.

    >>> import penstock as ps
    >>> str(ps.sliding("5 min", "10s"))
    '300 s every 10 s'
    """
    size_us = positive_us(size, argument="size", thing="a window")
    slide_us = positive_us(slide, argument="slide", thing="the time between two windows")
    if slide_us > size_us:
        raise UsageError(
            f"slide {slide!r} is longer than the window of {size!r}: records between two windows would be in no window",
            hint="give a slide up to the size, or choose the records before the window with where(...)",
        )
    offset_us = offset_below(slide_us, offset, period=slide, thing="slide")
    return SlidingWindow(size_us=size_us, slide_us=slide_us, offset_us=offset_us, by_clock=is_by_clock(time))


def cumulative(size: Duration, step: Duration, *, offset: Duration = "0s") -> CumulativeWindow:
    """Windows that begin together and grow: a record is in the window of its step, and in all longer windows up to
    `size`.

    `cumulative("1d", "1h")` gives, every hour, the day so far. The size is a multiple of the step. The first window of
    each group begins at a multiple of `size` since 1970-01-01 00:00 UTC, moved by `offset`. A key that has had no
    record since its group of windows began has no result; a key whose records are all in earlier steps has one.

    >>> import penstock as ps
    >>> str(ps.cumulative("1h", "10 min"))
    'up to 3600 s by 600 s'
    """
    size_us = positive_us(size, argument="size", thing="a window")
    step_us = positive_us(step, argument="step", thing="the growth of a window")
    if size_us % step_us:
        raise UsageError(
            f"size {size!r} is not a multiple of the step {step!r}",
            hint="give a step that divides the size",
        )
    return CumulativeWindow(
        size_us=size_us, step_us=step_us, offset_us=offset_below(size_us, offset, period=size, thing="window")
    )
