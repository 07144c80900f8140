"""Files that several checkpoints refer to, and when each may go.

Nobody counts references. Each file knows which checkpoint created it and which is the newest that used it. When all
checkpoints below some id are gone, so are the files whose newest user is below it. A failed checkpoint therefore
deletes none of them: the next one that completes either used them or lets them go.

The same key names the same content. If two tasks (or one task, twice) upload the same content under two paths, the
first one stays and the second is superfluous.
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
    """What registering the files of one acknowledgement led to."""

    superfluous: list[str]
    """Paths of files whose content is already there."""
    problem: str | None = None
    """Why the acknowledgement cannot be right; what it named correctly is registered all the same."""


class SharedStateRegistry:
    """Every shared file that may still be used."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._claimed_folders: set[CheckpointId] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def register(self, files: Iterable[StateFile], checkpoint: CheckpointId) -> Registration:
        """`checkpoint` uses these files; those without a key are not shared and are passed over."""
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
                result.problem = f"wrote the shared file {key!r} with other content than there is under that name"
        return result

    def strays_in(self, files: Iterable[StateFile]) -> list[str]:
        """Paths of those shared files that nobody can use any more, because they are not registered."""
        strays: list[str] = []
        for file in files:
            if file.shared_key is None or file.path is None:
                continue
            entry = self._entries.get(file.shared_key)
            if entry is None or entry.file.path != file.path:
                strays.append(file.path)
        return strays

    def register_restored(self, completed: CompletedCheckpoint) -> None:
        """A completed checkpoint that was there before this driver. One that the job does not claim is left out: no
        later checkpoint may use its files."""
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
        """Whether a file that may still be used lies there."""
        return any(entry.file.path == path for entry in self._entries.values())

    def resolve(self, file: StateFile) -> StateFile:
        """The file to read instead of `file`: never a placeholder."""
        return file if file.shared_key is None else self._entries[file.shared_key].file

    def describe(self, files: Iterable[StateFile]) -> tuple[SharedFile, ...]:
        """What is to be remembered about the shared ones of these files, each once."""
        keys = dict.fromkeys(f.shared_key for f in files if f.shared_key is not None)
        entries = (self._entries[key] for key in keys)
        return tuple(SharedFile(file=e.file, created_by=e.created_by, owned=e.owned) for e in entries)

    def drop_unused(self, lowest: CheckpointId) -> list[str]:
        """Only checkpoints from `lowest` on are left, and more will come. Returns the paths that may be deleted."""
        return self._drop([key for key, entry in self._entries.items() if entry.last_used < lowest])

    def drop_all_but(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        """Only these are left, and no more will come. Returns the paths that may be deleted."""
        return self._drop(self._unused(kept))

    def unused_paths(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        """What `drop_all_but` would return."""
        return _paths(self._entries[key] for key in self._unused(kept))

    def _unused(self, kept: Iterable[CompletedCheckpoint]) -> list[str]:
        used = {shared.file.shared_key for completed in kept for shared in completed.shared_files}
        return [key for key in self._entries if key not in used]

    def _drop(self, keys: list[str]) -> list[str]:
        return _paths([self._entries.pop(key) for key in keys])

    def holds(self, completed: CompletedCheckpoint, lowest: CheckpointId) -> bool:
        """Whether the folder of this checkpoint must stay although it is gone itself, because checkpoints from `lowest`
        on use files in it."""
        if completed.checkpoint not in self._claimed_folders:
            return False
        entries = self._entries.values()
        return any(e.created_by == completed.checkpoint and e.last_used >= lowest for e in entries)


def _paths(entries: Iterable[_Entry]) -> list[str]:
    return [entry.file.path for entry in entries if entry.owned and entry.file.path is not None]


def _same_content(one: StateFile, other: StateFile) -> bool:
    return (one.checksum, one.size) == (other.checksum, other.size)
