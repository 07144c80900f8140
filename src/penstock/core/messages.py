"""The messages between the job master and the slots, and the state handles in these messages.

Every message is frozen, keyword-only and tagged; new fields go to the end and have a default. `epoch` is the number of
the attempt that the sender belongs to: a receiver in another epoch drops the message.
"""

from __future__ import annotations

import msgspec

from penstock.core.elements import CheckpointOptions
from penstock.core.errors import Fault
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, SlotId, TaskId
from penstock.core.reasons import CheckpointFailure


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of everything sent between the processes of a job, data aside."""


# --- state handles ----------------------------------------------------------------------


class StateFile(msgspec.Struct, frozen=True, kw_only=True):
    """A durable piece of state. A small piece travels `inline`. A larger piece is a file at `path`, below the root of
    the store; the files of a savepoint lie below the savepoint's own folder. A full path names a file of a snapshot
    that the job was started from; such a file may lie anywhere."""

    path: str | None
    size: int
    checksum: int
    """xxh3-64 of the bytes."""
    inline: bytes | None = None
    shared_key: str | None = None
    """Set for a file that later checkpoints may refer to again. Two files with the same key have the same content."""
    placeholder: bool = False
    """The file was uploaded by an earlier checkpoint. This checkpoint only refers to the file."""


class OperatorState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one operator of one subtask put into a checkpoint, by kind."""

    operator: OperatorId
    keyed: tuple[StateFile, ...] = ()
    """Keyed state, timers included; rows carry their key group."""
    key_groups: tuple[int, int] | None = None
    """First and last key group of `keyed` and `raw`, inclusive."""
    split_lists: dict[str, tuple[bytes, ...]] = {}
    """Operator state whose parts a restore deals out to the subtasks anew: name -> parts."""
    union_lists: dict[str, tuple[bytes, ...]] = {}
    """Operator state of which a restore gives every subtask all parts: name -> parts."""
    broadcast: dict[str, bytes] = {}
    """Operator state that is the same in every subtask."""
    last_timer_us: int | msgspec.UnsetType = msgspec.UNSET
    """Set if event time was at its end and the operator had not finished: no timer after this time fires."""
    raw: tuple[StateFile, ...] | msgspec.UnsetType = msgspec.UNSET
    """Files of bytes in a function's own format, by key group, if there are any. No other checkpoint refers to these
    files."""

    @property
    def raw_keyed(self) -> tuple[StateFile, ...]:
        """The files of raw keyed state."""
        return () if self.raw is msgspec.UNSET else self.raw

    @property
    def files(self) -> tuple[StateFile, ...]:
        """Every file that this state refers to, shared files too."""
        return self.keyed + self.raw_keyed

    @property
    def size(self) -> int:
        """Bytes that a restore has to read."""
        lists = [*self.split_lists.values(), *self.union_lists.values()]
        return (
            sum(f.size for f in self.files)
            + sum(len(part) for parts in lists for part in parts)
            + sum(len(v) for v in self.broadcast.values())
        )

    @property
    def is_empty(self) -> bool:
        """Whether this state holds nothing that could be restored."""
        return not (self.files or self.split_lists or self.union_lists or self.broadcast)


def raw_files(files: tuple[StateFile, ...]) -> tuple[StateFile, ...] | msgspec.UnsetType:
    """Files of raw keyed state, as `OperatorState.raw` has them."""
    return files or msgspec.UNSET


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """In-flight batches of one channel, at byte ranges of a file."""

    edge: int
    """The edge of the plan that the channel belongs to."""
    upstream: int
    downstream: int
    file: StateFile
    ranges: tuple[tuple[int, int], ...]
    """(offset, length) of each batch, in order."""


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that one subtask acknowledged."""

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
        """Every file that this state refers to, shared files too."""
        keyed = tuple(f for o in self.operators for f in o.files)
        return keyed + tuple(c.file for c in (*self.input_channels, *self.output_channels))


class SnapshotMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Times and sizes of a subtask's part of a checkpoint."""

    start_delay_ms: int = 0
    """From the trigger to the first barrier."""
    alignment_ms: int = 0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    bytes_processed: int = 0
    """Bytes of input consumed while aligning."""
    bytes_persisted: int = 0
    """Bytes of in-flight data saved."""
    checkpointed_bytes: int = 0
    """Bytes written for this checkpoint; fewer than the state's size if the checkpoint is incremental."""
    unaligned: bool = False
    waited_for: TaskId | None = None
    """The upstream task whose barrier came last, if the task had to wait for the barriers of several."""
    rows_in: int = 0
    """How many records the task of a source had read at the barrier, in this attempt."""


