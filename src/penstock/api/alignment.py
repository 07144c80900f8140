"""How far a source may read ahead of other sources."""

from __future__ import annotations

from penstock.core.alignment.times import Alignment as Alignment
from penstock.core.durations import Duration, duration_ms, duration_us
from penstock.core.errors import UsageError


def checked_alignment(given: object) -> Alignment | None:
    """What was given as `align`. Raises `UsageError` if that is no alignment."""
    if given is None or isinstance(given, Alignment):
        return given
    raise UsageError(f"align is {given!r}", hint='write align=ps.alignment("a name", max_drift="1 min")')


def alignment(group: str, *, max_drift: Duration, update_interval: Duration = "1s") -> Alignment:
    """Sources of one group read evenly: no source reads further ahead of the others than `max_drift`, in event time.

    Without alignment a fast source runs ahead of a slow source, and windows and joins that read both have to keep
    everything that the fast source gave. With alignment every source of the group, and every split of a source, waits
    when its event time is more than `max_drift` above the least event time of the group. A source that has ended, or is
    idle (`idle_after` of `watermark`), holds nobody back. A source that is silent and not idle holds all others back.

    >>> import datetime
    >>> import penstock as ps
    >>> from penstock.testing import collect, run
    >>> def row(user, hour, minute):
    ...     return {"user": user, "ts": datetime.datetime(2026, 1, 1, hour, minute)}
    >>> together = ps.alignment("shop", max_drift="1 min")
    >>> def program(env):
    ...     orders = env.from_iterable([row("ann", 12, 0), row("bob", 13, 0)], name="orders")
    ...     clicks = env.from_iterable([row("ann", 12, 0), row("ann", 12, 30)], name="clicks")
    ...     both = orders.watermark("ts", align=together).union(clicks.watermark("ts", align=together))
    ...     both.key_by("user").window(ps.tumbling("1h")).aggregate(n=ps.count()).write(collect())
    >>> sorted((row["user"], row["n"]) for row in run(program))
    [('ann', 3), ('bob', 1)]

    Args:
        group: the name of the group. All sources of a program that name the same group are aligned.
        max_drift: how far ahead of the group a source may read.
        update_interval: how often sources tell each other how far they have come. A source that has come a good part of
            `max_drift` further says so at once.

    """
    if not isinstance(group, str) or not group.strip():
        raise UsageError(f"alignment: group is {group!r}; give the group a name")
    drift_us = duration_us(max_drift, argument="max_drift")
    interval_ms = duration_ms(update_interval, argument="update_interval")
    if interval_ms == 0:
        raise UsageError(f"update_interval is {update_interval!r}; give a duration above 0")
    return Alignment(group=group, drift_us=drift_us, interval_ms=interval_ms)
