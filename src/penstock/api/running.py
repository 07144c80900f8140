"""What can run a part of a program at once: for a look at a stream, or for all its results.

A stream knows the steps that lead to it, and no way to run them. An environment gives its program a `Runner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.connector import Sink
from penstock.core.errors import UsageError
from penstock.plan.graph import Plan

MakePlan = Callable[[Sink, int | None], Plan]


@dataclass(frozen=True, kw_only=True)
class StreamPath:
    """The steps that lead to a stream."""

    schema: pa.Schema
    """The columns of the stream."""
    ends: bool
    """Whether no source is known to go on for ever."""
    make_plan: MakePlan
    """The plan of these steps, with a sink at the end, for a parallelism; None: the parallelism of the program."""

    def into(self, sink: Sink, *, parallelism: int | None = None) -> Plan:
        """The plan of just these steps, which ends in `sink`. Nothing is added to the program."""
        return self.make_plan(sink, parallelism)


class Runner(ABC):
    """Runs the path to a stream, apart from the program's own jobs."""

    @abstractmethod
    def collected(self, path: StreamPath, *, limit: int) -> pa.Table:
        """All results of a stream that ends. Raises `UsageError` if there are more than `limit`."""

    @abstractmethod
    def sampled(self, path: StreamPath, *, rows: int, timeout_ms: int | None) -> pa.Table:
        """Some results of a stream, `rows` of them at most; fewer if the stream ends before, or the time is over."""

    def as_spark(self, table: pa.Table) -> Any:
        """A table as a Spark DataFrame."""
        raise UsageError(
            f"{table.num_rows} rows cannot become a Spark DataFrame: there is no Spark here",
            hint='collect(as_="arrow") needs none',
        )
