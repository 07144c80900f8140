"""The tracker: at least once, nothing is ever blocked."""

from __future__ import annotations

import pytest

from penstock.core.barrier.events import AlignmentMetrics, InputConsumed
from penstock.core.barrier.tracker import MOST_TRACKED, BarrierTracker
from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.events import TaskStarted


@pytest.fixture
def tracker(bench):
    def make(channels, *, after_tasks_finish=True):
        return bench(BarrierTracker(channels=channels, after_tasks_finish=after_tasks_finish))

    return make


def remembered(task):
    return list(task.handler._tracked)


# --- triggering -------------------------------------------------------------------------------------------------------


def test_s1_a_complete_checkpoint_drops_older_ones_without_a_word(tracker):
    task = tracker(3)
    assert task.feed("B1@1 B1@2 D@1") == []
    assert task.handler.pending == 1
    assert task.feed("B1@0") == ["trigger 1"]
    assert task.feed("B2@0 B2@1 B2@2") == ["trigger 2"]
    assert task.feed("B3@2") == []
    assert task.feed("B4@0 B4@1") == []
    assert task.handler.pending == 4
    assert task.feed("B4@2") == ["trigger 4"]
    assert (task.triggered, task.aborted) == ([1, 2, 4], [])
    assert task.handler.pending is None
    assert task.feed("B3@0 B3@1") == []


def test_checkpoints_under_way_at_once_are_told_apart(tracker):
    task = tracker(2)
    assert task.feed("B1@0 B2@0 B3@0") == []
    assert task.feed("B1@1") == ["trigger 1"]
    assert task.feed("B2@1 B3@1") == ["trigger 2", "trigger 3"]


def test_a_single_channel_triggers_with_every_newer_barrier(tracker):
    task = tracker(1)
    assert task.feed("B1@0 B5@0 B3@0 B5@0 B6@0") == ["trigger 1", "trigger 5", "trigger 6"]


def test_the_last_open_channel_triggers_alone(tracker):
    """It also drops what its sister left behind."""
    task = tracker(2)
    task.feed("B1@0 B2@0 B1@1")
    assert task.triggered == [1]
    assert task.feed("E@1") == ["trigger 2"]
    assert task.feed("B3@0") == ["trigger 3"]


def test_a_checkpoint_that_can_no_longer_complete_is_dropped_by_the_last_open_channel(tracker):
    task = tracker(3, after_tasks_finish=True)
    task.feed("E@2 B1@0 B3@1 E@1")
    assert task.handler.pending == 3
    assert task.feed("B4@0") == ["trigger 4"]
    assert task.handler.pending is None


def test_the_first_barrier_of_a_checkpoint_that_is_not_the_newest_is_ignored(tracker):
    task = tracker(2)
    assert task.feed("B5@0 B3@1 B3@0") == []
    assert task.handler.pending == 5
    assert task.feed("B5@1") == ["trigger 5"]


def test_a_barrier_that_comes_twice_on_a_channel_counts_once(tracker):
    task = tracker(2)
    assert task.feed("B1@0 B1@0") == []
    assert task.feed("B1@1") == ["trigger 1"]


def test_the_oldest_is_forgotten_when_there_are_too_many(tracker):
    task = tracker(2)
    for number in range(1, MOST_TRACKED + 2):
        task.feed(f"B{number}@0")
    assert task.feed("B1@1") == []
    assert task.feed("B2@1") == ["trigger 2"]


def test_nothing_overtakes_and_nothing_depends_on_time(tracker):
    task = tracker(2)
    assert task.feed("A1@0#3") == []
    assert task.handler.pending is None
    assert task.feed("T1@0 +1000 tick") == []
    assert task.handler.next_deadline() is None
    assert task.feed("T1@1") == ["trigger 1"]
    assert task.barriers == [task.barrier("T", 1)]


# --- cancel markers ---------------------------------------------------------------------------------------------------


def test_s3_a_cancel_marker_aborts_older_checkpoints_too_each_once(tracker):
    task = tracker(3)
    assert task.feed("B1@0 X2@0") == ["abort 1 cancelled", "abort 2 cancelled"]
    assert task.handler.pending is None
    assert task.feed("X1@1 X2@1 X1@2 X2@2") == []


def test_s3_an_aborted_checkpoint_is_counted_until_it_can_be_forgotten(tracker):
    task = tracker(3)
    assert task.feed("X4@0 B4@1 B5@1") == ["abort 4 cancelled"]
    assert remembered(task) == [4, 5]
    assert task.feed("E@2") == []
    assert task.triggered == []
    assert task.handler.pending == 5
    assert remembered(task) == [5]
    assert len(task.handler._open) == 2


def test_checkpoints_older_than_a_cancelled_one_are_forgotten_at_once(tracker):
    task = tracker(2)
    task.feed("B1@0 X2@0 B3@0 X4@1")
    assert task.aborted == [1, 2, 3, 4]
    assert remembered(task) == [4]


def test_a_cancel_marker_aborts_a_checkpoint_that_others_have_barriers_of(tracker):
    task = tracker(3)
    task.feed("B1@0 B1@1")
    assert task.feed("X1@2") == ["abort 1 cancelled"]
    assert task.feed("B2@0 B2@1 B2@2") == ["trigger 2"]


