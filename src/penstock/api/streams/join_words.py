"""The steps of joins, made from what a user said: which columns are compared, which columns come out, where event time
is, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from penstock.api.expressions import ExpressionLike, compile_condition
from penstock.api.join_steps import (
    LATE_OF_RIGHT,
    LEFT,
    RIGHT,
    Interval,
    JoinedColumn,
    JoinKind,
    JoinSide,
    JoinStep,
    Reach,
    SameWindow,
    TableJoinStep,
    VersionJoinStep,
)
from penstock.api.static_tables import StaticTable
from penstock.api.steps import LATE
from penstock.api.streams.stream_state import StreamState
from penstock.api.window_schema import WINDOW_END, WINDOW_START, check_key_types
from penstock.api.windows import TumblingWindow
from penstock.core.durations import Duration, duration_us
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning
from penstock.sql.schemas import unknown_column

On = str | Sequence[str] | Mapping[str, str]
"""The columns that are equal in both streams: names, or names on the left with the names on the right."""

How = Literal["inner", "left", "right", "full", "semi", "anti"]

Within = Duration | tuple[Duration, Duration]


@dataclass(frozen=True, kw_only=True)
class JoinWords:
    """What a user said about a join."""

    on: On
    how: str
    where: ExpressionLike | None
    suffix: str | None
    name: str | None


def joined_by_time(left: StreamState, right: StreamState, reach: Reach, words: JoinWords) -> StreamState:
    """What is known about the records of a join of two streams with event time. Raises `UsageError`."""
    how = join_kind(words.how, tuple(JoinKind))
    keys = join_keys(words.on, left.schema, right.schema)
    timed = _timed(left, "this stream"), _timed(right, "the other stream")
    sides = [
        JoinSide(keys=each, schema=state.schema, time_column=column, time_offset_us=state.time_offset_us)
        for each, state, column in zip(keys, (left, right), timed, strict=True)
    ]
    bounds = window_bounds(sides[LEFT]) if isinstance(reach, SameWindow) and how.has_pairs else ()
    pairs = pair_columns(sides[LEFT], sides[RIGHT], suffix=words.suffix, bounds=bounds)
    columns = pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None)
    time_column, offset_us, side = _time_behind(how, sides, columns, has_bounds=bool(bounds))
    where, read = compiled_where(words.where, pairs)
    step = JoinStep(
        left=sides[LEFT],
        right=sides[RIGHT],
        how=how,
        reach=reach,
        columns=columns,
        where=where,
        where_columns=read,
        hold_us=0 if side is None else reach.hold_us(side),
    )
    inputs = (left.input_by(Partitioning.HASH, keys[LEFT]), right.input_by(Partitioning.HASH, keys[RIGHT]))
    label = "-".join(("join", *keys[LEFT]))
    ledger = left.ledger
    number = ledger.add(step, kind="join", label=label, inputs=inputs, name=words.name)
    lost = None if time_column else f"{ledger.step(number)} is a full join, whose records may lack either time"
    return StreamState(
        ledger=ledger,
        last_step=number,
        schema=step.schema,
        time_column=time_column,
        time_offset_us=offset_us,
        time_lost=lost,
        sides={LATE: left.late_behind(number), LATE_OF_RIGHT: replace(right.late_behind(number), side=LATE_OF_RIGHT)},
    )


def _time_behind(
    how: JoinKind, sides: Sequence[JoinSide], columns: Sequence[JoinedColumn], *, has_bounds: bool
) -> tuple[str | None, int, int | None]:
    """The column with the event time behind a join, its offset, and the side whose time it is; None if it is the time
    of neither side."""
    if has_bounds:
        return WINDOW_END, -1, None
    if how is JoinKind.FULL:
        return None, 0, None
    side = RIGHT if how is JoinKind.RIGHT else LEFT
    time = sides[side].time_column
    found = next(c for c in columns if (c.left if side == LEFT else c.right) == time)
    return found.field.name, sides[side].time_offset_us, side


def window_bounds(side: JoinSide) -> tuple[pa.Field[Any], pa.Field[Any]]:
    """The columns with the bounds of windows, of the type of the times of a side."""
    kind = side.schema.field(side.time_column).type
    return pa.field(WINDOW_START, kind), pa.field(WINDOW_END, kind)


@dataclass(frozen=True, kw_only=True)
class ColumnsByKey:
    """A side of a join without event time."""

    keys: tuple[str, ...]
    schema: pa.Schema


def joined_with_table(left: StreamState, table: StaticTable, words: JoinWords, *, by_key: bool) -> StreamState:
    """What is known about the records of a join of a stream with a table. Raises `UsageError`."""
    how = join_kind(words.how, _TABLE_KINDS, what="join with a table")
    keys = join_keys(words.on, left.schema, table.schema, other="the table")
    sides = ColumnsByKey(keys=keys[LEFT], schema=left.schema), ColumnsByKey(keys=keys[RIGHT], schema=table.schema)
    pairs = pair_columns(*sides, suffix=words.suffix)
    where, read = compiled_where(words.where, pairs)
    step = TableJoinStep(
        keys=keys[LEFT],
        table_keys=keys[RIGHT],
        table=table,
        by_key=by_key,
        how=how,
        columns=pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None),
        where=where,
        where_columns=read,
    )
    inputs = (left.input_by(Partitioning.HASH, keys[LEFT]),) if by_key else left.input()
    number = left.ledger.add(step, kind="join", label="-".join(("join", *keys[LEFT])), inputs=inputs, name=words.name)
    return left.behind(number, step.schema)


_TABLE_KINDS = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)
"""The kinds of joins with a table. Which rows of a table match nothing is not known before the stream has ended."""


def joined_with_versions(left: StreamState, versions: Versions, words: JoinWords, *, as_of: str | None) -> StreamState:
    """What is known about the records of a join of a stream with a versioned stream. Raises `UsageError`."""
    how, right = join_kind(words.how, _TABLE_KINDS, what="join with versions"), versions.state
    keys = join_keys(words.on, left.schema, right.schema)
    if sorted(keys[RIGHT]) != sorted(versions.keys):
        raise UsageError(
            f"join: the versions are by {', '.join(versions.keys)}, and on has {', '.join(keys[RIGHT])}",
            hint="give the same columns to versioned(...) and to on",
        )
    time = _timed(left, "this stream")
    if as_of is not None and as_of not in left.schema.names:
        raise unknown_column(as_of, left.schema.names, argument="join: as_of")
    if as_of not in (None, time):
        raise UsageError(
            f"join: as_of is {as_of!r}, and the event time of this stream is in {time!r}",
            hint=f'leave as_of out, or add .watermark("{as_of}", delay="5s") to this stream before the join',
        )
    sides = [
        JoinSide(keys=each, schema=state.schema, time_column=column, time_offset_us=state.time_offset_us)
        for each, state, column in zip(keys, (left, right), (time, _timed(right, "the versioned stream")), strict=True)
    ]
    pairs = pair_columns(sides[LEFT], sides[RIGHT], suffix=words.suffix)
    where, read = compiled_where(words.where, pairs)
    step = VersionJoinStep(
        left=sides[LEFT],
        right=sides[RIGHT],
        how=how,
        columns=pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None),
        where=where,
        where_columns=read,
    )
    inputs = (left.input_by(Partitioning.HASH, keys[LEFT]), right.input_by(Partitioning.HASH, keys[RIGHT]))
    number = left.ledger.add(step, kind="join", label="-".join(("join", *keys[LEFT])), inputs=inputs, name=words.name)
    return replace(left.behind(number, step.schema), sides={LATE: left.late_behind(number)})


# --- what was said -------------------------------------------------------------------------------------------------


def join_kind(given: object, known: Sequence[JoinKind], *, what: str = "join") -> JoinKind:
    """The kind of that name. Raises `UsageError` unless it is one of the known kinds."""
    names = [kind.value for kind in known]
    if given in names:
        return JoinKind(given)
    if given in [kind.value for kind in JoinKind]:
        raise UsageError(f"{what}: how={given!r} does not exist for this join; there are {', '.join(names)}")
    word = str(given).lower().removesuffix("outer").strip("_ ") or "full"
    near = get_close_matches("full" if word[:2] == "ou" else word, names, n=1, cutoff=0.5)
    raise UsageError(
        f"{what}: how={given!r} is no kind of join; there are {', '.join(names)}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


def join_keys(
    on: object, left: pa.Schema, right: pa.Schema, *, other: str = "the other stream"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both sides. Raises `UsageError` unless they exist, and have the same types."""
    if isinstance(on, str):
        on = (on,)
    pairs: list[tuple[Any, Any]]
    if isinstance(on, Mapping):
        pairs = list(on.items())
    elif isinstance(on, Sequence):
        pairs = [(name, name) for name in on]
    else:
        raise UsageError(
            f"join: on is {on!r}",
            hint='give a column, on="id", several columns, on=["a", "b"], or a dict from the columns of this stream to '
            'the columns of the other stream, on={"id": "order_id"}',
        )
    for name, schema, whose in (
        *((name, left, "this stream") for name, _ in pairs),
        *((name, right, other) for _, name in pairs),
    ):
        if not isinstance(name, str):
            raise UsageError(f"join: on has {name!r}, which is no name of a column")
        if name not in schema.names:
            raise unknown_column(name, schema.names, argument=f"join: on, in {whose}")
    keys = tuple(one for one, _ in pairs), tuple(name for _, name in pairs)
    for names, schema in zip(keys, (left, right), strict=True):
        check_key_types(schema, names)
    for one, with_which in pairs:
        first, second = left.field(one).type, right.field(with_which).type
        if first != second:
            raise UsageError(
                f"join: column {one!r} of this stream is of type {first}, and column {with_which!r} of {other} is of "
                f"type {second}",
                hint=f'cast one of them before the join, for example .with_columns({one}="CAST({one} AS ...)")',
            )
    return keys


