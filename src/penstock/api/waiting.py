"""What the keyed records of a connected stream wait for: the argument `wait` of `connect`."""

from __future__ import annotations

import datetime
from typing import Any

from penstock.api.functions import time_in_us
from penstock.core.durations import duration_ms
from penstock.core.errors import UsageError
from penstock.core.task.waiting import WaitFor


def wait_for(given: Any, *, has_time: bool) -> WaitFor | None:
    """What `wait=` means. `has_time` says whether the broadcast stream has event time. Raises `UsageError`."""
    if given is None:
        return None
    if given == "end":
        return WaitFor()
    if isinstance(given, datetime.datetime):
        if not has_time:
            raise UsageError(
                f"wait is {given}, a point of event time, and the broadcast stream has no event time",
                hint='add .watermark("<column>") to the broadcast stream; or give wait="end", or a duration',
            )
        return WaitFor(watermark_us=time_in_us(given))
    return WaitFor(time_ms=duration_ms(given, argument="wait"))
