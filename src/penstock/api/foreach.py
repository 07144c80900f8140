"""A sink that hands every checkpoint's records to a function on the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.callables import check_callable
from penstock.api.connector import Footprint, Sink, Site, UnpreparedSink


@dataclass(frozen=True)
class ForEachCheckpoint(UnpreparedSink):
    """A function of the user's, before the job starts. Where Spark is, it becomes a sink that lands files for it."""

    function: Callable[[Any, int], Any]

    def __post_init__(self) -> None:
        check_callable(self.function, "for_each_checkpoint")

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "for-each-checkpoint"

    @property
    def described(self) -> str:
        """What the user wrote."""
        return "for_each_checkpoint"

    @property
    def footprint(self) -> Footprint:
        """Files with the records of a checkpoint, until the function has returned."""
        return Footprint(in_landing=True, shares_landing=True)

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002
        """A sink that lands files for the function."""
        return site.handing_over(self.function)


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
