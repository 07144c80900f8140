"""Joins without a limit of time: after every batch the changes so far come to the join of the rows so far, whatever
comes and whatever is taken back, and wherever a snapshot is taken."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracles import Script, joined, table_of
from join_rig import JoinRig, Output, Record, changes_of, regular_step

from penstock.api.join_steps import LEFT, RIGHT, JoinKind
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import Instant
from penstock.runtime.task.operators import regular_join
from penstock.runtime.task.operators.join_snapshot import read_join

KEYS = {
    "bigint": (pa.int64(), [None, 0, 1, 2**40]),
    "double": (pa.float64(), [None, 0.0, 1.5, float("nan")]),
    # "Aa" and "BB" have the same hash.
    "string": (pa.string(), [None, "Aa", "BB"]),
}
RETRACTS = [(True, True), (True, False), (False, True), (False, False)]


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


def changes(step: Any, side: int, kind: str, *records: Record) -> pa.RecordBatch:
    return changes_of(step, side, records, [kind] * len(records))


def test_rows_match_while_they_live():
    step = regular_step(JoinKind.INNER, retracts=(False, False), ttl_ms=1_000)
    rig = JoinRig(step, Output())
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10)))
    rig.now_ms = 999
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", Record(1, None, 20)))
    rig.now_ms = 1_000
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", Record(1, None, 21)))
    assert table_of(step, rig.output.rows) == {(10, 20): 1}
    rig.restored(2)
    assert sum(operator.metrics()["left_rows_kept"] for operator in rig.operators) <= 1
    rig.now_ms = 2_000
    for operator in rig.operators:
        assert operator.tick(Instant(2_000)) == 2_125
    assert sum(operator.metrics()["left_rows_kept"] for operator in rig.operators) == 0


def test_to_take_back_a_row_that_has_expired_does_nothing():
    step = regular_step(JoinKind.LEFT, ttl_ms=1_000)
    rig = JoinRig(step, Output())
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10)))
    rig.now_ms = 1_000
    rig.feed_batch(LEFT, changes(step, LEFT, "delete", Record(1, None, 10)))
    assert [row[-1] for row in rig.output.rows] == ["insert"]
    assert rig.operators[0].metrics()["unknown_dropped"] == 1


def test_a_match_that_has_expired_still_counts():
    step = regular_step(JoinKind.LEFT, ttl_ms=1_000)
    rig = JoinRig(step, Output())
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", Record(1, None, 20)))
    rig.now_ms = 500
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10)))
    rig.now_ms = 1_200
    rig.feed_batch(LEFT, changes(step, LEFT, "delete", Record(1, None, 10)))
    # The pair stays, and the row alone was never shown.
    assert [row[-1] for row in rig.output.rows] == ["insert"]


def test_an_update_that_changes_nothing_renews_a_row_that_lives_for_a_time():
    step = regular_step(JoinKind.INNER, ttl_ms=1_000)
    rig = JoinRig(step, Output())
    row = Record(1, None, 10)
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", row))
    rig.now_ms = 800
    rig.feed_batch(LEFT, changes_of(step, LEFT, [row, row], ["update_before", "update_after"]))
    rig.now_ms = 1_500
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", Record(1, None, 20)))
    assert table_of(step, rig.output.rows) == {(10, 20): 1}


def test_without_a_time_to_live_an_update_that_changes_nothing_says_nothing():
    step = regular_step(JoinKind.LEFT)
    rig = JoinRig(step, Output())
    row = Record(1, None, 10)
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", row))
    rig.feed_batch(LEFT, changes_of(step, LEFT, [row, row], ["update_before", "update_after"]))
    assert len(rig.output.rows) == 1


@pytest.mark.parametrize("how", [JoinKind.SEMI, JoinKind.ANTI])
def test_a_row_that_has_matched_is_forgotten_if_nothing_is_taken_back(how: JoinKind):
    step = regular_step(how, retracts=(False, False))
    rig = JoinRig(step, Output())
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10), Record(2, None, 11)))
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", Record(1, None, 20), Record(2, None, 21)))
    assert rig.operators[0].metrics()["left_rows_kept"] == 0


def test_rows_that_were_taken_back_are_forgotten():
    step = regular_step(JoinKind.FULL)
    rig = JoinRig(step, Output())
    records = [Record(number % 5, None, number) for number in range(200)]
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", *records))
    rig.feed_batch(LEFT, changes(step, LEFT, "delete", *records[:150]))
    runs = rig.operators[0]._sides[LEFT].runs
    assert sum(run.times.size for run in runs) == rig.operators[0].metrics()["left_rows_kept"] == 50


def test_many_results_come_in_batches_that_are_not_large(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(regular_join, "RESULT_ROWS", 7)
    step = regular_step(JoinKind.FULL, where=(pl.col("l") + pl.col("r")) % 2 == 0)
    rig = JoinRig(step, Output(), most=5)
    lefts, rights = ([Record(1, None, number) for number in range(20)] for _ in range(2))
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", *lefts))
    rig.feed_batch(RIGHT, changes(step, RIGHT, "insert", *rights))
    assert table_of(step, rig.output.rows).total() == 200
    rig.feed_batch(LEFT, changes(step, LEFT, "delete", *lefts[:19]))
    assert table_of(step, rig.output.rows) == joined(
        JoinKind.FULL, lefts[19:], rights, lambda one, other: (one.number + other.number) % 2 == 0
    )


@pytest.mark.parametrize("how", [JoinKind.SEMI, JoinKind.FULL, JoinKind.INNER])
def test_a_row_with_many_matches_is_looked_up_in_slices(monkeypatch: pytest.MonkeyPatch, how: JoinKind):
    """Between two slices a heartbeat and a cancel pass, also before the first result."""
    monkeypatch.setattr(regular_join, "RESULT_ROWS", 10)
    step = regular_step(how, retracts=(False, False))
    rig = JoinRig(step, Output(), most=1)
    many = [Record(1, None, number) for number in range(200)]
    rig.feed_batch(RIGHT, changes_of(step, RIGHT, many, ["insert"] * 200))
    (operator,), shown, slices = rig.operators, len(rig.output.rows), list[int]()
    operator.slice.begin()
    work = operator.process_input(changes_of(step, LEFT, [Record(1, None, 7)], ["insert"]), LEFT)
    while work is not None:
        slices.append(len(rig.output.rows) - shown)
        shown = len(rig.output.rows)
        operator.slice.begin()
        work = work if work.go_on() else None
    assert slices[:15] == [0] * 15, "the matches are found in slices"
    assert max(slices) <= 20, "and so are the rows that are alone no longer, and the pairs, handed on"
    assert table_of(step, rig.output.rows) == joined(how, [Record(1, None, 7)], many, lambda one, other: True)


def test_the_state_of_another_join_is_refused():
    step = regular_step(JoinKind.FULL)
    rig = JoinRig(step, Output())
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10)))
    states = rig.snapshot()
    rig.step = regular_step(JoinKind.LEFT)
    with pytest.raises(UsageError, match="is of a join full, whatever the times"):
        rig.restored(1, states)


def test_counts_that_cannot_be_are_refused():
    step = regular_step(JoinKind.FULL)
    rig = JoinRig(step, Output())
    rig.feed_batch(LEFT, changes(step, LEFT, "insert", Record(1, None, 10)))
    data = rig.store.get(rig.snapshot()[0].keyed[0])
    table = read_join(data)[0]
    wrong = table.set_column(table.schema.get_field_index("__mark"), "__mark", pa.array([-1], pa.int32()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wrong.schema) as stream:
        stream.write_table(wrong)
    with pytest.raises(CorruptFile, match="marks that mean nothing"):
        read_join(sink.getvalue().to_pybytes())
