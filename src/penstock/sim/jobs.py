"""The jobs that run in a world, their source and sink, and what their output must be.

    WINDOW      source → watermark → where → combine ═by key═► window → sink
    KEYED       source → map_batches ═by key═► map_batches → sink          (order per key is checked)
    REBALANCED  source ═in turn═► map → sink

The input of a job is a function of its parameters. Every key lives in one split, so that its records have an order;
event time is out of order by less than the watermark's delay, so that no record is ever late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from penstock.api.connector import End, Pause, Polled, Sink, SinkWriter, Source, SourceReader, WriterContext
from penstock.api.steps import (
    Aggregate,
    CombineStep,
    MapBatchesStep,
    MapStep,
    ReadStep,
    TumblingWindow,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import partial_schema, result_schema
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.sim.external import ExternalSystem, Transaction, system_of

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("value", pa.int64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
    ]
)

TICK_US = 1_000
"""Event time between two records of a split."""

Row = tuple[Any, ...]


class Shape(Enum):
    """Which job it is."""

    WINDOW = "window"
    KEYED = "keyed"
    REBALANCED = "rebalanced"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The parameters of a job."""

    shape: Shape
    splits: int
    rows: int
    """Of each split."""
    keys: int
    """Of each split."""
    salt: int
    """Makes the input differ from world to world."""
    batch_rows: int
    burst: int
    """A reader serves this many batches between two pauses."""
    pause_ms: int
    window_us: int
    disorder_us: int
    """A record is at most this much out of order within its split."""


# --- the input -----------------------------------------------------------------------


def _mix(number: int) -> int:
    """A number that looks random and depends on nothing but its argument."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 31)


def make_inputs(workload: Workload) -> tuple[pa.RecordBatch, ...]:
    """All records, one table per split."""
    return tuple(_make_split(workload, split) for split in range(workload.splits))


def _make_split(workload: Workload, split: int) -> pa.RecordBatch:
    seen: Counter[int] = Counter()
    keys, seqs, values, times = [], [], [], []
    for row in range(workload.rows):
        draw = _mix((workload.salt << 40) ^ (split << 24) ^ row)
        key = split + workload.splits * (draw % workload.keys)
        keys.append(key)
        seqs.append(seen[key])
        seen[key] += 1
        values.append((draw >> 16) % 1_000)
        times.append(row * TICK_US + ((draw >> 32) % (workload.disorder_us + 1)))
    arrays = [pa.array(keys), pa.array(seqs), pa.array(values), pa.array(times, pa.int64()).cast(SCHEMA.field(3).type)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class _Position(msgspec.Struct, frozen=True):
    """Where a reader stands in a split."""

    split: int
    row: int


class SimSource(Source):
    """Reads the input tables of a world."""

    def __init__(self, world: int, workload: Workload) -> None:
        self._world = world
        self._workload = workload

    @property
    def schema(self) -> pa.Schema:
        """The schema of the input tables."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002
        """One split per table."""
        return [msgspec.msgpack.encode(_Position(split, 0)) for split in range(self._workload.splits)]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader from the given positions on."""
        positions = [msgspec.msgpack.decode(split, type=_Position) for split in splits]
        return SimReader(system_of(self._world), self._workload, positions)


class SimReader(SourceReader):
    """Serves the split that is furthest behind, so that event time advances evenly; pauses after each burst."""

    def __init__(self, system: ExternalSystem, workload: Workload, positions: list[_Position]) -> None:
        self._inputs = system.inputs
        self._workload = workload
        self._rows = {p.split: p.row for p in positions if p.row < workload.rows}
        self._served = 0
        self._resumes_ms = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records of one split."""
        if not self._rows:
            return End()
        if now_ms < self._resumes_ms:
            return Pause(self._resumes_ms - now_ms)
        row, split = min((row, split) for split, row in self._rows.items())
        table = self._inputs[split]
        batch = table.slice(row, min(max_rows, self._workload.batch_rows))
        row += batch.num_rows
        if row < table.num_rows:
            self._rows[split] = row
        else:
            del self._rows[split]
        self._served += 1
        if self._served % self._workload.burst == 0:
            self._resumes_ms = now_ms + _mix(row ^ self._workload.salt) % (2 * self._workload.pause_ms + 1)
        return batch

    def snapshot(self) -> list[bytes]:
        """Every split that has records left."""
        return [msgspec.msgpack.encode(_Position(split, row)) for split, row in sorted(self._rows.items())]


# --- the output -----------------------------------------------------------------------


