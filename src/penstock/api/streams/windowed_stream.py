"""Records in windows of event time."""

from __future__ import annotations

import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregates import AggregateCall, named_aggregate
from penstock.api.boundary import at_user_line
from penstock.api.steps import LATE, CombineStep, WindowStep
from penstock.api.streams.data_stream import Stream
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import WINDOW_END, partial_schema, result_schema
from penstock.api.windows import WindowType
from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError
from penstock.plan.graph import Input, Partitioning


@at_user_line
class WindowedStream:
    """Records of each key, or all records, in windows of event time. Made by `KeyedStream.window` and by
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
        state, keys = self._state, self._keys
        assert state.time_column is not None
        calls = [
            named_aggregate(name, call, schema=state.schema, time_column=state.time_column)
            for name, call in aggregates.items()
        ]
        partial = partial_schema(
            state.schema, keys=keys, time_column=state.time_column, aggregates=calls, window=self._window
        )
        result = result_schema(state.schema, keys=keys, time_column=state.time_column, aggregates=calls)
        combine = CombineStep(
            keys=keys,
            time_column=state.time_column,
            window=self._window,
            aggregates=tuple(calls),
            schema=partial,
            time_offset_us=state.time_offset_us,
        )
        combined = state.ledger.add(combine, kind="combine", inputs=state.input())
        windowed = state.ledger.add(
            WindowStep(
                keys=keys,
                window=self._window,
                aggregates=tuple(calls),
                schema=result,
                late=state.late_records,
                lateness_us=self._lateness_us,
            ),
            kind="window",
            label="-".join(("window", *keys)),
            inputs=(Input(node=combined, partitioning=Partitioning.HASH, keys=keys),),
        )
        return Stream(
            StreamState(
                ledger=state.ledger,
                last_step=windowed,
                schema=result,
                time_column=WINDOW_END,
                time_offset_us=-1,
                sides={LATE: state.late_behind(windowed)},
            )
        )

    def __repr__(self) -> str:
        by = f" by {', '.join(self._keys)}" if self._keys else ""
        return f"<WindowedStream of {self._window}{by} of {self._state.described()}>"


def windowed(
    state: StreamState, keys: tuple[str, ...], window: WindowType, *, allowed_lateness: Duration = "0s"
) -> WindowedStream:
    """The records of each key, or all records without keys, in windows. Raises `UsageError` if `window` is no window,
    or if there is no event time."""
    lateness_us = duration_us(allowed_lateness, argument="allowed_lateness")
    if not isinstance(window, WindowType):
        raise UsageError(f"window takes a window, not {window!r}", hint='for example tumbling("10s")')
    state.refuse_changelog("window")
    if state.time_column is None:
        times = [field.name for field in state.schema if pa.types.is_timestamp(field.type)]
        place = "key_by" if keys else "window"
        raise UsageError(
            "window needs event time, and this stream has none" + (f": {state.time_lost}" if state.time_lost else ""),
            hint=f'add .watermark("{times[0] if times else "ts"}", delay="5s") before {place}'
            + ("" if times else "; there is no column of type timestamp yet"),
        )
    return WindowedStream(state, keys, window, lateness_us=lateness_us)
