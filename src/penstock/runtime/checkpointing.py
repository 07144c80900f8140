"""Does what the checkpoint coordinator says: files, pointers, messages to tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, assert_never

import msgspec

from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AnswerRequest,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointStarted,
    CleaningGivenUp,
    CoordinatorEffect,
    CreateLocation,
    DeleteFiles,
    FailJob,
    FailTask,
    ForgetPointers,
    RequestDropped,
    SendOperatorEvent,
    SendToTask,
    SnapshotOperatorCoordinator,
    StorePointer,
    TellCheckpointAborted,
    TellCheckpointComplete,
    TriggerHook,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    CoordinatorEvent,
    FilesDeleted,
    LocationCreated,
    LocationFailed,
    MetadataFailed,
    MetadataWritten,
    PointerFailed,
    PointerStored,
)
from penstock.core.errors import JobTakenOver, StorageError
from penstock.core.ids import CheckpointId, JobId, TaskId
from penstock.core.recovery import layout, roots
from penstock.core.recovery.places import is_full
from penstock.ports import Background, JobRecords, Outcome, Store
from penstock.runtime.coordinators import OperatorCoordinators
from penstock.runtime.ending import Ending
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import delete_file, delete_folder

IDS_TAKEN_AT_ONCE = 64
"""Ids are made durably taken in blocks, so that most checkpoints need not wait for it. Another driver begins behind the
block."""

log = logging.getLogger(__name__)


class Answers(NamedTuple):
    """Where effects lead back to."""

    feed: Callable[[CoordinatorEvent], None]
    fail: Callable[[str, TaskId | None], None]
    answer: Callable[[AnswerRequest], None]
    taken_over: Callable[[], None]
    """Called when it turns out that another driver has the job."""


class CheckpointEffects:
    """Performs the coordinator's effects in order; answers come back through `feed`."""

    def __init__(
        self,
        *,
        job: JobId,
        store: Store,
        records: JobRecords,
        background: Background,
        master: Answers,
        coordinators: OperatorCoordinators,
        ending: Ending,
    ) -> None:
        self._job = job
        self._folder = layout.job_folder(job)
        self._store = store
        self._background = background
        self._feed = master.feed
        self._fail = master.fail
        self._answer = master.answer
        self._coordinators = coordinators
        self._inputs = ending.inputs
        self._saved = ending.saved
        self._records = records
        self._taken_over = master.taken_over
        self._has_let_go = False
        self._taken_below = 0
        self._unforgotten: list[CheckpointId] = []
        """Pointers that could not be dropped: they go with the next ones. Belongs to background work."""

    def let_go(self) -> None:
        """Another driver has the job: from here on nothing is stored and nothing deleted, whatever the effects say, and
        operators' parts on the driver commit nothing."""
        self._has_let_go = True
        self._coordinators.let_go()

    def perform(self, effects: list[CoordinatorEffect]) -> None:
        """Do everything in the list, in order."""
        for effect in effects:
            match effect:
                case CreateLocation():
                    self._create_location(effect)
                case WriteMetadata():
                    self._coordinators.metadata_made(effect.metadata)
                    self._write_metadata(effect)
                case StorePointer():
                    self._store_pointer(effect)
                case DeleteFiles():
                    self._delete_files(effect)
                case CleaningGivenUp():
                    left = {"paths": effect.paths, "folder": effect.folder, "error": effect.error}
                    log.warning("files could not be deleted; penstock verify shows what is left", extra=left)
                case ForgetPointers():
                    self._forget(effect)
                case SendToTask():
                    self._coordinators.send(effect.task, effect.message)
                case FailJob():
                    self._fail(effect.text, None)
                case FailTask():
                    self._fail(effect.text, effect.task)
                case CheckpointStarted():
                    self._log(effect)
                case CheckpointCompleted():
                    self._completed(effect)
                    self._log(effect)
                case CheckpointAborted():
                    self._coordinators.hooks.aborted(effect.checkpoint)
                    self._forget_saved(self._saved.abort(effect.checkpoint))
                    self._log(effect)
                case AnswerRequest():
                    self._answer(effect)
                case RequestDropped() | AcknowledgeIgnored():
                    log.debug("coordinator", extra={"effect": repr(effect)})
                case (
                    SnapshotOperatorCoordinator()
                    | SendOperatorEvent()
                    | TellCheckpointComplete()
                    | TellCheckpointAborted()
                ):
                    self._coordinators.perform(effect)
                case TriggerHook():
                    self._coordinators.hooks.trigger(effect)
                case _:
                    assert_never(effect)

    def _log(self, effect: CheckpointStarted | CheckpointCompleted | CheckpointAborted) -> None:
        match effect:
            case CheckpointStarted():
                log.debug("checkpoint started", extra={"checkpoint": effect.checkpoint})
            case CheckpointCompleted():
                done = {"checkpoint": effect.completed.checkpoint, "took_ms": effect.took_ms}
                log.info("checkpoint completed", extra=done)
            case CheckpointAborted():
                extra = {"checkpoint": effect.checkpoint, "reason": effect.reason.name, "text": effect.text}
                log.info("checkpoint aborted", extra=extra)

    def _create_location(self, effect: CreateLocation) -> None:
        checkpoint = effect.checkpoint
        target = effect.options.target
        if target is None:
            location = layout.checkpoint_folder(self._folder, checkpoint)
        else:
            location = layout.savepoint_root(target, self._job, checkpoint)

        if checkpoint < self._taken_below:
            self._feed(LocationCreated(checkpoint=checkpoint, location=location))
            return
        following = checkpoint + IDS_TAKEN_AT_ONCE

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._feed(LocationFailed(checkpoint=checkpoint, error=str(outcome.error)))
            else:
                self._taken_below = following
                self._feed(LocationCreated(checkpoint=checkpoint, location=location))

        self._submit(lambda: self._records.take_ids(CheckpointId(following)), done)

    def _write_metadata(self, effect: WriteMetadata) -> None:
        checkpoint = effect.checkpoint
        path = roots.below(effect.location, layout.METADATA_NAME)
        kind = effect.metadata.kind
        # One that stops the job is followed by nothing: what it names is committed with it.
        has_results = kind.is_savepoint and not kind.is_synchronous and self._saved.begin(effect.metadata)

        def write() -> int:
            content = encode_metadata(effect.metadata)
            if kind.is_savepoint:
                self._inputs.keep_for_savepoint()
                if has_results:
                    self._saved.write(effect.metadata)
                self._store.at(effect.location).write(layout.METADATA_NAME, content)
            else:
                self._store.write(path, content)
            return len(content)

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._feed(MetadataFailed(checkpoint=checkpoint, error=str(outcome.error)))
            else:
                self._feed(MetadataWritten(checkpoint=checkpoint, path=path, size=outcome.value))

        self._submit(write, done)

    def _completed(self, effect: CheckpointCompleted) -> None:
        completed = effect.completed
        if completed.kind.is_savepoint and not completed.kind.is_synchronous:
            self._coordinators.savepoint_completed(completed.checkpoint)
            self._saved.complete(completed.checkpoint)
        else:
            self._forget_saved(self._saved.follow(completed.checkpoint))

    def _forget_saved(self, checkpoints: list[CheckpointId]) -> None:
        if checkpoints:
            # What cannot be deleted keeps some results for longer than needed, and goes with the job.
            self._submit(lambda: self._saved.delete(checkpoints), lambda _: None)

    def _store_pointer(self, effect: StorePointer) -> None:
        completed = effect.completed
        checkpoint = completed.checkpoint
        data = msgspec.msgpack.encode(completed)

        def record() -> bool:
            """Whether the pointer is there; raises if even a second look does not tell."""
            forget = [*self._unforgotten, *effect.forget]
            try:
                self._records.record(checkpoint, data, forget=forget)
            except StorageError:
                if not self._records.holds(checkpoint):
                    return False
                self._unforgotten = [old for old in forget if self._attempt(self._records.remove, old) is not None]
            else:
                self._unforgotten = []
            return True

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._feed(PointerFailed(checkpoint=checkpoint, inconsistent=True, error=str(outcome.error)))
            elif outcome.value:
                self._feed(PointerStored(checkpoint=checkpoint))
            else:
                self._feed(PointerFailed(checkpoint=checkpoint, error="the pointer could not be written"))

        self._submit(record, done)

    def _delete_files(self, effect: DeleteFiles) -> None:
        def delete() -> str | None:
            store = self._store if effect.root is None else self._store.at(effect.root)
            if effect.folder is None:
                return self._delete_each(store, effect.paths)
            # The metadata goes first, or something that is half deleted would look like a checkpoint.
            metadata = roots.below(effect.folder, layout.METADATA_NAME)
            error = self._attempt(partial(delete_file, self._store), metadata)
            if error is not None:
                return error
            error = self._delete_each(store, _outside(effect.folder, effect))
            return self._attempt(partial(delete_folder, self._store), effect.folder) or error

        def done(outcome: Outcome) -> None:
            error = str(outcome.error) if outcome.error is not None else outcome.value
            if self._has_let_go:
                # They are the other driver's now, and not to be tried again.
                error = None
            if error is not None:
                log.info("files could not be deleted yet", extra={"error": error})
            self._feed(FilesDeleted(cleaning=effect.cleaning, error=error))

        self._submit(delete, done)

    def _delete_each(self, store: Store, paths: Iterable[str]) -> str | None:
        """Go on after an error; the last one."""
        error: str | None = None
        for path in paths:
            error = self._attempt(partial(delete_file, store), path) or error
        return error

    def _forget(self, effect: ForgetPointers) -> None:
        def forget() -> None:
            for checkpoint in effect.checkpoints:
                self._attempt(self._records.remove, checkpoint)

        self._submit(forget, lambda _: None)

    def _submit(self, work: Callable[[], object], done: Callable[[Outcome], None]) -> None:
        def unless_taken_over() -> object:
            if self._has_let_go:
                raise JobTakenOver(f"another driver has taken job {self._job} over")
            return work()

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome.error, JobTakenOver) and not self._has_let_go:
                self.let_go()
                self._taken_over()
            done(outcome)

        self._background.submit(unless_taken_over, heard)

    @staticmethod
    def _attempt(call: Callable[..., None], argument: object) -> str | None:
        try:
            call(argument)
        except StorageError as error:
            return str(error)
        return None


def _outside(folder: str, effect: DeleteFiles) -> list[str]:
    """Those of its files that do not go with its folder. Paths of a savepoint begin in its folder."""
    inside = effect.root is not None or is_full(folder)
    return [p for p in effect.paths if not p.startswith(f"{folder}/") and not (inside and not is_full(p))]
