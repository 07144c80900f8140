"""The storage work at the end of a job: the outcome is recorded, and whatever only a running job needs is deleted.

The machine in `core.job.ending` decides when each of the two is done. If the program of a job is run again, the job
goes on from the checkpoints that the recorded outcome names as kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from penstock.api.hold import HoldUnknown
from penstock.api.steps import WriteStep
from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.events import JobEnd
from penstock.core.errors import ExternalError, JobTakenOver, Retry
from penstock.core.ids import CheckpointId, Instant
from penstock.core.job.clean_up import CleanUp
from penstock.core.job.ending import CleanedUp, OutcomeRecorded, RecordGivenUp, WriteRecord
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Foreign, JobOutcome, Tenure
from penstock.plan.graph import Plan
from penstock.ports import Store, WorkResult
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.landed_inputs import LandedInputs
from penstock.runtime.master.saved_results import SavedResults
from penstock.runtime.task.operators.user_code import one_line
from penstock.storage.metadata import decode_metadata
from penstock.storage.places import delete_folder, delete_foreign

RECORD_TRIES = 8
"""After so many failed tries the record of the outcome is given up: the job is suspended, and another driver can take
the job over and go on with it."""
TRIES = 5
RETRY_MS = 1_000

JOB_END = {
    JobState.FINISHED: JobEnd.FINISHED,
    JobState.FAILED: JobEnd.FAILED,
    JobState.CANCELLED: JobEnd.CANCELLED,
    JobState.SUSPENDED: JobEnd.SUSPENDED,
}
"""What the end of a job means for its checkpoints."""

log = logging.getLogger(__name__)


class Ending:
    """Records the decided outcome of a job, and cleans up after the job. Work that fails is tried again a few times."""

    def __init__(
        self,
        *,
        storage: JobStorage,
        cleaning: Guard,
        plan: Plan,
        landing: Store | None,
        inputs: LandedInputs,
        saved: SavedResults,
    ) -> None:
        """`cleaning` looks before each step of the clean-up whether this driver still has the job: if this driver slept
        after it had recorded the outcome, the job may have begun anew with another driver. `landing` is as in
        `MasterPorts`. `inputs` are the DataFrames that were landed for the job, and `saved` are the results that sinks
        prepared: savepoints may need both."""
        self.job = storage.job
        self._inputs = inputs
        self._saved = saved
        self._folder = storage.folder
        self._plan = plan
        self._store = storage.store
        self._storage = storage
        self._cleaning_guard = cleaning
        self._landing = landing
        self._foreign: tuple[Foreign, ...] = ()
        self._spared: tuple[str, ...] = ()
        self._has_record = False
        """Whether the outcome is on record, or may be."""
        self._goes_on = False
        """Whether the job goes on if its program is run again."""
        self.goes_on_from: CompletedCheckpoint | None = None
        """The snapshot that the job goes on from if its program is run again; None if the job does not go on."""
        self._recording: _Steps | None = None
        self._cleaning: _Steps | None = None

    def write_record(self, outcome: JobOutcome, now: Instant) -> None:
        """Have the outcome recorded. `turn` reports when the outcome is recorded, or the record is given up."""
        self._has_record = True
        self._goes_on = outcome.goes_on
        self.goes_on_from = outcome.kept[-1] if outcome.kept is not msgspec.UNSET else None
        step = _Step("record of the outcome", partial(self._storage.records.record_outcome, outcome))
        # The record is tried again even if the error says that no later try can succeed: without the record another
        # driver would go on with the ended job.
        self._recording = _Steps([step], self._storage, self._storage.guard, tries=RECORD_TRIES, insists=True)
        self._recording.begin(now)

    def resume(self, outcome: JobOutcome) -> None:
        """An earlier driver recorded this outcome, and may not have cleaned up everything: `clean_up` does what the
        outcome says."""
        self._has_record = True
        self._goes_on = outcome.goes_on
        self._saved.resume(needed=outcome.saved is True)
        if outcome.foreign is not msgspec.UNSET:
            self._foreign = outcome.foreign
        if outcome.spared is not msgspec.UNSET:
            self._spared = outcome.spared

    def spare(self, places: tuple[str, ...]) -> None:
        """Have `clean_up` leave the snapshots alone that the job was started from, even if they lie in the folder of
        the job. `places` are the full paths of the folders of these snapshots, and of their files outside these
        folders."""
        self._spared = places

    def clean_up(self, retained: tuple[CheckpointId, ...], failed_savepoints: tuple[str, ...], now: Instant) -> None:
        """Delete what is not needed after the end of the job. `turn` reports when the clean-up has ended. To be called
        when the last slot has left and no storage work is under way."""
        if retained or self._goes_on:
            # A job that goes on from a retained checkpoint needs the files that the checkpoint names, and nothing else.
            steps = [_Step("checkpoint directory", partial(self._sweep, retained))]
        else:
            # Each sink is a step of its own: if one sink cannot be reached, the other sinks and the files must be
            # cleaned up all the same.
            planned = [operator.step for vertex in self._plan.vertices for operator in vertex.operators]
            sinks = [step.sink for step in planned if isinstance(step, WriteStep)]
            if self._saved.may_be_needed:
                # A savepoint may name prepared results. A job that starts from the savepoint commits these results, so
                # the sinks must keep them.
                sinks = []
            steps = [_Step(f"sink {sink.name}", partial(sink.end, self.job)) for sink in sinks]
            steps.append(_Step("checkpoint directory", self._delete_all))
            if self._landing is not None:
                steps.append(_Step("landed DataFrames", partial(self._delete_landed, self._landing)))
        # A slot that was given up may have written into these folders after they were deleted.
        steps += [_Step("savepoint", partial(delete_folder, self._store, folder)) for folder in failed_savepoints]
        self._cleaning = _Steps(steps, self._storage, self._cleaning_guard, tries=TRIES)
        self._cleaning.begin(now)

    def turn(self, now: Instant) -> list[OutcomeRecorded | RecordGivenUp | CleanedUp]:
        """Time has passed: try steps again that are due. Returns which work has come to its end."""
        ended: list[OutcomeRecorded | RecordGivenUp | CleanedUp] = []
        for steps in (self._recording, self._cleaning):
            if steps is not None:
                steps.tick(now)
        if self._recording is not None and self._recording.is_over:
            ended.append(RecordGivenUp() if self._recording.given_up else OutcomeRecorded())
            self._recording = None
        if self._cleaning is not None and self._cleaning.is_over:
            ended.append(CleanedUp())
            self._cleaning = None
        return ended

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest; None if only the end of background work can help."""
        times = (steps.next_deadline() for steps in (self._recording, self._cleaning) if steps is not None)
        return min((time for time in times if time is not None), default=None)

    def _sweep(self, retained: tuple[CheckpointId, ...]) -> None:
        """Delete all pointers, and the files of all checkpoints that are not retained. There are such files if a slot
        wrote them for a checkpoint that had ended, and the master could not hear of them any more."""
        self._storage.records.clear()
        delete_foreign(self._store, self._foreign)
        kept = [layout.checkpoint_folder(self._folder, checkpoint) for checkpoint in retained]
        found = [layout.checkpoint_folder_of(self._folder, path) for path in self._store.list_files(self._folder)]
        kept += self._spared_here(self._store)
        for place in dict.fromkeys(place for place in found if place is not None and place not in kept):
            self._delete_but(self._store, place, kept)
        if not self._goes_on:
            # A job that goes on keeps this folder: without the folder, the job would take the results that sinks
            # prepared for a savepoint for leftovers of its own, and remove them.
            self._store.delete_tree(layout.promised_folder(self._folder))
        self._sweep_shared(retained, kept)

    def _sweep_shared(self, retained: tuple[CheckpointId, ...], kept: list[str]) -> None:
        """Delete shared files that no retained checkpoint names. The master does not know of such files if their slot
        died while the slot wrote them, if their slot had to leave before the slot could delete them, or if an
        acknowledgement was lost."""
        found = self._store.list_files(layout.shared_folder(self._folder))
        if not found:
            return
        used = set(kept)
        for checkpoint in retained:
            path = layout.metadata_file(self._folder, checkpoint)
            files = decode_metadata(path, self._store.read(path)).files
            used.update(self._path_here(file.path) for file in files if file.path is not None)
        for path in found:
            if path not in used:
                self._store.delete(path)

    def _path_here(self, path: str) -> str:
        """The path of a file in the store; a full path if the file lies elsewhere."""
        return (self._store.path_of(path) or path) if is_full(path) else path

    def _delete_all(self) -> None:
        """Delete everything of the job, except for its outcome and what savepoints need. Files outside the job's
        folder, which the outcome names, go first. Files in the job's folder that no job makes are not the job's."""
        self._storage.records.clear()
        delete_foreign(self._store, self._foreign)
        kept = [*([] if self._landing is not None else self._inputs.kept()), *self._spared_here(self._store)]
        if not self._has_record and not kept:
            self._store.delete_tree(self._folder)
            return
        # The folder of the pointers may be empty by now, and `list_files` does not show an empty folder.
        self._store.delete_tree(layout.completed_folder(self._folder))
        start = len(self._folder) + 1
        names = dict.fromkeys(path[start:].partition("/")[0] for path in self._store.list_files(self._folder))
        for folder in (f"{self._folder}/{name}" for name in names if layout.is_job_folder_with(name)):
            if not self._has_record or not layout.outlives_the_job(self._folder, folder):
                self._delete_but(self._store, folder, kept)

    def _delete_landed(self, landing: Store) -> None:
        self._delete_but(landing, self._folder, [*self._inputs.kept(), *self._spared_here(landing)])

    def _spared_here(self, store: Store) -> list[str]:
        """The spared folders and files that lie in the folder of the job, as paths of `store`."""
        found = [path for place in self._spared if (path := store.path_of(place)) is not None]
        return [path for path in found if path.startswith(f"{self._folder}/")]

    @staticmethod
    def _delete_but(store: Store, folder: str, kept: list[str]) -> None:
        """Delete a folder, except for `kept`: files, and folders with everything in them."""
        if folder in kept:
            return
        if not any(place.startswith(f"{folder}/") for place in kept):
            store.delete_tree(folder)
            return
        for path in store.list_files(folder):
            if not any(path == place or path.startswith(f"{place}/") for place in kept):
                store.delete(path)


