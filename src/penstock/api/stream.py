"""Streams: what a program is written with.

A stream is a handle on the last step made so far; every method makes a step and returns a new handle, so a stream can be
used for several branches. What a method is given is checked at once, against the columns that the records have there.

    bids.where("price > 100").key_by("auction").window(tumbling("10s")).aggregate(n=count())

Expressions are Spark SQL text or Polars expressions, see `penstock.api.expressions`. How steps are named, and what the
name is for, is told in `penstock.api.naming`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.aggregates import AggregateCall
from penstock.api.connector import Sink
from penstock.api.durations import Duration, duration_ms, duration_us
from penstock.api.expressions import CompiledColumns, ExpressionLike, compile_columns, compile_condition
from penstock.api.inference import BatchKind, check_kind, inferred_schema
from penstock.api.ledger import Ledger
from penstock.api.schemas import SchemaLike, as_schema, empty_frame, unknown_column
from penstock.api.steps import (
    Aggregate,
    CombineStep,
    MapBatchesStep,
    MapStep,
    SelectStep,
    Step,
    TumblingWindow,
    WatermarkStep,
    WhereStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import check_key_types, partial_schema, result_schema
from penstock.core.errors import UsageError
from penstock.plan.explain import explain_plan
from penstock.plan.graph import Input, Partitioning, build_plan

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

    def input(self) -> tuple[Input, ...]:
        """The input of the next step."""
        return (Input(node=self.last_step, partitioning=self.partitioning),)


class Stream:
    """Records that flow, all with the same columns. Made by `Program.read` and by the methods of streams."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    # --- columns and rows --------------------------------------------------------------------------------------------

    def where(self, condition: ExpressionLike, *, name: str | None = None) -> Stream:
        """Only the records for which `condition` is true (not false, not null)."""
        compiled = compile_condition(condition, self.schema, argument="condition")
        return self._then(WhereStep(condition=compiled, schema=self.schema), kind="where", name=name)

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
        return self._then(step, kind="select", time_column=kept.get(self._state.time_column))

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
        return self._then(step, kind="with_columns", time_column=time_column)

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
        time_column = self._state.time_column
        return self._then(step, kind="drop", name=name, time_column=time_column if time_column in kept else None)

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
        return self._then(step, kind="rename", name=name, time_column=kept)

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
        return self._then_function(step, given, kind="map_batches", name=name)

    def map(self, function: Callable[[Row], Row], *, schema: SchemaLike, name: str | None = None) -> Stream:
        """What `function` makes of each record, both as a dict. Row by row is slow: prefer expressions or batches."""
        _check_callable(function, "map")
        given = as_schema(schema, argument="schema")
        return self._then_function(
            MapStep(function=function, flat=False, schema=given), given, kind="map", name=name
        )

    def flat_map(
        self, function: Callable[[Row], Iterable[Row]], *, schema: SchemaLike, name: str | None = None
    ) -> Stream:
        """The records, any number of them, that `function` makes of each record, all as dicts."""
        _check_callable(function, "flat_map")
        given = as_schema(schema, argument="schema")
        return self._then_function(
            MapStep(function=function, flat=True, schema=given), given, kind="flat_map", name=name
        )

    # --- time and distribution ---------------------------------------------------------------------------------------

    def watermark(
        self, column: str, *, delay: Duration = "0s", idle_after: Duration | None = None, name: str | None = None
    ) -> Stream:
        """Event time is in `column`, and records come at most `delay` later than one with a greater time.

        Records that come later than that are late: windows that are closed do not count them. A part of the input that
        has been silent for `idle_after` no longer holds the others back; without it, it does so for ever.
        """
        self._check_columns([column], "watermark")
        kind = self.schema.field(column).type
        if not isinstance(kind, pa.TimestampType) or kind.unit != "us":
            raise UsageError(
                f"watermark: column {column!r} is of type {kind}, event time must be timestamp[us]",
                hint=f'convert it first: .with_columns({column}="CAST({column} AS TIMESTAMP)")',
            )
        step = WatermarkStep(
            column=column,
            delay_us=duration_us(delay, argument="delay"),
            idle_after_ms=None if idle_after is None else duration_ms(idle_after, argument="idle_after"),
        )
        if step.idle_after_ms == 0:
            raise UsageError(f"idle_after is {idle_after!r}; give a duration above 0, or None to wait for ever")
        return self._then(step, kind="watermark", name=name, time_column=column)

    def key_by(self, *columns: str) -> KeyedStream:
        """The same records, where those with equal values in these columns belong together."""
        self._check_columns(columns, "key_by")
        check_key_types(self.schema, columns)
        return KeyedStream(self._state, columns)

    def rebalance(self) -> Stream:
        """The same records, dealt out evenly to the subtasks of the next step."""
        return Stream(replace(self._state, partitioning=Partitioning.REBALANCE))

    # --- ends and views ----------------------------------------------------------------------------------------------

    def write(self, sink: Sink, *, name: str | None = None) -> None:
        """Put all records into `sink`."""
        if not isinstance(sink, Sink):
            raise UsageError(f"write takes a sink, not {sink!r}", hint="for example parquet('out')")
        for step in self._state.ledger.steps:
            if isinstance(step.step, WriteStep) and step.step.sink is sink:
                raise UsageError(
                    f"one sink cannot be written by two steps; the other is {step}",
                    hint="make a second sink, with a target of its own",
                )
        sink.check(self.schema)
        self._state.ledger.add(
            WriteStep(sink=sink, schema=self.schema), kind=sink.name, name=name, inputs=self._state.input()
        )

    def name(self, text: str) -> Stream:
        """This stream, with the step that makes it named `text`."""
        self._state.ledger.name_step(self._state.last_step, text)
        return self

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._state.schema

    def explain(self) -> str:
        """The part of the plan that leads to this stream, as text."""
        ledger = self._state.ledger
        nodes = ledger.nodes(ledger.path_to(self._state.last_step))
        return explain_plan(build_plan(nodes, parallelism=1, max_parallelism=None))

    def __repr__(self) -> str:
        return f"<Stream {_described(self._state)}>"

    # --- how steps are made ------------------------------------------------------------------------------------------

    def _then(self, step: Step, *, kind: str, name: str | None = None, **changes: Any) -> Stream:
        raise NotImplementedError
