"""The ports: what a shell must supply to the shared driver. There are two shells, the Spark shell and the simulator.

A driver takes *turns*: `turn(now)` takes the messages that have arrived, does a bounded amount of work and says when
the next turn must begin at the latest. Nothing in a turn blocks; blocking work goes to `Background`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from penstock.core.ids import CheckpointId, Instant, SlotId
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import JobOutcome, Start, Tenure

T = TypeVar("T")

Frame = Any
"""Anything with the buffer interface: bytes, memoryview, pyarrow.Buffer."""


class Clock(Protocol):
    """The only source of time of a process."""

    def now(self) -> Instant:
        """Milliseconds since 1970. The time never goes back."""
        ...

    def precise_ms(self) -> float:
        """A finer clock, for durations within this process only."""
        ...


class Transport(Protocol):
    """Carries messages of several frames between named processes.

    The order of the messages in one direction is kept. A message may be lost only together with the connection: the
    links above the transport count messages and notice a loss. Nothing here blocks.
    """

    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable at `address`. Connecting the same peer again does nothing."""
        ...

    def disconnect(self, peer: str) -> None:
        """Forget `peer`. Messages that were not sent yet are dropped."""
        ...

    def send(self, peer: str, frames: Sequence[Frame]) -> None:
        """Queue one message. If the peer is not connected and has never called this process, the message is dropped
        without an error."""
        ...

    def receive(self) -> list[tuple[str, list[Frame]]]:
        """Every message that has arrived, as (peer, frames), oldest first."""
        ...

    def follow(self, peer: str, address: str) -> None:
        """From now on `gone` names `peer` when the process at that address has died or cannot be reached any more, if
        the transport can see that. `let_go` and `disconnect` end this."""
        ...

    def let_go(self, peer: str) -> None:
        """Follow `peer` no more, because `peer` is about to leave."""
        ...

    def gone(self) -> list[str]:
        """The followed peers that are gone since the last call. A peer that is gone is named once, or never."""
        ...

    def dumped(self) -> list[tuple[str, str]]:
        """The peers that live and cannot run Python, as (peer, stacks): signs of life that have come since the last
        call. The stacks of all threads of the peer are empty until they are known."""
        ...


@dataclass(frozen=True, slots=True)
class WorkResult:
    """How a piece of background work ended: a value or an error."""

    value: Any = None
    error: BaseException | None = None


class Background(Protocol):
    """Runs blocking work off the loop, one piece after another, in the order given."""

    def submit(self, work: Callable[[], Any], done: Callable[[WorkResult], None]) -> None:
        """Run `work`. A later `collect` calls `done` with the result of `work`, on the loop."""
        ...

    def collect(self) -> None:
        """Call `done` for every piece of work that has ended since the last call."""
        ...


