"""The operator at the end of a chain: writes records into transactions that become visible with their checkpoint.

A transaction is closed by a checkpoint's barrier and *prepared* (made durable, not visible) in the asynchronous part of
the snapshot. From then on the subtask carries the transaction: every later snapshot names the transaction again, until
a checkpoint that named it is complete and the transaction is committed. So an aborted checkpoint loses nothing, the
next notification makes up for a lost notification, and a restore finds in the checkpoint exactly the transactions that
the checkpoint promised to commit.

    open --barrier--> closed --snapshot work--> prepared --completed--> committing --done--> forgotten

One commit is under way at a time: records become visible in the order in which they came, also when a commit fails. For
the same reason all transactions that a subtask carries are one part of its state: at any parallelism one subtask gets
the whole part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from penstock.api.connector import SinkWriter, UserCodeRaised, WriterContext
from penstock.api.steps import WriteStep
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState
from penstock.ports import WorkResult
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.user_code import user_code_raised

COMMITTABLES = "committables"
"""The name of the sink's state. A part of the state has a `Committable` for each piece of a prepared transaction, in
order."""

Committable = tuple[int, bytes]
"""The id of a checkpoint, and what the sink needs to commit a piece of its transaction. A part of the state may also be
a single committable, without a list."""


class Transaction:
    """The records that were written between two barriers."""

    def __init__(self, checkpoint: CheckpointId, work: Callable[[], list[bytes]]) -> None:
        self.checkpoint = checkpoint
        self._work = work
        self._prepared: list[bytes] | None = None
        # Snapshots of two checkpoints may be written at the same time, and both name this transaction.
        self._lock = threading.Lock()

    def prepare(self) -> list[bytes]:
        """Make the transaction durable, once. Runs off the loop. If the call raises, the next snapshot tries again."""
        with self._lock:
            if self._prepared is None:
                self._prepared = list(self._work())
            return self._prepared

    @property
    def prepared(self) -> list[bytes]:
        """What the sink needs to commit the transaction."""
        if self._prepared is None:
            raise InvariantError(f"checkpoint {self.checkpoint} is complete but its transaction was never prepared")
        return self._prepared


class SinkOperator(Operator):
    """Writes into a sink in two phases."""

    def __init__(self, step: WriteStep) -> None:
        self._sink = step.sink
        self._writer: SinkWriter | None = None
        self._transactions: list[Transaction] = []
        self._completed = CheckpointId(0)
        """The newest checkpoint that is complete."""
        self._committing: list[Transaction] = []

    doing = "committing what the restored checkpoint promised"

    def load(self, context: OperatorContext) -> None:
        """Commit the transactions that the restored checkpoint promised. Then remove the transactions that neither this
        job nor a job that starts from one of its savepoints will commit."""
        committables = [committable for _, committable in restored_committables(context)]
        if committables:
            self._sink.commit(committables)
        # After a rescale another subtask may have to commit a transaction that the subtask with this number prepared,
        # and may not have committed the transaction yet.
        if not context.rescaled:
            saved = [committable for part in context.saved for _, committable in decode_committables(part)]
            self._sink.clean(writer_context(context), [*committables, *saved])

    def open(self, context: OperatorContext, output: Output) -> None:
        """Open a writer with its first transaction."""
        super().open(context, output)
        self._writer = self._sink.writer(writer_context(context))

    def process(self, batch: pa.RecordBatch) -> None:
        """Write records into the open transaction."""
        if batch.num_rows:
            with self._naming():
                self._opened().write(batch)

    def before_barrier(self) -> None:
        """Let the writer hand over what it holds."""
        with self._naming():
            self._opened().before_barrier()

    def finish(self) -> None:
        """All data has been seen: the writer hands over what it holds."""
        self.before_barrier()

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork:  # noqa: ARG002
        """Close the open transaction. The returned work prepares the transaction, and names all transactions that are
        not committed."""
        with self._naming():
            self._transactions.append(Transaction(checkpoint, self._opened().prepare(checkpoint)))
        carried, operator = tuple(self._transactions), OperatorId(self.context.operator)

        def prepare(writer: StateWriter) -> OperatorState:  # noqa: ARG001  # what is written lies with the sink
            with self._naming():
                pieces = [(int(each.checkpoint), committable) for each in carried for committable in each.prepare()]
            parts = (msgspec.msgpack.encode(pieces),)
            return OperatorState(operator=operator, split_lists={COMMITTABLES: parts} if pieces else {})

        return prepare

    def completed(self, checkpoint: CheckpointId) -> None:
        """Commit all transactions of `checkpoint` and of earlier checkpoints."""
        self._completed = max(self._completed, checkpoint)
        if not self._committing:
            self._commit_next()

    def _commit_next(self) -> None:
        due = [t for t in self._transactions if t.checkpoint <= self._completed]
        committables = [committable for transaction in due for committable in transaction.prepared]
        if not committables:
            self._forget(due)
            return
        self._committing = due
        # The writer is closed if the task ends while a commit is under way, and another transaction is due behind it.
        writer = self._writer
        commit = self._sink.commit if writer is None or not writer.commits else writer.commit
        self.context.background.submit(lambda: commit(committables), self._committed)

    @property
    def pending(self) -> bool:
        """Whether a commit is under way."""
        return bool(self._committing)

    def close(self) -> None:
        """Abandon the open transaction."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _committed(self, outcome: WorkResult) -> None:
        done, self._committing = self._committing, []
        if outcome.error is not None:
            # The transactions stay in the state: the restore that follows commits them again.
            self.context.fail(outcome.error)
            return
        self._forget(done)
        self._commit_next()

    def _forget(self, done: list[Transaction]) -> None:
        self._transactions = [t for t in self._transactions if t not in done]

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Name this operator in errors of user code that the sink runs."""
        try:
            yield
        except UserCodeRaised as error:
            raise user_code_raised(error, self.context) from error

    def _opened(self) -> SinkWriter:
        if self._writer is None:
            raise InvariantError("the sink's writer is used before open or after close")
        return self._writer


def restored_committables(context: OperatorContext) -> list[Committable]:
    """The committables that the restored checkpoint promised to commit."""
    parts = [part for state in context.restored for part in state.split_lists.get(COMMITTABLES, ())]
    return [piece for part in parts for piece in decode_committables(part)]


def writer_context(context: OperatorContext) -> WriterContext:
    """What identifies the writer of a subtask."""
    return WriterContext(
        job=context.job, subtask=context.task.subtask, parallelism=context.parallelism, epoch=context.epoch
    )


def decode_committables(part: bytes) -> list[Committable]:
    """The committables of a part of the state, in the order in which they must be committed."""
    try:
        return msgspec.msgpack.decode(part, type=list[Committable])
    except msgspec.ValidationError:
        return [msgspec.msgpack.decode(part, type=Committable)]
