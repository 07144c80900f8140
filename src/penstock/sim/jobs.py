"""The job of a world: its parameters, its input, its sources and its sinks.

The input of a job is a function of its parameters. All records of a key are in one split of one source, so that the
records have an order, unless the parameters say that all splits share their keys. Event time is out of order by less
than the watermark's delay, so that no record is ever late, except in jobs that read late records. `shapes` puts the
steps between sources and sinks together; `expected` computes the rows that the job must show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.connector import (
    HELD_MS,
    End,
    Pause,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SplitProgress,
    WriterContext,
)
from penstock.api.steps import Updates
from penstock.core.alignment.times import Alignment
from penstock.core.task.waiting import WaitFor
from penstock.sim.asking import Asks
from penstock.sim.drift import DriftChecker
from penstock.sim.external import ExternalSystem, Transaction, system_of
from penstock.sim.joining import Joining
from penstock.sim.kept_runs import KeptRuns
from penstock.sim.window_kinds import WindowKind

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
    """The steps of a job, and how the steps are joined; `shapes` has a picture of each shape."""

    WINDOW = "window"
    KEYED = "keyed"
    REBALANCED = "rebalanced"
    BROADCAST = "broadcast"
    TWICE = "twice"
    """Two exchanges by key, one behind the other."""
    DIAMOND = "diamond"
    """One source, two branches that become one again."""
    TWO_SINKS = "two-sinks"
    UNION = "union"
    """Several sources, of which some end long before the others."""
    UNION_WINDOW = "union-window"
    TIMERS = "timers"
    """Windows by a function with timers. A step behind the function makes many rows of each result."""
    HASH_HASH = "hash-hash"
    HASH_FORWARD = "hash-forward"
    HASH_BROADCAST = "hash-broadcast"
    REBALANCE_HASH = "rebalance-hash"
    PIPELINES = "pipelines"
    """Two pipelines that nothing joins."""
    SLICES = "slices"
    """No exchange: nothing joins the tasks of one slot to the tasks of another slot."""
    WAITS = "waits"
    """Keyed rows wait for a broadcast stream."""
    MIXED = "mixed"
    """Two pipelines that nothing joins, one of them without an exchange."""
    GLOBAL = "global"
    """All records go to a single subtask."""
    FEWER = "fewer"
    """Steps with fewer subtasks than the job has slots."""
    CHOSEN = "chosen"
    """A function chooses the subtask of each record."""
    LIMIT = "limit"
    """The first records of the only split."""
    DISTINCT = "distinct"
    """The first record of each key."""
    SPLIT = "split"
    """A split in the middle of a chain."""
    SIDES = "sides"
    """A keyed function with a side output."""
    LATE = "late"
    """Windows of any kind whose late records are read."""
    ASKS = "asks"
    """An async function."""
    ASKS_WINDOW = "asks-window"
    """An async function before windows: a result that leaves behind a later watermark is late."""

    JOIN = "join"
    """A join of two sources by key and time."""
    CHANGES = "changes"
    """Two joins without a limit of time, in a row."""
    RUNNING = "running"
    """A running aggregate over a running aggregate."""
    CHOOSES = "chooses"
    """A step that chooses records: duplicates within a time, or the first records of each key."""

    TABLE = "table"
    """A join of a source with a table."""
    MEETS = "meets"
    """A function over two keyed sources, with state and timers that both sources share."""
    SORTED = "sorted"
    """A sort by event time."""

    @property
    def has_windows(self) -> bool:
        """Whether records are aggregated."""
        return self in (Shape.WINDOW, Shape.UNION_WINDOW, Shape.TIMERS, Shape.ASKS_WINDOW)

    @property
    def has_time(self) -> bool:
        """Whether every source is followed by a watermark, if the sources are aligned, and no record waits for the
        watermark of another source."""
        return self.has_windows or self is Shape.LATE or self in APART

    @property
    def most_sources(self) -> int:
        """How many sources a job of this shape can have. Each source but the first needs an entry in
        `Workload.other_rows`."""
        if self in (Shape.UNION, Shape.UNION_WINDOW):
            return 3
        return 2 if self in (*PAIRS, *PIPELINES, Shape.WAITS, Shape.JOIN, Shape.CHANGES, Shape.MEETS) else 1


class Choice(Enum):
    """Which records the step of the shape `CHOOSES` chooses."""

    FIRST = "first"
    """The first of the records of a key that are close to each other."""
    LAST = "last"
    """The last of these records, as a changelog."""
    TOP = "top"
    """The records of each key with the greatest values."""
    TOP_OF_COUNTS = "top-of-counts"
    """The keys of each bucket with the most records: first records of a changelog."""


PLACED = (Shape.GLOBAL, Shape.FEWER, Shape.CHOSEN, Shape.LIMIT, Shape.DISTINCT)
"""The shapes whose steps have a number of subtasks of their own, records that go where a function says, or the first
records only."""

ASIDE = (Shape.SPLIT, Shape.SIDES, Shape.LATE)
"""The shapes with side outputs."""

PAIRS = (Shape.HASH_HASH, Shape.HASH_FORWARD, Shape.HASH_BROADCAST, Shape.REBALANCE_HASH)
"""The shapes with two sources that one step reads, each source distributed in its own way."""

PIPELINES = (Shape.PIPELINES, Shape.MIXED)
"""The shapes with two sources and two sinks."""

APART = (Shape.PIPELINES, Shape.SLICES, Shape.MIXED)
"""The shapes with several regions, which can be restarted one by one."""


@dataclass(frozen=True, kw_only=True)
class OnDriver:
    """Which parts of a job run on the driver, and how they behave."""

    sources: tuple[int, ...] = ()
    """The sources that find their splits while the job runs."""
    known: int = 0
    """How many splits of each such source are known from the beginning."""
    at_once: int = 1
    """How many splits one look finds, at most."""
    look_ms: int = 10
    """The time between two looks for splits."""
    unread: int | None = None
    """Splits are looked for only while a subtask has fewer unread splits than this, on average; None: always."""
    spoils_after: int | None = None
    """After the enumerator was told of so many checkpoints, it returns a position that no checkpoint can hold, so that
    its snapshot raises. That lasts for a while, and happens once in a world. None: never."""
    sinks: tuple[str, ...] = ()
    """The sinks that commit the transactions of all subtasks together."""
    work_us: tuple[int, int] = (50, 2_000)
    """The time of half a call of an enumerator or a committer, from and to."""
    cleans_by_attempt: bool = False
    """Whether a committer knows the transactions of failed attempts by their attempt; otherwise by their barrier."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The parameters of a job."""

    shape: Shape
    splits: int
    """The number of splits of each source."""
    rows: int
    """The number of rows of each split of the first source."""
    keys: int
    """The number of keys of each split."""
    salt: int
    """Makes the input differ from world to world."""
    batch_rows: int
    burst: int
    """A reader serves this many batches between two pauses."""
    pause_ms: int
    window_us: int
    disorder_us: int
    """A record is at most this much out of order within its split."""
    other_rows: tuple[int, ...] = ()
    """For each further source: the number of rows of each split."""
    shares_keys: bool = False
    """Whether all splits have the same keys: records of one key then have no order."""
    slow_us: int = 0
    """How long the slow step of the job takes for a batch."""
    behind_rows: int = 0
    """A reader is catching up while it has not come to this row in one of its splits. An enumerator is catching up
    until it has found this many splits, or all splits."""
    wait: WaitFor | None = None
    """What the rows of the first source wait for, in the shape `WAITS`."""
    asks: Asks = field(default_factory=Asks)
    """How the async function is called, in the shapes with an async function."""
    on_driver: OnDriver | None = None
    shares_files: bool = False
    """Whether keyed state is saved in files that later checkpoints refer to again."""
    windows: WindowKind = WindowKind.TUMBLING
    """The windows of the shapes `WINDOW`, `UNION_WINDOW` and `LATE`."""
    keyed: bool = True
    """Whether these windows are by key, or over all records."""
    runs: KeptRuns = KeptRuns.WHOLE
    """How the rows of windows, and the rows that are sorted, are kept."""
    lateness_us: int = 0
    """The allowed lateness of these windows, and of the windows of the shape `LATE`."""
    updates: Updates | None = None
    """When the windows of the shapes `WINDOW` and `UNION_WINDOW` show results that may still change; None: never."""
    joining: Joining = field(default_factory=Joining)
    """How the two sources are joined, in the shapes `JOIN` and `CHANGES`."""
    refreshes: bool = False
    """Whether the table of the shape `TABLE` changes all the time, and is read anew every now and then."""
    choice: Choice = Choice.FIRST
    """Which records the job chooses, in the shape `CHOOSES`."""
    induces: bool = False
    """Whether marks in the data say where checkpoints begin."""
    align: Alignment | None = None
    """How far a source may read ahead of the other sources, in the shapes with event time; None: as far as it likes."""

    @property
    def delay_us(self) -> int:
        """The delay of the watermarks. With the allowed lateness, no record is late, unless late records are read."""
        return self.greatest_delay_us - self.lateness_us if self.shape is not Shape.LATE else 0

    @property
    def holds_back(self) -> bool:
        """Whether rows that were read may not be shown when the job is stopped without drain."""
        held = (Shape.WAITS, Shape.LATE, Shape.ASKS, Shape.JOIN, Shape.MEETS, Shape.SORTED)
        return self.shape.has_windows or self.shape in held

    @property
    def sources(self) -> int:
        """How many sources the job has."""
        return 1 + len(self.other_rows)

    @property
    def greatest_delay_us(self) -> int:
        """No record comes later than this behind the greatest time of its split: longer than the disorder, by a
        batch."""
        return self.disorder_us + (self.batch_rows + 1) * TICK_US

    @property
    def limit(self) -> int:
        """How many records the shape `LIMIT` hands on at most."""
        return max(1, self.rows // 2)

    @property
    def has_rich_windows(self) -> bool:
        """Whether windows have many kinds of aggregates, and not only a count and a maximum."""
        # A bit that decides nothing else.
        is_plain = self.updates is None and self.windows.is_timed
        return self.keyed and is_plain and (self.salt >> 8) % 2 == 1

    @property
    def has_applied_windows(self) -> bool:
        """Whether a function over all records of a window counts them and finds the greatest value."""
        # Bits that decide nothing else.
        return self.updates is None and not self.has_rich_windows and (self.salt >> 12) % 2 == 1

    def splits_of(self, source: int) -> range:
        """The numbers of a source's splits."""
        return range(source * self.splits, (source + 1) * self.splits)

    def finds_splits(self, source: int) -> bool:
        """Whether a source finds its splits while the job runs."""
        return self.on_driver is not None and source in self.on_driver.sources


# --- the input -----------------------------------------------------------------------


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
            return End()
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
        """In half of the worlds. In the other worlds the reader is held as a whole."""
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


# --- the output -----------------------------------------------------------------------


class SimSink(Sink):
    """Writes into the external system of a world, under the name `target`."""

    def __init__(self, world: int, target: str = "sink") -> None:
        self.world = world
        self.target = target

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer whose transactions carry the epoch of the context."""
        return SimWriter(system_of(self.world), context, self.target)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Make transactions visible."""
        system_of(self.world).commit(committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Drop the transactions that earlier attempts of the subtask prepared, except the transactions in `keep`."""
        system_of(self.world).drop(self.target, subtask=context.subtask, before_epoch=context.epoch, keep=keep)

    def end(self, job: str) -> None:
        """Drop all transactions that the job never committed."""
        system_of(self.world).drop_all(self.target, job=job)


class SimWriter(SinkWriter):
    """Collects batches. A transaction has the batches between two barriers. Only `before_barrier` puts batches into the
    open transaction. If `before_barrier` was not called, the batches come into a later transaction, and are lost if the
    checkpoint of the later transaction never completes."""

    def __init__(self, system: ExternalSystem, context: WriterContext, target: str = "sink") -> None:
        self.system = system
        self.context = context
        self.target = target
        self.held_back: list[pa.RecordBatch] = []
        self.open_batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take one batch."""
        self.system.touched("write")
        self.held_back.append(batch)

    def before_barrier(self) -> None:
        """Put the batches that have come into the open transaction."""
        self.open_batches += self.held_back
        self.held_back = []

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. If it has no batches, nothing is prepared."""
        batches, self.open_batches = tuple(self.open_batches), []

        def work() -> list[bytes]:
            if not batches:
                return []
            return [self.prepare_now(checkpoint, batches).token]

        return work

    def prepare_now(self, checkpoint: int, batches: tuple[pa.RecordBatch, ...]) -> Transaction:
        """Make a closed transaction durable."""
        context = self.context
        return self.system.prepare(
            self.target,
            subtask=context.subtask,
            epoch=context.epoch,
            checkpoint=checkpoint,
            batches=batches,
            job=context.job,
        )


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """A batch as plain rows, times as microseconds."""
    columns = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in batch.columns
    ]
    return list(zip(*columns, strict=True))
