"""A windowed aggregate of bids, with a gate that keeps it from ending: its plan and its settings."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa

from penstock.api.connector import Pause, Source, SourceReader
from penstock.api.steps import (
    Aggregate,
    CombineStep,
    MapBatchesStep,
    ReadStep,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.connectors.nexmark import bids
from penstock.connectors.parquet import parquet
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings

EVENTS = 200_000
KEYS = ("auction",)
WINDOW = TumblingWindow(size_us=10_000_000)
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="top", kind="max", column="price"),
)


class GatedReader(SourceReader):
    def __init__(self, reader: SourceReader, gate: Path) -> None:
        self._reader = reader
        self._gate = gate

    def poll(self, max_rows: int, now_ms: int):
        # Reads on slowly while the gate is shut, and never to the end.
        if not self._gate.exists():
            if now_ms % 3:
                return Pause(1)
            if len(self._reader.snapshot()) <= 1:
                return Pause(5)
        return self._reader.poll(max_rows, now_ms)

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()


class GatedSource(Source):
    """Another source, which does not end before a file exists: the test decides when it may."""

    def __init__(self, inner: Source, gate: Path) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def schema(self) -> pa.Schema:
        return self._inner.schema

    def splits(self, parallelism: int) -> list[bytes]:
        return self._inner.splits(parallelism)

    def open(self, splits) -> SourceReader:
        return GatedReader(self._inner.open(splits), self._gate)


def settings(**changes) -> JobSettings:
    chosen = {
        "parallelism": 2,
        "source_batch_rows": 2_000,
        "checkpoint": CheckpointSettings(interval_ms=50),
        "restart": FixedDelay(attempts=5, delay_ms=10),
        "network": NetworkSettings(channel_bytes=200_000, output_bytes=200_000, batch_bytes=50_000),
    }
    return JobSettings(**{**chosen, **changes})


def windowed_plan(out: Path, *, parallelism: int, extra=None, gate: Path | None = None):
    source = bids(events=EVENTS, seed=7)
    if gate is not None:
        source = GatedSource(source, gate)
    schema = source.schema
    partial = partial_schema(schema, keys=KEYS, time_column="ts", aggregates=AGGREGATES)
    result = result_schema(schema, keys=KEYS, time_column="ts", aggregates=AGGREGATES)
    steps = [
        ("bids", ReadStep(source=source, splits=tuple(source.splits(parallelism)))),
        ("watermark", WatermarkStep(column="ts", delay_us=4_000_000, idle_after_ms=None)),
        ("where", WhereStep(condition=pl.col("price") > 100, schema=schema)),
    ]
    if extra is not None:
        steps.append(("extra", MapBatchesStep(function=extra, kind="arrow", schema=schema)))
    steps += [
        (
            "combine",
            CombineStep(keys=KEYS, time_column="ts", window=WINDOW, aggregates=AGGREGATES, schema=partial),
        ),
        ("window", WindowStep(keys=KEYS, window=WINDOW, aggregates=AGGREGATES, schema=result)),
        ("sink", WriteStep(sink=parquet(str(out)), schema=result)),
    ]
    nodes = []
    for number, (name, step) in enumerate(steps):
        if number == 0:
            inputs = ()
        elif name == "window":
            inputs = (Input(node=number - 1, partitioning=Partitioning.HASH, keys=KEYS),)
        else:
            inputs = (Input(node=number - 1),)
        nodes.append(
            Node(
                number=number,
                operator=OperatorId(name),
                name=name,
                step=step,
                inputs=inputs,
                is_source=number == 0,
            )
        )
    return build_plan(tuple(nodes), parallelism=parallelism, max_parallelism=None)
