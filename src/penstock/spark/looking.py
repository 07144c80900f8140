"""Runs the path to a stream on Spark, apart from the environment's own jobs: all of it as a job, or some rows here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from penstock.api.running import Runner, StreamPath
from penstock.connectors.collect_sink import CollectSink
from penstock.plan.graph import Plan
from penstock.runtime.in_process import SeenRows


class Look(Protocol):
    """Runs a plan in this process."""

    def __call__(self, plan: Plan, *, rows: int, timeout_ms: int | None) -> list[pa.RecordBatch]:
        """The first rows that come to the sink of the plan."""
        ...


class SparkRunner(Runner):
    """Of one environment."""

    def __init__(self, spark: Any, *, run: Callable[[Plan], None], look: Look) -> None:
        """`run` runs a plan to its end, as a job of its own."""
        self._spark = spark
        self._run = run
        self._look = look

    def collected(self, path: StreamPath, *, limit: int) -> pa.Table:
        """Run the path as a job of its own, with the settings of the environment."""
        sink = CollectSink(limit)
        self._run(path.into(sink))
        return sink.to_arrow()

    def sampled(self, path: StreamPath, *, rows: int, timeout_ms: int | None) -> pa.Table:
        """Run the path in this process. A DataFrame at its beginning is written by Spark first, as for a job."""
        batches = self._look(path.into(SeenRows(rows), parallelism=1), rows=rows, timeout_ms=timeout_ms)
        return pa.concat_tables([path.schema.empty_table(), *(pa.table(batch).cast(path.schema) for batch in batches)])

    def as_spark(self, table: pa.Table) -> Any:
        """A DataFrame of the environment's session."""
        return self._spark.createDataFrame(table)
