"""What is written down about a checkpoint.

`CheckpointMetadata` is the content of a checkpoint's metadata file: everything a restore needs, whatever the
parallelism of the job that restores. `CompletedCheckpoint` is the short record that the store of completed checkpoints
keeps: where the metadata lies, and what subsumption and cleaning must know without reading it.

Deliberately not here: bytes. Encoding, checksums and the refusal of newer versions belong to whoever reads and writes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from penstock.core.graph import OperatorLabel, Partitioning
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import ChannelState, OperatorState, StateFile
from penstock.settings import Retention

METADATA_VERSION = 1
"""Raised whenever an older program could misread what a newer one wrote."""


class SnapshotKind(Enum):
    """What a snapshot is for. The value is its name for people."""

    CHECKPOINT = "Checkpoint"
    FULL_CHECKPOINT = "Full Checkpoint"
    """Refers to no file of an earlier one; later ones may refer to its files."""
    SAVEPOINT = "Savepoint"
    SUSPEND = "Suspend Savepoint"
    """Stop with savepoint, without drain."""
    TERMINATE = "Terminate Savepoint"
    """Stop with savepoint, after event time has gone to its end."""

    @property
    def is_savepoint(self) -> bool:
        """Whether it belongs to the user: shares no file with others and is never deleted by the job."""
        return self not in (SnapshotKind.CHECKPOINT, SnapshotKind.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether the tasks end when it completes."""
        return self in (SnapshotKind.SUSPEND, SnapshotKind.TERMINATE)


class Claim(Enum):
    """Who owns the files of a snapshot that a job was started from."""

    CLAIM = "claim"
    """The job: it deletes them when they are no longer used."""
    NO_CLAIM = "no-claim"
    """The user, who may delete them at any time: the first checkpoint must not refer to them."""
    LEGACY = "legacy"
    """The user, who may not delete them: checkpoints refer to them, and nobody deletes them."""


class Unmatched(Enum):
    """What becomes of state that no operator of the program wants."""

    REFUSE = "refuse"
    """The restore is refused, with what it might belong to."""
    IGNORE = "ignore"
    """It is left over: nobody reads it."""


class MatchingRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of operators that only one side has."""

    unmatched: Unmatched = Unmatched.REFUSE
    drop: tuple[str, ...] = ()
    """Operators of the snapshot, by id or by the name of the step, whose state is not used, also if the program has
    them: those start afresh."""


NO_SURPRISES = MatchingRules()
"""All state must find its operator."""


class DiscardRules(msgspec.Struct, frozen=True, kw_only=True):
    """On which occasions the files of a completed checkpoint are deleted. There is no rule for a suspended job: another
    driver takes it over, so everything stays."""

    subsumed: bool = False
    finished: bool = False
    cancelled: bool = False
    failed: bool = False

    @staticmethod
    def of(retention: Retention) -> DiscardRules:
        """The rules of a checkpoint that belongs to the job."""
        return DiscardRules(
            subsumed=True,
            finished=True,
            cancelled=retention is not Retention.KEEP,
            failed=retention is Retention.DELETE,
        )


class SharedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that several checkpoints may refer to, as the registry knew it."""

    file: StateFile
    """Never a placeholder."""
    created_by: CheckpointId
    owned: bool = True
    """False: it belongs to a snapshot that the job may not delete."""


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one operator, over all its subtasks."""

    operator: OperatorId
    vertex: VertexId
    parallelism: int
    max_parallelism: int
    subtasks: dict[int, OperatorState] = {}
    """Subtask -> what it reported; those that reported nothing are left out."""
    finished: bool = False
    """All subtasks were at their end for good: after a restore none of them runs user code again."""
    finished_subtasks: tuple[int, ...] = ()
    """Subtasks that had ended for good while others still ran."""
    ended_subtasks: tuple[int, ...] = ()
    """Subtasks that took part, but had seen all their data and finished their operators before."""
    label: OperatorLabel = OperatorLabel()

    @property
    def has_state(self) -> bool:
        """Whether there is anything to restore."""
        return any(not state.is_empty for state in self.subtasks.values())

    @property
    def has_keyed_state(self) -> bool:
        """Whether some of it is by key group."""
        return any(state.keyed for state in self.subtasks.values())

    @property
    def size(self) -> int:
        """Bytes that a restore has to read."""
        return sum(state.size for state in self.subtasks.values())

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return described(self.operator, self.label)


def described(operator: OperatorId, label: OperatorLabel) -> str:
    """An operator, for people: its id, and its name where that says more."""
    known = label.name if label.name != operator else ""
    extra = ", ".join(part for part in (known, label.kind) if part)
    return f"{operator} ({extra})" if extra else str(operator)


class EdgeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of an edge meant when channels were named by it. An edge is found again by what it joined."""

    number: int
    upstream: OperatorId
    """The operator that emitted its records: the last of its chain."""
    downstream: OperatorId
    """The operator that took them: the first of its chain."""
    partitioning: Partitioning
    upstream_parallelism: int
    downstream_parallelism: int
    keys: tuple[str, ...] = ()
    input_number: int = 0


