"""The end of a job: how it ended is recorded, then whatever only a running job needs goes.

    outcome decided ──► recorded ──► coordinator shut down ──► slots have left ──► cleaned up ──► over

Only a job that may outlive its driver records its outcome, and keeps the record. It is written before anything else
goes: a driver that crashes between the two leaves a job that has ended, not one that seems never to have begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.api.steps import WriteStep
from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.events import JobEnd
from penstock.core.errors import ExternalError, JobTakenOver, Retry
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.job.clean_up import CleanUp
from penstock.core.job.events import JobEnded, JobEnding, JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Foreign, Tenure
from penstock.core.recovery.tenure import Outcome as JobOutcome
from penstock.plan.graph import Plan
from penstock.ports import Background, JobRecords, Outcome, Store
from penstock.runtime.landed_inputs import LandedInputs
from penstock.runtime.master_ports import MasterPorts
from penstock.runtime.saved_results import SavedResults
from penstock.storage.places import delete_folder, delete_foreign

RECORD_ATTEMPTS = 8
"""A storage that refuses the outcome so often stays as it is: the job could be taken over and would go on."""
ATTEMPTS = 5
RETRY_MS = 1_000

JOB_END = {
    JobState.FINISHED: JobEnd.FINISHED,
    JobState.FAILED: JobEnd.FAILED,
    JobState.CANCELLED: JobEnd.CANCELLED,
    JobState.SUSPENDED: JobEnd.SUSPENDED,
}
"""What the end of a job means for its checkpoints."""

log = logging.getLogger(__name__)


class Record(Enum):
    """What is known about the record of the outcome."""

    NONE = "none"
    WRITING = "writing"
    DURABLE = "durable"
    GIVEN_UP = "given up"


class Ending:
    """Does what is left to do when the outcome of a job is decided. What fails is tried again, for a while."""

    def __init__(
        self,
        *,
        job: JobId,
        plan: Plan,
        records: JobRecords,
        ports: MasterPorts,
        found: Tenure,
    ) -> None:
        """`found` is what the driver found when it began."""
        store, landing = ports.store, ports.landing
        self.taken_over = False
        """Whether it turned out that another driver has the job."""
        self.record = Record.NONE
        self.inputs = LandedInputs(layout.job_folder(job), plan, landing or store)
        """What was landed for the job, which savepoints may need."""
        self.saved = SavedResults(layout.job_folder(job), store, taken_over=found.term > 0)
        """What sinks prepared, which savepoints may need."""
        self._job = job
        self._folder = layout.job_folder(job)
        self._plan = plan
        self._store = store
        self._records = records
        self._background = ports.background
        self._landing = landing
        self._foreign: tuple[Foreign, ...] = ()
        self._recording: _Steps | None = None
        self._cleaning: _Steps | None = None

    def write_record(self, outcome: JobOutcome, now: Instant) -> None:
        """Have the outcome recorded; `record` says when it is."""
        self.record = Record.WRITING
        step = _Step("record of the outcome", partial(self._records.record_outcome, outcome))
        # Whatever the error says: too much hangs on it to believe that it will never work.
        self._recording = _Steps(self._job, [step], self._background, attempts=RECORD_ATTEMPTS, insists=True)
        self._recording.begin(now)

    def resume(self, outcome: JobOutcome) -> None:
        """An earlier driver recorded this outcome, and may not have cleaned up all that it should."""
        self.record = Record.DURABLE
        self.saved.resume(needed=outcome.saved is True)
        if outcome.foreign is not msgspec.UNSET:
            self._foreign = outcome.foreign

    def clean_up(self, retained: tuple[CheckpointId, ...], failed_savepoints: tuple[str, ...], now: Instant) -> None:
        """Delete what nobody needs any more, when the last slot has left and no storage work is under way."""
        if retained:
            # Whoever goes on from a retained checkpoint needs what it refers to, and nothing else.
            steps = [_Step("checkpoint directory", partial(self._sweep, retained))]
        else:
            # Each by itself: a sink that cannot be reached must not keep the others, and the files, from being cleaned.
            planned = [operator.step for vertex in self._plan.vertices for operator in vertex.operators]
            sinks = [step.sink for step in planned if isinstance(step, WriteStep)]
            if self.saved.may_be_needed:
                # Whoever starts from such a savepoint commits it.
                sinks = []
            steps = [_Step(f"sink {sink.name}", partial(sink.end, self._job)) for sink in sinks]
            steps.append(_Step("checkpoint directory", self._delete_all))
            if self._landing is not None:
                steps.append(_Step("landed DataFrames", partial(self._delete_landed, self._landing)))
        # A slot that was given up may have written there since they were deleted.
        steps += [_Step("savepoint", partial(delete_folder, self._store, folder)) for folder in failed_savepoints]
        guarded = [step._replace(work=partial(self._if_still_ours, step.work)) for step in steps]
        self._cleaning = _Steps(self._job, guarded, self._background, attempts=ATTEMPTS)
        self._cleaning.begin(now)

    def turn(self, now: Instant) -> None:
        """Time has passed: do again what is due."""
        for steps in (self._recording, self._cleaning):
            if steps is not None:
                steps.tick(now)
        if self.record is Record.WRITING and self._recording is not None and self._recording.is_over:
            self.record = Record.GIVEN_UP if self._recording.given_up else Record.DURABLE
        self.taken_over = any(steps is not None and steps.taken_over for steps in (self._recording, self._cleaning))

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest; None if only the outcome of work can help."""
        times = (steps.next_deadline() for steps in (self._recording, self._cleaning) if steps is not None)
        return min((time for time in times if time is not None), default=None)

    @property
    def is_cleaning(self) -> bool:
        """Whether `clean_up` has begun."""
        return self._cleaning is not None

    @property
    def is_over(self) -> bool:
        """Whether everything is cleaned up, or given up."""
        return self._cleaning is not None and self._cleaning.is_over

    def _if_still_ours(self, work: Callable[[], None]) -> None:
        """A driver that slept since it recorded the outcome may find that the job has begun anew, with another one."""
        self._records.check()
        work()

    def _sweep(self, retained: tuple[CheckpointId, ...]) -> None:
        """Delete what slots wrote for checkpoints that had ended, when nobody could hear of it any more, and pointers
        that could not be dropped: a job that is over has none."""
        self._records.clear()
        delete_foreign(self._store, self._foreign)
        kept = [layout.checkpoint_folder(self._folder, checkpoint) for checkpoint in retained]
        found = [layout.checkpoint_folder_of(self._folder, path) for path in self._store.list_files(self._folder)]
        for place in dict.fromkeys(place for place in found if place is not None and place not in kept):
            self._store.delete_tree(place)
        self._store.delete_tree(layout.promised_folder(self._folder))

    def _delete_all(self) -> None:
        """Everything of the job goes, but for its outcome and what savepoints need. What lies elsewhere first: the
        outcome names it."""
        self._records.clear()
        delete_foreign(self._store, self._foreign)
        kept = [] if self._landing is not None else self.inputs.kept()
        if self.record is Record.NONE and not kept:
            self._store.delete_tree(self._folder)
            return
        # It may be empty by now, and is not found by its files then.
        self._store.delete_tree(layout.completed_folder(self._folder))
        start = len(self._folder) + 1
        names = dict.fromkeys(path[start:].partition("/")[0] for path in self._store.list_files(self._folder))
        for folder in (f"{self._folder}/{name}" for name in names):
            if self.record is Record.NONE or not layout.outlives_the_job(self._folder, folder):
                self._delete_but(self._store, folder, kept)

    def _delete_landed(self, landing: Store) -> None:
        self._delete_but(landing, self._folder, self.inputs.kept())

    @staticmethod
    def _delete_but(store: Store, folder: str, kept: list[str]) -> None:
        """Delete a folder, but for what lies in those that are kept."""
        if not any(place.startswith(f"{folder}/") for place in kept):
            store.delete_tree(folder)
            return
        for path in store.list_files(folder):
            if not any(path.startswith(f"{place}/") for place in kept):
                store.delete(path)


