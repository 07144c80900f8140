"""Every option of a job, in one place. Units are in the names; the text below a field is its documentation.

`None` switches a thing off; there are no magic numbers. All problems of a settings object are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LEAST_HEARTBEAT_TIMEOUT_MS = 2_000
LEAST_STUCK_AFTER_MS = 1_000
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Mode(Enum):
    """What a checkpoint promises."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Retention(Enum):
    """What happens to the retained checkpoints when the job ends without having finished its data."""

    DELETE = "delete"
    KEEP_ON_FAILURE = "keep-on-failure"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True)
class BacklogInterval:
    """How often checkpoints are triggered while a source is catching up."""

    interval_ms: int | None = None
    """The time between two periodic checkpoints. None: no periodic checkpoints while a source is catching up."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When and how checkpoints are taken."""

    interval_ms: int | None = None
    """The time between two periodic checkpoints, while all tasks run. None: checkpoints only on request and at the
    end."""
    during_backlog: BacklogInterval | None = None
    """The interval while a source is catching up, never shorter than `interval_ms`. None: the same interval."""
    timeout_ms: int = 10 * MINUTE_MS
    """A checkpoint that is not complete after this long is aborted. Too short throws away the work of slow tasks; too
    long hides a stuck task."""
    min_pause_ms: int = 0
    """Least time between the completion of a checkpoint or a savepoint and the next periodic checkpoint."""
    max_concurrent: int = 1
    """How many checkpoints may be under way at once."""
    tolerable_failures: int | None = 0
    """How many checkpoints in a row may fail. If one more checkpoint fails, the region of the task that declined the
    checkpoint restarts. All tasks restart if the checkpoint expired, or if no single task is to blame. None: any
    number."""
    mode: Mode = Mode.EXACTLY_ONCE
    """At least once never blocks a channel, and may count records twice after a failure."""
    unaligned: bool = False
    """Barriers overtake data, and the overtaken data is saved with the checkpoint: fast under back-pressure."""
    aligned_timeout_ms: int | None = None
    """With `unaligned`: a checkpoint starts aligned, and turns unaligned when a barrier is older than this."""
    num_retained: int = 1
    """How many completed checkpoints are kept."""
    retention: Retention = Retention.KEEP
    """Whether checkpoints outlive a cancelled or failed job."""
    goes_on_when_finished: bool = False
    """Whether the last checkpoint outlives a job that has finished its data. A job on Spark sets this if the job keeps
    its checkpoints and one of its sources may find more data when the program is run again. All tasks of such a job end
    with the last checkpoint."""
    inline_threshold_bytes: int = 20_480
    """State up to this size travels inside the metadata instead of in a file of its own."""
    after_tasks_finish: bool = True
    """Whether a task ends as soon as its data has ended, and checkpoints go on without the task. If not, the task waits
    until the data of all tasks has ended, and all tasks end with one last checkpoint. A job that keeps its checkpoints,
    and has a source that may find more data when the program is run again, always ends with such a last checkpoint,
    whatever is set here: the next run needs the state of all tasks."""
    delete_attempts: int = 16
    """How many times a deletion in the checkpoint directory is tried before the deletion is given up, with a
    warning."""
    delete_retry_ms: int = 1_000
    """Pause before a deletion that failed is tried again. The pause doubles with every failure, up to five minutes."""
    hook_timeout_ms: int = 30_000
    """A checkpoint hook that has not returned after this long fails the checkpoint that triggered the hook, or the
    attempt that restores the hook. In a job with hooks this must be below `deploy_timeout_ms`: the time limit of a
    deployment runs while hooks are restored."""
    history: int = 10
    """How many ended checkpoints are remembered, for people to look at, with the numbers of every subtask."""
    local_copies_bytes: int = 256 * 1024 * 1024
    """A slot keeps copies of up to this many bytes of the state that the slot writes to checkpoints, in memory and in
    temporary files. When another slot has failed, the slot restores its state from these copies instead of from the
    checkpoint directory. 0: no copies."""

    def problems(self) -> list[str]:
        """What is wrong, one line each, with what to change."""
        found: list[str] = []
        if self.interval_ms is not None and self.interval_ms < 10:
            found.append(f"checkpoint interval is {self.interval_ms} ms; the least is 10 ms")
        backlog_ms = None if self.during_backlog is None else self.during_backlog.interval_ms
        if backlog_ms is not None and (self.interval_ms is None or backlog_ms < self.interval_ms):
            found.append(
                f"the interval during backlog is {backlog_ms} ms, shorter than the interval of {self.interval_ms} ms; "
                f"set a longer interval during backlog, or None for no periodic checkpoints during backlog"
            )
        if self.inline_threshold_bytes < 0:
            found.append(
                f"inline_threshold is {self.inline_threshold_bytes} bytes; use 0 to have a file for each state"
            )
        if self.timeout_ms < 10:
            found.append(f"checkpoint timeout is {self.timeout_ms} ms; the least is 10 ms")
        if self.min_pause_ms < 0:
            found.append(f"min_pause is {self.min_pause_ms} ms; it cannot be negative")
        if self.max_concurrent < 1:
            found.append(f"max_concurrent is {self.max_concurrent}; at least 1 checkpoint must be allowed")
        if self.num_retained < 1:
            found.append(f"num_retained is {self.num_retained}; at least 1 checkpoint must be kept to recover from")
        if self.history < 1:
            found.append(f"history is {self.history}; at least 1 checkpoint must be remembered")
        if self.delete_attempts < 1:
            found.append(f"delete_attempts is {self.delete_attempts}; at least 1 try must be allowed")
        if self.delete_retry_ms < 10:
            found.append(f"delete_retry is {self.delete_retry_ms} ms; the least is 10 ms")
        if self.hook_timeout_ms < 10:
            found.append(f"hook_timeout is {self.hook_timeout_ms} ms; the least is 10 ms")
        if self.local_copies_bytes < 0:
            found.append(f"local_copies is {self.local_copies_bytes} bytes; use 0 to keep no copies")
        if self.tolerable_failures is not None and self.tolerable_failures < 0:
            found.append(f"tolerable_failures is {self.tolerable_failures}; use None to tolerate any number")
        if self.unaligned and self.mode is Mode.AT_LEAST_ONCE:
            found.append("unaligned checkpoints need mode exactly-once; drop unaligned or change the mode")
        if self.unaligned and self.max_concurrent > 1:
            found.append(
                f"unaligned checkpoints run one at a time, and max_concurrent is {self.max_concurrent}; "
                "set max_concurrent to 1"
            )
        if self.aligned_timeout_ms is not None and not self.unaligned:
            found.append("aligned_timeout has no effect without unaligned=True; set unaligned, or drop aligned_timeout")
        return found


