"""The nodes of a world's plan: steps that jobs of many shapes have, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.api.connector import Sink
from penstock.api.steps import (
    AsyncMapStep,
    MapBatchesStep,
    MapStep,
    ReadStep,
    Step,
    UnionStep,
    WatermarkStep,
    WriteStep,
)
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning
from penstock.sim.asking import Service
from penstock.sim.jobs import SCHEMA, Workload
from penstock.sim.on_driver import make_source
from penstock.sim.row_functions import Negate, Slow, same

SINK = "sink"

FORWARD, HASH = Partitioning.FORWARD, Partitioning.HASH


class Nodes:
    """Collects the nodes of a plan."""

    def __init__(self, workload: Workload, world: int, parallelism: int, sink: Callable[[str], Sink]) -> None:
        self._workload = workload
        self._world = world
        self._parallelism = parallelism
        self._sink = sink
        self._nodes: list[Node] = []

    def _sources(self) -> list[int]:
        return [self._source(number) for number in range(self._workload.sources)]

    def _source(self, number: int = 0) -> int:
        source = make_source(self._world, self._workload, number)
        read = ReadStep(source=source, splits=tuple(source.splits(self._parallelism)))
        return self._add(f"source{suffix(number)}", read)

    def _watermark(self, before: int, number: int = 0) -> int:
        workload = self._workload
        step = WatermarkStep(column="ts", delay_us=workload.delay_us, idle_after_ms=None, align=workload.align)
        return self._add(f"watermark{suffix(number)}", step, (before, FORWARD))

    def _timed_if_aligned(self, before: int, number: int = 0) -> int:
        """A watermark that nothing needs except the other sources of the group."""
        return before if self._workload.align is None else self._watermark(before, number)

    def _map(self, name: str, function: Callable[[Any], Any], before: int, partitioning: Partitioning = FORWARD) -> int:
        return self._add(name, MapBatchesStep(function=function, kind="arrow", schema=SCHEMA), (before, partitioning))

    def _same(self, before: int, partitioning: Partitioning, key: str = "key", side: str | None = None) -> int:
        step = MapBatchesStep(function=same, kind="arrow", schema=SCHEMA)
        return self._slowed(self._add("same", step, (before, partitioning), keys=(key,), side=side), SCHEMA)

    def _joined(self, before: Input) -> int:
        step = MapBatchesStep(function=same, kind="arrow", schema=SCHEMA)
        return self._slowed(self._add("same", step, before), SCHEMA)

    def _negate(self, before: int, partitioning: Partitioning, side: str | None = None) -> int:
        row_us = self._workload.slow_us // self._workload.batch_rows
        step = MapStep(function=Negate(self._world, row_us), flat=False, schema=SCHEMA)
        return self._add("negate", step, (before, partitioning), side=side)

    def _asks(self, before: int, *, factor: int) -> int:
        asks = self._workload.asks
        step = AsyncMapStep(
            function=Service(asks, factor),
            kind="arrow" if asks.batch else "rows",
            policy=asks.policy,
            skips_failed=False,
            input_schema=SCHEMA,
            keys=("key",) if asks.partitioning is HASH else (),
            schema=SCHEMA,
        )
        return self._add("asks", step, (before, asks.partitioning))

    def _slowed(self, before: int, schema: pa.Schema) -> int:
        if not self._workload.slow_us:
            return before
        step = MapBatchesStep(function=Slow(self._world, self._workload.slow_us), kind="arrow", schema=schema)
        return self._add("slow", step, (before, FORWARD))

    def _unite(self, *before: tuple[int, Partitioning]) -> int:
        return self._add("union", UnionStep(schema=SCHEMA), *before)

    def _write(self, before: int, name: str = SINK) -> None:
        self._add(name, WriteStep(sink=self._sink(name), schema=SCHEMA), (before, FORWARD))

    def _add(
        self,
        name: str,
        step: Step,
        *before: tuple[int, Partitioning] | Input,
        keys: tuple[str, ...] = ("key",),
        side: str | None = None,
    ) -> int:
        number = len(self._nodes)
        inputs = tuple(
            each
            if isinstance(each, Input)
            else Input(node=each[0], partitioning=each[1], keys=keys if each[1] is HASH else (), side=side)
            for each in before
        )
        self._nodes.append(
            Node(
                number=number,
                operator=OperatorId(name),
                name=name,
                step=step,
                inputs=inputs,
                is_source=not before,
                begins_vertex=isinstance(step, AsyncMapStep),
            )
        )
        return number


def suffix(number: int) -> str:
    """What is behind the names of the steps of a further source."""
    return f"-{number + 1}" if number else ""
