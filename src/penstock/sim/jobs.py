"""The job of a world: its parameters.

`inputs` has the records and the sources of the job, `outputs` its sinks. `shapes` puts the steps between sources and
sinks together; `expected` computes the rows that the job must show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from penstock.api.steps import Updates
from penstock.core.alignment.times import Alignment
from penstock.core.task.waiting import WaitFor
from penstock.sim.asking import Asks
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
    LIMIT_BESIDE = "limit-beside"
    """The first records of the only split, and beside them all records."""
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
    MATCHES = "matches"
    """A step that looks for the matches of a pattern."""

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


class Sought(Enum):
    """Which pattern the step of the shape `MATCHES` looks for."""

    RISE = "rise"
    """A record, and the first record behind it that fits it."""
    RUN = "run"
    """Records directly behind each other; no record is in two matches."""
    SILENCE = "silence"
    """A record behind which something does not happen in time."""
    SUMS = "sums"
    """Two records, and any record that fits their sum; one match for each first record."""


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
    endless: bool = False
    """Whether the source of the shape `LIMIT` has no end: only the limit can end the job."""
    choice: Choice = Choice.FIRST
    """Which records the job chooses, in the shape `CHOOSES`."""
    sought: Sought = Sought.RISE
    """Which pattern the job looks for, in the shape `MATCHES`."""
    induces: bool = False
    """Whether marks in the data say where checkpoints begin."""
    replays: bool = False
    """Whether sinks that commit in the slots replay what they kept, as the Kafka sink does."""
    align: Alignment | None = None
    """How far a source may read ahead of the other sources, in the shapes with event time; None: as far as it likes."""

    @property
    def delay_us(self) -> int:
        """The delay of the watermarks. With the allowed lateness, no record is late, unless late records are read."""
        return self.greatest_delay_us - self.lateness_us if self.shape is not Shape.LATE else 0

    @property
    def holds_back(self) -> bool:
        """Whether rows that were read may not be shown when the job is stopped without drain."""
        held = (Shape.WAITS, Shape.LATE, Shape.ASKS, Shape.JOIN, Shape.MEETS, Shape.SORTED, Shape.MATCHES)
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
