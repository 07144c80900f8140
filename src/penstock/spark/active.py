"""Which session Spark's own code finds on a thread."""

from __future__ import annotations

from typing import Any

from penstock.spark import connect

GROUP = "penstock-on-driver"
"""The job group of what the driver's parts of a job ask of Spark."""


def make_active(session: Any) -> None:
    """Have whatever this thread asks of Spark find this session, as a function of Spark's `foreachBatch` does: data
    sources in Python, for one, are looked up in the session that is active where they are written to."""
    if connect.is_connect(session):
        session._set_default_and_active_session(session)  # noqa: SLF001  # no public way
    else:
        # PySpark does the same where it makes a session, and has no name for it either.
        java = session._jvm  # noqa: SLF001
        session._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)  # noqa: SLF001
        # Ctrl-C cancels what has no group: that is what the main thread does.
        session.sparkContext.setJobGroup(GROUP, "a function that is called for checkpoints")
