"""Streams: what a program is written with.

A stream is a handle on the last step made so far; every method makes a step and returns a new handle, so a stream can
be used for several branches. What a method is given is checked at once, against the columns that the records have.

    bids.where("price > 100").key_by("auction").window(tumbling("10s")).aggregate(n=count())

Expressions are Spark SQL text or Polars expressions, see `penstock.api.expressions`. How steps are named, and what the
name is for, is told in `penstock.api.naming`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from penstock.api.aggregates import AggregateCall, named_aggregate
from penstock.api.connector import Sink
from penstock.api.durations import Duration, duration_ms, duration_us
from penstock.api.expressions import CompiledColumns, ExpressionLike, compile_columns, compile_condition
from penstock.api.foreach import HandsOver
from penstock.api.functions import (
    KeyedBroadcastFunction,
    KeyedFunction,
    ProcessFunction,
    check_function,
    check_states,
)
from penstock.api.grouped import HostedProcessor
from penstock.api.inference import BatchKind, check_kind, inferred_schema
from penstock.api.ledger import Ledger
from penstock.api.reductions import RunningReduce
from penstock.api.schemas import SchemaLike, as_schema, as_timestamp, common_schema, empty_frame, unknown_column
from penstock.api.state import StateKind
from penstock.api.steps import (
    CombineStep,
    KeyedProcessStep,
    MapBatchesStep,
    MapStep,
    ProcessStep,
    SelectStep,
    Step,
    TumblingWindow,
    UnionStep,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import check_key_types, partial_schema, result_schema
from penstock.core.errors import UsageError
from penstock.plan.explain import explain_plan
from penstock.plan.graph import Input, Partitioning

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """What is known about the records of a stream."""

    ledger: Ledger
    last_step: int
    schema: pa.Schema
    time_column: str | None = None
    """Where the event time is that watermarks tell of; None if there is none."""
    time_lost: str | None = None
    """How an event time that was there got lost, as a part of a sentence."""
    partitioning: Partitioning = Partitioning.FORWARD
    """How records go to the next step."""
    partition_keys: tuple[str, ...] = ()
    """By which columns, if that is by key."""

    def input(self) -> tuple[Input, ...]:
        """The input of the next step."""
        return (Input(node=self.last_step, partitioning=self.partitioning, keys=self.partition_keys),)

    def behind(self, number: int, schema: pa.Schema) -> StreamState:
        """What is known about the records that a function makes, in step `number`. It may compute anything; a column
        of the same name and type is taken to be the same time."""
        column, lost = self.time_column, self.time_lost
        kept = column is not None and column in schema.names and self.schema.field(column) == schema.field(column)
        if column is not None and not kept:
            lost = f"the event time in {column!r} was lost in {self.ledger.step(number)}"
        return StreamState(
            ledger=self.ledger,
            last_step=number,
            schema=schema,
            time_column=column if kept else None,
            time_lost=None if kept else lost,
        )

    def input_by_key(self, keys: tuple[str, ...]) -> Input:
        """The input of a next step that gets the records of each key together."""
        return Input(node=self.last_step, partitioning=Partitioning.HASH, keys=keys)


class Stream(HandsOver):
    """Records that flow, all with the same columns. Made by `Program.read` and by the methods of streams."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    # --- columns and rows --------------------------------------------------------------------------------------------

    def where(self, condition: ExpressionLike, *, name: str | None = None) -> Stream:
        """Only the records for which `condition` is true (not false, not null)."""
        compiled = compile_condition(condition, self.schema, argument="condition")
        step = WhereStep(condition=compiled, schema=self.schema)
        return self._then(step, self.schema, kind="where", name=name, time_column=self._state.time_column)

    def select(self, *columns: ExpressionLike, **named: ExpressionLike) -> Stream:
        """Only these columns, in this order. A computed one is named by AS or by keyword: `select("a", b="a + 1")`.

        To name the step, call `.name(...)` on the result.
        """
        compiled = self._compiled(columns, named)
        if not compiled:
            raise UsageError("select needs at least one column")
        fields = [column.field for each in compiled for column in each.columns]
        _check_distinct([field.name for field in fields], "select")
        step = SelectStep(
            columns=self._one_per_record([each.expr for each in compiled]), keep=False, schema=pa.schema(fields)
        )
        kept = {column.origin: column.field.name for each in reversed(compiled) for column in reversed(each.columns)}
        time_column = self._state.time_column
        return self._then(step, step.schema, kind="select", time_column=kept.get(time_column) if time_column else None)

    def with_columns(self, *columns: ExpressionLike, **named: ExpressionLike) -> Stream:
        """All columns, and these besides; one that exists is replaced. Each sees the columns as they were before.

        To name the step, call `.name(...)` on the result.
        """
        compiled = self._compiled(columns, named)
        if not compiled:
            raise UsageError("with_columns needs at least one column")
        made = [column for each in compiled for column in each.columns]
        _check_distinct([column.field.name for column in made], "with_columns")
        fields = {field.name: field for field in self.schema}
        fields.update({column.field.name: column.field for column in made})
        step = SelectStep(
            columns=tuple(each.expr for each in compiled), keep=True, schema=pa.schema(list(fields.values()))
        )
        time_column = self._state.time_column
        if any(column.field.name == time_column != column.origin for column in made):
            time_column = None
        return self._then(step, step.schema, kind="with_columns", time_column=time_column)

    def drop(self, *columns: str, name: str | None = None) -> Stream:
        """All columns but these."""
        self._check_columns(columns, "drop")
        kept = [column for column in self.schema.names if column not in columns]
        if not kept:
            raise UsageError("drop would leave no column")
        step = SelectStep(
            columns=tuple(pl.col(column) for column in kept),
            keep=False,
            schema=pa.schema([self.schema.field(column) for column in kept]),
        )
        time_column = self._state.time_column if self._state.time_column in kept else None
        return self._then(step, step.schema, kind="drop", name=name, time_column=time_column)

    def rename(self, names: Mapping[str, str], *, name: str | None = None) -> Stream:
        """The same columns under other names: `rename({"old": "new"})`."""
        self._check_columns(names, "rename")
        renamed = [names.get(column, column) for column in self.schema.names]
        _check_distinct(renamed, "rename")
        step = SelectStep(
            columns=tuple(pl.col(old).alias(new) for old, new in zip(self.schema.names, renamed, strict=True)),
            keep=False,
            schema=pa.schema([f.with_name(new) for f, new in zip(self.schema, renamed, strict=True)]),
        )
        time_column = self._state.time_column
        kept = None if time_column is None else names.get(time_column, time_column)
        return self._then(step, step.schema, kind="rename", name=name, time_column=kept)

    # --- functions ---------------------------------------------------------------------------------------------------

    def map_batches(
        self,
        function: Callable[[Any], Any],
        *,
        schema: SchemaLike | None = None,
        kind: BatchKind = "arrow",
        name: str | None = None,
    ) -> Stream:
        """What `function` makes of each batch: another batch, None for nothing, or several batches.

        `kind` says what it takes and returns: "arrow" `pa.RecordBatch`, "polars" or "pandas" `DataFrame`. Without
        `schema` the function is called once, here, with a batch that has no rows. How many rows a batch has changes
        from run to run; a function whose results depend on it breaks exactly-once.
        """
        _check_callable(function, "map_batches")
        check_kind(kind)
        given = inferred_schema(function, kind, self.schema) if schema is None else as_schema(schema, argument="schema")
        step = MapBatchesStep(function=function, kind=kind, schema=given)
        return self._then_function(step, kind="map_batches", name=name)

    def map(self, function: Callable[[Row], Row], *, schema: SchemaLike, name: str | None = None) -> Stream:
        """What `function` makes of each record, both as a dict. Row by row is slow: prefer expressions or batches."""
        _check_callable(function, "map")
        given = as_schema(schema, argument="schema")
        return self._then_function(MapStep(function=function, flat=False, schema=given), kind="map", name=name)

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]], *, schema: SchemaLike, name: str | None = None
    ) -> Stream:
        """The records, any number of them, that `function` makes of each record, all as dicts."""
        _check_callable(function, "flat_map")
        given = as_schema(schema, argument="schema")
        return self._then_function(MapStep(function=function, flat=True, schema=given), kind="flat_map", name=name)

    def process(self, function: ProcessFunction, *, schema: SchemaLike, name: str | None = None) -> Stream:
        """What a function with state of its own makes of each record, or of each batch; see `ProcessFunction`.

        Its state is kept under `name`.
        """
        check_function(function, ProcessFunction, argument="process", methods=("on_row", "on_batch"))
        keyed = tuple(kind for kind in StateKind if kind.is_keyed)
        check_states(function, keyed, where="needs a key: use key_by(...) and a KeyedFunction")
        step = ProcessStep(function=function, schema=as_schema(schema, argument="schema"))
        return self._then_function(step, kind="process", name=name)

    # --- time and distribution ---------------------------------------------------------------------------------------

    def watermark(
        self, column: str, *, delay: Duration = "0s", idle_after: Duration | None = None, name: str | None = None
    ) -> Stream:
        """Event time is in `column`, and records come at most `delay` later than one with a greater time.

        Records that come later than that are late: windows that are closed do not count them. Right behind a source
        each of its splits has an event time of its own, and the one that is furthest behind counts. A part of the input
        that has been silent for `idle_after` no longer holds the others back; without it, it does so for ever.
        """
        self._check_columns([column], "watermark")
        kind = self.schema.field(column).type
        if not isinstance(kind, pa.TimestampType) or kind.unit != "us":
            raise UsageError(
                f"watermark: column {column!r} is of type {kind}, event time must be timestamp[us]",
                hint=f"convert it first: .with_columns({as_timestamp(column, kind)})",
            )
        step = WatermarkStep(
            column=column,
            delay_us=duration_us(delay, argument="delay"),
            idle_after_ms=None if idle_after is None else duration_ms(idle_after, argument="idle_after"),
        )
        if step.idle_after_ms == 0:
            raise UsageError(f"idle_after is {idle_after!r}; give a duration above 0, or None to wait for ever")
        return self._then(step, self.schema, kind="watermark", name=name, time_column=column)

    def key_by(self, *columns: str) -> KeyedStream:
        """The same records, where those with equal values in these columns belong together."""
        self._check_columns(columns, "key_by")
        check_key_types(self.schema, columns)
        return KeyedStream(self._state, columns)

    def rebalance(self) -> Stream:
        """The same records, dealt out evenly to the subtasks of the next step."""
        return Stream(replace(self._state, partitioning=Partitioning.REBALANCE, partition_keys=()))

    def repartition(self, *columns: str) -> Stream:
        """The same records; those with equal values in these columns go to the same subtask of the next step."""
        self._check_columns(columns, "repartition")
        check_key_types(self.schema, columns)
        return Stream(replace(self._state, partitioning=Partitioning.HASH, partition_keys=columns))

    def broadcast(self) -> Stream:
        """The same records, each of them sent to every subtask of the next step."""
        return Stream(replace(self._state, partitioning=Partitioning.BROADCAST, partition_keys=()))

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The records of this stream and of others, which have the same columns; in no order among each other.

        Event time is kept if it is in the same column of all of them, and is as far as that of the stream which is
        furthest behind. What holds state behind a union has an id made of all that is united: name it if more streams
        may join later.
        """
        states = [self._state, *(self._state_to_unite(other) for other in others)]
        if not others:
            raise UsageError("union needs at least one other stream")
        schema = common_schema([state.schema for state in states], argument="union")
        inputs = tuple(each for state in states for each in state.input())
        number = self._state.ledger.add(UnionStep(schema=schema), kind="union", name=name, inputs=inputs)
        time_columns = list(dict.fromkeys(state.time_column for state in states))
        kept = time_columns[0] if len(time_columns) == 1 else None
        lost = next((state.time_lost for state in states if state.time_lost), None)
        if len(time_columns) > 1:
            places = " and ".join("nowhere" if each is None else f"in {each!r}" for each in time_columns)
            lost = f"the streams of {self._state.ledger.step(number)} have it {places}"
        return Stream(
            StreamState(
                ledger=self._state.ledger,
                last_step=number,
                schema=schema,
                time_column=kept,
                time_lost=None if kept else lost,
            )
        )

    # --- ends and views ----------------------------------------------------------------------------------------------

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """Put all records into `sink`."""
        if not isinstance(sink, Sink):
            raise UsageError(f"write takes a sink, not {sink!r}", hint="for example parquet('out')")
        for other in self._state.ledger.steps:
            if isinstance(other.step, WriteStep) and other.step.sink == sink:
                raise UsageError(
                    f"one sink cannot be written by two steps; the other is {other}",
                    hint="make a second sink, with a target of its own",
                )
        sink.check(self.schema)
        step = WriteStep(sink=sink.fitted(self.schema), schema=self.schema)
        self._state.ledger.add(step, kind=sink.name, name=name, inputs=self._state.input())

    def name(self, text: str) -> Stream:
        """The same stream; the step that makes it is named `text`."""
        self._state.ledger.name_step(self._state.last_step, text)
        return self

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._state.schema

    def explain(self) -> str:
        """The part of the plan that leads to this stream, as text."""
        ledger = self._state.ledger
        return explain_plan(ledger.plan_of(ledger.path_to(self._state.last_step)))

    def __repr__(self) -> str:
        return f"<Stream {_described(self._state)}>"

    # --- how steps are made ------------------------------------------------------------------------------------------

    def _then(
        self, step: Step, schema: pa.Schema, *, kind: str, name: str | None = None, time_column: str | None
    ) -> Stream:
        state = self._state
        number = state.ledger.add(step, kind=kind, name=name, inputs=state.input())
        time_lost = state.time_lost
        if time_column is None and state.time_column is not None:
            time_lost = f"the event time in {state.time_column!r} was lost in {state.ledger.step(number)}"
        return Stream(
            StreamState(
                ledger=state.ledger,
                last_step=number,
                schema=schema,
                time_column=time_column,
                time_lost=None if time_column else time_lost,
            )
        )

    def _state_to_unite(self, other: object) -> StreamState:
        if not isinstance(other, Stream):
            raise UsageError(
                f"union takes streams, not {other!r}",
                hint="unite first, then key_by" if isinstance(other, KeyedStream) else None,
            )
        if other._state.ledger is not self._state.ledger:  # noqa: SLF001  # of the same class
            raise UsageError(
                "union takes streams of one environment, and one of these is of another",
                hint="read all sources with the same environment",
            )
        return other._state  # noqa: SLF001  # of the same class

    def _then_function(self, step: MapStep | MapBatchesStep | ProcessStep, *, kind: str, name: str | None) -> Stream:
        number = self._state.ledger.add(step, kind=kind, name=name, inputs=self._state.input())
        return Stream(self._state.behind(number, step.schema))

    def _compiled(
        self, columns: Iterable[ExpressionLike], named: Mapping[str, ExpressionLike]
    ) -> list[CompiledColumns]:
        unnamed = [compile_columns(each, self.schema, argument="column") for each in columns]
        return unnamed + [
            compile_columns(each, self.schema, argument=f"column {name!r}", name=name) for name, each in named.items()
        ]

    def _one_per_record(self, exprs: list[pl.Expr]) -> tuple[pl.Expr, ...]:
        """The expressions such that at least one has a value per record: constants alone would make a single row."""
        if empty_frame(self.schema).select(exprs).height == 0:
            return tuple(exprs)
        first = exprs[0]
        repeated = pl.when(pl.col(self.schema.names[0]).is_null()).then(first).otherwise(first)
        return (repeated.alias(first.meta.output_name()), *exprs[1:])

    def _check_columns(self, columns: Iterable[str], argument: str) -> None:
        for column in columns:
            if not isinstance(column, str):
                raise UsageError(f"{argument} takes names of columns, not {column!r}")
            if column not in self.schema.names:
                raise unknown_column(column, self.schema.names, argument=argument)


class KeyedStream:
    """Records that belong together by key. Made by `Stream.key_by`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...]) -> None:
        self._state = state
        self._keys = keys

    def window(self, window: TumblingWindow) -> WindowedStream:
        """The records of each key, cut into windows of event time. Needs a watermark before."""
        if not isinstance(window, TumblingWindow):
            raise UsageError(f"window takes a window, not {window!r}", hint='for example tumbling("10s")')
        if self._state.time_column is None:
            raise self._no_event_time()
        return WindowedStream(self._state, self._keys, window)

    def process(self, function: KeyedFunction, *, schema: SchemaLike, name: str | None = None) -> Stream:
        """What a function with state makes of each record, and of its timers; see `KeyedFunction`.

        State and timers are kept under `name`. Records of one key are handled in the order in which they come.
        """
        check_function(function, KeyedFunction, argument="process", methods=("on_row",))
        if isinstance(function, KeyedBroadcastFunction):
            raise UsageError(
                f"{type(function).__name__} needs a broadcast stream",
                hint="write .key_by(...).connect(broadcast_stream).process(...)",
            )
        step = _keyed_step(function, self._state, self._keys, schema)
        return _behind(step, self._state, inputs=(self._state.input_by_key(self._keys),), kind="process", name=name)

    def reduce(self, function: Callable[[Row, Row], Row], *, name: str | None = None) -> Stream:
        """For each record, all records of its key so far, reduced to one by `function(before, record)`: a dict with the
        same columns. The first record of a key is handed on as it is."""
        _check_callable(function, "reduce")
        step = _keyed_step(RunningReduce(function, self.schema), self._state, self._keys, self.schema)
        return _behind(step, self._state, inputs=(self._state.input_by_key(self._keys),), kind="reduce", name=name)

    def transform_with_state(
        self,
        processor: Any,
        *,
        output_schema: Any,
        time_mode: str = "None",
        output_mode: str = "Append",
        initial_state: Any = None,
        kind: Literal["row", "pandas"] = "row",
        name: str | None = None,
    ) -> Stream:
        """What a PySpark `StatefulProcessor` makes of each key's records and timers; it runs as it is written.

        `time_mode` and `output_mode` mean what they mean to Spark's `transformWithState`. With `kind="pandas"` it is
        one for `transformWithStateInPandas`. `initial_state` is a DataFrame with the key columns, whose rows go to
        `handleInitialState` before anything else. State and timers are kept under `name`. See docs/spark.md.
        """
        host = self._state.ledger.processor_host
        if host is None:
            raise UsageError("transform_with_state needs an Environment on Spark", hint="make a ps.Environment(spark)")
        function = host(
            HostedProcessor(
                processor=processor,
                output_schema=output_schema,
                time_mode=time_mode,
                output_mode=output_mode,
                initial_state=initial_state,
                kind=kind,
                keys=self._keys,
                input_schema=self._state.schema,
                time_column=self._state.time_column,
            )
        )
        step = _keyed_step(function, self._state, self._keys, function.schema)
        inputs = (self._state.input_by_key(self._keys),)
        return _behind(step, self._state, inputs=inputs, kind="transform-with-state", name=name)

    def connect(self, broadcast: Stream) -> ConnectedStream:
        """These records, and besides them all records of another stream in every subtask: rules, settings, prices."""
        if not isinstance(broadcast, Stream):
            raise UsageError(f"connect takes a stream, not {broadcast!r}")
        other: StreamState = broadcast._state  # noqa: SLF001  # a stream is what this module says it is
        if other.ledger is not self._state.ledger:
            raise UsageError("connect takes a stream of the same environment")
        return ConnectedStream(self._state, self._keys, other)

    def _no_event_time(self) -> UsageError:
        times = [field.name for field in self._state.schema if pa.types.is_timestamp(field.type)]
        example = f'.watermark("{times[0] if times else "ts"}", delay="5s")'
        return UsageError(
            "window needs event time, and this stream has none"
            + (f": {self._state.time_lost}" if self._state.time_lost else ""),
            hint=f"add {example} before key_by" + ("" if times else "; there is no column of type timestamp yet"),
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._state.schema

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self._keys)} of {_described(self._state)}>"


