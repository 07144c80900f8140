"""`penstock bench kafka`: how fast one slot reads and writes JSON records of 100 bytes, beside confluent-kafka alone.

A broker of this machine has a topic with two partitions. These run in turns, several times each, in one process:

* bare: a loop over `Consumer.consume` that takes the value of each message and does nothing with the value.
* source: a reader of `ps.kafka`, which parses the JSON into columns, as the source of a slot does.
* sink: a writer of `ps.kafka_sink`, from rows to a committed transaction: encoded, kept, read again and produced.

The broker and the benchmark share the processors of the machine. So the processor time of the process is measured, too.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from penstock.terminal.failures import reported_failures

DEFAULT_RECORDS = 2_000_000
DEFAULT_ROUNDS = 3
PARTITIONS = 2
TOPIC = "records"
SCHEMA = "auction bigint, bidder bigint, price bigint, channel string, ts timestamp"
_POLL_ROWS = 65_536
_WRITE_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class KafkaBenchOptions:
    """The options of the command line."""

    records: int
    rounds: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One run of one kind."""

    per_second: float
    per_cpu_second: float


@click.command("kafka")
@click.option(
    "--records", type=click.IntRange(min=10_000), default=DEFAULT_RECORDS, show_default=True, help="Records of a run."
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=DEFAULT_ROUNDS, show_default=True, help="Runs of each kind."
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def kafka_bench(**values: Any) -> None:
    """Records per second of one slot from and to Kafka, beside confluent-kafka alone."""
    with reported_failures():
        run_kafka_bench(KafkaBenchOptions(**values))


def run_kafka_bench(options: KafkaBenchOptions) -> None:
    """Run the benchmark."""
    # Imported here and not above, so that the other commands need not wait for the imports.
    from penstock.bench.kafka_broker import KafkaBroker, missing
    from penstock.core.errors import HostError
    from penstock.terminal.session import work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    if (reason := missing()) is not None:
        raise HostError(f"no Kafka broker can be started: {reason}")
    speeds: dict[str, list[Speed]] = {}
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        click.echo("starting a broker ...", file=screen)
        with KafkaBroker(work / "broker") as broker:
            broker.create_topic(TOPIC, partitions=PARTITIONS)
            click.echo(f"writing {options.records:,} records ...", file=screen)
            _fill(broker.bootstrap, options.records)
            for number in range(options.rounds):
                for kind, run in _RUNS.items():
                    speed = _timed(run(broker, options.records, work, number), options.records)
                    speeds.setdefault(kind, []).append(speed)
                    found_text = f"{speed.per_second:,.0f} records/s, {speed.per_cpu_second:,.0f} per processor second"
                    click.echo(f"{kind}: {found_text}", file=screen)
    found = summary(options.records, speeds)
    click.echo(f"the source has {found['source_ratio']:.2f} times the records of the bare loop", file=screen)
    if options.as_json:
        click.echo(json.dumps(found))


def summary(records: int, speeds: dict[str, list[Speed]]) -> dict[str, float]:
    """The medians, as they are printed for programs."""
    found: dict[str, float] = {"records": records}
    for kind, each in speeds.items():
        found[f"{kind}_records_per_second"] = round(statistics.median(speed.per_second for speed in each))
        found[f"{kind}_records_per_cpu_second"] = round(statistics.median(speed.per_cpu_second for speed in each))
    found["source_ratio"] = round(found["source_records_per_second"] / found["bare_records_per_second"], 3)
    return found


def record(number: int) -> bytes:
    """A record of about 100 bytes."""
    return (
        b'{"auction":%d,"bidder":%d,"price":%d,"channel":"apple","ts":"2026-01-01T00:00:00.%06dZ"}'
        % (100_000 + number % 1_000, 10_000 + number % 777, 1_000 + number % 9_000, number % 1_000_000)
    ).ljust(100)


def _timed(steps: Iterator[int], records: int) -> Speed:
    """Time from the first records on: the connection does not count."""
    first = next(steps)
    began, cpu = time.perf_counter(), time.process_time()
    done = first + sum(steps)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    if done != records:
        raise RuntimeError(f"{done} of {records} records came")
    return Speed(per_second=(records - first) / took, per_cpu_second=(records - first) / used)


def _fill(bootstrap: str, records: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for first in range(0, records, _POLL_ROWS):
        values = [{"value": record(number)} for number in range(first, min(first + _POLL_ROWS, records))]
        producer.produce_batch(TOPIC, values, partition=first // _POLL_ROWS % PARTITIONS)
        producer.flush(60)


def _bare(broker: Any, records: int, work: Path, number: int) -> Iterator[int]:  # noqa: ARG001  # the same for all runs
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bare", "queued.min.messages": 1_000_000})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    left = records
    while left:
        taken = 0
        for message in consumer.consume(_WRITE_ROWS, timeout=0.2):
            if message.value() is not None:
                taken += 1
        left -= taken
        if taken:
            yield taken
    consumer.close()


def _source(broker: Any, records: int, work: Path, number: int) -> Iterator[int]:  # noqa: ARG001  # the same for all runs
    import pyarrow as pa

    from penstock.api.connector import End
    from penstock.connectors.kafka.source import kafka

    source = kafka(TOPIC, bootstrap=broker.bootstrap, schema=SCHEMA, stop="latest")
    reader = source.open(source.splits(1))
    while not isinstance(polled := reader.poll(_POLL_ROWS, 0), End):
        if isinstance(polled, pa.RecordBatch):
            yield polled.num_rows
        else:
            time.sleep(polled.wait_ms / 1_000)
    reader.close()


def _sink(broker: Any, records: int, work: Path, number: int) -> Iterator[int]:
    import pyarrow as pa

    from penstock.api.connector import WriterContext
    from penstock.connectors.kafka.connection import connection
    from penstock.connectors.kafka.encoding import Encoding
    from penstock.connectors.kafka.lanes import Target
    from penstock.connectors.kafka.writing import ReplayWriter, Writing
    from penstock.spark.kept_files import StoredFiles

    broker.create_topic(f"written-{number}", partitions=PARTITIONS)
    writing = Writing(
        target=Target(cluster=connection(broker.bootstrap, None), topic=f"written-{number}"),
        encoding=Encoding(format="json"),
        files=StoredFiles(root=str(work), folder="results/bench/sink"),
        run=f"bench-{number}",
        topic_id="",
        on_unknown="fail",
    )
    writer = ReplayWriter(writing, WriterContext(job="bench", subtask=0, parallelism=1, epoch=1))
    numbers = pa.array(range(_WRITE_ROWS))
    names = pa.array(["apple"] * _WRITE_ROWS)
    columns = {"auction": numbers, "bidder": numbers, "price": numbers, "channel": names, "ts": numbers}
    batch = pa.record_batch(columns)
    per_checkpoint = 20
    left, checkpoint = records, 0
    while left:
        checkpoint += 1
        taken = 0
        for _ in range(per_checkpoint):
            rows = batch.slice(0, min(left - taken, _WRITE_ROWS))
            if rows.num_rows:
                writer.write(rows)
                taken += rows.num_rows
        writer.commit(writer.prepare(checkpoint)())
        left -= taken
        yield taken
    writer.close()


_RUNS: dict[str, Callable[[Any, int, Path, int], Iterator[int]]] = {"bare": _bare, "source": _source, "sink": _sink}
