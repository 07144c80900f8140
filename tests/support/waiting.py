"""Waiting for what a job on a real Spark brings about."""

from __future__ import annotations

import time

import penstock as ps
from penstock.core.job.events import JobState

PATIENCE_S = 120


def wait_until(job: ps.Job, true) -> ps.JobView:
    """The first view for which it is true. Fails if the job ends before, or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not true(view := job.view()):
        assert view.state not in (JobState.FAILED, JobState.FINISHED), view.failures
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    return view
