"""Aggregates of the user's whose `merge` takes long: partials are merged a few at a time, in every operator that merges
partials, and between two slices a barrier passes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.pane_windows import SlidingWindow
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.steps import Aggregate, CombineStep, RunningCombineStep, RunningStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.aggregation import of_partials
from penstock.runtime.task.operators.slow_merging import SlowMerging
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})
NOW_MS = [0.0]
MOST = 20
"""The most merges between two looks for other work, each of which takes a millisecond: a slice, and a slice again that
has grown by a factor of two, and some merges by which a slice goes on with the group of the slice before."""
WINDOWS = {
    "tumbling": TumblingWindow(size_us=10, offset_us=0),
    "sliding": SlidingWindow(size_us=30, slide_us=10, offset_us=0),
    "session": SessionWindow(gap_us=5),
}


class SlowSum(AggregateFunction):
    """A sum whose merges take a millisecond each."""

    state_type = "bigint"
    result_type = "bigint"

    def create(self):
        return 0

    def add_batch(self, state, batch):
        return state + sum(batch.column(0).to_pylist())

    def merge(self, a, b):
        NOW_MS[0] += 1
        return a + b

    def result(self, state):
        return state


SUM = (Aggregate(name="sum", kind="custom", column=None, function=SlowSum("v")),)
PLAIN = (Aggregate(name="sum", kind="sum", column="v"),)


def halves(window, aggregates):
    shape = {"keys": ("k",), "time_column": "ts", "aggregates": aggregates, "window": window}
    partial, result = partial_schema(SCHEMA, **shape), result_schema(SCHEMA, **shape)
    combine = CombineStep(keys=("k",), time_column="ts", window=window, aggregates=aggregates, schema=partial)
    return combine, WindowStep(keys=("k",), window=window, aggregates=aggregates, schema=result)


def records(chance, count, *, first, last):
    rows = [
        {"k": chance.randrange(4), "v": chance.randrange(100), "ts": chance.randrange(first, last)}
        for _ in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def in_slices(made, call, *given, cut=lambda: None):
    """Do a call to its end. Returns the most merges in one slice."""
    made.operator.slice = made.operator.slice if made.operator.slice.most == 1_000_000 else clocked()
    made.operator.slice.begin()
    longest, begun = 0.0, NOW_MS[0]
    work = call(*given)
    while True:
        longest = max(longest, NOW_MS[0] - begun)
        if work is None:
            return longest
        if work.may_snapshot:
            cut()
        made.operator.slice.begin()
        begun = NOW_MS[0]
        work = work if work.go_on() else None


def clocked():
    found = Slice()
    found.run_by(lambda: NOW_MS[0], 1_000_000)
    return found


def in_order(recorder):
    return sorted(map(str, recorder.rows))


def script_of(rig, combine):
    """What the second half of a window gets: batches of partials and watermarks."""
    chance, half = random.Random(1), rig(combine)
    for first in (0, 200):
        for _ in range(100):
            half.output.clear()
            half.operator.process(records(chance, 20, first=first, last=first + 300))
            half.operator.before_barrier()
            yield from half.output.items
        yield first + 150
    yield MAX_WATERMARK


def do(made, script, *, cut=lambda number: None):
    """Do a script. Returns the most merges in one slice."""
    longest = 0.0
    for number, item in enumerate(script):
        is_time = isinstance(item, int)
        call = made.operator.watermark if is_time else made.operator.process
        # Partials are in the state where a snapshot may be taken; a watermark is not, and comes again.
        again = number + (not is_time)
        longest = max(longest, in_slices(made, call, item, cut=lambda again=again: cut(again)))
    return longest


@pytest.mark.parametrize("window", WINDOWS)
def test_partials_of_windows_are_merged_in_slices_and_a_snapshot_between_two_slices_has_them(rig, window):
    (combine, step), (plain_combine, plain_step) = halves(WINDOWS[window], SUM), halves(WINDOWS[window], PLAIN)
    script, plain = list(script_of(rig, combine)), rig(plain_step)
    do(plain, script_of(rig, plain_combine))
    made, snapshots = rig(step), []
    longest = do(made, script, cut=lambda again: snapshots.append((made.snapshot(), len(made.output.rows), again)))
    assert in_order(made.output) == in_order(plain.output)
    assert longest <= MOST
    assert len(snapshots) > 100
    for state, shown, again in snapshots[:: len(snapshots) // 10]:
        back = rig(step, restored=[state], files=made.files)
        do(back, script[again:])
        rows = [*made.output.rows[:shown], *back.output.rows]
        assert sorted(map(str, rows)) == in_order(plain.output)


def test_a_running_aggregate_is_given_a_few_partials_at_a_time(rig):
    """The task cuts the batches of an operator that calls user code for every row."""
    shape = {"keys": ("k",), "aggregates": SUM, "input_schema": SCHEMA}
    partial = running_partial_schema(SCHEMA, keys=("k",), aggregates=SUM, retracts=False)
    result = running_result_schema(SCHEMA, keys=("k",), aggregates=SUM, retracts=False)
    made = rig(RunningStep(**shape, partial=partial, schema=result, retracts=False))
    assert made.operator.is_row_wise
    half = rig(RunningCombineStep(**shape, schema=partial, retracts=False))
    half.operator.slice = clocked()
    chance = random.Random(2)
    for _ in range(50):
        begun = NOW_MS[0]
        half.operator.process(records(chance, 20, first=0, last=10))
        assert NOW_MS[0] - begun <= MOST


@pytest.mark.parametrize("keys", [1, 7, 5_000])
def test_merging_in_slices_merges_what_merging_at_once_merges(keys):
    chance = random.Random(keys)
    merging = SlowMerging(of_partials(SUM), None)
    rows = [{"k": chance.randrange(keys), "sum": chance.randrange(100)} for _ in range(3_000)]
    partials = pa.Table.from_pylist(rows, pa.schema({"k": pa.int64(), "sum": pa.int64()}))
    slice_, slices = clocked(), 0
    slice_.begin()
    steps = merging.grouped(partials, ["k"], slice_)
    while True:
        begun = NOW_MS[0]
        try:
            next(steps)
        except StopIteration as end:
            merged = end.value
            break
        slices += 1
        assert NOW_MS[0] - begun <= MOST
        slice_.begin()
    expected = {}
    for row in rows:
        expected[row["k"]] = expected.get(row["k"], 0) + row["sum"]
    assert {row["k"]: row["sum"] for row in merged.to_pylist()} == expected
    assert merged.num_rows == len(expected)
    assert slices > 100 or keys == 5_000
