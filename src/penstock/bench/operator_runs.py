"""The runs of `penstock bench operators`: one Spark, one run after the other, each run in a folder of its own.

Runs that are compared follow each other in every round, so other programs on the machine disturb both alike. Every job
of Penstock takes a checkpoint every second. Results of windows that are compared with Spark are written as Parquet. All
other results go nowhere, on both sides. The first part of every run is warm-up, and does not count. A failure ends the
benchmark.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click

import penstock as ps
from penstock.api.connector import Sink, Source
from penstock.api.program import Program
from penstock.api.streams.data_stream import Stream
from penstock.bench import bytewax_counting
from penstock.bench.keyed_bids import NUMBER, TEXT, KeyedBids
from penstock.bench.metering import MeteredSink, MeteredSource, read_throughput
from penstock.bench.nexmark_queries import Events
from penstock.bench.nexmark_streaming import micro_batch_events, whole_rounds
from penstock.bench.operator_queries import (
    BID_COLUMNS,
    EVENT_QUERIES,
    RUNNING,
    SESSION,
    SLIDING,
    events_read,
    penstock_event_query,
    penstock_query,
    streaming_event_query,
    streaming_query,
    windowed_query,
)
from penstock.bench.pressure import DroppingSink
from penstock.bench.round_folders import round_folder
from penstock.bench.row_functions import COUNTED, PRICED, CountRecords, prices_in_list, prices_yielded
from penstock.bench.structured_streaming import (
    ROWS_PER_BATCH,
    StreamOutput,
    StreamSize,
    run_stream,
    run_streaming_query,
)
from penstock.bench.window_query import BidInput
from penstock.connectors import nexmark
from penstock.core.errors import HostError, UsageError
from penstock.settings import NoRestart
from penstock.terminal.running import running_job

WARMUP_SHARE = 0.25
INTERVAL = "1s"
SPARK_SHARE = 4
"""Spark reads one of this many bids, because Spark is slower."""
ROW_SHARE = 10
"""Functions that are called for every row get one of this many bids."""
FEW_KEYS = 10_000
MANY_KEYS = 10_000_000
TEXT_WINDOW = "10 seconds"
MANY_WINDOW = "20 seconds"
_MANY_WINDOW_SHARE = 2
"""A window of the runs with few and with many keys has one of so many bids, whatever the number of bids."""
_MANY_WINDOW_S = 20

Run = Callable[[], float]
Build = Callable[..., None]
"""Adds a query to a program: given are the program, the sources and the sink."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What all runs have in common."""

    events: int
    parallelism: int
    seed: int
    bytewax: Path | None
    """The interpreter of an environment that has bytewax."""


