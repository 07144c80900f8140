"""Joins of a world's job: the left records are those of the first source. The right records are those of the second
source, or the rows of a table. What must come out is computed here by a loop over all pairs of records.

A record that matches nothing is handed on when the data is drained, and may match a record that comes when the data
goes on. So where a job has gone on after a drain, records may be shown without a match that have a match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, assert_never

import pyarrow as pa

from penstock.api.join_steps import (
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
from penstock.api.static_tables import GivenTable, StaticTable
from penstock.api.window_schema import WINDOW_END, WINDOW_START
from penstock.api.windows import TumblingWindow

Row = tuple[Any, ...]

NOTHING = -1
"""Stands in the columns of a record that is not there."""


@dataclass(frozen=True, kw_only=True)
class Joining:
    """How the job of a world joins its two sources."""

    how: JoinKind = JoinKind.INNER
    has_versions: bool = False
    """Whether the right records are versions, and `how` is a left join. Then the times of versions are shown, and not
    their other columns: two versions may have the same time."""
    reach: Reach = field(default_factory=lambda: Interval(lower_us=0, upper_us=0))


def draw_joining(random: Random, *, tick_us: int) -> Joining:
    """A kind of join, and how near the times of records must be."""
    lower_us, length_us = tick_us * random.choice((-20, -3, 0, 5)), tick_us * random.choice((0, 3, 15))
    size_us = tick_us * random.choice((3, 10))
    reaches: tuple[Reach, ...] = (
        Interval(lower_us=lower_us, upper_us=lower_us + length_us),
        Interval(lower_us=lower_us, upper_us=lower_us + length_us),
        SameWindow(window=TumblingWindow(size_us=size_us)),
    )
    how, reach = random.choice(tuple(JoinKind)), random.choice(reaches)
    if random.random() < 0.25:
        return Joining(how=JoinKind.LEFT, has_versions=True)
    return Joining(how=how, reach=reach)


def join_step(joining: Joining, schema: pa.Schema) -> JoinStep | VersionJoinStep:
    """The join of two streams with the columns key, seq, value and ts."""
    if joining.has_versions:
        return _version_step(schema)
    side = JoinSide(keys=("key",), schema=schema, time_column="ts")
    columns = [JoinedColumn(field=schema.field("key"), left="key", right="key")]
    has_bounds = isinstance(joining.reach, SameWindow) and joining.how.has_pairs
    bounds = (WINDOW_START, WINDOW_END) if has_bounds else ()
    columns += [JoinedColumn(field=schema.field("ts").with_name(name)) for name in bounds]
    columns += [JoinedColumn(field=schema.field(name), left=name) for name in ("seq", "value", "ts")]
    if joining.how.has_pairs:
        columns += [
            JoinedColumn(field=schema.field(name).with_name(f"{name}_right"), right=name)
            for name in ("seq", "value", "ts")
        ]
    hold = joining.reach.hold_us(RIGHT if joining.how is JoinKind.RIGHT else LEFT)
    return JoinStep(
        left=side,
        right=side,
        how=joining.how,
        reach=joining.reach,
        columns=tuple(columns),
        hold_us=0 if has_bounds else hold,
    )


def _version_step(schema: pa.Schema) -> VersionJoinStep:
    side = JoinSide(keys=("key",), schema=schema, time_column="ts")
    columns = [JoinedColumn(field=schema.field("key"), left="key", right="key")]
    columns += [JoinedColumn(field=schema.field(name), left=name) for name in ("seq", "value", "ts")]
    columns.append(JoinedColumn(field=schema.field("ts").with_name("ts_right"), right="ts"))
    return VersionJoinStep(left=side, right=side, how=JoinKind.LEFT, columns=tuple(columns))


TABLE_ROWS = [(number % 30, number) for number in range(45)]
"""The keys and the values of the table. A third of the keys have two rows."""


TABLE_SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("number", pa.int64())])


def table_step(how: JoinKind, schema: pa.Schema, *, by_key: bool, changing: StaticTable | None = None) -> TableJoinStep:
    """The join of a stream with the table, or with a changing table that has the same rows and further columns."""
    keys, values = zip(*TABLE_ROWS, strict=True)
    table = changing or GivenTable(pa.table([pa.array(keys), pa.array(values)], schema=TABLE_SCHEMA))
    columns = [JoinedColumn(field=schema.field("key"), left="key", right="key")]
    columns += [JoinedColumn(field=schema.field(name), left=name) for name in ("seq", "value", "ts")]
    if how.has_pairs:
        columns += [JoinedColumn(field=field, right=field.name) for field in list(table.schema)[1:]]
    return TableJoinStep(
        keys=("key",), table_keys=("key",), table=table, by_key=by_key, how=how, columns=tuple(columns)
    )


def table_join_kind(how: JoinKind) -> JoinKind:
    """The kind of the join with the table, where the world has drawn a kind of join of two streams."""
    return {JoinKind.RIGHT: JoinKind.LEFT, JoinKind.FULL: JoinKind.INNER}.get(how, how)


def expected_table_join(how: JoinKind, records: Sequence[Row]) -> Counter[Row]:
    """The rows of the join of records with the table."""
    numbers: dict[int, list[int]] = {}
    for key, number in TABLE_ROWS:
        numbers.setdefault(key, []).append(number)
    if not how.has_pairs:
        return Counter(record for record in records if (record[0] in numbers) is (how is JoinKind.SEMI))
    alone = [NOTHING] if how is JoinKind.LEFT else []
    return Counter((*record, number) for record in records for number in numbers.get(record[0], alone))


def shown_columns(joining: Joining, schema: pa.Schema) -> pa.Schema:
    """The columns that the job shows."""
    return pa.schema([each for each in join_step(joining, schema).schema if each.name not in _BOUNDS])


_BOUNDS = (WINDOW_START, WINDOW_END)


class WithoutNulls:
    """Puts `NOTHING` where a record is not there, and leaves out the bounds of windows."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without nulls."""
        arrays: list[Any] = []
        for shown in self._schema:
            values: Any = batch.column(shown.name).view(pa.int64()).fill_null(NOTHING)
            arrays.append(values.view(shown.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _expected_versions(left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    times: dict[int, list[int]] = {}
    for key, _, _, time in right:
        times.setdefault(key, []).append(time)
    return Counter(
        (*record, max((time for time in times.get(record[0], ()) if time <= record[3]), default=NOTHING))
        for record in left
    )


def with_settled_versions(
    shown: Counter[Row], wanted: Counter[Row], left: Sequence[Row], right: Sequence[Row]
) -> Counter[Row]:
    """The shown rows, where the data has gone on after a drain: a row whose version was the last version that had come
    then counts as the row with the version that held."""
    of_record = {row[:4]: row for row in _expected_versions(left, right)}
    versions = {(key, time) for key, _, _, time in right}
    found: Counter[Row] = Counter()
    for row, count in shown.items():
        held = of_record.get(row[:4], row)
        is_earlier = row[4] == NOTHING or (row[4] <= row[3] and (row[0], row[4]) in versions)
        found[held if row not in wanted and is_earlier else row] += count
    return found


def expected_join(joining: Joining, left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    """The rows of the join of records of (key, seq, value, ts)."""
    if joining.has_versions:
        return _expected_versions(left, right)
    found: Counter[Row] = Counter()
    met_left: set[Row] = set()
    met_right: set[Row] = set()
    is_near = _nearness(joining.reach)
    by_key: dict[int, list[Row]] = {}
    for other in right:
        by_key.setdefault(other[0], []).append(other)
    for one in left:
        for other in by_key.get(one[0], ()):
            if is_near(one[3], other[3]):
                met_left.add(one)
                met_right.add(other)
                found[(*one, *other[1:])] += 1
    alone = [one for one in left if one not in met_left]
    match joining.how:
        case JoinKind.SEMI:
            return Counter(one for one in left if one in met_left)
        case JoinKind.ANTI:
            return Counter(alone)
        case JoinKind.INNER:
            return found
        case JoinKind.LEFT | JoinKind.RIGHT | JoinKind.FULL:
            if joining.how is not JoinKind.RIGHT:
                found.update(_without_right(alone))
            if joining.how is not JoinKind.LEFT:
                found.update(_without_left(other for other in right if other not in met_right))
            return found
        case _:
            assert_never(joining.how)


def shown_early(joining: Joining, left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    """The rows that may be shown besides, once each, where the data has gone on after a drain."""
    match joining.how:
        case JoinKind.ANTI:
            return Counter(left)
        case JoinKind.LEFT:
            return Counter(_without_right(left))
        case JoinKind.RIGHT:
            return Counter(_without_left(right))
        case JoinKind.FULL:
            return Counter([*_without_right(left), *_without_left(right)])
        case JoinKind.INNER | JoinKind.SEMI:
            return Counter()
        case _:
            assert_never(joining.how)


def _without_right(records: Iterable[Row]) -> Iterable[Row]:
    return ((*record, NOTHING, NOTHING, NOTHING) for record in records)


def _without_left(records: Iterable[Row]) -> Iterable[Row]:
    return ((key, NOTHING, NOTHING, NOTHING, *rest) for key, *rest in records)


def _nearness(reach: Reach) -> Callable[[int, int], bool]:
    """Says of the times of a left and of a right record whether the records are near enough."""
    if isinstance(reach, Interval):
        lower_us, upper_us = reach.lower_us, reach.upper_us
        return lambda left_us, right_us: lower_us <= right_us - left_us <= upper_us
    assert isinstance(reach, SameWindow)
    size_us = reach.window.size_us
    return lambda left_us, right_us: left_us // size_us == right_us // size_us
