"""The functions behind `Stream.limit` and `Stream.distinct`: the first records of all, and of each key."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.functions import FunctionContext, KeyedContext, KeyedFunction, ProcessFunction, Row
from penstock.api.state import Ttl
from penstock.api.state_declarations import split_list_state, value_state


class FirstRows(ProcessFunction):
    """Hands on the first `most` records. There must be a single subtask, which counts for all."""

    taken = split_list_state("taken", "bigint")
    """How many records have been handed on, as the only element of the list."""
    ends_sources = True
    """Whether the sources end, if nothing else needs them, when all of the first records have come."""

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def is_full(self) -> bool:
        """Whether all of the first records have come."""
        return bool(sum(self.taken.get()) >= self.most)

    def on_batch(self, batch: pa.RecordBatch, context: FunctionContext) -> pa.RecordBatch | None:  # noqa: ARG002
        """The records of the batch that are among the first."""
        taken = sum(self.taken.get())
        if taken >= self.most:
            return None
        part = batch.slice(0, self.most - taken)
        self.taken.set([taken + part.num_rows])
        return part


class FirstPrinted(FirstRows):
    """Hands on the records of `stream.print(n)`. To look at a few records must not end a job."""

    ends_sources = False


class FirstOfSubtask(ProcessFunction):
    """Hands on the first `most` records of each subtask. The function stands before `FirstRows`, which needs no more
    records of any subtask. The count is not state: if the count begins anew after a restore, too many records are
    handed on, and `FirstRows` drops them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def open(self, context: FunctionContext) -> None:  # noqa: ARG002
        """Count from the beginning: a slot that stays alive uses the same object for the next attempt."""
        self._left = self._most

    def on_batch(self, batch: pa.RecordBatch, context: FunctionContext) -> pa.RecordBatch | None:  # noqa: ARG002
        """The records of the batch that are among the first of this subtask."""
        part = batch.slice(0, self._left)
        self._left -= part.num_rows
        return part if part.num_rows else None


class FirstOfKey(KeyedFunction):
    """Hands on the first record of each key. The operator of this function does the same for whole batches."""

    def __init__(self, ttl: Ttl | None) -> None:
        self.seen = value_state("seen", "boolean", ttl=ttl)

    def on_row(self, row: Row, context: KeyedContext) -> Row | None:  # noqa: ARG002
        """The record, if it is the first record of its key."""
        return row if self.is_first() else None

    def is_first(self) -> bool:
        """Whether the current key has not been seen, or has been forgotten. The key has been seen then."""
        if self.seen.exists():
            return False
        self.seen.set(True)
        return True
