"""Functions over two keyed streams, driven as a task does: state and timers that both streams share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.join_steps import LATE_OF_RIGHT
from penstock.api.steps import LATE, KeyedProcessStep, LateRecords, RightInput
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UserCodeError
from penstock.settings import StateSettings

TIME = pa.timestamp("us", tz="UTC")
LEFT = pa.schema([pa.field("k", pa.int64()), pa.field("t", TIME)])
RIGHT = pa.schema([pa.field("at", TIME), pa.field("id", pa.int64())])
OUT = pa.schema([pa.field("k", pa.int64()), pa.field("text", pa.string())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def left(*pairs):
    return pa.record_batch([[k for k, _ in pairs], pa.array([t for _, t in pairs], TIME)], schema=LEFT)


def right(*pairs):
    return pa.record_batch([pa.array([t for _, t in pairs], TIME), [k for k, _ in pairs]], schema=RIGHT)


class Both(ps.KeyedCoFunction):
    """Counts the records of both streams, and sets a timer for every left record."""

    lefts = ps.value_state("lefts", "bigint", default=0)
    rights = ps.value_state("rights", "bigint", default=0)
    all = ps.union_list_state("all", "bigint")

    def on_left(self, row, context):
        self.lefts.set(self.lefts.get() + 1)
        self.all.add(row["k"])
        context.timers.at_event_time(row["t"] + timedelta(microseconds=10))
        return self.told("left", context)

    def on_right(self, row, context):
        if row["id"] < 0:
            raise ValueError("negative")
        self.rights.set(self.rights.get() + 1)
        yield self.told("right", context)

    def on_timer(self, timer, context):
        return self.told(f"timer {timer.time_us}", context)

    def on_end(self, context):
        return {"k": -1, "text": f"end {context.key}"}

    def told(self, what, context):
        return {"k": context.key, "text": f"{what} {self.lefts.get()}:{self.rights.get()}"}


def step_of(function=None, *, timeless=None):
    return KeyedProcessStep(
        function=function or Both(),
        keys=("k",),
        key_schema=pa.schema([LEFT.field("k")]),
        schema=OUT,
        late=LateRecords(time_column="t", schema=LEFT),
        right=RightInput(keys=("id",), late=LateRecords(time_column="at", schema=RIGHT), timeless=timeless),
    )


def texts(found):
    return [(row["k"], row["text"]) for row in found.output.rows]


def test_both_streams_share_the_state_and_the_timers_of_a_key(rig):
    found = rig(step_of())
    found.operator.process_input(left((1, 5), (2, 6)), 0)
    found.operator.process_input(right((1, 5), (3, 1)), 1)
    assert texts(found) == [(1, "left 1:0"), (2, "left 1:0"), (1, "right 1:1"), (3, "right 0:1")]
    found.output.clear()
    found.operator.watermark(15)
    assert texts(found) == [(1, "timer 15 1:1")]
    assert found.output.watermarks == [(15, False)]


def test_the_end_has_no_key(rig):
    found = rig(step_of())
    found.operator.process_input(right((1, 5)), 1)
    found.output.clear()
    found.operator.finish()
    assert texts(found) == [(-1, "end None")]


def test_late_records_of_both_streams_are_told_apart_if_they_are_read(rig):
    found = rig(step_of(), sides=(LATE, LATE_OF_RIGHT))
    found.operator.watermark(10)
    found.operator.process_input(left((1, 10), (1, 11)), 0)
    found.operator.process_input(right((2, 9), (2, 11), (2, None)), 1)
    assert texts(found) == [(1, "left 1:0"), (2, "right 0:1"), (2, "right 0:2")]
    assert [row["t"] for row in found.sides[LATE].rows] == [EPOCH + timedelta(microseconds=10)]
    assert [row["at"] for row in found.sides[LATE_OF_RIGHT].rows] == [EPOCH + timedelta(microseconds=9)]


def test_late_records_that_nobody_reads_go_to_the_function(rig):
    found = rig(step_of())
    found.operator.watermark(100)
    found.operator.process_input(right((2, 9)), 1)
    found.operator.process_input(left((2, 9)), 0)
    assert texts(found) == [(2, "right 0:1"), (2, "left 1:1"), (2, "timer 19 1:1")]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_state_and_timers_are_restored_at_any_parallelism(rig, backend, tmp_path):
    settings = StateSettings(backend=backend, local_directory=str(tmp_path))
    found = rig(step_of(), state=settings)
    found.operator.process_input(left(*((k, 5) for k in range(20))), 0)
    found.operator.process_input(right(*((k, 5) for k in range(20))), 1)
    saved = found.snapshot()
    found.operator.close()
    fired = []
    for subtask in (0, 1):
        given = {"subtask": subtask, "parallelism": 2, "restored": [saved], "files": found.files, "state": settings}
        again = rig(step_of(), **given)
        again.operator.watermark(MAX_WATERMARK)
        fired += texts(again)
        again.operator.close()
    assert sorted(fired) == [(k, "timer 15 1:1") for k in range(20)]


def test_an_error_names_the_step_and_the_subtask(rig):
    found = rig(step_of(), subtask=1, parallelism=2)
    with pytest.raises(UserCodeError, match="negative") as caught:
        found.operator.process_input(right((-1, 5)), 1)
    assert (caught.value.operator, caught.value.subtask) == ("the step", 1)


@pytest.mark.parametrize(("timeless", "held"), [(None, ()), (0, (0,)), (1, (1,))])
def test_an_input_without_a_watermark_does_not_hold_event_time_back(rig, timeless, held):
    assert rig(step_of(timeless=timeless)).operator.timeless_inputs == held


def test_rows_of_many_calls_are_cut_into_slices(rig):
    class Many(Both):
        def on_right(self, row, context):
            for n in range(100):
                yield {"k": context.key, "text": str(n)}

    found = rig(step_of(Many()))
    found.operator.slice.run_by(lambda: 0.0, 10)
    found.operator.slice.begin(10)
    work = found.operator.process_input(right((1, 1), (2, 1)), 1)
    assert work is not None
    while work.go_on():
        found.operator.slice.begin(10)
    assert texts(found) == [(k, str(n)) for k in (1, 2) for n in range(100)]
