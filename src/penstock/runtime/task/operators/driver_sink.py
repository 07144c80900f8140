"""A sink whose transactions are committed on the driver, the transactions of all subtasks together.

The subtask prepares transactions and carries them: every snapshot names a prepared transaction again, until the
committer says that the transaction is committed. The committer finds the transaction in the metadata of the completed
checkpoint (`runtime/master/operator_coordinators/commits.py`).
"""

from __future__ import annotations

from functools import partial

from penstock.api.steps import WriteStep
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.events import decode_committed
from penstock.runtime.task.operators.sink import SinkOperator, Transaction, restored_committables


class DriverCommittedSink(SinkOperator):
    """Writes into a sink in two phases. The driver does the second phase, the commit."""

    def __init__(self, step: WriteStep) -> None:
        super().__init__(step)
        self._waits_for: CheckpointId = CheckpointId(0)

    def load(self, context: OperatorContext) -> None:
        """Carry the transactions that the restored checkpoint promised to commit. This subtask removes no transactions:
        after a rescale another subtask may carry, for long, a transaction that this subtask prepared. The committer
        removes the transactions that will not be committed."""
        parts = restored_committables(context)
        for checkpoint in sorted(dict.fromkeys(checkpoint for checkpoint, _ in parts)):
            promised = [committable for known, committable in parts if known == checkpoint]
            transaction = Transaction(CheckpointId(checkpoint), partial(list, promised))
            transaction.prepare()
            self._transactions.append(transaction)

    def completed(self, checkpoint: CheckpointId) -> None:
        """The driver commits the transactions of `checkpoint`. A transaction with nothing to commit is forgotten here,
        because no event will say that it is committed."""
        self._waits_for = max(self._waits_for, checkpoint)
        self._forget([t for t in self._transactions if t.checkpoint <= self._waits_for and not t.prepared])

    def handle_event(self, event: bytes) -> None:
        """The driver has committed all transactions up to a checkpoint."""
        committed = decode_committed(event).checkpoint
        self._forget([t for t in self._transactions if t.checkpoint <= committed])

    @property
    def pending(self) -> bool:
        """Whether the driver still has to commit a transaction of a completed checkpoint."""
        return any(t.checkpoint <= self._waits_for for t in self._transactions)