# --- slot to master ----------------------------------------------------------------------


class Register(Message, frozen=True, kw_only=True):
    """Slot to master: the slot is up and can be reached at these addresses."""

    slot: SlotId
    host: str
    pid: int
    ipc_scope: str = ""
    """Slots with the same scope can call each other's `ipc_address`."""
    ipc_address: str | None
    tcp_address: str | None


class Heartbeat(Message, frozen=True, kw_only=True):
    """Slot to master: the slot's loop takes turns. The message carries running totals for people to look at."""

    slot: SlotId
    epoch: Epoch
    metrics: dict[str, dict[str, float]] = {}
    """Task id as text -> name -> value."""
    process: dict[str, float] = {}
    """Memory and processor time of the slot's process, by name."""


class LoopStuck(Message, frozen=True, kw_only=True):
    """Slot to master: the slot's loop has been in one turn for `stuck_ms`, and the slot's process lives. A thread
    beside the loop sends this message."""

    slot: SlotId
    epoch: Epoch
    stuck_ms: int
    operator: str | None = None
    """The name of the step whose code the loop is in; None if the loop is in the code of no step."""
    subtask: int | None = None
    step_ms: int = 0
    """How long the loop has been in the code of that step, as far as was seen."""
    stack: str = ""
    """Where the loop is in that code: file, line and function of each call, the innermost call last."""


class TasksLoading(Message, frozen=True, kw_only=True):
    """Slot to master: the tasks of `epoch` have been loading for `loading_ms`, and are not ready. The slot's loop
    turns."""

    slot: SlotId
    epoch: Epoch
    loading_ms: int
    operator: str | None = None
    """The name of the step that is being loaded; None if no step is at work."""
    subtask: int | None = None
    doing: str = ""
    """What the step does, in words."""
    step_ms: int = 0
    """How long the step has been doing so, as far as was seen."""
    stack: str = ""
    """Where the thread that loads is: file, line and function of each call, the innermost call last."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that code in a slot has logged."""

    level: int
    logger: str
    text: str
    step: str | None = None
    """The name of the step whose code logged the line; None if the line came from no step."""
    subtask: int | None = None
    """The subtask of that step."""
    checkpoint: int | None = None
    """The checkpoint that the line is about, if the logging code said so (`extra={"checkpoint": 7}`)."""
    when: Instant | None = None
    """When the line was logged, by the clock of the slot's host."""


class WorkerLog(Message, frozen=True, kw_only=True):
    """Slot to master: code in the slot's process has logged these lines, and `stream.print` has made others."""

    slot: SlotId
    lines: tuple[LogLine, ...]
    """Lines of the level 0 were not logged: code of the program has written them to its standard output or its
    standard error, which is then the name of the logger."""
    dropped: int = 0
    """How many more lines were logged and are not sent."""
    printed: tuple[str, ...] = ()
    """Lines of records that are to be printed on the driver."""
    unprinted: int = 0
    """How many more records were to be printed and are not sent."""


class Ready(Message, frozen=True, kw_only=True):
    """Slot to master: all tasks of the slot are restored for `epoch` and wait for `Run`."""

    slot: SlotId
    epoch: Epoch


class Cancelled(Message, frozen=True, kw_only=True):
    """Slot to master: no task of an epoch up to `epoch` runs in the slot any more. If `tasks` are named, this is said
    of these tasks only."""

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
    """The failure concerns more than this task: the slot has dropped all its tasks, and not only the tasks of the
    failed task's region."""
    fault: Fault = Fault.PASSING


class DataEnded(Message, frozen=True, kw_only=True):
    """Slot to master: the task has seen all its data and its operators have finished."""

    slot: SlotId
    epoch: Epoch
    task: TaskId


class WantsToEnd(Message, frozen=True, kw_only=True):
    """Slot to master: the task has nothing left to do. A checkpoint that the task took after the end of its data is
    complete, every task downstream has processed that data, and no operator has anything under way. The task takes part
    in checkpoints until `LetEnd` comes."""

    slot: SlotId
    epoch: Epoch
    task: TaskId


