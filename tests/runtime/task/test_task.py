"""One subtask with a scripted host: what it reads when, its part in checkpoints, and how it comes to its end."""

from __future__ import annotations

import msgspec
import pytest
from task_rig import WINDOW, Rig, barrier, rows

from penstock.api.connector import Pause
from penstock.core.barrier.events import AlignmentMetrics
from penstock.core.elements import (
    MAX_WATERMARK,
    Barrier,
    CancelMarker,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from penstock.core.errors import MalformedMessage, SnapshotFailed, StorageError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.events import AbortNotified, CompletionNotified
from penstock.settings import Mode


def unaligned_barrier(number):
    return Barrier(checkpoint=CheckpointId(number), timestamp=Instant(0), options=CheckpointOptions(unaligned=True))


# --- alignment -------------------------------------------------------------------------------------------------------


def test_running_lets_upstream_send():
    rig = Rig(channels=2)
    assert rig.grants == []
    rig.run()
    assert rig.grants == [(0, WINDOW), (1, WINDOW)]


def test_a_channel_whose_barrier_is_in_is_not_read_while_the_other_is():
    rig = Rig().run()
    rig.push(0, barrier(1), rows(100))
    rig.push(1, rows(1), rows(2))
    assert rig.steps() == [("process", 1), ("process", 2)]
    rig.push(1, barrier(1))
    assert rig.steps() == [("snapshot", 1, 3), ("process", 100)]


def test_the_snapshot_holds_all_that_came_before_the_barriers_and_nothing_that_came_after():
    rig = Rig().run()
    rig.push(0, rows(1), barrier(1), rows(10))
    rig.push(1, rows(2), rows(4), barrier(1), rows(20))
    story = rig.steps()
    taken = story.index(("snapshot", 1, 1 + 2 + 4))
    assert sorted(story[:taken]) == [("process", 1), ("process", 2), ("process", 4)]
    assert sorted(story[taken + 1 :]) == [("process", 10), ("process", 20)]


def test_the_own_barrier_goes_out_between_what_was_made_before_and_after_it():
    rig = Rig(channels=1).run()
    rig.push(0, rows(1), barrier(1), rows(2))
    rig.steps()
    assert rig.sent == [[1], barrier(1), [2]]


def test_what_is_consumed_is_granted_again_and_a_blocked_channel_gets_no_credit():
    rig = Rig().run()
    rig.grants.clear()
    rig.push(0, barrier(1), rows(1))
    rig.push(1, rows(2))
    rig.steps()
    assert rig.grants == [(1, 8)]


def test_a_cancel_marker_lets_the_blocked_channel_go_on_and_is_passed_on():
    rig = Rig().run()
    rig.push(0, barrier(1), rows(1))
    rig.push(1, CancelMarker(checkpoint=CheckpointId(1)))
    assert rig.steps() == [("decline", 1, CheckpointFailure.DECLINED_ON_CANCELLATION), ("process", 1)]
    assert rig.sent == [CancelMarker(checkpoint=CheckpointId(1)), [1]]


def test_the_end_of_a_channel_stands_for_its_barrier():
    rig = Rig().run()
    rig.push(0, barrier(1))
    rig.push(1, EndOfData(), EndOfPartition())
    assert ("snapshot", 1, 0) in rig.steps()


def test_at_least_once_nothing_is_blocked():
    rig = Rig(mode=Mode.AT_LEAST_ONCE).run()
    rig.push(0, barrier(1), rows(100))
    rig.push(1, rows(1), barrier(1))
    assert rig.steps() == [("process", 1), ("process", 100), ("snapshot", 1, 101)]


def test_a_channel_that_sends_its_barrier_twice_fails_the_task():
    rig = Rig().run()
    rig.push(0, barrier(1))
    rig.steps()
    rig.task.gate.resume(0)
    rig.push(0, barrier(1))
    with pytest.raises(MalformedMessage, match="twice"):
        rig.steps()


# --- the snapshot ----------------------------------------------------------------------------------------------------


def test_what_a_checkpoint_took_is_measured_from_its_trigger_to_its_last_byte():
    """1. The first barrier comes 5 ms after the trigger. 2. 7 ms later comes the second; meanwhile two records were
    processed. 3. Freezing takes 3 ms, writing 4 ms."""
    rig = Rig(channels=2).run()
    rig.sum.freeze_ms, rig.sum.write_ms = 3, 4
    batch = rows(5, 6)
    rig.host.pass_time(5)
    rig.push(0, barrier(1))
    rig.push(1, batch)
    rig.steps()
    rig.host.pass_time(7)
    rig.push(1, barrier(1))
    rig.steps()
    rig.host.background.run()
    told = rig.host.acknowledged[1]
    assert told.metrics == AlignmentMetrics(
        start_delay_ms=5, alignment_ms=7, bytes_processed=batch.nbytes, last_channel=1
    )
    assert (told.sync_ms, told.async_ms) == (3.0, 4.0)


def test_a_source_says_how_long_the_trigger_took_to_come():
    rig = Rig(script=[rows(1)]).run()
    rig.host.pass_time(9)
    rig.task.trigger(barrier(1), rig.host.time)
    rig.host.background.run()
    assert rig.host.acknowledged[1].metrics == AlignmentMetrics(start_delay_ms=9)


def test_a_source_says_how_many_records_it_had_read_at_the_barrier():
    rig = Rig(script=[rows(1, 2), rows(3)]).run()
    rig.task.step(rig.host.time, 10)
    rig.task.trigger(barrier(1), rig.host.time)
    rig.steps()
    rig.host.background.run()
    told = rig.host.acknowledged[1].metrics
    assert (told.rows_in, rig.task.counters.rows_in) == (2, 3)


def test_of_marks_at_one_place_the_awaited_one_counts_before_the_next_record():
    """The first two are of checkpoints that are over: nobody waits for them."""
    rig = Rig(script=[rows(1), 1, 2, 3, rows(2)]).run()
    for over in (1, 2):
        rig.task.notify(AbortNotified(checkpoint=CheckpointId(over), latest_completed=None), rig.host.time)
    rig.task.trigger(barrier(3), rig.host.time)
    rig.story.clear()
    assert rig.steps()[:3] == [("process", 1), ("snapshot", 3, 1), ("process", 2)]


def test_a_source_that_has_not_come_to_the_mark_of_an_aborted_checkpoint_passes_the_abort_on():
    """Otherwise tasks that have the barriers of other sources would wait for the barrier of this source."""
    rig = Rig(script=[rows(1), Pause(10), rows(2), 1, rows(3)]).run()
    rig.task.trigger(barrier(1), rig.host.time)
    rig.steps()
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), rig.host.time)
    assert rig.sent == [[1], CancelMarker(checkpoint=CheckpointId(1))]


