"""Every reason a checkpoint can fail: a closed list.

`counts` says whether the failure counts against the tolerated number; `preflight` whether it can occur before any task
was triggered.
"""

from __future__ import annotations

from enum import Enum


class CheckpointFailure(Enum):
    """Why a checkpoint, or a request for one, failed. The value is the reason as a sentence."""

    text: str
    """The reason as a sentence without a full stop."""
    counts: bool
    """Whether a failure for this reason counts against `tolerable_failures`."""
    preflight: bool
    """Whether a failure for this reason can occur before any task was triggered."""

    def __new__(cls, text: str, *flags: str) -> CheckpointFailure:
        """A member whose value is its text; the flags `counts` and `preflight` set the fields of these names."""
        member = object.__new__(cls)
        member._value_ = text
        member.text = text
        member.counts = "counts" in flags
        member.preflight = "preflight" in flags
        return member

    # Before any task was triggered.
    PERIODIC_SCHEDULER_SHUTDOWN = "the periodic schedule is off", "preflight"
    TOO_MANY_REQUESTS = "too many checkpoint requests are waiting", "preflight"
    MINIMUM_PAUSE = "the minimum pause after the last checkpoint has not passed", "preflight"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not all required tasks are running", "preflight"
    IO = "the checkpoint storage, or another outside system, failed", "counts", "preflight"
    TRIGGER_FAILED = "triggering the checkpoint failed"

    # While tasks take their snapshots.
    ASYNC_PART_FAILED = "writing a task's snapshot failed", "counts"
    DECLINED = "a task declined", "counts"
    EXPIRED = "not all tasks acknowledged in time", "counts"
    DECLINED_TASK_NOT_READY = "a task was not ready for a checkpoint"
    DECLINED_TASK_CLOSING = "a task was closing"
    DECLINED_SUBSUMED = "a task saw a barrier of a newer checkpoint"
    DECLINED_ON_CANCELLATION = "a task was told upstream that the checkpoint is cancelled"
    DECLINED_INPUT_END_OF_STREAM = "an input of a task ended before its barrier"
    TASK_FAILED = "a task failed"
    UNKNOWN_TASK_NOTIFICATION_FAILED = "a task could not be told"

    # On the master.
    SUBSUMED = "a newer checkpoint completed first"
    FINALIZE_FAILED = "the completed checkpoint could not be recorded", "counts"
    COORDINATOR_SHUTDOWN = "the checkpoint coordinator has shut down"
    COORDINATOR_SUSPENDED = "the checkpoint coordinator is suspended"
    FAILOVER = "tasks of the job restarted"
