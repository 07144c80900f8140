"""Records in the order of their event time: the step of `sort`, made from what a user said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from penstock.api.aggregate_kinds.base import KEPT, can_be_kept
from penstock.api.boundary import at_user_line
from penstock.api.steps import LATE, SortStep
from penstock.api.streams.ranking import By, Descending, check_can_order
from penstock.api.streams.stream_state import StreamState
from penstock.core.errors import UsageError
from penstock.sql.schemas import unknown_column


@at_user_line
class Sorts:
    """The method of a stream that puts its records in the order of their event time."""

    _state: StreamState

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def sort(self, by: By | None = None, *, descending: Descending = False, name: str | None = None) -> Self:
        """All records of the stream, in the order of their event time: a record leaves when the watermark has come to
        its time, behind all records of earlier times.

        Needs a watermark before. The records go to a single subtask, because they have one order; `key_by(...).sort()`
        puts the records of each key in order, in all subtasks.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [{"ts": datetime.datetime(2026, 1, 1, 12, minute)} for minute in (3, 1, 2)]
        ...     events = env.from_iterable(rows).watermark("ts", delay="5 min")
        ...     events.sort().select(minute="minute(ts)").write(ps.collect())
        >>> [row["minute"] for row in run(program)]
        [1, 2, 3]

        `by` may name further columns, behind the column of the event time: `by=["ts", "price"]`, with a direction for
        each column in `descending`; event time is ascending. Records that are equal in `by` are ordered by all their
        other columns, in the order of the columns, ascending, so the order depends on the records alone. Nulls and NaN
        are ordered as in Spark.

        Late records would break the order: they are dropped and counted, or are in the stream `late()` of the result.
        Records without a time are dropped and counted. Records wait as state, which is kept under `name`.
        """
        state = self._state
        return self._with_state(sorted_by_time(state, state.to_one(), (), by, descending=descending, name=name))


def sorted_by_time(
    state: StreamState,
    placed: StreamState,
    keys: tuple[str, ...],
    by: By | None,
    *,
    descending: Descending,
    name: str | None,
) -> StreamState:
    """A stream with the records of another stream in the order of event time. `placed` is the other stream, as it
    reaches the step. Raises `UsageError` if the records cannot be sorted."""
    late = state.late_records
    state.refuse_changelog("sort")
    if late is None:
        lost = f": {state.time_lost}" if state.time_lost else ""
        raise UsageError(
            f"sort needs event time, and this stream has none{lost}",
            hint='add .watermark("<column>", delay="5s") before: records leave when the watermark has come to their '
            "time. For the first records of an order whatever their times: key_by(...).top(10, by=...)",
        )
    for field in state.schema:
        if not can_be_kept(field.type):
            raise UsageError(
                f"sort: column {field.name!r} of type {field.type} cannot be kept in state",
                hint=f"state keeps {KEPT}; cast the column, or drop it before",
            )
    step = SortStep(
        keys=keys,
        late=late,
        order=_further_columns(state, late.time_column, by, descending),
        schema=state.schema,
    )
    inputs = (placed.input_by_key(keys),) if keys else placed.input()
    number = state.ledger.add(step, kind="sort", label="-".join(("sort", *keys)), inputs=inputs, name=name)
    return replace(state.behind(number, state.schema), sides={LATE: state.late_behind(number)})


def _further_columns(
    state: StreamState, time: str, by: By | None, descending: Descending
) -> tuple[tuple[str, bool], ...]:
    """The columns that order records of the same time, each with whether it is descending."""
    names = (time,) if by is None else (by,) if isinstance(by, str) else tuple(by)
    given = tuple(descending) if isinstance(descending, Sequence) else (False, *[descending] * (len(names) - 1))
    if isinstance(descending, bool) and descending and len(names) == 1:
        given = (True,)
    if not names or len(given) != len(names) or not all(isinstance(each, bool) for each in given):
        raise UsageError(
            f"sort: by is {by!r}, and descending is {descending!r}",
            hint=f'give one or several columns, and a direction for each: by=["{time}", "price"], '
            "descending=[False, True]",
        )
    for name in names:
        if name not in state.schema.names:
            raise unknown_column(name, state.schema.names, argument="sort: by")
    if names[0] != time or given[0]:
        order = f"{names[0]} descending" if given[0] else str(names[0])
        raise UsageError(
            f"sort: records are ordered by event time first, which is in {time!r}, and by begins with {order}",
            hint=f'write by=["{time}", ...]; for an order without time, take key_by(...).top(n, by=...) or a window',
        )
    for each in names[1:]:
        check_can_order(each, state.schema, "sort")
    return tuple(zip(names[1:], given[1:], strict=True))
