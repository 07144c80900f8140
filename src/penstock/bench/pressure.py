"""A pipeline that can be put under back-pressure: three exchanges by key, and an end that is as slow as one likes.

    numbers ═by a═► stage 1 ═by b═► stage 2 ═by c═► slow ─► nowhere

The keys of a record are independent of each other and evenly spread, so that every channel carries the same load and
none of the slots is the only one that waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.connector import Polled, Sink, SinkWriter, Source, SourceReader, WriterContext
from penstock.api.steps import MapBatchesStep, MapStep, ReadStep, WriteStep
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.runtime.views import JobView
from penstock.settings import NetworkSettings

SCHEMA = pa.schema([("n", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
SLOW = "slow"
"""The step at the end."""
KEYS = 10_007
"""Values of each key column."""
_STRIDES = (1, 3_571, 7_919)
"""Neighbouring records differ in all three keys, each in its own order; none has a common factor with `KEYS`."""

_SLACK_S = 0.02
"""A gap in the input of the slow end makes up for no more than this of later rows."""
_LEAST_SLEEP_S = 0.001
"""Shorter sleeps last longer than they are asked to."""


FULL_FOR_MS = 1_000
"""Pressure must have been seen for so long: slots tell of their queues twice a second."""


class _Position(msgspec.Struct, frozen=True):
    split: int
    splits: int
    next_row: int


@dataclass(frozen=True)
class Numbers(Source):
    """Numbered records without end, as fast as they are read."""

    @property
    def schema(self) -> pa.Schema:
        """The number and three keys."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        """One for each subtask; split s has the records s, s + parallelism, and so on."""
        return [msgspec.msgpack.encode(_Position(s, parallelism, 0)) for s in range(parallelism)]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        return _NumbersReader([msgspec.msgpack.decode(split, type=_Position) for split in splits])


class _NumbersReader(SourceReader):
    def __init__(self, positions: list[_Position]) -> None:
        self._positions = positions

    def poll(self, max_rows: int, now_ms: int) -> Polled:  # noqa: ARG002
        position = self._positions.pop(0)
        rows = np.arange(position.next_row, position.next_row + max_rows, dtype=np.int64)
        self._positions.append(_Position(position.split, position.splits, position.next_row + max_rows))
        numbers = rows * position.splits + position.split
        keys = [pa.array(numbers * stride % KEYS) for stride in _STRIDES]
        return pa.record_batch([pa.array(numbers), *keys], schema=SCHEMA)

    def snapshot(self) -> list[bytes]:
        return [msgspec.msgpack.encode(position) for position in self._positions]


class DroppingSink(Sink):
    """Takes everything and keeps nothing."""

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002
        """A writer that forgets."""
        return _DroppingWriter()

    def commit(self, committables: Sequence[bytes]) -> None:
        """There is never anything to commit."""


class _DroppingWriter(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002
        return list


class Throttle:
    """A row function that changes nothing and lets at most `rate` rows a second through, in each process."""

    def __init__(self, rate: float) -> None:
        self._seconds_per_row = 1 / rate
        self._free_at = 0.0
        """When the rows so far are paid for."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Wait until the row is due."""
        now = time.perf_counter()
        self._free_at = max(self._free_at, now - _SLACK_S) + self._seconds_per_row
        if self._free_at - now >= _LEAST_SLEEP_S:
            time.sleep(self._free_at - now)
        return row


def pressure_plan(*, parallelism: int, rows_per_second: float | None) -> Plan:
    """The pipeline; its end takes `rows_per_second` in all subtasks together, None for as many as come."""
    nodes = [
        _node(0, "numbers", ReadStep(source=Numbers())),
        _node(1, "stage-1", _same(), key="a"),
        _node(2, "stage-2", _same(), key="b"),
    ]
    if rows_per_second is None:
        nodes.append(_node(3, "end", _same(), key="c"))
    else:
        slow = MapStep(function=Throttle(rows_per_second / parallelism), flat=False, schema=SCHEMA)
        nodes.append(_node(3, SLOW, slow, key="c"))
    nodes.append(_node(4, "nowhere", WriteStep(sink=DroppingSink(), schema=SCHEMA)))
    return build_plan(tuple(nodes), parallelism=parallelism, max_parallelism=None)


def _node(number: int, name: str, step: Any, *, key: str | None = None) -> Node:
    partitioning = Partitioning.FORWARD if key is None else Partitioning.HASH
    keys = () if key is None else (key,)
    inputs = (Input(node=number - 1, partitioning=partitioning, keys=keys),) if number else ()
    return Node(number=number, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=number == 0)


def _same() -> MapBatchesStep:
    return MapBatchesStep(function=_unchanged, kind="arrow", schema=SCHEMA)


def _unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


# --- looking at it ---------------------------------------------------------------------------------------------------


class Pressure:
    """Whether back-pressure has reached the sources: of every step that sends, some task has its queues full, for a
    while.

    What waits to be sent waits for credit, so the queue of whoever reads from it is full as well. Not every task need
    be full: when the two ends of an exchange are not equally fast, the faster one runs dry now and then.
    """

    def __init__(self, network: NetworkSettings | None = None) -> None:
        # A task that has just been given credit has less than the limit waiting for a moment.
        self._least_bytes = (network or NetworkSettings()).output_bytes // 2
        self._full_since_ms: int | None = None

    def look(self, view: JobView, now_ms: int) -> bool:
        """Whether the pressure is full at `now_ms`."""
        if not self._is_full(view):
            self._full_since_ms = None
            return False
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        return now_ms - self._full_since_ms >= FULL_FOR_MS

    def _is_full(self, view: JobView) -> bool:
        if view.state is not JobState.RUNNING:
            return False
        fullest: dict[str, float] = {}
        for task, metrics in view.tasks.items():
            step = task.partition("[")[0]
            fullest[step] = max(fullest.get(step, 0), metrics["queued_bytes"])
        fullest.pop(SLOW, None)
        return bool(fullest) and all(queued >= self._least_bytes for queued in fullest.values())


class SourceRate:
    """Records per second that the sources read, over at least `over_ms`.

    Counts come in twice a second; they are taken with the time at which they were first seen.
    """

    def __init__(self, *, over_ms: int) -> None:
        self._over_ms = over_ms
        self._first: tuple[int, int] | None = None
        self._last_rows = 0

    def look(self, view: JobView, now_ms: int) -> float | None:
        """The rate; None if it cannot be told yet."""
        if view.rows_in <= self._last_rows:
            return None
        self._last_rows = view.rows_in
        if self._first is None:
            self._first = (now_ms, view.rows_in)
        first_ms, first_rows = self._first
        if now_ms - first_ms < self._over_ms:
            return None
        return (view.rows_in - first_rows) / (now_ms - first_ms) * 1_000
