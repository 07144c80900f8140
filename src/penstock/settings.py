"""Every option of a job, in one place. Units are in the names; the text below a field is its documentation.

`None` switches a thing off; there are no magic numbers. All problems of a settings object are reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LEAST_HEARTBEAT_TIMEOUT_MS = 2_000


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
class CheckpointSettings:
    """When and how checkpoints are taken."""

    interval_ms: int | None = None
    """A checkpoint is triggered every so often while all tasks run. None: only on request and at the end."""
    timeout_ms: int = 10 * MINUTE_MS
    """A checkpoint that is not complete after this long is aborted. Too short throws away the work of slow tasks; too
    long hides a stuck one."""
    min_pause_ms: int = 0
    """Least time between the completion of one checkpoint and the next periodic trigger."""
    max_concurrent: int = 1
    """How many checkpoints may be under way at once."""
    tolerable_failures: int | None = 0
    """How many checkpoints in a row may fail before the job does. None: any number."""
    mode: Mode = Mode.EXACTLY_ONCE
    """At least once never blocks a channel, and may count records twice after a failure."""
    unaligned: bool = False
    """Barriers overtake data, which is then saved with the checkpoint: fast under back-pressure."""
    aligned_timeout_ms: int | None = None
    """With `unaligned`: start aligned and turn unaligned when a barrier is older than this."""
    num_retained: int = 1
    """How many completed checkpoints are kept."""
    retention: Retention = Retention.DELETE
    """Whether checkpoints outlive a cancelled or failed job."""
    inline_threshold_bytes: int = 20_480
    """State up to this size travels inside the metadata instead of a file of its own."""
    after_tasks_finish: bool = True
    """Let tasks whose data has ended go, and go on taking checkpoints without them. If not, they wait until the data of
    all tasks has ended, and all go with one last checkpoint."""
    delete_attempts: int = 16
    """How often a deletion in the checkpoint directory is tried before it is given up, with a warning."""
    delete_retry_ms: int = 1_000
    """Pause before a deletion that failed is tried again. It doubles with every failure, up to five minutes."""
    hook_timeout_ms: int = 30_000
    """A checkpoint hook that has not returned after this long fails the checkpoint that it was called for, or the
    attempt that waits for it to be restored. With hooks it must be below `deploy_timeout_ms`, which runs meanwhile."""
    local_copies_bytes: int = 256 * 1024 * 1024
    """A slot keeps copies of up to this much of what it writes to checkpoints, in memory and in temporary files, and
    reads its state from there, instead of from the checkpoint directory, when another slot has failed. 0: none."""

    def problems(self) -> list[str]:
        """What is wrong, one line each, with what to change."""
        found: list[str] = []
        if self.interval_ms is not None and self.interval_ms < 10:
            found.append(f"checkpoint interval is {self.interval_ms} ms; the least is 10 ms")
        if self.timeout_ms < 10:
            found.append(f"checkpoint timeout is {self.timeout_ms} ms; the least is 10 ms")
        if self.min_pause_ms < 0:
            found.append(f"min_pause is {self.min_pause_ms} ms; it cannot be negative")
        if self.max_concurrent < 1:
            found.append(f"max_concurrent is {self.max_concurrent}; at least 1 checkpoint must be allowed")
        if self.num_retained < 1:
            found.append(f"num_retained is {self.num_retained}; at least 1 checkpoint must be kept to recover from")
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
    """Restart for ever, with growing pauses."""

    initial_ms: int = 1_000
    """Pause before the first restart."""
    multiplier: float = 1.5
    """Each pause is this many times the one before."""
    max_ms: int = MINUTE_MS
    """No pause is longer."""
    jitter: float = 0.1
    """Each pause is varied by up to this share, so that jobs do not restart in step."""
    reset_after_ms: int = HOUR_MS
    """After this long without a failure the pause starts from the beginning."""
    attempts: int | None = None
    """Restarts before the job fails. None: any number."""


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


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """How slots exchange batches."""

    channel_bytes: int = 1024 * 1024
    """At most this much may be on its way in one channel, or waiting at its receiver."""
    output_bytes: int = 512 * 1024
    """A task takes no more input while one of its channels has more than this waiting to be sent."""
    batch_bytes: int = 256 * 1024
    """Waiting batches are merged, and larger ones cut, to about this size."""
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
    """A slot that has been silent for this long is given up and replaced."""
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
    restart: Restart = field(default_factory=ExponentialDelay)
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
        if self.slot.spares < 0:
            found.append(f"spare_slots is {self.slot.spares}; 0 is the least")
        if self.network.transport not in ("auto", "ipc", "tcp"):
            found.append(f"network transport is {self.network.transport!r}; use 'auto', 'ipc' or 'tcp'")
        return found + self.checkpoint.problems() + self.state.problems()
