"""The contract between a task and the operators that are chained in the task.

A task calls its operators on the slot's loop, one call at a time. An operator hands results to `self.output`, which is
the next operator of the chain or the outputs of the task. Records of side outputs go to `self.sides`, and leave the
task at once. An operator must not block the loop. The work that `snapshot` returns runs off the loop, and must touch
only what `snapshot` froze.

A call that may make more results than fit into one batch looks at `self.slice` meanwhile. When the slice is over, the
call returns the rest as `Work`. Until that work is done the operator is given nothing more. Snapshots are taken only
where the work allows them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from penstock.core.elements import CheckpointOptions, EndOfData, Watermark
from penstock.core.ids import ChannelIndex, CheckpointId, Epoch, Instant, JobId, TaskId
from penstock.core.messages import OperatorState
from penstock.ports import AsyncCalls, Background
from penstock.runtime.task.operators.sorted_runs import RunOptions
from penstock.runtime.task.slices import Slice, Work
from penstock.settings import StateSettings
from penstock.state.backend import StateReader, StateWriter
from penstock.state.backends import MakeBackend

__all__ = ["Operator", "OperatorContext", "Output", "Side", "SnapshotWork", "StateReader", "StateWriter"]


class Output(Protocol):
    """Where an operator's results go."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Hand on records."""
        ...

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Hand on that no record at or before `time_us` follows."""
        ...


class Side(Protocol):
    """Where the records of a side output go."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Hand on records of the side output."""
        ...


SnapshotWork = Callable[[StateWriter], OperatorState]
"""The asynchronous part of a snapshot: writes what the synchronous part froze."""


@dataclass(frozen=True, kw_only=True)
class OperatorContext:
    """What identifies an operator in its task, and what the operator may use."""

    job: JobId
    epoch: Epoch
    task: TaskId
    operator: str
    """The id of the operator. The state of the operator is saved under this id."""
    name: str
    """The name of the step, for people."""
    parallelism: int
    max_parallelism: int
    key_groups: tuple[int, int]
    """First and last key group of this subtask, inclusive."""
    now: Callable[[], Instant]
    background: Background
    restored: tuple[OperatorState, ...]
    """The state to start from; empty on a fresh start."""
    fresh: bool
    """True when there is no checkpoint to restore from, or when the checkpoint does not know this operator."""
    reader: StateReader
    fail: Callable[[BaseException], None]
    """Fail the task because of something that happened in the background."""
    saved: tuple[bytes, ...] = ()
    """Parts of the operator's list of committables that savepoints contain. What these parts name must not be
    removed."""
    rescaled: bool = False
    """Whether `restored` was taken with another parallelism, and dealt out anew."""
    wake_at: Callable[[Instant], None] = lambda _: None
    """Have `fire` and `tick` called at that time at the latest."""
    catching_up: Callable[[bool], None] = lambda _: None
    """Tell the master whether this subtask of a source is behind."""
    splits_read: Callable[[int], None] = lambda _: None
    """Tell the operator's enumerator how many splits this subtask has read to their ends."""
    event_time_reached: Callable[[int | None], None] = lambda _: None
    """Tell the watermark group how far this subtask of a source has come."""
    is_full: Callable[[], None] = lambda: None
    """Tell the master that the step takes no more records, whatever comes: sources that feed nothing else may end."""
    state: StateSettings = field(default_factory=StateSettings)
    """Where keyed state is kept."""
    calls: AsyncCalls | None = None
    """Runs async functions of the user's. None: the program has no async functions."""
    runs: RunOptions = field(default_factory=RunOptions)
    """How the runs of columnar state are kept."""
    make_backend: MakeBackend | None = None
    """Makes the back end of keyed state. None: the back end that `state` names."""


class Operator(ABC):
    """A step as it runs in a task."""

    output: Output
    context: OperatorContext
    slice: Slice = Slice()
    """The slice of the chain that the operator is in."""
    doing = "loading its state"
    """What `load` does at the moment, for people who wait for `load`."""
    sides: Mapping[str, Side] = MappingProxyType({})
    """The side outputs that are read, by name. Records of a side output that nothing reads are not emitted. Watermarks
    go to side outputs by themselves, behind everything that the operator has emitted before."""
    main_is_read = True
    """Whether anything reads `output`. Records for an output that nothing reads need not be made."""
    is_waiting = False
    """Whether the records of the first input have to wait for another input."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start, from `context.restored` if there is state to restore."""
        self.context = context
        self.output = output

    def load(self, context: OperatorContext) -> None:  # noqa: B027
        """The blocking part of the start: read state, commit what the restored checkpoint promised. Runs off the loop,
        before `open`."""

    @property
    def is_row_wise(self) -> bool:
        """Whether the operator calls user code, which may be slow, for every row."""
        return False

    @property
    def timeless_inputs(self) -> tuple[int, ...]:
        """The numbers of the inputs that have no event time, and so must not hold event time back."""
        return ()

    def begin_waiting(self, channels: tuple[ChannelIndex, ...], now: Instant) -> None:  # noqa: B027
        """The task begins. `channels` are the channels of all inputs but the first input. Called only if
        `is_waiting`."""

    def heard(self, channel: ChannelIndex, element: Watermark | EndOfData) -> None:  # noqa: B027
        """A channel of another input than the first input has sent a watermark or the end of its data. Called only
        while records of the first input are held."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Work | None:
        """Process one batch. Returns the work that is left, if the work is too much for one slice."""

    def process_input(self, batch: pa.RecordBatch, number: int) -> Work | None:  # noqa: ARG002
        """Process one batch of the input with this number. By default all inputs are processed alike."""
        return self.process(batch)

    def watermark(self, time_us: int, *, idle: bool = False) -> Work | None:
        """Event time has reached `time_us`. The operator hands the watermark on when everything that is due is done."""
        self.output.watermark(time_us, idle=idle)
        return None

    def fire(self, now: Instant) -> Work | None:  # noqa: ARG002
        """Processing time has reached `now`: do what is due. `tick` follows."""
        return None

    def tick(self, now: Instant) -> Instant | None:  # noqa: ARG002
        """Processing time has reached `now`. Returns when the operator must be called next; None: at no given time."""
        return None

    def finish(self) -> Work | None:
        """All input has been seen: emit everything that the operator still holds."""
        return None

    def before_barrier(self) -> None:  # noqa: B027
        """A barrier goes out next, or the data of a job that is stopped without drain has ended. Emit the records that
        are held back, so that these records need not be in the snapshot. `finish` does the same at the end of the
        data."""

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:  # noqa: ARG002
        """Freeze the state in constant time. Returns the work that writes the frozen state; None if there is no
        state."""
        return None

    def handle_event(self, event: bytes) -> None:  # noqa: B027
        """The operator coordinator of this operator has sent an event."""

    def completed(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` is complete: everything up to its barrier is durable."""

    def subsumed(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` and all checkpoints before it are deleted: no restore needs them."""

    def aborted(self, checkpoint: CheckpointId) -> None:  # noqa: B027
        """`checkpoint` will never complete."""

    @property
    def pending(self) -> bool:
        """Whether something that `completed` started is under way. The task does not end before that is done."""
        return False

    def metrics(self) -> dict[str, float]:
        """Running totals for people to look at, by name."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Release everything that the operator holds. Called once, also after a failure."""
