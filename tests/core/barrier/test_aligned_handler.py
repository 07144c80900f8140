"""The aligned handler: channels are blocked until the barrier has come on all of them."""

from __future__ import annotations

import pytest

from penstock.core.barrier.aligned import AlignedHandler, CollectingBarriers, WaitingForFirstBarrier
from penstock.core.barrier.events import AlignmentMetrics, InputConsumed
from penstock.core.barrier.single import Inputs
from penstock.core.effects import Ticked
from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.events import TaskStarted


@pytest.fixture
def aligned(bench):
    def make(channels, *, after_tasks_finish=True):
        return bench(AlignedHandler(channels=channels, after_tasks_finish=after_tasks_finish))

    return make


# --- blocking and triggering -----------------------------------------------------------------------------------------


def test_each_barrier_blocks_its_channel_and_the_last_one_triggers_and_resumes_all(aligned):
    task = aligned(3)
    assert task.feed("B1@1") == ["block 1"]
    assert task.feed("B1@0") == ["block 0"]
    assert task.handler.pending == 1
    assert task.feed("B1@2") == ["block 2", "trigger 1", "resume 1", "resume 0", "resume 2"]
    assert task.handler.pending is None


def test_a_single_channel_triggers_with_every_barrier(aligned):
    task = aligned(1)
    assert task.feed("B1@0 B2@0") == ["block 0", "trigger 1", "resume 0", "block 0", "trigger 2", "resume 0"]


def test_the_snapshot_is_triggered_with_the_barrier_as_it_came(aligned):
    task = aligned(2)
    task.feed("F7@0 F7@1")
    assert task.barriers == [task.barrier("F", 7)]


def test_nothing_depends_on_time(aligned):
    task = aligned(2)
    assert task.feed("T1@0 +1000 tick") == ["block 0"]
    assert task.handler.next_deadline() is None
    assert task.feed("T1@1") == ["block 1", "trigger 1", "resume 0", "resume 1"]


# --- newer, older, twice ---------------------------------------------------------------------------------------------


def test_s5_a_newer_barrier_jumps_over_and_an_end_aborts_when_checkpoints_stop_with_the_first_task(aligned):
    task = aligned(3, after_tasks_finish=False)
    task.feed("B1@0 B1@1 B1@2")
    assert task.triggered == [1]
    task.feed("B2@1 D@2 B2@0")
    assert task.blocked == {0, 1}
    assert task.feed("B3@2") == ["resume 1", "resume 0", "abort 2 subsumed", "block 2"]
    task.feed("B3@0")
    assert task.blocked == {0, 2}
    assert task.feed("B4@1") == ["resume 2", "resume 0", "abort 3 subsumed", "block 1"]
    assert task.feed("E@0") == ["resume 1", "abort 4 ended"]
    assert task.blocked == set()
    assert (task.triggered, task.aborted) == ([1], [2, 3, 4])


def test_s7_a_cancel_marker_of_a_subsumed_checkpoint_is_ignored(aligned):
    task = aligned(3)
    task.feed("B3@1 B3@0")
    assert task.blocked == {0, 1}
    assert task.feed("B5@2") == ["resume 1", "resume 0", "abort 3 subsumed", "block 2"]
    assert task.feed("X3@0") == []
    assert task.feed("B5@0 B5@1") == ["block 0", "block 1", "trigger 5", "resume 2", "resume 0", "resume 1"]
    assert (task.triggered, task.aborted) == ([5], [3])


@pytest.mark.parametrize(
    "before",
    ["B1@0 B1@1 B1@2", "X1@1", "B2@1", "B1@1 X1@2"],
    ids=["complete", "cancelled", "older", "aborted"],
)
def test_a_stale_aligned_barrier_unblocks_its_channel_and_does_nothing_else(aligned, before):
    task = aligned(3)
    task.feed(before)
    pending = task.handler.pending
    assert task.feed("B1@0") == ["resume 0"]
    assert task.handler.pending == pending


def test_a_stale_unaligned_barrier_does_nothing(aligned):
    task = aligned(2)
    assert task.feed("B2@0 U1@1") == ["block 0"]


def test_a_stale_barrier_does_not_open_a_channel_that_a_newer_checkpoint_holds(aligned):
    task = aligned(2)
    assert task.feed("B2@0 B1@0") == ["block 0"]


def test_a_barrier_that_comes_twice_on_a_channel_is_a_corrupt_stream(aligned):
    task = aligned(3)
    task.feed("B4@1")
    assert task.feed("B4@1") == ["corrupt: channel 1 sent the barrier of checkpoint 4 twice"]
    assert task.blocked == {1}


def test_a_checkpoint_may_be_skipped(aligned):
    task = aligned(2)
    task.feed("B1@0 B1@1 B5@0 B5@1")
    assert task.triggered == [1, 5]


# --- cancel markers --------------------------------------------------------------------------------------------------


def test_a_cancel_marker_aborts_the_pending_checkpoint_and_resumes_all(aligned):
    task = aligned(3)
    task.feed("B1@0 B1@1")
    assert task.feed("X1@2") == ["resume 0", "resume 1", "abort 1 cancelled"]
    assert task.handler.pending is None
    assert task.feed("X1@0 X1@1") == []


