"""Performs the effects of the checkpoint coordinator: files, pointers, messages to tasks."""

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
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, TaskId
from penstock.core.job.events import FailureCause
from penstock.core.messages import ToSlot
from penstock.core.recovery import layout, roots
from penstock.core.recovery.places import is_full
from penstock.ports import Store, WorkResult
from penstock.runtime.master.hook_calls import MasterHooks
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.landed_inputs import LandedInputs
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators
from penstock.runtime.master.readings import Readings
from penstock.runtime.master.saved_results import SavedResults
from penstock.runtime.master.savepoint_folders import check_savepoint_files, make_savepoint_folder
from penstock.runtime.task.operators.user_code import one_line
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import delete_file, delete_folder, delete_snapshot

IDS_TAKEN_AT_ONCE = 64
"""Checkpoint ids are recorded as used in blocks of this size, so that most checkpoints need not wait for the record. A
driver that takes the job over begins behind the block."""

LONG_QUEUED_MS = 1_000
"""A checkpoint whose request waited for at least this long is in the log at INFO."""

log = logging.getLogger(__name__)


class Answers(NamedTuple):
    """The calls by which effects come back to the master."""

    feed: Callable[[CoordinatorEvent], None]
    fail: Callable[[str, TaskId | None], None]
    fail_job: Callable[[FailureCause], None]
    answer: Callable[[AnswerRequest], None]
    send: Callable[[TaskId, ToSlot], None]
    """Sends a message to the slot of a task."""