class SimSink(Sink):
    """Writes into the external system of a world."""

    def __init__(self, world: int) -> None:
        self.world = world

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer whose transactions bear the context's attempt."""
        return SimWriter(system_of(self.world), context)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make transactions visible."""
        system_of(self.world).commit(committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:  # noqa: ARG002
        """Drop what earlier attempts left; what is to be kept has been committed."""
        system_of(self.world).drop(subtask=context.subtask, before_epoch=context.epoch)

    def end(self, job: str) -> None:  # noqa: ARG002
        """Drop all that was never committed."""
        system_of(self.world).drop_all()


class SimWriter(SinkWriter):
    """Collects batches; a transaction is whatever came between two checkpoints."""

    def __init__(self, system: ExternalSystem, context: WriterContext) -> None:
        self.system = system
        self.context = context
        self.open_batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch."""
        self.open_batches.append(batch)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction; one without rows is none."""
        batches, self.open_batches = tuple(self.open_batches), []

        def work() -> list[bytes]:
            if not batches:
                return []
            return [self.prepare_now(checkpoint, batches).token]

        return work

    def prepare_now(self, checkpoint: int, batches: tuple[pa.RecordBatch, ...]) -> Transaction:
        """Make a closed transaction durable."""
        context = self.context
        return self.system.prepare(subtask=context.subtask, epoch=context.epoch, checkpoint=checkpoint, batches=batches)


# --- the steps between -----------------------------------------------------------------------


def keep_condition() -> pl.Expr:
    """What the window job filters by."""
    return pl.col("value") % 3 != 0


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What the keyed job does to a batch."""
    values = pl.Series(batch.column("value")) * 2
    return batch.set_column(2, "value", values.to_arrow())


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What the keyed job does behind the exchange."""
    return batch


def negate(row: dict[str, Any]) -> dict[str, Any]:
    """What the rebalanced job does to a row."""
    return {**row, "value": -row["value"]}


AGGREGATES = (Aggregate(name="n", kind="count", column=None), Aggregate(name="top", kind="max", column="value"))


def make_plan(workload: Workload, *, world: int, parallelism: int, sink: Sink) -> Plan:
    """The plan of a job, its splits filled in."""
    source = SimSource(world, workload)
    read = ReadStep(source=source, splits=tuple(source.splits(parallelism)))
    steps: list[tuple[str, Any, Partitioning]] = [("source", read, Partitioning.FORWARD)]
    match workload.shape:
        case Shape.WINDOW:
            steps += _window_steps(workload, sink)
        case Shape.KEYED:
            twice = MapBatchesStep(function=double, kind="arrow", schema=SCHEMA)
            steps.append(("double", twice, Partitioning.FORWARD))
            steps.append(("same", MapBatchesStep(function=same, kind="arrow", schema=SCHEMA), Partitioning.HASH))
            steps.append(("sink", WriteStep(sink=sink, schema=SCHEMA), Partitioning.FORWARD))
        case Shape.REBALANCED:
            steps.append(("negate", MapStep(function=negate, flat=False, schema=SCHEMA), Partitioning.REBALANCE))
            steps.append(("sink", WriteStep(sink=sink, schema=SCHEMA), Partitioning.FORWARD))
    nodes = tuple(_node(i, name, step, partitioning) for i, (name, step, partitioning) in enumerate(steps))
    return build_plan(nodes, parallelism=parallelism, max_parallelism=None)


def _window_steps(workload: Workload, sink: Sink) -> list[tuple[str, Any, Partitioning]]:
    window = TumblingWindow(size_us=workload.window_us)
    keys = ("key",)
    partial = partial_schema(SCHEMA, keys=keys, time_column="ts", aggregates=AGGREGATES)
    result = result_schema(SCHEMA, keys=keys, time_column="ts", aggregates=AGGREGATES)
    # A reader's splits differ by one batch at most, and each is out of order by its own disorder.
    delay_us = workload.disorder_us + (workload.batch_rows + 1) * TICK_US
    forward, by_key = Partitioning.FORWARD, Partitioning.HASH
    combine = CombineStep(keys=keys, time_column="ts", window=window, aggregates=AGGREGATES, schema=partial)
    return [
        ("watermark", WatermarkStep(column="ts", delay_us=delay_us, idle_after_ms=None), forward),
        ("where", WhereStep(condition=keep_condition(), schema=SCHEMA), forward),
        ("combine", combine, forward),
        ("window", WindowStep(keys=keys, window=window, aggregates=AGGREGATES, schema=result), by_key),
        ("sink", WriteStep(sink=sink, schema=result), forward),
    ]


def _node(number: int, name: str, step: Any, partitioning: Partitioning) -> Node:
    keys = ("key",) if partitioning is Partitioning.HASH else ()
    inputs = (Input(node=number - 1, partitioning=partitioning, keys=keys),) if number else ()
    return Node(number=number, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=number == 0)


# --- what must come out -----------------------------------------------------------------------


def expected_rows(workload: Workload, inputs: Iterable[pa.RecordBatch]) -> Counter[Row]:
    """The output of the job, computed without it."""
    records = [row for table in inputs for row in rows_of(table)]
    match workload.shape:
        case Shape.WINDOW:
            return _expected_windows(records, workload.window_us)
        case Shape.KEYED:
            return Counter((key, seq, value * 2, ts) for key, seq, value, ts in records)
        case Shape.REBALANCED:
            return Counter((key, seq, -value, ts) for key, seq, value, ts in records)


def _expected_windows(records: Iterable[Row], window_us: int) -> Counter[Row]:
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for key, _, value, ts in records:
        if value % 3 != 0:
            place = (key, ts // window_us * window_us)
            count, top = found.get(place, (0, value))
            found[place] = (count + 1, max(top, value))
    return Counter((key, start, start + window_us, n, top) for (key, start), (n, top) in found.items())


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """A batch as plain rows, times as microseconds."""
    columns = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in batch.columns
    ]
    return list(zip(*columns, strict=True))