class TaskChannels(msgspec.Struct, frozen=True, kw_only=True):
    """The in-flight data that one subtask saved."""

    task: TaskId
    inputs: tuple[ChannelState, ...] = ()
    outputs: tuple[ChannelState, ...] = ()


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a restore needs. New fields: at the end, with a default."""

    version: int = METADATA_VERSION
    job: JobId
    checkpoint: CheckpointId
    timestamp: Instant
    """When it was triggered."""
    kind: SnapshotKind
    operators: dict[OperatorId, OperatorSnapshot] = {}
    channels: tuple[TaskChannels, ...] = ()
    coordinators: dict[OperatorId, bytes] = {}
    """State of operator coordinators."""
    hooks: dict[str, bytes] = {}
    """State of master hooks, by hook id; those without state are left out."""
    settings: dict[str, Any] = {}
    """The job's settings at that time, as plain values."""
    edges: tuple[EdgeSnapshot, ...] = ()
    """The edges whose channels may be among `channels`. None in metadata of before they were written down: the numbers
    are then taken to mean what they mean today."""
    drained: bool | msgspec.UnsetType = msgspec.UNSET
    """Set if it is not the kind that tells whether the job was drained; see `is_drained`."""

    @property
    def is_drained(self) -> bool:
        """Whether its tasks had come to the end of their data because of a stop with drain: this one, or an earlier one
        after which the job failed. The sources have more to read."""
        return self.kind is SnapshotKind.TERMINATE if self.drained is msgspec.UNSET else self.drained

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return f"{self.kind.value.lower()} {self.checkpoint}"

    @property
    def files(self) -> tuple[StateFile, ...]:
        """Every file it refers to, each once, shared ones too; none that is inline."""
        found: dict[str, StateFile] = {}
        for operator in self.operators.values():
            for state in operator.subtasks.values():
                for file in state.keyed:
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
    """When it was triggered."""
    completed: Instant
    kind: SnapshotKind
    location: str
    """Its folder: everything in it belongs to this checkpoint alone."""
    path: str
    """Its metadata file."""
    size: int
    """Bytes of state that a restore has to read."""
    metadata_size: int = 0
    discard: DiscardRules = DiscardRules()
    claim: Claim | None = None
    """How a snapshot that the job was started from is owned; None for what the job itself took."""
    private_files: tuple[str, ...] = ()
    shared_files: tuple[SharedFile, ...] = ()
    rules: MatchingRules = MatchingRules()
    """For a snapshot that the job was started from: what becomes of operators that only one side has."""

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return f"{self.kind.value.lower()} {self.checkpoint}"

    @property
    def can_be_built_on(self) -> bool:
        """Whether the next checkpoint may refer to its files: they must be the job's, and stay."""
        if self.claim is None:
            return not self.kind.is_savepoint
        return self.claim is not Claim.NO_CLAIM

    @property
    def is_self_contained(self) -> bool:
        """Whether files that later checkpoints refer to lie in its own folder."""
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
    """The record of a snapshot that a job is started from: the first of its completed checkpoints."""
    owned = claim is Claim.CLAIM
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
        discard=DiscardRules.of(retention) if owned else DiscardRules(),
        claim=claim,
        private_files=metadata.private_files,
        shared_files=tuple(
            SharedFile(file=f, created_by=metadata.checkpoint, owned=owned)
            for f in metadata.files
            if f.shared_key is not None
        ),
        rules=rules,
    )