def outcome_of(ending: JobEnding, coordinator: CheckpointCoordinator, saved: SavedResults) -> JobOutcome:
    """What goes on record about a job that is about to end like this."""
    status = JOB_END[ending.outcome]
    return JobOutcome(
        state=ending.outcome,
        cause=ending.cause.text if ending.cause is not None else "",
        retained=() if ending.outcome is JobState.FINISHED else coordinator.kept_after(status),
        foreign=coordinator.foreign_after(status) or msgspec.UNSET,
        saved=saved.may_be_needed or msgspec.UNSET,
    )


def retained_after(
    ended: JobEnded, tenure: Tenure | None, retained: Iterable[CompletedCheckpoint]
) -> tuple[CheckpointId, ...]:
    """The checkpoints that outlive a job which has ended like this."""
    if tenure is not None and tenure.outcome is not None:
        return tenure.outcome.retained
    if ended.outcome is JobState.FINISHED:
        # A job that has finished retains at most the savepoint that it was stopped with, which needs nothing of the
        # job's but what was landed for its sources.
        return ()
    # Nor does the snapshot that a job was started from, which lies elsewhere.
    return tuple(c.checkpoint for c in retained if c.claim is None)


class _Step(NamedTuple):
    """One thing to do."""

    name: str
    work: Callable[[], None]


class _Steps:
    """Things to do in the background, in order, as far as they succeed."""

    def __init__(
        self, job: JobId, steps: list[_Step], background: Background, *, attempts: int, insists: bool = False
    ) -> None:
        self.given_up = False
        """Whether one of them was."""
        self.taken_over = False
        """Whether it turned out that another driver has the job."""
        self._job = job
        self._steps = steps
        self._background = background
        self._insists = insists
        self._machine = CleanUp(len(steps), attempts=attempts, retry_ms=RETRY_MS)
        self._now = Instant(0)

    def begin(self, now: Instant) -> None:
        self._now = now
        for number in self._machine.begin():
            self._submit(number)

    def tick(self, now: Instant) -> None:
        self._now = now
        for number in self._machine.due(now):
            self._submit(number)

    def next_deadline(self) -> Instant | None:
        return self._machine.next_deadline()

    @property
    def is_over(self) -> bool:
        return self._machine.is_over

    def _submit(self, number: int) -> None:
        step = self._steps[number]

        def done(outcome: Outcome) -> None:
            error = outcome.error
            told = isinstance(error, ExternalError) and error.retry is Retry.LATER
            self.taken_over = self.taken_over or isinstance(error, JobTakenOver)
            later = error is not None and (self._insists or told) and not self.taken_over
            again = self._machine.ended(number, self._now, may_succeed_later=later)
            if error is not None and not again:
                self.given_up = True
                if not self.taken_over:
                    # What another driver has is not left over.
                    log.warning(
                        "the end of a job was not clean; penstock verify shows what is left",
                        extra={"job": self._job, "step": step.name, "error": str(error)},
                    )

        self._background.submit(step.work, done)