class Conversation(Protocol):
    """The calls of one async function of one subtask. All methods but `open` are called on the loop, and do not
    block."""

    def open(self, opening: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run a coroutine to its end, before all calls. Blocks: must be called off the loop. Raises what the coroutine
        raises."""
        ...

    def ask(self, calls: Sequence[tuple[int, Any]]) -> None:
        """Call the function: for each call the number of the call, and the argument. The numbers never come again."""
        ...

    def cancel(self, calls: Sequence[int]) -> None:
        """Give calls up. Their results may come all the same."""
        ...

    def close(self, closing: Callable[[], Coroutine[Any, Any, Any]] | None) -> None:
        """Give up all calls, then run the last coroutine, if there is a last coroutine. Returns at once. Nothing is
        told any more."""
        ...


class AsyncCalls(Protocol):
    """Runs async functions of the user's program beside the loop."""

    def begin(
        self,
        function: Callable[[Any], Coroutine[Any, Any, Any]],
        answered: Callable[[Sequence[tuple[int, WorkResult]]], None],
    ) -> Conversation:
        """Begin to call a function. A later `collect` calls `answered` with the calls that have ended."""
        ...

    def collect(self) -> None:
        """Tell the calls that have ended since the last `collect`, on the loop."""
        ...


class Store(Protocol):
    """Files below one root. Paths are relative, with `/`. Calls block: use them in `Background` work only.

    All calls raise `StorageError`. To read a file that does not exist raises `MissingFile`, unless the storage may only
    be away at present; to delete a file that does not exist does nothing.
    """

    @property
    def location(self) -> str:
        """The root: an absolute path or URI."""
        ...

    def at(self, root: str) -> Store:
        """The files below another root. The other root is an absolute path or URI, and may lie outside of this root."""
        ...

    def path_of(self, place: str) -> str | None:
        """The path, below this root, of a file or folder that is given by a full path or URI; None if the file or
        folder does not lie below this root."""
        ...

    def names(self, place: str) -> str | None:
        """The path, below this root, of a full path or URI, by names alone: links below the root are not resolved. None
        if the full path or URI does not begin with the root."""
        ...

    def followed(self, place: str) -> str:
        """The full path or URI with all links resolved."""
        ...

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing. The file is durable when the call returns."""
        ...

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing, unless the file exists. Returns whether this call created the file: of several
        callers at most one gets True. The file is durable when the call returns. Raises `StorageError` if the storage
        cannot promise that. If an answer of the storage was lost, a caller that gets False or an error may have created
        the file all the same."""
        ...

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file. Raises, and reads nothing, if the file has more than `limit` bytes."""
        ...

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in pieces, of which one is in memory at a time. Raises, and reads nothing, if the file has more than
        `limit` bytes. A wrong seal raises after the last piece, so no piece may be believed before the end."""
        ...

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted."""
        ...

    def delete(self, path: str) -> None:
        """Remove one file."""
        ...

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with everything in it."""
        ...

    def delete_empty(self, prefix: str) -> None:
        """Remove a folder if the folder is empty. Otherwise nothing happens."""
        ...


class JobRecords(Protocol):
    """The records of a job, which outlive the driver. Only the driver that has the job now may change them. Calls
    block: use them in `Background` work only.

    All calls raise `StorageError`. After a `StorageError` the records may be changed all the same, and doing the same
    call again does no harm. All calls raise `JobTakenOver` if another driver has the job. After a `JobTakenOver` the
    change does not count, unless the other driver found the change when it took the job over; this driver must not act
    as if the change counted. If a call returns, this driver had the job until the call returned.
    """

    def record(self, checkpoint: CheckpointId, data: bytes, *, forget: Iterable[CheckpointId] = ()) -> None:
        """Make durable that `checkpoint` is complete; only then drop the records of the checkpoints in `forget`."""
        ...

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether there is a record of the checkpoint."""
        ...

    def remove(self, checkpoint: CheckpointId) -> None:
        """Drop the record of a checkpoint. Nothing happens if there is no record."""
        ...

    def take_ids(self, below: CheckpointId) -> None:
        """Make durable that checkpoint ids below `below` are used. A call with a lower `below` than before does
        nothing."""
        ...

    def record_start(self, start: Start, began_with: CompletedCheckpoint | None) -> None:
        """Make durable how the job began, and with which snapshot."""
        ...

    def record_outcome(self, outcome: JobOutcome) -> None:
        """Make durable how the job ended."""
        ...

    def clear(self) -> None:
        """Drop the records of all checkpoints: the job has ended."""
        ...

    def check(self) -> None:
        """Change nothing, and raise `JobTakenOver` if another driver has the job. Called before work that only the
        driver of the job may do."""
        ...


class Leader(Protocol):
    """A driver that has won the election for a job: what the driver found, its access to the records, and whether the
    driver has lost the job since."""

    tenure: Tenure
    """What the driver found when its term began, as far as the records are believed (`core.recovery.believing`)."""

    @property
    def records(self) -> JobRecords:
        """The records of the job."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether another driver has the job, or may have taken the job over."""
        ...

    def resign(self) -> None:
        """Let go of the job: another driver may take the job over at once. Blocks."""
        ...


class Election(Protocol):
    """Decides which of several drivers has a job. One object per driver. Calls block for moments."""

    def campaign(self, lost: Callable[[], None]) -> Leader | None:
        """Take the job over, if no other driver has the job. None if another driver has the job: campaign again in a
        moment. `lost` is called, from any thread, when another driver may have taken the job over from this driver;
        `is_lost` of the leader is True by then. Raises `StorageError`."""
        ...

    def close(self) -> None:
        """Do not wait for the job any more: leave the line of drivers that wait."""
        ...


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """The host of the slots reports that a slot's process has ended."""

    slot: SlotId
    """The slot as `start` named the slot: the host does not tell how often the host itself has started the slot
    again."""
    error: str | None
    """None if the slot ended because it was told to."""
    host_gone: bool = False
    """The host itself is gone: no slot can ever be started again."""


class Slots(Protocol):
    """Starts and stops slots."""

    def start(self, slot: SlotId) -> None:
        """Ask the host for a slot. The slot registers over the transport when the slot is up."""
        ...

    def stop(self, slot: SlotId) -> None:
        """End a slot that does not answer, however often the host has started this incarnation of the slot again."""
        ...

    def ended(self) -> list[SlotEnded]:
        """Slots that have ended since the last call."""
        ...
