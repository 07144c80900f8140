"""Where the files of a snapshot lie, for a job that did not take it.

The paths in the metadata of a checkpoint begin at the root of the store that the job had, those of a savepoint at its
own folder. So both can be moved: a savepoint by itself, a checkpoint with the folder of its job. Whoever starts from
one replaces them by full paths, which begin at no root and mean the same to everybody; files that are written down with
full paths were somebody else's before, and stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, TaskChannels

Place = Callable[[str], str]
"""From a path in the metadata to the full path."""


def is_full(path: str) -> bool:
    """Whether a path says by itself where a file lies: an absolute path, or a URI."""
    return path.startswith("/") or "://" in path


def folder_and_name(path: str) -> tuple[str, str]:
    """The folder of a full path, which can be the root of a store, and the name in it."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def with_full_paths(metadata: CheckpointMetadata, folder: str) -> CheckpointMetadata:
    """The metadata of the snapshot that lies in `folder` (a full path), with all paths as they are now."""
    place = _in_savepoint(folder) if metadata.kind.is_savepoint else _in_job(metadata, folder)
    operators = {operator: _operator(snapshot, place) for operator, snapshot in metadata.operators.items()}
    channels = tuple(
        TaskChannels(task=task.task, inputs=_channels(task.inputs, place), outputs=_channels(task.outputs, place))
        for task in metadata.channels
    )
    return msgspec.structs.replace(metadata, operators=operators, channels=channels)


def _in_savepoint(folder: str) -> Place:
    return lambda path: f"{folder}/{path}"


def _in_job(metadata: CheckpointMetadata, folder: str) -> Place:
    """Files of the checkpoint alone lie in its folder, whatever that is called now; others beside it."""
    beside, _ = folder_and_name(folder)
    own = f"chk-{metadata.checkpoint}"

    def place(path: str) -> str:
        _, _, below_job = path.partition("/")
        first, _, rest = below_job.partition("/")
        return f"{folder}/{rest}" if first == own else f"{beside.rstrip('/')}/{below_job}"

    return place


def _operator(snapshot: OperatorSnapshot, place: Place) -> OperatorSnapshot:
    subtasks: dict[int, OperatorState] = {}
    for number, state in snapshot.subtasks.items():
        subtasks[number] = msgspec.structs.replace(state, keyed=tuple(_file(file, place) for file in state.keyed))
    return msgspec.structs.replace(snapshot, subtasks=subtasks)


def _channels(states: tuple[ChannelState, ...], place: Place) -> tuple[ChannelState, ...]:
    return tuple(msgspec.structs.replace(state, file=_file(state.file, place)) for state in states)


def _file(file: StateFile, place: Place) -> StateFile:
    if file.path is None or is_full(file.path):
        return file
    return msgspec.structs.replace(file, path=place(file.path))