@dataclass(frozen=True, kw_only=True)
class NoRestart:
    """The first failure fails the job."""


@dataclass(frozen=True, kw_only=True)
class FixedDelay:
    """Restart a set number of times, after a set pause."""

    attempts: int = 1
    """Restarts before the job fails."""
    delay_ms: int = 1_000
    """Pause before each restart."""


@dataclass(frozen=True, kw_only=True)
class ExponentialDelay:
    """Restart with growing pauses: for ever, or `attempts` times in a row."""

    initial_ms: int = 1_000
    """Pause before the first restart."""
    multiplier: float = 1.5
    """Each pause is this many times the previous pause."""
    max_ms: int = MINUTE_MS
    """No pause is longer than this, whatever `jitter` adds."""
    jitter: float = 0.1
    """Each pause is varied by up to this share, so that jobs do not restart in step."""
    reset_after_ms: int = HOUR_MS
    """When the job has run for this long since its last restart without a failure, the next pause is `initial_ms`
    again."""
    attempts: int | None = None
    """Restarts in a row before the job fails. A completed checkpoint, or `reset_after_ms` without a failure, begins the
    count again. None: any number."""


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """Restart as long as failures do not come too often."""

    max_failures: int = 1
    """How many failures within `interval_ms` are allowed. One more failure fails the job."""
    interval_ms: int = MINUTE_MS
    """Failures that are older than this do not count."""
    delay_ms: int = 1_000
    """Pause before each restart."""