def test_a_cancel_marker_that_comes_first_ends_the_checkpoint_before_it_began(aligned):
    task = aligned(2)
    assert task.feed("X1@0") == ["abort 1 cancelled"]
    assert task.feed("B1@1") == ["resume 1"]
    assert task.feed("X1@1") == []
    task.feed("B2@0 B2@1")
    assert (task.triggered, task.aborted) == ([2], [1])


def test_a_cancel_marker_of_a_newer_checkpoint_ends_the_older_one_without_a_refusal_of_its_own(aligned):
    task = aligned(2)
    task.feed("B1@0")
    assert task.feed("X3@1") == ["resume 0", "abort 3 cancelled"]
    assert task.feed("X2@0 X3@0") == []
    assert task.handler.pending is None


def test_a_cancel_marker_of_a_complete_checkpoint_is_ignored(aligned):
    task = aligned(1)
    task.feed("B2@0")
    assert task.feed("X2@0 X1@0") == []


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_channel_that_ends_counts_as_in(aligned):
    task = aligned(3)
    task.feed("B1@0 E@1")
    assert task.blocked == {0}
    assert task.feed("B1@2") == ["block 2", "trigger 1", "resume 0", "resume 2"]


def test_the_last_channel_to_end_triggers(aligned):
    task = aligned(2)
    task.feed("B1@0")
    assert task.feed("E@1") == ["trigger 1", "resume 0"]
    assert task.barriers == [task.barrier("B", 1)]


def test_the_number_of_channels_to_wait_for_is_fixed_by_the_first_barrier(aligned):
    """A channel that ends is a member of those that are in: it does not make two barriers enough for three channels
    and its end at once."""
    task = aligned(4)
    assert task.feed("B1@0 E@1") == ["block 0"]
    assert task.feed("B1@2") == ["block 2"]
    assert task.feed("B1@3") == ["block 3", "trigger 1", "resume 0", "resume 2", "resume 3"]


def test_the_next_checkpoint_waits_only_for_open_channels(aligned):
    task = aligned(3)
    task.feed("B1@0 E@1 B1@2")
    assert task.feed("B2@0 B2@2") == ["block 0", "block 2", "trigger 2", "resume 0", "resume 2"]


def test_a_barrier_and_the_end_of_the_same_channel_count_once(aligned):
    task = aligned(3)
    assert task.feed("B1@0 E@0") == ["block 0"]
    assert task.feed("B1@1") == ["block 1"]
    assert task.feed("B1@2") == ["block 2", "trigger 1", "resume 0", "resume 1", "resume 2"]


def test_an_end_without_a_pending_checkpoint_does_nothing(aligned):
    task = aligned(2)
    assert task.feed("E@0 B1@1 E@1") == ["block 1", "trigger 1", "resume 1"]


def test_an_end_aborts_nothing_when_nothing_is_pending(aligned):
    task = aligned(2, after_tasks_finish=False)
    assert task.feed("E@0") == []
    assert task.feed("B1@1") == ["block 1", "trigger 1", "resume 1"]


@pytest.mark.parametrize(
    ("late", "what"),
    [
        ("B1@0", "the barrier of checkpoint 1"),
        ("A1@0", "an announcement of checkpoint 1"),
        ("X1@0", "a cancel marker of checkpoint 1"),
        ("E@0", "an end of partition"),
    ],
)
def test_whatever_a_channel_sends_after_its_end_is_a_corrupt_stream(aligned, late, what):
    task = aligned(2)
    task.feed("E@0")
    assert task.feed(late) == [f"corrupt: channel 0 sent {what} after its end"]
    assert task.handler.pending is None


# --- announcements ---------------------------------------------------------------------------------------------------


def test_an_announcement_begins_a_checkpoint_and_changes_nothing_else(aligned):
    task = aligned(2)
    assert task.feed("A1@0") == []
    assert task.handler.pending == 1
    assert task.feed("B1@0 B1@1") == ["block 0", "block 1", "trigger 1", "resume 0", "resume 1"]


def test_an_announced_checkpoint_can_be_cancelled(aligned):
    task = aligned(2)
    assert task.feed("A1@0 X1@1 B1@0") == ["abort 1 cancelled", "resume 0"]


# --- triggered by the master -----------------------------------------------------------------------------------------


def test_the_master_stands_in_for_every_open_channel_and_blocks_none(aligned):
    task = aligned(3)
    task.feed("E@1")
    assert task.feed("M1") == ["trigger 1"]
    assert task.handler.pending is None


@pytest.mark.parametrize("channel", [0, 1, 2])
def test_the_master_stands_in_for_the_channels_that_are_missing(aligned, channel):
    task = aligned(3)
    task.feed(f"B1@{channel}")
    assert task.feed("M1") == ["trigger 1", f"resume {channel}"]