class TaskFinished(Message, frozen=True, kw_only=True):
    """Slot to master: the task has ended for good, as `LetEnd` allowed."""

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


class BarrierTaken(Message, frozen=True, kw_only=True):
    """Slot to master: tell the coordinators of the task's operators that the task has frozen its snapshot for
    `checkpoint`. Events that the coordinators send from now on belong behind the barrier."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId


class OperatorEventTaken(Message, frozen=True, kw_only=True):
    """Slot to master: the task has received the `OperatorEvent` of this number. If not `delivered`: the task does not
    run and has not received the event."""

    epoch: Epoch
    task: TaskId
    number: int
    delivered: bool


class SplitsRead(Message, frozen=True, kw_only=True):
    """Slot to master: the subtask has read `count` splits to their ends since the subtask was deployed. The enumerator
    may then give out more splits."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId
    count: int


class CatchingUp(Message, frozen=True, kw_only=True):
    """Slot to master: the subtask of a source works through old data (`is_behind`), or has caught up. Checkpoints may
    be rarer while a subtask is behind."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId
    is_behind: bool


class EventTimeReached(Message, frozen=True, kw_only=True):
    """Slot to master: how far the reader of a subtask has come in its watermark group. Answered by `GroupTime`, at the
    latest when the group has come further."""

    epoch: Epoch
    task: TaskId
    time_us: int | None
    """The event time of the split that is furthest behind; -2^63 if no split has begun. None: the reader holds nobody
    back."""


class StepFull(Message, frozen=True, kw_only=True):
    """Slot to master: a step with a single subtask takes no more records, whatever comes, and every checkpoint that may
    still complete has the step so. Answered by `EndData` to the sources that feed nothing else."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId


class Leaving(Message, frozen=True, kw_only=True):
    """Slot to master: the slot ends now, as `Leave` told the slot to."""

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
    """Master to slot: build these tasks for `epoch`, restore the state of each task from `restore`, and wait for
    `Run`."""

    epoch: Epoch
    job: JobId
    plan: bytes
    """The pickled execution plan, the same for all slots; empty for a slot that already has the plan."""
    tasks: tuple[TaskId, ...]
    peers: tuple[PeerAddress, ...]
    """The addresses of all slots; empty if the addresses are the same as before."""
    restored_checkpoint: CheckpointId | None
    restore: dict[str, bytes]
    """Task id as text -> the encoded `TaskRestore`."""
    first_checkpoint: CheckpointId
    """Checkpoint ids below this id belong to earlier epochs."""
    beside_others: bool = False
    """These tasks are restarted while other tasks of the job go on: the epoch of the links stays as it is."""
    attempt: Epoch = Epoch(0)
    """For a new slot beside slots that go on: the epoch of the links of the slots that go on. 0: the slot already has
    that epoch, or the epoch of the links becomes `epoch`."""
    saved: dict[OperatorId, tuple[bytes, ...]] = {}
    """By operator: parts of the operator's list of committables that savepoints contain. What these parts name must not
    be removed."""


class DealtChannel(msgspec.Struct, frozen=True, kw_only=True):
    """In-flight data of a channel that was saved with another parallelism. A restore puts all of this data into input
    channels, whether the receiving end or the sending end had saved the data."""

    parts: tuple[ChannelState, ...]
    """In the order in which the data was sent: the data that the receiving end had not read, then the data that the
    sending end had not sent. `edge` is the number in today's plan. `upstream` and `downstream` are the subtasks at the
    time of the checkpoint."""
    upstream: int
    """The upstream subtask of today's channel that the data is put into. All parts go into one channel, so that their
    order is kept."""
    own_keys_only: bool = False
    """Other subtasks get the same parts: each subtask takes only the rows of its own key groups."""


