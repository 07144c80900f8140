"""Keeps Spark's log messages about slots out of the user's terminal.

For Spark, a slot that is killed or stopped is a failed task, and Spark logs stack traces about it. The job itself tells
its user about the slot, in one line. Spark's log messages about other tasks stay: a filter in front of Spark's
appenders drops only messages about slots, which have a mark in the context of the thread that logs, or the tag of a
slot in the text.
"""

from __future__ import annotations

import logging
from typing import Any

from penstock.spark import connect

log = logging.getLogger(__name__)

MARK = "mdc.penstock"
"""The name of the mark. Spark puts local properties whose names begin with `mdc.` into the logging context of the
threads that run tasks."""
_NAME = "penstock-slots"
_TEXTS = r"(?s).*(penstock-\S+-slot-\d|Python worker exited unexpectedly).*"


def mark_thread(session: Any) -> None:
    """Mark the Spark jobs that this thread submits as slots."""
    context = session.sparkContext
    context.setLocalProperty(MARK, _NAME)
    try:
        # This marks what Spark logs on the driver, in the JVM's thread for this thread.
        context._jvm.org.apache.logging.log4j.ThreadContext.put(MARK, _NAME)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # another logging library than Spark's own: the job runs all the same
        log.debug("a thread of Spark could not be marked: %s", error)


def keep_quiet(session: Any) -> None:
    """Have this session's JVM log nothing about slots. A second call does nothing, and neither does a call for a JVM
    that does not log by Log4j, as Spark does."""
    if connect.is_connect(session):
        return
    context = session.sparkContext
    try:
        _filter(context._jvm, context._gateway)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # another logging library than Spark's own: the job runs all the same
        log.debug("Spark's log messages about slots could not be filtered: %s", error)


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
