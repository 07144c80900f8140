"""A pipeline that can be put under back-pressure: three exchanges by key, and a last step of any speed.

    numbers ═by a═► stage 1 ═by b═► stage 2 ═by c═► slow ─► nowhere

The keys of a record are independent of each other and evenly spread, so that every channel carries the same load and
all slots wait alike.
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
"""The name of the slow step."""
KEYS = 10_007
"""How many values each key column has."""
_STRIDES = (1, 3_571, 7_919)
"""How far each of the three keys moves from one record to the next. No stride has a common factor with `KEYS`, so all
values of a key occur."""

_SLACK_S = 0.02
"""After a gap in its input the slow step catches up on at most this much time."""
_LEAST_SLEEP_S = 0.001
"""A shorter sleep would last longer than asked for, so the slow step collects shorter sleeps."""


FULL_FOR_MS = 1_000
"""How long all queues must have been full before back-pressure counts as full. Slots report their queues twice a
second."""


class _Position(msgspec.Struct, frozen=True):
    split: int
    splits: int
    next_row: int


@dataclass(frozen=True)
class Numbers(Source):
    """Numbered records without end, as fast as they can be read."""

    @property
    def schema(self) -> pa.Schema:
        """The number and three keys."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        """One split for each subtask. Split s has the records s, s + parallelism, and so on."""
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
        """A writer that drops all records."""
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
        """When the time that the rows so far should take has passed."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Wait until the row is due."""
        now = time.perf_counter()
        self._free_at = max(self._free_at, now - _SLACK_S) + self._seconds_per_row
        if self._free_at - now >= _LEAST_SLEEP_S:
            time.sleep(self._free_at - now)
        return row


def pressure_plan(*, parallelism: int, rows_per_second: float | None) -> Plan:
    """The pipeline. All subtasks of the last step together take `rows_per_second`; None: there is no limit."""
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
    """Whether back-pressure has reached the sources: for `FULL_FOR_MS`, every step but the slow step has had a task
    whose output queues are full.

    Batches in an output queue wait for credit, so the input queue of the receiver is full as well. One full task of
    each step is enough: when the two ends of an exchange are not equally fast, the queues of the faster end are empty
    now and then.
    """

    def __init__(self, network: NetworkSettings | None = None) -> None:
        # Half of the limit is enough: a task that has just got credit has less than the limit in its queues.
        self._least_bytes = (network or NetworkSettings()).output_bytes // 2
        self._full_since_ms: int | None = None

    def look(self, view: JobView, now_ms: int) -> bool:
        """Whether back-pressure has reached the sources, with a view of the job at `now_ms`."""
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

    Slots report their counts twice a second. A count belongs to the time of the first view that has it.
    """

    def __init__(self, *, over_ms: int) -> None:
        self._over_ms = over_ms
        self._first: tuple[int, int] | None = None
        self._last_rows = 0

    def look(self, view: JobView, now_ms: int) -> float | None:
        """The rate; None if it is not known yet."""
        if view.rows_in <= self._last_rows:
            return None
        self._last_rows = view.rows_in
        if self._first is None:
            self._first = (now_ms, view.rows_in)
        first_ms, first_rows = self._first
        if now_ms - first_ms < self._over_ms:
            return None
        return (view.rows_in - first_rows) / (now_ms - first_ms) * 1_000
