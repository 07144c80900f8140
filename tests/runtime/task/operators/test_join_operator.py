"""Joins by key and time: the results are those of a loop over all pairs, whatever comes first, and wherever a snapshot
is taken."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from join_rig import JoinRig, Output, Record, expected, join_step, numbers

from penstock.api.join_steps import LEFT, RIGHT, Interval, JoinKind, SameWindow
from penstock.api.window_schema import WINDOW_END
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import CorruptFile, UsageError
from penstock.runtime.task.operators.join_runs import JoinRuns, Probe, Run, spread

KEYS = {
    "bigint": (pa.int64(), [None, 0, 1, 2, 2**40, -(2**63)]),
    "double": (pa.float64(), [None, 0.0, -0.0, 1.5, float("nan")]),
    # "Aa" and "BB" have the same hash.
    "string": (pa.string(), [None, "", "Aa", "BB", "ä€😀"]),
    "decimal": (pa.decimal128(20, 2), [None, 0, 1]),
}
REACHES = [
    Interval(lower_us=0, upper_us=15),
    Interval(lower_us=-5, upper_us=5),
    Interval(lower_us=-20, upper_us=-10),
    Interval(lower_us=3, upper_us=3),
    Interval(lower_us=0, upper_us=2**62),
    SameWindow(window=TumblingWindow(size_us=10)),
]


def hold_of(how: JoinKind, reach: Any) -> tuple[int, str | None]:
    """The time by which watermarks are held back, and the column with the time of the results."""
    if isinstance(reach, SameWindow) and how.has_pairs:
        return 0, WINDOW_END
    if how is JoinKind.FULL:
        return 0, None
    return reach.hold_us(RIGHT if how is JoinKind.RIGHT else LEFT), "rt" if how is JoinKind.RIGHT else "lt"


def run_script(
    how: JoinKind, reach: Any, script: list[Any], *, key: pa.DataType, most: int | None, restores: bool, seed: int
) -> None:
    """Feed a script of (side, records) and of watermarks, and compare all results with those of the loop. A record is
    late if its time is not after the watermark that went before."""
    hold_us, time_column = hold_of(how, reach)
    step, draw = join_step(how, reach, key=key, hold_us=hold_us), random.Random(seed)
    rig = JoinRig(step, Output(time_column), parallelism=draw.choice((1, 2)), most=most)
    kept: tuple[list[Record], list[Record]] = ([], [])
    passed: int | None = None

    def cut() -> bool:
        return restores and draw.random() < 0.3

    for item in script:
        if isinstance(item, int):
            passed = item if passed is None else max(passed, item)
            left_work = rig.advance(passed, cut=cut)
        else:
            side, records = item
            for record in records:
                is_late = record.time is not None and passed is not None and record.time <= passed
                kept[side].extend([] if is_late else [record])
            left_work = rig.feed(side, records, cut=cut)
        if left_work or cut():
            rig.restored(draw.choice((1, 2, 3)))
    rig.end()
    assert numbers(step, rig.output.rows) == expected(step, *kept)


@st.composite
def scripts(draw: Any, keys: list[Any]) -> list[Any]:
    made: list[Any] = []
    number, now = 0, 0
    for _ in range(draw(st.integers(1, 12))):
        if draw(st.integers(0, 3)) == 0:
            now += draw(st.integers(0, 20))
            made.append(now - 10)
            continue
        records = []
        for key, after in draw(st.lists(st.tuples(st.sampled_from(keys), st.integers(-15, 25)), max_size=6)):
            records.append(Record(key, None if after == 25 else now + after, number))
            number += 1
        made.append((draw(st.sampled_from((LEFT, RIGHT))), records))
    return made


@pytest.mark.parametrize("how", JoinKind)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_results_are_those_of_a_loop_over_all_pairs(how: JoinKind, data: Any):
    kind = data.draw(st.sampled_from(sorted(KEYS)))
    key, values = KEYS[kind]
    run_script(
        how,
        data.draw(st.sampled_from(REACHES)),
        data.draw(scripts(values)),
        key=key,
        most=data.draw(st.sampled_from((None, 1, 2, 5))),
        restores=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 999)),
    )


@pytest.mark.parametrize("how", JoinKind)
def test_many_records_of_few_and_of_many_keys(how: JoinKind):
    draw = random.Random(7)
    for keys in (3, 500):
        script: list[Any] = []
        for number in range(60):
            records = [
                Record(draw.randrange(keys), 10 * number + draw.randrange(40), number * 50 + i) for i in range(25)
            ]
            script += [(draw.choice((LEFT, RIGHT)), records), 10 * number - 45]
        run_script(
            how, Interval(lower_us=-7, upper_us=12), script, key=pa.int64(), most=None, restores=False, seed=keys
        )


@pytest.mark.parametrize("how", JoinKind)
def test_an_extra_condition_decides_which_pairs_match(how: JoinKind):
    reach = Interval(lower_us=0, upper_us=5)
    step = join_step(how, reach, where=(pl.col("l") + pl.col("r")) % 3 == 0)
    left = [Record(n % 2, n, n) for n in range(20)]
    right = [Record(n % 2, n, n) for n in range(20)]
    rig = JoinRig(step, Output())
    rig.feed(LEFT, left[:10])
    rig.feed(RIGHT, right)
    rig.feed(LEFT, left[10:])
    rig.end()
    wanted = expected(step, left, right, lambda one, other: (one.number + other.number) % 3 == 0)
    assert numbers(step, rig.output.rows) == wanted


def test_records_that_match_nothing_any_more_are_dropped():
    step = join_step(JoinKind.LEFT, Interval(lower_us=0, upper_us=10))
    rig = JoinRig(step, Output())
    for time in range(0, 1_000, 10):
        rig.feed(LEFT, [Record(1, time, time)] * 4)
        rig.feed(RIGHT, [Record(2, time, time)] * 4)
        rig.advance(time)
        # A left record waits for 10 us, a right record for no time; what is done is at most half of a run.
        metrics = rig.operators[0].metrics()
        assert metrics["left_rows_kept"] <= 8
        assert metrics["right_rows_kept"] == 0
        runs = rig.operators[0]._sides[LEFT].runs
        assert sum(run.rows.num_rows for run in runs) <= 16


@pytest.mark.parametrize("how", [JoinKind.SEMI, JoinKind.ANTI])
def test_left_records_that_have_matched_are_not_kept(how: JoinKind):
    rig = JoinRig(join_step(how, Interval(lower_us=-1_000, upper_us=1_000)), Output())
    rig.feed(RIGHT, [Record(1, 0, 0)])
    rig.feed(LEFT, [Record(1, 0, number) for number in range(100)])
    assert rig.operators[0].metrics()["left_rows_kept"] == 0


def test_late_records_are_counted_or_come_out():
    step = join_step(JoinKind.FULL, Interval(lower_us=0, upper_us=10))
    for reads in (False, True):
        rig = JoinRig(step, Output())
        sides = rig.late if reads else {}
        rig.advance(50)
        rig.feed(LEFT, [Record(1, 50, 1), Record(1, 51, 2)])
        rig.feed(RIGHT, [Record(1, 40, 3), Record(1, 60, 4)])
        found = {name: [b.to_pylist() for b in side.batches] for name, side in sides.items()}
        assert {name: [row for b in batches for row in b] for name, batches in found.items()} == (
            {}
            if not reads
            else {
                "late()": [{"lt": _time(50), "k": 1, "l": 1}],
                "late-right()": [{"rk": 1, "r": 3, "rt": _time(40)}],
            }
        )
        assert rig.operators[0].metrics()["late_dropped"] == (0 if reads else 2)
        rig.end()
        assert numbers(step, rig.output.rows) == {(2, 4): 1}


def _time(us: int) -> Any:
    return pa.scalar(us, pa.int64()).cast(pa.timestamp("us", "UTC")).as_py()


def test_records_that_were_late_before_a_restore_are_late_after_it():
    step = join_step(JoinKind.LEFT, Interval(lower_us=0, upper_us=10))
    rig = JoinRig(step, Output(), parallelism=2)
    rig.advance(50)
    rig.restored(3)
    rig.feed(LEFT, [Record(key, 50, key) for key in range(20)])
    rig.end()
    assert rig.output.rows == []


def test_after_a_drain_records_still_match_and_are_not_shown_again():
    step = join_step(JoinKind.FULL, Interval(lower_us=0, upper_us=10))
    rig = JoinRig(step, Output())
    rig.feed(LEFT, [Record(1, 5, 1), Record(2, 5, 2)])
    rig.advance(MAX_WATERMARK)
    assert numbers(step, rig.output.rows) == {(1, None): 1, (2, None): 1}
    rig.restored(2)
    rig.feed(RIGHT, [Record(1, 6, 3)])
    rig.end()
    assert numbers(step, rig.output.rows) == {(1, None): 1, (2, None): 1, (1, 3): 1}


def test_a_hot_key_is_handed_on_in_slices_and_a_snapshot_has_the_rest():
    step = join_step(JoinKind.INNER, Interval(lower_us=-100, upper_us=100))
    rig = JoinRig(step, Output(), most=50)
    rig.feed(LEFT, [Record(1, n % 90, n) for n in range(40)])
    was_cut = rig.feed(RIGHT, [Record(1, n % 90, n) for n in range(40)], cut=lambda: len(rig.output.rows) > 500)
    assert was_cut
    assert 500 < len(rig.output.rows) < 1_600
    rig.restored(2)
    rig.end()
    assert numbers(step, rig.output.rows) == {(a, b): 1 for a in range(40) for b in range(40)}


# --- runs -------------------------------------------------------------------------------------------------------------


@given(
    times=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30),
    first=st.integers(-(2**63), 2**63 - 1),
    last=st.integers(-(2**63), 2**63 - 1),
)
def test_the_index_finds_all_records_between_two_times_at_any_time(times: list[int], first: int, last: int):
    array = pa.array(times, pa.int64())
    hashes = array.to_numpy().astype("uint32") % 2
    run = Run(pa.record_batch([array], names=["t"]), array.to_numpy().copy(), hashes, None)
    found = run.found(Probe(hashes=hashes[:1] * 0, first=_int64(first), last=_int64(last)))
    rows = [] if found is None else [int(run.order[p]) for _, places in spread(*found, 3) for p in places]
    inside = [i for i in range(len(times)) if first <= run.times[i] <= last and run.hashes[i] == 0]
    assert set(inside) <= set(rows)


def _int64(value: int) -> Any:
    return pa.array([value], pa.int64()).to_numpy()


def test_runs_are_few_and_hold_every_record_once():
    draw = random.Random(3)
    runs = JoinRuns(last_match=lambda times: times + 1_000_000)
    added = []
    for _ in range(300):
        numbers_ = [draw.randrange(10_000) for _ in range(draw.randrange(1, 40))]
        added += numbers_
        array = pa.array(numbers_, pa.int64())
        runs.append(pa.record_batch([array], names=["n"]), array.to_numpy().copy(), array.to_numpy().astype("uint32"))
    assert len(runs.runs) <= 14
    assert sorted(n for run in runs.runs for n in run.rows.column(0).to_pylist()) == sorted(added)
    for run in runs.runs:
        assert (run._index[1:] >= run._index[:-1]).all()
        assert (run.times[1:] >= run.times[:-1]).all()
        assert sorted(run.order.tolist()) == list(range(run.times.size))


# --- snapshots --------------------------------------------------------------------------------------------------------


def _snapshot() -> tuple[JoinRig, Any]:
    rig = JoinRig(join_step(JoinKind.LEFT, Interval(lower_us=0, upper_us=10)), Output())
    rig.feed(LEFT, [Record(n, n, n) for n in range(5)])
    return rig, rig.snapshot()


def test_the_state_of_another_join_is_refused():
    rig, states = _snapshot()
    rig.step = join_step(JoinKind.LEFT, Interval(lower_us=0, upper_us=11))
    with pytest.raises(UsageError, match=r"from 0 us to 10 us.*from 0 us to 11 us"):
        rig._opened(1, states)


@pytest.mark.parametrize("change", ["cut", "garbage", "twice"])
def test_a_changed_file_is_refused(change: str):
    rig, states = _snapshot()
    path = str(states[0].keyed[0].path)
    data = rig.store.contents[path]
    if change == "twice":
        states = (states[0], states[0])
    else:
        rig.store.contents[path] = data[:-40] if change == "cut" else b"\xff" * len(data)
    with pytest.raises(CorruptFile):
        rig._opened(1, states)
