"""What takes a task more than a slice: timers, results of windows, rows of one call, the end. What may come in between,
and what a snapshot that comes in between has."""

from __future__ import annotations

import pytest
from task_rig import SCHEMA, Rig, barrier, rows

import penstock as ps
from penstock.api.steps import KeyedProcessStep, MapStep, ProcessStep
from penstock.core.elements import MAX_WATERMARK, Barrier, CheckpointOptions, EndOfData, Watermark
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.events import AbortNotified
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.operators.rows import SOME_ROWS
from penstock.runtime.task.slices import SLICE_MS
from penstock.settings import Mode
from penstock.state.backend import TimerKind

OVERTAKING = CheckpointOptions(unaligned=True)


class Timed(ps.KeyedFunction):
    """Sets a timer for every row, whose time and key are its value; a timer makes what the test says."""

    processing = False
    makes = staticmethod(lambda time_us: {"n": -time_us})

    def on_row(self, row, context):
        if self.processing:
            context.timers.at_processing_time(row["n"])
        else:
            context.timers.at_event_time(row["n"])

    def on_timer(self, timer, context):
        return type(self).makes(timer.time_us)


def keyed(function):
    return build_operator(
        KeyedProcessStep(function=function, keys=("n",), key_schema=SCHEMA, schema=SCHEMA, is_connected=False)
    )


def mapped(function, *, flat):
    return build_operator(MapStep(function=function, flat=flat, schema=SCHEMA))


def timed(*times, function=None, behind=(), **changes):
    """A task with timers for these times, that does one thing at a time."""
    head = keyed(function or Timed())
    rig = Rig(channels=changes.pop("channels", 1), operators=[head, *behind], slice_rows=1, **changes).run()
    rig.push(0, *(rows(time) for time in times))
    rig.steps()
    return rig


def step(rig):
    return rig.task.step(rig.host.time, 10)


def unfired(rig, kind=TimerKind.EVENT_TIME):
    """The times of the timers that are still set; they are not set then any more."""
    timers = rig.task.chain.head._backend.timers
    found = []
    while (timer := timers.pop_due(kind, 10**9)) is not None:
        found.append(timer[0])
    return found


def at(time_us, **changes):
    return Watermark(time_us=time_us, **changes)


# --- timers of one watermark -----------------------------------------------------------------------------------------


def test_a_step_fires_one_slice_of_the_timers_and_the_watermark_goes_on_when_all_have_fired():
    rig = timed(1, 2, 3)
    rig.push(0, at(5, idle=True))
    told = []
    while step(rig):
        told.append(rig.sent)
        assert rig.task.wants_step or not rig.task.chain.is_busy
    assert told == [[[-1]], [[-2]], [[-3]], [at(5, idle=True)]]


def test_records_behind_the_watermark_and_of_other_channels_wait_until_it_has_been_handed_on():
    rig = timed(1, 2, channels=2)
    rig.push(1, at(9), rows(7))
    rig.push(0, at(5), rows(6))
    rig.steps()
    assert rig.sent == [[-1], [-2], at(5)]
    assert unfired(rig) == [6, 7]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_barrier_passes_between_two_timers_of_one_watermark(mode):
    """The timer that has fired is not in the snapshot, the other is; the watermark comes behind the barrier."""
    rig = timed(1, 2, mode=mode)
    rig.push(0, at(5), barrier(1))
    step(rig)
    assert step(rig)
    assert rig.sent == [[-1], barrier(1)]
    assert unfired(rig) == [2]


def test_a_barrier_behind_records_waits_for_them():
    rig = timed(1, 2)
    rig.push(0, at(5), rows(7), barrier(1))
    rig.steps()
    assert rig.sent == [[-1], [-2], at(5), barrier(1)]


