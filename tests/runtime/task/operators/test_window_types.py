"""The operators take any window type that does not merge: here types that only these tests have, one of which overlaps,
and one whose windows have different lengths."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import Assigned, TumblingWindow, WindowType
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError

LARGEST = 2**63 - 1
SCHEMA = pa.schema({"k": pa.int64(), "ts": pa.timestamp("us", "UTC")})
COUNT = (Aggregate(name="n", kind="count", column=None),)


@dataclass(frozen=True)
class Sliding(WindowType):
    size: int
    slide: int

    overlaps = True
    merges = False

    @property
    def length_us(self):
        return self.size

    @property
    def spacing_us(self):
        return self.slide

    def times(self):
        return -LARGEST + 2 * self.size, LARGEST - 2 * self.size

    def assign(self, times):
        panes = -(-self.size // self.slide)
        rows = np.repeat(np.arange(times.size), panes)
        starts = np.repeat(times // self.slide * self.slide, panes)
        starts -= np.tile(np.arange(panes) * self.slide, times.size)
        inside = starts + self.size > times[rows]
        return Assigned(rows=rows[inside], starts=starts[inside], ends=None)

    def described(self):
        return f"sliding {self.size} by {self.slide}"


@dataclass(frozen=True)
class Cumulative(WindowType):
    size: int
    step: int

    overlaps = True
    merges = False
    length_us = None
    spacing_us = None

    def times(self):
        return -LARGEST + 2 * self.size, LARGEST - 2 * self.size

    def assign(self, times):
        steps = self.size // self.step
        rows = np.repeat(np.arange(times.size), steps)
        starts = np.repeat(times // self.size * self.size, steps)
        ends = starts + np.tile(np.arange(1, steps + 1) * self.step, times.size)
        inside = ends > times[rows]
        return Assigned(rows=rows[inside], starts=starts[inside], ends=ends[inside])

    def described(self):
        return f"cumulative {self.size} by {self.step}"


WINDOWS = [Sliding(10, 5), Sliding(10, 3), Sliding(4, 7), Cumulative(12, 4), TumblingWindow(size_us=10, offset_us=3)]


def windows_of(window, time):
    """By the definition, and not by arrays."""
    match window:
        case Sliding(size=size, slide=slide):
            found = [(start, start + size) for start in range(-60, 120) if start % slide == 0]
        case Cumulative(size=size, step=step):
            start = time // size * size
            found = [(start, start + length) for length in range(step, size + 1, step)]
        case TumblingWindow(size_us=size, offset_us=offset):
            start = (time - offset) // size * size + offset
            found = [(start, start + size)]
    return [(start, end) for start, end in found if start <= time < end]


def steps(window):
    shape = {"keys": ("k",), "aggregates": COUNT}
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


def give(front, back, rows):
    front.output.clear()
    front.operator.process(records(rows))
    front.operator.before_barrier()
    for partials in front.output.items:
        back.operator.process(partials)


def results(back):
    found = []
    for item in back.output.items:
        if not isinstance(item, tuple):
            columns = [
                item.column(name).cast(pa.int64()).to_pylist() for name in ("k", "window_start", "window_end", "n")
            ]
            found += zip(*columns, strict=True)
    back.output.clear()
    return found


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=12)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.tuples(ROWS, st.integers(-5, 60), st.booleans()), max_size=5))
def test_records_are_counted_in_each_of_their_windows_until_it_is_complete(rig, window, batches):
    combine, step = steps(window)
    front, back = rig(combine), rig(step)
    held, watermark, late = Counter(), None, 0
    for rows, time, restored in [*batches, ([(0, 0)], MAX_WATERMARK, False)]:
        give(front, back, rows)
        places = [(key, *bounds) for key, each in rows for bounds in windows_of(window, each)]
        open_places = [place for place in places if watermark is None or place[2] - 1 > watermark]
        late += len(set(places) - set(open_places))
        held.update(open_places)
        if restored:
            assert back.operator.late_dropped == late
            late, back = 0, rig(step, restored=[back.freeze()()], files=back.files)
        watermark = time if watermark is None else max(watermark, time)
        back.operator.watermark(watermark)
        due = sorted((place for place in held if place[2] - 1 <= watermark), key=lambda p: (p[2], p[1], p[0]))
        assert results(back) == [(*place, held.pop(place)) for place in due]
    assert back.operator.late_dropped == late
    assert not held


def test_state_of_one_window_type_does_not_go_on_under_another(rig):
    _, sliding = steps(Sliding(10, 5))
    back = rig(sliding)
    state = back.freeze()()
    for other in (Sliding(10, 2), TumblingWindow(size_us=10)):
        with pytest.raises(UsageError, match="the state of 'the step' is of windows of sliding 10 by 5, n=count"):
            rig(steps(other)[1], restored=[state], files=back.files)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_time_belongs_to_the_windows_that_the_definition_says(window):
    times = np.arange(-20, 60)
    rows, starts, ends = window.assign(times)
    rows = np.arange(times.size) if rows is None else rows
    ends = starts + window.length_us if ends is None else ends
    found = {(int(times[row]), int(start), int(end)) for row, start, end in zip(rows, starts, ends, strict=True)}
    assert found == {(int(time), *bounds) for time in times for bounds in windows_of(window, int(time))}
