"""One StatefulProcessor by Structured Streaming and by Penstock, one of whose workers is killed: the same results, and
the same state in the end."""

# Names and parameters are those of PySpark's class.
# ruff: noqa: N802, N803

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cloudpickle
from bid_jobs import EVENTS, GatedBids, checkpointing
from gated import Gate, Numbers, all_rows
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

# What is defined here goes to the workers by value, ours and Spark's: they cannot import a test module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
spark_cloudpickle.register_pickle_by_value(sys.modules[__name__])

BIDDERS = 500
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
VISITS = (f"bidder % {BIDDERS} AS k", "auction % 40 AS page")
RARE = "price % 12 = 0"
OUT = "k bigint, what string, v bigint"


class Visits(StatefulProcessor):
    """Numbers the visits of a customer, and tells of pages that are new to them."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")
        self.pages = handle.getMapState("pages", "page bigint", "times bigint")

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.n,))

    def handleInputRows(self, key, rows, timerValues):
        (count,) = self.count.get() or (0,)
        for row in rows:
            count += 1
            yield Row(k=key[0], what="visit", v=count)
            seen = self.pages.getValue((row.page,))
            if seen is None:
                yield Row(k=key[0], what="page", v=row.page)
            self.pages.updateValue((row.page,), ((seen[0] if seen else 0) + 1,))
        self.count.update((count,))


class HeldReader(ps.SourceReader):
    """Leaves a file when it has read everything, and ends only when another file exists."""

    def __init__(self, reader: ps.SourceReader, place: Path) -> None:
        self._reader = reader
        self._place = place

    def poll(self, max_rows: int, now_ms: int):
        polled = self._reader.poll(max_rows, now_ms)
        if isinstance(polled, ps.End) and not (self._place / "end").exists():
            (self._place / f"read-{os.getpid()}").touch()
            return ps.Pause(5)
        return polled

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()


class HeldBids(GatedBids):
    """Bids after whose last one a savepoint can be taken."""

    def __init__(self, place: Path) -> None:
        super().__init__(place / "gate")
        self._place = place

    def open(self, splits: Sequence[bytes]) -> ps.SourceReader:
        return HeldReader(super().open(splits), self._place)


def initial_state(spark):
    return spark.createDataFrame([(1, 1_000), (2, 2_000), (-5, 5)], "k bigint, n bigint")


def by_structured_streaming(spark, place: Path):
    """The results, and the two states."""
    bids = spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=3)).where(RARE).selectExpr(*VISITS)
    bids.repartition(4).write.parquet(str(place / "in"))
    stream = spark.readStream.schema(bids.schema).option("maxFilesPerTrigger", 2).parquet(str(place / "in"))
    with rocksdb(spark):
        made = stream.groupBy("k").transformWithState(
            Visits(), OUT, "append", "None", initial_state(spark).groupBy("k")
        )
        run_query(made, place)
        count = their_state(spark, place, "count").selectExpr("key.k", "value.n")
        pages = their_state(spark, place, "pages").selectExpr("key.k", "user_map_key.page", "user_map_value.times")
        return results(spark, place), rows_of(count), rows_of(pages)


@contextmanager
def rocksdb(spark) -> Iterator[None]:
    """Where Structured Streaming keeps the state of processors."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def run_query(frame, place: Path) -> None:
    """Until it has read all there is."""
    (
        frame.writeStream.format("parquet")
        .option("path", str(place / "out"))
        .option("checkpointLocation", str(place / "checkpoints"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def their_state(spark, place: Path, name: str):
    states = spark.read.format("statestore").option("path", str(place / "checkpoints"))
    return states.option("stateVarName", name).load()


def results(spark, place: Path) -> Counter[tuple]:
    return Counter(map(tuple, spark.read.parquet(str(place / "out")).select("k", "what", "v").collect()))


def rows_of(frame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


def test_a_processor_gives_what_structured_streaming_gives_although_a_worker_is_killed(spark, tmp_path):
    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.fixed_delay(attempts=3, delay="0s")
    )
    visits = env.read(HeldBids(tmp_path)).where(RARE).select(*VISITS)
    counted = visits.key_by("k").transform_with_state(
        Visits(), output_schema=OUT, initial_state=initial_state(spark), name="visits"
    )
    counted.write(ps.parquet(str(tmp_path / "out")))
    job = env.start("visits")
    running = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2 and v.rows_out > 0)
    os.kill(running.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.restored_checkpoint is not None and v.state is JobState.RUNNING)
    (tmp_path / "gate").touch()
    wait_until(job, lambda _: len(list(tmp_path.glob("read-*"))) == 2)
    savepoint = ps.read_savepoint(spark, job.savepoint(tmp_path / "savepoint"))
    count, pages = savepoint.state("visits", "count"), savepoint.state("visits", "pages")
    (tmp_path / "end").touch()
    view = job.wait(120)
    assert view.state is JobState.FINISHED
    assert view.restarts == 1
    their_results, their_count, their_pages = by_structured_streaming(spark, tmp_path / "spark")
    assert len(their_pages) > BIDDERS
    assert rows_of(count.selectExpr("k", "value.n")) == their_count
    assert rows_of(pages.selectExpr("k", "map_key", "value.times")) == their_pages
    assert results(spark, tmp_path) == their_results


# --- timers, lists and what is forgotten -----------------------------------------------------------------------------

GAP_MS = 2_000
SPELLS = ("bidder % 40 AS k", "auction % 40 AS page", "ts")
VERY_RARE = "(31 * price + 17 * auction + bidder) % 3001 = 0"


class Spells(StatefulProcessor):
    """Adds up the pages of visits between which there is no gap, and tells of them when event time is past it: the same
    however the visits come in batches."""

    def init(self, handle):
        self.handle = handle
        self.visits = handle.getListState("visits", "at bigint, page bigint")
        self.told = handle.getListState("told", "total bigint")

    def handleInputRows(self, key, rows, timerValues):
        # Rounded up: event time that has come to a millisecond is past all that was rounded to it.
        visits = [(-(-round(row.ts.timestamp() * 1_000_000) // 1_000), row.page) for row in rows]
        self.visits.appendList(visits)
        for at, _ in visits:
            self.handle.registerTimer(at + GAP_MS)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now, visits = expiredTimerInfo.getExpiryTimeInMs(), list(self.visits.get())
        if any(now - GAP_MS < at <= now for at, _ in visits):
            return
        total = sum(page for at, page in visits if at <= now)
        self.visits.clear()
        if later := [visit for visit in visits if visit[0] > now]:
            self.visits.put(later)
        self.told.appendValue((total,))
        yield Row(k=key[0], what="spell", v=total)


def spells_by_structured_streaming(spark, place: Path):
    """The results, and the state of what was told. A visit in the far future, of a customer of its own, is what takes
    event time past all others."""
    bids = spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=3)).where(VERY_RARE).selectExpr(*SPELLS)
    last = spark.sql("SELECT -1L AS k, 0L AS page, timestamp'2030-01-01' AS ts")
    bids.union(last).coalesce(2).write.parquet(str(place / "in"))
    stream = spark.readStream.schema(bids.schema).parquet(str(place / "in")).withWatermark("ts", "4 seconds")
    with rocksdb(spark):
        run_query(stream.groupBy("k").transformWithState(Spells(), OUT, "append", "EventTime"), place)
        told = their_state(spark, place, "told").selectExpr("key.k", "list_element.total")
        return results(spark, place), rows_of(told)


def test_timers_of_event_time_and_lists_are_those_of_structured_streaming_although_a_worker_is_killed(spark, tmp_path):
    env = ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=ps.fixed_delay(attempts=3, delay="0s")
    )
    visits = env.read(HeldBids(tmp_path)).where(VERY_RARE).select(*SPELLS).watermark("ts", delay="4s")
    spells = visits.key_by("k").transform_with_state(Spells(), output_schema=OUT, time_mode="EventTime", name="spells")
    spells.write(ps.parquet(str(tmp_path / "out")))
    job = env.start("spells")
    running = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2 and v.rows_in > 1_000)
    os.kill(running.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.restored_checkpoint is not None and v.state is JobState.RUNNING)
    (tmp_path / "gate").touch()
    wait_until(job, lambda _: len(list(tmp_path.glob("read-*"))) == 2)
    savepoint = ps.read_savepoint(spark, job.stop(savepoint=tmp_path / "savepoint", drain=True))
    their_results, their_told = spells_by_structured_streaming(spark, tmp_path / "spark")
    assert len(their_told) > 50
    assert results(spark, tmp_path) == their_results
    assert rows_of(savepoint.state("spells", "told").selectExpr("k", "value.total")) == their_told


BRIEF_MS = 300
DAY_MS = 86_400_000


class Reminded(StatefulProcessor):
    """Hands rows on when a timer says so: not while a file exists, and not before what was to be forgotten is."""

    def __init__(self, hold):
        self.hold = hold

    def init(self, handle):
        self.handle = handle
        self.rows = handle.getListState("rows", "row bigint", DAY_MS)
        self.brief = handle.getValueState("brief", "row bigint", BRIEF_MS)

    def handleInputRows(self, key, rows, timerValues):
        numbers = [(row.row,) for row in rows]
        self.rows.appendList(numbers)
        self.brief.update(numbers[-1])
        if not list(self.handle.listTimers()):
            self._wait(timerValues)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        if self.hold.exists() or self.brief.exists():
            self._wait(timerValues)
            return
        for (row,) in self.rows.get():
            yield Row(split=key[0], row=row)
        self.rows.clear()

    def _wait(self, timerValues):
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 20)


