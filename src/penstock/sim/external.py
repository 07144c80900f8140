"""The system outside of a simulated job: the input of the job, and the place where two-phase sinks put their output.

Transactions are prepared, then committed or dropped, as in a database or a Kafka cluster. The system refuses only what
a real system would refuse: not the system, but the checkers say whether a commit was legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.errors import ExternalError, Retry
from penstock.sim.drift import DriftChecker
from penstock.sim.world import World


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What one subtask wrote between two checkpoints."""

    name: str
    target: str
    """The sink that the transaction was written to."""
    subtask: int
    epoch: int
    checkpoint: int
    batches: tuple[pa.RecordBatch, ...]
    job: str = ""

    @property
    def token(self) -> bytes:
        """What a committer needs in order to commit. No token contains the token of another transaction."""
        return f"<{self.name}>".encode()


class ExternalSystem:
    """Input tables by split, transactions by token."""

    drift: DriftChecker | None = None
    """Watches what readers read; None if the sources of the job are not aligned."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.inputs: tuple[pa.RecordBatch, ...] = ()
        self.prepared: dict[bytes, Transaction] = {}
        self.dropped: dict[bytes, Transaction] = {}
        self.committed: dict[bytes, Transaction] = {}
        """In the order of the commits, which is the order in which a reader sees the rows."""
        self.on_commit: Callable[[Transaction], None] = lambda _transaction: None
        self.on_refused: Callable[[Transaction], None] = lambda _transaction: None
        """Called when a transaction is to be committed that has been dropped."""
        self.on_group: Callable[[str, int, tuple[bytes, ...]], None] = lambda _target, _checkpoint, _tokens: None
        """Called when the driver is about to commit the transactions that all subtasks prepared for a sink at one
        barrier."""
        self.read_to_end: dict[int, None] = {}
        """The splits that a reader has read to their ends, also in attempts that failed."""
        self.let_go: dict[int, None] = {}
        """The splits that the source has let go of, because the source was told that they are not read again."""
        self.is_at: tuple[int | None, bytes | None] | None = None
        """The checkpoint, and the state, that the hook of the job was last put back to."""
        self._marks: list[tuple[int, int]] = []
        """For each mark: the checkpoint, and from when on readers see the mark."""
        self.on_unwaited: Callable[[str], None] = lambda _text: None
        """Called when a row was handled that had to wait."""
        self.begins_at_beginning = True
        """Whether the newest attempt begins at the beginning of the data."""
        self.is_drained = False
        """Whether the user has asked for a stop with drain. Then rows that other rows wait for may never come."""
        self._names = 0
        self._faulty_until_us = 0
        self._fault_share = 0.0
        self._fails_after = False
        self._fragile: dict[tuple[str, str], None] = {}
        self._may_spoil = True

    def break_next(self, process: str, what: str) -> None:
        """Make the next task of `process` that does `what` (`read` or `write`) raise, as a function of the user's
        may."""
        self._fragile[process, what] = None

    def mend(self) -> None:
        """Call off all errors of tasks and enumerators that have not struck yet."""
        self._fragile.clear()
        self._may_spoil = False

    def spoil_once(self) -> bool:
        """Whether an enumerator is to return a position that no checkpoint can hold: true once in a world."""
        spoils, self._may_spoil = self._may_spoil, False
        return spoils

    def touched(self, what: str) -> None:
        """A task of the acting process does `what`. Raises if `break_next` asked for that."""
        actor = self._world.acting
        if actor is not None and (actor.name, what) in self._fragile:
            del self._fragile[actor.name, what]
            raise ValueError(f"bad luck at {what}")

    def fail(self, *, for_us: int, share: float, after: bool) -> None:
        """For `for_us`, a share of all calls raises. With `after` a call does its work before it raises."""
        self._faulty_until_us = self._world.now_us + for_us
        self._fault_share = share
        self._fails_after = after

    @property
    def now_ms(self) -> int:
        """The time on the clock of the acting process."""
        return self._world.now_ms if self._world.acting is None else self._world.acting.now()

    @property
    def elapsed_ms(self) -> int:
        """How long the world has lasted, whatever the clocks of its processes say."""
        return self._world.now_us // 1_000

    def spend(self, time_us: int) -> None:
        """The acting process spends `time_us` of processor time."""
        if self._world.acting is not None:
            self._world.acting.spend(time_us)

    def prepare(
        self,
        target: str,
        *,
        subtask: int,
        epoch: int,
        checkpoint: int,
        batches: tuple[pa.RecordBatch, ...],
        job: str = "",
    ) -> Transaction:
        """Make a closed transaction durable; the transaction is not visible yet."""
        self._names += 1
        name = f"{target}/{subtask}/{epoch}/{checkpoint}/{self._names}"
        transaction = Transaction(
            name=name, target=target, subtask=subtask, epoch=epoch, checkpoint=checkpoint, batches=batches, job=job
        )

        def act() -> None:
            self.prepared[transaction.token] = transaction
            self._world.trace("prepare", name)

        self._perform("prepare", act)
        return transaction

    def commit(self, tokens: Sequence[bytes]) -> None:
        """Make transactions visible. A transaction that is visible already stays as it is."""
        for token in tokens:
            self._perform("commit", lambda token=token: self._commit(token))  # type: ignore[misc]

    def commit_group(self, target: str, checkpoint: int, tokens: Sequence[bytes]) -> None:
        """Make transactions of several subtasks visible, all at once."""
        self.on_group(target, checkpoint, tuple(tokens))

        def act() -> None:
            for token in tokens:
                self._commit(token)

        self._perform("commit", act)

    def look(self, found: Sequence[int]) -> None:
        """The acting process looks for splits, and finds the splits in `found`."""
        self._perform("discover", lambda: None)
        if found:
            self._world.note(self._who, f"finds splits {list(found)}")

    def put_mark(self, checkpoint: int, *, within_us: int) -> bytes:
        """Put a mark into the data, at most `within_us` from now. Returns the state that the hook keeps."""

        def act() -> None:
            self._marks.append((checkpoint, self._world.now_us + self._world.random.randint(0, within_us)))

        self._perform("trigger", act)
        return f"{checkpoint}/{len(self._marks)}".encode()

    def go_back(self, checkpoint: int | None, state: bytes | None) -> None:
        """The hook goes back to a checkpoint and its state, or to the beginning if `checkpoint` is None."""

        def act() -> None:
            self.is_at = (checkpoint, state)

        self._perform("go-back", act)

    @property
    def marks(self) -> int:
        """How many marks there are; readers may not see all of them yet."""
        return len(self._marks)

    def mark(self, number: int) -> int | None:
        """The checkpoint of a mark; None if there is no such mark, or if readers do not see the mark yet."""
        if number >= len(self._marks):
            return None
        checkpoint, from_us = self._marks[number]
        return checkpoint if from_us <= self._world.now_us else None

    def _commit(self, token: bytes) -> None:
        if token in self.committed:
            return
        transaction = self.prepared.pop(token, None)
        if transaction is None:
            if token in self.dropped:
                self.on_refused(self.dropped[token])
            raise ExternalError(f"transaction {token.decode()} is not prepared")
        self.show(token, transaction)

    def show(self, token: bytes, transaction: Transaction) -> None:
        """The rows of a transaction become visible, under `token`."""
        self.committed[token] = transaction
        rows = sum(batch.num_rows for batch in transaction.batches)
        self._world.note(self._who, f"committed {transaction.name} ({rows} rows)")
        self.on_commit(transaction)

    def perform(self, call: str, action: Callable[[], None]) -> None:
        """The acting process calls the system. The process may die here, and the call may fail before or after its
        work."""
        self._perform(call, action)

    def drop(self, target: str, *, subtask: int, before_epoch: int, keep: Sequence[bytes] = ()) -> None:
        """Drop the transactions that earlier attempts of a subtask prepared for a sink, except the transactions in
        `keep`."""

        def act() -> None:
            for token, transaction in list(self.prepared.items()):
                theirs = (transaction.target, transaction.subtask) == (target, subtask)
                if theirs and transaction.epoch < before_epoch and token not in keep:
                    self.dropped[token] = self.prepared.pop(token)
                    self._world.trace("drop", transaction.name)

        self._perform("drop", act)

    def abandon(self, dropped: Callable[[Transaction], bool]) -> None:
        """Drop the prepared transactions for which `dropped` is true."""

        def act() -> None:
            for token, transaction in list(self.prepared.items()):
                if dropped(transaction):
                    self.dropped[token] = self.prepared.pop(token)
                    self._world.trace("drop", transaction.name)

        self._perform("drop", act)

    def drop_all(self, target: str, *, job: str | None = None) -> None:
        """Drop all transactions that a job prepared for a sink and never committed; None: of all jobs."""
        for token, transaction in list(self.prepared.items()):
            if transaction.target == target and job in (None, transaction.job):
                self.dropped[token] = self.prepared.pop(token)

    @property
    def _who(self) -> str:
        return self._world.acting.name if self._world.acting is not None else "nobody"

    def _perform(self, call: str, action: Callable[[], None]) -> None:
        actor = self._world.acting
        if actor is not None:
            actor.used(call)
        faulty = self._world.now_us < self._faulty_until_us and self._world.random.random() < self._fault_share
        if not faulty or self._fails_after:
            action()
        if faulty:
            raise ExternalError(f"cannot {call}: the external system is out of order", retry=Retry.LATER)
        if actor is not None:
            actor.used(f"{call}-done")


_SYSTEMS: dict[int, ExternalSystem] = {}


def enter(number: int, system: ExternalSystem) -> None:
    """Let pickled connectors find the system of their world."""
    if number in _SYSTEMS:
        raise RuntimeError(f"world {number} is being simulated already")
    _SYSTEMS[number] = system


def leave(number: int) -> None:
    """A world is over: forget the system of the world."""
    _SYSTEMS.pop(number, None)


def system_of(number: int) -> ExternalSystem:
    """The system that belongs to a world."""
    return _SYSTEMS[number]