def test_an_overtaking_barrier_passes_between_two_timers_and_what_it_overtook_is_saved():
    rig = timed(1, 2, unaligned=True)
    rig.push(0, at(5), rows(7))
    step(rig)
    rig.push(0, Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=OVERTAKING))
    step(rig)
    assert [type(item) for item in rig.sent] == [list, Barrier]
    ((_, saved),) = rig.host.collected[1].inputs.items()
    assert [batch.column(0).to_pylist() for batch in saved] == [[7]]
    assert unfired(rig) == [2]


def test_without_room_no_timer_fires_but_a_barrier_passes():
    rig = timed(1, 2, granted=0, output_bytes=1)
    rig.push(0, at(5))
    assert step(rig)
    assert not step(rig)
    assert not rig.task.wants_step
    assert rig.task.next_deadline() is None
    rig.push(0, barrier(1))
    assert rig.task.wants_step
    assert step(rig)
    assert not step(rig)
    rig.grant()
    rig.steps()
    assert rig.sent == [[-1], barrier(1), [-2], at(5)]


def test_an_aborted_checkpoint_does_not_disturb_the_timers():
    rig = timed(1, 2, 3)
    rig.push(0, at(5), barrier(1))
    step(rig)
    step(rig)
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    rig.steps()
    assert rig.sent == [[-1], barrier(1), [-2], [-3], at(5)]


def test_timers_that_take_long_are_cut_by_time_however_many_a_slice_may_have():
    class Slow(Timed):
        makes = staticmethod(lambda time_us: rig.host.pass_time(1))

    rig = Rig(channels=1, operators=[keyed(Slow())]).run()
    rig.push(0, *(rows(n) for n in range(1, 40)))
    rig.steps()
    rig.push(0, at(50))
    waited = []
    while True:
        begun = rig.host.time
        if not step(rig):
            break
        waited.append(rig.host.time - begun)
    assert max(waited) <= SLICE_MS + 1
    assert sum(waited) == 39


def test_processing_time_timers_fire_in_slices_too():
    class Clocked(Timed):
        processing = True

    rig = timed(1_000, 2_000, 3_000, function=Clocked())
    rig.host.time = Instant(5)
    rig.task.tick(rig.host.time)
    assert rig.sent == [[-1_000]]
    rig.push(0, rows(9_000), barrier(1))
    assert step(rig)
    rig.task.tick(rig.host.time)
    rig.steps()
    assert rig.sent == [[-2_000], [-3_000], barrier(1)]


def test_a_timer_that_was_set_for_a_time_that_has_passed_fires_in_a_slice_of_its_own():
    rig = timed(1)
    rig.push(0, at(5))
    rig.steps()
    rig.sent  # noqa: B018  # what came so far
    rig.task.chain.row_slices.rows = 2
    rig.push(0, rows(2, 3), barrier(1))
    step(rig)
    step(rig)
    assert rig.sent == [[-2], barrier(1)]
    assert unfired(rig) == [3]


# --- the end of event time -------------------------------------------------------------------------------------------


class Again(Timed):
    """Every timer sets another one, ten later."""

    def on_timer(self, timer, context):
        context.timers.at_event_time(timer.time_us + 10)
        return {"n": -timer.time_us}


def test_the_end_of_the_data_comes_when_the_timers_have_fired_and_a_barrier_may_pass_before():
    rig = timed(1, 2)
    rig.push(0, at(MAX_WATERMARK), EndOfData(), barrier(1))
    step(rig)
    step(rig)
    assert step(rig)
    assert rig.sent == [[-1], barrier(1)]
    assert ("data ended",) not in rig.told()
    rig.steps()
    assert rig.sent == [[-2], at(MAX_WATERMARK), EndOfData()]


def test_a_savepoint_that_drains_the_job_waits_for_all_timers():
    rig = timed(1, 2)
    options = CheckpointOptions(savepoint=True, synchronous=True, drain=True)
    ending = Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=options)
    rig.push(0, at(MAX_WATERMARK), EndOfData(drain=True, stopped=True), ending)
    rig.steps()
    assert rig.sent == [[-1], [-2], at(MAX_WATERMARK), EndOfData(drain=True, stopped=True), ending]


