"""Files that several checkpoints refer to, and when each file may be deleted.

References are not counted. The entry of a file says which checkpoint created the file and which is the newest
checkpoint that used the file. When all checkpoints below some id are gone, the files whose newest user is below that id
are deleted. So a failed checkpoint deletes no shared file: the next checkpoint that completes either used the file or
makes it unused.

Two files with the same key have the same content. If two tasks (or one task, twice) upload the same content under two
paths, the first file stays and the second file is superfluous.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, SharedFile


@dataclass(slots=True)
class _Entry:
    file: StateFile
    created_by: CheckpointId
    last_used: CheckpointId
    owned: bool


@dataclass(slots=True)
class Registration:
    """The result of registering the files of one acknowledgement."""

    superfluous: list[str]
    """Paths of files whose content is already registered under another path."""
    problem: str | None = None
    """Why the acknowledgement cannot be right; None if it can. The files that it named correctly are registered all the
    same."""


class SharedStateRegistry:
    """Every shared file that may still be used."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._claimed_folders: set[CheckpointId] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def register(self, files: Iterable[StateFile], checkpoint: CheckpointId) -> Registration:
        """`checkpoint` uses these files. Files without a key are not shared and are left out."""
        result = Registration(superfluous=[])
        for file in files:
            key = file.shared_key
            if key is None:
                continue
            entry = self._entries.get(key)
            if entry is None and file.placeholder:
                result.problem = f"refers to the shared file {key!r}, which no checkpoint has written"
            elif entry is None:
                self._entries[key] = _Entry(file, created_by=checkpoint, last_used=checkpoint, owned=True)
            elif file.placeholder or _same_content(file, entry.file):
                entry.last_used = max(entry.last_used, checkpoint)
                if not file.placeholder and file.path is not None and file.path != entry.file.path:
                    result.superfluous.append(file.path)
            else:
                result.problem = f"wrote the shared file {key!r} with content that differs from the registered file"
        return result

    def strays_in(self, files: Iterable[StateFile]) -> list[str]:
        """Paths of the shared files that are not registered, and that therefore no checkpoint can use."""
        strays: list[str] = []
        for file in files:
            if file.shared_key is None or file.path is None:
                continue
            entry = self._entries.get(file.shared_key)
            if entry is None or entry.file.path != file.path:
                strays.append(file.path)
        return strays

    def register_restored(self, completed: CompletedCheckpoint) -> None:
        """Register the shared files of a checkpoint that completed before this driver began. A snapshot that the job
        does not claim is left out: no later checkpoint may use its files."""
        if completed.claim is Claim.NO_CLAIM:
            return
        for shared in completed.shared_files:
            key = shared.file.shared_key
            if key is None or shared.file.placeholder:
                raise InvariantError(f"completed checkpoint {completed.checkpoint} lists {shared.file.path} as shared")
            entry = self._entries.setdefault(
                key, _Entry(shared.file, shared.created_by, completed.checkpoint, shared.owned)
            )
            entry.last_used = max(entry.last_used, completed.checkpoint)
        if completed.claim is Claim.CLAIM and completed.is_self_contained:
            self._claimed_folders.add(completed.checkpoint)

    def has_path(self, path: str) -> bool:
        """Whether a registered file, which may still be used, has this path."""
        return any(entry.file.path == path for entry in self._entries.values())

    def resolve(self, file: StateFile) -> StateFile:
        """The file to read instead of `file`: never a placeholder."""
        return file if file.shared_key is None else self._entries[file.shared_key].file

    def describe(self, files: Iterable[StateFile]) -> tuple[SharedFile, ...]:
        """What is to be recorded about the shared files among these files, each file once."""
        keys = dict.fromkeys(f.shared_key for f in files if f.shared_key is not None)
        entries = (self._entries[key] for key in keys)
        return tuple(SharedFile(file=e.file, created_by=e.created_by, owned=e.owned) for e in entries)

    def drop_unused(self, lowest: CheckpointId) -> list[str]:
        """Only checkpoints from `lowest` on are left, and more checkpoints will come. Returns the paths that may be
        deleted."""
        return self._drop([key for key, entry in self._entries.items() if entry.last_used < lowest])

    def drop_all_but(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        """Only these checkpoints are left, and no more checkpoints will come. Returns the paths that may be deleted."""
        return self._drop(self._unused(kept))

    def unused_paths(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        """The paths that `drop_all_but` would return."""
        return self._paths(self._entries[key] for key in self._unused(kept))

    def _unused(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        used = {shared.file.shared_key for completed in kept for shared in completed.shared_files}
        return [key for key in self._entries if key not in used]

    def _drop(self, keys: list[str]) -> list[str]:
        return self._paths([self._entries.pop(key) for key in keys])

    def _paths(self, entries: Iterable[_Entry]) -> list[str]:
        """The paths to delete file by file. Files in the folder of a claimed snapshot are deleted together with the
        folder: until then that snapshot stays whole."""
        alone = (e for e in entries if e.owned and e.created_by not in self._claimed_folders)
        return [entry.file.path for entry in alone if entry.file.path is not None]

    def holds(self, completed: CompletedCheckpoint, lowest: CheckpointId) -> bool:
        """Whether the folder of this checkpoint must stay although the checkpoint is not retained any more, because
        checkpoints from `lowest` on use files in the folder."""
        if completed.checkpoint not in self._claimed_folders:
            return False
        entries = self._entries.values()
        return any(e.created_by == completed.checkpoint and e.last_used >= lowest for e in entries)


def _same_content(one: StateFile, other: StateFile) -> bool:
    return (one.checksum, one.size) == (other.checksum, other.size)