def test_the_acknowledgement_comes_after_the_write_and_carries_what_was_frozen():
    rig = Rig(channels=1).run()
    rig.push(0, rows(5), barrier(1), rows(7))
    assert ("ack", 1) not in rig.steps()
    assert rig.host.barriers_taken == [1]
    rig.host.background.run()
    assert rig.told() == [("write", 1), ("ack", 1)]
    assert rig.host.states[1].operators[0].broadcast == {"sum": b"5"}
    assert not rig.host.states[1].finished


def test_a_write_that_fails_declines_and_the_task_goes_on():
    rig = Rig(channels=1).run()
    rig.sum.write_error = StorageError("disk full")
    rig.push(0, barrier(1), rows(1))
    assert rig.steps() == [("snapshot", 1, 0), ("process", 1)]
    rig.host.background.run()
    assert rig.told() == [("take back",), ("decline", 1, CheckpointFailure.ASYNC_PART_FAILED)]
    rig.sum.write_error = None
    rig.push(0, barrier(2))
    rig.steps()
    rig.host.background.run()
    assert rig.told() == [("write", 2), ("ack", 2)]


def test_what_was_written_for_an_aborted_checkpoint_is_discarded():
    rig = Rig(channels=1).run()
    rig.push(0, rows(3), barrier(1))
    rig.steps()
    tell = rig.host.background.work()
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    tell()
    assert rig.told() == [("write", 1), ("aborted", 1), ("discard", b"3")]


def test_what_is_being_written_when_its_checkpoint_is_aborted_is_taken_back_at_once():
    """The slot may have to leave before it hears that the writing has ended."""
    rig = Rig(channels=1).run()
    rig.push(0, rows(3), barrier(1))
    rig.steps()
    rig.sum.while_writing = lambda: rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    rig.host.background.work()
    assert rig.told() == [("write", 1), ("aborted", 1), ("take back",)]


