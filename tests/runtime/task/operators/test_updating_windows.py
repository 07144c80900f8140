"""Windows that show updates, against their definition: whoever follows the changes has the results of the records that
have counted so far, whatever is restored."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.changelog import with_row_kind, without_row_kind
from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.steps import LATE, ROW_COUNT, Aggregate, CombineStep, LateRecords, Updates, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow, TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})
AGGREGATES = (Aggregate(name="n", kind="count", column=None), Aggregate(name="top", kind="max", column="v"))
COUNTED = (*AGGREGATES, Aggregate(name=ROW_COUNT, kind="count", column=None))
GAP = 5
WINDOWS = [
    TumblingWindow(size_us=10),
    SlidingWindow(size_us=10, slide_us=4),
    CumulativeWindow(size_us=9, step_us=3),
]
SESSION = SessionWindow(gap_us=GAP)
BEGIN = -(2**63)


def steps(window, updates=None, *, keys=("k",), lateness=0):
    """The step that makes partial aggregates, and the window that shows updates."""
    updates = updates or Updates()
    shape = {"keys": keys, "aggregates": AGGREGATES if updates.every_rows is None else COUNTED}
    partial = partial_schema(SCHEMA, time_column="ts", window=window, **shape)
    combine = CombineStep(time_column="ts", window=window, schema=partial, holds=False, **shape)
    result = result_schema(SCHEMA, keys=keys, time_column="ts", aggregates=AGGREGATES)
    return combine, WindowStep(
        window=window,
        schema=with_row_kind(result),
        late=LateRecords(time_column="ts", schema=SCHEMA),
        updates=updates,
        partials=partial,
        lateness_us=lateness,
        **shape,
    )


def records(rows):
    keys, values, times = ([row[n] for row in rows] for n in range(3))
    times = pa.array(times, pa.int64()).cast(SCHEMA.field("ts").type)
    return pa.record_batch([pa.array(keys, pa.int64()), pa.array(values, pa.int64()), times], schema=SCHEMA)


class View:
    """The table that the changes have made so far. Refuses changes that do not fit."""

    def __init__(self):
        self.rows = {}
        self.changed = 0

    def follow(self, output):
        expected = None
        for batch in [item for item in output.items if not isinstance(item, tuple)]:
            names = [name for name in batch.schema.names if name != "row_kind"]
            columns = [
                batch.column(name).cast(pa.int64()) if name.startswith("window") else batch.column(name)
                for name in names
            ]
            kinds = batch.column("row_kind").to_pylist()
            assert batch.schema.names[-1] == "row_kind"
            assert kinds[-1] != "update_before"
            for *bounds, n, top, kind in zip(*(column.to_pylist() for column in columns), kinds, strict=True):
                place, row = tuple(bounds), (n, top)
                self.changed += 1
                assert expected in (None, place)
                if kind == "insert":
                    assert place not in self.rows
                elif kind != "update_after":
                    assert self.rows.pop(place) == row
                if kind in ("insert", "update_after"):
                    self.rows[place] = row
                assert (kind == "update_after") == (expected is not None)
                expected = place if kind == "update_before" else None
        assert expected is None
        output.clear()


def bounds_of(window, time):
    size = window.size_us
    match window:
        case TumblingWindow():
            found = [(time // size * size, size)]
        case SlidingWindow():
            found = [(start * window.slide_us, size) for start in range(-size, time // window.slide_us + 1)]
        case CumulativeWindow():
            found = [(time // size * size, length) for length in range(window.step_us, size + 1, window.step_us)]
    return [(start, start + length) for start, length in found if start <= time < start + length]


class Panes:
    """The records of each window, by the definition."""

    def __init__(self, window, keyed=True):
        self._window, self._keyed = window, keyed
        self._values = defaultdict(list)
        self.late = []

    def add(self, rows, settled):
        for key, value, time in rows:
            places = [place for place in bounds_of(self._window, time) if place[1] - 1 > settled]
            if not places:
                self.late.append((key, value, time))
            for place in places:
                self._values[((key,) if self._keyed else ()) + place].append(value)

    def settle(self, settled):
        """The windows stay as they are."""

    def shown(self, until):
        """The results of the windows that end at `until` at the latest, or of all windows."""
        return {p: (len(v), max(v)) for p, v in self._values.items() if until is None or p[-1] - 1 <= until}


class Sessions:
    """The sessions that may still grow, and those that may not."""

    def __init__(self, window, keyed=True):
        self._open, self._settled = defaultdict(list), {}
        self.late = []

    def add(self, rows, settled):
        for key in {row[0] for row in rows}:
            merged = []
            alone = [(time, time + GAP, [(k, v, time)]) for k, v, time in rows if k == key]
            for start, end, held in sorted([*self._open[key], *alone], key=lambda each: each[:2]):
                if merged and start <= merged[-1][1]:
                    first, last, before = merged.pop()
                    merged.append((first, max(last, end), before + held))
                else:
                    merged.append((start, end, held))
            self.late += [row for _, end, held in merged if end <= settled for row in held]
            self._open[key] = [each for each in merged if each[1] > settled]

    def settle(self, settled):
        for key, found in self._open.items():
            self._settled |= {(key, *each[:2]): each[2] for each in found if each[1] <= settled}
            self._open[key] = [each for each in found if each[1] > settled]

    def shown(self, until):
        found = {(key, *each[:2]): each[2] for key, sessions in self._open.items() for each in sessions} | self._settled
        return {
            place: (len(held), max(value for _, value, _ in held))
            for place, held in found.items()
            if until is None or place[-1] <= until
        }


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 50)), max_size=8)
BATCHES = st.lists(st.tuples(ROWS, st.integers(-5, 60), st.booleans()), max_size=7)


def model_of(window, *, keyed=True):
    return Sessions(window) if isinstance(window, SessionWindow) else Panes(window, keyed)


def late_of(recorder):
    found = []
    for batch in recorder.items:
        found += zip(
            batch.column("k").to_pylist(),
            batch.column("v").to_pylist(),
            batch.column("ts").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    recorder.clear()
    return Counter(found)


def go(back, work):
    """All slices of the work, with a snapshot in the middle that must not change anything."""
    while work is not None and work.go_on():
        pass


@pytest.mark.parametrize("part_rows", [1, 1_000_000])
@pytest.mark.parametrize("early", [False, True], ids=["at the watermark", "at every change"])
@pytest.mark.parametrize("window", [*WINDOWS, SESSION], ids=str)
@settings(max_examples=25, deadline=None)
@given(batches=BATCHES, lateness=st.sampled_from([0, 3, 15]))
def test_whoever_follows_the_changes_has_the_results(rig, window, early, part_rows, batches, lateness):
    combine, step = steps(window, Updates(every_batch=early), lateness=lateness)
    step = replace(step, combine=combine)
    back, view, model, watermark = rig(step, sides=[LATE]), View(), model_of(window), BEGIN
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_table, "PART_ROWS", part_rows)
        for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
            settled = max(watermark - lateness, BEGIN)
            if rows:
                go(back, back.operator.process(records(rows)))
                model.add(rows, settled)
                model.settle(settled)
            view.follow(back.output)
            assert view.rows == model.shown(None if early else watermark)
            assert late_of(back.sides[LATE]) == Counter(model.late)
            model.late = []
            if restored:
                back = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
            watermark = max(watermark, time)
            go(back, back.operator.watermark(time))
            assert back.output.watermarks == [(time, False)]
            if time != MAX_WATERMARK:
                model.settle(watermark - lateness)
            view.follow(back.output)
            assert view.rows == model.shown(None if early else watermark)
            assert back.operator.metrics()["late_dropped"] == 0


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=25, deadline=None)
@given(batches=BATCHES)
def test_partials_over_all_records_are_merged_alike(rig, window, batches):
    combine, step = steps(window, keys=(), lateness=7)
    front, back, view, model, watermark = rig(combine), rig(step), View(), Panes(window, keyed=False), BEGIN
    for rows, time, _ in [*batches, ([], MAX_WATERMARK, False)]:
        front.operator.process(records(rows))
        for partials in front.output.items:
            back.operator.process(partials)
        front.output.clear()
        model.add(rows, max(watermark - 7, BEGIN))
        watermark = max(watermark, time)
        back.operator.watermark(time)
        view.follow(back.output)
        assert view.rows == model.shown(watermark)


@pytest.mark.parametrize("window", [*WINDOWS, SESSION], ids=str)
@settings(max_examples=25, deadline=None)
@given(batches=BATCHES, data=st.data())
def test_results_by_the_clock_come_when_they_are_due_and_only_those_that_changed(rig, window, batches, data):
    combine, step = steps(window, Updates(every_ms=100), lateness=15)
    step = replace(step, combine=combine)
    back, view, model, watermark, now = rig(step, now=0, sides=[LATE]), View(), model_of(window), BEGIN, 0
    for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
        if rows:
            back.operator.process(records(rows))
            model.add(rows, max(watermark - 15, BEGIN))
            assert back.output.items == []
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, now=now, sides=[LATE])
        if data.draw(st.booleans()):
            due = back.operator.tick(now)
            now = now + 100 if due is None else due
            back.time = now
            go(back, back.operator.fire(now))
            assert back.operator.tick(now) is None
            view.follow(back.output)
            assert view.rows == model.shown(None)
            go(back, back.operator.fire(now + 1_000))
            assert back.output.items == []
        watermark = max(watermark, time)
        back.operator.watermark(watermark)
        if time != MAX_WATERMARK:
            model.settle(watermark - 15)
        view.follow(back.output)
        complete = model.shown(watermark)
        assert {place: row for place, row in view.rows.items() if place in complete} == complete
    assert view.rows == model.shown(None)


@pytest.mark.parametrize("window", [*WINDOWS, SESSION], ids=str)
@settings(max_examples=25, deadline=None)
@given(batches=BATCHES)
def test_results_after_a_number_of_records_lack_fewer_records(rig, window, batches):
    combine, step = steps(window, Updates(every_rows=3))
    step = replace(step, combine=combine)
    back, view, model, watermark = rig(step, sides=[LATE]), View(), model_of(window), BEGIN
    for rows, time, restored in [*batches, ([], MAX_WATERMARK, False)]:
        if rows:
            back.operator.process(records(rows))
            model.add(rows, watermark)
        view.follow(back.output)
        for place, (n, _) in model.shown(None).items():
            if not isinstance(window, SessionWindow):
                assert n - view.rows.get(place, (0, 0))[0] < 3
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
        watermark = max(watermark, time)
        back.operator.watermark(watermark)
        if time != MAX_WATERMARK:
            model.settle(watermark)
    view.follow(back.output)
    assert view.rows == model.shown(None)


@pytest.mark.parametrize("window", [*WINDOWS[:2], SESSION], ids=str)
def test_a_snapshot_between_two_slices_has_the_changes_that_were_not_handed_on(rig, window):
    combine, step = steps(window, lateness=100)
    step = replace(step, combine=combine)
    back, view = rig(step, sides=[LATE]), View()
    model = model_of(window)
    first = [(key, 1, 3 + key % 5) for key in range(40)]
    back.operator.process(records(first))
    model.add(first, BEGIN)
    back.operator.slice = Slice()
    back.operator.slice.run_by(lambda: 0.0, 7)
    back.operator.slice.begin()
    assert back.operator.watermark(30).may_snapshot
    view.follow(back.output)
    assert 0 < len(view.rows) < len(model.shown(30))
    again = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
    second = [(key, 2, 4) for key in range(40)]
    again.operator.process(records(second))
    model.add(second, BEGIN)
    again.operator.watermark(31)
    view.follow(again.output)
    assert view.rows == model.shown(31)


def test_key_groups_that_have_come_to_different_times_go_on_from_there(rig, memory_files):
    _, step = steps(TumblingWindow(size_us=10), lateness=5)
    combine, _ = steps(TumblingWindow(size_us=10))
    files, view, front = memory_files(), View(), rig(combine)
    front.operator.process(records([(key, 1, time) for key in range(50) for time in (5, 15)]))
    (partials,) = front.output.items
    halves = [rig(step, subtask=i, parallelism=2, files=files) for i in range(2)]
    for half, part in zip(halves, partition(partials, ["k"], parallelism=2, groups=128), strict=True):
        half.operator.process(part)
    halves[0].operator.watermark(29)
    halves[1].operator.watermark(9)
    for half in halves:
        view.follow(half.output)
    assert 50 < len(view.rows) < 100
    merged = rig(step, files=files, restored=[half.snapshot() for half in halves])
    merged.operator.process(partials)
    view.follow(merged.output)
    merged.operator.watermark(29)
    view.follow(merged.output)
    counts = Counter(n for n, _ in view.rows.values())
    # Of the half that had come to 29 the lateness was over for both windows.
    assert counts[1] == merged.operator.metrics()["late_dropped"]
    assert counts[1] + counts[2] == 100
    assert min(counts[1], counts[2]) > 0


def test_after_a_drain_the_windows_that_were_shown_are_updated(rig):
    combine, step = steps(SlidingWindow(size_us=10, slide_us=4))
    step = replace(step, combine=combine)
    back, view = rig(step, sides=[LATE]), View()
    back.operator.process(records([(1, 1, 5)]))
    back.operator.watermark(MAX_WATERMARK)
    view.follow(back.output)
    again = rig(step, restored=[back.snapshot()], files=back.files, sides=[LATE])
    again.operator.process(records([(1, 2, 6), (1, 2, 40)]))
    again.operator.watermark(MAX_WATERMARK)
    view.follow(again.output)
    assert view.rows[1, 0, 10] == (2, 2)
    assert view.rows[1, 4, 14] == (2, 2)
    assert view.rows[1, 32, 42] == (1, 2)


def test_rows_are_forgotten_when_the_lateness_is_over(rig):
    combine, step = steps(TumblingWindow(size_us=10), lateness=5)
    back = rig(replace(step, combine=combine), sides=[LATE])
    back.operator.process(records([(key, 1, 5) for key in range(9)]))
    back.operator.watermark(13)
    assert back.operator._table.rows == 9
    back.operator.watermark(14)
    assert back.operator._table.rows == 0


def test_a_session_that_waits_joins_a_shown_session_that_would_be_over_without_it(rig):
    combine, step = steps(SESSION, Updates(every_rows=3))
    back, view = rig(replace(step, combine=combine), sides=[LATE]), View()
    back.operator.process(records([(0, 1, 0), (0, 1, 0), (0, 1, 0)]))
    back.operator.process(records([(0, 1, 1)]))
    back.operator.watermark(5)
    view.follow(back.output)
    assert view.rows == {(0, 0, 6): (4, 1)}


def test_the_state_of_results_that_do_not_change_is_refused(rig):
    combine, step = steps(TumblingWindow(size_us=10))
    final = replace(step, updates=None, schema=without_row_kind(step.schema))
    front, back = rig(combine), rig(final)
    front.operator.process(records([(1, 1, 5)]))
    back.operator.process(front.output.items[0])
    with pytest.raises(UsageError, match="give the changed window another name"):
        rig(step, restored=[back.snapshot()], files=back.files)
