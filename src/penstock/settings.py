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
    """How often checkpoints are triggered while a source works through what has piled up."""

    interval_ms: int | None = None
    """A checkpoint is triggered every so often. None: no periodic checkpoints meanwhile."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """When and how checkpoints are taken."""

    interval_ms: int | None = None
    """A checkpoint is triggered every so often while all tasks run. None: only on request and at the end."""
    during_backlog: BacklogInterval | None = None
    """Another interval, never a shorter one, while a source says that it is catching up. None: the same interval."""
    timeout_ms: int = 10 * MINUTE_MS
    """A checkpoint that is not complete after this long is aborted. Too short throws away the work of slow tasks; too
    long hides a stuck one."""
    min_pause_ms: int = 0
    """Least time between the completion of one checkpoint and the next periodic trigger."""
    max_concurrent: int = 1
    """How many checkpoints may be under way at once."""
    tolerable_failures: int | None = 0
    """How many checkpoints in a row may fail. If one more does, the task that declined it restarts with all that are
    joined to it; or all tasks restart, if it expired or no single task was to blame. None: any number."""
    mode: Mode = Mode.EXACTLY_ONCE
    """At least once never blocks a channel, and may count records twice after a failure."""
    unaligned: bool = False
    """Barriers overtake data, which is then saved with the checkpoint: fast under back-pressure."""
    aligned_timeout_ms: int | None = None
    """With `unaligned`: start aligned and turn unaligned when a barrier is older than this."""
    num_retained: int = 1
    """How many completed checkpoints are kept."""
    retention: Retention = Retention.KEEP
    """Whether checkpoints outlive a cancelled or failed job."""
    goes_on_when_finished: bool = False
    """Whether the last checkpoint outlives a job that has finished its data, too. A job on Spark has this set if one of
    its sources may find more data when the program is run again; its tasks then all end with that checkpoint."""
    inline_threshold_bytes: int = 20_480
    """State up to this size travels inside the metadata instead of a file of its own."""
    after_tasks_finish: bool = True
    """Let tasks whose data has ended go, and go on taking checkpoints without them. If not, they wait until the data of
    all tasks has ended, and all go with one last checkpoint. So it always is in a job that goes on when its program is
    run again (its checkpoints are kept, and a source of it may find more data then), whatever is set here: the next run
    needs the state of all tasks."""
    delete_attempts: int = 16
    """How often a deletion in the checkpoint directory is tried before it is given up, with a warning."""
    delete_retry_ms: int = 1_000
    """Pause before a deletion that failed is tried again. It doubles with every failure, up to five minutes."""
    hook_timeout_ms: int = 30_000
    """A checkpoint hook that has not returned after this long fails the checkpoint that it was called for, or the
    attempt that waits for it to be restored. With hooks it must be below `deploy_timeout_ms`, which runs meanwhile."""
    history: int = 10
    """How many checkpoints that have ended are remembered, for people to look at, with the numbers of every subtask."""
    local_copies_bytes: int = 256 * 1024 * 1024
    """A slot keeps copies of up to this much of what it writes to checkpoints, in memory and in temporary files, and
    reads its state from there, instead of from the checkpoint directory, when another slot has failed. 0: none."""

    def problems(self) -> list[str]:
        """What is wrong, one line each, with what to change."""
        found: list[str] = []
        if self.interval_ms is not None and self.interval_ms < 10:
            found.append(f"checkpoint interval is {self.interval_ms} ms; the least is 10 ms")
        backlog_ms = None if self.during_backlog is None else self.during_backlog.interval_ms
        if backlog_ms is not None and (self.interval_ms is None or backlog_ms < self.interval_ms):
            found.append(
                f"the interval during backlog is {backlog_ms} ms, shorter than the interval of {self.interval_ms} ms; "
                f"make it longer, or None for no periodic checkpoints during backlog"
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
            found.append(f"delete_attempts is {self.delete_attempts}; at least 1 must be allowed")
        if self.delete_retry_ms < 10:
            found.append(f"delete_retry is {self.delete_retry_ms} ms; the least is 10 ms")
        if self.hook_timeout_ms < 10:
            found.append(f"hook_timeout is {self.hook_timeout_ms} ms; the least is 10 ms")
        if self.local_copies_bytes < 0:
            found.append(f"local_copies is {self.local_copies_bytes} bytes; use 0 to keep none")
        if self.tolerable_failures is not None and self.tolerable_failures < 0:
            found.append(f"tolerable_failures is {self.tolerable_failures}; use None to tolerate any number")
        if self.unaligned and self.mode is Mode.AT_LEAST_ONCE:
            found.append("unaligned checkpoints need mode exactly-once; drop unaligned or change the mode")
        if self.unaligned and self.max_concurrent > 1:
            found.append(
                f"unaligned checkpoints allow one at a time, max_concurrent is {self.max_concurrent}; set it to 1"
            )
        if self.aligned_timeout_ms is not None and not self.unaligned:
            found.append("aligned_timeout has no effect without unaligned=True; set it, or drop the timeout")
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
    """Each pause is this many times the one before."""
    max_ms: int = MINUTE_MS
    """No pause is longer, whatever `jitter` adds."""
    jitter: float = 0.1
    """Each pause is varied by up to this share, so that jobs do not restart in step."""
    reset_after_ms: int = HOUR_MS
    """When the job has run for this long since its last restart without a failure, the pause starts from the
    beginning."""
    attempts: int | None = None
    """Restarts in a row before the job fails: without a completed checkpoint, or `reset_after_ms` without a failure,
    between. None: any number."""


@dataclass(frozen=True, kw_only=True)
class FailureRate:
    """Restart as long as failures do not come too often."""

    max_failures: int = 1
    """So many failures within the interval are borne; one more fails the job."""
    interval_ms: int = MINUTE_MS
    """Failures that are older do not count."""
    delay_ms: int = 1_000
    """Pause before each restart."""


Restart = NoRestart | FixedDelay | ExponentialDelay | FailureRate

DEFAULT_RESTART = ExponentialDelay(attempts=60)
"""What follows a failure that is not an error of the program, if the user has chosen nothing: the pauses of so many
restarts add up to about an hour."""


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """How slots exchange batches."""

    channel_bytes: int = 1024 * 1024
    """At most this much may be on its way in one channel, or waiting at its receiver."""
    output_bytes: int = 512 * 1024
    """A task takes no more input while one of its channels has more than this waiting to be sent."""
    batch_bytes: int = 256 * 1024
    """Waiting batches are merged, and larger ones cut, to about this size. A row that is larger goes
    alone, whatever its size."""
    transport: str = "auto"
    """`auto`: private sockets in the file system on one host, encrypted TCP between hosts. `ipc` or `tcp` force one."""
    master_host: str | None = None
    """The address of the host of this program at which slots on other hosts call it. None: `spark.driver.host`; over
    Spark Connect the address with which this host calls the server."""


@dataclass(frozen=True, kw_only=True)
class SlotSettings:
    """How slots are watched."""

    start_timeout_ms: int = 2 * MINUTE_MS
    """How long to wait for all slots to come up before the job says which are missing."""
    heartbeat_interval_ms: int = 500
    """How often a slot says that its loop turns."""
    heartbeat_timeout_ms: int = 30_000
    """A slot whose process has been silent for this long is given up and replaced. User code that does not come back is
    no silence: the process says that it lives beside the loop that runs user code."""
    stuck_after_ms: int = 10_000
    """A slot that has been in one piece of user code for this long is reported as stuck, with the step and the Python
    stack; again each time the slot has been stuck for twice as long."""
    stuck_timeout_ms: int | None = None
    """A slot that has been in one piece of user code for this long is given up and replaced. None: never, since the
    same records would come to the same code again; checkpoints, which cannot pass meanwhile, have a time-out of their
    own."""
    log_level: str = "INFO"
    """What code in a slot logs with Python's logging, from this level on, is handed to the driver's log. `DEBUG`,
    `INFO`, `WARNING`, `ERROR` or `CRITICAL`."""
    cancel_timeout_ms: int = 10_000
    """A slot that has not dropped its tasks after this long is given up and replaced."""
    deploy_timeout_ms: int = MINUTE_MS
    """A slot that has not restored its tasks after this long is given up and replaced."""
    spares: int = 0
    """How many slots are kept ready besides, with no work, to take the place of one that dies. Each costs a core."""


LEAST_WRITE_BUFFER_BYTES = 1024 * 1024
LEAST_BLOCK_CACHE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Where keyed state is kept while the job runs."""

    backend: str = "memory"
    """`memory`: as Python objects in the slots' processes; fastest, and bounded by their memory. `rocksdb`: on the
    slots' disks; bounded by these, and only what changed is uploaded with a checkpoint."""
    local_directory: str | None = None
    """`rocksdb`: a folder on a local disk of every executor. None: the system's folder for temporary files. What is in
    it is needed only while a slot runs."""
    write_buffer_bytes: int = 64 * 1024 * 1024
    """`rocksdb`: how much of what was written may wait in the memory of a slot before it is written to disk, over all
    steps."""
    block_cache_bytes: int = 128 * 1024 * 1024
    """`rocksdb`: how much of what was read is kept in the memory of a slot, over all steps."""

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
    """How many slots the job has, and so how many subtasks each step."""
    max_parallelism: int | None = None
    """The number of key groups: the job can never be rescaled beyond it. None: derived from the parallelism."""
    source_batch_rows: int = 65_536
    """A source is asked for at most this many rows at a time."""
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    restart: Restart | None = None
    """None: growing pauses, up to 60 restarts in a row without a completed checkpoint between; and an error of the
    program itself ends the job at once if it comes before the first checkpoint, or a third time at the same place
    without a checkpoint between."""
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
                f"heartbeat timeout is {self.slot.heartbeat_timeout_ms} ms; slots and master say that they live every "
                f"second, so the least is {LEAST_HEARTBEAT_TIMEOUT_MS} ms"
            )
        if self.slot.stuck_after_ms < LEAST_STUCK_AFTER_MS:
            found.append(f"stuck_after is {self.slot.stuck_after_ms} ms; the least is {LEAST_STUCK_AFTER_MS} ms")
        if self.slot.stuck_timeout_ms is not None and self.slot.stuck_timeout_ms < self.slot.stuck_after_ms:
            found.append(
                f"stuck_timeout is {self.slot.stuck_timeout_ms} ms, below stuck_after, {self.slot.stuck_after_ms} ms; "
                "a slot is reported before it is given up"
            )
        if self.slot.log_level not in LOG_LEVELS:
            found.append(f"log_level is {self.slot.log_level!r}; use one of {', '.join(LOG_LEVELS)}")
        if self.slot.spares < 0:
            found.append(f"spare_slots is {self.slot.spares}; 0 is the least")
        if self.network.transport not in ("auto", "ipc", "tcp"):
            found.append(f"network transport is {self.network.transport!r}; use 'auto', 'ipc' or 'tcp'")
        return found + self.checkpoint.problems() + self.state.problems()