def test_what_was_written_for_an_aborted_savepoint_is_discarded_from_its_own_folder():
    rig = Rig(channels=1).run()
    options = CheckpointOptions(savepoint=True, target="save/1")
    rig.push(0, rows(3), msgspec.structs.replace(barrier(1), options=options))
    rig.steps()
    tell = rig.host.background.work()
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    tell()
    assert rig.host.discarded_from == ["save/1"]


def test_a_snapshot_that_nobody_waits_for_any_more_is_not_written():
    rig = Rig(channels=1).run()
    rig.push(0, rows(3), barrier(1))
    rig.steps()
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    rig.host.background.run()
    assert ("write", 1) not in rig.told()


def test_a_checkpoint_that_was_aborted_before_its_barrier_came_is_passed_on_as_cancelled():
    rig = Rig(channels=1).run()
    rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
    rig.push(0, barrier(1), rows(1))
    assert rig.steps() == [("aborted", 1), ("process", 1)]
    assert rig.sent == [CancelMarker(checkpoint=CheckpointId(1)), [1]]


def test_a_checkpoint_whose_place_a_newer_barrier_has_taken_is_given_up_once():
    """1. The barrier of checkpoint 2 waits in channel 1. 2. That of checkpoint 1 comes in channel 0, and is read first:
    what was in flight in channel 1 cannot be told any more. 3. The barrier of checkpoint 2 is read."""
    rig = Rig(channels=2, unaligned=True).run()
    rig.push(1, rows(1), unaligned_barrier(2))
    rig.push(0, unaligned_barrier(1))
    assert rig.steps() == [
        ("decline", 1, CheckpointFailure.DECLINED_SUBSUMED),
        ("snapshot", 2, 0),
        ("process", 1),
    ]
    assert rig.sent == [CancelMarker(checkpoint=CheckpointId(1)), unaligned_barrier(2), [1]]


def test_nothing_stays_of_a_checkpoint_that_times_out_after_its_abort():
    """1. The barrier is in on channel 0. 2. The checkpoint is aborted. 3. The alignment times out: input is collected
    for a snapshot that is never taken. 4. The barrier comes in on channel 1, too."""
    rig = Rig(channels=2, unaligned=True, aligned_timeout_ms=100).run()
    for number in range(1, 4):
        began = rig.host.time
        options = CheckpointOptions(aligned_timeout_ms=100)
        sent = Barrier(checkpoint=CheckpointId(number), timestamp=began, options=options)
        rig.push(0, sent)
        rig.steps()
        rig.task.notify(AbortNotified(checkpoint=CheckpointId(number)), began)
        rig.host.time = Instant(began + 500)
        rig.task.tick(rig.host.time)
        rig.push(1, rows(number), sent)
        rig.steps()
    rig.host.background.run()
    assert rig.sum.sum == 1 + 2 + 3
    assert rig.task._part._snapshots._open == {}


def test_operators_hear_of_a_completed_checkpoint_once():
    rig = Rig(channels=1).run()
    for _ in range(2):
        rig.task.notify(CompletionNotified(checkpoint=CheckpointId(1)), Instant(0))
    assert rig.told() == [("completed", 1)]


def test_a_task_that_does_not_run_yet_declines():
    rig = Rig(script=[])
    rig.task.trigger(barrier(1), Instant(0))
    assert rig.told() == [("decline", 1, CheckpointFailure.DECLINED_TASK_NOT_READY)]


def test_a_source_takes_its_snapshot_when_the_master_says_so():
    rig = Rig(script=[rows(1), rows(2)]).run()
    rig.task.step(Instant(0), 10)
    rig.task.trigger(barrier(1), Instant(0))
    assert rig.told() == [("process", 1), ("snapshot", 1, 1)]
    assert rig.sent == [[1], barrier(1)]
    rig.host.background.run()
    source, _ = rig.host.states[1].operators
    assert source.split_lists == {"splits": (b"position",)}


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_task_takes_no_input_while_its_output_has_no_room():
    rig = Rig(channels=1, granted=None, output_bytes=8).run()
    rig.push(0, rows(1), rows(2))
    assert rig.steps() == [("process", 1)]
    assert not rig.task.wants_step
    rig.grant()
    assert rig.task.wants_step
    assert rig.steps() == [("process", 2)]
    assert rig.sent == [[1], [2]]


