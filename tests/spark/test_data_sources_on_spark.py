"""Data sources written against PySpark's documentation give the same by Structured Streaming and by Penstock."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import documented_sources as documented
import pyspark.cloudpickle
import pytest
from bid_jobs import files_of_jobs
from documented_sources import (
    BatchFiles,
    Counter,
    Files,
    Lines,
    Sqlite,
    Squares,
    append_lines,
    noted,
    rows_of_files,
    rows_of_sqlite,
)
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState

TOTAL = 3_000
EVERYTHING = [(number, f"n{number}") for number in range(TOTAL)]


@pytest.fixture(autouse=True)
def _by_value() -> Iterator[None]:
    """What is defined in the module goes to the workers by value: they cannot import it."""
    for pickler in (cloudpickle, pyspark.cloudpickle):
        pickler.register_pickle_by_value(documented)
    yield
    for pickler in (cloudpickle, pyspark.cloudpickle):
        pickler.unregister_pickle_by_value(documented)


class Places:
    """Where one run reads and writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source, self.sink, self.out = root / "source", root / "sink", root / "out"
        for folder in (self.source, self.sink):
            folder.mkdir(parents=True)

    def counter(self, **options) -> dict[str, str]:
        given = {"total": TOTAL, "rowsPerBatch": 1_000, "numPartitions": 3, "notes": self.source, **options}
        return {name: str(value) for name, value in given.items()}

    @property
    def written(self) -> dict[str, str]:
        return {"path": str(self.out), "notes": str(self.sink)}


def environment(spark, places: Places, **options) -> ps.Environment:
    checkpointing = ps.Checkpointing(interval="200ms", directory=str(places.root / "ckpt"))
    options = {"parallelism": 2, "restart": ps.fixed_delay(attempts=5, delay="50ms"), **options}
    return ps.Environment(spark, checkpointing=checkpointing, **options)