class TaskRestore(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a subtask starts from."""

    operators: dict[OperatorId, tuple[OperatorState, ...]] = {}
    """State by operator. After a change of parallelism an operator may have several states."""
    input_channels: tuple[ChannelState, ...] = ()
    output_channels: tuple[ChannelState, ...] = ()
    finished: bool = False
    """The whole vertex of the subtask had ended for good: no user code runs, and the subtask only passes barriers and
    ends on."""
    data_ended: bool = False
    """The subtask had seen all its data, and its operators had finished: the operators start, but do not finish
    again."""
    dealt_channels: tuple[DealtChannel, ...] = ()
    """In-flight data that was saved with another parallelism. The subtask processes this data before any new data."""
    rescaled: bool = False
    """The state was taken with another parallelism."""
    is_last: bool = False
    """The restored savepoint is the last checkpoint of the subtask: the subtask ends without another checkpoint."""


class Run(Message, frozen=True, kw_only=True):
    """Master to slot: every slot is ready; begin."""

    epoch: Epoch


class CancelTasks(Message, frozen=True, kw_only=True):
    """Master to slot: drop all tasks of epochs up to `epoch`, and answer `Cancelled`. If `tasks` are named, drop only
    these tasks."""

    epoch: Epoch
    tasks: tuple[TaskId, ...] = ()


class PeerGone(Message, frozen=True, kw_only=True):
    """Master to slot: the slot `slot` is gone. Dropped tasks of the receiving slot shared channels with that slot."""

    slot: SlotId


class PeerAlive(Message, frozen=True, kw_only=True):
    """Master to slot: the slot `slot` lives, and cannot say so itself, because native code holds Python's lock. The
    silence of that slot does not break the link to it."""

    slot: SlotId


class TriggerCheckpoint(Message, frozen=True, kw_only=True):
    """Master to slot: the task begins `checkpoint` and sends the barrier downstream. The task waits for no barrier."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    timestamp: Instant
    options: CheckpointOptions = CheckpointOptions()


class NotifyComplete(Message, frozen=True, kw_only=True):
    """Master to slot: `checkpoint` is complete and durable. The task may commit everything up to this checkpoint."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    subsumed: CheckpointId | None = None
    """The newest checkpoint that `checkpoint` subsumed and whose files are deleted."""


class NotifyAborted(Message, frozen=True, kw_only=True):
    """Master to slot: `checkpoint` will never complete. `latest_completed` makes up for a lost `NotifyComplete`."""

    epoch: Epoch
    task: TaskId
    checkpoint: CheckpointId
    latest_completed: CheckpointId | None = None


class LetEnd(Message, frozen=True, kw_only=True):
    """Master to slot: the task ends now. No checkpoint waits for the task, and no checkpoint begins before the task has
    ended."""

    epoch: Epoch
    task: TaskId


class OperatorEvent(Message, frozen=True, kw_only=True):
    """Master to slot: an event from an operator coordinator to a subtask of its operator. Answered by
    `OperatorEventTaken`."""

    epoch: Epoch
    task: TaskId
    operator: OperatorId
    number: int
    event: bytes


class GroupTime(Message, frozen=True, kw_only=True):
    """Master to slot: how far the watermark group of the task has come. The reader of the task reads no split that is
    further ahead of this time than the drift that the program allows."""

    epoch: Epoch
    task: TaskId
    time_us: int | None
    """The least event time of the group; None: no reader of the group holds anybody back."""


class EndData(Message, frozen=True, kw_only=True):
    """Master to slot: nothing needs the records of the source of the task any more. The data of the source ends here,
    as if there were no more."""

    epoch: Epoch
    task: TaskId


class Leave(Message, frozen=True, kw_only=True):
    """Master to slot: drop everything and end the process's work."""

    reason: str = ""


# --- slot to slot ----------------------------------------------------------------------


class Credit(Message, frozen=True, kw_only=True):
    """Receiving task to sending task: `bytes_granted` more may be sent on the channel."""

    epoch: Epoch
    """The epoch of the two tasks."""
    edge: int
    upstream: int
    downstream: int
    bytes_granted: int
    data_taken: bool = False
    """The receiving task has processed all data of the channel, the end of the data included. `bytes_granted` may then
    be 0."""


ToMaster = (
    Register
    | Heartbeat
    | LoopStuck
    | TasksLoading
    | WorkerLog
    | Ready
    | Cancelled
    | TaskFailed
    | DataEnded
    | WantsToEnd
    | TaskFinished
    | Acknowledge
    | Decline
    | Leaving
    | BarrierTaken
    | OperatorEventTaken
    | SplitsRead
    | CatchingUp
    | EventTimeReached
    | StepFull
)
ToSlot = (
    Deploy
    | Run
    | CancelTasks
    | PeerGone
    | PeerAlive
    | TriggerCheckpoint
    | NotifyComplete
    | NotifyAborted
    | LetEnd
    | Leave
    | OperatorEvent
    | GroupTime
    | EndData
)
