"""The two ends of the latency measurement: a source of records with the time at which they were due, and a sink that
reads the clock.

The creation time of a record is the moment at which the record was *due*, not the moment at which the source made it. A
pipeline that stalls delays the records that become due meanwhile, and that delay must show. The sink reads the clock
when a batch arrives. Source and sink run on one machine, and use the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.connector import End, Pause, Polled, Sink, SinkWriter, Source, SourceReader, WriterContext
from penstock.api.steps import MapBatchesStep, ReadStep, WriteStep
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan

SCHEMA = pa.schema([("key", pa.int64()), ("created_us", pa.int64())])
KEYS = 10_000
# Has no common factor with the number of keys, so that all keys occur and successive records have different keys.
KEY_STRIDE = 7_919

_PREPARED = "."
_PAIR = np.dtype([("created_us", "<i8"), ("latency_us", "<i8")])


class _Position(msgspec.Struct, frozen=True, kw_only=True):
    split: int
    splits: int
    next_row: int
    start_ms: int | None
    """When record 0 was due; None before the first poll."""


@dataclass(frozen=True)
class PacedSource(Source):
    """`rate` records a second for `seconds`, evenly spaced by the clock."""

    rate: int
    seconds: float

    @property
    def schema(self) -> pa.Schema:
        """Key and creation time."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        """One split for each subtask. Split s has the records s, s + parallelism, and so on."""
        return [
            msgspec.msgpack.encode(_Position(split=s, splits=parallelism, next_row=0, start_ms=None))
            for s in range(parallelism)
        ]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        return _PacedReader(self, [msgspec.msgpack.decode(split, type=_Position) for split in splits])


class _PacedReader(SourceReader):
    def __init__(self, source: PacedSource, positions: list[_Position]) -> None:
        self._source = source
        self._positions = positions
        self._turn = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        for _ in range(len(self._positions)):
            self._turn = (self._turn + 1) % len(self._positions)
            position = self._positions[self._turn]
            if position.start_ms is None:
                position = msgspec.structs.replace(position, start_ms=now_ms)
                self._positions[self._turn] = position
            batch = self._due(position, max_rows, now_ms)
            if batch is not None:
                return batch
        self._positions = [p for p in self._positions if p.next_row < self._rows(p)]
        return Pause(1) if self._positions else End()

    def snapshot(self) -> list[bytes]:
        return [msgspec.msgpack.encode(p) for p in self._positions if p.next_row < self._rows(p)]

    def _rows(self, position: _Position) -> int:
        total = int(self._source.rate * self._source.seconds)
        return (total - position.split + position.splits - 1) // position.splits

    def _due(self, position: _Position, max_rows: int, now_ms: int) -> pa.RecordBatch | None:
        """The next records of a split that are due, at most `max_rows`; the position moves behind these records. None
        if no record is due."""
        if position.start_ms is None:
            return None
        passed = (now_ms - position.start_ms) * self._source.rate // 1_000 + 1
        due = min((passed - position.split + position.splits - 1) // position.splits, self._rows(position))
        count = min(due - position.next_row, max_rows)
        if count <= 0:
            return None
        numbers = np.arange(position.next_row, position.next_row + count, dtype=np.int64)
        numbers = numbers * position.splits + position.split
        created = position.start_ms * 1_000 + numbers * 1_000_000 // self._source.rate
        self._positions[self._turn] = msgspec.structs.replace(position, next_row=position.next_row + count)
        return pa.record_batch([pa.array(numbers * KEY_STRIDE % KEYS), pa.array(created)], schema=SCHEMA)


@dataclass(frozen=True)
class LatencySink(Sink):
    """Writes the creation time and the latency of every record to files in `directory`."""

    directory: str

    def start(self, job: str) -> None:  # noqa: ARG002
        """Make the directory."""
        Path(self.directory).mkdir(parents=True, exist_ok=True)

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer that keeps the times in memory until the next checkpoint."""
        return _LatencyWriter(Path(self.directory), context)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Give the prepared files their final names. A prepared file that does not exist was committed before."""
        for committable in committables:
            name = committable.decode()
            with suppress(FileNotFoundError):
                Path(self.directory, _PREPARED + name).rename(Path(self.directory, name))


def pairs_of(created_us: np.ndarray, now_us: int) -> np.ndarray:
    """The creation times and the latencies of records that have all arrived at `now_us`."""
    pairs = np.empty(len(created_us), dtype=_PAIR)
    pairs["created_us"] = created_us
    pairs["latency_us"] = now_us - pairs["created_us"]
    return pairs


class _LatencyWriter(SinkWriter):
    def __init__(self, directory: Path, context: WriterContext) -> None:
        self._directory = directory
        self._context = context
        self._pairs: list[np.ndarray] = []

    def write(self, batch: pa.RecordBatch) -> None:
        now_us = time.time_ns() // 1_000
        self._pairs.append(pairs_of(batch.column("created_us").to_numpy(zero_copy_only=False), now_us))

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        pairs, self._pairs = self._pairs, []
        name = f"{self._context.subtask}-{self._context.epoch}-{checkpoint}"

        def work() -> list[bytes]:
            if not pairs:
                return []
            Path(self._directory, _PREPARED + name).write_bytes(np.concatenate(pairs).tobytes())
            return [name.encode()]

        return work


def latency_plan(source: PacedSource, sink: LatencySink, *, parallelism: int) -> Plan:
    """The plan: source, exchange by key, a function that changes nothing, sink."""
    read = Node(
        number=0, operator=OperatorId("paced"), name="paced", step=ReadStep(source=source), inputs=(), is_source=True
    )
    same = Node(
        number=1,
        operator=OperatorId("same"),
        name="same",
        step=MapBatchesStep(function=_same, kind="arrow", schema=SCHEMA),
        inputs=(Input(node=0, partitioning=Partitioning.HASH, keys=("key",)),),
    )
    write = Node(
        number=2,
        operator=OperatorId("latency"),
        name="latency",
        step=WriteStep(sink=sink, schema=SCHEMA),
        inputs=(Input(node=1),),
    )
    return build_plan((read, same, write), parallelism=parallelism, max_parallelism=None)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long records took from the moment at which they were due to the sink."""

    records: int
    p50_ms: float
    p99_ms: float


def read_latency(directory: Path, *, warmup_s: float) -> Latency | None:
    """The latency of all records, without the records of the first `warmup_s`; None if no record is left."""
    files = [path for path in sorted(directory.iterdir()) if not path.name.startswith(_PREPARED)]
    parts = [np.frombuffer(path.read_bytes(), dtype=_PAIR) for path in files]
    if not parts:
        return None
    return latency_of(np.concatenate(parts), warmup_s=warmup_s)


def latency_of(pairs: np.ndarray, *, warmup_s: float) -> Latency | None:
    """The latency of records in memory (`pairs_of`), without the records of the first `warmup_s`; None if no record is
    left."""
    kept = pairs["latency_us"][pairs["created_us"] >= pairs["created_us"].min() + int(warmup_s * 1_000_000)]
    if not len(kept):
        return None
    p50, p99 = np.percentile(kept, [50, 99]) / 1_000
    return Latency(records=len(kept), p50_ms=float(p50), p99_ms=float(p99))
