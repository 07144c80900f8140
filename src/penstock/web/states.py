"""The states of jobs and tasks in the words of Flink's interface."""

from __future__ import annotations

from penstock.core.job.events import JobState
from penstock.runtime.facts import TaskView

JOB_STATES = (
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
)
TASK_STATES = (
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
)
ENDED = ("FINISHED", "CANCELED", "FAILED", "SUSPENDED")
"""The states of a job to which nothing more happens."""

_OF_JOB = {
    JobState.STANDBY: "RECONCILING",
    JobState.CREATED: "CREATED",
    JobState.STARTING: "CREATED",
    JobState.DEPLOYING: "INITIALIZING",
    JobState.RUNNING: "RUNNING",
    JobState.FAILING: "RESTARTING",
    JobState.RESTARTING: "RESTARTING",
    JobState.REPAIRING: "RUNNING",
    JobState.RESCALING: "RESTARTING",
    JobState.FINISHED: "FINISHED",
    JobState.CANCELLED: "CANCELED",
    JobState.FAILED: "FAILED",
    JobState.SUSPENDED: "SUSPENDED",
}
_BY_HOW = {"failed": "FAILING", "cancelled": "CANCELLING", "finished": "RUNNING", "suspended": "RUNNING"}


def job_state(state: JobState, how: str = "") -> str:
    """The state of a job. `how` says what the outcome of a job that is ending will be."""
    if state is JobState.ENDING:
        return _BY_HOW.get(how, "RUNNING")
    return _OF_JOB[state]


def task_state(job: JobState, task: TaskView | None) -> str:  # one line per state
    """The state of a task."""
    if task is None:
        return {
            JobState.FINISHED: "FINISHED",
            JobState.CANCELLED: "CANCELED",
            JobState.FAILED: "CANCELED",
            JobState.STARTING: "SCHEDULED",
        }.get(job, "CREATED")
    if task.failed:
        return "FAILED"
    if task.ended is not None and job in (JobState.FAILING, JobState.RESTARTING, JobState.REPAIRING):
        return "CANCELED"
    if task.ended is not None and job is not JobState.FAILED:
        return "FINISHED"
    if job in (JobState.CANCELLED, JobState.FAILED, JobState.SUSPENDED):
        return "CANCELED"
    if job in (JobState.FAILING, JobState.RESCALING):
        return "CANCELING"
    if job is JobState.FINISHED:
        return "FINISHED"
    return "INITIALIZING" if task.ran is None else "RUNNING"


_WORST = (
    "FAILED",
    "CANCELING",
    "CANCELED",
    "INITIALIZING",
    "DEPLOYING",
    "SCHEDULED",
    "CREATED",
    "RECONCILING",
    "RUNNING",
    "FINISHED",
)


def worst(states: list[str]) -> str:
    """The state of a vertex whose tasks have these states."""
    return next((state for state in _WORST if state in states), "CREATED")
