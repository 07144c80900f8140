"""What the records of a connected stream are to wait for, as users say it."""

from __future__ import annotations

import datetime
from typing import Any

from penstock.api.functions import time_in_us
from penstock.core.durations import duration_ms
from penstock.core.errors import UsageError
from penstock.core.task.waiting import WaitFor


def wait_for(given: Any, *, has_time: bool) -> WaitFor | None:
    """What `wait=` means, for a broadcast stream that has event time or not. Raises `UsageError`."""
    if given is None:
        return None
    if given == "end":
        return WaitFor()
    if isinstance(given, datetime.datetime):
        if not has_time:
            raise UsageError(
                f"wait is {given}, a point of event time, and the broadcast stream has none",
                hint='add .watermark("<column>") to the broadcast stream; or give wait="end", or a duration',
            )
        return WaitFor(watermark_us=time_in_us(given))
    return WaitFor(time_ms=duration_ms(given, argument="wait"))
