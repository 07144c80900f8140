"""Windows that no time cuts: all records together, and a number of records."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from penstock.api.pane_windows import PaneWindow, SlidingWindow
from penstock.api.windows import Times, TumblingWindow, WindowType
from penstock.core.errors import UsageError

_INT64 = np.iinfo(np.int64)
_END = 2**61
"""The end of the window with all records. No watermark comes to it but the watermark at the end of event time."""


@dataclass(frozen=True, kw_only=True)
class _Everything(TumblingWindow):
    """The only pane of the window with all records."""

    def assign(self, times: Times) -> Times:
        """The same pane for all times."""
        return np.zeros(len(times), np.int64)


@dataclass(frozen=True, kw_only=True)
class GlobalWindow(PaneWindow):
    """A single window with all records of a key."""

    size_us: int = _END
    has_bounds: ClassVar[bool] = False

    @property
    def length_us(self) -> int:
        """So long that no watermark reaches the end."""
        return self.size_us

    @property
    def spacing_us(self) -> int:
        """The length."""
        return self.size_us

    @property
    def panes(self) -> TumblingWindow:
        """A single pane."""
        return _Everything(size_us=self.size_us)

    def times(self) -> tuple[int, int]:
        """All times."""
        return int(_INT64.min), int(_INT64.max)

    def first_end(self, panes: Times) -> Times:
        """The end."""
        return np.full(len(panes), self.size_us)

    def last_end(self, panes: Times) -> Times:
        """The end."""
        return np.full(len(panes), self.size_us)

    def starts_of(self, ends: Times) -> Times:
        """The beginning."""
        return np.zeros(len(ends), np.int64)

    def end_after(self, times: Times) -> Times:
        """The end. Behind the end there is another end, which no window has."""
        return np.where(times < self.size_us, self.size_us, 2 * self.size_us)

    def first_kept(self, end_us: int) -> int:  # noqa: ARG002
        """No pane is needed any more."""
        return 1

    def __str__(self) -> str:
        return "all records"

    def described(self) -> str:
        """The name."""
        return "global"


@dataclass(frozen=True, kw_only=True)
class CountWindow(WindowType):
    """Windows of the last `size` records of a key, every `slide` records."""

    size: int
    slide: int
    by_clock: bool = False
    has_bounds: ClassVar[bool] = False

    @property
    def positions(self) -> SlidingWindow:
        """The windows over the numbers of a key's records, as if the numbers were times."""
        return SlidingWindow(size_us=self.size, slide_us=self.slide, offset_us=-self.size % self.slide)

    @property
    def pane(self) -> int:
        """The number of records of a pane: each window is made of whole panes."""
        return gcd(self.size, self.slide)

    @property
    def length_us(self) -> int:
        """The size, in numbers of records."""
        return self.size

    @property
    def spacing_us(self) -> int:
        """The difference of two panes, in numbers of records."""
        return self.pane

    def times(self) -> tuple[int, int]:
        """Records have no times here."""
        return int(_INT64.min), int(_INT64.max)

    def __str__(self) -> str:
        return f"{self.size} records" + (f" every {self.slide} records" if self.slide != self.size else "")

    def described(self) -> str:
        """Size and slide."""
        return f"count {self.size} by {self.slide}"


def global_window() -> GlobalWindow:
    """A single window with all records, of each key or altogether. Its result comes at the end of the data; with
    `.updates(every=...)` behind `aggregate`, it comes as it changes. No event time is needed.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = env.from_iterable([{"k": "a", "n": 1}, {"k": "b", "n": 2}, {"k": "a", "n": 3}])
    ...     rows.key_by("k").window(ps.global_window()).aggregate(total=ps.sum("n")).write(ps.collect())
    >>> sorted((row["k"], row["total"]) for row in run(program))
    [('a', 4), ('b', 2)]
    """
    return GlobalWindow()


def count_window(n: int, slide: int | None = None) -> CountWindow:
    """Windows of `n` records of a key, in the order in which they come; with `slide`, the last `n` records after every
    `slide` records. No event time is needed. A window that has not got its records gives no result, not even at the end
    of the data.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = env.from_iterable([{"n": n} for n in range(1, 6)])
    ...     rows.window(ps.count_window(2)).aggregate(total=ps.sum("n")).write(ps.collect())
    >>> run(program, parallelism=1)
    [{'total': 3}, {'total': 7}]
    """
    for name, given in (("n", n), ("slide", n if slide is None else slide)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise UsageError(f"count_window: {name} is {given!r}; give a whole number of records above 0")
    if slide is not None and slide > n:
        raise UsageError(
            f"count_window: slide is {slide}, which is more than the {n} records of a window",
            hint="records between two windows would be in none; give a slide of n at most",
        )
    return CountWindow(size=n, slide=n if slide is None else slide)
