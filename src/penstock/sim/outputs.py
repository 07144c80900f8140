"""How the sinks of a world's job write into the external system of the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.api.connector import Sink, SinkWriter, WriterContext
from penstock.sim.external import ExternalSystem, Transaction, system_of


class SimSink(Sink):
    """Writes into the external system of a world, under the name `target`."""

    def __init__(self, world: int, target: str = "sink") -> None:
        self.world = world
        self.target = target

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer whose transactions carry the epoch of the context."""
        return SimWriter(system_of(self.world), context, self.target)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make transactions visible."""
        system_of(self.world).commit(committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Drop the transactions that earlier attempts of the subtask prepared, except the transactions in `keep`."""
        system_of(self.world).drop(self.target, subtask=context.subtask, before_epoch=context.epoch, keep=keep)

    def end(self, job: str) -> None:
        """Drop all transactions that the job never committed."""
        system_of(self.world).drop_all(self.target, job=job)


class SimWriter(SinkWriter):
    """Collects batches. A transaction has the batches between two barriers. Only `before_barrier` puts batches into the
    open transaction. If `before_barrier` was not called, the batches come into a later transaction, and are lost if the
    checkpoint of the later transaction never completes."""

    def __init__(self, system: ExternalSystem, context: WriterContext, target: str = "sink") -> None:
        self.system = system
        self.context = context
        self.target = target
        self.held_back: list[pa.RecordBatch] = []
        self.open_batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch."""
        self.system.touched("write")
        self.held_back.append(batch)

    def before_barrier(self) -> None:
        """Put the batches that have come into the open transaction."""
        self.open_batches += self.held_back
        self.held_back = []

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. If it has no batches, nothing is prepared."""
        batches, self.open_batches = tuple(self.open_batches), []

        def work() -> list[bytes]:
            if not batches:
                return []
            return [self.prepare_now(checkpoint, batches).token]

        return work

    def prepare_now(self, checkpoint: int, batches: tuple[pa.RecordBatch, ...]) -> Transaction:
        """Make a closed transaction durable."""
        context = self.context
        return self.system.prepare(
            self.target,
            subtask=context.subtask,
            epoch=context.epoch,
            checkpoint=checkpoint,
            batches=batches,
            job=context.job,
        )
