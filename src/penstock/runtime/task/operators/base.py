"""What an operator is: the contract between a task and the steps chained in it.

An operator is driven by its task, on the slot's loop, one call at a time. It hands results to `self.output`, which is
the next operator of the chain or the task's partitioner. It never blocks; the work that a snapshot returns runs off the
loop and must touch only what the synchronous part froze for it.

Whatever may make more than a batch's worth of results of one call looks at `self.slice` meanwhile. When the slice is
over, the call returns what is left to do as `Work`. Until that is done the operator is given nothing more. Snapshots
are taken where the work says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.core.elements import CheckpointOptions, EndOfData, Watermark
from penstock.core.ids import ChannelIndex, CheckpointId, Epoch, Instant, JobId, TaskId
from penstock.core.messages import OperatorState
from penstock.ports import Background
from penstock.runtime.task.slices import Slice, Work
from penstock.settings import StateSettings
from penstock.state.backend import StateReader, StateWriter
from penstock.state.backends import MakeBackend

__all__ = ["Operator", "OperatorContext", "Output", "SnapshotWork", "StateReader", "StateWriter"]


class Output(Protocol):
    """Where an operator's results go."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Hand on records."""
        ...

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand on that no record at or before `time_us` follows."""
        ...


SnapshotWork = Callable[[StateWriter], OperatorState]
"""The asynchronous part of a snapshot: writes what the synchronous part froze."""


@dataclass(frozen=True, kw_only=True)
class OperatorContext:
    """Who an operator is, and what it may use."""

    job: JobId
    epoch: Epoch
    task: TaskId
    operator: str
    """Its id, which names its state."""
    name: str
    """What people call it."""
    parallelism: int
    max_parallelism: int
    key_groups: tuple[int, int]
    """First and last key group of this subtask, inclusive."""
    now: Callable[[], Instant]
    background: Background
    restored: tuple[OperatorState, ...]
    """What to start from; empty on a fresh start."""
    fresh: bool
    """True when there is no checkpoint to restore from, or when the checkpoint does not know this operator."""
    reader: StateReader
    fail: Callable[[BaseException], None]
    """Fail the task because of something that happened in the background."""
    saved: tuple[bytes, ...] = ()
    """Parts of the operator's list state that savepoints have, and that must not be removed."""
    rescaled: bool = False
    """Whether `restored` was taken with another parallelism, and dealt out anew."""
    wake_at: Callable[[Instant], None] = lambda _: None
    """Have `tick` called at that time, if not before."""
    catching_up: Callable[[bool], None] = lambda _: None
    """Tell the master whether this subtask of a source is behind."""
    splits_read: Callable[[int], None] = lambda _: None
    """Tell the operator's enumerator how many splits this subtask has read to their ends."""
    state: StateSettings = field(default_factory=StateSettings)
    """Where keyed state is kept."""
    make_backend: MakeBackend | None = None
    """Makes what holds keyed state. None: what `state` names."""


class Operator(ABC):
    """One step of a chain."""

    output: Output
    context: OperatorContext
    slice: Slice = Slice()
    """That of the chain it is in."""
    is_waiting = False
    """Whether the records of its first input have to wait for another input."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start, from `context.restored` if there is something."""
        self.context = context
        self.output = output

    def load(self, context: OperatorContext) -> None:  # noqa: B027
        """The blocking part of a start: read state, commit what a checkpoint promised. Runs off the loop, before
        `open`."""

    @property
    def is_row_wise(self) -> bool:
        """Whether it calls a function of the user's for every row, which may be slow."""
        return False

    @property
    def timeless_inputs(self) -> tuple[int, ...]:
        """The numbers of those inputs that have no event time, and so must not hold it back."""
        return ()

    def begin_waiting(self, channels: tuple[ChannelIndex, ...], now: Instant) -> None:  # noqa: B027
        """The task begins; these channels are of other inputs than the first. Called if it is waiting."""

    def heard(self, channel: ChannelIndex, element: Watermark | EndOfData) -> None:  # noqa: B027
        """What a channel of another input than the first has said about how far it is. Called while it is waiting."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Take one batch in; what is left to do, if that is too much for a slice."""

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:  # noqa: ARG002
        """Take one batch of an input in, where there are several; by default it makes no difference which."""
        return self.process(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Event time has reached `time_us`: handed on when all is done that was to be done at that time."""
        self.output.watermark(time_us, idle=idle)
        return None

    def fire(self, now: Instant) -> Work | None:  # noqa: ARG002
        """Processing time has reached `now`: fire what is due. `tick` follows."""
        return None

    def tick(self, now: Instant) -> Instant | None:  # noqa: ARG002
        """Processing time has reached `now`: say when to be called next."""
        return None

    def finish(self) -> Work | None:
        """All input has been seen: emit what is left."""
        return None

    def before_barrier(self) -> None:  # noqa: B027
        """A barrier goes out next, or the data of a job that is stopped without drain has ended: emit what is held, so
        that it need not be in the snapshot. `finish` does the same at the end of the data."""

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:  # noqa: ARG002
        """Freeze the state in constant time; return the work that writes it. None if there is no state."""
        return None

    def handle_event(self, event: bytes) -> None:  # noqa: B027
        """Its coordinator on the driver says something; only an operator that has one hears anything."""

    def completed(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` and all before it are durable."""

    def subsumed(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` and all before it are deleted: nobody will restore them."""

    def aborted(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` will never complete."""

    @property
    def pending(self) -> bool:
        """Whether something that `completed` started is still under way; the task ends only after it."""
        return False

    def metrics(self) -> dict[str, float]:
        """Running totals for people to look at, by name."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Let go of everything. Called once, also after a failure."""
