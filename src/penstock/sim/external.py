"""The system outside of a simulated job: its input, and the place where a two-phase sink puts its output.

Transactions are prepared, then committed or dropped, as in a database or a Kafka cluster. The system remembers who did
what and when, and refuses nothing that a real one would not refuse: whether a commit was legal is for the checkers to
say, not for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.errors import ExternalError, Retry
from penstock.sim.world import World


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What one subtask wrote between two checkpoints."""

    name: str
    target: str
    """The sink that it was written to."""
    subtask: int
    epoch: int
    checkpoint: int
    batches: tuple[pa.RecordBatch, ...]
    job: str = ""

    @property
    def token(self) -> bytes:
        """What a committer needs; no other transaction's token contains it."""
        return f"<{self.name}>".encode()


class ExternalSystem:
    """Input tables by split, transactions by name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.inputs: tuple[pa.RecordBatch, ...] = ()
        self.prepared: dict[bytes, Transaction] = {}
        self.dropped: dict[bytes, Transaction] = {}
        self.committed: dict[bytes, Transaction] = {}
        """In the order of the commits, which is the order in which a reader sees the rows."""
        self.on_commit: Callable[[Transaction], None] = lambda _transaction: None
        self.on_refused: Callable[[Transaction], None] = lambda _transaction: None
        """A transaction was to be committed that had been dropped."""
        self.on_group: Callable[[str, int, tuple[bytes, ...]], None] = lambda _target, _checkpoint, _tokens: None
        """The driver is about to commit what all subtasks prepared for a sink at one barrier."""
        self.read_to_end: dict[int, None] = {}
        """Splits that some reader has read to their ends, whether that counted or not."""
        self.let_go: dict[int, None] = {}
        """Splits that nobody will ask for again, as their source was told."""
        self.is_at: tuple[int | None, bytes | None] | None = None
        """The checkpoint, and the state, that the hook of the job was last put back to."""
        self._marks: list[tuple[int, int]] = []
        """(checkpoint, from when on readers come to it)."""
        self.on_unwaited: Callable[[str], None] = lambda _text: None
        """A row was handled that had to wait."""
        self.begins_at_beginning = True
        """Whether the newest attempt does."""
        self.is_drained = False
        """Whether the user has asked for a stop with drain: what had to come may not come any more."""
        self._names = 0
        self._faulty_until_us = 0
        self._fault_share = 0.0
        self._fails_after = False
        self._fragile: dict[tuple[str, str], None] = {}
        self._may_spoil = True

    def break_next(self, process: str, what: str) -> None:
        """Have the next task of a process that does this (`read` or `write`) raise, as a function of the user's may."""
        self._fragile[process, what] = None

    def mend(self) -> None:
        """What has not raised yet does not any more."""
        self._fragile.clear()
        self._may_spoil = False

    def spoil_once(self) -> bool:
        """Whether an enumerator's position is to be what no checkpoint can hold: once in a world."""
        spoils, self._may_spoil = self._may_spoil, False
        return spoils

    def touched(self, what: str) -> None:
        """A task of whoever acts now does this."""
        actor = self._world.acting
        if actor is not None and (actor.name, what) in self._fragile:
            del self._fragile[actor.name, what]
            raise ValueError(f"bad luck at {what}")

    def fail(self, *, for_us: int, share: float, after: bool) -> None:
        """For a while, a share of all calls raises; `after` has them do their work first."""
        self._faulty_until_us = self._world.now_us + for_us
        self._fault_share = share
        self._fails_after = after

    @property
    def now_ms(self) -> int:
        """What the clock of whoever acts now shows."""
        return self._world.now_ms if self._world.acting is None else self._world.acting.now()

    def spend(self, time_us: int) -> None:
        """Whoever acts at this moment needs so much of its processor's time."""
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
        """Make a closed transaction durable; nobody sees it yet."""
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
        """Make transactions visible; one that is visible stays as it is."""
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
        """Whoever acts now asks what there is to read, and is told these splits."""
        self._perform("discover", lambda: None)
        if found:
            self._world.note(self._who, f"finds splits {list(found)}")

    def put_mark(self, checkpoint: int, *, within_us: int) -> bytes:
        """Put a mark into the data, some time from now; what a hook keeps of it."""

        def act() -> None:
            self._marks.append((checkpoint, self._world.now_us + self._world.random.randint(0, within_us)))

        self._perform("trigger", act)
        return f"{checkpoint}/{len(self._marks)}".encode()

    def go_back(self, checkpoint: int | None, state: bytes | None) -> None:
        """The job goes back to a checkpoint, or to its beginning."""

        def act() -> None:
            self.is_at = (checkpoint, state)

        self._perform("go-back", act)

    @property
    def marks(self) -> int:
        """How many there are, or will be."""
        return len(self._marks)

    def mark(self, number: int) -> int | None:
        """The checkpoint of a mark, if readers come to it by now."""
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
        self.committed[token] = transaction
        rows = sum(batch.num_rows for batch in transaction.batches)
        self._world.note(self._who, f"committed {transaction.name} ({rows} rows)")
        self.on_commit(transaction)

    def drop(self, target: str, *, subtask: int, before_epoch: int, keep: Sequence[bytes] = ()) -> None:
        """Forget what earlier attempts of a subtask prepared for a sink, but for what is to be kept."""

        def act() -> None:
            for token, transaction in list(self.prepared.items()):
                theirs = (transaction.target, transaction.subtask) == (target, subtask)
                if theirs and transaction.epoch < before_epoch and token not in keep:
                    self.dropped[token] = self.prepared.pop(token)
                    self._world.trace("drop", transaction.name)

        self._perform("drop", act)

    def abandon(self, dropped: Callable[[Transaction], bool]) -> None:
        """Forget what was prepared and is to be dropped."""

        def act() -> None:
            for token, transaction in list(self.prepared.items()):
                if dropped(transaction):
                    self.dropped[token] = self.prepared.pop(token)
                    self._world.trace("drop", transaction.name)

        self._perform("drop", act)

    def drop_all(self, target: str, *, job: str | None = None) -> None:
        """Forget everything that a job prepared for a sink and never committed; None: whichever job."""
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
    """The world is over."""
    _SYSTEMS.pop(number, None)


def system_of(number: int) -> ExternalSystem:
    """The system that belongs to a world."""
    return _SYSTEMS[number]
