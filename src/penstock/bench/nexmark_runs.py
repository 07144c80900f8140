"""The runs of `penstock bench nexmark`: one Spark, one run after the other, each run in a folder of its own.

The two runs of a query follow each other, so other programs on the machine disturb both alike. Results go nowhere, as
in the public runner; the results of q10, which is about files, are written as Parquet. Penstock takes a checkpoint
every second, Spark one per micro-batch. The first part of every run is warm-up, and does not count. A failure ends the
benchmark; a query that Spark refuses does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.bench.limited_reads import LimitedReads
from penstock.bench.metering import MeteredSink, MeteredSource, Throughput, read_throughput
from penstock.bench.nexmark_queries import Events, Query, add_query
from penstock.bench.nexmark_streaming import STREAMING, micro_batch_events, streaming_frame, whole_rounds
from penstock.bench.pressure import DroppingSink
from penstock.bench.processor_time import ProcessorTime
from penstock.bench.round_folders import round_folder
from penstock.bench.structured_streaming import StreamOutput, StreamSize, run_stream
from penstock.core.errors import UsageError
from penstock.settings import NoRestart
from penstock.terminal.running import running_job

WARMUP_SHARE = 0.25
INTERVAL = "1s"
SPARK_SHARE = 4
"""Spark reads one of this many events, because Spark is slower."""
SMALL_SHARES: Mapping[str, int] = dict.fromkeys(("q3", "q4", "q9", "q18", "q19", "q20", "q23"), 10)
"""Queries that keep every event read one of this many events."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What all runs have in common."""

    events: int
    seconds: float
    """How long a run reads at most."""
    parallelism: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a run was."""

    events_per_second: float
    cpu_seconds_per_million: float
    """The processor time of all processes, that of the driver included, for a million events."""

    @classmethod
    def of(cls, throughput: Throughput, used: ProcessorTime) -> Speed:
        """The speed of a run from the end of its warm-up on."""
        end_ns = throughput.started_ns + int(throughput.seconds * 1e9)
        events = throughput.rows_per_second * throughput.seconds
        cpu = used.between(throughput.started_ns, end_ns) / events * 1e6
        return cls(events_per_second=throughput.rows_per_second, cpu_seconds_per_million=cpu)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Spark does not run a query."""

    reason: str
    """What Spark says."""


class Runs:
    """The runs of queries."""

    def __init__(self, spark: Any, options: RunOptions, work: Path) -> None:
        self._spark = spark
        self._options = options
        self._work = work

    def penstock(self, query: Query) -> Speed:
        """Run a query here."""
        options = self._options
        made = self._events(self._read_by(query)).sources(query)
        with round_folder(self._work, "penstock") as place:
            environment = ps.Environment(
                self._spark,
                parallelism=options.parallelism,
                checkpointing=ps.Checkpointing(interval=INTERVAL, directory=place / "checkpoints"),
                restart=NoRestart(),
            )
            meters = str(place / "meters")
            sources = {
                kind: MeteredSource(LimitedReads(source, options.seconds), meters) for kind, source in made.items()
            }
            into = ps.parquet(str(place / "out"), partition_by=query.partition_by) if query.partition_by else None
            add_query(environment, query, sources, MeteredSink(into or DroppingSink(), meters))
            with ProcessorTime() as used, running_job(environment, query.name) as job:
                job.wait()
            found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
        if found is None:
            raise UsageError(f"the run of {query.name} was too short to be measured", hint="raise --events")
        return Speed.of(found, used)

    def spark(self, query: Query) -> Speed | Refusal:
        """Run a query in Structured Streaming."""
        from pyspark.errors import AnalysisException

        options = self._options
        events = self._read_by(query) // SPARK_SHARE
        per_batch = micro_batch_events(events)
        size = StreamSize(
            rows=self._events(events).rows(query),
            rows_per_batch=self._events(per_batch).rows(query),
            seconds=options.seconds,
        )
        with round_folder(self._work, "spark-stream") as place, ProcessorTime() as used:
            output = StreamOutput(
                directory=place,
                mode=STREAMING[query.name].mode,
                is_kept=bool(query.partition_by),
                partition_by=query.partition_by,
            )
            try:
                found = run_stream(
                    self._spark,
                    self._frame(query, per_batch),
                    size=size,
                    output=output,
                    parallelism=options.parallelism,
                    warmup_share=WARMUP_SHARE,
                )
            except AnalysisException as error:
                return Refusal(reason=_first_sentence(str(error)))
        return Speed.of(found, used)

    def _frame(self, query: Query, per_batch: int) -> Callable[[], Any]:
        events, parallelism = self._events(per_batch), self._options.parallelism
        return lambda: streaming_frame(self._spark, query, events, parallelism=parallelism)

    def _read_by(self, query: Query) -> int:
        return whole_rounds(self._options.events // SMALL_SHARES.get(query.name, 1))

    def _events(self, events: int) -> Events:
        return Events(events=events, seed=self._options.seed)


def _first_sentence(text: str) -> str:
    """What Spark says, without its advice, the class of the error and the plan of the query."""
    line = text.strip().splitlines()[0]
    if line.startswith("["):
        line = line.partition("]")[2]
    return line.partition(". ")[0].strip().rstrip(".;")
