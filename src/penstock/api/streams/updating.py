"""Results of windows: once, when they are final, or as they change."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from penstock.api.aggregate_kinds.registry import kind_of
from penstock.api.boundary import at_user_line
from penstock.api.changelog import Changelog, with_row_kind
from penstock.api.other_windows import CountWindow, GlobalWindow
from penstock.api.steps import ROW_COUNT, UPDATES, Aggregate, CombineStep, Updates, WindowStep
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import WindowType
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError

_EVERY = 'give a duration ("5s"), a number of records (1000), or "change"'


@at_user_line
class HasResultsOfWindows:
    """The methods of the stream that `aggregate` of a window returns."""

    _state: StreamState

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def final(self) -> Self:
        """The result of each window once, when it can no longer change: when the watermark has passed the end of the
        window, and has passed it by the allowed lateness. This is what `aggregate` returns anyway.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     clicks = env.from_iterable([{"ms": 1_000}, {"ms": 2_000}]).with_columns(ts="timestamp_millis(ms)")
        ...     windows = clicks.watermark("ts").window(ps.tumbling("10s"), allowed_lateness="1 min")
        ...     windows.aggregate(n=ps.count()).final().select("n").write(ps.collect())
        >>> run(program)
        [{'n': 2}]
        """
        self._window("final")
        return self

    def updates(self, *, every: Duration | int | Literal["change"] | None = None) -> Self:
        """The results of the windows as they change, as a changelog: `row_kind` says what each record does to a row.

        A result is inserted when the watermark has passed the end of the window. Each record that comes after that,
        within the allowed lateness, updates the result: an `update_before` and an `update_after`. A session that grows
        after that, or becomes one with another session, is deleted, and another session is inserted.

        With `every` there are early results, too, of windows that have changed since their last result:

        * `every="5s"`: five seconds after the first change that was not shown, by the clock;
        * `every=1000`: after so many records of a window (of a key, where windows overlap);
        * `every="change"`: at every batch of records.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     clicks = env.from_iterable([{"ms": 1_000}, {"ms": 2_000}]).with_columns(ts="timestamp_millis(ms)")
        ...     windows = clicks.watermark("ts").window(ps.tumbling("10s"))
        ...     windows.aggregate(n=ps.count()).updates(every=1).select("n").changes().write(ps.collect())
        >>> run(program, parallelism=1)
        [{'n': 2, 'row_kind': 'insert'}]

        The stream has no event time: an update comes behind the watermark.
        """
        number, step = self._window("updates")
        state, updates = self._state, _updates(every)
        if step.updates is not None:
            raise UsageError(
                f"the window {state.ledger.step(number)} shows updates already",
                hint="call updates() once, and use the stream that it returns for everything",
            )
        _check_can_update(step.window, updates)
        combined = state.ledger.step(number).inputs[0].node
        combine = state.ledger.step(combined).step
        assert isinstance(combine, CombineStep)
        aggregates, partials = step.aggregates, combine.schema
        if updates.every_rows is not None:
            counted = Aggregate(name=ROW_COUNT, kind="count", column=None)
            aggregates = (*aggregates, counted)
            partials = partials.append(kind_of(counted).partial_fields(counted, partials)[0])
        schema = with_row_kind(step.schema)
        state.ledger.change_step(combined, replace(combine, aggregates=aggregates, schema=partials, holds=False))
        state.ledger.change_step(
            number, replace(step, aggregates=aggregates, schema=schema, updates=updates, partials=partials)
        )
        bounds = tuple(name for name in (WINDOW_START, WINDOW_END) if name in step.schema.names)
        return self._with_state(
            StreamState(
                ledger=state.ledger,
                last_step=number,
                schema=schema,
                time_lost=f"the updates of {state.ledger.step(number)} come behind the watermark",
                side=UPDATES,
                sides=state.sides,
                changelog=Changelog(keys=(*step.keys, *bounds)),
            )
        )

    def _window(self, method: str) -> tuple[int, WindowStep]:
        """The number and the step of the window that makes the records of this stream."""
        state = self._state
        recorded = state.ledger.step(state.last_step)
        if not isinstance(recorded.step, WindowStep) or state.side is not None:
            raise UsageError(
                f"{method}: {recorded} is not the aggregate of a window",
                hint=f"call {method}() on what window(...).aggregate(...) returns",
            )
        return recorded.number, recorded.step


def _updates(every: Duration | int | Literal["change"] | None) -> Updates:
    if every is None:
        return Updates()
    if every == "change":
        return Updates(every_batch=True)
    if isinstance(every, int):
        if isinstance(every, bool) or every < 1:
            raise UsageError(f"every is {every!r}; the number of records must be a whole number above 0", hint=_EVERY)
        return Updates(every_rows=every)
    try:
        every_ms = duration_ms(every, argument="every")
    except UsageError as error:
        raise UsageError(str(error), hint=_EVERY) from error
    if every_ms == 0:
        raise UsageError(f"every is {every!r}; give a duration above 0", hint=_EVERY)
    return Updates(every_ms=every_ms)


def _check_can_update(window: WindowType, updates: Updates) -> None:
    """Raise `UsageError` unless windows of the type can show updates."""
    if isinstance(window, CountWindow):
        raise UsageError(
            f"updates: a window of {window} has its result when it is full, and the result does not change",
            hint="leave updates() out, or use global_window() with updates(every=...)",
        )
    if window.by_clock:
        raise UsageError(
            f"updates: windows of {window} have no early results",
            hint="use shorter windows, or windows of event time, or global_window() with updates(every=...)",
        )
    if isinstance(window, GlobalWindow) and not updates.is_early:
        raise UsageError(
            "updates: a window with all records is complete at the end of the data, and has no updates before",
            hint=f"say how often to show the result: {_EVERY}",
        )