def test_timers_of_processing_time_and_a_ttl_go_on_after_a_worker_was_killed(spark, tmp_path):
    """1. Rows wait in lists, with a timer each, when a checkpoint is taken. 2. A worker is killed. 3. No row comes in
    any more: only timers that were restored can hand rows on, and do when what has a short TTL is gone; what has a long
    one is still there."""
    gate, hold = Gate(tmp_path / "gate"), tmp_path / "hold"
    hold.touch()
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=ps.Checkpointing(interval="1h", min_pause="1h", directory=tmp_path / "checkpoints"),
        restart=ps.fixed_delay(attempts=3, delay="0s"),
    )
    rows = env.read(Numbers(gate)).key_by("split")
    handed = rows.transform_with_state(
        Reminded(hold), output_schema="split bigint, row bigint", time_mode="ProcessingTime", name="reminded"
    )
    handed.write(ps.parquet(str(tmp_path / "out")))
    job = env.start("reminded")
    gate.open_to(200)
    wait_until(job, lambda v: v.rows_in >= len(all_rows(200)))
    job.checkpoint()
    assert not list((tmp_path / "out").glob("*.parquet"))
    os.kill(job.view().slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.restored_checkpoint is not None and v.state is JobState.RUNNING)
    hold.unlink()
    # Each checkpoint shows what was handed on before it.
    wait_until(job, lambda _: job.checkpoint() and list((tmp_path / "out").glob("*.parquet")))
    wait_until(job, lambda _: job.checkpoint() and len(handed_on(spark, tmp_path)) >= len(all_rows(200)))
    job.stop(savepoint=tmp_path / "savepoint")
    assert handed_on(spark, tmp_path) == all_rows(200)


def handed_on(spark, place: Path) -> list[tuple]:
    return rows_of(spark.read.parquet(str(place / "out")).select("split", "row"))


class Totals(StatefulProcessor):
    """Adds up pages in DataFrames."""

    def init(self, handle):
        self.total = handle.getValueState("total", "v bigint")

    def handleInputRows(self, key, rows, timerValues):
        import pandas as pd

        (total,) = self.total.get() or (0,)
        for frame in rows:
            assert list(frame.columns) == ["k", "page"]
            total += frame["page"].sum()
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "what": ["total"], "v": [total]})


def test_a_processor_of_dataframes_runs_too(spark, tmp_path):
    visits = spark.range(0, 20_000).selectExpr("id % 300 AS k", "id * 7919 % 300 AS page")
    env = ps.Environment(spark, parallelism=2)
    made = (
        env.from_dataframe(visits)
        .key_by("k")
        .transform_with_state(Totals(), output_schema=OUT, kind="pandas", time_mode="ProcessingTime")
    )
    made.write(ps.parquet(str(tmp_path / "out")))
    env.run("totals")
    found = spark.read.parquet(str(tmp_path / "out")).groupBy("k").max("v")
    assert rows_of(found) == rows_of(visits.groupBy("k").sum("page"))
