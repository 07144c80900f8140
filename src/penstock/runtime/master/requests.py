"""The requests of users to a running job, and the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import AnswerRequest, RequestFailure
from penstock.core.coordinator.events import CheckpointForm, CheckpointRequested, CoordinatorEvent, RequestKind
from penstock.core.ids import RequestId
from penstock.core.job.events import JobEvent, RescaleConfirmed, RescaleFailing, RescaleRequested
from penstock.core.job.regions import regions_of
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """A request for a checkpoint or a savepoint, or to stop the job with a savepoint."""

    kind: RequestKind
    target: str | None = None
    """The folder that the folder of a savepoint is made in; None for a checkpoint."""
    drain: bool = False
    """For a stop: event time goes to its end before the savepoint."""
    canonical: bool = False
    """For a savepoint: use the format that every back end can restore, instead of the back end's own format."""
    form: CheckpointForm = CheckpointForm.CONFIGURED
    """For a checkpoint only."""

    def event(self, request: RequestId) -> CheckpointRequested:
        """The event that tells the checkpoint coordinator of the request."""
        return CheckpointRequested(
            request=request,
            kind=self.kind,
            target=self.target,
            drain=self.drain,
            canonical=self.canonical,
            form=self.form,
        )


Answer = Callable[[CompletedCheckpoint | RequestFailure], None]
RescaleAnswer = Callable[[str | None], None]
"""Called with the reason why the parallelism was not changed, or with None if the job runs with the requested
parallelism."""


class SnapshotRequests:
    """The open requests for checkpoints and savepoints. Every request is answered exactly once."""

    def __init__(self, feed: Callable[[CoordinatorEvent], None]) -> None:
        self._feed = feed
        self._count = 0
        self._answers: dict[RequestId, Answer] = {}

    def ask(self, request: SnapshotRequest, answer: Answer) -> None:
        """Have the checkpoint coordinator do what a user asks for."""
        self._count += 1
        number = RequestId(self._count)
        self._answers[number] = answer
        self._feed(request.event(number))

    def tell(self, request: RequestId, result: CompletedCheckpoint | RequestFailure) -> None:
        """Answer a request."""
        self._answers.pop(request)(result)


class RescaleRequests:
    """Takes a request to rescale through its steps: slots, then a checkpoint, then the change."""

    def __init__(self, *, feed: Callable[[JobEvent], None], request: Callable[[SnapshotRequest, Answer], None]) -> None:
        self._feed = feed
        self._request = request
        self._answer: RescaleAnswer | None = None
        self._is_changing = False

    def ask(self, plan: Plan, answer: RescaleAnswer) -> None:
        """The user wants the parallelism of `plan`; `answer` is called once."""
        if self._answer is not None:
            answer("the job is already being rescaled")
            return
        self._answer = answer
        regions = regions_of(checkpoint_graph(plan))
        self._feed(RescaleRequested(slots=plan.parallelism, tasks=plan.tasks, regions=regions))

    def prepared(self) -> None:
        """All slots are there: take the checkpoint that the tasks of the requested parallelism start from. The
        checkpoint is taken this late so that little is read again."""

        def saved(result: CompletedCheckpoint | RequestFailure) -> None:
            if isinstance(result, RequestFailure):
                text = result.text or (result.reason.text if result.reason is not None else "no reason given")
                self._feed(RescaleFailing(text=f"the checkpoint before the rescale failed: {text}"))
            else:
                self._feed(RescaleConfirmed())

        self._request(SnapshotRequest(kind=RequestKind.CHECKPOINT), saved)

    def changing(self) -> None:
        """The change begins: from here on the job has the requested parallelism, even if the attempt fails."""
        self._is_changing = True

    def running(self) -> None:
        """An attempt runs."""
        if self._is_changing:
            self._tell(None)

    def given_up(self, text: str) -> None:
        """The rescale is given up: the parallelism stays as it is, or the job is over."""
        self._tell(text)

    def _tell(self, text: str | None) -> None:
        answer, self._answer = self._answer, None
        self._is_changing = False
        if answer is not None:
            answer(text)


def answer_to_stop(effect: AnswerRequest, *, has_stopped: bool) -> CompletedCheckpoint | RequestFailure:
    """The answer to the user who stopped the job."""
    if has_stopped or not isinstance(effect.result, CompletedCheckpoint):
        return effect.result
    text = "the stop is not on record: another driver has taken the job over, or can take it over and go on"
    return RequestFailure(reason=CheckpointFailure.COORDINATOR_SUSPENDED, text=text, savepoint=effect.result.path)


def refusal_to_rescale(parallelism: int, plan: Plan, coordinator: CheckpointCoordinator) -> str | None:
    """Why a running job cannot be rescaled to that parallelism; None if the job can be rescaled."""
    if not 1 <= parallelism <= plan.max_parallelism:
        return f"the parallelism must be from 1 to {plan.max_parallelism}, the job's max_parallelism"
    return "the job is being stopped with a savepoint" if coordinator.is_stopping else None
