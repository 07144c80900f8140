"""Joins with versions: each record gets the last version of its key that is not later than the record."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_oracles import expected_versions as expected
from join_rig import JoinRig, Output, Record, numbers, version_step

from penstock.api.join_steps import LEFT, RIGHT, JoinKind
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators import version_runs
from penstock.runtime.task.operators.join_runs import Run
from penstock.runtime.task.operators.version_runs import VersionRuns

KINDS = [JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI]
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [None, 0, 1, 2**40]),
    "double": (pa.float64(), [None, 0.0, -0.0, float("nan")]),
    "string": (pa.string(), [None, "", "Aa", "BB"]),
}


@pytest.mark.parametrize("how", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_each_record_gets_the_version_that_held(how: JoinKind, data: Any):
    key, values = KEYS[data.draw(st.sampled_from(sorted(KEYS)))]
    draw, restores = random.Random(data.draw(st.integers(0, 999))), data.draw(st.booleans())
    step = version_step(how, key=key)
    most = data.draw(st.sampled_from((None, 1, 3)))
    rig = JoinRig(step, Output("lt"), parallelism=draw.choice((1, 2)), most=most)
    records: list[Record] = []
    versions: list[Record] = []
    taken: set[Any] = set()
    passed: int | None = None
    number = 0
    for _ in range(data.draw(st.integers(1, 14))):
        choice = data.draw(st.integers(0, 3))
        if choice == 0:
            passed = max(passed or 0, data.draw(st.integers(0, 60)))
            was_cut = rig.advance(passed, cut=lambda: restores and draw.random() < 0.4)
        else:
            given_ = data.draw(st.lists(st.tuples(st.sampled_from(values), st.integers(0, 80)), max_size=6))
            batch = []
            for value, time in given_:
                number += 1
                record = Record(value, None if time == 80 else time, number)
                # -0.0 and 0.0 are one key, and NaN is one key.
                name = (repr(value).lstrip("-"), time)
                is_late = passed is not None and record.time is not None and record.time <= passed
                if choice == 1 and not is_late and name not in taken:
                    taken.add(name)
                    batch.append(record)
                elif choice > 1:
                    batch.append(record)
                    records.extend([] if is_late else [record])
            versions.extend(batch if choice == 1 else [])
            rig.feed(RIGHT if choice == 1 else LEFT, batch)
            was_cut = False
        if was_cut or (restores and draw.random() < 0.3):
            rig.restored(draw.choice((1, 2, 3)))
    rig.end()
    assert numbers(step, rig.output.rows) == expected(how, records, versions)


def test_obsolete_versions_are_dropped_and_the_last_version_of_each_key_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(version_runs, "_LEAST_ROWS", 16)
    step = version_step(JoinKind.LEFT)
    rig = JoinRig(step, Output("lt"))
    for time in range(1, 300):
        rig.feed(RIGHT, [Record(key, time, 1_000 * key + time) for key in range(5)])
        rig.feed(LEFT, [Record(3, time, time)])
        rig.advance(time)
        assert rig.operators[0].metrics()["versions_kept"] <= 64
    rig.feed(LEFT, [Record(4, 10_000, 0)])
    rig.end()
    assert numbers(step, rig.output.rows) == {**{(time, 3_000 + time): 1 for time in range(1, 300)}, (0, 4_299): 1}


def test_keys_with_the_same_hash_have_versions_of_their_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "penstock.runtime.task.operators.join_sides.row_hashes",
        lambda batch, columns, seed: pa.array([7] * batch.num_rows, pa.uint32()).to_numpy(),
    )
    draw = random.Random(5)
    step = version_step(JoinKind.LEFT)
    rig = JoinRig(step, Output("lt"))
    versions = [Record(draw.randrange(6), time, time) for time in range(100)]
    records = [Record(draw.randrange(7), draw.randrange(120), number) for number in range(200)]
    for begin in range(0, 100, 10):
        rig.feed(RIGHT, versions[begin : begin + 10])
    rig.feed(LEFT, records)
    rig.end()
    assert numbers(step, rig.output.rows) == expected(JoinKind.LEFT, records, versions)


def test_times_far_apart_are_told_apart():
    """One unit of time in the index stands for many microseconds."""
    step = version_step(JoinKind.LEFT)
    rig = JoinRig(step, Output("lt"))
    versions = [Record(1, time, number) for number, time in enumerate((0, 10, 11, 12, 2**60))]
    records = [Record(1, time, time) for time in (9, 10, 11, 13, 2**59)]
    rig.feed(RIGHT, versions[3:])
    rig.feed(RIGHT, versions[:3])
    rig.feed(LEFT, records)
    rig.end()
    assert numbers(step, rig.output.rows) == expected(JoinKind.LEFT, records, versions)


def test_of_two_versions_of_the_same_time_the_later_one_holds():
    step = version_step(JoinKind.INNER)
    rig = JoinRig(step, Output("lt"))
    rig.feed(RIGHT, [Record(1, 5, 10), Record(1, 5, 11)])
    for number in range(12, 20):
        rig.feed(RIGHT, [Record(1, 5, number)])
        rig.restored(1)
    rig.feed(LEFT, [Record(1, 6, 0)])
    rig.end()
    assert numbers(step, rig.output.rows) == {(0, 19): 1}


def test_a_version_behind_the_watermark_holds_for_later_records():
    step = version_step(JoinKind.INNER)
    rig = JoinRig(step, Output("lt"))
    sides = rig.late
    rig.advance(50)
    rig.feed(RIGHT, [Record(1, 5, 7)])
    rig.feed(LEFT, [Record(1, 40, 1), Record(1, 60, 2)])
    rig.end()
    assert numbers(step, rig.output.rows) == {(2, 7): 1}
    assert [batch.num_rows for batch in sides["late()"].batches] == [1]


def test_records_that_a_drain_has_shown_are_not_shown_again():
    step = version_step(JoinKind.LEFT)
    rig = JoinRig(step, Output("lt"))
    rig.feed(RIGHT, [Record(1, 5, 7)])
    rig.feed(LEFT, [Record(1, 6, 1)])
    rig.advance(MAX_WATERMARK)
    rig.restored(2)
    rig.feed(LEFT, [Record(1, 8, 2)])
    rig.end()
    assert numbers(step, rig.output.rows) == {(1, 7): 1, (2, 7): 1}


def test_runs_of_versions_are_few():
    runs = VersionRuns(("k",))
    for number in range(200):
        array = pa.array([number], pa.int64())
        runs.append(pa.record_batch([array], names=["k"]), array.to_numpy().copy(), array.to_numpy().astype("uint32"))
    assert len(runs.runs) <= 8
    assert all(isinstance(run, Run) for run in runs.runs)
    assert runs.rows == 200