def test_a_barrier_that_overtakes_does_not_wait_for_room():
    rig = Rig(channels=2, granted=None, output_bytes=8, unaligned=True).run()
    rig.push(0, rows(1), rows(2))
    assert rig.steps() == [("process", 1)]
    rig.push(0, unaligned_barrier(1))
    assert rig.task.wants_step
    assert rig.steps() == [("snapshot", 1, 1)]
    assert not rig.task.wants_step


@pytest.mark.parametrize("aborted", [False, True])
def test_a_barrier_that_waits_to_be_sent_overtakes_when_it_is_late_unless_its_checkpoint_was_aborted(aborted):
    """What it would overtake belongs to no checkpoint then, and nothing may be read before what was sent before."""
    rig = Rig(channels=1, granted=None, unaligned=True, aligned_timeout_ms=100).run()
    options = CheckpointOptions(aligned_timeout_ms=100)
    sent = Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=options)
    rig.push(0, rows(1), sent)
    rig.steps()
    if aborted:
        rig.task.notify(AbortNotified(checkpoint=CheckpointId(1)), Instant(0))
        assert rig.task.next_deadline() is None
    rig.host.time = Instant(500)
    rig.task.tick(Instant(500))
    rig.grant()
    assert rig.sent == ([[1], sent] if aborted else [unaligned_barrier(1), [1]])


def test_an_aligned_barrier_that_is_next_does_not_wait_for_room_and_stays_in_its_place():
    rig = Rig(channels=1, granted=None, output_bytes=8).run()
    rig.push(0, rows(1), barrier(1), rows(2))
    assert rig.steps() == [("process", 1), ("snapshot", 1, 1)]
    assert not rig.task.wants_step
    rig.grant()
    assert rig.steps() == [("process", 2)]
    assert rig.sent == [[1], barrier(1), [2]]


def test_a_source_that_pauses_is_asked_again_when_it_said_and_not_before():
    rig = Rig(script=[Pause(5), rows(1)]).run()
    assert rig.steps() == []
    assert rig.task.next_deadline() == 5
    assert not rig.task.wants_step
    rig.host.time = Instant(4)
    assert rig.steps() == []
    rig.host.time = Instant(5)
    assert rig.steps()[0] == ("process", 1)


def test_a_source_without_room_has_no_deadline_that_lies_in_the_past():
    """1. The source pauses. 2. A tick fills the output. 3. The pause is over, and nothing can be done about it."""
    rig = Rig(script=[Pause(5), rows(1)], granted=None, output_bytes=8).run()
    rig.steps()
    rig.task.outputs.emit(rows(9))
    rig.task.tick(Instant(0))
    rig.host.time = Instant(50)
    assert rig.steps() == [("tick", 0)]
    assert rig.task.next_deadline() > 50
    rig.grant()
    assert rig.steps()[0] == ("process", 1)


def test_an_operator_that_wants_to_be_woken_earlier_is():
    rig = Rig().run()
    rig.sum.tick_at = Instant(1_000)
    rig.task.tick(Instant(0))
    rig.task.wake_at(Instant(400))
    rig.task.wake_at(Instant(700))
    assert rig.task.next_deadline() == 400
    rig.told()
    for time in (399, 400, 999, 1_000):
        rig.task.tick(Instant(time))
    assert rig.told() == [("tick", 400), ("tick", 1_000)]


def test_a_deadline_is_never_in_the_past():
    rig = Rig().run()
    rig.host.time = Instant(50)
    rig.task.tick(Instant(50))
    rig.task.wake_at(Instant(10))
    assert rig.task.next_deadline() == 51


def test_a_batch_comes_with_the_number_of_its_input_and_an_input_without_event_time_holds_nobody_back():
    rig = Rig(input_numbers=(0, 1)).run()
    rig.push(1, rows(1))
    rig.push(0, rows(2), Watermark(time_us=70))
    assert rig.steps() == [("process", 1, 1), ("process", 0, 2), ("watermark", 70)]


def test_operators_are_ticked_when_they_asked_for_it():
    rig = Rig(channels=1).run()
    rig.sum.tick_at = Instant(40)
    for time in (0, 10, 39, 40):
        rig.task.tick(Instant(time))
    assert rig.told() == [("tick", 0), ("tick", 40)]


