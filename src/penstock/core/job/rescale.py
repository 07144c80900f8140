"""A change of parallelism on its way: the job runs as it did until nothing is missing for the next attempt.

    asked for ── all additional slots are up ──► prepared ── its checkpoint is complete ──► the tasks go over

Whatever goes wrong on the way ends it, and leaves the job as it is.
"""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.events import JobState, RescaleRequested


class Rescale:
    """What is asked for, and how far it has come."""

    def __init__(self, request: RescaleRequested, until: Instant) -> None:
        self.request = request
        self.until: Instant | None = until
        """When all additional slots must be up; None if they are, since then the deadline of the checkpoint counts."""

    @property
    def is_prepared(self) -> bool:
        """Whether all additional slots are up."""
        return self.until is None

    def is_late(self, now: Instant) -> bool:
        """Whether additional slots are missing that should be up by now."""
        return self.until is not None and now >= self.until


def refusal_of(request: RescaleRequested, state: JobState, slots: int, under_way: Rescale | None) -> str | None:
    """Why a job in this state, with so many slots, cannot be rescaled now; None if it can."""
    if under_way is not None:
        return f"the job is already on its way to {under_way.request.slots} slots"
    if state is not JobState.RUNNING:
        return f"the job is {state.value}, and can be rescaled only while it is running"
    return f"the job has {slots} slots already" if request.slots == slots else None
