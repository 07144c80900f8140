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
    """A function of the user, before the job starts. On Spark `prepared` makes a sink that lands files for the
    function."""

    function: Callable[[Any, int], Any]

    def __post_init__(self) -> None:
        check_callable(self.function, "for_each_checkpoint")

    @property
    def name(self) -> str:
        """What the step is called unless the user names it."""
        return "for-each-checkpoint"

    @property
    def described(self) -> str:
        """What error texts call the sink: the method that the user called."""
        return "for_each_checkpoint"

    @property
    def footprint(self) -> Footprint:
        """Files with the records of a checkpoint, until the function has returned."""
        return Footprint(in_landing=True, shares_landing=True)

    def prepared(self, site: Site, schema: pa.Schema) -> Sink:  # noqa: ARG002
        """A sink that lands files for the function."""
        return site.handing_over(self.function)


class HandsOver:
    """The methods of a stream that hand results to the driver."""

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """End the stream in a sink."""
        raise NotImplementedError

    def for_each_checkpoint(self, function: Callable[[Any, int], Any], *, name: str | None = None) -> None:
        """End the stream in `function`, which is called on the driver with a Spark DataFrame and an id.

        One call has the records between the barriers of two checkpoints, and comes when a checkpoint that contains
        these records is complete. Ids ascend. There is no call for an id without records. After a failure the same
        call, with the same id and the same records, may come again until the call has returned once: make the function
        idempotent by the id, and use the DataFrame before the function returns. An error in the function fails the
        attempt. With `job.stop` and a start from the savepoint ids go on; a job that starts from an older snapshot
        counts from that snapshot again.
        """
        self.write(ForEachCheckpoint(function), name=name)
