"""Keeps what Spark logs of slots out of the user's terminal.

A slot that is killed, or stopped, is a failed task to Spark, which tells it with stack traces of its own. Whoever runs
the job is told by the job, in one line. What Spark logs of anybody else's tasks stays as it is: a filter is put before
Spark's appenders that knows slots by a mark in the context of the thread that logs, or by their tag in the text.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.spark import connect

log = logging.getLogger(__name__)

MARK = "mdc.penstock"
"""Spark puts local properties that begin like this into the logging context of the threads that run tasks."""
_NAME = "penstock-slots"
_TEXTS = r"(?s).*(penstock-\S+-slot-\d|Python worker exited unexpectedly).*"


def mark_thread(session: Any) -> None:
    """What this thread submits is a slot."""
    context = session.sparkContext
    context.setLocalProperty(MARK, _NAME)
    try:
        # What Spark logs in this thread itself, on the driver.
        context._jvm.org.apache.logging.log4j.ThreadContext.put(MARK, _NAME)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # another logging library than Spark's own: the job runs all the same
        log.debug("a thread of Spark's could not be marked: %s", error)


def keep_quiet(session: Any) -> None:
    """Have this session's JVM log nothing of slots. Asking again changes nothing, and nor does a JVM that logs in
    another way than Spark's own."""
    if connect.is_connect(session):
        return
    context = session.sparkContext
    try:
        _filter(context._jvm, context._gateway)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # another logging library than Spark's own: the job runs all the same
        log.debug("what Spark logs of slots could not be filtered: %s", error)


def _filter(java: Any, gateway: Any) -> None:
    core = java.org.apache.logging.log4j.core
    result = getattr(core, "Filter$Result")
    properties = java.java.lang.System
    if properties.getProperty(_NAME) is not None:
        return
    pairs = gateway.new_array(core.util.KeyValuePair, 2)
    for at, name in enumerate((MARK, MARK.partition(".")[2])):
        pairs[at] = core.util.KeyValuePair(name, _NAME)
    filters = [
        core.filter.ThreadContextMapFilter.createFilter(pairs, "or", result.DENY, result.NEUTRAL),
        core.filter.RegexFilter.createFilter(_TEXTS, None, False, result.DENY, result.NEUTRAL),  # noqa: FBT003
    ]
    found = java.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getAppenders()  # noqa: FBT003
    for name in list(found):
        for made in filters:
            made.start()
            found[name].addFilter(made)
    properties.setProperty(_NAME, "filtered")
