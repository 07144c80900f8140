"""How event time is cut into windows."""

from __future__ import annotations

from penstock.api.durations import Duration, duration_us
from penstock.api.steps import TumblingWindow
from penstock.core.errors import UsageError


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
