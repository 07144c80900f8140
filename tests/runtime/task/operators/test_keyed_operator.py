"""Functions over keyed streams, driven as a task does: rows, timers, the end, checkpoints, and whose fault it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.steps import KeyedProcessStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError, UserCodeError
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.task.operators.rows import SOME_ROWS
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("t", pa.int64())])
OUT = pa.schema([pa.field("k", pa.int64()), pa.field("text", pa.string())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows(*pairs):
    return pa.record_batch([pa.array([p[n] for p in pairs], pa.int64()) for n in (0, 1)], schema=SCHEMA)


def step_of(function, **changes):
    keys = changes.pop("keys", ("k",))
    return KeyedProcessStep(
        function=function,
        keys=keys,
        key_schema=pa.schema([pa.field(key, pa.int64()) for key in keys]),
        schema=OUT,
        **changes,
    )


class Echo(ps.KeyedFunction):
    """Sets a timer for every row and tells of everything."""

    processing = False

    def on_row(self, row, context):
        if self.processing:
            context.timers.at_processing_time(row["t"])
        else:
            context.timers.at_event_time(row["t"])
        return {"k": row["k"], "text": f"row {row['t']}"}

    def on_timer(self, timer, context):
        return {"k": context.key, "text": f"timer {timer.time_us}"}


def texts(found):
    return [(row["k"], row["text"]) for row in found.output.rows]


def test_timers_fire_when_the_watermark_reaches_them_in_order_of_time_then_key(rig):
    found = rig(step_of(Echo()))
    found.operator.process(rows((2, 30), (1, 30), (3, 20), (1, 10), (1, 31)))
    found.output.clear()
    found.operator.watermark(9)
    assert texts(found) == []
    found.operator.watermark(30)
    assert texts(found) == [(1, "timer 10"), (3, "timer 20"), (1, "timer 30"), (2, "timer 30")]
    assert found.output.watermarks == [(9, False), (30, False)]
    # What fires comes before the watermark that fired it.
    assert isinstance(found.output.items[-1], tuple)


def test_a_timer_in_the_past_fires_when_the_rows_at_hand_have_been_handled(rig):
    found = rig(step_of(Echo()))
    found.operator.watermark(100)
    found.operator.process(rows((1, 50), (2, 101), (2, 100)))
    assert texts(found) == [(1, "row 50"), (2, "row 101"), (2, "row 100"), (1, "timer 50"), (2, "timer 100")]


def test_processing_time_timers_fire_by_the_clock(rig):
    function = Echo()
    function.processing = True
    found = rig(step_of(function))
    woken = []
    object.__setattr__(found.context, "wake_at", woken.append)
    found.operator.process(rows((1, 2_000_500), (2, 1_500_000)))
    assert woken == [2_001, 1_500]
    found.output.clear()
    assert found.tick(Instant(1_499)) == 1_500
    assert texts(found) == []
    assert found.tick(Instant(1_500)) == 2_001
    assert texts(found) == [(2, "timer 1500000")]
    assert found.tick(Instant(2_001)) is None
    assert texts(found)[1:] == [(1, "timer 2000500")]


def test_at_the_end_event_time_timers_all_fire_and_processing_time_timers_do_not(rig):
    class Both(Echo):
        def on_row(self, row, context):
            context.timers.at_event_time(row["t"])
            context.timers.at_processing_time(row["t"] + 10**12)

        def on_end(self, context):
            yield {"k": None, "text": "end"}

    found = rig(step_of(Both()))
    found.operator.process(rows((1, 10**9), (2, 5)))
    found.operator.watermark(MAX_WATERMARK)
    found.operator.finish()
    assert texts(found) == [(2, "timer 5"), (1, f"timer {10**9}"), (None, "end")]


class Again(ps.KeyedFunction):
    def on_row(self, row, context):
        context.timers.at_event_time(row["t"])

    def on_timer(self, timer, context):
        context.timers.at_event_time(timer.time + timedelta(microseconds=10))
        return {"k": context.key, "text": f"timer {timer.time_us}"}


def test_a_timer_that_sets_itself_again_comes_to_an_end_with_the_data(rig):
    found = rig(step_of(Again()))
    found.operator.process(rows((1, 5), (2, 31)))
    found.operator.watermark(16)
    assert texts(found) == [(1, "timer 5"), (1, "timer 15")]
    found.output.clear()
    found.operator.watermark(MAX_WATERMARK)
    assert texts(found) == [(1, "timer 25"), (2, "timer 31")]


def test_a_function_knows_where_it_is(rig):
    seen = []

    class Curious(ps.KeyedFunction):
        def open(self, context):
            seen.append((context.name, context.subtask, context.parallelism, context.watermark, context.key))

        def on_row(self, row, context):
            seen.append((context.key, context.watermark, context.processing_time))

        def on_end(self, context):
            seen.append((context.key, context.watermark))

        def close(self):
            seen.append("closed")

    found = rig(step_of(Curious()), subtask=1, parallelism=2)
    found.operator.process(rows((7, 0)))
    found.operator.watermark(2_000_000)
    found.time = Instant(5_000)
    found.operator.process(rows((8, 0)))
    found.operator.watermark(MAX_WATERMARK)
    found.operator.finish()
    found.operator.close()
    found.operator.close()
    assert seen == [
        ("the step", 1, 2, None, None),
        (7, None, EPOCH + timedelta(seconds=1)),
        (8, EPOCH + timedelta(seconds=2), EPOCH + timedelta(seconds=5)),
        (None, datetime.max.replace(tzinfo=UTC)),
        "closed",
    ]


def test_a_key_of_several_columns_is_a_tuple(rig):
    class Tell(ps.KeyedFunction):
        def on_row(self, row, context):
            return {"k": 0, "text": str(context.key)}

    found = rig(step_of(Tell(), keys=("k", "t")))
    found.operator.process(rows((1, 2)))
    assert texts(found) == [(0, "(1, 2)")]


@pytest.mark.parametrize(
    ("result", "rows_out"),
    [
        (None, []),
        ([], []),
        ({"k": 1, "text": "a"}, [(1, "a")]),
        ([{"k": 1, "text": "a"}, {"k": 2, "text": None}], [(1, "a"), (2, None)]),
        (({"k": 1, "text": "a"},), [(1, "a")]),
    ],
)
def test_a_method_returns_one_row_several_or_none(rig, result, rows_out):
    class Given(ps.KeyedFunction):
        def on_row(self, row, context):
            return result

    found = rig(step_of(Given()))
    found.operator.process(rows((1, 1)))
    assert texts(found) == rows_out


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"k": 1}, "expected a dict with k, text; got a dict with k"),
        ({"k": 1, "text": "a", "more": 1}, "got a dict with k, text, more"),
        ({"k": 1, "txt": "a"}, "got a dict with k, txt"),
        ({"k": "x", "text": "a"}, "column 'k' must be of type int64; got 'x'"),
        ({"k": 2.5, "text": "a"}, "column 'k' must be of type int64; got 2.5"),
        ("text", "expected a dict with k, text; got str"),
        (5, "'int' object is not iterable"),
    ],
)
def test_what_is_no_row_is_the_functions_fault(rig, result, text):
    class Given(ps.KeyedFunction):
        def on_row(self, row, context):
            return result

    found = rig(step_of(Given()), subtask=1, parallelism=2)
    with pytest.raises(UserCodeError, match=text) as caught:
        found.operator.process(rows((1, 1)))
    assert (caught.value.operator, caught.value.subtask) == ("the step", 1)


def test_an_exception_has_the_users_part_of_the_traceback(rig):
    class Broken(ps.KeyedFunction):
        def on_row(self, row, context):
            yield {"k": 1, "text": "a"}
            raise ValueError("in the middle")

        def on_end(self, context):
            raise KeyError("at the end")

    found = rig(step_of(Broken()))
    with pytest.raises(UserCodeError, match="in the middle") as caught:
        found.operator.process(rows((1, 1)))
    assert "in on_row" in caught.value.traceback_text
    assert "penstock/runtime" not in caught.value.traceback_text
    with pytest.raises(UserCodeError, match="at the end"):
        found.operator.finish()


class Misuse(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint")

    def on_row(self, row, context):
        self.context = context
        self.seen.set("text" if row["t"] else 1)

    def on_end(self, context):
        self.seen.get()


def test_state_used_where_there_is_no_key_says_so(rig):
    found = rig(step_of(Misuse()))
    found.operator.process(rows((1, 0)))
    with pytest.raises(
        UserCodeError,
        match=r"failed in subtask 0: UsageError: keyed state .* there is no key; use keyed state",
    ):
        found.operator.finish()


def test_a_value_of_another_type_says_which_state(rig):
    found = rig(step_of(Misuse()))
    with pytest.raises(UserCodeError, match="state 'seen' is of type int64; 'text' does not fit"):
        found.operator.process(rows((1, 1)))


def test_a_declaration_outside_of_a_job_says_so():
    for use in (Misuse().seen.get, lambda: Misuse.seen.set(1), Misuse.seen.exists, Misuse.seen.clear):
        with pytest.raises(UsageError, match="state 'seen' is declared, but is not in use by a running job"):
            use()


def test_a_timer_without_on_timer_says_so(rig):
    class Forgot(ps.KeyedFunction):
        def on_row(self, row, context):
            context.timers.at_event_time(row["t"])

    found = rig(step_of(Forgot()))
    found.operator.process(rows((1, 5)))
    with pytest.raises(UserCodeError, match=r"event-time timer of 1970-01-01 00:00:00.000005.* has no on_timer"):
        found.operator.watermark(5)


@pytest.mark.parametrize("time", [2**62, "now", 1.5, None])
def test_a_timer_needs_a_time(rig, time):
    class Wrong(ps.KeyedFunction):
        def on_row(self, row, context):
            context.timers.at_event_time(time)

    found = rig(step_of(Wrong()))
    with pytest.raises(UserCodeError, match="a timer"):
        found.operator.process(rows((1, 5)))


def test_a_time_without_zone_is_utc(rig):
    class Naive(ps.KeyedFunction):
        def on_row(self, row, context):
            context.timers.at_event_time(datetime(1970, 1, 1, 0, 0, 1))  # noqa: DTZ001
            return {"k": 1, "text": str(context.timers.event_times()[0])}

    found = rig(step_of(Naive()))
    found.operator.process(rows((1, 5)))
    assert texts(found) == [(1, "1970-01-01 00:00:01+00:00")]


# --- checkpoints -----------------------------------------------------------------------------------------------------


class Everything(ps.KeyedBroadcastFunction):
    seen = ps.value_state("seen", "bigint", default=0)
    rules = ps.broadcast_state("rules", key="string", value="string")
    split = ps.split_list_state("split", "bigint")
    union = ps.union_list_state("union", object)

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        self.split.add(row["t"])
        self.union.add((row["k"], row["t"]))
        context.timers.at_event_time(10_000)
        return {"k": row["k"], "text": self.rules.get("rule", "none")}

    def on_broadcast(self, row, context):
        self.rules.set("rule", row["text"])

    def on_timer(self, timer, context):
        return {"k": context.key, "text": f"{self.seen.get()} {self.split.get()} {sorted(self.union.get())}"}


BROADCAST = pa.record_batch([pa.array([0]), pa.array(["new"])], schema=OUT)


def connected(**changes):
    return step_of(Everything(), is_connected=True, **changes)


def test_all_kinds_of_state_are_restored_by_their_rules(rig):
    found = rig(connected())
    found.operator.process_input(rows((1, 5)), 0)
    found.operator.process_input(BROADCAST, 1)
    found.operator.process_input(rows((1, 6), (2, 7)), 0)
    assert [text for _, text in texts(found)] == ["none", "new", "new"]
    state = found.snapshot()
    assert state.key_groups == (0, 127)
    assert len(state.split_lists["split"]) == 3
    assert len(state.union_lists["union"]) == 3
    again = rig(connected(), restored=[state], files=found.files)
    again.operator.process_input(rows((1, 8)), 0)
    again.output.clear()
    again.operator.watermark(MAX_WATERMARK)
    union = [(1, 5), (1, 6), (1, 8), (2, 7)]
    assert texts(again) == [(1, f"3 [5, 6, 7, 8] {union}"), (2, f"1 [5, 6, 7, 8] {union}")]


def test_a_snapshot_is_what_was_there_when_it_was_taken(rig):
    found = rig(connected())
    found.operator.process_input(rows((1, 5)), 0)
    write = found.freeze()
    found.operator.process_input(BROADCAST, 1)
    found.operator.process_input(rows((1, 6)), 0)
    state = write()
    found.operator.completed(CheckpointId(1))
    assert state.broadcast == {}
    assert len(state.split_lists["split"]) == 1
    later = found.snapshot(2)
    assert len(later.split_lists["split"]) == 2
    assert later.broadcast


def test_an_empty_union_list_is_known_to_the_coordinator(rig):
    assert rig(connected()).snapshot().union_lists == {"union": ()}


def test_state_that_is_no_longer_declared_is_kept(rig):
    class Nothing(ps.KeyedFunction):
        def on_row(self, row, context):
            return None

        def on_timer(self, timer, context):
            return None

    found = rig(connected())
    found.operator.process_input(BROADCAST, 1)
    found.operator.process_input(rows((1, 5)), 0)
    state = found.snapshot()
    for subtask, union in ((0, state.union_lists), (1, {})):
        # Of a union list every subtask was given all parts: if all of them wrote them again, they would multiply.
        kept = rig(step_of(Nothing()), subtask=subtask, parallelism=2, restored=[state], files=found.files).snapshot()
        assert (kept.split_lists, kept.broadcast) == (state.split_lists, state.broadcast)
        assert kept.union_lists == union


def test_operator_state_that_became_another_kind_is_refused(rig):
    class Other(Everything):
        split = ps.union_list_state("split", "bigint")

    found = rig(connected())
    found.operator.process_input(rows((1, 5)), 0)
    with pytest.raises(UsageError, match=r"was of kind split-list when the snapshot was taken; .* declares union-list"):
        rig(step_of(Other(), is_connected=True), restored=[found.snapshot()], files=found.files)


def test_broadcast_state_is_written_only_where_all_subtasks_see_the_same(rig):
    class Eager(Everything):
        def on_row(self, row, context):
            self.rules["rule"] = "mine"

    found = rig(step_of(Eager(), is_connected=True))
    with pytest.raises(UserCodeError, match="broadcast state was written where the records of one key are handled"):
        found.operator.process_input(rows((1, 5)), 0)


def test_an_input_without_event_time_does_not_hold_it_back(rig):
    assert rig(connected()).operator.timeless_inputs == (1,)
    assert rig(connected(broadcast_has_time=True)).operator.timeless_inputs == ()
    assert rig(step_of(Echo())).operator.timeless_inputs == ()


def test_a_snapshot_that_was_aborted_leaves_the_state_alone(rig):
    found = rig(connected())
    found.operator.process_input(rows((1, 5)), 0)
    found.freeze(1)
    found.operator.process_input(rows((1, 6)), 0)
    found.operator.aborted(CheckpointId(1))
    found.operator.process_input(rows((1, 7)), 0)
    assert len(found.snapshot(2).split_lists["split"]) == 3


def test_rows_that_timers_make_are_handed_on_in_batches(rig, monkeypatch):
    monkeypatch.setattr("penstock.runtime.task.operators.keyed.EMITTED_ROWS", 3)
    found = rig(step_of(Echo()))
    found.operator.process(rows(*((k, 5) for k in range(10))))
    found.output.clear()
    found.operator.watermark(5)
    assert [item.num_rows for item in found.output.items if isinstance(item, pa.RecordBatch)] == [3, 3, 3, 1]
    assert found.operator.metrics() == {"timers_fired": 10}


class Yields(ps.KeyedFunction):
    """Yields as many rows as the time of a row says, each with the key that the row has."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        for _ in range(row["t"]):
            self.seen.set(self.seen.get() + 1)
            yield {"k": context.key, "text": str(self.seen.get())}


def one_slice_each(found):
    """Every slice is over as soon as it is looked at."""
    found.operator.slice = Slice()
    found.operator.slice.run_by(lambda: 0.0, 1)
    found.operator.slice.begin()
    return found


def test_generators_that_make_few_rows_are_not_cut_however_many_there_are(rig):
    found = one_slice_each(rig(step_of(Yields())))
    assert found.operator.process(rows(*((k, 2) for k in range(500)))) is None
    assert [batch.num_rows for batch in found.output.items] == [1_000]


def test_a_generator_that_makes_many_rows_among_others_is_cut_and_its_rows_keep_their_key(rig):
    found = one_slice_each(rig(step_of(Yields())))
    counts = [(1, 3), (2, 70), (3, 400), (4, 2), (3, 200)]
    work = found.operator.process(rows(*counts))
    pieces = 1
    while work is not None and work.go_on():
        found.operator.slice.begin()
        pieces += 1
    assert pieces > (400 + 200) // (2 * SOME_ROWS) - 2
    expected, seen = [], {}
    for key, count in counts:
        for _ in range(count):
            seen[key] = seen.get(key, 0) + 1
            expected.append((key, str(seen[key])))
    assert texts(found) == expected