class CheckpointEffects:
    """Performs the coordinator's effects in order. The results of the effects go back to the coordinator through
    `feed`."""

    def __init__(
        self,
        *,
        storage: JobStorage,
        master: Answers,
        coordinators: OperatorCoordinators,
        hooks: MasterHooks,
        inputs: LandedInputs,
        saved: SavedResults,
        when_safe: Callable[[], None] | None = None,
    ) -> None:
        """`inputs` are the DataFrames that were landed for the job, and `saved` are the results that sinks prepared:
        savepoints may need both. `when_safe` is as in `MasterPorts`."""
        self.readings = Readings()
        self._job = storage.job
        self._storage = storage
        self._store = storage.store
        self._records = storage.records
        self._master = master
        self._feed = master.feed
        self._coordinators = coordinators
        self._hooks = hooks
        self._inputs = inputs
        self._saved = saved
        self._when_safe = when_safe
        self._taken_below = 0
        self._unforgotten: list[CheckpointId] = []
        """Old pointers that could not be dropped. They are dropped with the next old pointers. Only background work
        uses this list."""

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
                    text = "files of job %s could not be deleted (%s); penstock verify shows what is left"
                    log.warning(text, self._job, effect.error, extra=left)
                case ForgetPointers():
                    self._forget(effect)
                case SendToTask():
                    self._master.send(effect.task, effect.message)
                case FailJob():
                    self._master.fail_job(
                        FailureCause(
                            text=effect.text,
                            traceback=effect.traceback,
                            operator=effect.operator,
                            user_code=effect.operator is not None,
                            free=effect.free,
                        )
                    )
                case FailTask():
                    self._master.fail(effect.text, effect.task)
                case CheckpointStarted():
                    self._log(effect)
                case CheckpointCompleted():
                    self._completed(effect)
                    self._log(effect)
                case CheckpointAborted():
                    self._hooks.aborted(effect.checkpoint)
                    self._forget_saved(self._saved.abort(effect.checkpoint))
                    self._log(effect)
                case AnswerRequest():
                    self._master.answer(effect)
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
                    self._hooks.trigger(effect)
                case _:
                    assert_never(effect)

    def _log(self, effect: CheckpointStarted | CheckpointCompleted | CheckpointAborted) -> None:
        match effect:
            case CheckpointStarted():
                queued = {"job": self._job, "checkpoint": effect.checkpoint, "queued_ms": effect.queued_ms}
                level = logging.INFO if effect.queued_ms >= LONG_QUEUED_MS else logging.DEBUG
                text = "checkpoint %d of job %s started after it had waited %d ms for its turn"
                log.log(level, text, effect.checkpoint, self._job, effect.queued_ms, extra=queued)
            case CheckpointCompleted():
                done = {"job": self._job, "checkpoint": effect.completed.checkpoint, "took_ms": effect.took_ms}
                text = "%s of job %s completed in %d ms"
                log.info(text, effect.completed.title, self._job, effect.took_ms, extra=done)
            case CheckpointAborted():
                reason, why = effect.reason.name, effect.text or effect.reason.text
                extra = {"job": self._job, "checkpoint": effect.checkpoint, "reason": reason, "text": effect.text}
                log.info("checkpoint %s of job %s was aborted: %s", effect.checkpoint, self._job, why, extra=extra)

    def _create_location(self, effect: CreateLocation) -> None:
        checkpoint = effect.checkpoint
        target = effect.options.target
        following = self._taken_below
        if checkpoint >= following:
            following = checkpoint + IDS_TAKEN_AT_ONCE
        elif target is None:
            self._feed(LocationCreated(checkpoint=checkpoint, location=self._folder_of(checkpoint)))
            return

        def make() -> str:
            if following != self._taken_below:
                self._records.take_ids(CheckpointId(following))
            if target is None:
                return self._folder_of(checkpoint)
            return make_savepoint_folder(self._store, target, self._job, checkpoint)

        def done(outcome: WorkResult) -> None:
            if outcome.error is not None:
                self._feed(LocationFailed(checkpoint=checkpoint, error=str(outcome.error)))
            else:
                self._taken_below = max(self._taken_below, following)
                self._feed(LocationCreated(checkpoint=checkpoint, location=outcome.value))

        self._storage.submit(make, done)

    def _folder_of(self, checkpoint: CheckpointId) -> str:
        return layout.checkpoint_folder(self._storage.folder, checkpoint)

    def _write_metadata(self, effect: WriteMetadata) -> None:
        checkpoint = effect.checkpoint
        path = roots.below(effect.location, layout.METADATA_NAME)
        kind = effect.metadata.kind
        # No checkpoint follows a savepoint that stops the job: the results that such a savepoint names are committed
        # with it.
        has_results = kind.is_savepoint and not kind.is_synchronous and self._saved.begin(effect.metadata)

        def write() -> int:
            content = encode_metadata(effect.metadata)
            if kind.is_savepoint:
                check_savepoint_files(self._store, effect.location, effect.metadata)
                self._inputs.keep_for_savepoint()
                if has_results:
                    self._saved.write(effect.metadata)
                self._store.at(effect.location).write(layout.METADATA_NAME, content)
            else:
                self._store.write(path, content)
            return len(content)

        def done(outcome: WorkResult) -> None:
            if outcome.error is not None:
                self._feed(MetadataFailed(checkpoint=checkpoint, error=str(outcome.error)))
            else:
                self._feed(MetadataWritten(checkpoint=checkpoint, path=path, size=outcome.value))

        self._storage.submit(write, done)

    def _completed(self, effect: CheckpointCompleted) -> None:
        completed = effect.completed
        if completed.kind.is_savepoint and not completed.kind.is_synchronous:
            self._coordinators.savepoint_completed(completed.checkpoint)
            self._saved.complete(completed.checkpoint)
        else:
            self._forget_saved(self._saved.follow(completed.checkpoint))
            self._is_safe()

    def _is_safe(self) -> None:
        if self._when_safe is None:
            return
        work, self._when_safe = self._when_safe, None

        def done(outcome: WorkResult) -> None:
            if outcome.error is not None:
                known = {"job": self._job, "error": one_line(outcome.error)}
                text = "job %s could not yet delete the files of earlier jobs of its name: %s"
                log.info(text, self._job, known["error"], extra=known)

        self._storage.submit(work, done)

    def _forget_saved(self, checkpoints: list[CheckpointId]) -> None:
        if checkpoints:
            # A record that cannot be deleted keeps some results for longer than needed, and is deleted with the job.
            self._storage.submit(lambda: self._saved.delete(checkpoints), lambda _: None)

    def _store_pointer(self, effect: StorePointer) -> None:
        completed = effect.completed
        checkpoint = completed.checkpoint
        data = msgspec.msgpack.encode(completed)

        def record() -> bool:
            """Store the pointer; returns whether the pointer is stored. Raises if even a second look cannot tell."""
            forget = [*self._unforgotten, *effect.forget]
            try:
                self._records.record(checkpoint, data, forget=forget)
            except StorageError:
                if not self._records.holds(checkpoint):
                    return False
                self._unforgotten = [old for old in forget if self._error_of(self._records.remove, old) is not None]
            else:
                self._unforgotten = []
            return True

        def done(outcome: WorkResult) -> None:
            if outcome.error is not None:
                self._feed(PointerFailed(checkpoint=checkpoint, inconsistent=True, error=str(outcome.error)))
            elif outcome.value:
                self._feed(PointerStored(checkpoint=checkpoint))
            else:
                self._feed(PointerFailed(checkpoint=checkpoint, error="the pointer could not be written"))

        self._storage.submit(record, done)

    def _delete_files(self, effect: DeleteFiles) -> None:
        if not self.readings.postponed(effect, partial(self._delete_now, effect)):
            self._delete_now(effect)

    def _delete_now(self, effect: DeleteFiles) -> None:
        def delete() -> str | None:
            store = self._store if effect.root is None else self._store.at(effect.root)
            if effect.folder is None:
                return self._delete_each(store, effect.paths)
            if effect.root is None and is_full(effect.folder):
                # This is the folder of a snapshot that the job was started from, and owns.
                return self._error_of(partial(delete_snapshot, self._store, effect.folder), effect.paths)
            # The metadata goes first, or a checkpoint that is half deleted would look like a whole checkpoint.
            metadata = roots.below(effect.folder, layout.METADATA_NAME)
            error = self._error_of(partial(delete_file, self._store), metadata)
            if error is not None:
                return error
            error = self._delete_each(store, _outside(effect.folder, effect))
            return self._error_of(partial(delete_folder, self._store), effect.folder) or error

        def done(outcome: WorkResult) -> None:
            error = str(outcome.error) if outcome.error is not None else outcome.value
            if self._storage.guard.hold.is_lost:
                # The files belong to the driver that has the job: this driver does not try to delete them again.
                error = None
            if error is not None:
                known = {"job": self._job, "error": error}
                log.info("files of job %s could not be deleted yet: %s", self._job, error, extra=known)
            self._feed(FilesDeleted(cleaning=effect.cleaning, error=error))

        self._storage.submit(delete, done)

    def _delete_each(self, store: Store, paths: Iterable[str]) -> str | None:
        """Delete each file, and go on after an error; returns the last error."""
        error: str | None = None
        for path in paths:
            error = self._error_of(partial(delete_file, store), path) or error
        return error

    def _forget(self, effect: ForgetPointers) -> None:
        def forget() -> None:
            for checkpoint in effect.checkpoints:
                self._error_of(self._records.remove, checkpoint)

        self._storage.submit(forget, lambda _: None)

    @staticmethod
    def _error_of(call: Callable[..., None], argument: object) -> str | None:
        try:
            call(argument)
        except StorageError as error:
            return str(error)
        return None


def _outside(folder: str, effect: DeleteFiles) -> list[str]:
    """The files of a deletion that lie outside the folder. Paths of a savepoint are relative to its folder."""
    inside = effect.root is not None or is_full(folder)
    return [p for p in effect.paths if not p.startswith(f"{folder}/") and not (inside and not is_full(p))]
