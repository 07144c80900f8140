"""What has happened to a job since its driver began, with times: states, attempts, tasks, changes of parallelism.

The chronicle decides nothing. It hears the effects of the lifecycle when they are performed, and remembers a bounded
number of attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from penstock.core.ids import CheckpointId, Epoch, Instant, TaskId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptRescaled,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnding,
    JobState,
    RegionEnded,
    RescaleGivenUp,
    RescalePrepared,
    RunTasks,
)
from penstock.plan.graph import Plan
from penstock.runtime.facts import AttemptView, RescaleView, TaskView

OF_ATTEMPTS = (
    DeployTasks,
    AttemptEnded,
    RegionEnded,
    AttemptRescaled,
    RescalePrepared,
    RescaleGivenUp,
    JobEnding,
)
"""The effects that the chronicle writes down."""
ATTEMPTS_KEPT = 100
RESCALES_KEPT = 20


class Chronicle:
    """The chronicle of one job."""

    def __init__(self) -> None:
        self.entered: dict[JobState, Instant] = {}
        """When the job entered each state, the last time."""
        self.attempts: deque[AttemptView] = deque(maxlen=ATTEMPTS_KEPT)
        """Oldest first."""
        self.tasks: dict[TaskId, TaskView] = {}
        """The tasks of the newest attempt."""
        self.rescales: deque[RescaleView] = deque(maxlen=RESCALES_KEPT)
        """Oldest first."""
        self._state: JobState | None = None

    def is_in(self, state: JobState, now: Instant) -> None:
        """The job is in this state."""
        if state is not self._state:
            self._state = state
            self.entered[state] = now

    def saw(self, effect: JobEffect, now: Instant, *, rows_read: int) -> None:
        """An effect of the lifecycle is being performed. `rows_read` is how many records the sources have read, in all
        attempts."""
        match effect:
            case DeployTasks():
                tasks = None if effect.tasks is None else len(effect.tasks)
                self.attempts.append(
                    AttemptView(epoch=effect.epoch, tasks=tasks, deployed=now, rows_read_before=rows_read)
                )
            case AttemptEnded():
                self._end("failed", now, rows_read, effect.cause, effect.restart_in_ms)
                self._end_tasks(None, now, effect.cause)
            case RegionEnded():
                self._end("region failed", now, rows_read, effect.cause, effect.restart_in_ms)
                self._end_tasks(effect.tasks, now, effect.cause)
            case AttemptRescaled():
                self._end("rescaled", now, rows_read)
                self._rescale_is("changing", now, after=effect.slots)
                self.tasks = {}
            case RescalePrepared():
                self._rescale_is("prepared", now)
            case RescaleGivenUp():
                self._rescale_is("failed", now, text=effect.text)
            case JobEnding():
                self._end(effect.outcome.value, now, rows_read, effect.cause)
            case _:
                pass

    def deployed(self, plan: Plan, epoch: Epoch, tasks: Iterable[TaskId] | None, now: Instant) -> None:
        """These tasks, or all tasks of the plan, were sent to their slots."""
        before = self.tasks
        if tasks is None:
            self.tasks = {}
        for task in plan.tasks if tasks is None else tasks:
            earlier = before.get(task)
            attempt = 0 if earlier is None else earlier.attempt + 1
            self.tasks[task] = TaskView(attempt=attempt, epoch=epoch, deployed=now)

    def run(self, effect: RunTasks, now: Instant, *, restored: CheckpointId | None) -> None:
        """Tasks begin; `restored` is the checkpoint that they start from."""
        if self.attempts and self.attempts[-1].ran is None:
            self.attempts[-1] = replace(self.attempts[-1], ran=now, restored=restored)
        for task in list(self.tasks) if effect.tasks is None else effect.tasks:
            if task in self.tasks:
                self.tasks[task] = replace(self.tasks[task], ran=now)
        self._rescale_is("completed", now)

    def task_ended(self, task: TaskId, now: Instant) -> None:
        """A task has ended for good."""
        if (found := self.tasks.get(task)) is not None:
            self.tasks[task] = replace(found, ended=now)

    def rescale_asked(self, before: int, after: int, now: Instant) -> None:
        """A user wants another parallelism."""
        self.rescales.append(RescaleView(asked=now, before=before, after=after))

    def _end(
        self,
        how: str,
        now: Instant,
        rows_read: int,
        cause: FailureCause | None = None,
        restart_in_ms: int | None = None,
    ) -> None:
        if self.attempts and self.attempts[-1].ended is None:
            self.attempts[-1] = replace(
                self.attempts[-1],
                ended=now,
                how=how,
                rows_read_after=rows_read,
                cause=cause,
                restart_in_ms=restart_in_ms,
            )

    def _end_tasks(self, tasks: Iterable[TaskId] | None, now: Instant, cause: FailureCause) -> None:
        for task in list(self.tasks) if tasks is None else tasks:
            found = self.tasks.get(task)
            if found is not None and found.ended is None:
                self.tasks[task] = replace(found, ended=now, failed=cause.subtask == task.subtask)

    def _rescale_is(self, state: str, now: Instant, *, text: str = "", after: int | None = None) -> None:
        if not self.rescales or self.rescales[-1].is_over:
            return
        last = self.rescales[-1]
        if state == "completed" and last.state != "changing":
            return
        self.rescales[-1] = replace(
            last,
            state=state,
            times={**last.times, state: now},
            text=text,
            after=last.after if after is None else after,
        )
