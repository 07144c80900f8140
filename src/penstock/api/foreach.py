"""A sink that hands every checkpoint's records to a function on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.api.connector import Sink, SinkWriter, WriterContext
from penstock.core.errors import UsageError


@dataclass(frozen=True)
class ForEachCheckpoint(Sink):
    """A function of the user's, before the job starts. Where Spark is, it becomes a sink that lands files for it."""

    function: Callable[[Any, int], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"for_each_checkpoint takes a function, not {self.function!r}")

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "for-each-checkpoint"

    def start(self, job: str) -> None:
        """Never asked where there is a Spark."""
        raise UsageError(f"for_each_checkpoint needs Spark, and job {job} has none", hint="use another sink here")

    def writer(self, context: WriterContext) -> SinkWriter:
        """Never asked, as `start` is not."""
        raise UsageError(f"for_each_checkpoint needs Spark, and job {context.job} has none")


class HandsOver:
    """What a stream can do with results on the driver."""

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """End the stream in a sink."""
        raise NotImplementedError

    def for_each_checkpoint(self, function: Callable[[Any, int], Any], *, name: str | None = None) -> None:
        """End the stream in a function of yours, called on the driver with a Spark DataFrame and an id.

        One call has the records between two checkpoints' barriers, and comes when a checkpoint that contains them is
        complete; ids ascend, and where there are no records there is no call. After a failure a call may come again,
        with the same id and the same records, until it has returned once: make it idempotent by the id, and use the
        DataFrame before you return. What it raises fails the attempt. With `job.stop` and a start from the savepoint
        ids go on; a job that starts from an older snapshot counts from there again.
        """
        self.write(ForEachCheckpoint(function), name=name)
