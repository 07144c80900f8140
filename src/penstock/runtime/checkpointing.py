"""Does what the checkpoint coordinator says: files, pointers, messages to tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import assert_never

import msgspec

from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AnswerRequest,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointStarted,
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
from penstock.core.errors import InvariantError, StorageError
from penstock.core.ids import JobId, TaskId
from penstock.core.messages import ToSlot
from penstock.core.recovery import layout
from penstock.ports import Background, Outcome, Store
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import delete_file, delete_folder

IDS_TAKEN_AT_ONCE = 64
"""Ids are made durably taken in blocks, so that most checkpoints need not wait for it. Another driver begins behind the
block."""

log = logging.getLogger(__name__)


class CheckpointEffects:
    """Performs the coordinator's effects in order; answers come back through `feed`."""

    def __init__(
        self,
        *,
        job: JobId,
        store: Store,
        background: Background,
        feed: Callable[[CoordinatorEvent], None],
        send: Callable[[TaskId, ToSlot], None],
        fail: Callable[[str, TaskId | None], None],
        answer: Callable[[AnswerRequest], None],
    ) -> None:
        self._job = job
        self._folder = folder = layout.job_folder(job)
        self._store = store
        self._background = background
        self._feed = feed
        self._send = send
        self._fail = fail
        self._answer = answer
        self._completed = FileCompletedStore(store, folder)
        self._counter = checkpoint_ids(store, folder)
        self._taken_below = 0

    def perform(self, effects: list[CoordinatorEffect]) -> None:
        """Do everything in the list, in order."""
        for effect in effects:
            match effect:
                case CreateLocation():
                    self._create_location(effect)
                case WriteMetadata():
                    self._write_metadata(effect)
                case StorePointer():
                    self._store_pointer(effect)
                case DeleteFiles():
                    self._delete_files(effect)
                case ForgetPointers():
                    self._forget(effect)
                case SendToTask():
                    self._send(effect.task, effect.message)
                case FailJob():
                    self._fail(effect.text, None)
                case FailTask():
                    self._fail(effect.text, effect.task)
                case CheckpointStarted() | CheckpointCompleted() | CheckpointAborted():
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
                    | TriggerHook()
                ):
                    raise InvariantError(f"{type(effect).__name__} in a job without operator coordinators and hooks")
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

        self._background.submit(lambda: self._counter.advance(following), done)

    def _write_metadata(self, effect: WriteMetadata) -> None:
        checkpoint = effect.checkpoint
        path = f"{effect.location}/{layout.METADATA_NAME}"

        def write() -> int:
            content = encode_metadata(effect.metadata)
            if effect.metadata.kind.is_savepoint:
                self._store.at(effect.location).write(layout.METADATA_NAME, content)
            else:
                self._store.write(path, content)
            return len(content)

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._feed(MetadataFailed(checkpoint=checkpoint, error=str(outcome.error)))
            else:
                self._feed(MetadataWritten(checkpoint=checkpoint, path=path, size=outcome.value))

        self._background.submit(write, done)

    def _store_pointer(self, effect: StorePointer) -> None:
        completed = effect.completed
        checkpoint = completed.checkpoint
        data = msgspec.msgpack.encode(completed)

        def record() -> bool:
            """Whether the pointer is there; raises if even a second look does not tell."""
            try:
                self._completed.record(checkpoint, data, forget=effect.forget)
            except StorageError:
                if all(entry.checkpoint != checkpoint for entry in self._completed.load()):
                    return False
                for old in effect.forget:
                    self._attempt(self._completed.remove, old)
            return True

        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._feed(PointerFailed(checkpoint=checkpoint, inconsistent=True, error=str(outcome.error)))
            elif outcome.value:
                self._feed(PointerStored(checkpoint=checkpoint))
            else:
                self._feed(PointerFailed(checkpoint=checkpoint, error="the pointer could not be written"))

        self._background.submit(record, done)

    def _delete_files(self, effect: DeleteFiles) -> None:
        def delete() -> str | None:
            error: str | None = None
            store = self._store if effect.root is None else self._store.at(effect.root)
            for path in effect.paths:
                error = self._attempt(partial(delete_file, store), path) or error
            if effect.folder is not None:
                error = self._attempt(partial(delete_folder, self._store), effect.folder) or error
            return error

        def done(outcome: Outcome) -> None:
            error = str(outcome.error) if outcome.error is not None else outcome.value
            if error is not None:
                log.warning("files could not be deleted", extra={"error": error})
            self._feed(FilesDeleted(cleaning=effect.cleaning, error=error))

        self._background.submit(delete, done)

    def _forget(self, effect: ForgetPointers) -> None:
        def forget() -> None:
            for checkpoint in effect.checkpoints:
                self._attempt(self._completed.remove, checkpoint)

        self._background.submit(forget, lambda _: None)

    @staticmethod
    def _attempt(call: Callable[..., None], argument: object) -> str | None:
        try:
            call(argument)
        except StorageError as error:
            return str(error)
        return None