class ConnectedStream:
    """Keyed records, and those of a broadcast stream. Made by `KeyedStream.connect`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...], broadcast: StreamState) -> None:
        self._state = state
        self._keys = keys
        self._broadcast = broadcast

    def process(self, function: KeyedBroadcastFunction, *, schema: SchemaLike, name: str | None = None) -> Stream:
        """What a function with state makes of the records of both; see `KeyedBroadcastFunction`.

        If the broadcast stream has a watermark, event time is that of the stream which is behind; if it has none, it is
        that of the keyed stream alone.
        """
        check_function(function, KeyedBroadcastFunction, argument="process", methods=("on_broadcast",))
        check_function(function, KeyedFunction, argument="process", methods=("on_row",))
        state, other = self._state, self._broadcast
        step = replace(
            _keyed_step(function, state, self._keys, schema),
            is_connected=True,
            broadcast_has_time=other.time_column is not None,
        )
        broadcast = Input(node=other.last_step, partitioning=Partitioning.BROADCAST)
        inputs = (state.input_by_key(self._keys), broadcast)
        return _behind(step, state, inputs=inputs, kind="connect", name=name)

    def __repr__(self) -> str:
        keys = ", ".join(self._keys)
        return f"<ConnectedStream by {keys} of {_described(self._state)} and {_described(self._broadcast)}>"


class WindowedStream:
    """Records of each key in windows of event time. Made by `KeyedStream.window`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...], window: TumblingWindow) -> None:
        self._state = state
        self._keys = keys
        self._window = window

    def aggregate(self, **aggregates: AggregateCall) -> Stream:
        """One record per key and window, when the watermark has passed its end: the keys, `window_start`, `window_end`
        and one column per aggregate, such as `n=count(), top=max("price")`.

        To name the step, call `.name(...)` on the result; its state is kept under the name.
        """
        calls = [named_aggregate(name, call) for name, call in aggregates.items()]
        state, keys = self._state, self._keys
        assert state.time_column is not None
        partial = partial_schema(state.schema, keys=keys, time_column=state.time_column, aggregates=calls)
        result = result_schema(state.schema, keys=keys, time_column=state.time_column, aggregates=calls)
        combine = CombineStep(
            keys=keys, time_column=state.time_column, window=self._window, aggregates=tuple(calls), schema=partial
        )
        combined = state.ledger.add(combine, kind="combine", inputs=state.input())
        windowed = state.ledger.add(
            WindowStep(keys=keys, window=self._window, aggregates=tuple(calls), schema=result),
            kind="window",
            label="-".join(("window", *keys)),
            inputs=(Input(node=combined, partitioning=Partitioning.HASH, keys=keys),),
        )
        lost = f"the event time in {state.time_column!r} ended with {state.ledger.step(windowed)}"
        return Stream(StreamState(ledger=state.ledger, last_step=windowed, schema=result, time_lost=lost))

    def __repr__(self) -> str:
        seconds = self._window.size_us / 1_000_000
        return f"<WindowedStream of {seconds:g} s by {', '.join(self._keys)} of {_described(self._state)}>"