def test_a_savepoint_that_waits_for_timers_does_not_make_the_task_spin_without_room():
    rig = timed(1, 2, granted=0, output_bytes=1)
    options = CheckpointOptions(savepoint=True, synchronous=True, drain=True)
    ending = Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=options)
    rig.push(0, at(MAX_WATERMARK), EndOfData(drain=True, stopped=True), ending)
    rig.steps()
    assert not rig.task.wants_step
    rig.grant()
    rig.steps()
    assert rig.sent[-1] == ending


# --- what one call makes ---------------------------------------------------------------------------------------------

MANY = 3 * SOME_ROWS


def many(_):
    return ({"n": n} for n in range(MANY))


def test_rows_of_one_call_go_on_in_slices_and_a_barrier_waits_for_the_last_of_them():
    rig = Rig(channels=2, operators=[mapped(many, flat=True)], slice_rows=1, output_bytes=10**6, granted=0).run()
    rig.push(0, rows(1))
    step(rig)
    rig.push(1, barrier(1))
    assert rig.task.outputs.rows_out == SOME_ROWS
    while not rig.task.gate.channels[1].blocked:
        assert step(rig)
    assert rig.task.outputs.rows_out == MANY


def test_a_call_that_makes_many_rows_waits_for_room_unless_a_checkpoint_waits_for_it():
    rig = Rig(channels=2, operators=[mapped(many, flat=True)], slice_rows=1, output_bytes=1, granted=0).run()
    rig.push(0, rows(1))
    rig.steps()
    assert rig.task.outputs.rows_out == SOME_ROWS
    assert not rig.task.wants_step
    rig.push(1, barrier(1))
    assert rig.task.wants_step
    rig.steps()
    assert rig.task.outputs.rows_out == MANY
    assert rig.task.gate.channels[1].blocked


def test_a_source_that_is_triggered_in_the_middle_of_a_call_snapshots_behind_it():
    rig = Rig(script=[rows(1), rows(2)], operators=[mapped(many, flat=True)], slice_rows=1, granted=0).run()
    step(rig)
    rig.task.trigger(barrier(1), Instant(0))
    assert rig.task.outputs.rows_out == SOME_ROWS
    while not rig.host.background.waiting:
        assert step(rig)
    assert rig.task.outputs.rows_out == MANY


def test_a_slow_function_behind_timers_holds_the_loop_no_longer_than_a_slice():
    """A timer makes a hundred rows at once; each takes a millisecond in the step behind it."""

    class Wide(Timed):
        makes = staticmethod(lambda time_us: [{"n": n} for n in range(100)])

    clock = []
    rig = timed(1, function=Wide(), behind=[mapped(lambda row: clock[0](1) or row, flat=False)], granted=0)
    clock.append(rig.host.pass_time)
    rig.host.slice_rows = 65_536
    rig.push(0, at(5))
    longest, begun = 0, rig.host.time
    while step(rig):
        longest, begun = max(longest, rig.host.time - begun), rig.host.time
    assert rig.task.outputs.rows_out == 100
    assert longest <= 2 * SLICE_MS + 1


def test_rows_and_watermarks_that_wait_for_an_operator_in_the_chain_keep_their_order():
    class Wide(Timed):
        makes = staticmethod(lambda time_us: [{"n": time_us * 100 + n} for n in range(5)])

    rig = timed(1, 2, function=Wide(), behind=[mapped(lambda row: [row], flat=True)])
    rig.push(0, at(5))
    rig.steps()
    *batches, last = rig.sent
    assert [n for batch in batches for n in batch] == [*range(100, 105), *range(200, 205)]
    assert last == at(5)


