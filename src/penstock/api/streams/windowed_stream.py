"""Keyed records in windows of event time."""

from __future__ import annotations

from penstock.api.aggregates import AggregateCall, named_aggregate
from penstock.api.boundary import at_user_line
from penstock.api.steps import LATE, CombineStep, WindowStep
from penstock.api.streams.data_stream import Stream
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import WindowType
from penstock.plan.graph import Input, Partitioning


@at_user_line
class WindowedStream:
    """Records of each key in windows of event time. Made by `KeyedStream.window`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...], window: WindowType) -> None:
        self._state = state
        self._keys = keys
        self._window = window

    def aggregate(self, **aggregates: AggregateCall) -> Stream:
        """One record per key and window, when the watermark has passed the end of the window: the keys, `window_start`,
        `window_end` and one column per aggregate, such as `n=count(), top=max("price")`.

        Records that come after their windows have been emitted are dropped and counted, or are in the stream `late()`
        of the result.

        To name the step, call `.name(...)` on the result; the state of the step is kept under that name.
        """
        calls = [named_aggregate(name, call) for name, call in aggregates.items()]
        state, keys = self._state, self._keys
        assert state.time_column is not None
        partial = partial_schema(
            state.schema, keys=keys, time_column=state.time_column, aggregates=calls, window=self._window
        )
        result = result_schema(state.schema, keys=keys, time_column=state.time_column, aggregates=calls)
        combine = CombineStep(
            keys=keys, time_column=state.time_column, window=self._window, aggregates=tuple(calls), schema=partial
        )
        combined = state.ledger.add(combine, kind="combine", inputs=state.input())
        windowed = state.ledger.add(
            WindowStep(
                keys=keys,
                window=self._window,
                aggregates=tuple(calls),
                schema=result,
                late=None if self._window.merges else state.late_records,
            ),
            kind="window",
            label="-".join(("window", *keys)),
            inputs=(Input(node=combined, partitioning=Partitioning.HASH, keys=keys),),
        )
        lost = f"the event time in {state.time_column!r} ended with {state.ledger.step(windowed)}"
        sides = {} if self._window.merges else {LATE: state.late_behind(windowed)}
        return Stream(StreamState(ledger=state.ledger, last_step=windowed, schema=result, time_lost=lost, sides=sides))

    def __repr__(self) -> str:
        return f"<WindowedStream of {self._window} by {', '.join(self._keys)} of {self._state.described()}>"