def test_event_time_is_the_least_of_the_channels():
    rig = Rig().run()
    rig.push(0, Watermark(time_us=10))
    rig.push(1, Watermark(time_us=5))
    assert rig.steps() == [("watermark", 5)]
    assert rig.task.metrics()["watermark_us"] == 5
    assert rig.sent == [Watermark(time_us=5)]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_a_source_at_its_end_finishes_its_operators_and_says_so_downstream_and_to_the_master():
    rig = Rig(script=[rows(4)]).run()
    assert rig.steps() == [("process", 4), ("watermark", MAX_WATERMARK), ("finish",), ("data ended",)]
    assert rig.sent == [[4], Watermark(time_us=MAX_WATERMARK), [4], EndOfData()]
    assert rig.task.next_deadline() is None


def test_operators_finish_when_the_data_of_every_channel_has_ended():
    rig = Rig().run()
    rig.push(0, rows(1), EndOfData())
    assert rig.steps() == [("process", 1)]
    rig.push(1, rows(2), EndOfData())
    assert rig.steps() == [("process", 2), ("finish",), ("data ended",)]
    assert rig.sent == [[1], [2], [3], EndOfData()]


def test_stopped_without_drain_operators_do_not_finish():
    rig = Rig(channels=1).run()
    rig.push(0, EndOfData(drain=False))
    assert rig.steps() == []
    assert rig.sent == [EndOfData(drain=False)]


@pytest.mark.parametrize("ended_first", [0, 1])
def test_operators_do_not_finish_if_only_some_of_the_data_ended_by_itself(ended_first):
    """The data of the other channel was stopped in the middle, and goes on after a restore."""
    rig = Rig().run()
    rig.push(ended_first, EndOfData(drain=True))
    rig.push(1 - ended_first, EndOfData(drain=False))
    rig.steps()
    swapped = Rig().run()
    swapped.push(ended_first, EndOfData(drain=False))
    swapped.push(1 - ended_first, EndOfData(drain=True))
    swapped.steps()
    assert rig.sent == swapped.sent == [EndOfData(drain=False)]


def test_stopped_without_drain_event_time_stays_where_it_is():
    """Otherwise windows would close for which the slower channel has records after a restore."""
    rig = Rig().run()
    rig.push(0, Watermark(time_us=10))
    rig.push(1, Watermark(time_us=50))
    assert rig.steps() == [("watermark", 10)]
    rig.push(0, EndOfData(drain=False))
    rig.push(1, EndOfData(drain=False))
    assert rig.steps() == []


def at_the_end(**changes):
    """A source at the end of its data, whose final snapshot is written and acknowledged."""
    rig = Rig(script=[], **changes).run()
    rig.steps()
    rig.task.trigger(barrier(1), Instant(0))
    rig.host.background.run()
    return rig


def completed(rig, number):
    rig.task.notify(CompletionNotified(checkpoint=CheckpointId(number)), Instant(0))


def test_a_task_at_the_end_of_its_data_asks_to_end_only_when_a_checkpoint_taken_there_is_complete():
    rig = at_the_end()
    rig.data_taken()
    assert rig.told() == [("snapshot", 1, 0), ("write", 1), ("ack", 1)]
    assert rig.host.states[1].finished
    assert rig.steps() == []
    completed(rig, 1)
    assert rig.steps() == [("completed", 1), ("wants to end",)]
    assert rig.sent[-1] == barrier(1)
    rig.task.let_end(Instant(0))
    assert rig.steps() == [("close",), ("finished",)]
    assert rig.sent == [EndOfPartition()]


def test_a_task_stays_until_downstream_has_processed_its_data_and_takes_part_in_checkpoints_meanwhile():
    """Behind back-pressure that may last for long, and the checkpoints of the whole job would wait for it."""
    rig = Rig(script=[rows(1)], granted=None).run()
    rig.steps()
    rig.task.trigger(barrier(1), Instant(0))
    rig.host.background.run()
    completed(rig, 1)
    assert ("wants to end",) not in rig.steps()
    rig.task.trigger(barrier(2), Instant(0))
    rig.host.background.run()
    assert rig.told() == [("snapshot", 2, 1), ("write", 2), ("ack", 2)]
    assert rig.host.states[2].finished
    rig.grant()
    assert rig.steps() == []
    assert rig.sent[-2:] == [barrier(1), barrier(2)]
    rig.data_taken()
    assert rig.task.wants_step
    assert rig.steps() == [("wants to end",)]
    assert not rig.task.wants_step
    rig.task.trigger(barrier(3), Instant(0))
    assert rig.told() == [("snapshot", 3, 1)], "it has asked, and nobody has answered"


