"""The elements that travel in a channel between the record batches, and in order with the batches.

A channel joins one upstream subtask to one downstream subtask. Elements other than batches need no credit. Only an
unaligned barrier may overtake batches.
"""

from __future__ import annotations

import msgspec

from penstock.core.ids import CheckpointId, Instant

MAX_WATERMARK = 2**63 - 1
"""The end of event time, in microseconds: nothing can come later."""


class Element(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something in a channel that is not data."""


class CheckpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint is to be taken; travels in its barrier."""

    unaligned: bool = False
    """The barrier overtakes data."""
    aligned_timeout_ms: int | None = None
    """The checkpoint starts aligned and turns unaligned when its barrier is older than this. None: as `unaligned` says,
    from beginning to end."""
    forced_aligned: bool = False
    """The edge that the barrier came over cannot carry an unaligned barrier."""
    savepoint: bool = False
    synchronous: bool = False
    """Stop with savepoint: the task ends when this savepoint completes."""
    drain: bool = False
    """Before a synchronous savepoint: event time goes to its end and operators finish."""
    full: bool = False
    """The checkpoint refers to no file of an earlier checkpoint."""
    target: str | None = None
    """Where a savepoint goes; None for checkpoints."""
    canonical: bool = False
    """A savepoint in the format that every back end can restore."""
    final: bool = False
    """Every task of the job had seen all its data when this checkpoint was asked for."""

    @property
    def overtakes(self) -> bool:
        """Whether the barrier overtakes the batches that wait in a channel."""
        return self.unaligned and not self.forced_aligned

    @property
    def timeoutable(self) -> bool:
        """Whether the checkpoint starts aligned and may turn unaligned."""
        return self.aligned_timeout_ms is not None and not self.unaligned and not self.forced_aligned


class Barrier(Element, frozen=True, kw_only=True):
    """Upstream task to downstream task: every record before this barrier belongs to `checkpoint`."""

    checkpoint: CheckpointId
    timestamp: Instant
    """When the checkpoint was triggered."""
    options: CheckpointOptions = CheckpointOptions()


class CancelMarker(Element, frozen=True, kw_only=True):
    """Upstream task to downstream task: no barrier of `checkpoint` will come on this channel."""

    checkpoint: CheckpointId


class Watermark(Element, frozen=True, kw_only=True):
    """Upstream task to downstream task: no record at or before `time_us` will follow. A channel whose watermark is
    `idle` does not hold back the event time of the downstream task."""

    time_us: int
    idle: bool = False


class EndOfData(Element, frozen=True, kw_only=True):
    """Upstream task to downstream task: no record follows. Barriers may still follow."""

    drain: bool = True
    """False if the job is stopped without drain: operators must not `finish`."""
    stopped: bool = False
    """With drain: a stop took event time to its end. After a restore from the savepoint of the stop the data goes
    on."""


class EndOfPartition(Element, frozen=True, kw_only=True):
    """Upstream task to downstream task: this is the last element of the channel."""


AnyElement = Barrier | CancelMarker | Watermark | EndOfData | EndOfPartition
