"""Windows whose late records are read: each record counts in its windows or comes out as it was, whatever is
restored."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.steps import LATE, Aggregate, CombineStep, LateRecords, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK

SCHEMA = pa.schema({"k": pa.int64(), "note": pa.string(), "ts": pa.timestamp("us", "UTC")})
COUNT = (Aggregate(name="n", kind="count", column=None),)


def bounds_of(window, time):
    """By the definition: the starts and the ends of the windows of a time."""
    size = window.size_us
    match window:
        case TumblingWindow():
            found = [(time // size * size, size)]
        case SlidingWindow():
            found = [(start * window.slide_us, size) for start in range(-size, time // window.slide_us + 1)]
        case CumulativeWindow():
            found = [(time // size * size, length) for length in range(window.step_us, size + 1, window.step_us)]
    return [(start, start + length) for start, length in found if start <= time < start + length]


WINDOWS = [
    TumblingWindow(size_us=10),
    SlidingWindow(size_us=10, slide_us=4),
    CumulativeWindow(size_us=9, step_us=3),
]


def steps(window, keys=("k",), offset=0):
    """A window step that gets partial aggregates, the step that makes them, and a window step that gets records."""
    shape = {"keys": keys, "aggregates": COUNT}
    partial = partial_schema(SCHEMA, time_column="ts", window=window, **shape)
    late = LateRecords(time_column="ts", schema=SCHEMA)
    plain = WindowStep(window=window, schema=result_schema(SCHEMA, time_column="ts", **shape), late=late, **shape)
    combine = CombineStep(time_column="ts", window=window, schema=partial, time_offset_us=offset, **shape)
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
    """How many records each window had, by key, start and end."""
    found = Counter()
    for item in back.output.items:
        if not isinstance(item, tuple):
            names = [name for name in ("k", "window_start", "window_end") if name in item.schema.names]
            columns = (item.column(name).cast(pa.int64()).to_pylist() for name in (*names, "n"))
            found.update({tuple(place): n for *place, n in zip(*columns, strict=True)})
    back.output.clear()
    return found


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 50)), max_size=12
)


BATCHES = st.lists(st.tuples(ROWS, st.integers(-5, 60), st.booleans()), max_size=6)


@pytest.mark.parametrize("lateness", [0, 7])
@pytest.mark.parametrize("keys", [("k",), ()], ids=["by key", "over all records"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=60, deadline=None)
@given(batches=BATCHES)
def test_a_record_is_late_if_all_its_windows_have_fired_and_then_comes_out_as_it_was(
    rig, window, keys, lateness, batches
):
    _, _, step = steps(window, keys)
    step = replace(step, lateness_us=lateness)
    back = rig(step, sides=[LATE])
    held, watermark = Counter(), None
    for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
        back.operator.process(records(rows))
        late = []
        for key, note, each in rows:
            places = [] if each is None else bounds_of(window, each)
            still_open = [place for place in places if watermark is None or place[1] - 1 > watermark]
            held.update(((key,) if keys else ()) + place for place in still_open)
            late += [(key, note, each)] if places and not still_open else []
        assert rows_of(back.sides[LATE]) == late
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
        shifted = time if time == MAX_WATERMARK else time - lateness
        watermark = shifted if watermark is None else max(watermark, shifted)
        back.operator.watermark(watermark if time == MAX_WATERMARK else watermark + lateness)
        assert back.output.watermarks[-1] == (watermark, False)
        due = [place for place in held if place[-1] - 1 <= watermark]
        assert counts(back) == Counter({place: held.pop(place) for place in due})
        assert back.operator.metrics()["late_dropped"] == 0
    assert not held
    timeless = sum(each is None for rows, _, _ in batches for _, _, each in rows)
    if not any(restored for _, _, restored in batches):
        assert back.operator.metrics()["timeless_dropped"] == timeless


def joined(sessions):
    """By the definition: sessions of one key, each a start, an end and its records, that touch become one session."""
    found = []
    for start, end, held in sorted(sessions, key=lambda session: session[:2]):
        if found and start <= found[-1][1]:
            first, last, before = found.pop()
            found.append((first, max(last, end), before + held))
        else:
            found.append((start, end, held))
    return found


@pytest.mark.parametrize("lateness", [0, 7])
@settings(max_examples=150, deadline=None)
@given(batches=BATCHES)
def test_a_record_is_late_if_it_joins_no_session_that_is_open(rig, lateness, batches):
    gap = 5
    _, _, step = steps(SessionWindow(gap_us=gap))
    step = replace(step, lateness_us=lateness)
    back = rig(step, sides=[LATE])
    open_sessions, watermark = {}, -(2**63)
    for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
        back.operator.process(records(rows))
        late = []
        for key in range(4):
            alone = [(row[2], row[2] + gap, [row]) for row in rows if row[0] == key and row[2] is not None]
            found = joined([*open_sessions.get(key, []), *alone])
            late += [row for _, end, held in found if end <= watermark for row in held]
            open_sessions[key] = [session for session in found if session[1] > watermark]
        assert Counter(rows_of(back.sides[LATE])) == Counter(late)
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
        watermark = max(watermark, time if time == MAX_WATERMARK else time - lateness)
        back.operator.watermark(watermark if time == MAX_WATERMARK else watermark + lateness)
        due = [(key, each) for key, found in open_sessions.items() for each in found if each[1] <= watermark]
        assert counts(back) == Counter({(key, start, end): len(held) for key, (start, end, held) in due})
        open_sessions = {key: [e for e in found if e[1] > watermark] for key, found in open_sessions.items()}
        assert back.operator.metrics()["late_dropped"] == 0
    assert not any(open_sessions.values())


@pytest.mark.parametrize("window", [*WINDOWS, SessionWindow(gap_us=5)], ids=str)
def test_a_record_that_is_a_window_is_late_by_the_last_time_in_the_window(rig, window):
    """The event time of a window is one microsecond before the time in the column."""
    _, _, step = steps(window, offset=-1)
    back = rig(step, sides=[LATE])
    last = 14 if isinstance(window, SessionWindow) else max(end for _, end in bounds_of(window, 9)) - 1
    back.operator.watermark(last - 1)
    back.operator.process(records([(1, "a", 10)]))
    assert rows_of(back.sides[LATE]) == []
    back.operator.watermark(last)
    back.operator.process(records([(2, "a", 10)]))
    assert rows_of(back.sides[LATE]) == [(2, "a", 10)]


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
    assert sorted([*late, *((key, "x", 15) for key, *_ in counts(merged))]) == given_rows


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
    assert counts(again) == Counter({(1, 10, 20): 3})


def test_times_whose_windows_do_not_fit_are_not_late(rig):
    back = rig(steps(TumblingWindow(size_us=10))[2], sides=[LATE])
    back.operator.watermark(20)
    back.operator.process(records([(1, "a", -(2**63)), (1, "a", 2**63 - 1)]))
    assert rows_of(back.sides[LATE]) == []
    assert back.operator.metrics()["beyond_time_dropped"] == 2
