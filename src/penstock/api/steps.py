"""The steps a program is made of, as plain descriptions. The runtime builds an operator from each step.

Expressions in steps are Polars expressions: SQL text is parsed and checked when the step is made.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.aggregate_kinds.description import Aggregate as Aggregate
from penstock.api.alignment import Alignment
from penstock.api.connector import Sink, Source
from penstock.api.functions import ProcessFunction, TimedFunction
from penstock.api.join_steps import LATE_OF_RIGHT
from penstock.api.join_steps import JoinStep as JoinStep
from penstock.api.join_steps import RegularJoinStep as RegularJoinStep
from penstock.api.join_steps import TableJoinStep as TableJoinStep
from penstock.api.join_steps import VersionJoinStep as VersionJoinStep
from penstock.api.lateness import LateRecords as LateRecords
from penstock.api.pattern_steps import PatternStep as PatternStep
from penstock.api.state import StateKind, Ttl, type_name
from penstock.api.state_declarations import declared_states
from penstock.api.windows import WindowType
from penstock.core.durations import readable
from penstock.core.graph import DeclaredState
from penstock.core.task.requests import RequestPolicy
from penstock.core.task.waiting import WaitFor

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class ReadStep:
    """Records from a source."""

    source: Source
    splits: tuple[bytes, ...] = ()
    """The source's splits at their beginnings, filled in when the job starts."""

    @property
    def is_coordinated(self) -> bool:
        """Whether a part of the step runs on the driver."""
        return self.source.discovers

    @property
    def connector(self) -> str:
        """The form of the splits."""
        return self.source.saved_as


@dataclass(frozen=True, kw_only=True)
class WatermarkStep:
    """Event time is in `column`; records may be late by `delay_us`."""

    column: str
    delay_us: int
    idle_after_ms: int | None
    function: Callable[[pa.RecordBatch], datetime.datetime | int | None] | None = None
    """Says how far event time has come, instead of `delay_us`."""
    align: Alignment | None = None
    """How far the source may read ahead of other sources; None: as far as it likes."""


@dataclass(frozen=True, kw_only=True)
class WhereStep:
    """Only records for which `condition` is true."""

    condition: pl.Expr
    schema: pa.Schema
    has_changes: bool = False
    """Whether the records are changes of rows. Of an update whose one half meets the condition the other half is left
    out, and the half that stays becomes a `delete` or an `insert`."""
    written: str = ""
    """The condition as the user wrote it, for people."""


@dataclass(frozen=True, kw_only=True)
class Explosion:
    """A record is made of each element of an array."""

    column: str
    """The column that is computed as an array, and that has an element of the array in each record."""
    position: str | None = None
    """The column with the number of the element in its array, from 0; None: there is no such column."""
    is_outer: bool = False
    """Whether an empty array, and null, give a record with null. Otherwise they give no record."""


@dataclass(frozen=True, kw_only=True)
class SplitStep:
    """Each record to the side output of the first condition that is true; the other records to the main output."""

    conditions: tuple[tuple[str, pl.Expr], ...]
    """The names of the side outputs, with their conditions, in the order in which the conditions are asked."""
    schema: pa.Schema

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        return {name: self.schema for name, _ in self.conditions}


@dataclass(frozen=True, kw_only=True)
class SelectStep:
    """Columns computed from the record; with `keep` the other columns stay too."""

    columns: tuple[pl.Expr, ...]
    keep: bool
    schema: pa.Schema
    """The schema of the output."""
    explosion: Explosion | None = None
    written: str = ""
    """The columns as the user wrote them, for people."""


@dataclass(frozen=True, kw_only=True)
class MapBatchesStep:
    """A function from a batch to a batch, to None, or to several batches."""

    function: Callable[[Any], Any]
    kind: str
    """What the function takes: `arrow`, `table`, `polars` or `pandas`."""
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class MapStep:
    """A function from a row (a dict) to a row, or with `flat` to an iterable of rows."""

    function: Callable[[dict[str, Any]], Any]
    flat: bool
    schema: pa.Schema


LATE = "late()"
"""The name of the side output with the records that came too late. No name that a user gives is equal to it."""


UPDATES = "updates()"
"""The side by which the updates of a window are read while the program is built. No name that a user gives is equal to
it. A window has either updates or final results."""


@dataclass(frozen=True, kw_only=True)
class FilterStep:
    """Only records for which a function from a row (a dict) returns a true value."""

    function: Callable[[dict[str, Any]], Any]
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class SampleStep:
    """A part of the records, chosen by a hash of some columns."""

    columns: tuple[str, ...]
    fraction: float
    seed: int
    schema: pa.Schema