def outcome_of(
    decided: WriteRecord, coordinator: CheckpointCoordinator, saved: SavedResults, *, may_go_on: bool
) -> JobOutcome:
    """The record of a job that is about to end as `decided` says. `may_go_on`: the job may go on if its program is run
    again."""
    status = JOB_END[decided.outcome]
    kept = coordinator.records_after(status) if may_go_on else ()
    return JobOutcome(
        state=decided.outcome,
        cause=decided.cause.text if decided.cause is not None else "",
        retained=_own_checkpoints(kept) if decided.outcome is JobState.FINISHED else coordinator.kept_after(status),
        foreign=coordinator.foreign_after(status) or msgspec.UNSET,
        saved=saved.may_be_needed or msgspec.UNSET,
        spared=coordinator.spared_after(status) or msgspec.UNSET,
        kept=kept or msgspec.UNSET,
    )


def retained_after(
    outcome: JobState, tenure: Tenure | None, retained: Iterable[CompletedCheckpoint]
) -> tuple[CheckpointId, ...]:
    """The checkpoints that outlive a job that has ended with `outcome`. `retained` are the checkpoints that the
    coordinator retains at the end. If an earlier driver recorded the outcome, its record counts instead."""
    if tenure is not None and tenure.outcome is not None:
        return tenure.outcome.retained
    if outcome is JobState.FINISHED:
        return _own_checkpoints(retained)
    # The snapshot that the job was started from is none of the job's own checkpoints.
    return tuple(c.checkpoint for c in retained if c.claim is None)


