"""The session that Spark's own code takes for the active session of a thread."""

from __future__ import annotations

from typing import Any

from penstock.spark import connect

GROUP = "penstock-on-driver"
"""The group of the Spark jobs that functions of the user start on the driver, when they are called for checkpoints."""


def make_active(session: Any) -> None:
    """Make `session` the active session of this thread, as Spark does for a function of `foreachBatch`. For example,
    Spark looks up a Python Data Source that is written to in the active session."""
    if connect.is_connect(session):
        session._set_default_and_active_session(session)  # noqa: SLF001  # no public way
    else:
        # PySpark makes these same calls when it makes a session, and has no public method for them.
        java = session._jvm  # noqa: SLF001
        session._get_j_spark_session_class(java).setActiveSession(session._jsparkSession)  # noqa: SLF001
        # Ctrl-C cancels the Spark jobs of the main thread, which have no group. With a group, the Spark jobs of this
        # thread go on.
        session.sparkContext.setJobGroup(GROUP, "a function that is called for checkpoints")
