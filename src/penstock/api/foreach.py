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