REQUESTS, WAITING = "penstock.requests", "penstock.waiting"
"""The names of the lists in snapshots with the rows that wait: for an async function, or for a broadcast stream."""


def _rows_of(name: str, schema: pa.Schema) -> dict[str, DeclaredState]:
    """A list of rows that a step keeps."""
    return {name: DeclaredState(kind="rows", type=", ".join(f"{field.name}: {field.type}" for field in schema))}


@dataclass(frozen=True, kw_only=True)
class AsyncMapStep:
    """An async function from a row, or from a batch, to rows."""

    function: Any
    """An `async def`, or an object with an async method; see `penstock.api.async_functions`."""
    kind: str
    """What the function takes: `rows`, `arrow`, `polars` or `pandas`."""
    policy: RequestPolicy
    skips_failed: bool
    """Whether a row for which the function fails is left out. Otherwise the task fails."""
    input_schema: pa.Schema
    keys: tuple[str, ...]
    """The columns by which the rows reach the subtasks; empty if they do not go by key."""
    schema: pa.Schema
    """The schema of the output."""

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """The rows that the function was asked about and has not answered."""
        return _rows_of(REQUESTS, self.input_schema)


@dataclass(frozen=True, kw_only=True)
class ProcessStep:
    """A function with state, over all records of a subtask."""

    function: ProcessFunction
    schema: pa.Schema
    """The schema of the output."""
    declared_sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The schemas of the side outputs that the function emits to."""
    late: LateRecords | None = None
    """None if the input has no event time. Otherwise the function does not get late records if they are read."""

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        return _sides(self.declared_sides, self.late)

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What the function says about its states."""
        return _declared(self.function)


@dataclass(frozen=True, kw_only=True)
class RightInput:
    """The second input of a function over two keyed streams."""

    keys: tuple[str, ...]
    """The key columns, of the same types as the key columns of the first input."""
    late: LateRecords | None
    """None if the input has no event time. Otherwise the function does not get late records if they are read."""
    timeless: int | None = None
    """The number of the input that has no watermark, if the other input has one: then the event time of the step is the
    event time of the other input."""


