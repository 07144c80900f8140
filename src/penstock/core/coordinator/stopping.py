"""Stop with savepoint: the request is fulfilled when the savepoint is there and every task has ended in success.

    IDLE ──begin──► SAVING ──saved──► SAVED ──all tasks finished──► IDLE   the path
                      │                 └── a task fails, or the attempt ends ──► IDLE   a failure that names the path
                      └── the savepoint failed ──► IDLE   a failure; the job goes on

A task that fails in SAVED fails the whole job: others have ended and committed as of the savepoint, so no single region
can be restarted. The savepoint is kept. Trouble in SAVING is only remembered, for the case that the savepoint turns out
to be stored all the same; if it fails, no failure is made out of what tasks did. Trouble while the request still waits
in line is forgotten: all tasks run when it is its turn.
"""

from __future__ import annotations

from penstock.core.coordinator.effects import AnswerRequest, FailJob, RequestFailure
from penstock.core.ids import RequestId
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint

StopEffect = AnswerRequest | FailJob


class StopWithSavepoint:
    """At most one stop at a time."""

    def __init__(self) -> None:
        self._request: RequestId | None = None
        self._savepoint: CompletedCheckpoint | None = None
        self._trouble: str | None = None
        self._restarts_anyway = False

    @property
    def is_under_way(self) -> bool:
        """Whether a stop has begun and is not answered yet."""
        return self._request is not None

    def begin(self, request: RequestId) -> None:
        """The savepoint has been asked for; trouble of earlier times does not count."""
        self._reset()
        self._request = request

    def started(self) -> None:
        """The savepoint is on its way to tasks that all run; trouble of before does not count."""
        self._trouble = None
        self._restarts_anyway = False

    def failed(self) -> None:
        """There will be no savepoint; whoever says so answers the request."""
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
        """A task has failed; without us it might restart alone."""
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
