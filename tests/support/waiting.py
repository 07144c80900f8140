"""Waiting for what a job on a real Spark, or a process, brings about: long enough for a machine that is slow and busy,
since a wait that succeeds costs nothing, and not for ever, since a test that hangs ends all others."""

from __future__ import annotations

import time
from collections.abc import Callable

import penstock as ps

PATIENCE_S = 180


def wait_until(job: ps.Job, true: Callable[[ps.JobView], object]) -> ps.JobView:
    """The first view for which it is true. Fails if the job ends before, or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        # Asked before: the last view of a job that is over is the one that counts.
        is_over = job.is_over
        if true(view := job.view()):
            return view
        if is_over:
            job.wait()
            raise AssertionError(f"the job ended before the test saw what it waited for: {view}")
        assert time.monotonic() < deadline, view
        time.sleep(0.02)


def wait_for_it(true: Callable[[], object], what: str) -> None:
    """Until it is true. Fails, with what was waited for, if that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what}: not after {PATIENCE_S} s"
        time.sleep(0.02)