@dataclass(frozen=True, kw_only=True)
class KeyedProcessStep:
    """A function with state per key. A connected step has a second input, and every subtask gets all records of that
    input. A step with a right input gets the records of each key of both inputs."""

    function: TimedFunction
    keys: tuple[str, ...]
    key_schema: pa.Schema
    """The key columns."""
    schema: pa.Schema
    """The schema of the output."""
    is_connected: bool = False
    broadcast_has_time: bool = False
    """Whether the broadcast input has event time, and so holds back the event time of the step."""
    wait: WaitFor | None = None
    """What the keyed records wait for; None if they do not wait."""
    waiting_schema: pa.Schema | None = None
    """The schema of the keyed records; set if they wait for something."""
    has_event_time: bool = True
    """Whether there is a watermark before the step. Without a watermark, an event-time timer fires only at the end of
    all data."""
    declared_sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    """The schemas of the side outputs that the function emits to."""
    late: LateRecords | None = None
    """None if the input has no event time. Otherwise the function does not get late records if they are read."""
    right: RightInput | None = None
    """The second input, of a function over two keyed streams."""

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        sides = _sides(self.declared_sides, self.late)
        if self.right is not None and self.right.late is not None:
            sides[LATE_OF_RIGHT] = self.right.late.schema
        return sides

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What the function says about its states, and the records that wait."""
        waiting = {} if self.waiting_schema is None else _rows_of(WAITING, self.waiting_schema)
        return {**_declared(self.function), **waiting}

    @property
    def declared_keys(self) -> tuple[str, ...]:
        """The key columns, with their types."""
        return tuple(f"{field.name}: {field.type}" for field in self.key_schema)


@dataclass(frozen=True, kw_only=True)
class UnionStep:
    """The records of several inputs, all with the same columns."""

    schema: pa.Schema
    """The schema of the output. A column may be null if that column may be null in one of the inputs."""


ROW_COUNT = "\0number of records"
"""The name of the aggregate that counts the records of a window, for early results after a number of records."""


@dataclass(frozen=True, kw_only=True)
class Updates:
    """When a window shows results that may still change: at the watermark, and before if one of these is set."""

    every_ms: int | None = None
    """So long after the first change that was not shown, by the clock."""
    every_rows: int | None = None
    """After so many records of a window. Windows that overlap count the records of a key."""
    every_batch: bool = False
    """At every change."""

    @property
    def is_early(self) -> bool:
        """Whether windows are shown before the watermark has passed them."""
        return self.waits or self.every_batch

    @property
    def waits(self) -> bool:
        """Whether changes wait before they are shown."""
        return self.every_ms is not None or self.every_rows is not None


@dataclass(frozen=True, kw_only=True)
class CombineStep:
    """Partial aggregates of each batch, before it is exchanged by key. Holds no state."""

    keys: tuple[str, ...]
    """The key columns. Without key columns all records belong together."""
    time_column: str | None
    """None if the windows have nothing to do with event time."""
    window: WindowType
    aggregates: tuple[Aggregate, ...]
    schema: pa.Schema
    """The schema of the partial aggregates."""
    time_offset_us: int = 0
    """Event time is the time in the column plus this."""
    holds: bool = True
    """Whether partial aggregates may be held back until the watermark moves."""


@dataclass(frozen=True, kw_only=True)
class WindowStep:
    """Aggregates per key and event-time window, merged from the output of `CombineStep`; emitted when the watermark
    passes."""

    keys: tuple[str, ...]
    window: WindowType
    aggregates: tuple[Aggregate, ...]
    schema: pa.Schema
    """The schema of the results: keys, `window_start`, `window_end`, then the aggregates."""
    late: LateRecords | None = None
    """None for windows whose late records cannot be read."""
    combine: CombineStep | None = None
    """Set if late records are read: then the step gets records, and does the work of the combine step itself. A late
    record must come out as the record that it was, and which records are late is known only behind the exchange."""
    lateness_us: int = 0
    """A record still counts in a window if the watermark has passed the end of the window by less than this. It is no
    part of the state: it may change when a program goes on from a snapshot."""
    updates: Updates | None = None
    """Set if the window shows results that may still change, and then their changes: a changelog."""
    partials: pa.Schema | None = None
    """The schema of the partial aggregates, of a window that shows updates, or that counts records."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        window = self.window.described().replace(", offset 0 us", "")
        parts = [f"tumbling {window}" if window[:1].isdigit() else window]
        if self.lateness_us:
            parts.append(f"late by {self.lateness_us} us")
        if self.updates is not None:
            parts.append("with updates")
        return readable(", ".join(parts))

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        return _sides({}, self.late)

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What a window keeps. A window can go on from a snapshot only if this description is the same as in the
        snapshot."""
        kinds = ", ".join(str(aggregate.saved()) for aggregate in self.aggregates)
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        text = f"{self.window.described()}, {kinds}, columns {columns}"
        return {"windows": DeclaredState(kind="window", type=text)}


@dataclass(frozen=True, kw_only=True)
class RunningCombineStep:
    """Partial aggregates of records without windows, before they are exchanged by key. Holds no state."""

    keys: tuple[str, ...]
    """The key columns. Without key columns all records belong together."""
    aggregates: tuple[Aggregate, ...]
    input_schema: pa.Schema
    """The columns of the records, without `row_kind`."""
    schema: pa.Schema
    """The schema of the partial aggregates."""
    retracts: bool
    """Whether the records are changes of rows."""


@dataclass(frozen=True, kw_only=True)
class RunningStep:
    """Aggregates of all records of a key so far, merged from the output of `RunningCombineStep`. The results are a
    changelog."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    input_schema: pa.Schema
    """The columns of the records, without `row_kind`."""
    partial: pa.Schema
    """The schema of the partial aggregates."""
    schema: pa.Schema
    """The schema of the results: keys, the aggregates, `row_kind`."""
    retracts: bool
    """Whether the records are changes of rows."""
    ttl: Ttl | None = None
    """How long the aggregates of a key are kept after its last record; None: for ever."""

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What a running aggregate keeps. It can go on from a snapshot only if this description is the same as in the
        snapshot."""
        kinds = ", ".join(str(aggregate.saved()) for aggregate in self.aggregates)
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.partial)
        return {"aggregates": DeclaredState(kind="running", type=f"{kinds}, columns {columns}")}


@dataclass(frozen=True, kw_only=True)
class TopStep(RunningStep):
    """The first records of each key in an order, of all records so far. The only aggregate is the list of these
    records; the results are a changelog of the records in the list."""

    most: int
    """How many records of a key are shown."""
    rank: str | None = None
    """The column with the place of a record among the records of its key, from 1; None: there is no such column."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        return f"the first {self.most}"


