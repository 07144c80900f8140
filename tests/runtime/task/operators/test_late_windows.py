"""Windows whose late records are read: each record counts in its windows or comes out as it was, whatever is
restored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.steps import LATE, Aggregate, CombineStep, LateRecords, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import Assigned, TumblingWindow, WindowType
from penstock.core.elements import MAX_WATERMARK

SCHEMA = pa.schema({"k": pa.int64(), "note": pa.string(), "ts": pa.timestamp("us", "UTC")})
COUNT = (Aggregate(name="n", kind="count", column=None),)
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Hopping(WindowType):
    """Windows of `size` that begin at every multiple of `hop`: they overlap, or there are gaps between them."""

    size: int
    hop: int

    overlaps = True
    merges = False

    @property
    def length_us(self):
        return self.size

    @property
    def spacing_us(self):
        return self.hop

    def times(self):
        return -LARGEST + 2 * self.size, LARGEST - 2 * self.size

    def assign(self, times):
        pairs = [(row, start) for row, time in enumerate(times.tolist()) for start in starts_of(self, time)[::-1]]
        rows, starts = (np.array([pair[n] for pair in pairs], np.int64) for n in (0, 1))
        return Assigned(rows=rows, starts=starts, ends=None)

    def described(self):
        return f"{self.size} by {self.hop}"


def starts_of(window, time):
    """By the definition: the starts of the windows of a time."""
    size, hop = (window.size, window.hop) if isinstance(window, Hopping) else (window.size_us, window.size_us)
    return [start for start in range((time - size) // hop * hop, time + 1, hop) if start <= time < start + size]


WINDOWS = [TumblingWindow(size_us=10), Hopping(10, 4), Hopping(4, 7)]


def steps(window):
    """A window step that gets partial aggregates, the step that makes them, and a window step that gets records."""
    shape = {"keys": ("k",), "aggregates": COUNT}
    partial = partial_schema(SCHEMA, time_column="ts", window=window, **shape)
    late = LateRecords(time_column="ts", schema=SCHEMA)
    plain = WindowStep(window=window, schema=result_schema(SCHEMA, time_column="ts", **shape), late=late, **shape)
    combine = CombineStep(time_column="ts", window=window, schema=partial, **shape)
    return plain, combine, replace(plain, combine=combine)


def records(rows):
    columns = [[row[n] for row in rows] for n in range(3)]
    times = pa.array(columns[2], pa.int64()).cast(SCHEMA.field("ts").type)
    return pa.record_batch([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.string()), times], schema=SCHEMA)


def rows_of(recorder):
    """The records that came out, as they went in."""
    found = [
        (row["k"], row["note"], None if row["ts"] is None else int(time))
        for batch in recorder.items
        for row, time in zip(batch.to_pylist(), batch.column("ts").cast(pa.int64()).to_pylist(), strict=True)
    ]
    recorder.clear()
    return found


def counts(back):
    found = Counter()
    for item in back.output.items:
        if not isinstance(item, tuple):
            columns = (item.column(name).cast(pa.int64()).to_pylist() for name in ("k", "window_start", "n"))
            found.update({(k, start): n for k, start, n in zip(*columns, strict=True)})
    back.output.clear()
    return found


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 50)), max_size=12
)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(ROWS, st.integers(-5, 60), st.booleans()), max_size=6))
def test_a_record_is_late_if_all_its_windows_have_fired_and_then_comes_out_as_it_was(rig, window, batches):
    _, _, step = steps(window)
    back = rig(step, sides=[LATE])
    held, watermark = Counter(), None
    for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
        back.operator.process(records(rows))
        late = []
        for key, note, each in rows:
            places = [] if each is None else starts_of(window, each)
            length = window.length_us
            still_open = [start for start in places if watermark is None or start + length - 1 > watermark]
            held.update((key, start) for start in still_open)
            late += [(key, note, each)] if places and not still_open else []
        assert rows_of(back.sides[LATE]) == late
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
        watermark = time if watermark is None else max(watermark, time)
        back.operator.watermark(watermark)
        due = [place for place in held if place[1] + window.length_us - 1 <= watermark]
        assert counts(back) == Counter({place: held.pop(place) for place in due})
    assert not held
    timeless = sum(each is None for rows, _, _ in batches for _, _, each in rows)
    if not any(restored for _, _, restored in batches):
        assert back.operator.metrics()["timeless_dropped"] == timeless


def test_nothing_is_counted_as_dropped_that_comes_out(rig):
    back = rig(steps(TumblingWindow(size_us=10))[2], sides=[LATE])
    back.operator.watermark(20)
    back.operator.process(records([(1, "a", 5), (1, "b", 25)]))
    assert rows_of(back.sides[LATE]) == [(1, "a", 5)]
    assert back.operator.metrics() == {"late_dropped": 0, "timeless_dropped": 0, "beyond_time_dropped": 0}


def test_key_groups_that_had_come_to_different_times_have_different_late_records(rig, memory_files):
    _, _, step = steps(TumblingWindow(size_us=10))
    files = memory_files()
    before = [rig(step, subtask=i, parallelism=2, files=files, sides=[LATE]) for i in range(2)]
    before[0].operator.watermark(29)
    before[1].operator.watermark(9)
    merged = rig(step, files=files, restored=[each.snapshot() for each in before], sides=[LATE])
    given_rows = [(key, "x", 15) for key in range(50)]
    merged.operator.process(records(given_rows))
    late = rows_of(merged.sides[LATE])
    assert 0 < len(late) < 50
    merged.operator.watermark(MAX_WATERMARK)
    assert sorted([*late, *((key, "x", 15) for key, _ in counts(merged))]) == given_rows


def test_a_program_may_begin_and_cease_to_read_late_records_with_the_state_that_it_has(rig):
    plain, combine, step = steps(TumblingWindow(size_us=10))
    front, back = rig(combine), rig(plain)
    front.operator.process(records([(1, "a", 15), (1, "a", 16)]))
    front.operator.before_barrier()
    back.operator.process(front.output.items[0])
    back.operator.watermark(9)
    reading = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
    reading.operator.process(records([(1, "a", 5), (1, "b", 17)]))
    assert rows_of(reading.sides[LATE]) == [(1, "a", 5)]
    again = rig(plain, restored=[reading.snapshot()], files=back.files)
    again.operator.watermark(MAX_WATERMARK)
    assert counts(again) == Counter({(1, 10): 3})


def test_times_whose_windows_do_not_fit_are_not_late(rig):
    back = rig(steps(TumblingWindow(size_us=10))[2], sides=[LATE])
    back.operator.watermark(20)
    back.operator.process(records([(1, "a", -(2**63)), (1, "a", 2**63 - 1)]))
    assert rows_of(back.sides[LATE]) == []
    assert back.operator.metrics()["beyond_time_dropped"] == 2
