"""Firings that are cut into slices, operator by operator: what a snapshot in the middle has, and what comes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.steps import Aggregate, KeyedProcessStep, WindowStep
from penstock.api.window_schema import WINDOW_START, partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.slices import Slice
from penstock.settings import StateSettings

TIME = pa.timestamp("us", "UTC")
RECORDS = pa.schema([pa.field("k", pa.int64()), pa.field("ts", TIME)])
COUNT = (Aggregate(name="n", kind="count", column=None),)
SIZE = 10
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def one_at_a_time(found):
    """Cuts behind every timer and every result."""
    found.operator.slice = Slice()
    found.operator.slice.run_by(lambda: 0.0, 1)
    found.operator.slice.begin()
    return found


def slices_of(found, work):
    """Goes on with work to its end; what was there after each slice."""
    seen = [list(found.output.items)]
    while work is not None:
        found.operator.slice.begin()
        if not work.go_on():
            break
        seen.append(list(found.output.items))
    return seen


# --- windows ---------------------------------------------------------------------------------------------------------


def window_step():
    return WindowStep(
        keys=("k",),
        window=TumblingWindow(size_us=SIZE),
        aggregates=COUNT,
        schema=result_schema(RECORDS, keys=("k",), time_column="ts", aggregates=COUNT),
    )


def partials(*pairs):
    """Of (key, start of the window)."""
    schema = partial_schema(RECORDS, keys=("k",), time_column="ts", aggregates=COUNT)
    columns = {"k": [k for k, _ in pairs], WINDOW_START: [start for _, start in pairs], "n": [1 for _ in pairs]}
    arrays = [pa.array(columns[field.name], pa.int64()).cast(field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def shown(found):
    return [(row["k"], (row["window_start"] - EPOCH) // MICROSECOND) for row in found.output.rows]


def test_results_of_windows_are_handed_on_in_slices_and_the_watermark_behind_the_last(rig):
    found = one_at_a_time(rig(window_step()))
    found.operator.process(partials((1, 0), (2, 0), (1, 10), (1, 20)))
    work = found.operator.watermark(19)
    assert shown(found) == [(1, 0)]
    assert work.may_snapshot
    slices_of(found, work)
    assert shown(found) == [(1, 0), (2, 0), (1, 10)]
    assert found.output.items[-1] == (19, False)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_snapshot_between_two_results_has_the_others_and_they_come_when_event_time_is_there_again(rig, after):
    first = one_at_a_time(rig(window_step()))
    first.operator.process(partials((1, 0), (2, 0), (1, 10), (1, 20)))
    work = first.operator.watermark(19)
    for _ in range(after):
        first.operator.slice.begin()
        work.go_on()
    state = first.snapshot()
    again = rig(window_step(), files=first.files, restored=[state])
    # A partial of a window that was firing is late, also for a key whose result has not been handed on.
    again.operator.process(partials((2, 0), (3, 10), (1, 20)))
    again.operator.watermark(8)
    assert shown(again) == []
    again.operator.watermark(29)
    assert shown(first) + shown(again) == [(1, 0), (2, 0), (1, 10), (1, 20)]
    assert [row["n"] for row in again.output.rows][-1] == 2
    assert again.operator.late_dropped == 2


def test_many_windows_and_many_keys_of_a_window_are_grouped_and_ordered_a_few_at_a_time(rig):
    found = rig(window_step(), limits=RunLimits(block_rows=2, part_blocks=2))
    found.operator.process(partials(*((k, start) for start in range(0, 50, 10) for k in range(7))))
    table = found.operator._table
    assert table.take_due(-1) is None
    parts = [table.take_due(0), table.take_due(0), table.take_due(0)]
    assert [0 if part is None else part.num_rows for part in parts] == [4, 3, 0]
    assert sorted(k for part in parts[:2] for k in part.column("k").to_pylist()) == list(range(7))
    found.operator.watermark(MAX_WATERMARK)
    assert sorted(shown(found)) == sorted((k, start) for start in range(10, 50, 10) for k in range(7))
    assert [start for _, start in shown(found)] == sorted(start for _, start in shown(found))


# --- timers ----------------------------------------------------------------------------------------------------------

OUT = pa.schema([pa.field("t", pa.int64())])


class Again(ps.KeyedFunction):
    """Every timer sets another one for the same key, ten later."""

    def on_row(self, row, context):
        context.timers.at_event_time(row["t"])

    def on_timer(self, timer, context):
        context.timers.at_event_time(timer.time_us + 10)
        return {"t": timer.time_us}


def timer_step(function):
    keys = pa.schema([pa.field("k", pa.int64())])
    return KeyedProcessStep(function=function, keys=("k",), key_schema=keys, schema=OUT)


def rows(*pairs):
    return pa.record_batch({"k": [p[0] for p in pairs], "t": [p[1] for p in pairs]})


@pytest.fixture(params=["memory", "rocksdb"])
def settings(request, tmp_path):
    return StateSettings(backend=request.param, local_directory=str(tmp_path))


def times(found):
    return [row["t"] for row in found.output.rows]


def test_a_snapshot_between_two_timers_has_those_that_have_not_fired(rig, settings):
    first = one_at_a_time(rig(timer_step(Again()), state=settings))
    first.operator.process(rows((1, 1), (2, 2), (3, 3)))
    work = first.operator.watermark(5)
    assert times(first) == [1]
    assert work.may_snapshot
    state = first.snapshot()
    again = rig(timer_step(Again()), state=settings, files=first.files, restored=[state])
    again.operator.watermark(1)
    assert times(again) == []
    again.operator.watermark(5)
    assert times(again) == [2, 3]
    first.operator.close()
    again.operator.close()


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_at_the_end_the_same_timers_fire_whether_or_not_the_job_was_restored_in_the_middle(rig, after):
    """What timers set meanwhile fires up to the last timer that was there before; also if a restore comes between."""
    first = one_at_a_time(rig(timer_step(Again())))
    first.operator.process(rows((1, 1), (2, 15)))
    work = first.operator.watermark(MAX_WATERMARK)
    for _ in range(after):
        first.operator.slice.begin()
        work.go_on()
    state = first.snapshot()
    again = rig(timer_step(Again()), files=first.files, restored=[state])
    again.operator.watermark(MAX_WATERMARK)
    assert times(first) + times(again) == [1, 11, 15]


@pytest.mark.parametrize("how", ["rows", "watermark"])
def test_a_job_that_goes_on_after_such_a_restore_has_an_end_of_its_own(rig, how):
    """A stop with drain took event time to its end and failed: the records that follow set later timers."""
    first = one_at_a_time(rig(timer_step(Again())))
    first.operator.process(rows((1, 1), (2, 5)))
    first.operator.watermark(MAX_WATERMARK)
    again = rig(timer_step(Again()), files=first.files, restored=[first.snapshot()])
    if how == "rows":
        again.operator.process(rows((3, 12)))
    else:
        again.operator.watermark(0)
    again.operator.watermark(MAX_WATERMARK)
    assert max(times(again)) >= 11
    again.operator.finish()
    assert again.snapshot().last_timer_us is msgspec.UNSET