def structured_streaming(spark, places: Places, source: str, sink: str, options: dict[str, str]) -> None:
    frame = spark.readStream.format(source).options(**options).load()
    writer = frame.writeStream.format(sink).options(**places.written, checkpointLocation=str(places.root / "query"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_a_stream_reader_and_a_sink_of_files_give_what_they_give_in_structured_streaming(spark, tmp_path):
    """Under Penstock a worker is killed while its partition is half read."""
    for kind in (Counter, Files):
        spark.dataSource.register(kind)
    theirs = Places(tmp_path / "theirs")
    structured_streaming(spark, theirs, "counter", "files", theirs.counter(rowsPerBatch=TOTAL))
    assert rows_of_files(theirs.out) == EVERYTHING

    ours = Places(tmp_path / "ours")
    gate = tmp_path / "gate"
    env = environment(spark, ours)
    source = ps.data_source(Counter, options=ours.counter(gate=gate), mode="available-now")
    env.read(source).repartition("id").write(ps.data_sink(Files, options=ours.written))
    job = env.start("counted")
    wait_until(job, lambda view: len(noted(ours.sink, "commits")) >= 1 and view.rows_read == TOTAL - 2)
    os.kill(job.view().slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING)
    gate.touch()
    job.wait(timeout=120)
    assert rows_of_files(ours.out) == rows_of_files(theirs.out)
    commits, aborts = noted(ours.sink, "commits"), noted(ours.sink, "aborts")
    assert commits == sorted(set(commits))
    assert not set(commits) & set(aborts)
    committed = noted(ours.source, "committed")
    assert committed == sorted(set(committed))
    assert noted(ours.source, "stopped") == [True]
    # Nobody told the killed worker's write to end; everything else that was staged was committed or aborted.
    with contextlib.suppress(FileNotFoundError):
        assert len(list((ours.out / "_staged").iterdir())) <= 1
    assert files_of_jobs(ours.root / "ckpt") == []


def test_a_simple_reader_and_a_table_give_what_they_give_in_structured_streaming(spark, tmp_path):
    """Under Penstock the file grows meanwhile, a worker is killed, and another job goes on from a savepoint."""
    for kind in (Lines, Sqlite):
        spark.dataSource.register(kind)
    lines = [f"line {number}" for number in range(600)]
    file = tmp_path / "lines.txt"
    append_lines(file, lines)
    theirs = Places(tmp_path / "theirs")
    given = {"path": str(file), "linesPerRead": "1000"}
    structured_streaming(spark, theirs, "lines", "sqlite", given)
    assert rows_of_sqlite(theirs.out) == list(enumerate(lines))

    ours = Places(tmp_path / "ours")
    file.unlink()
    append_lines(file, lines[:200])

    def program() -> ps.Environment:
        env = environment(spark, ours)
        source = ps.data_source(Lines, options={"Path": file, "LinesPerRead": 20, "notes": ours.source}, poll="20ms")
        env.read(source).write(ps.data_sink(Sqlite, options=ours.written), name="table")
        return env

    job = program().start("first")
    wait_until(job, lambda _: len(rows_of_sqlite(ours.out)) == 200)
    os.kill(job.view().slots[0].pid, signal.SIGKILL)
    wait_until(job, lambda view: view.restarts == 1 and view.state is JobState.RUNNING)
    append_lines(file, lines[200:400])
    wait_until(job, lambda view: len(rows_of_sqlite(ours.out)) > 200)
    savepoint = job.stop(savepoint=str(tmp_path / "saved"))
    append_lines(file, lines[400:])
    again = program().start("second", restore=savepoint)
    wait_until(again, lambda _: len(rows_of_sqlite(ours.out)) >= 600)
    again.cancel()
    again.finish()
    assert rows_of_sqlite(ours.out) == rows_of_sqlite(theirs.out)
    commits = noted(ours.sink, "commits")
    assert commits == sorted(set(commits))


def test_a_batch_reader_gives_what_spark_reads(spark, tmp_path):
    spark.dataSource.register(Squares)
    theirs = spark.read.format("Squares").option("count", 500).load().collect()
    ours = Places(tmp_path / "ours")
    env = environment(spark, ours)
    env.read(ps.data_source(Squares, options={"count": 500}, mode="batch")).write(ps.parquet(ours.out))
    env.run("squares")
    assert sorted(spark.read.parquet(str(ours.out)).collect()) == sorted(theirs)


def test_a_writer_for_batches_gets_what_each_checkpoint_has(spark, tmp_path):
    """As the refusal of such a class as a sink says."""
    spark.dataSource.register(BatchFiles)
    places = Places(tmp_path / "ours")

    def written(frame, checkpoint) -> None:
        frame.write.format("batch-files").options(**places.written).mode("append").save()

    env = environment(spark, places)
    env.read(ps.data_source(Squares, options={"count": 100}, mode="batch")).for_each_checkpoint(written)
    env.run("batches")
    assert rows_of_files(places.out) == [(n, n * n) for n in range(100)]


def test_nexmark_read_by_spark_in_a_batch_and_as_a_stream_has_the_bids_of_the_source(spark, tmp_path):
    events = 5_000
    bids = ps.nexmark.bids(events=events, seed=3)
    env = environment(spark, Places(tmp_path / "ours"))
    env.read(bids).write(ps.parquet(tmp_path / "bids"))
    env.run("bids")
    expected = sorted(map(tuple, spark.read.parquet(str(tmp_path / "bids")).select(*bids.schema.names).collect()))
    assert len(expected) == events

    spark.dataSource.register(ps.NexmarkBids)
    name, options = ps.NexmarkBids.name(), {"events": str(events), "seed": "3", "maxBidsPerTrigger": "1500"}
    batch = spark.read.format(name).options(**options).load()
    assert sorted(map(tuple, batch.collect())) == expected
    stream = spark.readStream.format(name).options(**options).load()
    assert stream.schema == batch.schema
    query = stream.writeStream.format("memory").queryName("nexmark_bids").start()
    try:
        query.processAllAvailable()
        sizes = [progress["numInputRows"] for progress in query.recentProgress]
        assert [size for size in sizes if size] == [1_500, 1_500, 1_500, 500]
        assert sorted(map(tuple, spark.table("nexmark_bids").collect())) == expected
    finally:
        query.stop()
        spark.catalog.dropTempView("nexmark_bids")
