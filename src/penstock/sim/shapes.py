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
    LIMIT_BESIDE    the same, and beside it source → double → second sink
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
    MATCHES         source → watermark ═key═► match → matches ─┬─► sink
                                               └─ timed_out() → given-up ─┘
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
from typing import assert_never

import polars as pl
import pyarrow as pa

from penstock.api.changelog import with_row_kind
from penstock.api.connector import Sink
from penstock.api.first_rows import FirstOfKey, FirstOfSubtask, FirstRows
from penstock.api.pattern_steps import TIMED_OUT
from penstock.api.steps import (
    LATE,
    ROW_COUNT,
    Aggregate,
    CombineStep,
    KeyedProcessStep,
    LateRecords,
    MapBatchesStep,
    MapStep,
    ProcessStep,
    RightInput,
    SplitStep,
    UnionStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import partial_schema, result_schema
from penstock.core.task.waiting import WaitFor
from penstock.plan.graph import Input, Partitioning, Plan, build_plan
from penstock.sim import rich_windows, running
from penstock.sim.applied_windows import APPLIED, apply_step
from penstock.sim.changing_joins import COMBINE, COUNTS, ChangesWithoutNulls, first_join, second_join
from penstock.sim.connected import Guarded
from penstock.sim.jobs import (
    APART,
    SCHEMA,
    Choice,
    Shape,
    Sought,
    Workload,
)
from penstock.sim.joining import WithoutNulls, join_step, shown_columns, table_join_kind, table_step
from penstock.sim.matching import Shown, matching
from penstock.sim.meeting import Meets
from penstock.sim.plan_nodes import FORWARD, HASH, SINK, Nodes
from penstock.sim.ranking import deduplicating, measured, top_steps
from penstock.sim.refreshing import VERSION, ChangingTable, NotOlder
from penstock.sim.row_functions import (
    AGGREGATES,
    RESULTS,
    NegatesMisplaced,
    bucket,
    by_key,
    compare,
    double,
    keep_condition,
    same,
)
from penstock.sim.sides import ODD, SortOut, Units, late_unit
from penstock.sim.sorting import KEY, InOrder, sort_step
from penstock.sim.timers import WindowsByTimers, copies
from penstock.sim.window_kinds import WindowKind, window_of

SECOND_SINK = "second"

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


def sinks_of(shape: Shape) -> tuple[str, ...]:
    """The names of the sinks of a shape."""
    two = (Shape.TWO_SINKS, Shape.SPLIT, Shape.SIDES, Shape.LIMIT_BESIDE, *APART)
    return (SINK, SECOND_SINK) if shape in two else (SINK,)


def make_plan(workload: Workload, *, world: int, parallelism: int, sink: Callable[[str], Sink]) -> Plan:
    """The plan of a job, with the splits of its sources; `sink` makes a sink from its name."""
    return _Builder(workload, world, parallelism, sink).plan()


class _Builder(Nodes):
    """Collects the nodes of a plan."""

    def plan(self) -> Plan:
        """The plan of the workload's shape."""
        match self._workload.shape:
            case Shape.WINDOW:
                self._windows(self._watermark(self._source()))
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
                timed = [self._watermark(source, i) for i, source in enumerate(self._sources())]
                self._windows(self._unite(*((source, FORWARD) for source in timed)))
            case Shape.TIMERS:
                self._timers(self._watermark(self._source()))
            case Shape.HASH_HASH | Shape.HASH_FORWARD | Shape.HASH_BROADCAST | Shape.REBALANCE_HASH as pair:
                united = self._unite(*zip(self._sources(), DISTRIBUTIONS[pair], strict=True))
                self._write(self._same(united, FORWARD))
            case Shape.WAITS:
                self._waits(*self._sources())
            case Shape.PIPELINES | Shape.SLICES | Shape.MIXED as apart:
                self._apart(apart)
            case (
                Shape.GLOBAL | Shape.FEWER | Shape.CHOSEN | Shape.LIMIT | Shape.LIMIT_BESIDE | Shape.DISTINCT as placed
            ):
                self._placed(placed)
            case Shape.SPLIT | Shape.SIDES | Shape.LATE as aside:
                self._with_sides(aside)
            case Shape.ASKS | Shape.ASKS_WINDOW as shape:
                self._asking(shape)
            case Shape.TABLE:
                self._table(self._source())
            case Shape.JOIN | Shape.MEETS as shape:
                timed = [self._watermark(source, i) for i, source in enumerate(self._sources())]
                (self._join if shape is Shape.JOIN else self._meets)(*timed)
            case Shape.CHANGES | Shape.RUNNING | Shape.CHOOSES | Shape.SORTED | Shape.MATCHES as shape:
                self._with_rows(shape)
            case _:
                assert_never(self._workload.shape)
        return build_plan(tuple(self._nodes), parallelism=self._parallelism, max_parallelism=None)

    def _apart(self, shape: Shape) -> None:
        if shape is Shape.SLICES:
            doubled = self._map("double", double, self._timed_if_aligned(self._source()))
            self._write(doubled)
            self._write(self._same(doubled, FORWARD), SECOND_SINK)
            return
        first, second = (self._timed_if_aligned(source, i) for i, source in enumerate(self._sources()))
        self._write(self._same(self._map("double", double, first), HASH))
        doubled = self._map("double-2", double, second)
        is_joined = shape is Shape.PIPELINES
        self._write(self._map("same-2", same, doubled, HASH) if is_joined else doubled, SECOND_SINK)

    def _placed(self, shape: Shape) -> None:
        source = self._source()
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
            case Shape.LIMIT | Shape.LIMIT_BESIDE:
                self._limited(source, shape)
            case _:
                keys = pa.schema([SCHEMA.field("key")])
                first = KeyedProcessStep(function=FirstOfKey(None), keys=("key",), key_schema=keys, schema=SCHEMA)
                self._write(self._slowed(self._add("distinct", first, (source, HASH)), SCHEMA))

    def _limited(self, source: int, shape: Shape) -> None:
        most = self._workload.limit
        each = ProcessStep(function=FirstOfSubtask(most), schema=SCHEMA)
        before = Input(node=self._add("limit-each", each, (source, FORWARD)), partitioning=REBALANCE, at_most=1)
        limited = self._add("limit", ProcessStep(function=FirstRows(most), schema=SCHEMA), before)
        self._write(self._slowed(limited, SCHEMA))
        if shape is Shape.LIMIT_BESIDE:
            self._write(self._map("double", double, source), SECOND_SINK)

    def _with_sides(self, shape: Shape) -> None:
        if shape is Shape.LATE:
            self._late_windows(self._watermark(self._source()))
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
            self._windows(self._asks(self._watermark(self._source()), factor=1))

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

    def _matching(self, timed: int, sought: Sought) -> None:
        step = matching(sought)
        found = self._add("match", step, (timed, HASH))
        shown = MapBatchesStep(function=Shown(step, out_of_time=False), kind="arrow", schema=SCHEMA)
        rows = self._slowed(self._add("matches", shown, (found, FORWARD)), SCHEMA)
        if sought is Sought.RISE:
            given_up = MapBatchesStep(function=Shown(step, out_of_time=True), kind="arrow", schema=SCHEMA)
            rows = self._unite(
                (rows, FORWARD), (self._add("given-up", given_up, (found, FORWARD), side=TIMED_OUT), FORWARD)
            )
        self._write(rows)

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
        waited = self._add("waits", step, (source, HASH), (self._watermark(rules, 1), BROADCAST))
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
            self._sorted(self._watermark(self._source()))
        elif shape is Shape.CHANGES:
            self._changes(*self._sources())
        elif shape is Shape.RUNNING:
            self._running(self._counted(self._source()))
        elif shape is Shape.MATCHES:
            self._matching(self._watermark(self._source()), self._workload.sought)
        else:
            self._choosing(self._watermark(self._source()))

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