def _own_checkpoints(records: Iterable[CompletedCheckpoint]) -> tuple[CheckpointId, ...]:
    """The own checkpoints of a job that has finished. The savepoint that stopped the job, and the snapshot that the job
    was started from, are left out: of the files of the job they need only the DataFrames that were landed for its
    sources."""
    return tuple(c.checkpoint for c in records if c.claim is None and not c.kind.is_savepoint)


class _Step(NamedTuple):
    """One piece of work, with a name for the log."""

    name: str
    work: Callable[[], None]


class _Steps:
    """Steps that are done in the background, in order. A step that fails does not hold up later steps."""

    def __init__(
        self, steps: list[_Step], storage: JobStorage, guard: Guard, *, tries: int, insists: bool = False
    ) -> None:
        self.given_up = False
        """Whether a step was given up."""
        self._taken_over = False
        """Whether it turned out that another driver has the job."""
        self._job = storage.job
        self._steps = steps
        self._background = storage.background
        self._guard = guard
        self._insists = insists
        self._machine = CleanUp(len(steps), tries=tries, retry_ms=RETRY_MS)
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

        def done(outcome: WorkResult) -> None:
            error = outcome.error
            told = isinstance(error, HoldUnknown) or (isinstance(error, ExternalError) and error.retry is Retry.LATER)
            self._taken_over = self._taken_over or isinstance(error, JobTakenOver)
            later = error is not None and (self._insists or told) and not self._taken_over
            again = self._machine.ended(number, self._now, may_succeed_later=later)
            if error is not None and not again:
                self.given_up = True
                if not self._taken_over:
                    # The files belong to the driver that has the job: nothing is left over.
                    known = {"job": self._job, "step": step.name, "error": one_line(error)}
                    text = "the end of job %s was not clean (%s: %s); penstock verify shows what is left"
                    log.warning(text, self._job, step.name, known["error"], extra=known)

        self._guard.submit(self._background, step.work, done, lost=done)
