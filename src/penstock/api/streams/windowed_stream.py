"""Records in windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregate_kinds.description import ROWS
from penstock.api.aggregates import AggregateCall, named_aggregate
from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable
from penstock.api.inference import BatchKind, batch_kind
from penstock.api.other_windows import CountWindow
from penstock.api.steps import (
    LATE,
    ROW_COUNT,
    WINDOW_ROWS,
    Aggregate,
    ApplyStep,
    CombineStep,
    ListedRowsStep,
    WindowStep,
)
from penstock.api.streams.data_stream import Stream
from penstock.api.streams.ranking import By, Descending, TopWords, checked_top, listed_rows
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import WINDOW_END, partial_schema, result_schema
from penstock.api.windows import WindowType
from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning
from penstock.sql.schemas import SchemaLike, as_schema


@at_user_line
class WindowedStream:
    """Records of each key, or all records, in windows. Made by `KeyedStream.window` and by
    `Stream.window`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...], window: WindowType, *, lateness_us: int = 0) -> None:
        self._state = state
        self._keys = keys
        self._window = window
        self._lateness_us = lateness_us

    def aggregate(self, **aggregates: AggregateCall | AggregateFunction) -> Stream:
        """One record per key and window, when the watermark has passed the end of the window: the keys, `window_start`,
        `window_end` and one column per aggregate, such as `n=count(), top=max("price")`.

        The results have event time: the last microsecond before `window_end`. So windows of results follow without
        another watermark. Records that come after their windows have been emitted are dropped and counted, or are in
        the stream `late()` of the result. With `allowed_lateness` a window is emitted that much later.

            >>> import penstock as ps
            >>> from penstock.testing import collect, run
            >>> def program(env):
            ...     bids = env.from_iterable(
            ...         [("ann", 10, 1_000), ("bob", 30, 2_000), ("ann", 20, 3_000)],
            ...         schema="user string, price bigint, ms bigint",
            ...     )
            ...     timed = bids.with_columns(ts="timestamp_millis(ms)", item="1").watermark("ts")
            ...     timed.key_by("item").window(ps.tumbling("10s")).aggregate(
            ...         n=ps.count(),
            ...         best=ps.max_by("user", "price"),
            ...         of_ann=ps.mean("price", where="user = 'ann'"),
            ...     ).select("n", "best", "of_ann").write(collect())
            >>> run(program, parallelism=1)
            [{'n': 3, 'best': 'bob', 'of_ann': 15.0}]

        To name the step, call `.name(...)` on the result; the state of the step is kept under that name.
        """
        state = self._state
        calls = tuple(
            named_aggregate(name, call, schema=state.schema, time_column=state.time_column)
            for name, call in aggregates.items()
        )
        return self._aggregated(calls)

    def apply(
        self,
        function: Callable[..., Any],
        *,
        schema: SchemaLike,
        kind: BatchKind | None = None,
        name: str | None = None,
    ) -> Stream:
        """What `function` makes of all records of each key and window, when the window is complete: the keys,
        `window_start`, `window_end`, and the columns of `schema`, which the function returns.

        The function gets the records with all their columns, in the order in which they came, as `map_batches` would
        give them: the annotation of its first parameter, or `kind`, says "arrow", "table", "polars" or "pandas". It
        returns the same kind, several of them, or None. A second parameter gets a dict with the key and the bounds of
        the window. The records are kept, in columns, until the window is complete; an aggregate keeps less. `name` is
        the name of the step that keeps them.

            >>> import polars as pl
            >>> import penstock as ps
            >>> from penstock.testing import run
            >>> def longest_pause(rows: pl.DataFrame) -> pl.DataFrame:
            ...     return rows.sort("ms").select(pause=pl.col("ms").diff().max())
            >>> def program(env):
            ...     rows = [{"ms": ms} for ms in (1_000, 1_500, 4_000)]
            ...     clicks = env.from_iterable(rows).with_columns(ts="timestamp_millis(ms)").watermark("ts")
            ...     pauses = clicks.window(ps.tumbling("10s")).apply(longest_pause, schema="pause bigint")
            ...     pauses.select("pause").write(ps.collect())
            >>> run(program)
            [{'pause': 2500}]

        """
        check_callable(function, "apply")
        state, takes, made = self._state, batch_kind(function, kind), as_schema(schema, argument="schema")
        columns = tuple(state.schema.names)
        windowed = self._aggregated((Aggregate(name=WINDOW_ROWS, kind=ROWS, column=None, parameters=columns),))
        if name is not None:
            windowed.name(name)
        before = windowed._state  # noqa: SLF001  # made here
        places = [field for field in windowed.schema if field.name != WINDOW_ROWS]
        both = sorted({field.name for field in places} & set(made.names))
        if both:
            raise UsageError(
                f"apply: the result has a column {both[0]!r} anyway, from the key or the window",
                hint="leave the column out of schema, or give it another name",
            )
        step = ApplyStep(
            function=function,
            kind=takes,
            takes_window=_takes_two(function),
            rows=state.schema,
            made=made,
            schema=pa.schema([*places, *made]),
        )
        number = state.ledger.add(step, kind="apply", inputs=before.input())
        return Stream(replace(before, last_step=number, schema=step.schema))

    def top(
        self,
        n: int,
        *,
        by: By,
        descending: Descending = True,
        rank: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """The first `n` records of each key and window in the order of the columns in `by`, when the window is
        complete: the keys, `window_start`, `window_end`, and the other columns of the records.

            >>> import penstock as ps
            >>> from penstock.testing import run
            >>> def program(env):
            ...     bids = env.from_iterable([("pen", 3), ("ink", 8), ("cup", 5)], schema="item string, price bigint")
            ...     timed = bids.with_columns(ts="timestamp_millis(price)").watermark("ts")
            ...     best = timed.window(ps.tumbling("10s")).top(2, by="price", rank="place")
            ...     best.select("item", "place").write(ps.collect())
            >>> sorted(run(program), key=lambda row: row["place"])
            [{'item': 'ink', 'place': 1}, {'item': 'cup', 'place': 2}]

        The order is that of `KeyedStream.top`: as Spark orders, and records that are equal in `by` are ordered by all
        their other columns. `rank` adds a column with the place of each record, from 1. Only `n` records of each key
        and window are sent and kept. The records have the event time of their window: the last microsecond before
        `window_end`. `name` is the name of the step that keeps the records.
        """
        state = self._state
        words = TopWords(most=n, by=by, descending=descending, rank=rank)
        order = checked_top(words, state.schema, self._keys)
        windowed = self._aggregated((listed_rows(words, order, state.schema, self._keys),))
        if name is not None:
            windowed.name(name)
        before = windowed._state  # noqa: SLF001  # made here
        places = [field for field in windowed.schema if field.name != WINDOW_ROWS]
        records = [field for field in state.schema if field.name not in self._keys]
        both = sorted({field.name for field in places} & {*(field.name for field in records), rank})
        if both:
            raise UsageError(
                f"top: the result has a column {both[0]!r} anyway, from the window",
                hint=f'rename the column before the window: .rename({{"{both[0]}": "..."}})',
            )
        ranks = [] if rank is None else [pa.field(rank, pa.int32())]
        step = ListedRowsStep(schema=pa.schema([*places, *records, *ranks]), rank=rank)
        number = state.ledger.add(step, kind="top", inputs=before.input())
        return Stream(replace(before, last_step=number, schema=step.schema))

    def _aggregated(self, calls: tuple[Aggregate, ...]) -> Stream:
        is_counted = isinstance(self._window, CountWindow)
        number = self._counted(calls) if is_counted else self._combined(calls)
        return self._behind(number, result=self._result(calls))

    def _result(self, calls: tuple[Aggregate, ...]) -> pa.Schema:
        state, time_column = self._state, self._time_column
        return result_schema(
            state.schema, keys=self._keys, time_column=time_column, aggregates=calls, window=self._window
        )

    def _partial(self, calls: tuple[Aggregate, ...]) -> pa.Schema:
        state, time_column = self._state, self._time_column
        return partial_schema(
            state.schema, keys=self._keys, time_column=time_column, aggregates=calls, window=self._window
        )

    @property
    def _time_column(self) -> str | None:
        return self._state.time_column if self._window.needs_time else None

    def _combined(self, calls: tuple[Aggregate, ...]) -> int:
        """The number of the window step, behind the step that combines records before they are sent by key."""
        state, window, result = self._state, self._window, self._result(calls)
        combine = CombineStep(
            keys=self._keys,
            time_column=self._time_column,
            window=window,
            aggregates=calls,
            schema=self._partial(calls),
            time_offset_us=state.time_offset_us if window.needs_time else 0,
            holds=window.needs_time,
        )
        combined = state.ledger.add(combine, kind="combine", inputs=state.input())
        step = WindowStep(
            keys=self._keys,
            window=window,
            aggregates=calls,
            schema=result,
            late=state.late_records if window.needs_time else None,
            lateness_us=self._lateness_us,
        )
        by_key = Input(node=combined, partitioning=Partitioning.HASH, keys=self._keys)
        return self._add(step, by_key)

    def _counted(self, calls: tuple[Aggregate, ...]) -> int:
        """The number of the step of windows of a number of records: which records are in a window depends on their
        order, so the records are sent by key as they are."""
        counted = (*calls, Aggregate(name=ROW_COUNT, kind="count", column=None))
        step = WindowStep(
            keys=self._keys,
            window=self._window,
            aggregates=counted,
            schema=self._result(calls),
            partials=self._partial(counted),
        )
        return self._add(step, self._state.input_by_key(self._keys))

    def _add(self, step: WindowStep, source: Input) -> int:
        return self._state.ledger.add(step, kind="window", label="-".join(("window", *self._keys)), inputs=(source,))

    def _behind(self, number: int, *, result: pa.Schema) -> Stream:
        state, window = self._state, self._window
        behind = StreamState(ledger=state.ledger, last_step=number, schema=result)
        if window.needs_time:
            sides = {LATE: state.late_behind(number)}
            return Stream(replace(behind, time_column=WINDOW_END, time_offset_us=-1, sides=sides))
        return Stream(replace(behind, time_lost=f"no event time belongs to the windows of {state.ledger.step(number)}"))

    def __repr__(self) -> str:
        by = f" by {', '.join(self._keys)}" if self._keys else ""
        return f"<WindowedStream of {self._window}{by} of {self._state.described()}>"


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether a function demands a second argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    demanded = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]
    return len(demanded) > 1


def windowed(
    state: StreamState, keys: tuple[str, ...], window: WindowType, *, allowed_lateness: Duration = "0s"
) -> WindowedStream:
    """The records of each key, or all records without keys, in windows. Raises `UsageError` if `window` is no window,
    or if there is no event time."""
    if not isinstance(window, WindowType):
        raise UsageError(f"window takes a window, not {window!r}", hint='for example tumbling("10s")')
    state.refuse_changelog("window")
    lateness_us = duration_us(allowed_lateness, argument="allowed_lateness")
    if lateness_us and not window.needs_time:
        raise UsageError(
            f"window: no record is late for {window}, so there is no allowed lateness",
            hint="leave allowed_lateness out, or use a window of event time",
        )
    if state.time_column is None and window.needs_time:
        times = [field.name for field in state.schema if pa.types.is_timestamp(field.type)]
        place = "key_by" if keys else "window"
        raise UsageError(
            "window needs event time, and this stream has none" + (f": {state.time_lost}" if state.time_lost else ""),
            hint=f'add .watermark("{times[0] if times else "ts"}", delay="5s") before {place}'
            + ("" if times else "; there is no column of type timestamp yet"),
        )
    return WindowedStream(state, keys, window, lateness_us=lateness_us)