SINCE = "__since"
"""The column with the time at which a group of equal records began, in microseconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class DeduplicateStep:
    """One record of all records of a key that are close to each other in event time: the first that comes, or the last
    in event time. The state is a row for each key, as that of a running aggregate."""

    keys: tuple[str, ...]
    within_us: int
    """A record belongs to the group of an earlier record of its key if it is less than this later."""
    late: LateRecords
    """What tells late records apart. Its schema is that of the records."""
    schema: pa.Schema
    """The schema of the output."""
    keeps_last: bool = False
    """Whether the last record of a group is shown, as a row of a changelog; otherwise the first record is handed on."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        return readable(f"the {'last' if self.keeps_last else 'first'} within {self.within_us} us")

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        return _sides({}, self.late)

    @property
    def partial(self) -> pa.Schema:
        """The columns of the state: the keys, when the group began, and the other columns of the last record."""
        records = self.late.schema
        fields: list[pa.Field[Any]] = [pa.field(key, records.field(key).type) for key in self.keys]
        fields.append(pa.field(SINCE, pa.int64()))
        if self.keeps_last:
            fields += [pa.field(each.name, each.type) for each in records if each.name not in self.keys]
        return pa.schema(fields)

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """None: the rows of the state are no aggregates."""
        return ()

    @property
    def ttl(self) -> Ttl:
        """How long a row of the state is kept, in event time."""
        return Ttl(duration_ms=-(-self.within_us // 1_000))

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What is kept of each key. `within` may change when a program goes on from a snapshot."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.partial)
        return {"groups": DeclaredState(kind="deduplicate", type=f"columns {columns}")}


@dataclass(frozen=True, kw_only=True)
class SortStep:
    """Records in the order of their event time. A record waits until the watermark has come to its time."""

    keys: tuple[str, ...]
    """The key columns. Without key columns a single subtask gets all records."""
    late: LateRecords
    """Where event time is, and the columns of the records."""
    order: tuple[tuple[str, bool], ...]
    """The columns that order records of the same time, each with whether it is descending. It is no part of the state:
    it may change when a program goes on from a snapshot."""
    schema: pa.Schema

    @property
    def sides(self) -> dict[str, pa.Schema]:
        """The schema of each side output."""
        return _sides({}, self.late)

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """The records that wait. A sort can go on from a snapshot only if this description is the same as in the
        snapshot."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return {"records": DeclaredState(kind="sort", type=f"by {self.late.time_column}, columns {columns}")}


WINDOW_ROWS = "\0rows"
"""The column with the records of a window, behind a window whose records a function gets, or whose first records are
shown."""


@dataclass(frozen=True, kw_only=True)
class ListedRowsStep:
    """The records of the lists in the column `WINDOW_ROWS`, each as a record of its own."""

    schema: pa.Schema
    """The schema of the output: the columns beside the lists, the columns of the listed records, the rank."""
    rank: str | None = None
    """The column with the place of a record in its list, from 1; None: there is no such column."""


@dataclass(frozen=True, kw_only=True)
class ApplyStep:
    """A function over all records of a window, behind the window that keeps the records."""

    function: Callable[..., Any]
    kind: str
    """What the function takes: `arrow`, `table`, `polars` or `pandas`."""
    takes_window: bool
    """Whether the function takes the key and the bounds of the window, too."""
    rows: pa.Schema
    """The schema of the records."""
    made: pa.Schema
    """The schema of what the function returns."""
    schema: pa.Schema
    """The schema of the output: the columns that tell windows apart, then what the function returns."""


@dataclass(frozen=True, kw_only=True)
class WriteStep:
    """Records into a sink."""

    sink: Sink
    schema: pa.Schema
    """The schema of the records that are written."""

    @property
    def is_coordinated(self) -> bool:
        """Whether a part of the step runs on the driver."""
        return self.sink.commits_on_driver

    @property
    def connector(self) -> str:
        """The form of the committables."""
        return self.sink.saved_as


def _sides(declared: Mapping[str, pa.Schema], late: LateRecords | None) -> dict[str, pa.Schema]:
    return dict(declared) if late is None else {**declared, LATE: late.schema}


def _declared(function: object) -> dict[str, DeclaredState]:
    specs = (state.spec for state in declared_states(function).values())
    return {
        spec.name: DeclaredState(
            kind=spec.kind.value,
            type=spec.type_text,
            map_key=type_name(spec.map_key) if spec.kind in (StateKind.MAP, StateKind.BROADCAST) else "",
        )
        for spec in specs
    }


Step = (
    ReadStep
    | WatermarkStep
    | WhereStep
    | SplitStep
    | SelectStep
    | MapBatchesStep
    | MapStep
    | FilterStep
    | SampleStep
    | AsyncMapStep
    | ProcessStep
    | KeyedProcessStep
    | UnionStep
    | CombineStep
    | WindowStep
    | ApplyStep
    | DeduplicateStep
    | SortStep
    | ListedRowsStep
    | RunningCombineStep
    | RunningStep
    | JoinStep
    | RegularJoinStep
    | TableJoinStep
    | VersionJoinStep
    | PatternStep
    | WriteStep
)