class Columns(Protocol):
    """A side of a join: its columns and its keys."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""

    @property
    def schema(self) -> pa.Schema:
        """All columns."""


def pair_columns(
    left: Columns, right: Columns, *, suffix: str | None, bounds: Sequence[pa.Field[Any]] = ()
) -> tuple[JoinedColumn, ...]:
    """The columns of pairs: the keys with the names of the left side, the bounds of the window, the other columns of
    the left side, and of the right side. Raises `UsageError` for two columns of the same name."""
    if suffix is not None and (not isinstance(suffix, str) or not suffix):
        raise UsageError(f"join: suffix is {suffix!r}", hint='give a text, for example suffix="_right"')
    columns = [
        JoinedColumn(field=pa.field(one, left.schema.field(one).type), left=one, right=other)
        for one, other in zip(left.keys, right.keys, strict=True)
    ]
    columns += [JoinedColumn(field=bound) for bound in bounds]
    columns += [
        JoinedColumn(field=pa.field(field.name, field.type), left=field.name)
        for field in left.schema
        if field.name not in left.keys
    ]
    taken = [column.field.name for column in columns]
    for name in (bound.name for bound in bounds):
        if taken.count(name) > 1:
            raise UsageError(
                f"join: this stream has a column {name!r}, and the result has the bounds of the window in columns of "
                "that name",
                hint=f'rename it before the join: .rename({{"{name}": "..."}})',
            )
    for field in right.schema:
        if field.name in right.keys:
            continue
        name = field.name + suffix if suffix is not None and field.name in taken else field.name
        if name in taken:
            raise UsageError(
                f"join: both streams have a column {field.name!r}",
                hint=f'say how the columns of the other stream are named then, suffix="_right", or rename one before '
                f'the join: .rename({{"{field.name}": "..."}})'
                if suffix is None
                else f"there is a column {name!r}, too: give another suffix",
            )
        taken.append(name)
        columns.append(JoinedColumn(field=pa.field(name, field.type), right=field.name))
    return tuple(columns)


def compiled_where(where: ExpressionLike | None, pairs: Sequence[JoinedColumn]) -> tuple[Any, tuple[JoinedColumn, ...]]:
    """The extra condition as an expression, and the columns that the condition reads."""
    if where is None:
        return None, ()
    condition = compile_condition(where, pa.schema([column.field for column in pairs]), argument="join: where")
    roots = condition.meta.root_names()
    return condition, tuple(column for column in pairs if column.field.name in roots) or tuple(pairs[:1])


def interval_of(within: object) -> Interval:
    """The reach that `within` means. Raises `UsageError`."""
    if isinstance(within, tuple | list):
        if len(within) != 2:
            raise UsageError(f"join: within has {len(within)} durations", hint=_WITHIN)
        lower, upper = (_signed_us(each) for each in within)
    else:
        upper = _signed_us(within)
        lower = -upper
    if lower > upper:
        raise UsageError(f"join: within is {within!r}, which begins after it ends", hint=_WITHIN)
    return Interval(lower_us=lower, upper_us=upper)


_WITHIN = (
    'give the least and the greatest time of the other record minus the time of this record, within=("-5 min", '
    '"1 h"), or one duration for both directions, within="5 min"'
)


def _signed_us(given: object) -> int:
    if isinstance(given, timedelta):
        return duration_us(given, argument="join: within") if given >= timedelta() else -_signed_us(-given)
    if isinstance(given, str) and given.lstrip().startswith("-"):
        return -duration_us(given.lstrip()[1:], argument="join: within")
    if not isinstance(given, str):
        raise UsageError(f"join: within has {given!r}, which is no duration", hint=_WITHIN)
    return duration_us(given, argument="join: within")


def window_reach(window: object) -> SameWindow:
    """The reach of records in the same window. Raises `UsageError`."""
    if not isinstance(window, TumblingWindow):
        raise UsageError(
            f"join: window is {window!r}; streams can be joined in tumbling windows",
            hint='give window=tumbling("10s"), or a time between the records, within="10s"',
        )
    return SameWindow(window=window)


def _timed(state: StreamState, which: str) -> str:
    """The time column of a side. Raises `UsageError` if there is none."""
    if state.time_column is not None:
        return state.time_column
    times = [field.name for field in state.schema if pa.types.is_timestamp(field.type)]
    raise UsageError(
        f"join by time needs event time, and {which} has none" + (f": {state.time_lost}" if state.time_lost else ""),
        hint=f'add .watermark("{times[0] if times else "ts"}", delay="5s") to {which} before the join',
    )


class Versions(NamedTuple):
    """The records of a stream that are versions, and the columns that tell what they are versions of."""

    state: StreamState
    keys: tuple[str, ...]


def check_same_environment(left: StreamState, right: StreamState) -> None:
    """Raise `UsageError` unless the streams are of one environment."""
    if left.ledger is not right.ledger:
        raise UsageError(
            "join takes a stream of the same environment, and the other stream is of another environment",
            hint="read all sources with the same environment",
        )


def check_joinable(left: StreamState, right: StreamState) -> None:
    """Raise `UsageError` unless the streams are of one environment, and their records stay as they are."""
    check_same_environment(left, right)
    for state in (left, right):
        if state.changelog is not None:
            raise UsageError(
                f"this join takes records that stay as they are, and {state.ledger.step(state.last_step)} makes "
                f"{state.changelog}: rows that change",
                hint='join without a limit of time, with ttl="1 h" or ttl=None: that join takes changelogs; or call '
                ".changes() before, which makes a record of each change",
            )


def check_versions(versions: Versions) -> None:
    """Raise `UsageError` unless the columns tell versions apart, and the versions have event time."""
    state, keys = versions
    for key in keys:
        if key not in state.schema.names:
            raise unknown_column(key, state.schema.names, argument="versioned")
    check_key_types(state.schema, keys)
    # Asked first: event time is lost where rows change, and to add a watermark would be no way out.
    state.refuse_changelog("versioned")
    _timed(state, "a versioned stream")
