"""Rows that functions emit to side outputs: when they leave, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.steps import LATE, KeyedProcessStep, LateRecords, ProcessStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError, UserCodeError
from penstock.core.ids import Instant
from penstock.runtime.task.operators import side_rows

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
OUT = pa.schema([pa.field("k", pa.int64())])
ODD = {"odd": OUT, "even": pa.schema([pa.field("k", pa.int64()), pa.field("text", pa.string())])}


def rows(*pairs):
    times = pa.array([pair[1] for pair in pairs], pa.int64()).cast(SCHEMA.field("ts").type)
    return pa.record_batch([pa.array([pair[0] for pair in pairs], pa.int64()), times], schema=SCHEMA)


def numbered(*keys):
    return rows(*((key, 0) for key in keys))


class Sorting(ps.ProcessFunction):
    def on_row(self, row, context):
        if row["k"] % 2:
            context.emit("odd", {"k": row["k"]})
        else:
            context.emit("even", {"k": row["k"], "text": "even"})
        return {"k": row["k"]} if row["k"] > 3 else None


class Keyed(ps.KeyedFunction):
    """Emits in every call that has a context."""

    def on_row(self, row, context):
        context.timers.at_event_time(row["ts"])
        context.emit("odd", {"k": context.key})

    def on_timer(self, timer, context):
        context.emit("odd", {"k": 100 + context.key})

    def before_barrier(self, context):
        context.emit("odd", {"k": -1})

    def on_end(self, context):
        context.emit("odd", {"k": -2})


def process_step(function, sides=ODD, **more):
    return ProcessStep(function=function, schema=OUT, declared_sides=sides, **more)


def keyed_step(function, **more):
    keys = pa.schema([SCHEMA.field("k")])
    return KeyedProcessStep(function=function, keys=("k",), key_schema=keys, schema=OUT, declared_sides=ODD, **more)


def keys_in(recorder):
    found = [row["k"] for row in recorder.rows]
    recorder.clear()
    return found


def test_rows_of_a_side_output_leave_with_the_batch_that_made_them(rig):
    made = rig(process_step(Sorting()), sides=["odd", "even"])
    made.operator.process(numbered(1, 2, 3, 4))
    assert (keys_in(made.sides["odd"]), keys_in(made.output)) == ([1, 3], [4])
    assert made.sides["even"].rows == [{"k": 2, "text": "even"}, {"k": 4, "text": "even"}]
    assert [batch.schema for batch in made.sides["even"].items] == [ODD["even"]]


def test_rows_leave_from_every_call_of_a_keyed_function(rig):
    made = rig(keyed_step(Keyed()), sides=["odd"])
    made.operator.process(rows((1, 5), (2, 6)))
    assert keys_in(made.sides["odd"]) == [1, 2]
    made.operator.watermark(5)
    assert keys_in(made.sides["odd"]) == [101]
    made.operator.before_barrier()
    assert keys_in(made.sides["odd"]) == [-1]
    made.operator.finish()
    assert keys_in(made.sides["odd"]) == [-1, -2]


def test_processing_time_timers_emit_too(rig):
    class Waking(Keyed):
        def on_row(self, row, context):
            context.timers.at_processing_time(2_000_000)

    made = rig(keyed_step(Waking()), sides=["odd"])
    made.operator.process(numbered(7))
    made.tick(Instant(2_000))
    assert keys_in(made.sides["odd"]) == [107]


def test_rows_of_a_side_output_that_nothing_reads_are_dropped(rig):
    made = rig(process_step(Sorting()), sides=["odd"])
    made.operator.process(numbered(1, 2))
    assert keys_in(made.sides["odd"]) == [1]


def test_rows_of_one_call_become_batches_when_there_are_many(rig, monkeypatch):
    monkeypatch.setattr(side_rows, "_MOST_ROWS", 3)

    class Many(ps.ProcessFunction):
        def on_row(self, row, context):
            for n in range(7):
                context.emit("odd", {"k": n})

    made = rig(process_step(Many()), sides=["odd"])
    made.operator.process(numbered(1))
    assert [batch.num_rows for batch in made.sides["odd"].items] == [3, 3, 1]
    assert keys_in(made.sides["odd"]) == list(range(7))


def test_a_function_over_batches_emits_batches_behind_the_rows_that_it_emitted_before(rig):
    class Batches(ps.ProcessFunction):
        def on_batch(self, batch, context):
            context.emit("odd", {"k": -1})
            context.emit("odd", batch.select(["k"]))
            context.emit("odd", {"k": -2})

    made = rig(process_step(Batches()), sides=["odd"])
    made.operator.process(numbered(1, 2))
    assert keys_in(made.sides["odd"]) == [-1, 1, 2, -2]


def emitting(call):
    class Wrong(ps.ProcessFunction):
        def on_row(self, row, context):
            call(context)

    return Wrong()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.emit("ood", {"k": 1}), "there is no side output 'ood'; there are odd, even; did you mean 'odd'"),
        (lambda c: c.emit("other", {"k": 1}), "declare it in sides="),
        (lambda c: c.emit("odd", {"n": 1}), "side output 'odd': expected a dict with k; got a dict with n"),
        (lambda c: c.emit("odd", {"k": "x"}), "side output 'odd': column 'k' must be of type int64"),
        (lambda c: c.emit("odd", 7), "side output 'odd': expected a dict with k; got int"),
        (lambda c: c.emit("odd", numbered(1)), "side output 'odd': expected columns k: int64"),
    ],
)
def test_a_row_that_does_not_fit_says_what_was_expected_and_where(rig, call, text):
    made = rig(process_step(emitting(call)), sides=["odd", "even"])
    with pytest.raises(UserCodeError) as caught:
        made.operator.process(numbered(1))
    assert text in caught.value.traceback_text


def test_a_step_without_side_outputs_says_how_they_are_declared(rig):
    made = rig(process_step(emitting(lambda context: context.emit("odd", {})), sides={}))
    with pytest.raises(UserCodeError) as caught:
        made.operator.process(numbered(1))
    assert 'the step declares no side outputs; declare the side output where the step is made: sides={"odd"' in (
        caught.value.traceback_text
    )


@pytest.mark.parametrize("method", ["open", "on_snapshot", "on_checkpoint_complete"])
def test_no_row_is_emitted_where_it_would_be_in_no_state(rig, method):
    class Wrong(ps.ProcessFunction):
        def open(self, context):
            self.context = context
            if method == "open":
                context.emit("odd", {"k": 1})

        def on_row(self, row, context):
            context.emit("odd", row and {"k": 1})

        def on_snapshot(self, checkpoint):
            if method == "on_snapshot":
                self.context.emit("odd", {"k": 1})

        def on_checkpoint_complete(self, checkpoint):
            self.context.emit("odd", {"k": 1})

    def drive():
        made = rig(process_step(Wrong()), sides=["odd"])
        made.operator.snapshot(1, None)
        made.operator.process(numbered(1))
        assert keys_in(made.sides["odd"]) == [1]
        made.operator.completed(1)

    with pytest.raises(UserCodeError) as caught:
        drive()
    assert "was called where the function may make no rows" in caught.value.traceback_text


# --- late records ----------------------------------------------------------------------------------------------------


class Seen(ps.KeyedFunction):
    def on_row(self, row, context):
        return {"k": row["k"]}


class SeenPlain(ps.ProcessFunction):
    def on_row(self, row, context):
        return {"k": row["k"]}


def late_steps(offset_us=0):
    late = LateRecords(time_column="ts", time_offset_us=offset_us, schema=SCHEMA)
    return [keyed_step(Seen(), late=late), process_step(SeenPlain(), late=late)]


@pytest.mark.parametrize("step", late_steps(), ids=["keyed", "plain"])
def test_a_function_does_not_get_late_records_that_are_read(rig, step):
    made = rig(step, sides=[LATE])
    made.operator.process(rows((1, 5), (2, None)))
    made.operator.watermark(7)
    made.output.clear()
    assert made.sides[LATE].items == []
    made.operator.process(rows((3, 7), (4, 8), (5, None), (6, -5)))
    made.operator.process(rows((7, 6)))
    assert (keys_in(made.output), keys_in(made.sides[LATE])) == ([4, 5], [3, 6, 7])


@pytest.mark.parametrize("step", late_steps(offset_us=-1), ids=["keyed", "plain"])
def test_event_time_may_be_apart_from_the_time_in_the_column(rig, step):
    made = rig(step, sides=[LATE])
    made.operator.watermark(7)
    made.output.clear()
    made.operator.process(rows((3, 8), (4, 9)))
    assert (keys_in(made.output), keys_in(made.sides[LATE])) == ([4], [3])
    made.operator.watermark(MAX_WATERMARK)
    made.operator.process(rows((5, 2**50)))
    assert keys_in(made.sides[LATE]) == [5]


@pytest.mark.parametrize("step", late_steps(), ids=["keyed", "plain"])
def test_a_function_gets_late_records_that_nothing_reads(rig, step):
    made = rig(step)
    made.operator.watermark(7)
    made.output.clear()
    made.operator.process(rows((3, 7), (4, 8)))
    assert keys_in(made.output) == [3, 4]


def test_an_unknown_name_is_an_error_of_the_user():
    with pytest.raises(UsageError, match="there is no side output 'x'"):
        side_rows.SideRows(ODD).add("x", {})
