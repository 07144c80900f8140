"""A sink whose transactions are committed on the driver, those of all subtasks together.

The subtask's part is to prepare and to carry: a transaction is named again by every snapshot until the committer says
that it is committed. The committer finds it in the metadata of the completed checkpoint (`runtime.commits`).
"""

from __future__ import annotations

from functools import partial

from penstock.api.steps import WriteStep
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.events import decode_committed
from penstock.runtime.task.operators.sink import SinkOperator, Transaction, restored_committables


class DriverCommittedSink(SinkOperator):
    """Writes into a sink in two phases, of which the second is the driver's."""

    def __init__(self, step: WriteStep) -> None:
        super().__init__(step)
        self._waits_for: CheckpointId = CheckpointId(0)

    def load(self, context: OperatorContext) -> None:
        """Carry what the restored checkpoint promised to commit. What nobody will commit is the committer's to remove:
        after a rescale some of it may be carried by another subtask than the one that prepared it, for long."""
        parts = restored_committables(context)
        for checkpoint in sorted(dict.fromkeys(checkpoint for checkpoint, _ in parts)):
            promised = [committable for known, committable in parts if known == checkpoint]
            transaction = Transaction(CheckpointId(checkpoint), partial(list, promised))
            transaction.prepare()
            self._transactions.append(transaction)

    def completed(self, checkpoint: CheckpointId) -> None:
        """The driver commits what belongs to `checkpoint`; where there is nothing, nobody will say so."""
        self._waits_for = max(self._waits_for, checkpoint)
        self._forget([t for t in self._transactions if t.checkpoint <= self._waits_for and not t.prepared])

    def handle_event(self, event: bytes) -> None:
        """The driver has committed."""
        committed = decode_committed(event).checkpoint
        self._forget([t for t in self._transactions if t.checkpoint <= committed])

    @property
    def pending(self) -> bool:
        """Whether the driver has something of a completed checkpoint to commit."""
        return any(t.checkpoint <= self._waits_for for t in self._transactions)
