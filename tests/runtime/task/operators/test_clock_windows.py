"""Windows of processing time, against their definition: each record is in the windows of the moment at which it came,
whatever is restored."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.pane_windows import SlidingWindow
from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema({"k": pa.int64()})
AGGREGATES = (Aggregate(name="n", kind="count", column=None),)
WINDOWS = [
    TumblingWindow(size_us=10_000, by_clock=True),
    SlidingWindow(size_us=10_000, slide_us=4_000, by_clock=True),
    SessionWindow(gap_us=5_000, by_clock=True),
]


def steps(window, keys=("k",)):
    shape = {"keys": keys, "aggregates": AGGREGATES, "time_column": None}
    partial = partial_schema(SCHEMA, window=window, **shape)
    combine = CombineStep(window=window, schema=partial, holds=False, **shape)
    return combine, WindowStep(
        keys=keys, window=window, aggregates=AGGREGATES, schema=result_schema(SCHEMA, window=window, **shape)
    )


def records(keys):
    return pa.record_batch([pa.array(keys, pa.int64())], schema=SCHEMA)


def bounds_of(window, ms):
    time = ms * 1_000
    if isinstance(window, TumblingWindow):
        return [(time // window.size_us * window.size_us, time // window.size_us * window.size_us + window.size_us)]
    starts = range(time - window.size_us, time + 1)
    return [
        (start, start + window.size_us)
        for start in starts
        if start % window.slide_us == 0 and start + window.size_us > time
    ]


def windows_of(window, came):
    """The records of each window, from (key, moment)."""
    if not isinstance(window, SessionWindow):
        return Counter((key, *bounds) for key, ms in came for bounds in bounds_of(window, ms))
    found = []
    for key, ms in sorted(came):
        start, end = ms * 1_000, ms * 1_000 + window.gap_us
        if found and found[-1][0] == key and start <= found[-1][2]:
            _, first, _, n = found.pop()
            found.append((key, first, end, n + 1))
        else:
            found.append((key, start, end, 1))
    return Counter({tuple(bounds): n for *bounds, n in found})


def shown(output):
    found = Counter()
    for batch in [item for item in output.items if not isinstance(item, tuple)]:
        columns = [batch.column(name).cast(pa.int64()).to_pylist() for name in ("k", "window_start", "window_end", "n")]
        found.update({tuple(bounds): n for *bounds, n in zip(*columns, strict=True)})
    output.clear()
    return found


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=30, deadline=None)
@given(
    moments=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, 9), st.booleans(), st.booleans()), max_size=12
    )
)
def test_each_record_is_in_the_windows_of_its_moment(rig, window, moments):
    combine, step = steps(window)
    now, came, found = 1_000, [], Counter()
    front, back = rig(combine), rig(step, now=now)
    for keys, pause, restored, looks in moments:
        front.operator.process(records(keys))
        for partials in front.output.items:
            back.operator.process(partials)
        front.output.clear()
        came += [(key, now) for key in keys]
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, now=now)
        now += pause
        back.time = now
        if looks:
            due = back.tick(now)
            assert due is None or due > now
            found += shown(back.output)
            settled = windows_of(window, came)
            late = 1 if isinstance(window, SessionWindow) else 0
            assert found == Counter({p: n for p, n in settled.items() if p[2] + late <= now * 1_000})
    assert back.output.watermarks == []
    back.operator.watermark(5)
    assert back.output.items == [(5, False)]
    back.output.clear()
    back.operator.watermark(MAX_WATERMARK)
    assert back.output.watermarks == [(MAX_WATERMARK, False)]
    assert found + shown(back.output) == windows_of(window, came)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_task_is_woken_when_a_window_is_complete(rig, window):
    combine, step = steps(window)
    front, back = rig(combine), rig(step, now=1_001)
    front.operator.process(records([1]))
    assert back.operator.tick(1_001) is None
    back.operator.process(front.output.items[0])
    due = back.operator.tick(1_001)
    assert due == min(end for _, _, end in windows_of(window, [(1, 1_001)])) // 1_000 + isinstance(
        window, SessionWindow
    )
    back.time = due
    assert back.operator.fire(due - 1) is None
    assert shown(back.output) == Counter()
    back.operator.fire(due)
    assert len(shown(back.output)) == 1


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_clock_that_goes_back_after_a_restore_opens_no_window_again(rig, window):
    combine, step = steps(window)
    front, back = rig(combine), rig(step, now=5_000)
    front.operator.process(records([1]))
    (partials,) = front.output.items
    back.operator.process(partials)
    back.tick(5_100)
    first = shown(back.output)
    again = rig(step, restored=[back.snapshot()], files=back.files, now=4_000)
    again.operator.process(partials)
    again.operator.watermark(MAX_WATERMARK)
    second = shown(again.output)
    assert first
    assert second
    assert not first & second
    assert again.operator.metrics()["late_dropped"] == 0


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_snapshot_between_two_slices_has_the_windows_that_were_not_handed_on(rig, window):
    combine, step = steps(window)
    front, back = rig(combine), rig(step, now=5_000)
    front.operator.process(records(list(range(30))))
    back.operator.process(front.output.items[0])
    back.operator.slice = Slice()
    back.operator.slice.run_by(lambda: 0.0, 7)
    back.operator.slice.begin()
    back.time = 5_100
    work = back.operator.fire(5_100)
    assert work.may_snapshot
    due = back.operator.tick(5_100)
    assert due is None or due > 5_100
    found = shown(back.output)
    again = rig(step, restored=[back.snapshot()], files=back.files, now=5_200)
    again.tick(5_200)
    again.operator.watermark(MAX_WATERMARK)
    assert found + shown(again.output) == windows_of(window, [(key, 5_000) for key in range(30)])