def test_a_task_without_room_hears_that_a_channel_has_ended_or_a_checkpoint_is_cancelled():
    """Whoever waits for the checkpoint does not wait for back-pressure to go away."""
    rig = Rig(channels=2, granted=None, output_bytes=8).run()
    rig.push(1, EndOfData())
    rig.push(0, rows(1))
    assert ("process", 1) in rig.steps()
    rig.push(0, barrier(1))
    rig.push(1, EndOfPartition())
    assert rig.task.wants_step
    assert rig.steps() == [("snapshot", 1, 1)]
    rig.push(0, CancelMarker(checkpoint=CheckpointId(2)), rows(2))
    assert rig.steps() == [("decline", 2, CheckpointFailure.DECLINED_ON_CANCELLATION)]


def test_upstream_is_told_when_its_data_has_been_processed_to_its_end():
    rig = Rig(channels=2).run()
    rig.push(1, rows(1), EndOfData())
    rig.push(0, rows(2))
    rig.steps()
    assert rig.taken == [1]
    rig.push(0, EndOfData(drain=False))
    rig.steps()
    assert rig.taken == [1, 0]


def test_data_cannot_be_taken_before_its_end_was_sent():
    rig = Rig(script=[rows(1), Pause(1_000)]).run()
    rig.steps()
    with pytest.raises(MalformedMessage, match="was said to be processed before the end of the data was sent"):
        rig.data_taken()


def test_a_checkpoint_taken_before_the_end_of_data_does_not_end_the_task():
    rig = Rig(script=[rows(1)]).run()
    rig.task.trigger(barrier(1), Instant(0))
    rig.steps()
    rig.task.notify(CompletionNotified(checkpoint=CheckpointId(1)), Instant(0))
    assert ("finished",) not in rig.steps()


def test_a_task_asks_to_end_after_what_its_operators_have_under_way():
    rig = at_the_end()
    rig.data_taken()
    rig.sum.busy = True
    completed(rig, 1)
    assert ("wants to end",) not in rig.steps()
    assert not rig.task.wants_step
    rig.sum.busy = False
    assert rig.task.wants_step
    assert rig.steps() == [("wants to end",)]


def test_a_stop_that_is_given_up_fails_the_task_and_is_called_no_bug():
    rig = Rig(script=[rows(1)]).run()
    options = CheckpointOptions(synchronous=True, savepoint=True, target="elsewhere")
    rig.task.trigger(Barrier(checkpoint=CheckpointId(3), timestamp=Instant(0), options=options), Instant(0))
    with pytest.raises(SnapshotFailed, match=r"savepoint 3 was given up after v\[0\] had ended its data for it"):
        rig.task.notify(AbortNotified(checkpoint=CheckpointId(3)), Instant(0))


def test_an_ended_task_does_nothing_more():
    rig = at_the_end()
    rig.data_taken()
    completed(rig, 1)
    rig.steps()
    rig.task.let_end(Instant(0))
    rig.steps()
    rig.task.trigger(barrier(2), Instant(0))
    rig.task.tick(Instant(5_000))
    rig.task.let_end(Instant(0))
    assert rig.steps() == []
    assert rig.task.next_deadline() is None
    assert not rig.task.wants_step


# --- stopping --------------------------------------------------------------------------------------------------------


def test_a_stopped_task_reads_sends_and_acknowledges_nothing_and_discards_what_it_wrote():
    rig = Rig(channels=1).run()
    rig.push(0, rows(8), barrier(1), rows(9))
    for _ in range(2):
        rig.task.step(Instant(0), 10)
    assert rig.sent == [[8], barrier(1)]
    rig.told()
    tell = rig.host.background.work()
    rig.task.stop(Instant(0))
    rig.task.stop(Instant(0))
    tell()
    assert rig.steps() == [("write", 1), ("close",), ("discard", b"8")]
    assert rig.sent == []


def test_a_task_that_was_stopped_is_not_brought_to_life_again():
    """1. Another task of the slot cannot be opened, and all are dropped. 2. The call that opens them goes on."""
    rig = Rig(channels=1)
    rig.task.stop(Instant(0))
    rig.task.open()
    rig.run()
    assert rig.grants == []
    assert rig.told() == [("close",)]
    assert rig.task.next_deadline() is None