Restart = NoRestart | FixedDelay | ExponentialDelay | FailureRate

DEFAULT_RESTART = ExponentialDelay(attempts=60)
"""The restart strategy of a job whose user has chosen none. The pauses of 60 restarts add up to about an hour. Errors
of the program may fail the job sooner, see `JobSettings.restart`."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """How slots exchange batches."""

    channel_bytes: int = 1024 * 1024
    """At most this many bytes may be on their way in one channel, or wait at the receiver of the channel."""
    output_bytes: int = 512 * 1024
    """A task takes no more input while one of its channels has this many bytes, or more, waiting to be sent."""
    batch_bytes: int = 256 * 1024
    """Waiting batches are merged, and larger batches are cut, to about this size. A row that is larger than this goes
    in a batch of its own."""
    transport: str = "auto"
    """`auto`: private sockets in the file system on one host, encrypted TCP between hosts. `ipc` and `tcp` force one of
    the two."""
    master_host: str | None = None
    """The address at which slots on other hosts call the driver. None: `spark.driver.host`; over Spark Connect, the
    address with which the driver's host calls the server."""


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    """How slots are watched."""

    start_timeout_ms: int = 2 * MINUTE_MS
    """How long the job waits for all slots to come up before the job says which slots are missing."""
    heartbeat_interval_ms: int = 500
    """How often a slot says that its loop turns."""
    heartbeat_timeout_ms: int = 30_000
    """A slot whose process has been silent for this long is given up and replaced. User code that does not return is no
    silence: the process sends its signs of life from another thread than the loop, which runs user code, and also while
    native code holds Python's lock."""
    stuck_after_ms: int = 10_000
    """A slot that has been in one piece of user code for this long is reported as stuck, with the step and the Python
    stack. The report comes again each time the slot has been stuck for twice as long."""
    stuck_timeout_ms: int | None = None
    """A slot that has been in one piece of user code, or restoring its tasks, for this long is given up and
    replaced. None: never, since the same records would come to the same user code again, and the same state would have
    to be loaded again. Checkpoints cannot pass a stuck slot, and have a time-out of their own."""
    log_level: str = "INFO"
    """Log entries of this level and above, made with Python's logging in a slot, are handed to the driver's log.
    `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`."""
    log_folder: str | None = None
    """A folder on the driver's host for a file of JSON lines with everything that `penstock logs` shows: what the
    program's code logs and prints in slots, and what the driver logs about the job. At most 50 MB are kept. None: only
    the last 5,000 lines are kept, in memory, while the job runs."""
    cancel_timeout_ms: int = 10_000
    """A slot that has not dropped its tasks after this long is given up and replaced."""
    deploy_timeout_ms: int = MINUTE_MS
    """A slot that has not restored its tasks after this long, and has not said what it is doing, is given up and
    replaced. A slot that loads state, or is in `open()` of a function, says so after half of this time or after
    `stuck_after_ms`. Such a slot is waited for, however much state there is: a slot in its place would load the same
    state from the beginning. The log names the slot and the step, says what the step is doing and for how long, and
    shows the Python stack, again each time that twice the time has passed. `stuck_timeout_ms` gives up these slots,
    too."""
    spares: int = 0
    """How many spare slots wait to take the place of a lost slot. Each spare slot costs a core."""


