"""What a shell must supply to the shared driver. The Spark shell and the simulator each do.

A driver makes *turns*: `turn(now)` takes what has arrived, does a bounded amount of work and says when it must be
called again at the latest. Nothing in a turn blocks; blocking work goes to `Background`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.core.ids import CheckpointId, Instant, SlotId
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Outcome as JobOutcome
from penstock.core.recovery.tenure import Start, Tenure

T = TypeVar("T")

Frame = Any
"""Anything with the buffer interface: bytes, memoryview, pyarrow.Buffer."""


class Clock(Protocol):
    """The only source of time of a process."""

    def now(self) -> Instant:
        """Milliseconds since 1970; never goes back."""
        ...

    def precise_ms(self) -> float:
        """A finer clock, for durations within this process only."""
        ...


class Transport(Protocol):
    """Carries messages of several frames between named processes.

    Per direction order is kept. A message may be lost only together with the connection: the links above count
    messages and notice. Nothing here blocks.
    """

    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable at `address`. Connecting the same peer again does nothing."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forget `peer`; what was not yet sent is dropped."""
        ...

    def send(self, peer: str, frames: Sequence[Frame]) -> None:
        """Queue one message. A peer that is not connected and never called in gets nothing, silently."""
        ...

    def receive(self) -> list[tuple[str, list[Frame]]]:
        """Every message that has arrived, as (peer, frames), oldest first."""
        ...

    def follow(self, peer: str, address: str) -> None:
        """Have `gone` tell, if it can be seen, when the process at that address has died or cannot be reached any
        more. Disconnecting `peer` ends it, too."""
        ...

    def let_go(self, peer: str) -> None:
        """Follow `peer` no more: it is about to leave."""
        ...

    def gone(self) -> list[str]:
        """Those that were followed and are gone since the last call; each is told once, or never."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a piece of background work ended: a value or an error."""

    value: Any = None
    error: BaseException | None = None


class Background(Protocol):
    """Runs blocking work off the loop, one piece after another, in the order given."""

    def submit(self, work: Callable[[], Any], done: Callable[[Outcome], None]) -> None:
        """Run `work`; `done` is called with its outcome by a later `collect`, on the loop."""
        ...

    def collect(self) -> None:
        """Call `done` for everything that has ended since."""
        ...


class Store(Protocol):
    """Files below one root. Paths are relative, with `/`. Calls block: use them in `Background` work only.

    All raise `StorageError`; reading or deleting what is not there raises for `read` and does nothing for deletes.
    """

    def at(self, root: str) -> Store:
        """The files below another root: an absolute path or URI, for what lies outside of this one."""
        ...

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing; durable when it returns."""
        ...

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless there is one: of all who try, one succeeds. Durable when it returns.
        Raises `StorageError` if the storage cannot promise that."""
        ...

    def read(self, path: str) -> bytes:
        """The whole file."""
        ...

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted."""
        ...

    def delete(self, path: str) -> None:
        """Remove one file."""
        ...

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all that is in it."""
        ...


class JobRecords(Protocol):
    """What outlives the driver of a job, kept by the driver that has the job now. Calls block: use them in `Background`
    work only.

    All raise `StorageError`; what was to be changed may be changed all the same, and doing it again does no harm. All
    raise `JobTakenOver` if another driver has the job: what was to be changed does
    not count then, unless that driver found it, and nobody may act upon it. Whoever returns had the job until then.
    """

    def record(self, checkpoint: CheckpointId, data: bytes, *, forget: Iterable[CheckpointId] = ()) -> None:
        """Make it durable that `checkpoint` is complete; only then drop the records of those in `forget`."""
        ...

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether there is a record of it."""
        ...

    def remove(self, checkpoint: CheckpointId) -> None:
        """Drop the record of a checkpoint; nothing happens if there is none."""
        ...

    def take_ids(self, below: CheckpointId) -> None:
        """Make it durable that checkpoint ids below `below` are used. Going back does nothing."""
        ...

    def record_start(self, start: Start, began_with: CompletedCheckpoint | None) -> None:
        """Make it durable how the job began, and with which snapshot."""
        ...

    def record_outcome(self, outcome: JobOutcome) -> None:
        """Make it durable how the job ended."""
        ...

    def clear(self) -> None:
        """Drop the records of all checkpoints: the job has ended."""
        ...

    def check(self) -> None:
        """Change nothing: for what must not be done any more when another driver has the job."""
        ...


class Leader(Protocol):
    """A driver's hold on a job."""

    @property
    def tenure(self) -> Tenure:
        """What it found."""
        ...

    @property
    def records(self) -> JobRecords:
        """What it keeps."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether another driver has the job, or may have it at any moment."""
        ...

    def resign(self) -> None:
        """Let go of the job: another driver may take it over at once. Blocks."""
        ...


class Election(Protocol):
    """Decides which of several drivers has a job. One object per driver. Calls block for moments."""

    def campaign(self, lost: Callable[[], None]) -> Leader | None:
        """Take the job over, if no other driver has it; None if one has: ask again in a moment. `lost` is called, from
        any thread, when the job may have been taken over from this driver: `is_lost` of the leader says so by then.
        Raises `StorageError`."""
        ...

    def close(self) -> None:
        """Leave those who wait."""
        ...


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """The host says that a slot's process is no more."""

    slot: SlotId
    """As it was asked for: the host does not tell how often it has started that one again by itself."""
    error: str | None
    """None if it left as told."""
    host_gone: bool = False
    """The host itself is no more: no slot can ever be started again."""


class Slots(Protocol):
    """Where slots come from."""

    def start(self, slot: SlotId) -> None:
        """Ask the host for a slot; it registers over the transport when it is up."""
        ...

    def stop(self, slot: SlotId) -> None:
        """End a slot that does not answer, whatever attempt of its incarnation runs."""
        ...

    def ended(self) -> list[SlotEnded]:
        """Slots that have ended since the last call."""
        ...