def test_the_master_triggers_a_task_whose_channels_have_all_ended(aligned):
    task = aligned(2)
    task.feed("E@0 E@1 +7")
    assert task.feed("M1") == ["trigger 1"]
    assert task.metrics == [AlignmentMetrics(start_delay_ms=7)]
    assert task.feed("M1") == []


def test_the_master_subsumes_an_older_checkpoint(aligned):
    task = aligned(2)
    task.feed("B1@0")
    assert task.feed("M2") == ["resume 0", "abort 1 subsumed", "trigger 2"]


def test_a_trigger_of_the_master_that_is_late_is_ignored(aligned):
    task = aligned(2)
    task.feed("B2@0 B2@1")
    assert task.feed("M2 M1") == []


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_tell_the_delay_of_the_first_barrier_and_what_happened_until_the_last(aligned):
    task = aligned(2)
    task.handle(InputConsumed(bytes_processed=1))
    task.feed("+10 B1@0")
    task.handle(InputConsumed(bytes_processed=300))
    task.feed("+6")
    task.handle(InputConsumed(bytes_processed=20))
    task.feed("B1@1")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=10, alignment_ms=6, bytes_processed=320)]


def test_metrics_start_over_with_each_checkpoint(aligned):
    task = aligned(2)
    task.feed("B1@0")
    task.handle(InputConsumed(bytes_processed=5))
    task.feed("+3 B2@1 +4 B2@0")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=3, alignment_ms=4)]


def test_alignment_of_a_single_channel_takes_no_time(aligned):
    task = aligned(1)
    task.feed("+5 B1@0")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=5)]


def test_alignment_begins_with_the_first_channel_that_is_in_not_with_an_announcement(aligned):
    task = aligned(3)
    task.feed("+2 A1@0 +3 E@1 +4 B1@0 +5 B1@2")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=5, alignment_ms=9)]


def test_a_barrier_from_a_clock_that_is_ahead_has_no_delay(aligned):
    task = aligned(1)
    task.created_at = Instant(task.now + 50)
    task.feed("B1@0")
    assert task.metrics == [AlignmentMetrics()]


# --- bugs of our own -------------------------------------------------------------------------------------------------


def test_time_that_goes_back_is_a_bug():
    handler = AlignedHandler(channels=1, after_tasks_finish=True)
    handler.handle(Ticked(), Instant(5))
    with pytest.raises(InvariantError, match="from 5 to 4"):
        handler.handle(Ticked(), Instant(4))


@pytest.mark.parametrize("channel", [2, 7])
def test_a_channel_that_the_task_does_not_have_is_a_bug(aligned, channel):
    with pytest.raises(InvariantError, match=f"channel {channel} of a task with 2"):
        aligned(2).feed(f"E@{channel}")


def test_a_negative_number_of_channels_is_a_bug():
    with pytest.raises(InvariantError, match="cannot have -1"):
        AlignedHandler(channels=-1, after_tasks_finish=True)


def test_an_event_of_another_machine_is_a_bug(aligned):
    with pytest.raises(AssertionError):
        aligned(1).handle(TaskStarted())


@pytest.mark.parametrize("state", [WaitingForFirstBarrier(), CollectingBarriers()])
def test_a_time_out_of_an_aligned_checkpoint_is_a_bug(state):
    barrier = Barrier(checkpoint=CheckpointId(3), timestamp=Instant(0))
    with pytest.raises(InvariantError, match="checkpoint 3 cannot time out"):
        state.timed_out(Inputs(1), barrier)


def test_a_trigger_before_any_channel_is_in_is_a_bug():
    with pytest.raises(InvariantError, match="no barrier has come on any channel"):
        Inputs(1).trigger(Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0)))


def test_a_stop_of_saving_that_never_started_is_a_bug():
    with pytest.raises(InvariantError, match="no in-flight data is being saved"):
        Inputs(1).drop_unaligned()


@pytest.mark.parametrize(
    ("story", "spoil", "text"),
    [
        ("", lambda h: h._inputs.effects.append("x"), "1 effects were left"),
        ("", lambda h: h._inputs.held.update({0: None}), "nothing is pending.*held"),
        ("B1@0 B1@1", lambda h: h._inputs.arrived.update({1: None}), "nothing is pending after checkpoint 1.*arrived"),
        ("", lambda h: h._inputs.announced.update({0: 3}), "nothing is pending.*announced"),
        ("", lambda h: setattr(h._inputs, "persisting", 4), "nothing is pending.*persisting is 4"),
        ("", lambda h: setattr(h, "_deadline", 9), "nothing is pending.*deadline is 9"),
        ("B1@0", lambda h: setattr(h, "_newest", 2), "1 is pending, and 2 is newer"),
        ("B1@0", lambda h: setattr(h._inputs, "target", 1), "waits for no channel"),
        ("B1@0", lambda h: setattr(h._inputs, "persisting", 1), r"is unaligned, and channels \[0\] are held"),
    ],
)
def test_validate_finds_a_state_that_contradicts_itself(aligned, story, spoil, text):
    task = aligned(2)
    task.feed(story)
    spoil(task.handler)
    with pytest.raises(InvariantError, match=text):
        task.handler.validate()