LEAST_WRITE_BUFFER_BYTES = 1024 * 1024
LEAST_BLOCK_CACHE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Where keyed state is kept while the job runs."""

    backend: str = "memory"
    """`memory`: as Python objects in the slots' processes; fastest, and bounded by the memory of these processes.
    `rocksdb`: on the slots' disks; bounded by the size of these disks, and a checkpoint uploads only what has
    changed."""
    local_directory: str | None = None
    """`rocksdb`: a folder on a local disk of every executor. None: the system's folder for temporary files. The files
    in the folder are needed only while a slot runs."""
    write_buffer_bytes: int = 64 * 1024 * 1024
    """`rocksdb`: how many bytes of changed state, over all steps, may wait in the memory of a slot before the changes
    are written to disk."""
    block_cache_bytes: int = 128 * 1024 * 1024
    """`rocksdb`: how many bytes that were read from disk, over all steps, are kept in the memory of a slot."""

    def problems(self) -> list[str]:
        """What is wrong, one line each, with what to change."""
        found: list[str] = []
        if self.backend not in ("memory", "rocksdb"):
            found.append(f"state backend is {self.backend!r}; use 'memory' or 'rocksdb'")
        if self.write_buffer_bytes < LEAST_WRITE_BUFFER_BYTES:
            found.append(
                f"state write buffer is {self.write_buffer_bytes} bytes; it must be at least {LEAST_WRITE_BUFFER_BYTES}"
            )
        if self.block_cache_bytes < LEAST_BLOCK_CACHE_BYTES:
            found.append(
                f"state block cache is {self.block_cache_bytes} bytes; it must be at least {LEAST_BLOCK_CACHE_BYTES}"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Everything about one job that is the same in all its processes; written into each checkpoint."""

    parallelism: int = 1
    """How many slots the job has, and so how many subtasks each step has."""
    max_parallelism: int | None = None
    """The number of key groups: the job can never be rescaled beyond this number. None: derived from the
    parallelism."""
    source_batch_rows: int = 65_536
    """A source is asked for at most this many rows at a time."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: Restart | None = None
    """None: growing pauses, and up to 60 restarts in a row without a completed checkpoint between them. An error of the
    program itself fails the job at once if the error comes before the first checkpoint, or for the third time at the
    same place with fewer than three completed checkpoints between."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    slot: SlotSettings = field(default_factory=SlotSettings)
    state: StateSettings = field(default_factory=StateSettings)

    def problems(self) -> list[str]:
        """What is wrong, one line each, with what to change."""
        found: list[str] = []
        if self.parallelism < 1:
            found.append(f"parallelism is {self.parallelism}; at least 1 slot is needed")
        if self.max_parallelism is not None:
            if not 1 <= self.max_parallelism <= 32_768:
                found.append(f"max_parallelism is {self.max_parallelism}; it must be between 1 and 32768")
            elif self.parallelism > self.max_parallelism:
                found.append(f"parallelism {self.parallelism} is above max_parallelism {self.max_parallelism}")
        if self.source_batch_rows < 1:
            found.append(f"source_batch_rows is {self.source_batch_rows}; at least 1 row must be allowed")
        if self.slot.heartbeat_timeout_ms < LEAST_HEARTBEAT_TIMEOUT_MS:
            found.append(
                f"heartbeat timeout is {self.slot.heartbeat_timeout_ms} ms; slots and master send a sign of life every "
                f"second, so the least is {LEAST_HEARTBEAT_TIMEOUT_MS} ms"
            )
        if self.slot.stuck_after_ms < LEAST_STUCK_AFTER_MS:
            found.append(f"stuck_after is {self.slot.stuck_after_ms} ms; the least is {LEAST_STUCK_AFTER_MS} ms")
        if self.slot.stuck_timeout_ms is not None and self.slot.stuck_timeout_ms < self.slot.stuck_after_ms:
            found.append(
                f"stuck_timeout is {self.slot.stuck_timeout_ms} ms, below stuck_after, {self.slot.stuck_after_ms} ms; "
                "set stuck_timeout to at least stuck_after: a slot is reported as stuck before the slot is given up"
            )
        if self.slot.log_level not in LOG_LEVELS:
            found.append(f"log_level is {self.slot.log_level!r}; use one of {', '.join(LOG_LEVELS)}")
        if self.slot.spares < 0:
            found.append(f"spare_slots is {self.slot.spares}; 0 is the least")
        if self.network.transport not in ("auto", "ipc", "tcp"):
            found.append(f"network transport is {self.network.transport!r}; use 'auto', 'ipc' or 'tcp'")
        return found + self.checkpoint.problems() + self.state.problems()