def _keyed_step(
    function: KeyedFunction, state: StreamState, keys: tuple[str, ...], schema: SchemaLike
) -> KeyedProcessStep:
    return KeyedProcessStep(
        function=function,
        keys=keys,
        key_schema=pa.schema([pa.field(key, state.schema.field(key).type) for key in keys]),
        schema=as_schema(schema, argument="schema"),
    )


def _behind(
    step: KeyedProcessStep, state: StreamState, *, inputs: tuple[Input, ...], kind: str, name: str | None
) -> Stream:
    """The stream behind a step over keyed records of `state`."""
    number = state.ledger.add(step, kind=kind, label="-".join((kind, *step.keys)), inputs=inputs, name=name)
    return Stream(state.behind(number, step.schema))


def _check_callable(function: object, argument: str) -> None:
    if not callable(function):
        raise UsageError(f"{argument} takes a function, not {function!r}")


def _check_distinct(names: list[str], argument: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{argument} would make {names.count(name)} columns named {name!r}", hint="rename one")


def _described(state: StreamState) -> str:
    columns = ", ".join(f"{field.name} {field.type}" for field in state.schema)
    time = f"; event time in {state.time_column}" if state.time_column else ""
    return f"{state.ledger.step(state.last_step).name!r}: {columns}{time}"
