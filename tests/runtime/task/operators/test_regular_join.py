"""Joins without a limit of time: after every batch the changes so far come to the join of the rows so far, whatever
comes and whatever is taken back, and wherever a snapshot is taken."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_rig import JoinRig, Output, Record, changes_of, regular_step, same_key

from penstock.api.join_steps import LEFT, RIGHT, JoinKind

KEYS = {
    "bigint": (pa.int64(), [None, 0, 1, 2**40]),
    "double": (pa.float64(), [None, 0.0, 1.5, float("nan")]),
    # "Aa" and "BB" have the same hash.
    "string": (pa.string(), [None, "Aa", "BB"]),
}
RETRACTS = [(True, True), (True, False), (False, True), (False, False)]
Rows = list[Record]


def joined(how: JoinKind, left: Rows, right: Rows, matches: Any) -> Counter[tuple[Any, ...]]:
    """The numbers of the left and the right row of each result, by a loop over all pairs."""
    found: Counter[tuple[Any, ...]] = Counter()
    met_left, met_right = [False] * len(left), [False] * len(right)
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            if same_key(one.key, other.key) and matches(one, other):
                met_left[i] = met_right[j] = True
                found[one.number, other.number] += 1
    if how in (JoinKind.SEMI, JoinKind.ANTI):
        return Counter((one.number,) for one, met in zip(left, met_left, strict=True) if met is (how is JoinKind.SEMI))
    if how in (JoinKind.LEFT, JoinKind.FULL):
        found.update((one.number, None) for one, met in zip(left, met_left, strict=True) if not met)
    if how in (JoinKind.RIGHT, JoinKind.FULL):
        found.update((None, other.number) for other, met in zip(right, met_right, strict=True) if not met)
    return found


def table_of(step: Any, rows: list[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The table that changes make up. No row is taken back before it came."""
    names, table = step.schema.names, Counter[tuple[Any, ...]]()
    wanted = [names.index(name) for name in ("l", "r") if name in names]
    for row in rows:
        number = tuple(row[at] for at in wanted)
        if step.has_changes and row[-1] in ("delete", "update_before"):
            assert table[number] > 0, f"{row} was not there"
            table[number] -= 1
        else:
            table[number] += 1
    return +table


class Script:
    """Draws batches of changes of tables."""

    def __init__(self, draw: random.Random, keys: list[Any], step: Any) -> None:
        self.tables: tuple[Rows, Rows] = ([], [])
        self._draw = draw
        self._keys = keys
        self._step = step

    def batch(self, side: int) -> pa.RecordBatch:
        """A batch of rows that come, some of them equal to each other, and of rows that are taken back."""
        table, draw = self.tables[side], self._draw
        records: Rows = []
        kinds: list[str] = []
        for _ in range(draw.randrange(1, 8)):
            if self._step.retracts[side] and table and draw.random() < 0.4:
                gone = table.pop(draw.randrange(len(table)))
                records.append(gone)
                kinds.append(draw.choice(("delete", "update_before")))
            else:
                # Few numbers: there are equal rows.
                record = Record(draw.choice(self._keys), None, draw.randrange(6))
                table.append(record)
                records.append(record)
                kinds.append(draw.choice(("insert", "update_after")))
        return changes_of(self._step, side, records, kinds)


def run_script(
    how: JoinKind, *, key: str, retracts: tuple[bool, bool], seed: int, most: int | None, restores: bool, where: bool
) -> None:
    kind, keys = KEYS[key]
    draw = random.Random(seed)
    condition = (pl.col("l") + pl.col("r")) % 3 != 0 if where else None
    step = regular_step(how, retracts=retracts, key=kind, where=condition)
    rig, script = JoinRig(step, Output(), parallelism=draw.choice((1, 2)), most=most), Script(draw, keys, step)

    def cut() -> bool:
        return restores and draw.random() < 0.3

    for _ in range(draw.randrange(2, 12)):
        side = draw.choice((LEFT, RIGHT))
        left_work = rig.feed_batch(side, script.batch(side), cut=cut)
        if left_work or cut():
            rig.restored(draw.choice((1, 2, 3)))
        expected = joined(how, *script.tables, lambda one, other: not where or (one.number + other.number) % 3 != 0)
        assert table_of(step, rig.output.rows) == expected


@pytest.mark.parametrize("how", list(JoinKind))
@settings(max_examples=60, deadline=None)
@given(
    key=st.sampled_from(sorted(KEYS)),
    retracts=st.sampled_from(RETRACTS),
    seed=st.integers(0, 2**32),
    most=st.sampled_from((None, 1, 3)),
    restores=st.booleans(),
    where=st.booleans(),
)
def test_the_changes_come_to_the_join_of_all_rows(how: JoinKind, **drawn: Any):
    run_script(how, **drawn)
