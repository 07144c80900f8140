"""How the jobs of a world are put together, from source to sink.

    WINDOW          source → watermark → where → combine ═key═► window → sink
    KEYED           source → double ═key═► same → sink
    REBALANCED      source ═in turn═► negate, row by row → sink
    BROADCAST       source ═to all═► same → sink
    TWICE           source ═key═► bucket ═value═► same → sink
    DIAMOND         source ─┬─► double ──────────┬─► union ═key═► same → sink
                            └─► where → negate ──┘
    TWO_SINKS       source → double ─┬─► sink
                                     └═key═► same → second
    UNION           source, source-2, source-3 ─► union → double ═key═► same → sink
    UNION_WINDOW    source → watermark, source-2 → watermark-2, … ─► union → where → combine ═key═► window → sink
    TIMERS          source → watermark → where ═key═► timers → copies → where-2 → sink
    HASH_HASH …     source ═one way═►┬─ union → same → sink
                    source-2 ═other═►┘
    WAITS           source ═key═► waits → sink,  source-2 → watermark ═to all═► waits
    PIPELINES       source → double ═key═► same → sink,  source-2 → double-2 ═key═► same-2 → second
    SLICES          source → double ─┬─► sink
                                     └─► same → second
    MIXED           source → double ═key═► same → sink,  source-2 → double-2 → second
    GLOBAL          source → double ═all to one═► same → sink
    FEWER           source ═in turn═► double, in 2 subtasks at most ═key═► same, in 3 subtasks at most → sink
    CHOSEN          source → double ═by a function═► placed → sink
    LIMIT           source → limit-each ═all to one═► limit → sink
    DISTINCT        source ═key═► distinct → sink
    SPLIT           source → split → double → sink
                             └─ thirds ═key═► same → second
    SIDES           source ═key═► sort-out → sink
                                  └─ odd ═in turn═► negate → second
    LATE            source → watermark → where ═key═► window → units ─┬─► union → sink
                                                      └─ late() ─► late-units ─┘
    ASKS            source ═some way═► asks → sink
    ASKS_WINDOW     source → watermark ═some way═► asks → where → combine ═key═► window → sink
    JOIN            source → watermark ═key═► join → without-nulls → sink,  source-2 → watermark-2 ═key═► join
    CHANGES         source ═key═► join ═key═► join-2 → without-nulls → sink
                    source-2 → combine ═key═► running ═key═► join, join-2
    RUNNING         source → combine ═key═► running → bucket → combine-2 ═bucket═► running-2 → rises → sink
    CHOOSES         source → watermark ═key═► deduplicate → sink, or a changelog as in RUNNING in place of running
    TABLE           source → same-1 ═in some way═► join → without-nulls → sink, or ═key═► not-older → sink
    SORTED          source → watermark ═key═► sort → in-order → sink
    MEETS           source → watermark ═key═► meets → sink,  source-2 → watermark-2 ═key═► meets

The windows of `WINDOW` and `UNION_WINDOW` are of any kind (`window_kinds`), by key or over all records.

Windows may allow lateness, and may show updates: then the sink gets changes.

Every second workload has windows with many aggregates, and behind the window a step that compares the aggregates. A
workload may have a slow step, which stands behind `same`, `waits`, the window or the timers; `negate` is slow itself.
Back-pressure builds up before the slow step. Steps have the same names in all shapes, so that tests can name them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import polars as pl
import pyarrow as pa

from penstock.api.changelog import with_row_kind
from penstock.api.connector import Sink
from penstock.api.first_rows import FirstOfKey, FirstOfSubtask, FirstRows
from penstock.api.functions import FunctionContext, ProcessFunction
from penstock.api.steps import (
    LATE,
    ROW_COUNT,
    Aggregate,
    AsyncMapStep,
    CombineStep,
    KeyedProcessStep,
    LateRecords,
    MapBatchesStep,
    MapStep,
    ProcessStep,
    ReadStep,
    RightInput,
    SplitStep,
    Step,
    UnionStep,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import partial_schema, result_schema
from penstock.core.ids import OperatorId
from penstock.core.task.waiting import WaitFor
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.sim import rich_windows, running
from penstock.sim.applied_windows import APPLIED, apply_step
from penstock.sim.asking import Service
from penstock.sim.changing_joins import COMBINE, COUNTS, ChangesWithoutNulls, first_join, second_join
from penstock.sim.connected import Guarded
from penstock.sim.external import system_of
from penstock.sim.jobs import APART, SCHEMA, Choice, Shape, Workload
from penstock.sim.joining import WithoutNulls, join_step, shown_columns, table_join_kind, table_step
from penstock.sim.meeting import Meets
from penstock.sim.on_driver import make_source
from penstock.sim.ranking import deduplicating, measured, top_steps
from penstock.sim.refreshing import VERSION, ChangingTable, NotOlder
from penstock.sim.sides import ODD, SortOut, Units, late_unit
from penstock.sim.sorting import KEY, InOrder, sort_step
from penstock.sim.timers import WindowsByTimers, copies
from penstock.sim.window_kinds import WindowKind, window_of

SINK = "sink"
SECOND_SINK = "second"

AGGREGATES = (Aggregate(name="n", kind="count", column=None), Aggregate(name="top", kind="max", column="value"))

RESULTS = result_schema(SCHEMA, keys=("key",), time_column="ts", aggregates=AGGREGATES)
"""The schema of the results of windows by key."""

FORWARD, HASH = Partitioning.FORWARD, Partitioning.HASH
REBALANCE, BROADCAST = Partitioning.REBALANCE, Partitioning.BROADCAST

DISTRIBUTIONS = {
    Shape.HASH_HASH: (HASH, HASH),
    Shape.HASH_FORWARD: (HASH, FORWARD),
    Shape.HASH_BROADCAST: (HASH, BROADCAST),
    Shape.REBALANCE_HASH: (REBALANCE, HASH),
}
"""How the two sources of a pair reach the step that reads both."""

THIRDS = "thirds"
"""The part of `SPLIT` with the records whose values can be divided by three."""

BUCKETS = 4
"""How many different values there are behind the first exchange of `TWICE`."""

# --- the steps between -----------------------------------------------------------------------


def keep_condition() -> pl.Expr:
    """The condition by which windows, timers and one branch of a diamond filter records."""
    return pl.col("value") % 3 != 0


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with doubled values."""
    return _with_values(batch, pl.Series(batch.column("value")) * 2)


def bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with one of `BUCKETS` values in each row."""
    return _with_values(batch, pl.Series(batch.column("value")) % BUCKETS)


def compare(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The results of windows with many aggregates, compared with each other, as the results of other windows."""
    return rich_windows.compared(batch, RESULTS)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch itself."""
    return batch


def by_key(batch: pa.RecordBatch, subtasks: int) -> pl.Series:
    """The subtask of every record, by its key."""
    return (pl.Series(batch.column("key")) * 7 + 1) % subtasks


class NegatesMisplaced(ProcessFunction):
    """Hands records on. The value of a record that `by_key` sends to another subtask becomes negative."""

    def on_batch(self, batch: pa.RecordBatch, context: FunctionContext) -> pa.RecordBatch:
        """The batch, with the values of misplaced records negated."""
        values = pl.Series(batch.column("value"))
        is_here = by_key(batch, context.parallelism) == context.subtask
        return _with_values(batch, values.zip_with(is_here, -1 - values))


def _with_values(batch: pa.RecordBatch, values: pl.Series) -> pa.RecordBatch:
    return batch.set_column(2, "value", values.to_arrow())


class Negate:
    """Makes values negative, row by row. Each row may take processor time."""

    def __init__(self, world: int, row_us: int) -> None:
        self._world = world
        self._row_us = row_us

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with its value negated."""
        if self._row_us:
            system_of(self._world).spend(self._row_us)
        return {**row, "value": -1 - row["value"]}