def test_a_cancelled_checkpoint_is_never_triggered(tracker):
    task = tracker(2)
    assert task.feed("X1@0 B1@1 B1@0") == ["abort 1 cancelled"]
    task = tracker(1)
    assert task.feed("X1@0 X1@0 B1@0 B2@0") == ["abort 1 cancelled", "trigger 2"]


def test_a_cancel_marker_of_a_checkpoint_that_is_over_is_ignored(tracker):
    task = tracker(2)
    task.feed("B2@0 B2@1")
    assert task.feed("X2@0 X1@1") == []


def test_a_newer_cancel_marker_does_not_abort_twice(tracker):
    task = tracker(3)
    task.feed("X1@0")
    assert task.feed("X2@0") == ["abort 2 cancelled"]


# --- ends -------------------------------------------------------------------------------------------------------------


def test_an_end_completes_the_newest_checkpoint_that_lacked_only_that_channel(tracker):
    task = tracker(3)
    task.feed("B1@0 B1@1 B2@0 B2@1 B3@0")
    assert task.feed("E@2") == ["trigger 2"]
    assert task.handler.pending == 3
    assert task.feed("B3@1") == ["trigger 3"]


def test_the_number_of_channels_to_wait_for_is_fixed_by_the_first_barrier(tracker):
    task = tracker(4)
    assert task.feed("B1@0 E@1 B1@2") == []
    assert task.feed("B1@3") == ["trigger 1"]
    assert task.feed("B2@0 B2@2 B2@3") == ["trigger 2"]


def test_an_end_aborts_all_when_checkpoints_stop_with_the_first_task(tracker):
    task = tracker(3, after_tasks_finish=False)
    task.feed("X1@0 B2@0 B3@0")
    assert task.feed("E@2") == ["abort 2 ended", "abort 3 ended"]
    assert remembered(task) == []
    assert task.feed("B4@0 B4@1") == ["trigger 4"]


@pytest.mark.parametrize(
    ("late", "what"),
    [
        ("B1@0", "the barrier of checkpoint 1"),
        ("X1@0", "a cancel marker of checkpoint 1"),
        ("E@0", "an end of partition"),
    ],
)
def test_whatever_a_channel_sends_after_its_end_is_a_corrupt_stream(tracker, late, what):
    task = tracker(2)
    task.feed("E@0")
    assert task.feed(late) == [f"corrupt: channel 0 sent {what} after its end"]


# --- triggered by the master ------------------------------------------------------------------------------------------


def test_the_master_stands_in_for_every_open_channel(tracker):
    task = tracker(3)
    task.feed("E@1 B1@0")
    assert task.feed("M1") == ["trigger 1"]
    assert task.feed("M1 B1@2") == []


def test_the_master_triggers_a_task_whose_channels_have_all_ended(tracker):
    task = tracker(2)
    task.feed("E@0 E@1")
    assert task.feed("M1 M1 M2") == ["trigger 1", "trigger 2"]


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_each_checkpoint_has_metrics_of_its_own(tracker):
    task = tracker(2)
    task.feed("+5 B1@0")
    task.handle(InputConsumed(bytes_processed=10))
    task.feed("+1 B2@0")
    task.handle(InputConsumed(bytes_processed=3))
    task.feed("+1 B1@1 +2 B2@1")
    assert task.metrics == [
        AlignmentMetrics(start_delay_ms=5, alignment_ms=2, bytes_processed=13),
        AlignmentMetrics(start_delay_ms=6, alignment_ms=3, bytes_processed=3),
    ]


def test_a_cancelled_checkpoint_has_no_metrics(tracker):
    task = tracker(2)
    task.feed("X1@0")
    assert task.handle(InputConsumed(bytes_processed=10)) == []


def test_a_single_channel_aligns_in_no_time(tracker):
    task = tracker(1)
    task.feed("+5 B1@0")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=5)]


# --- bugs of our own --------------------------------------------------------------------------------------------------


def test_time_that_goes_back_is_a_bug():
    handler = BarrierTracker(channels=1, after_tasks_finish=True)
    handler.handle(Ticked(), Instant(5))
    with pytest.raises(InvariantError, match="from 5 to 4"):
        handler.handle(Ticked(), Instant(4))


def test_an_event_of_another_machine_is_a_bug(tracker):
    with pytest.raises(AssertionError):
        tracker(1).handle(TaskStarted())


def _reverse(handler):
    handler._tracked = dict(reversed(handler._tracked.items()))


def _fill(handler):
    (tracked,) = handler._tracked.values()
    handler._tracked = {CheckpointId(i): tracked for i in range(MOST_TRACKED + 1)}


@pytest.mark.parametrize(
    ("story", "spoil", "text"),
    [
        ("B1@0 B2@0", _reverse, r"out of order: \[2, 1\]"),
        ("B60@0", _fill, f"{MOST_TRACKED + 1} checkpoints are tracked"),
        ("B2@0", lambda h: setattr(h, "_newest", 1), "checkpoint 2 is tracked, and the newest is 1"),
        ("B2@0", lambda h: setattr(h._tracked[2], "target", 1), "waits for no channel"),
    ],
)
def test_validate_finds_a_state_that_contradicts_itself(tracker, story, spoil, text):
    task = tracker(2)
    task.feed(story)
    spoil(task.handler)
    with pytest.raises(InvariantError, match=text):
        task.handler.validate()
