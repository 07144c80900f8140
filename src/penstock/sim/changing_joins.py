"""Joins of a world that take rows back: the records of the first source are joined, without a limit of time, with a
running count of the records of the second source, and the rows of that join are joined with the counts again.

Which changes a join hands on depends on which records come together, and so differs from run to run. What the changes
come to does not: the rows that are left are computed here by a loop over all pairs of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from penstock.api.changelog import DELETE, UPDATE_BEFORE, with_row_kind, without_row_kind
from penstock.api.join_steps import WRITTEN, JoinedColumn, JoinKind, JoinSide, RegularJoinStep
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.steps import Aggregate, RunningCombineStep, RunningStep
from penstock.api.streams.join_words import ColumnsByKey, pair_columns
from penstock.sim.external import Transaction
from penstock.sim.inputs import Row, rows_of
from penstock.sim.jobs import SCHEMA
from penstock.sim.joining import NOTHING, WithoutNulls
from penstock.sim.rules import Rule
from penstock.sim.world import World

_KEYS = ("key",)
_COUNT: dict[str, Any] = {
    "keys": _KEYS,
    "aggregates": (Aggregate(name="n", kind="count", column=None),),
    "retracts": False,
}
_PARTIAL = running_partial_schema(SCHEMA, **_COUNT)
COMBINE = RunningCombineStep(input_schema=SCHEMA, schema=_PARTIAL, **_COUNT)
COUNTS = RunningStep(input_schema=SCHEMA, partial=_PARTIAL, schema=running_result_schema(SCHEMA, **_COUNT), **_COUNT)
"""How many records of the second source each key has."""


def _join(how: JoinKind, left: pa.Schema, right: pa.Schema, *, retracts: tuple[bool, bool]) -> RegularJoinStep:
    plain = [ColumnsByKey(keys=_KEYS, schema=schema) for schema in (left, right)]
    pairs = pair_columns(*plain, suffix="_right")
    kept = [
        JoinSide(keys=_KEYS, schema=schema.append(pa.field(WRITTEN, pa.int64())), time_column=WRITTEN)
        for schema in (left, right)
    ]
    columns: tuple[JoinedColumn, ...] = pairs if how.has_pairs else tuple(c for c in pairs if c.left is not None)
    return RegularJoinStep(left=kept[0], right=kept[1], how=how, columns=columns, retracts=retracts, ttl_ms=None)


def first_join(how: JoinKind) -> RegularJoinStep:
    """The join of the records of the first source with the counts."""
    return _join(how, SCHEMA, without_row_kind(COUNTS.schema), retracts=(False, True))


def second_join(joined: RegularJoinStep) -> RegularJoinStep:
    """The join of the rows of a join with the counts."""
    rows, counts = without_row_kind(joined.schema), without_row_kind(COUNTS.schema)
    return _join(JoinKind.LEFT, rows, counts, retracts=(True, True))


class ChangesWithoutNulls:
    """Puts a number where a row is not there, and keeps the kinds of changes."""

    def __init__(self, step: RegularJoinStep) -> None:
        rows = without_row_kind(step.schema)
        self.schema = with_row_kind(rows)
        self._without = WithoutNulls(rows)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without nulls."""
        rows = self._without(batch)
        return pa.RecordBatch.from_arrays([*rows.columns, batch.columns[-1]], schema=self.schema)


def expected_changes(how: JoinKind, left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    """The rows that are left after all changes."""
    counts = Counter[Any](record[0] for record in right)
    if how in (JoinKind.SEMI, JoinKind.ANTI):
        rows = [one for one in left if (one[0] in counts) is (how is JoinKind.SEMI)]
    else:
        shows_all = how in (JoinKind.LEFT, JoinKind.FULL)
        rows = [(*one, counts.get(one[0], NOTHING)) for one in left if shows_all or one[0] in counts]
    if how in (JoinKind.RIGHT, JoinKind.FULL):
        alone = counts.keys() - {one[0] for one in left}
        rows += [(key, NOTHING, NOTHING, NOTHING, counts[key]) for key in sorted(alone)]
    return Counter((*row, counts.get(row[0], NOTHING)) for row in rows)


def check_tables(
    world: World, committed: Iterable[Transaction], expected: dict[str, Counter[Row]], *, complete: bool
) -> None:
    """Follow the visible changes, and compare the rows that are left with the `expected` rows if the job has come to
    its end. No row may be taken back that is not there."""
    tables: dict[str, Counter[Row]] = {}
    for transaction in committed:
        table = tables.setdefault(transaction.target, Counter())
        for row in (row for batch in transaction.batches for row in rows_of(batch)):
            *values, kind = row
            table[tuple(values)] += -1 if kind in (UPDATE_BEFORE, DELETE) else 1
            if table[tuple(values)] < 0:
                world.violate(Rule.EXACTLY_ONCE, f"{transaction.name} takes {row} back, which is not there")
                return
    for target, rows in expected.items():
        actual = +tables.get(target, Counter())
        wrong = list((actual - rows) + (rows - actual))
        if complete and wrong:
            text = f"{len(wrong)} rows of {target} are wrong after all changes, such as {min(wrong)}"
            world.violate(Rule.EXACTLY_ONCE, text)
