"""Messages, barriers and effects of the coordinator in the short words of scripts."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.coordinator import effects as told
from penstock.core.elements import Barrier, CancelMarker, EndOfData, EndOfPartition
from penstock.core.ids import CheckpointId, Epoch, TaskId
from penstock.core.messages import (
    Acknowledge,
    CancelTasks,
    DataEnded,
    Decline,
    LetEnd,
    NotifyAborted,
    NotifyComplete,
    Run,
    TaskFailed,
    TaskFinished,
    TriggerCheckpoint,
    WantsToEnd,
)
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind


class DataTaken(msgspec.Struct, frozen=True):
    """Downstream task to upstream task: all data of the channel has been processed, to its end."""


class RestoreTask(msgspec.Struct, frozen=True):
    """Master to task: begin an attempt of the task from this checkpoint."""

    epoch: Epoch
    restored: CheckpointId | None


class TaskRestored(msgspec.Struct, frozen=True):
    """Task to master: the attempt of the task is ready to run."""

    task: TaskId
    epoch: Epoch


class TaskDropped(msgspec.Struct, frozen=True):
    """Task to master: no attempt of the task up to `epoch` runs."""

    task: TaskId
    epoch: Epoch


KINDS = {
    SnapshotKind.CHECKPOINT: "",
    SnapshotKind.FULL_CHECKPOINT: ", a full checkpoint",
    SnapshotKind.SAVEPOINT: ", a savepoint",
    SnapshotKind.SUSPEND: ", a savepoint that stops the job",
    SnapshotKind.TERMINATE: ", a savepoint that drains and stops the job",
}


def words_of(message: Any) -> str:
    """What a message says."""
    match message:
        case str():
            return f"batch {message}"
        case Barrier(options=options):
            kind = " of a stop" if options.synchronous else " of a savepoint" if options.savepoint else ""
            return f"{'unaligned ' if options.overtakes else ''}barrier {message.checkpoint}{kind}"
        case CancelMarker():
            return f"cancel marker {message.checkpoint}"
        case TriggerCheckpoint():
            return f"trigger chk-{message.checkpoint}"
        case NotifyComplete(subsumed=subsumed):
            return f"chk-{message.checkpoint} is complete{f', chk-{subsumed} is subsumed' if subsumed else ''}"
        case NotifyAborted(latest_completed=latest):
            return f"chk-{message.checkpoint} is aborted{f', chk-{latest} is the latest' if latest else ''}"
        case Acknowledge(state=state):
            finished = ", finished" if state is not None and state.finished else ""
            return f"acknowledge chk-{message.checkpoint}{finished}"
        case Decline():
            return f"decline chk-{message.checkpoint}: {message.reason.text}"
        case TaskFailed():
            return f"failed: {message.error}"
        case RestoreTask(epoch=epoch, restored=restored):
            return f"begin attempt {epoch} from {f'chk-{restored}' if restored else 'the beginning'}"
        case TaskRestored() | TaskDropped() | Run() | CancelTasks():
            return f"{_ATTEMPTS[type(message)]} attempt {message.epoch}"
        case _:
            return _PLAIN[type(message)]


_ATTEMPTS: dict[type, str] = {TaskRestored: "ready for", TaskDropped: "dropped", Run: "run", CancelTasks: "drop"}
_PLAIN: dict[type, str] = {
    EndOfData: "end of data",
    EndOfPartition: "end of the channel",
    DataTaken: "all data is processed",
    DataEnded: "all data seen",
    WantsToEnd: "asks to end",
    LetEnd: "end",
    TaskFinished: "ended",
}


def answer_words(result: CompletedCheckpoint | told.RequestFailure) -> str:
    """What a user is told."""
    if isinstance(result, CompletedCheckpoint):
        return f"chk-{result.checkpoint} at {result.path}"
    return f"failed, {result.text}"


def deletion_words(effect: told.DeleteFiles) -> str:
    """What is to be deleted."""
    folder = effect.folder
    is_inside = [
        effect.root is not None or (folder is not None and path.startswith(f"{folder}/")) for path in effect.paths
    ]
    outside = [f"file {path}" for path, inside in zip(effect.paths, is_inside, strict=True) if not inside]
    return ", ".join([*([f"folder {folder}"] if folder else []), *outside])
