"""What is recorded about a checkpoint.

`CheckpointMetadata` is the content of a checkpoint's metadata file: everything that a restore needs, with any
parallelism of the restored job. `CompletedCheckpoint` is the short record in the store of completed checkpoints: where
the metadata lies, and what the archive must know to subsume and delete the checkpoint without reading the metadata.

Deliberately not here: bytes. The code that reads and writes the files does the encoding and the checksums, and refuses
newer versions.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec

from penstock.core.graph import OperatorLabel, Partitioning
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.core.recovery.roots import inside, split
from penstock.settings import Retention

METADATA_VERSION = 1
"""Raised by one whenever an older program could misread metadata that a newer program wrote."""


class SnapshotKind(Enum):
    """What a snapshot is for. The value is the kind's name for people."""

    CHECKPOINT = "Checkpoint"
    FULL_CHECKPOINT = "Full Checkpoint"
    """Refers to no file of an earlier checkpoint. Later checkpoints may refer to the files of a full checkpoint."""
    SAVEPOINT = "Savepoint"
    SUSPEND = "Suspend Savepoint"
    """Stop with savepoint, without drain."""
    TERMINATE = "Terminate Savepoint"
    """Stop with savepoint, after event time has gone to its end."""

    @property
    def is_savepoint(self) -> bool:
        """Whether the snapshot belongs to the user: the snapshot shares no file with others, and the job never deletes
        it."""
        return self not in (SnapshotKind.CHECKPOINT, SnapshotKind.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether the tasks end when the snapshot is complete."""
        return self in (SnapshotKind.SUSPEND, SnapshotKind.TERMINATE)


class Claim(Enum):
    """Who owns the files of a snapshot that a job was started from."""

    CLAIM = "claim"
    """The job owns the files. The job deletes the files when a checkpoint of its own has replaced the snapshot and no
    checkpoint uses the files. A job that fails, or ends without a checkpoint of its own, leaves the files as they
    were."""
    NO_CLAIM = "no-claim"
    """The user owns the files and may delete them at any time: the first checkpoint must not refer to them."""
    LEGACY = "legacy"
    """The user owns the files and must not delete them, because checkpoints refer to them. The job never deletes
    them."""


class Unmatched(Enum):
    """What becomes of state whose operator the program does not have."""

    REFUSE = "refuse"
    """The restore is refused. The error names the steps of the program that the state might belong to."""
    IGNORE = "ignore"
    """The state is left over: nobody reads the state."""


class MatchingRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants for operators that only the snapshot or only the program has."""

    unmatched: Unmatched = Unmatched.REFUSE
    drop: tuple[str, ...] = ()
    """Operators of the snapshot, by id or by the name of the step, whose state is not used. If the program has such an
    operator, the operator starts without state."""


NO_SURPRISES = MatchingRules()
"""All state must find its operator."""


class DiscardRules(msgspec.Struct, frozen=True, kw_only=True):
    """On which occasions the files of a completed checkpoint are deleted. There is no rule for a suspended job: another
    driver takes the job over, so all files stay."""

    subsumed: bool = False
    finished: bool = False
    cancelled: bool = False
    failed: bool = False

    @staticmethod
    def of(retention: Retention, *, finished: bool = True) -> DiscardRules:
        """The rules for a checkpoint that the job has taken. `finished` says whether the checkpoint is deleted when the
        job has finished its data."""
        return DiscardRules(
            subsumed=True,
            finished=finished,
            cancelled=retention is not Retention.KEEP,
            failed=retention is Retention.DELETE,
        )

    @staticmethod
    def of_claimed(retention: Retention) -> DiscardRules:
        """The rules for a snapshot that the job was started from and owns: the same rules as for a checkpoint of the
        job, except that no failure of the job deletes the snapshot. The rules hold once the job has a completed
        checkpoint of its own; until then nothing deletes the snapshot."""
        return msgspec.structs.replace(DiscardRules.of(retention), failed=False)


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that several checkpoints may refer to, as the registry knew the file when the checkpoint completed."""

    file: StateFile
    """Never a placeholder."""
    created_by: CheckpointId
    owned: bool = True
    """False: the file belongs to a snapshot that the job may not delete."""


Subtasks = Annotated[tuple[int, ...], msgspec.Meta(max_length=1 << 20)]
"""Numbers of subtasks; more than any operator has are refused before they are decoded."""


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one operator, over all its subtasks."""

    operator: OperatorId
    vertex: VertexId
    parallelism: int
    max_parallelism: int
    subtasks: dict[int, OperatorState] = {}
    """Subtask -> the state that the subtask acknowledged. Subtasks without state are left out."""
    finished: bool = False
    """All subtasks were at their end for good: after a restore none of them runs user code again."""
    finished_subtasks: Subtasks = ()
    """Subtasks that had ended for good while others still ran."""
    ended_subtasks: Subtasks = ()
    """Subtasks that took part, but had seen all their data and finished their operators before."""
    label: OperatorLabel = OperatorLabel()

    @property
    def has_state(self) -> bool:
        """Whether any subtask has state to restore."""
        return any(not state.is_empty for state in self.subtasks.values())

    @property
    def has_keyed_state(self) -> bool:
        """Whether any subtask has keyed state."""
        return any(state.files for state in self.subtasks.values())

    @property
    def size(self) -> int:
        """Bytes that a restore has to read."""
        return sum(state.size for state in self.subtasks.values())

    @property
    def title(self) -> str:
        """The operator in a text for people."""
        return described(self.operator, self.label)


def described(operator: OperatorId, label: OperatorLabel) -> str:
    """An operator in a text for people: the id, and the name if the name differs from the id."""
    known = label.name if label.name != operator else ""
    extra = ", ".join(part for part in (known, label.kind) if part)
    return f"{operator} ({extra})" if extra else str(operator)


class EdgeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of an edge stood for when the snapshot was taken. A restore finds the edge again by the operators
    that the edge joined, not by the number."""

    number: int
    upstream: OperatorId
    """The operator that emitted the edge's records: the last operator of its chain, unless `side` is set."""
    downstream: OperatorId
    """The operator that took the edge's records: the first operator of its chain."""
    partitioning: Partitioning
    upstream_parallelism: int
    downstream_parallelism: int
    keys: tuple[str, ...] = ()
    input_number: int = 0
    side: str | msgspec.UnsetType = msgspec.UNSET
    """The name of the side output that the edge carried; unset for the main output."""


class TaskChannels(msgspec.Struct, frozen=True, kw_only=True):
    """The in-flight data that one subtask saved."""

    task: TaskId
    inputs: tuple[ChannelState, ...] = ()
    outputs: tuple[ChannelState, ...] = ()


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a restore needs. New fields: at the end, with a default."""

    version: int = METADATA_VERSION
    job: JobId
    checkpoint: CheckpointId
    timestamp: Instant
    """When the checkpoint was triggered."""
    kind: SnapshotKind
    operators: dict[OperatorId, OperatorSnapshot] = {}
    channels: tuple[TaskChannels, ...] = ()
    coordinators: dict[OperatorId, bytes] = {}
    """State of operator coordinators."""
    hooks: dict[str, bytes] = {}
    """State of master hooks, by hook id. Hooks without state are left out."""
    settings: dict[str, Any] = {}
    """The job's settings at that time, as plain values."""
    edges: tuple[EdgeSnapshot, ...] = ()
    """The edges whose channels may be among `channels`. Empty in metadata of older programs, which recorded no edges:
    the edge numbers in `channels` are then taken for the numbers in the program's plan."""
    drained: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the job was drained; unset if `kind` tells that. See `is_drained`."""

    @property
    def is_drained(self) -> bool:
        """Whether the tasks had come to the end of their data because of a stop with drain: because this snapshot is
        the savepoint of the stop, or because the job failed after an earlier stop with drain. The sources have more to
        read."""
        return self.kind is SnapshotKind.TERMINATE if self.drained is msgspec.UNSET else self.drained

    @property
    def title(self) -> str:
        """The snapshot in a text for people."""
        return f"{self.kind.value.lower()} {self.checkpoint}"

    @property
    def files(self) -> tuple[StateFile, ...]:
        """Every file that the metadata refers to, each file once, shared files too. Inline pieces are left out."""
        found: dict[str, StateFile] = {}
        for operator in self.operators.values():
            for state in operator.subtasks.values():
                for file in state.files:
                    if file.path is not None:
                        found.setdefault(file.path, file)
        for channels in self.channels:
            for channel in (*channels.inputs, *channels.outputs):
                if channel.file.path is not None:
                    found.setdefault(channel.file.path, channel.file)
        return tuple(found.values())

    @property
    def private_files(self) -> tuple[str, ...]:
        """Paths of the files that no other checkpoint refers to."""
        return tuple(f.path for f in self.files if f.shared_key is None and f.path is not None)

    @property
    def size(self) -> int:
        """Bytes of state that a restore has to read."""
        operators = sum(o.size for o in self.operators.values())
        channels = sum(n for t in self.channels for c in (*t.inputs, *t.outputs) for _, n in c.ranges)
        return operators + channels + sum(map(len, (*self.coordinators.values(), *self.hooks.values())))


class CompletedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint or savepoint whose metadata is durable."""

    job: JobId
    checkpoint: CheckpointId
    timestamp: Instant
    """When the checkpoint was triggered."""
    completed: Instant
    kind: SnapshotKind
    location: str
    """The folder of the checkpoint. All files in the folder belong to this checkpoint alone."""
    path: str
    """The metadata file of the checkpoint."""
    size: int
    """Bytes of state that a restore has to read."""
    metadata_size: int = 0
    discard: DiscardRules = DiscardRules()
    claim: Claim | None = None
    """Who owns a snapshot that the job was started from; None for a snapshot that the job itself took."""
    private_files: tuple[str, ...] = ()
    shared_files: tuple[SharedFile, ...] = ()
    rules: MatchingRules = MatchingRules()
    """For a snapshot that the job was started from: what becomes of operators that only the snapshot or only the
    program has."""

    @property
    def title(self) -> str:
        """The snapshot in a text for people."""
        return f"{self.kind.value.lower()} {self.checkpoint}"

    @property
    def can_be_built_on(self) -> bool:
        """Whether the next checkpoint may refer to the files of this snapshot: nobody may delete these files
        meanwhile."""
        if self.claim is None:
            return not self.kind.is_savepoint
        return self.claim is not Claim.NO_CLAIM

    @property
    def is_self_contained(self) -> bool:
        """Whether the files that later checkpoints refer to lie in this snapshot's own folder."""
        return self.kind.is_savepoint


def restored_from(
    metadata: CheckpointMetadata,
    *,
    location: str,
    path: str,
    metadata_size: int,
    claim: Claim,
    retention: Retention,
    rules: MatchingRules = NO_SURPRISES,
) -> CompletedCheckpoint:
    """The record of a snapshot that a job is started from. The record is the first of the job's completed checkpoints.
    If the job claims a savepoint, the job owns the files in the savepoint's folder. If the job claims a checkpoint, the
    job owns the files in the folder of the job that took the checkpoint. Files elsewhere belong to somebody else."""
    owned = claim is Claim.CLAIM
    place = location if metadata.kind.is_savepoint else split(location)[0]
    return CompletedCheckpoint(
        job=metadata.job,
        checkpoint=metadata.checkpoint,
        timestamp=metadata.timestamp,
        completed=metadata.timestamp,
        kind=metadata.kind,
        location=location,
        path=path,
        size=metadata.size,
        metadata_size=metadata_size,
        discard=DiscardRules.of_claimed(retention) if owned else DiscardRules(),
        claim=claim,
        private_files=metadata.private_files,
        shared_files=tuple(
            SharedFile(file=f, created_by=metadata.checkpoint, owned=owned and inside(place, f.path or "") is not None)
            for f in metadata.files
            if f.shared_key is not None
        ),
        rules=rules,
    )
