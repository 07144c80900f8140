"""What the job master and the slots say to each other, and the state handles they speak of.

Every message is frozen, keyword-only and tagged; new fields go to the end and have a default. `epoch` is the attempt of
the job that the sender believes in: a receiver in another epoch drops the message.
"""

from __future__ import annotations

import msgspec

from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, SlotId, TaskId
from penstock.core.reasons import CheckpointFailure


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything sent between the processes of a job, data aside."""


# --- state handles ----------------------------------------------------------------------


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """A durable piece of state. Small ones travel `inline`, others lie at `path` below the root of the store (in a
    savepoint: below its own folder), or anywhere if it is a full path: a file of a snapshot that the job was started
    from."""

    path: str | None
    size: int
    checksum: int
    """xxh3-64 of the bytes."""
    inline: bytes | None = None
    shared_key: str | None = None
    """Set for a file that later checkpoints may refer to again; the same key names the same content."""
    placeholder: bool = False
    """The file was uploaded by an earlier checkpoint and is only referred to."""


class OperatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one operator of one subtask put into a checkpoint, by kind."""

    operator: OperatorId
    keyed: tuple[StateFile, ...] = ()
    """Keyed state, timers included; rows carry their key group."""
    key_groups: tuple[int, int] | None = None
    """First and last key group of `keyed`, inclusive."""
    split_lists: dict[str, tuple[bytes, ...]] = {}
    """Operator state dealt out anew on a restore: name -> parts."""
    union_lists: dict[str, tuple[bytes, ...]] = {}
    """Operator state of which every subtask gets all parts."""
    broadcast: dict[str, bytes] = {}
    """Operator state that is the same in every subtask."""

    @property
    def size(self) -> int:
        """Bytes that a restore has to read."""
        lists = [*self.split_lists.values(), *self.union_lists.values()]
        return (
            sum(f.size for f in self.keyed)
            + sum(len(part) for parts in lists for part in parts)
            + sum(len(v) for v in self.broadcast.values())
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to restore."""
        return not (self.keyed or self.split_lists or self.union_lists or self.broadcast)


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """In-flight batches of one channel, at byte ranges of a file."""

    edge: int
    """The edge of the plan the channel belongs to."""
    upstream: int
    downstream: int
    file: StateFile
    ranges: tuple[tuple[int, int], ...]
    """(offset, length) of each batch, in order."""


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask acknowledged."""

    operators: tuple[OperatorState, ...] = ()
    input_channels: tuple[ChannelState, ...] = ()
    output_channels: tuple[ChannelState, ...] = ()
    finished: bool = False
    """The subtask had reached the end of its data and its operators had finished."""

    @property
    def size(self) -> int:
        """Bytes that a restore has to read."""
        channels = (*self.input_channels, *self.output_channels)
        return sum(o.size for o in self.operators) + sum(n for c in channels for _, n in c.ranges)

    @property
    def files(self) -> tuple[StateFile, ...]:
        """Every file it refers to, shared ones too."""
        keyed = tuple(f for o in self.operators for f in o.keyed)
        return keyed + tuple(c.file for c in (*self.input_channels, *self.output_channels))


class SnapshotMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How a subtask's part of a checkpoint went."""

    start_delay_ms: int = 0
    """From the trigger to the first barrier."""
    alignment_ms: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    bytes_processed: int = 0
    """Input consumed while aligning."""
    bytes_persisted: int = 0
    """In-flight data saved."""
    checkpointed_bytes: int = 0
    """Written for this checkpoint; less than the state's size if incremental."""
    unaligned: bool = False


# --- slot to master ----------------------------------------------------------------------


class Register(Message, frozen=True, kw_only=True):
    """Slot to master: I am up and can be reached at these addresses."""

    slot: SlotId
    host: str
    pid: int
    ipc_scope: str = ""
    """Slots that have it in common can call each other's `ipc_address`."""
    ipc_address: str | None
    tcp_address: str | None


class Heartbeat(Message, frozen=True, kw_only=True):
    """Slot to master: my loop turns. Carries running totals for people to look at."""

    slot: SlotId
    epoch: Epoch
    metrics: dict[str, dict[str, float]] = {}
    """Task id as text -> name -> value."""


class Ready(Message, frozen=True, kw_only=True):
    """Slot to master: all tasks of my slot are restored for `epoch` and wait for `Run`."""

    slot: SlotId
    epoch: Epoch


class Cancelled(Message, frozen=True, kw_only=True):
    """Slot to master: no task of an epoch up to `epoch` runs here any more; or none of these `tasks`, if there are
    any."""

    slot: SlotId
    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class TaskFailed(Message, frozen=True, kw_only=True):
    """Slot to master: a task failed; the slot itself is well."""

    slot: SlotId
    epoch: Epoch
    task: TaskId
    operator: str
    error: str
    """One line."""
    traceback: str = ""
    user_code: bool = False
    whole: bool = False
    """More than the task is concerned: the slot has dropped all its tasks, and not only those of its region."""


class DataEnded(Message, frozen=True, kw_only=True):
    """Slot to master: the task has seen all its data and its operators have finished."""

    slot: SlotId
    epoch: Epoch
    task: TaskId


class TaskFinished(Message, frozen=True, kw_only=True):
    """Slot to master: the task has ended for good, its final checkpoint being complete."""

    slot: SlotId
    epoch: Epoch
    task: TaskId


class Acknowledge(Message, frozen=True, kw_only=True):
    """Slot to master: the task's part of `checkpoint` is durable."""

    job: JobId
    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    state: SubtaskState | None
    """None for a stateless task."""
    metrics: SnapshotMetrics = SnapshotMetrics()


class Decline(Message, frozen=True, kw_only=True):
    """Slot to master: the task will not take part in `checkpoint`."""

    job: JobId
    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    reason: CheckpointFailure
    error: str = ""


class OperatorEventTaken(Message, frozen=True, kw_only=True):
    """Slot to master: the task has the `OperatorEvent` of this number; or, if it was not `delivered`, does not run."""

    epoch: Epoch
    task: TaskId
    number: int
    delivered: bool


class SplitsRead(Message, frozen=True, kw_only=True):
    """Slot to master: the subtask has read so many splits to their ends since it was deployed. The enumerator may then
    give out more."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId
    count: int


class Leaving(Message, frozen=True, kw_only=True):
    """Slot to master: I end now, as told."""

    slot: SlotId


# --- master to slot ----------------------------------------------------------------------


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a slot."""

    slot: SlotId
    host: str
    ipc_scope: str = ""
    ipc_address: str | None
    tcp_address: str | None


class Deploy(Message, frozen=True, kw_only=True):
    """Master to slot: build these tasks for `epoch`, restored as said, and wait for `Run`."""

    epoch: Epoch
    job: JobId
    plan: bytes
    """The pickled execution plan, the same for all slots; empty for a slot that has it."""
    tasks: tuple[TaskId, ...]
    peers: tuple[PeerAddress, ...]
    """Who has which place; empty if these are the same as before."""
    restored_checkpoint: CheckpointId | None
    restore: dict[str, bytes]
    """Task id as text -> the encoded `TaskRestore`."""
    first_checkpoint: CheckpointId
    """Ids below this one belong to earlier epochs."""
    beside_others: bool = False
    """The tasks are restarted, while others of the job go on: the epoch of links stays as it is."""
    attempt: Epoch = Epoch(0)
    """For a slot that is new beside others that go on: the epoch of their links. 0: it has that, or begins `epoch`."""
    saved: dict[OperatorId, tuple[bytes, ...]] = {}
    """By operator, parts of its list of committables that savepoints have, and that must not be removed."""


class DealtChannel(msgspec.Struct, frozen=True, kw_only=True):
    """What was in flight in a channel of another parallelism. All of it is input now, whichever end had saved it."""

    parts: tuple[ChannelState, ...]
    """In the order in which it was sent: what the receiving end had not read, then what the sending end had not sent.
    `edge` is the number in today's plan; `upstream` and `downstream` are the subtasks of then."""
    upstream: int
    """The upstream subtask of the channel that it is put into. One channel for all parts: so their order is kept."""
    own_keys_only: bool = False
    """Others get the same parts: only rows of the own key groups are taken."""


class TaskRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask starts from."""

    operators: dict[OperatorId, tuple[OperatorState, ...]] = {}
    """State by operator; several after a change of parallelism."""
    input_channels: tuple[ChannelState, ...] = ()
    output_channels: tuple[ChannelState, ...] = ()
    finished: bool = False
    """Its whole vertex had ended for good: no user code runs, only barriers and ends go through."""
    data_ended: bool = False
    """It had seen all its data, and its operators had finished: they start, but do not finish again."""
    dealt_channels: tuple[DealtChannel, ...] = ()
    """In-flight data of another parallelism. It is processed before anything new is let in."""
    rescaled: bool = False
    """The state was taken with another parallelism."""


class Run(Message, frozen=True, kw_only=True):
    """Master to slot: every slot is ready; begin."""

    epoch: Epoch


class CancelTasks(Message, frozen=True, kw_only=True):
    """Master to slot: drop all tasks of epochs up to `epoch`, or of these only `tasks`, if there are any, and answer
    `Cancelled`."""

    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class PeerGone(Message, frozen=True, kw_only=True):
    """Master to slot: another slot, with which dropped tasks of this one shared channels, is no more."""

    slot: SlotId


class TriggerCheckpoint(Message, frozen=True, kw_only=True):
    """Master to slot: the task starts `checkpoint` with its own barrier."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    timestamp: Instant
    options: CheckpointOptions = CheckpointOptions()


class NotifyComplete(Message, frozen=True, kw_only=True):
    """Master to slot: `checkpoint` is complete and durable; the task may commit all up to it."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    subsumed: CheckpointId | None = None
    """The highest one that was thrown away for it."""


class NotifyAborted(Message, frozen=True, kw_only=True):
    """Master to slot: `checkpoint` will never complete. `latest_completed` repairs a lost `NotifyComplete`."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    latest_completed: CheckpointId | None = None


class OperatorEvent(Message, frozen=True, kw_only=True):
    """Master to slot: an operator's coordinator says this to its subtask. Answered by `OperatorEventTaken`."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId
    number: int
    event: bytes


class Leave(Message, frozen=True, kw_only=True):
    """Master to slot: drop everything and end the process's work."""

    reason: str = ""


# --- slot to slot ----------------------------------------------------------------------


class Credit(Message, frozen=True, kw_only=True):
    """Receiving task to sending task: `bytes_granted` more may be sent on the channel."""

    epoch: Epoch
    """That of the two tasks."""
    edge: int
    upstream: int
    downstream: int
    bytes_granted: int


ToMaster = (
    Register
    | Heartbeat
    | Ready
    | Cancelled
    | TaskFailed
    | DataEnded
    | TaskFinished
    | Acknowledge
    | Decline
    | Leaving
    | OperatorEventTaken
    | SplitsRead
)
ToSlot = (
    Deploy | Run | CancelTasks | PeerGone | TriggerCheckpoint | NotifyComplete | NotifyAborted | Leave | OperatorEvent
)
