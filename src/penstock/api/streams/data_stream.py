"""Streams: what a program is written with.

A stream is a handle on the last step made so far; every method makes a step and returns a new handle, so a stream can
be used for several branches. The arguments of a method are checked at once, against the columns that the records have.

    bids.where("price > 100").key_by("auction").window(tumbling("10s")).aggregate(n=count())

Expressions are Spark SQL text or Polars expressions, see `penstock.api.expressions`. How steps are named, and what the
name is for, is told in `penstock.api.naming`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregates import AggregateCall
from penstock.api.alignment import Alignment, checked_alignment
from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable, refuse_async_methods
from penstock.api.changelog import ROW_KIND, Changelog
from penstock.api.connector import Sink
from penstock.api.foreach import HandsOver
from penstock.api.functions import ProcessFunction, check_function, check_states
from penstock.api.inference import BatchKind, batch_kind, inferred_schema
from penstock.api.state import StateKind
from penstock.api.steps import (
    KeyedProcessStep,
    MapBatchesStep,
    MapStep,
    ProcessStep,
    Step,
    UnionStep,
    WatermarkStep,
    WriteStep,
)
from penstock.api.streams.changing import HasChanges
from penstock.api.streams.choosing import ChoosesRows
from penstock.api.streams.computing import ComputesColumns
from penstock.api.streams.exploding import Explodes
from penstock.api.streams.joining import Joins
from penstock.api.streams.looking import CanBeLookedAt
from penstock.api.streams.looking_up import LooksUp
from penstock.api.streams.placing import PlacesRows
from penstock.api.streams.running_aggregate import running_aggregate
from penstock.api.streams.side_streams import HasSides
from penstock.api.streams.sorting import Sorts
from penstock.api.streams.stream_state import Row, StreamState, side_schemas
from penstock.api.streams.updating import HasResultsOfWindows
from penstock.api.window_schema import check_key_types
from penstock.core.durations import Duration, duration_ms, duration_us
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning
from penstock.plan.picture import Explanation
from penstock.sql.schemas import SchemaLike, as_schema, as_timestamp, common_schema, unknown_column

if TYPE_CHECKING:
    from penstock.api.streams.keyed_stream import KeyedStream
    from penstock.api.streams.windowed_stream import WindowedStream
    from penstock.api.windows import WindowType


@at_user_line
class Stream(
    ComputesColumns,
    ChoosesRows,
    Explodes,
    Joins,
    PlacesRows,
    HandsOver,
    HasSides,
    LooksUp,
    HasChanges,
    HasResultsOfWindows,
    Sorts,
    CanBeLookedAt,
):
    """Records that flow, all with the same columns. Made by `Program.read` and by the methods of streams."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    # --- functions ---------------------------------------------------------------------------------------------------

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        schema: SchemaLike | None = None,
        kind: BatchKind | None = None,
        name: str | None = None,
    ) -> Stream:
        """The records that `function` makes of each batch. The function returns a batch, several batches, or None
        for no records.

        The annotation of the function's first parameter, or `kind`, says what the function takes and returns: "arrow"
        `pa.RecordBatch`, "table" `pa.Table`, "polars" or "pandas" `DataFrame`. Without both it is a `pa.RecordBatch`.

        >>> import polars as pl
        >>> from penstock.testing import collect, run
        >>> def doubled(batch: pl.DataFrame) -> pl.DataFrame:
        ...     return batch.with_columns(pl.col("n") * 2)
        >>> run(lambda env: env.from_iterable([{"n": 1}]).map_batches(doubled).write(collect()))
        [{'n': 2}]

        Without `schema` the function is called once, here, with a batch that has no rows. The number of rows in a batch
        changes from run to run; a function whose results depend on that number breaks exactly-once.
        """
        check_callable(function, "map_batches")
        takes = batch_kind(function, kind)
        made = inferred_schema(function, takes, self.schema) if schema is None else as_schema(schema, argument="schema")
        step = MapBatchesStep(function=function, kind=takes, schema=made)
        return self._then_function(step, kind="map_batches", name=name)

    def map(self, function: Callable[[Row], Row], *, schema: SchemaLike, name: str | None = None) -> Stream:
        """The record that `function` makes of each record, both as a dict. Row by row is slow: prefer expressions or
        batches.

        A value that would change in its column is an error: 2.5 is no `bigint`. The guide to sources has the list.

        >>> from penstock.testing import collect, run
        >>> def parsed(row):
        ...     item, price = row["line"].split("=")
        ...     return {"item": item, "price": int(price)}
        >>> def program(env):
        ...     lines = env.from_iterable(["pen=3"], schema="line string")
        ...     lines.map(parsed, schema="item string, price bigint").write(collect())
        >>> run(program)
        [{'item': 'pen', 'price': 3}]
        """
        check_callable(function, "map")
        given = as_schema(schema, argument="schema")
        return self._then_function(MapStep(function=function, flat=False, schema=given), kind="map", name=name)

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]], *, schema: SchemaLike, name: str | None = None
    ) -> Stream:
        """The records, any number of them, that `function` makes of each record, all as dicts.

        >>> from penstock.testing import collect, run
        >>> def words(row):
        ...     return [{"word": word} for word in row["line"].split()]
        >>> def program(env):
        ...     lines = env.from_iterable(["to be", ""], schema="line string")
        ...     lines.flat_map(words, schema="word string").write(collect())
        >>> run(program)
        [{'word': 'to'}, {'word': 'be'}]
        """
        check_callable(function, "flat_map")
        given = as_schema(schema, argument="schema")
        return self._then_function(MapStep(function=function, flat=True, schema=given), kind="flat_map", name=name)

    def process(
        self,
        function: ProcessFunction,
        *,
        schema: SchemaLike,
        sides: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
    ) -> Stream:
        """The records that a function with state of its own makes of each record, or of each batch; see
        `ProcessFunction`.

        The state of the function is kept under `name`. `sides` declares side outputs, by name, for `context.emit`:
        `sides={"alerts": "user string, n bigint"}`; `side("alerts")` of the result is the stream of such a side output.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Checked(ps.ProcessFunction):
        ...     def on_row(self, row, context):
        ...         if row["price"] >= 0:
        ...             return row
        ...         context.emit("refused", {"item": row["item"]})
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}, {"item": "ink", "price": -1}])
        ...     checked = bids.process(
        ...         Checked(), schema="item string, price bigint", sides={"refused": "item string"})
        ...     checked.side("refused").write(ps.collect())
        >>> run(program)
        [{'item': 'ink'}]
        """
        check_function(function, ProcessFunction, argument="process", methods=("on_row", "on_batch"))
        keyed = tuple(kind for kind in StateKind if not kind.is_of_subtask)
        check_states(function, keyed, where="needs a key: use key_by(...) and a KeyedFunction")
        step = ProcessStep(
            function=function,
            schema=as_schema(schema, argument="schema"),
            declared_sides=side_schemas(sides),
            late=self._state.late_records,
        )
        number = self._state.ledger.add(step, kind="process", name=name, inputs=self._state.input())
        return Stream(self._state.behind_function(number, step))

    # --- time and distribution ---------------------------------------------------------------------------------------

    def watermark(
        self,
        column: str,
        *,
        delay: Duration | None = None,
        function: Callable[[pa.RecordBatch], datetime.datetime | int | None] | None = None,
        idle_after: Duration | None = None,
        align: Alignment | None = None,
        name: str | None = None,
    ) -> Stream:
        """Event time is in `column`, and records come at most `delay` later than a record with a greater time.

        Records that come later than that are late: windows that have been emitted do not count late records. Right
        behind a source each split of the source has an event time of its own, and the split that is furthest behind
        counts. A part of the input that has had no record for `idle_after` is idle, and does not hold the other parts
        back. Without `idle_after` a silent part of the input holds the other parts back for ever.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import collect, run
        >>> def minute(n):
        ...     return datetime.datetime(2026, 1, 1, 12, n)
        >>> def program(env):
        ...     clicks = env.from_iterable([{"ts": minute(1)}, {"ts": minute(2)}, {"ts": minute(11)}])
        ...     windows = clicks.watermark("ts", delay="30s").key_by("ts").window(ps.tumbling("10 min"))
        ...     windows.aggregate(n=ps.count()).select(minute="minute(window_start)").write(collect())
        >>> sorted(row["minute"] for row in run(program))
        [0, 0, 10]

        Args:
            column: the column with the time of each record.
            delay: how much later than a record with a greater time a record may come. Default: not at all.
            function: says how far event time has come, instead of `delay`, for sources that know better: sources with
                marks in the data, for example. The function gets the records of one split, a batch at a time, and
                returns a time: no record at or before that time comes any more on this split. The time is a
                `datetime` (without a time zone: in UTC) or microseconds since 1970; None says nothing new.
            idle_after: how long a part of the input may be silent before the other parts stop waiting for it.
            align: how far the source may read ahead of other sources, as `penstock.alignment` makes it. The watermark
                must be made right behind the source then, before any step that deals records out anew.
            name: the name of the step.

        """
        self._check_columns([column], "watermark")
        kind = self.schema.field(column).type
        if not isinstance(kind, pa.TimestampType) or kind.unit != "us":
            raise UsageError(
                f"watermark: column {column!r} is of type {kind}, and event time must be timestamp[us]",
                hint=f"convert the column first: .with_columns({as_timestamp(column, kind)})",
            )
        if function is not None:
            check_callable(function, "watermark: function")
            if delay is not None:
                raise UsageError(
                    "watermark: delay and function were both given, and each says how far event time has come",
                    hint="give only one of the two; the function can subtract a delay itself",
                )
        step = WatermarkStep(
            column=column,
            delay_us=0 if delay is None else duration_us(delay, argument="delay"),
            idle_after_ms=None if idle_after is None else duration_ms(idle_after, argument="idle_after"),
            function=function,
            align=checked_alignment(align),
        )
        if step.idle_after_ms == 0:
            raise UsageError(f"idle_after is {idle_after!r}; give a duration above 0, or None to wait for ever")
        return self._then(step, self.schema, kind="watermark", name=name, time_column=column)

    def key_by(self, *columns: str) -> KeyedStream:
        """The same records, where records with equal values in these columns belong together.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [{"item": "pen", "price": 3}, {"item": "ink", "price": 8}, {"item": "pen", "price": 5}]
        ...     bids = env.from_iterable(rows)
        ...     bids.key_by("item").aggregate(most=ps.max("price")).write(ps.collect())
        >>> sorted(run(program), key=str)
        [{'item': 'ink', 'most': 8}, {'item': 'pen', 'most': 5}]
        """
        self._check_columns(columns, "key_by")
        check_key_types(self.schema, columns)
        # Not imported above: the module of keyed streams imports this module.
        from penstock.api.streams.keyed_stream import KeyedStream

        return KeyedStream(self._state, columns)

    def window(self, window: WindowType, *, allowed_lateness: Duration = "0s") -> WindowedStream:
        """All records, cut into windows of event time: one result per window, whatever the records. Needs a watermark
        before.

        Records are aggregated in every subtask, and the aggregates are put together in a single subtask. A record that
        comes behind the watermark, by `allowed_lateness` at most, still counts in its window.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     clicks = env.from_iterable([{"ts": datetime.datetime(2026, 1, 1, 12, minute)} for minute in (1, 2, 11)])
        ...     counts = clicks.watermark("ts").window(ps.tumbling("10 min")).aggregate(clicks=ps.count())
        ...     counts.select("clicks", minute="minute(window_start)").write(ps.collect())
        >>> sorted(run(program), key=lambda row: row["minute"])
        [{'clicks': 2, 'minute': 0}, {'clicks': 1, 'minute': 10}]
        """
        # Not imported above: the module of windowed streams imports this module.
        from penstock.api.streams.windowed_stream import windowed

        return windowed(self._state, (), window, allowed_lateness=allowed_lateness)

    def aggregate(self, **aggregates: AggregateCall | AggregateFunction) -> Stream:
        """A **changelog** of one row: one column per aggregate, over all records so far; see `KeyedStream.aggregate`.
        There is no row before the first record.

        Records are aggregated in every subtask, and the aggregates are put together in a single subtask.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     env.from_iterable(range(10), schema="n bigint").aggregate(most=ps.max("n")).write(ps.collect())
        >>> run(program)
        [{'most': 9}]
        """
        return Stream(running_aggregate(self._state, (), aggregates, None))

    def rebalance(self) -> Stream:
        """The same records, dealt out evenly to the subtasks of the next step.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     lines = env.from_iterable(["to be", "or not"], schema="line string")
        ...     lines.rebalance().select(size="length(line)").write(collect())
        >>> sorted(row["size"] for row in run(program))
        [5, 6]
        """
        return self._sent(Partitioning.REBALANCE)

    def repartition(self, *columns: str) -> Stream:
        """The same records; records with equal values in these columns go to the same subtask of the next step.

        >>> import polars as pl
        >>> from penstock.testing import collect, run
        >>> def without_repeats(batch: pl.DataFrame) -> pl.DataFrame:
        ...     return batch.unique()
        >>> def program(env):
        ...     clicks = env.from_iterable([{"user": "ann"}, {"user": "bob"}])
        ...     clicks.repartition("user").map_batches(without_repeats).write(collect())
        >>> sorted(row["user"] for row in run(program))
        ['ann', 'bob']
        """
        self._check_columns(columns, "repartition")
        check_key_types(self.schema, columns)
        return self._sent(Partitioning.HASH, columns)

    def broadcast(self) -> Stream:
        """The same records, each of them sent to every subtask of the next step.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     prices = env.from_iterable([{"item": "pen", "price": 3}])
        ...     prices.broadcast().map(lambda row: row, schema="item string, price bigint").write(collect())
        >>> run(program, parallelism=2)
        [{'item': 'pen', 'price': 3}, {'item': 'pen', 'price': 3}]
        """
        return self._sent(Partitioning.BROADCAST)

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The records of this stream and of other streams with the same columns. The streams come in no particular
        order.

        Event time is kept if event time is in the same column of all streams: the stream that is furthest behind
        counts. A step with state behind a union has an id made of the ids of all united streams: name the step if more
        streams may join later.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     web = env.from_iterable([{"item": "pen"}], name="web")
        ...     shop = env.from_iterable([{"item": "ink"}], name="shop")
        ...     web.union(shop).write(collect())
        >>> sorted(row["item"] for row in run(program))
        ['ink', 'pen']
        """
        states = [self._state, *(self._state_to_unite(other) for other in others)]
        if not others:
            raise UsageError("union needs at least one other stream")
        changelog = _united(states)
        schema = common_schema([state.schema for state in states], argument="union")
        inputs = tuple(each for state in states for each in state.input_of_changes())
        number = self._state.ledger.add(UnionStep(schema=schema), kind="union", name=name, inputs=inputs)
        times = list(dict.fromkeys((state.time_column, state.time_offset_us) for state in states))
        kept, offset_us = times[0] if len(times) == 1 else (None, 0)
        lost = next((state.time_lost for state in states if state.time_lost), None)
        if len(times) > 1:
            places = " and ".join(
                "nowhere" if column is None else f"in {column!r}" + (f" {offset:+} us" if offset else "")
                for column, offset in times
            )
            lost = f"the streams of {self._state.ledger.step(number)} have event time {places}"
        return Stream(
            StreamState(
                ledger=self._state.ledger,
                last_step=number,
                schema=schema,
                time_column=kept,
                time_offset_us=offset_us,
                time_lost=None if kept else lost,
                changelog=changelog,
            )
        )

    # --- ends and views ----------------------------------------------------------------------------------------------

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """Put all records into `sink`.

        >>> import tempfile
        >>> import penstock as ps
        >>> import polars as pl
        >>> from penstock.testing import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = run(lambda env: env.from_iterable([{"item": "pen", "price": 3}]).write(ps.parquet(folder)))
        ...     pl.read_parquet(f"{folder}/*.parquet").to_dicts()
        [{'item': 'pen', 'price': 3}]
        """
        if not isinstance(sink, Sink):
            raise UsageError(f"write takes a sink, not {sink!r}", hint="for example parquet('out')")
        refuse_async_methods(sink, Sink)
        for other in self._state.ledger.steps:
            if isinstance(other.step, WriteStep) and other.step.sink == sink:
                raise UsageError(
                    f"one sink cannot be written by two steps; the other step is {other}",
                    hint="make a second sink, with a target of its own",
                )
        if self._state.changelog is not None:
            sink = sink.for_changes(self._state.changelog)
        sink.check(self.schema)
        step = WriteStep(sink=sink.fitted(self.schema), schema=self.schema)
        self._state.ledger.add(step, kind=sink.name, name=name, inputs=self._state.input_of_changes())

    def name(self, text: str) -> Stream:
        """The same stream; the step that makes it is named `text`.

        >>> from penstock.testing import collect, run
        >>> def program(env):
        ...     big = env.from_iterable([{"price": 3}, {"price": 8}]).where("price > 5").name("big bids")
        ...     print("big bids" in env.explain())
        ...     big.write(collect())
        >>> run(program)
        True
        [{'price': 8}]
        """
        self._state.ledger.name_step(self._state.last_step, text)
        return self

    def explain(self) -> Explanation:
        """The part of the plan that leads to this stream, as text. `explain().svg` and `explain().mermaid` are the same
        as a picture, and a notebook shows the picture.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}])
        ...     counts = bids.where("price > 5").key_by("item").aggregate(n=ps.count())
        ...     print(counts.explain())
        ...     counts.write(ps.collect())
        >>> _ = run(program)
        parallelism 2 of at most 128
        <BLANKLINE>
        [1] iterable → where → combine  (source, 2 subtasks)
         │   iterable  iterable
         │   where     iterable.where
         │   combine   iterable.combine
         └─ hash by item ─► [2] aggregate  (2 subtasks)
                 aggregate  iterable.aggregate-item
        """
        ledger = self._state.ledger
        return Explanation.of(ledger.plan_of(ledger.path_to(self._state.last_step)))

    def __repr__(self) -> str:
        return f"<Stream {self._state.described()}>"

    # --- how steps are made ------------------------------------------------------------------------------------------

    def _then(  # what is known of the records behind the step
        self,
        step: Step,
        schema: pa.Schema,
        *,
        kind: str,
        name: str | None = None,
        time_column: str | None,
        changelog: Changelog | None = None,
    ) -> Self:
        state = self._state
        inputs = state.input() if changelog is None else state.input_of_changes()
        number = state.ledger.add(step, kind=kind, name=name, inputs=inputs)
        time_lost = state.time_lost
        if time_column is None and state.time_column is not None:
            time_lost = f"the event time in {state.time_column!r} was lost in {state.ledger.step(number)}"
        return self._with_state(
            StreamState(
                ledger=state.ledger,
                last_step=number,
                schema=schema,
                time_column=time_column,
                time_offset_us=state.time_offset_us if time_column and not isinstance(step, WatermarkStep) else 0,
                time_lost=None if time_column else time_lost,
                changelog=changelog,
            )
        )

    def _with_state(self, state: StreamState) -> Self:
        return type(self)(state)

    def _sent(self, partitioning: Partitioning, keys: tuple[str, ...] = ()) -> Stream:
        state = self._state
        state.refuse_changelog(f"{partitioning.value} partitioning")
        return Stream(replace(state, partitioning=partitioning, partition_keys=keys, partitioner=None, at_most=None))

    def _state_to_unite(self, other: object) -> StreamState:
        if not isinstance(other, Stream):
            raise UsageError(
                f"union takes streams, not {other!r}",
                hint="unite first, then key_by" if hasattr(other, "window") else None,
            )
        if other._state.ledger is not self._state.ledger:  # noqa: SLF001  # of the same class
            raise UsageError(
                "union takes streams of one environment, and one of these streams is of another environment",
                hint="read all sources with the same environment",
            )
        return other._state  # noqa: SLF001  # of the same class

    def _then_function(self, step: MapStep | MapBatchesStep, *, kind: str, name: str | None) -> Stream:
        number = self._state.ledger.add(step, kind=kind, name=name, inputs=self._state.input())
        return Stream(self._state.behind(number, step.schema))

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        for column in columns:
            if not isinstance(column, str):
                raise UsageError(f"{argument} takes names of columns, not {column!r}")
            if column == ROW_KIND and self._state.changelog is not None:
                raise UsageError(
                    f"{argument}: row_kind says how the rows of a changelog change, and stays with them by itself",
                    hint="call .changes() first: then row_kind is a column like any other",
                )
            if column not in self.schema.names:
                raise unknown_column(column, self._state.row_schema.names, argument=argument)


def _united(states: list[StreamState]) -> Changelog | None:
    """What is known about the changes of several streams together. Raises `UsageError` if only some of the streams are
    changelogs, or if rows of theirs could not be told apart."""
    changelogs = [state.changelog for state in states if state.changelog is not None]
    if not changelogs:
        return None
    if len(changelogs) < len(states):
        raise UsageError(
            "union takes changelogs, or streams whose records stay as they are, and not both",
            hint="call .changes() on the changelogs; or aggregate the other streams, too",
        )
    if not all(changelog.has_before for changelog in changelogs):
        raise UsageError(
            "union has to know rows as they were before an update, and upserts() has left that out",
            hint="call upserts() on the streams' own sinks",
        )
    # Two tables may have rows with the same key.
    return Changelog(keys=None)


def stream_behind(
    step: KeyedProcessStep, state: StreamState, *, inputs: tuple[Input, ...], kind: str, name: str | None
) -> Stream:
    """The stream behind a step over keyed records of `state`."""
    number = state.ledger.add(step, kind=kind, label="-".join((kind, *step.keys)), inputs=inputs, name=name)
    return Stream(state.behind_function(number, step))
