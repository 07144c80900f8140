"""The input of a world's job, and how the sources of the job read it.

The input is a function of the job's parameters. All records of a key are in one split of one source, so that the
records have an order, unless the parameters say that all splits share their keys. Event time is out of order by less
than the watermark's delay, so that no record is ever late, except in jobs that read late records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.connector import HELD_MS, End, Pause, Polled, Source, SourceReader, SplitProgress
from penstock.sim.drift import DriftChecker
from penstock.sim.external import ExternalSystem, system_of
from penstock.sim.jobs import SCHEMA, TICK_US, Workload

Row = tuple[Any, ...]
"""A record as a plain row, with times as microseconds."""


def _mix(number: int) -> int:
    """A number that looks random and depends on nothing but its argument."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 31)


def make_inputs(workload: Workload) -> tuple[pa.RecordBatch, ...]:
    """All records, one table per split; the splits of the first source come first."""
    seen: Counter[int] = Counter()
    rows = [each for each in (workload.rows, *workload.other_rows) for _ in range(workload.splits)]
    return tuple(_make_split(workload, split, count, seen) for split, count in enumerate(rows))


def _make_split(workload: Workload, split: int, count: int, seen: Counter[int]) -> pa.RecordBatch:
    splits = workload.splits * workload.sources
    source, place = divmod(split, workload.splits)
    # The watermark does not wait for a split that has not been found. Records of later splits have later times, so that
    # they are not late.
    first = place * count if workload.finds_splits(source) else 0
    keys, seqs, values, times = [], [], [], []
    for row in range(count):
        draw = _mix((workload.salt << 40) ^ (split << 24) ^ row)
        key = draw % workload.keys if workload.shares_keys else split + splits * (draw % workload.keys)
        keys.append(key)
        seqs.append(seen[key])
        seen[key] += 1
        values.append((draw >> 16) % 1_000)
        times.append((first + row) * TICK_US + ((draw >> 32) % (workload.disorder_us + 1)))
    arrays = [pa.array(keys), pa.array(seqs), pa.array(values), pa.array(times, pa.int64()).cast(SCHEMA.field(3).type)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def source_of(workload: Workload, key: int) -> int:
    """Which source has the records of a key, where splits do not share their keys."""
    return key % (workload.splits * workload.sources) // workload.splits


class Position(msgspec.Struct, frozen=True):
    """Where a reader stands in a split."""

    split: int
    row: int


class SimSource(Source):
    """Reads the input tables of one source of a world."""

    def __init__(self, world: int, workload: Workload, number: int = 0) -> None:
        self._world = world
        self._workload = workload
        self._number = number

    @property
    def schema(self) -> pa.Schema:
        """The schema of the input tables."""
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:  # noqa: ARG002
        """One split per table."""
        return [encode_position(Position(split, 0)) for split in self._workload.splits_of(self._number)]

    @property
    def induces_checkpoints(self) -> bool:
        """Whether marks in the data say where checkpoints begin."""
        return self._workload.induces

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader that begins at the positions in `splits`."""
        return SimReader(system_of(self._world), self._workload, decode_positions(splits))


def encode_position(position: Position) -> bytes:
    """The bytes of a split, from a position in the split."""
    return msgspec.msgpack.encode(position)


def decode_positions(splits: Sequence[bytes]) -> list[Position]:
    """The positions that the bytes of splits hold."""
    return [msgspec.msgpack.decode(split, type=Position) for split in splits]


MARKS_AGAIN = 3
"""How many of the last marks a reader that is opened sees again."""


class SimReader(SourceReader):
    """Serves its splits one after another, or one batch of any split at a time; pauses after each burst."""

    def __init__(self, system: ExternalSystem, workload: Workload, positions: list[Position]) -> None:
        self._system = system
        self._inputs = system.inputs
        self._workload = workload
        self._rows = {p.split: p.row for p in positions if p.row < system.inputs[p.split].num_rows}
        self._current: int | None = None
        self._held: Collection[Hashable] = ()
        self._served = 0
        self._resumes_ms = 0
        self._times: dict[int, int] = {}
        """The event time of each split that has begun here, if the sources are aligned."""
        if system.drift is not None:
            system.drift.opened(self, list(self._rows))
        self._next_mark = max(0, system.marks - MARKS_AGAIN)

    def induced_checkpoint(self) -> int | None:
        """The checkpoint of the next mark; None if the reader does not see the next mark yet."""
        mark = self._system.mark(self._next_mark)
        self._next_mark += mark is not None
        return mark

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next records of one split."""
        self._system.touched("read")
        if not self._rows:
            return Pause(HELD_MS) if self._workload.endless else End()
        if now_ms < self._resumes_ms:
            return Pause(self._resumes_ms - now_ms)
        free = [split for split in sorted(self._rows) if split not in self._held]
        if not free:
            return Pause(HELD_MS)
        split = self._choose(free)
        self._current, row = split, self._rows[split]
        table = self._inputs[split]
        batch = table.slice(row, min(max_rows, self._workload.batch_rows))
        row += batch.num_rows
        if row < table.num_rows:
            self._rows[split] = row
        else:
            del self._rows[split]
        if self._system.drift is not None:
            self._tell(self._system.drift, split, batch)
        self._served += 1
        if self._served % self._workload.burst == 0:
            self._resumes_ms = now_ms + _mix(row ^ self._workload.salt) % (2 * self._workload.pause_ms + 1)
        return batch

    @property
    def holds_splits(self) -> bool:
        """Whether splits are held one by one, as in half of the worlds. In the other worlds a reader is held as a
        whole."""
        return bool(self._workload.salt & 1 << 9)

    def hold(self, splits: Collection[Hashable]) -> None:
        """Give no records of these splits until the next call."""
        self._held = splits

    @property
    def catching_up(self) -> bool:
        """Whether the reader has not come to row `Workload.behind_rows` in one of its splits."""
        return any(row < self._workload.behind_rows for row in self._rows.values())

    def snapshot(self) -> list[bytes]:
        """The positions of all splits that have records left."""
        return [encode_position(Position(split, row)) for split, row in sorted(self._rows.items())]

    def progress(self) -> SplitProgress:
        """Every split has an event time of its own."""
        return SplitProgress(current=self._current, open=self._rows.keys(), ready=self._rows.keys())

    def _tell(self, checker: DriftChecker, split: int, batch: pa.RecordBatch) -> None:
        """Tell the checker what was read of a split."""
        left = [time for other, time in self._times.items() if other in self._rows or other == split]
        before_us = self._times.get(split) if self.holds_splits else min(left, default=None)
        after_us = max(row[3] for row in rows_of(batch)) - self._workload.delay_us - 1
        self._times[split] = max(self._times.get(split, after_us), after_us)
        is_left = split in self._rows
        checker.polled(self, before_us, split=split, after_us=self._times[split], is_left=is_left)

    def _choose(self, splits: Sequence[int]) -> int:
        """The split that comes next. In a quarter of the worlds splits come one after another: then the event times of
        the splits differ most."""
        if self._workload.salt % 4 == 0:
            return splits[0]
        return splits[_mix(self._workload.salt ^ self._served) % len(splits)]


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """A batch as plain rows, times as microseconds."""
    columns = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in batch.columns
    ]
    return list(zip(*columns, strict=True))