class Slow:
    """Hands batches on. Each batch takes processor time."""

    def __init__(self, world: int, batch_us: int) -> None:
        self._world = world
        self._batch_us = batch_us

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch itself."""
        system_of(self._world).spend(self._batch_us)
        return batch


# --- plans -----------------------------------------------------------------------


def sinks_of(shape: Shape) -> tuple[str, ...]:
    """The names of the sinks of a shape."""
    return (SINK, SECOND_SINK) if shape in (Shape.TWO_SINKS, Shape.SPLIT, Shape.SIDES, *APART) else (SINK,)


def make_plan(workload: Workload, *, world: int, parallelism: int, sink: Callable[[str], Sink]) -> Plan:
    """The plan of a job, with the splits of its sources; `sink` makes a sink from its name."""
    return _Builder(workload, world, parallelism, sink).plan()


class _Builder:
    """Collects the nodes of a plan."""

    def __init__(self, workload: Workload, world: int, parallelism: int, sink: Callable[[str], Sink]) -> None:
        self._workload = workload
        self._world = world
        self._parallelism = parallelism
        self._sink = sink
        self._nodes: list[Node] = []

    def plan(self) -> Plan:
        """The plan of the workload's shape."""
        match self._workload.shape:
            case Shape.WINDOW:
                self._windows(self._watermark(self._source(), ""))
            case Shape.KEYED:
                self._write(self._same(self._map("double", double, self._source()), HASH))
            case Shape.REBALANCED:
                self._write(self._negate(self._source(), REBALANCE))
            case Shape.BROADCAST:
                self._write(self._same(self._source(), BROADCAST))
            case Shape.TWICE:
                buckets = self._map("bucket", bucket, self._source(), HASH)
                self._write(self._same(buckets, HASH, "value"))
            case Shape.DIAMOND:
                self._diamond()
            case Shape.TWO_SINKS:
                doubled = self._map("double", double, self._source())
                self._write(doubled)
                self._write(self._same(doubled, HASH), SECOND_SINK)
            case Shape.UNION:
                united = self._unite(*((source, FORWARD) for source in self._sources()))
                self._write(self._same(self._map("double", double, united), HASH))
            case Shape.UNION_WINDOW:
                timed = [self._watermark(source, _suffix(i)) for i, source in enumerate(self._sources())]
                self._windows(self._unite(*((source, FORWARD) for source in timed)))
            case Shape.TIMERS:
                self._timers(self._watermark(self._source(), ""))
            case Shape.HASH_HASH | Shape.HASH_FORWARD | Shape.HASH_BROADCAST | Shape.REBALANCE_HASH as pair:
                united = self._unite(*zip(self._sources(), DISTRIBUTIONS[pair], strict=True))
                self._write(self._same(united, FORWARD))
            case Shape.WAITS:
                self._waits(*self._sources())
            case Shape.PIPELINES | Shape.SLICES | Shape.MIXED as apart:
                self._apart(apart)
            case Shape.GLOBAL | Shape.FEWER | Shape.CHOSEN | Shape.LIMIT | Shape.DISTINCT as placed:
                self._placed(placed)
            case Shape.SPLIT | Shape.SIDES | Shape.LATE as aside:
                self._with_sides(aside)
            case Shape.ASKS | Shape.ASKS_WINDOW as shape:
                self._asking(shape)
            case Shape.TABLE:
                self._table(self._source())
            case Shape.JOIN | Shape.MEETS as shape:
                timed = [self._watermark(source, _suffix(i)) for i, source in enumerate(self._sources())]
                (self._join if shape is Shape.JOIN else self._meets)(*timed)
            case Shape.CHANGES | Shape.RUNNING | Shape.CHOOSES | Shape.SORTED as shape:
                self._with_rows(shape)
            case _:
                assert_never(self._workload.shape)
        return build_plan(tuple(self._nodes), parallelism=self._parallelism, max_parallelism=None)

    def _apart(self, shape: Shape) -> None:
        if shape is Shape.SLICES:
            doubled = self._map("double", double, self._timed_if_aligned(self._source(), ""))
            self._write(doubled)
            self._write(self._same(doubled, FORWARD), SECOND_SINK)
            return
        first, second = (self._timed_if_aligned(source, _suffix(i)) for i, source in enumerate(self._sources()))
        self._write(self._same(self._map("double", double, first), HASH))
        doubled = self._map("double-2", double, second)
        is_joined = shape is Shape.PIPELINES
        self._write(self._map("same-2", same, doubled, HASH) if is_joined else doubled, SECOND_SINK)

    def _placed(self, shape: Shape) -> None:
        source, most = self._source(), self._workload.limit
        match shape:
            case Shape.GLOBAL:
                doubled = self._map("double", double, source)
                self._write(self._joined(Input(node=doubled, partitioning=REBALANCE, at_most=1)))
            case Shape.FEWER:
                step = MapBatchesStep(function=double, kind="arrow", schema=SCHEMA)
                doubled = self._add("double", step, Input(node=source, at_most=2))
                self._write(self._joined(Input(node=doubled, partitioning=HASH, keys=("key",), at_most=3)))
            case Shape.CHOSEN:
                doubled = self._map("double", double, source)
                chosen = Input(node=doubled, partitioning=Partitioning.CUSTOM, partitioner=by_key)
                placed = self._add("placed", ProcessStep(function=NegatesMisplaced(), schema=SCHEMA), chosen)
                self._write(self._slowed(placed, SCHEMA))
            case Shape.LIMIT:
                each = ProcessStep(function=FirstOfSubtask(most), schema=SCHEMA)
                before = Input(node=self._add("limit-each", each, (source, FORWARD)), partitioning=REBALANCE, at_most=1)
                limited = self._add("limit", ProcessStep(function=FirstRows(most), schema=SCHEMA), before)
                self._write(self._slowed(limited, SCHEMA))
            case _:
                keys = pa.schema([SCHEMA.field("key")])
                first = KeyedProcessStep(function=FirstOfKey(None), keys=("key",), key_schema=keys, schema=SCHEMA)
                self._write(self._slowed(self._add("distinct", first, (source, HASH)), SCHEMA))

    def _with_sides(self, shape: Shape) -> None:
        if shape is Shape.LATE:
            self._late_windows(self._watermark(self._source(), ""))
            return
        if shape is Shape.SPLIT:
            step = SplitStep(conditions=((THIRDS, ~keep_condition()),), schema=SCHEMA)
            split = self._add("split", step, (self._source(), FORWARD))
            self._write(self._map("double", double, split))
            self._write(self._same(split, HASH, side=THIRDS), SECOND_SINK)
            return
        keys = pa.schema([SCHEMA.field("key")])
        sort_out = KeyedProcessStep(
            function=SortOut(), keys=("key",), key_schema=keys, schema=SCHEMA, declared_sides={ODD: SCHEMA}
        )
        sorted_out = self._add("sort-out", sort_out, (self._source(), HASH))
        self._write(sorted_out)
        self._write(self._negate(sorted_out, REBALANCE, side=ODD), SECOND_SINK)

    def _late_windows(self, timed: int) -> None:
        workload, keys = self._workload, ("key",)
        window = window_of(workload.windows, workload.window_us)
        updates = workload.updates
        aggregates: tuple[Aggregate, ...] = (Aggregate(name="times", kind="collect_list", column="ts"),)
        result = result_schema(SCHEMA, keys=keys, time_column="ts", aggregates=aggregates)
        result = result if updates is None else with_row_kind(result)
        if updates is not None and updates.every_rows is not None:
            aggregates = (*aggregates, Aggregate(name=ROW_COUNT, kind="count", column=None))
        partial = partial_schema(SCHEMA, keys=keys, time_column="ts", aggregates=aggregates, window=window)
        kept = self._add("where", WhereStep(condition=keep_condition(), schema=SCHEMA), (timed, FORWARD))
        step = WindowStep(
            keys=keys,
            window=window,
            aggregates=aggregates,
            schema=result,
            late=LateRecords(time_column="ts", schema=SCHEMA),
            combine=CombineStep(keys=keys, time_column="ts", window=window, aggregates=aggregates, schema=partial),
            lateness_us=workload.lateness_us,
            updates=updates,
            partials=None if updates is None else partial,
        )
        windowed = self._add("window", step, (kept, HASH))
        slowed = self._slowed(windowed, result)
        units = MapStep(function=Units(workload.windows, workload.window_us), flat=True, schema=RESULTS)
        counted = self._add("units", units, (slowed, FORWARD))
        late = MapStep(function=late_unit, flat=False, schema=RESULTS)
        told = self._add("late-units", late, (windowed, FORWARD), side=LATE)
        united = self._add("union", UnionStep(schema=RESULTS), (counted, FORWARD), (told, FORWARD))
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=RESULTS), (united, FORWARD))

    def _asking(self, shape: Shape) -> None:
        if shape is Shape.ASKS:
            self._write(self._slowed(self._asks(self._source(), factor=2), SCHEMA))
        else:
            self._windows(self._asks(self._watermark(self._source(), ""), factor=1))

    def _counted(self, source: int) -> int:
        combined = self._add("combine", running.COMBINE_COUNTS, (source, FORWARD))
        counted = self._add("running", running.COUNTS, (combined, HASH))
        return self._add("bucket", running.BUCKET, (counted, FORWARD))

    def _choosing(self, timed: int) -> None:
        choice = self._workload.choice
        if choice is Choice.FIRST:
            self._write(self._slowed(self._add("deduplicate", deduplicating(choice), (timed, HASH)), SCHEMA))
            return
        if choice is Choice.LAST:
            chosen = self._add("deduplicate", deduplicating(choice), (timed, HASH))
        else:
            of_counts = choice is Choice.TOP_OF_COUNTS
            combine, top = top_steps(choice)
            combined = self._add("combine-top", combine, (self._counted(timed) if of_counts else timed, FORWARD))
            chosen = self._add("top", top, (combined, HASH), keys=top.keys)
            if of_counts:
                self._running(chosen)
                return
        self._running(self._add("measured", measured(choice), (chosen, FORWARD)))

    def _running(self, bucketed: int) -> None:
        combined = self._add("combine-2", running.COMBINE_TOTALS, (bucketed, FORWARD))
        total = self._add("running-2", running.TOTALS, (combined, HASH), keys=("bucket",))
        rises = KeyedProcessStep(
            function=running.Rises(), keys=("bucket",), key_schema=running.BUCKET_KEY, schema=SCHEMA
        )
        self._write(self._slowed(self._add("rises", rises, (total, FORWARD)), SCHEMA))

    def _diamond(self) -> None:
        source = self._source()
        doubled = self._map("double", double, source)
        kept = self._add("where", WhereStep(condition=keep_condition(), schema=SCHEMA), (source, FORWARD))
        united = self._unite((doubled, FORWARD), (self._negate(kept, FORWARD), FORWARD))
        self._write(self._same(united, HASH))

    def _windows(self, timed: int) -> None:
        workload, keys = self._workload, ("key",) if self._workload.keyed else ()
        aggregates: tuple[Aggregate, ...] = rich_windows.AGGREGATES if workload.has_rich_windows else AGGREGATES
        aggregates = APPLIED if workload.has_applied_windows else aggregates
        window, updates = window_of(workload.windows, workload.window_us), workload.updates
        time_column = "ts" if window.needs_time else None
        result = result_schema(SCHEMA, keys=keys, time_column=time_column, aggregates=aggregates, window=window)
        is_counted = workload.windows is WindowKind.COUNT
        if is_counted or (updates is not None and updates.every_rows is not None):
            aggregates = (*aggregates, Aggregate(name=ROW_COUNT, kind="count", column=None))
        partial = partial_schema(SCHEMA, keys=keys, time_column=time_column, aggregates=aggregates, window=window)
        kept = self._add("where", WhereStep(condition=keep_condition(), schema=SCHEMA), (timed, FORWARD))
        combine = CombineStep(
            keys=keys,
            time_column=time_column,
            window=window,
            aggregates=aggregates,
            schema=partial,
            holds=updates is None and window.needs_time,
        )
        combined = kept if is_counted else self._add("combine", combine, (kept, FORWARD))
        result = result if updates is None else with_row_kind(result)
        step = WindowStep(
            keys=keys,
            window=window,
            aggregates=aggregates,
            schema=result,
            lateness_us=workload.lateness_us,
            updates=updates,
            partials=partial if is_counted or updates is not None else None,
        )
        windowed = self._add("window", step, (combined, HASH), keys=keys)
        if workload.has_rich_windows:
            result = RESULTS
            compared = MapBatchesStep(function=compare, kind="arrow", schema=result)
            windowed = self._add("compare", compared, (windowed, FORWARD))
        if workload.has_applied_windows:
            apply = apply_step(result)
            result = apply.schema
            windowed = self._add("apply", apply, (windowed, FORWARD))
        shown = self._slowed(windowed, result)
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=result), (shown, FORWARD))

    def _waits(self, source: int, rules: int) -> None:
        workload, wait = self._workload, self._workload.wait or WaitFor()
        step = KeyedProcessStep(
            function=Guarded(self._world, workload, wait),
            keys=("key",),
            key_schema=pa.schema([SCHEMA.field("key")]),
            schema=SCHEMA,
            is_connected=True,
            broadcast_has_time=True,
            wait=wait,
        )
        waited = self._add("waits", step, (source, HASH), (self._watermark(rules, "-2"), BROADCAST))
        self._write(self._slowed(waited, SCHEMA))

    def _sorted(self, timed: int) -> None:
        descending = self._workload.salt % 2 == 0
        ordered = self._add("sort", sort_step(descending=descending), (timed, HASH))
        checks = InOrder(self._world, descending=descending)
        step = KeyedProcessStep(function=checks, keys=("key",), key_schema=KEY, schema=SCHEMA)
        self._write(self._slowed(self._add("in-order", step, (ordered, FORWARD)), SCHEMA))

    def _meets(self, left: int, right: int) -> None:
        step = KeyedProcessStep(
            function=Meets(),
            keys=("key",),
            key_schema=pa.schema([SCHEMA.field("key")]),
            schema=SCHEMA,
            right=RightInput(keys=("key",), late=None),
        )
        self._write(self._slowed(self._add("meets", step, (left, HASH), (right, HASH)), SCHEMA))

    def _join(self, left: int, right: int) -> None:
        joining = self._workload.joining
        joined = self._add("join", join_step(joining, SCHEMA), (left, HASH), (right, HASH))
        shown = shown_columns(joining, SCHEMA)
        step = MapBatchesStep(function=WithoutNulls(shown), kind="arrow", schema=shown)
        without = self._slowed(self._add("without-nulls", step, (joined, FORWARD)), shown)
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=shown), (without, FORWARD))

    def _with_rows(self, shape: Shape) -> None:
        if shape is Shape.SORTED:
            self._sorted(self._watermark(self._source(), ""))
        elif shape is Shape.CHANGES:
            self._changes(*self._sources())
        elif shape is Shape.RUNNING:
            self._running(self._counted(self._source()))
        else:
            self._choosing(self._watermark(self._source(), ""))

    def _changes(self, left: int, right: int) -> None:
        step = first_join(self._workload.joining.how)
        counted = self._add("running", COUNTS, (self._add("combine", COMBINE, (right, FORWARD)), HASH))
        first = self._add("join", step, (left, HASH), (counted, HASH))
        second = second_join(step)
        joined = self._add("join-2", second, (first, HASH), (counted, HASH))
        without = ChangesWithoutNulls(second)
        function = MapBatchesStep(function=without, kind="arrow", schema=without.schema)
        shown = self._slowed(self._add("without-nulls", function, (joined, FORWARD)), without.schema)
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=without.schema), (shown, FORWARD))

    def _table(self, source: int) -> None:
        how, by_key = table_join_kind(self._workload.joining.how), self._workload.salt % 2 == 0
        changing = ChangingTable(self._world) if self._workload.refreshes else None
        joined = table_step(how, SCHEMA, by_key=by_key, changing=changing)
        before = self._add("join", joined, (self._map("same-1", same, source), HASH if by_key else FORWARD))
        step = MapBatchesStep(function=WithoutNulls(joined.schema), kind="arrow", schema=joined.schema)
        without, schema = self._add("without-nulls", step, (before, FORWARD)), joined.schema
        if VERSION in schema.names:
            schema = schema.remove(schema.get_field_index(VERSION))
            checks = KeyedProcessStep(function=NotOlder(), keys=("key",), key_schema=KEY, schema=schema)
            without = self._add("not-older", checks, (without, HASH))
        shown = self._slowed(without, schema)
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=schema), (shown, FORWARD))

    def _timers(self, timed: int) -> None:
        kept = self._add("where", WhereStep(condition=keep_condition(), schema=SCHEMA), (timed, FORWARD))
        function, keys = WindowsByTimers(self._workload.window_us), pa.schema([SCHEMA.field("key")])
        step = KeyedProcessStep(function=function, keys=("key",), key_schema=keys, schema=RESULTS)
        fired = self._slowed(self._add("timers", step, (kept, HASH)), RESULTS)
        many = self._add("copies", MapStep(function=copies, flat=True, schema=RESULTS), (fired, FORWARD))
        single = self._add("where-2", WhereStep(condition=pl.col("n") > 0, schema=RESULTS), (many, FORWARD))
        self._add(SINK, WriteStep(sink=self._sink(SINK), schema=RESULTS), (single, FORWARD))

    # --- single steps -----------------------------------------------------------------------

    def _sources(self) -> list[int]:
        return [self._source(number) for number in range(self._workload.sources)]

    def _source(self, number: int = 0) -> int:
        source = make_source(self._world, self._workload, number)
        read = ReadStep(source=source, splits=tuple(source.splits(self._parallelism)))
        return self._add(f"source{_suffix(number)}", read)

    def _watermark(self, before: int, suffix: str) -> int:
        workload = self._workload
        step = WatermarkStep(column="ts", delay_us=workload.delay_us, idle_after_ms=None, align=workload.align)
        return self._add(f"watermark{suffix}", step, (before, FORWARD))

    def _timed_if_aligned(self, before: int, suffix: str) -> int:
        """A watermark that nothing needs except the other sources of the group."""
        return before if self._workload.align is None else self._watermark(before, suffix)

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


def _suffix(number: int) -> str:
    return f"-{number + 1}" if number else ""