class Runs:
    """The runs by name, each as a function that returns rows per second."""

    def __init__(self, spark: Any, options: RunOptions, work: Path, screen: IO[str]) -> None:
        self._spark = spark
        self._options = options
        self._work = work
        self._screen = screen
        self._cpu = ""
        """The processor time of the last run of Penstock, as text."""

    def of_part(self, part: str) -> dict[str, Run]:
        """The runs of one part of the benchmark, in their order. The first run is the run that the part is about."""
        runs: dict[str, dict[str, Run]] = {
            SLIDING: {"penstock": lambda: self._windows(SLIDING), "spark": lambda: self._spark_windows(SLIDING)},
            SESSION: {"penstock": lambda: self._windows(SESSION), "spark": lambda: self._spark_windows(SESSION)},
            RUNNING: {"penstock": lambda: self._windows(RUNNING), "spark": lambda: self._spark_windows(RUNNING)},
            **{kind: self._of_events(kind) for kind in EVENT_QUERIES},
            "string-keys": {"string": lambda: self._by_auction(TEXT), "integer": lambda: self._by_auction(NUMBER)},
            "many-keys": {"many": lambda: self._by_keys(MANY_KEYS), "few": lambda: self._by_keys(FEW_KEYS)},
            "rows": {
                "generator": lambda: self._flat_map(prices_yielded),
                "list": lambda: self._flat_map(prices_in_list),
                "counting": self._counting,
                **({} if self._options.bytewax is None else {"bytewax": self._bytewax}),
            },
        }
        return {name: self._told(part, name, run) for name, run in runs[part].items()}

    def _told(self, part: str, name: str, run: Run) -> Run:
        def told() -> float:
            self._cpu = ""
            found = run()
            click.echo(f"{part}: {name}: {found:,.0f} rows/s{self._cpu}", file=self._screen)
            return found

        return told

    # --- windows -------------------------------------------------------------------------

    def _windows(self, kind: str) -> float:
        source = BidInput(events=self._options.events, seed=self._options.seed).source()
        sink = DroppingSink() if kind == RUNNING else None
        return self._penstock([source], lambda *given: penstock_query(*given, kind=kind), sink=sink)

    def _spark_windows(self, kind: str) -> float:
        options = self._options
        rows = max(options.events // SPARK_SHARE, 4)
        with round_folder(self._work, "spark-stream") as place:
            return run_streaming_query(
                self._spark,
                lambda numbers: streaming_query(numbers, kind=kind, seed=options.seed),
                size=StreamSize.of(rows, most_per_batch=ROWS_PER_BATCH),
                parallelism=options.parallelism,
                directory=place,
                warmup_share=WARMUP_SHARE,
                updates=kind == RUNNING,
            ).rows_per_second

    def _by_auction(self, key: str) -> float:
        source = KeyedBids(events=self._options.events, seed=self._options.seed)
        window = ps.tumbling(TEXT_WINDOW)
        return self._penstock(
            [source], lambda *given: windowed_query(*given, key=key, window=window), sink=DroppingSink()
        )

    def _by_keys(self, keys: int) -> float:
        events = self._options.events
        source = KeyedBids(
            events=events,
            keys=keys,
            has_text=False,
            seed=self._options.seed,
            events_per_second=max(1, events // (_MANY_WINDOW_SHARE * _MANY_WINDOW_S)),
        )
        window = ps.tumbling(MANY_WINDOW)
        return self._penstock(
            [source], lambda *given: windowed_query(*given, key=NUMBER, window=window), sink=DroppingSink()
        )

    # --- queries of events ---------------------------------------------------------------

    def _of_events(self, kind: str) -> dict[str, Run]:
        return {"penstock": lambda: self._events(kind), "spark": lambda: self._spark_events(kind)}

    def _events(self, kind: str) -> float:
        seed = self._options.seed
        rows = events_read(kind, Events(events=self._options.events, seed=seed))
        sources: list[Source] = [nexmark.bids(events=rows["bids"], seed=seed, columns=BID_COLUMNS)]
        if "auctions" in rows:
            sources.append(nexmark.auctions(events=rows["auctions"], seed=seed))
        return self._penstock(sources, lambda *given: penstock_event_query(*given, kind=kind), sink=DroppingSink())

    def _spark_events(self, kind: str) -> float:
        options = self._options
        events = whole_rounds(options.events // SPARK_SHARE)
        read, batch = (Events(events=each, seed=options.seed) for each in (events, micro_batch_events(events)))
        size = StreamSize(
            rows=sum(events_read(kind, read).values()), rows_per_batch=sum(events_read(kind, batch).values())
        )
        with round_folder(self._work, "spark-stream") as place:
            return run_stream(
                self._spark,
                lambda: streaming_event_query(self._spark, kind=kind, events=batch, parallelism=options.parallelism),
                size=size,
                output=StreamOutput(directory=place, is_kept=False),
                parallelism=options.parallelism,
                warmup_share=WARMUP_SHARE,
            ).rows_per_second

    # --- functions -----------------------------------------------------------------------

    def _flat_map(self, function: Callable[[dict[str, Any]], Any]) -> float:
        return self._rows(lambda bids: bids.flat_map(function, schema=PRICED))

    def _counting(self) -> float:
        return self._rows(lambda bids: bids.select(TEXT).key_by(TEXT).process(CountRecords(), schema=COUNTED))

    def _rows(self, transform: Callable[[Stream], Stream]) -> float:
        """A step that calls a function for every row, on one slot."""

        def build(program: Program, source: Source, sink: Sink) -> None:
            transform(program.read(source)).write(sink)

        source = KeyedBids(events=self._row_events, keys=FEW_KEYS, seed=self._options.seed)
        return self._penstock([source], build, sink=DroppingSink(), parallelism=1)

    @property
    def _row_events(self) -> int:
        return max(self._options.events // ROW_SHARE, 4)

    def _bytewax(self) -> float:
        assert self._options.bytewax is not None
        script = str(Path(bytewax_counting.__file__))
        given = [str(self._options.bytewax), script, str(self._row_events), str(FEW_KEYS), str(WARMUP_SHARE)]
        found = subprocess.run(given, capture_output=True, text=True, check=False)
        if found.returncode != 0:
            said = (found.stderr.strip() or "no message").splitlines()[-1]
            raise HostError(f"bytewax failed: {said}", hint="--bytewax is the Python of an environment with bytewax")
        return float(found.stdout.split()[-1])

    # --- jobs ----------------------------------------------------------------------------

    def _penstock(
        self, sources: Sequence[Source], build: Build, *, sink: Sink | None = None, parallelism: int | None = None
    ) -> float:
        with round_folder(self._work, "penstock") as place:
            environment = ps.Environment(
                self._spark,
                parallelism=parallelism or self._options.parallelism,
                checkpointing=ps.Checkpointing(interval=INTERVAL, directory=place / "checkpoints"),
                restart=NoRestart(),
            )
            meters = str(place / "meters")
            into = ps.parquet(str(place / "out")) if sink is None else sink
            metered = [MeteredSource(source, meters) for source in sources]
            build(environment, *metered, MeteredSink(into, meters))
            with running_job(environment, "bench") as job:
                job.wait()
            found = read_throughput(place / "meters", warmup_share=WARMUP_SHARE)
        if found is None:
            raise UsageError("a run was too short to be measured", hint="raise --events")
        self._cpu = f", {found.cpu_seconds_per_million:.3f} CPU s per million"
        return found.rows_per_second
