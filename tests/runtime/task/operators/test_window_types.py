"""Windows of every type that does not merge, against the definition of the type: sliding and cumulative windows share
panes, and tumbling windows are single panes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.operators.pane_pieces import parts_of
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us", "UTC")})
COUNT = (Aggregate(name="n", kind="count", column=None),)
GROUPS = 128


def sliding(size, slide, offset=0):
    return SlidingWindow(size_us=size, slide_us=slide, offset_us=offset)


def cumulative(size, step, offset=0):
    return CumulativeWindow(size_us=size, step_us=step, offset_us=offset)


SHARED = [sliding(10, 5), sliding(10, 3), sliding(10, 10), sliding(9, 6, 4), cumulative(12, 4), cumulative(12, 3, 7)]
WINDOWS = [*SHARED, TumblingWindow(size_us=10, offset_us=3)]


def windows_of(window, time):
    """By the definition, and not by arrays."""
    match window:
        case SlidingWindow(size_us=size, slide_us=slide, offset_us=offset):
            found = [(start, start + size) for start in range(-100, 160) if (start - offset) % slide == 0]
        case CumulativeWindow(size_us=size, step_us=step, offset_us=offset):
            start = (time - offset) // size * size + offset
            found = [(start, start + length) for length in range(step, size + 1, step)]
        case TumblingWindow(size_us=size, offset_us=offset):
            start = (time - offset) // size * size + offset
            found = [(start, start + size)]
    return [(start, end) for start, end in found if start <= time < end]


def steps(window, keys=("k",)):
    shape = {"keys": keys, "aggregates": COUNT}
    partial = partial_schema(SCHEMA, time_column="ts", window=window, **shape)
    result = result_schema(SCHEMA, time_column="ts", **shape)
    return (
        CombineStep(time_column="ts", window=window, schema=partial, **shape),
        WindowStep(window=window, schema=result, **shape),
    )


def records(rows):
    keys, times = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array(times, pa.int64()).cast(SCHEMA.field("ts").type)], SCHEMA
    )


def give(front, backs, rows, keys=("k",)):
    front.output.clear()
    front.operator.process(records(rows))
    front.operator.before_barrier()
    for partials in front.output.items:
        for back, part in zip(backs, partition(partials, keys, parallelism=len(backs), groups=GROUPS), strict=True):
            if part is not None:
                back.operator.process(part)


def results(back, keys=("k",)):
    found = []
    for item in back.output.items:
        if not isinstance(item, tuple):
            columns = [
                item.column(name).cast(pa.int64()).to_pylist() for name in (*keys, "window_start", "window_end", "n")
            ]
            found += zip(*columns, strict=True)
    back.output.clear()
    return found


def in_order(places):
    return sorted(places, key=lambda place: (place[2], place[1], place[0]))


class Model:
    """Records by pane, and which windows have fired."""

    def __init__(self, window):
        self._window = window
        self._held = Counter()
        self.watermark = None
        self.late = 0

    def records(self, rows):
        late = set()
        for key, time in rows:
            places = [(key, *bounds) for bounds in windows_of(self._window, time)]
            still_open = [place for place in places if self.watermark is None or place[2] - 1 > self.watermark]
            self._held.update(still_open)
            if not still_open:
                late.add((key, int(self._window.panes.assign(np.array([time]))[0])))
        self.late += len(late)

    def fire(self, time):
        self.watermark = time if self.watermark is None else max(self.watermark, time)
        due = in_order(place for place in self._held if place[2] - 1 <= time)
        return [(*place, self._held.pop(place)) for place in due]


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=12)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("part_rows", [1, 1_000_000])
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.tuples(ROWS, st.integers(-5, 60), st.booleans()), max_size=5))
def test_records_are_counted_in_each_of_their_windows_until_it_is_complete(rig, window, part_rows, batches):
    combine, step = steps(window)
    front, back, model = rig(combine), rig(step), Model(window)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_table, "PART_ROWS", part_rows)
        for rows, time, restored in [*batches, ([(0, 0)], MAX_WATERMARK, False)]:
            give(front, [back], rows)
            model.records(rows)
            if restored:
                assert back.operator.late_dropped == model.late
                model.late, back = 0, rig(step, restored=[back.freeze()()], files=back.files)
            back.operator.watermark(time)
            assert results(back) == model.fire(time)
    assert back.operator.late_dropped == model.late


@pytest.mark.parametrize("window", SHARED, ids=str)
@settings(max_examples=30, deadline=None)
@given(before=ROWS, times=st.tuples(st.integers(-5, 60), st.integers(-5, 60)), after=ROWS, last=st.integers(-5, 80))
def test_subtasks_that_had_come_to_different_times_go_on_as_one(rig, memory_files, window, before, times, after, last):
    combine, step = steps(window)
    front, files = rig(combine), memory_files()
    backs = [rig(step, subtask=i, parallelism=2, files=files) for i in range(2)]
    models = [Model(window), Model(window)]
    owner = [
        next(i for i, part in enumerate(partition(records([(k, 0)]), ["k"], parallelism=2, groups=GROUPS)) if part)
        for k in range(4)
    ]
    for rows, subtasks in ((before, backs), (after, None)):
        for i, model in enumerate(models):
            model.records([row for row in rows if owner[row[0]] == i])
        if subtasks is None:
            backs = [rig(step, files=files, restored=[back.snapshot() for back in backs])]
        give(front, backs, rows)
        if subtasks is not None:
            for back, model, time in zip(backs, models, times, strict=True):
                back.operator.watermark(time)
                assert results(back) == model.fire(time)
    for time in (last, MAX_WATERMARK):
        backs[0].operator.watermark(time)
        due = [row for model in models for row in model.fire(time)]
        assert results(backs[0]) == in_order(due)
    assert backs[0].operator.late_dropped == sum(model.late for model in models)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=30, deadline=None)
@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_without_a_key_all_records_of_a_window_are_counted_together(rig, window, batches):
    combine, step = steps(window, keys=())
    front, back, model = rig(combine), rig(step), Model(window)
    for number, rows in enumerate(batches):
        give(front, [back], rows, keys=())
        model.records([(0, time) for _, time in rows])
        back.operator.watermark(number * 15)
        assert results(back, keys=()) == [row[1:] for row in model.fire(number * 15)]
    back = rig(step, restored=[back.snapshot()], files=back.files)
    back.operator.watermark(MAX_WATERMARK)
    assert results(back, keys=()) == [row[1:] for row in model.fire(MAX_WATERMARK)]


# --- firings that are cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part_rows", [1, 4, 1_000_000])
@pytest.mark.parametrize("window", SHARED, ids=str)
def test_a_snapshot_between_any_two_results_has_the_others(rig, monkeypatch, window, part_rows):
    monkeypatch.setattr(window_table, "PART_ROWS", part_rows)
    combine, step = steps(window)
    rows = [(time % 3, time) for time in range(0, 40, 2)]
    model, after, more = Model(window), 0, True
    model.records(rows)
    expected = model.fire(31) + model.fire(100)
    while more:
        front, first = rig(combine), rig(step)
        give(front, [first], rows)
        cut_everywhere(first)
        work = first.operator.watermark(31)
        for _ in range(after):
            more = go_on(first, work)
        if more:
            assert work.may_snapshot
        again = rig(step, files=first.files, restored=[first.snapshot()])
        # Event time starts anew, and another snapshot is taken before event time is there again.
        again.operator.watermark(3)
        shown = results(first) + results(again)
        again = rig(step, files=first.files, restored=[again.snapshot()])
        for time in (31, 100):
            again.operator.watermark(time)
        assert shown + results(again) == expected
        after += 1
    assert after > 3


def cut_everywhere(found):
    found.operator.slice = Slice()
    found.operator.slice.run_by(lambda: 0.0, 1)
    found.operator.slice.begin()


def go_on(found, work):
    found.operator.slice.begin()
    return work.go_on()


@pytest.mark.parametrize("window", SHARED, ids=str)
def test_at_the_end_of_event_time_all_windows_fire_before_a_snapshot_and_records_that_follow_are_not_late(rig, window):
    combine, step = steps(window)
    front, back = rig(combine), rig(step)
    rows = [(time % 3, time) for time in range(0, 40, 2)]
    give(front, [back], rows)
    model, again = Model(window), Model(window)
    model.records(rows)
    cut_everywhere(back)
    work = back.operator.watermark(MAX_WATERMARK)
    while go_on(back, work):
        assert not work.may_snapshot
    assert results(back) == model.fire(MAX_WATERMARK)
    # Now a job goes on from the savepoint: the windows are shown in two parts.
    restored = rig(step, files=back.files, restored=[back.snapshot()])
    give(front, [restored], rows[-3:])
    again.records(rows[-3:])
    restored.operator.watermark(100)
    assert results(restored) == again.fire(100)
    assert restored.operator.late_dropped == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(-2, 10)), min_size=1, max_size=20),
    st.integers(1, 30),
    st.integers(1, 4),
)
def test_windows_are_put_together_in_parts_of_few_rows_or_of_a_single_window(spans, most, spacing):
    first = np.array([begin * spacing for begin, _ in spans])
    last = np.array([(begin + length) * spacing for begin, length in spans])
    places = [end for a, b in zip(first, last, strict=True) for end in range(a, b + 1, spacing)]
    parts = parts_of(first, last, spacing, most=most)
    assert parts == sorted(set(parts))
    before = min(places, default=0) - 1
    for part in parts:
        held = [end for end in places if before < end <= part]
        assert held
        assert len(held) <= most or len(set(held)) == 1
        before = part
    assert before == max(places, default=before)


# --- the types -------------------------------------------------------------------------------------------------------


def test_state_of_one_window_type_does_not_go_on_under_another(rig):
    back = rig(steps(sliding(10, 5))[1])
    state = back.freeze()()
    for other in (sliding(10, 2), sliding(10, 5, 1), cumulative(10, 5), TumblingWindow(size_us=10)):
        with pytest.raises(UsageError, match="the state of 'the step' is of windows of sliding 10 us by 5 us, offset"):
            rig(steps(other)[1], restored=[state], files=back.files)


@pytest.mark.parametrize("window", SHARED, ids=str)
def test_a_pane_is_held_by_the_windows_that_the_definition_says(window):
    times = np.arange(-20, 60)
    panes = window.panes.assign(times)
    for time, first, last in zip(times.tolist(), window.first_end(panes), window.last_end(panes), strict=True):
        ends = np.arange(first, last + 1, window.spacing_us)
        found = list(zip(window.starts_of(ends).tolist(), ends.tolist(), strict=True))
        assert found == sorted(windows_of(window, time), key=lambda bounds: bounds[1])


@pytest.mark.parametrize("window", SHARED, ids=str)
def test_a_pane_is_kept_as_long_as_a_window_needs_it(window):
    pane_us = window.panes.size_us
    for pane in range(window.panes.offset_us - 20 * pane_us, 60, pane_us):
        last = int(window.last_end(np.array([pane]))[0])
        assert pane < window.first_kept(last)
        assert pane >= window.first_kept(last - window.spacing_us)


@pytest.mark.parametrize("window", SHARED, ids=str)
def test_records_at_the_limits_of_time_are_dropped_and_counted(rig, window):
    combine, step = steps(window)
    front, back = rig(combine), rig(step)
    earliest, latest = window.times()
    give(front, [back], [(1, time) for time in (-(2**63), earliest - 1, earliest, latest, latest + 1, 2**63 - 1)])
    assert front.operator.metrics()["beyond_time_dropped"] == 4
    back.operator.watermark(MAX_WATERMARK)
    found = results(back)
    assert all(start < end for _, start, end, _ in found)
    assert all(start <= earliest < end or start <= latest < end for _, start, end, _ in found)
    assert {n for *_, n in found} == {1}
