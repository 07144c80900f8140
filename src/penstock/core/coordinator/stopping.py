"""Stop with savepoint: the request is fulfilled when the savepoint is complete and every task has ended in success.

    IDLE ──begin──► SAVING ──saved──► SAVED ──all tasks finished──► IDLE   the path
                      │                 └── a task fails, or the attempt ends ──► IDLE   a failure that names the path
                      └── the savepoint failed ──► IDLE   a failure; the job goes on

A task that fails in SAVED fails the whole job: other tasks have ended and committed as of the savepoint, so no single
region can be restarted. The savepoint is kept. The failure of a task in SAVING is only remembered, for the case that
the savepoint turns out to be stored all the same; if the savepoint fails, the remembered failure has no effect. The
failure of a task while the request still waits in line is forgotten: all tasks run when the savepoint begins.

When a savepoint fails after tasks were triggered for it, sources may have ended because of the savepoint. So all tasks
are started again, and the restart strategy does not count this restart (`restart_after`).

Other requests wait in line while the stop is in SAVING, and go on if the savepoint fails. From SAVED on, no checkpoint
can begin before the attempt ends. So the requests that wait are answered when the savepoint is complete, and a request
that comes later is refused: tasks may take long to end, and a slot may be dead that nobody misses yet.

A job that fails in SAVED after a drain restarts from the savepoint and ends again. From the restart on, no checkpoint
begins: a checkpoint would save nothing new, and would take the place of the savepoint, which the job goes on from when
its program is run again. The request for the stop has its answer by then.
"""

from __future__ import annotations

from penstock.core.coordinator.effects import AnswerRequest, FailJob, RequestFailure
from penstock.core.ids import RequestId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint

StopEffect = AnswerRequest | FailJob

_ATTEMPT_IS_OVER = (
    CheckpointFailure.FAILOVER,
    CheckpointFailure.TASK_FAILED,
    CheckpointFailure.COORDINATOR_SHUTDOWN,
    CheckpointFailure.COORDINATOR_SUSPENDED,
)
"""Reasons that come from the end of an attempt: the tasks of that attempt end anyway and need no restart by the
stop."""


def restart_after(reason: CheckpointFailure, text: str) -> FailJob | None:
    """The restart that must follow when the savepoint that was to stop the job failed after tasks were triggered; None
    if the attempt is over anyway."""
    if reason in _ATTEMPT_IS_OVER:
        return None
    story = f"the savepoint that was to stop the job failed, because {reason.text}: {text}"
    return FailJob(reason=reason, text=story, free=True)


class StopWithSavepoint:
    """The stop that is under way, if there is a stop: at most one at a time."""

    def __init__(self) -> None:
        self._request: RequestId | None = None
        self._savepoint: CompletedCheckpoint | None = None
        self._trouble: str | None = None
        self._restarts_anyway = False
        self.ends_again = False
        """Whether the job has restarted from the savepoint that drained the job, and ends with that savepoint."""

    @property
    def is_under_way(self) -> bool:
        """Whether a stop has begun and is not answered yet, or the job ends again."""
        return self._request is not None or self.ends_again

    @property
    def is_saved(self) -> bool:
        """Whether the savepoint is complete, and tasks have yet to end."""
        return self._savepoint is not None or self.ends_again

    def begin(self, request: RequestId) -> None:
        """The savepoint has been asked for. Failures of tasks before the request do not count."""
        self._reset()
        self._request = request

    def started(self) -> None:
        """The savepoint begins, and all its tasks run. Failures of tasks before this moment do not count."""
        self._trouble = None
        self._restarts_anyway = False

    def failed(self) -> None:
        """There will be no savepoint. The caller of this method answers the request."""
        self._reset()

    def saved(self, savepoint: CompletedCheckpoint) -> list[StopEffect]:
        """The savepoint is durable."""
        self._savepoint = savepoint
        return self._give_up()

    def all_finished(self) -> list[StopEffect]:
        """Every task has ended in success."""
        if self._request is None or self._savepoint is None:
            return []
        answer = AnswerRequest(request=self._request, result=self._savepoint)
        self._reset()
        return [answer]

    def task_failed(self, text: str) -> list[StopEffect]:
        """A task has failed. If the savepoint is complete, the whole job fails, because the task must not restart
        alone."""
        self._trouble = text
        return self._give_up()

    def attempt_ended(self, text: str) -> list[StopEffect]:
        """All tasks restart, or the job is over."""
        self._trouble = text
        self._restarts_anyway = True
        return self._give_up()

    def _give_up(self) -> list[StopEffect]:
        if self._request is None or self._savepoint is None or self._trouble is None:
            return []
        path, trouble = self._savepoint.path, self._trouble
        failure = RequestFailure(
            reason=CheckpointFailure.TASK_FAILED,
            text=f"the savepoint {path} was taken, but the job did not stop: {trouble}",
            savepoint=path,
        )
        effects: list[StopEffect] = [AnswerRequest(request=self._request, result=failure)]
        if not self._restarts_anyway:
            effects.append(
                FailJob(reason=CheckpointFailure.TASK_FAILED, text=f"while stopping with savepoint {path}: {trouble}")
            )
        self._reset()
        return effects

    def _reset(self) -> None:
        self._request = self._savepoint = self._trouble = None
        self._restarts_anyway = False