def test_a_task_that_stops_half_way_closes_what_the_function_was_doing():
    closed = []

    def endless(_):
        try:
            while True:
                yield {"n": 1}
        finally:
            closed.append(True)

    rig = Rig(channels=1, operators=[mapped(endless, flat=True)], slice_rows=1).run()
    rig.push(0, rows(1))
    step(rig)
    step(rig)
    rig.task.stop(Instant(0))
    assert closed == [True]
    assert not step(rig)


@pytest.mark.parametrize("connected", [False, True])
def test_a_keyed_function_has_its_key_again_when_it_goes_on(connected):
    class Wide(ps.KeyedBroadcastFunction):
        seen = ps.value_state("seen", "bigint", default=0)
        shared = ps.broadcast_state("shared", key="bigint", value="bigint")

        def on_row(self, row, context):
            for n in range(MANY):
                self.seen.set(self.seen.get() + context.key)
                yield {"n": self.seen.get()} if n == MANY - 1 else {"n": 0}

        def on_broadcast(self, row, context):
            for n in range(MANY):
                self.shared.set(n, n)
                yield {"n": n}

    step_ = KeyedProcessStep(function=Wide(), keys=("n",), key_schema=SCHEMA, schema=SCHEMA, is_connected=connected)
    rig = Rig(
        channels=2, operators=[build_operator(step_)], slice_rows=1, granted=0, output_bytes=10**6, input_numbers=[0, 1]
    ).run()
    rig.task.chain.row_slices.rows = 2
    rig.push(0, rows(7, 9))
    if connected:
        rig.push(1, rows(1))
    rig.steps()
    rig.grant(1_000)
    assert rig.task.outputs.rows_out == (3 if connected else 2) * MANY


# --- the end ---------------------------------------------------------------------------------------------------------


class Last(ps.ProcessFunction):
    def on_row(self, row, context):
        return row

    def on_end(self, context):
        return ({"n": n} for n in range(MANY))


def ending(**changes):
    operators = [build_operator(ProcessStep(function=Last(), schema=SCHEMA)) for _ in range(2)]
    rig = Rig(channels=2, operators=operators, slice_rows=1, output_bytes=10**6, granted=0, **changes).run()
    rig.push(0, EndOfData())
    rig.push(1, EndOfData())
    return rig


def test_the_end_of_the_data_is_told_when_every_operator_has_finished():
    rig = ending()
    step(rig)
    step(rig)
    assert rig.task.chain.is_busy
    assert rig.told() == []
    assert rig.steps() == [("data ended",)]
    assert rig.task.outputs.rows_out == 2 * MANY


def test_a_checkpoint_that_comes_while_operators_finish_is_one_of_the_task_that_has_finished():
    rig = ending()
    step(rig)
    step(rig)
    rig.push(0, barrier(1))
    rig.push(1, barrier(1))
    rig.steps()
    rig.host.background.run()
    assert rig.task.outputs.rows_out == 2 * MANY
    assert rig.host.states[1].finished


def test_a_task_that_is_finishing_wants_no_tick_and_waits_for_room():
    rig = ending()
    rig.task.outputs._output_bytes = 1
    rig.steps()
    assert rig.task.chain.is_busy
    assert not rig.task.wants_step
    assert rig.task.next_deadline() is None
    rig.push(1, barrier(1))
    assert rig.task.wants_step


class Holding(ps.ProcessFunction):
    """Holds its rows back until a barrier goes out."""

    def __init__(self):
        self.held = []

    def on_row(self, row, context):
        self.held.append(row)

    def before_barrier(self, context):
        held, self.held = self.held, []
        return held

    def on_end(self, context):
        return None


def test_what_a_function_holds_goes_out_before_a_barrier_that_comes_while_the_last_timers_fire():
    rig = timed(1, 2, behind=[build_operator(ProcessStep(function=Holding(), schema=SCHEMA))])
    rig.push(0, at(MAX_WATERMARK), EndOfData(), barrier(1))
    rig.steps()
    assert rig.sent == [[-1], barrier(1), at(MAX_WATERMARK), [-2], EndOfData()]
