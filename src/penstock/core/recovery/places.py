"""Where the files of a snapshot lie, for a job that did not take the snapshot; and which paths of metadata are allowed.

The paths in the metadata of a checkpoint are relative to the root of the job's store. The paths in the metadata of a
savepoint are relative to the savepoint's folder. So both can be moved: a savepoint by itself, a checkpoint with the
folder of its job. A reader of the metadata replaces the paths by full paths, which are relative to no root.

Metadata may come from anybody. So every path in metadata goes through `with_full_paths`, which raises `CorruptFile` for
every path that is not in this table:

    of a savepoint              a file directly in the savepoint's folder
    of a checkpoint             a file directly in the checkpoint's folder
      shared                    a file directly in `shared/` beside that folder
      shared, a full path       a file in the `shared` folder of another job, or in a savepoint, of the same checkpoint
                                directory or of a directory that the user named. The job that took the checkpoint had
                                claimed a snapshot there and goes on using its files. A job that claims this checkpoint
                                never deletes such files.
    any full path               a file that the job's own record of the snapshot names

Deliberately not here: links. The code that opens a file makes sure that no link leads out of the folder
(`storage.files`).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from penstock.core.errors import CorruptFile
from penstock.core.messages import ChannelState, OperatorState, StateFile, raw_files
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, TaskChannels
from penstock.core.recovery.roots import below, inside, shown, split, with_scheme

SHARED = "shared"
"""The folder of a job for the files that its checkpoints share."""


def is_full(path: str) -> bool:
    """Whether a path is relative to no root: an absolute path, or a URI."""
    return path.startswith("/") or with_scheme(path)


def is_plain(name: str) -> bool:
    """Whether a text is a plain name of a file, which cannot lead out of a folder."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def with_full_paths(
    metadata: CheckpointMetadata, folder: str, *, known: Collection[str] = (), also_in: Collection[str] = ()
) -> CheckpointMetadata:
    """The metadata of the snapshot that lies in `folder`, with full paths. `known` are full paths that the job itself
    has on record, `also_in` are checkpoint directories that the user named. Raises `CorruptFile` for a path that is not
    allowed."""
    places = _Places(metadata, folder, known, also_in)
    operators = {operator: _operator(snapshot, places) for operator, snapshot in metadata.operators.items()}
    channels = tuple(
        TaskChannels(task=task.task, inputs=_channels(task.inputs, places), outputs=_channels(task.outputs, places))
        for task in metadata.channels
    )
    _check_ranges(metadata, folder)
    return msgspec.structs.replace(metadata, operators=operators, channels=channels)


class _Places:
    """Where one snapshot has its files."""

    def __init__(
        self, metadata: CheckpointMetadata, folder: str, known: Collection[str], also_in: Collection[str]
    ) -> None:
        self._title = metadata.title
        self._folder = folder
        self._is_savepoint = metadata.kind.is_savepoint
        self._own = f"chk-{metadata.checkpoint}"
        self._job, _ = split(folder)
        self._known = known
        self._directories = (split(self._job)[0], *also_in)

    def place(self, file: StateFile) -> StateFile:
        """The file with its full path."""
        if file.path is None or file.path in self._known:
            return file
        found = self._found(file.path, is_shared=file.shared_key is not None)
        return file if found == file.path else msgspec.structs.replace(file, path=found)

    def _found(self, path: str, *, is_shared: bool) -> str:
        if is_full(path):
            if is_shared and not self._is_savepoint and any(_is_shared_in(root, path) for root in self._directories):
                return path
            raise self._strange(path, "name the checkpoint directory of that file in restore(..., also_in=[...])")
        names = path.split("/")
        if all(map(is_plain, names)):
            if self._is_savepoint and len(names) == 1:
                return below(self._folder, path)
            if not self._is_savepoint and names[1:2] == [self._own] and len(names) == 3:
                return below(self._folder, names[2])
            if not self._is_savepoint and names[1:2] == [SHARED] and len(names) == 3 and is_shared:
                return below(self._job, f"{SHARED}/{names[2]}")
        raise self._strange(path)

    def _strange(self, path: str, otherwise: str = "") -> CorruptFile:
        more = f"; if you trust the snapshot, {otherwise}" if otherwise else ""
        return CorruptFile(
            f"the metadata of {self._title} in {shown(self._folder)} names the file {path!r}, which does not lie in a "
            "folder of this snapshot",
            hint="do not use the snapshot: somebody changed it, or made it in order to read or delete other files"
            f"{more}",
        )


def _is_shared_in(directory: str, path: str) -> bool:
    return is_shared_place(inside(directory, path) or "")


def is_shared_place(path: str) -> bool:
    """Whether a path below a checkpoint directory is the path of a file in a job's `shared` folder, or in a
    savepoint."""
    names = path.split("/")
    if len(names) < 2 or not all(map(is_plain, names)):
        return False
    return (len(names) == 3 and names[1] == SHARED) or layout.is_savepoint_folder(names[-2])


def _operator(snapshot: OperatorSnapshot, places: _Places) -> OperatorSnapshot:
    subtasks: dict[int, OperatorState] = {}
    for number, state in snapshot.subtasks.items():
        subtasks[number] = msgspec.structs.replace(
            state,
            keyed=tuple(map(places.place, state.keyed)),
            raw=raw_files(tuple(map(places.place, state.raw_keyed))),
        )
    return msgspec.structs.replace(snapshot, subtasks=subtasks)


def _channels(states: tuple[ChannelState, ...], places: _Places) -> tuple[ChannelState, ...]:
    return tuple(msgspec.structs.replace(state, file=places.place(state.file)) for state in states)


def _check_ranges(metadata: CheckpointMetadata, folder: str) -> None:
    """Raise `CorruptFile` if the in-flight data that the metadata names is larger than its file. Otherwise a changed
    snapshot could name one range a thousand times, and the restore would read a thousand batches."""
    left: dict[str | int, int] = {}
    for task in metadata.channels:
        for state in (*task.inputs, *task.outputs):
            file = state.file
            named = file.path if file.path is not None else len(left)
            used = sum(max(0, length) for _, length in state.ranges)
            left[named] = left.get(named, file.size) - used
            outside = any(offset < 0 or length < 0 or offset + length > file.size for offset, length in state.ranges)
            if outside or left[named] < 0:
                raise CorruptFile(
                    f"{metadata.title} in {shown(folder)} has in-flight data of {task.task} that lies beyond the end "
                    f"of {file.path or 'its file'}",
                    hint="restore from another checkpoint or savepoint",
                )
