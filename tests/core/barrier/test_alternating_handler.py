"""The alternating handler: aligned, unaligned, and aligned until a time-out, in one job."""

from __future__ import annotations

import pytest

from penstock.core.barrier.alternating import AlternatingHandler
from penstock.core.barrier.events import AlignmentMetrics, BarrierReceived, BlockChannel, InputConsumed
from penstock.core.elements import Barrier, CheckpointOptions
from penstock.core.ids import ChannelIndex, CheckpointId, Instant


@pytest.fixture
def alternating(bench):
    def make(channels, *, after_tasks_finish=True, timeout_ms=10):
        handler = AlternatingHandler(channels=channels, after_tasks_finish=after_tasks_finish)
        return bench(handler, timeout_ms=timeout_ms)

    return make


@pytest.fixture
def queued(model_task):
    """A task with real queues, driven by an alternating handler."""

    def make(channels, *, announces=True):
        handler = AlternatingHandler(channels=channels, after_tasks_finish=True)
        return model_task(handler, channels=channels, announces=announces)

    return make


def barrier(checkpoint, at, **options):
    return Barrier(checkpoint=CheckpointId(checkpoint), timestamp=Instant(at), options=CheckpointOptions(**options))


# --- unaligned from the start ----------------------------------------------------------------------------------------


def test_the_first_unaligned_barrier_triggers_and_input_is_saved_until_the_last(alternating):
    task = alternating(3)
    assert task.feed("U1@1") == ["persist 1 on [0, 2]", "trigger 1 unaligned"]
    assert task.handler.pending == 1
    assert task.feed("U1@2") == []
    assert task.feed("U1@0") == ["stop persisting 1", "all in 1"]
    assert task.handler.pending is None


def test_a_single_channel_triggers_and_completes_at_once(alternating):
    task = alternating(1)
    assert task.feed("U1@0") == ["persist 1 on []", "trigger 1 unaligned", "stop persisting 1", "all in 1"]


def test_unaligned_checkpoints_block_nothing(alternating):
    task = alternating(2)
    task.feed("U1@0 D@0 U2@0 U2@1 U3@1 X3@0 U4@0 E@1")
    assert task.blocked == set()
    assert (task.triggered, task.aborted) == ([1, 2, 3, 4], [1, 3])


def test_s9_exactly_the_batches_in_flight_are_saved_and_all_are_delivered(queued):
    task = queued(3)

    def deliver(*items):
        for channel, item in items:
            task.arrive(channel, item)
            task.read(channel)

    def unaligned(checkpoint):
        return barrier(checkpoint, task.now, unaligned=True)

    deliver((0, 1), (2, 2), (0, 3), (1, unaligned(1)))
    assert task.triggered == [1]
    deliver((2, unaligned(1)), (2, 4), (1, 5), (0, 6), (0, unaligned(1)))
    assert task.snapshots[1].saved == [[6], [], []]
    assert task.snapshots[1].complete

    for checkpoint in (2, 3, 4):
        deliver(*((channel, unaligned(checkpoint)) for channel in (1, 0, 2)))
        assert task.snapshots[checkpoint].saved == [[], [], []]
        assert task.snapshots[checkpoint].complete

    deliver((0, 10), (2, 11), (0, 12), (1, unaligned(5)))
    deliver((2, 13), (0, 14), (2, 15), (1, 16), (2, unaligned(5)), (1, 17), (0, 18), (2, 19), (1, 20))
    assert not task.snapshots[5].complete
    deliver((0, unaligned(5)))
    assert task.snapshots[5].saved == [[14, 18], [], [13, 15]]
    assert task.snapshots[5].complete
    assert task.output == [1, 2, 3, 4, 5, 6, *range(10, 21)]


def test_a_barrier_that_overtakes_leaves_its_own_channels_data_to_be_saved(queued):
    task = queued(2)
    for item in (1, 2, barrier(1, task.now, unaligned=True), 3):
        task.arrive(0, item)
    task.arrive(1, 4)
    task.read(0)
    assert task.snapshots[1].saved == [[1, 2], [4]]
    assert task.output == []


def test_the_snapshot_of_an_unaligned_checkpoint_can_still_be_cancelled_after_it_was_triggered(alternating):
    task = alternating(2)
    task.feed("U1@0")
    assert task.feed("X1@1") == ["stop persisting 1, aborted", "abort 1 cancelled"]
    assert task.feed("U1@1 X1@0") == []


def test_a_newer_unaligned_barrier_subsumes_one_that_was_triggered(alternating):
    task = alternating(2)
    task.feed("U1@0")
    assert task.feed("U2@0") == [
        "stop persisting 1, aborted",
        "abort 1 subsumed",
        "persist 2 on [1]",
        "trigger 2 unaligned",
    ]


def test_a_cancel_marker_of_a_newer_checkpoint_also_refuses_an_older_one_that_was_triggered(alternating):
    task = alternating(2)
    task.feed("U1@0")
    assert task.feed("X3@0") == ["stop persisting 1, aborted", "abort 1 cancelled", "abort 3 cancelled"]
    assert task.handler.pending is None


@pytest.mark.parametrize(
    ("story", "triggered", "aborted"),
    [
        ("X10@0 X20@0", [], [10, 20]),
        ("X20@0 X10@0", [], [20]),
        ("X10@0 U10@0", [], [10]),
        ("X10@0 U20@0", [20], [10]),
        ("X20@0 U10@0", [], [20]),
        ("U10@0 U10@0", [10], []),
        ("U10@0 U20@0", [10, 20], []),
        ("U20@0 U10@0", [20], []),
        ("U10@0 X10@0", [10], []),
        ("U10@0 X20@0", [10], [20]),
        ("U20@0 X10@0", [20], []),
    ],
)
def test_cancel_markers_and_barriers_of_a_single_channel(alternating, story, triggered, aborted):
    task = alternating(1)
    task.feed(story)
    assert (task.triggered, task.aborted) == (triggered, aborted)


def test_a_barrier_that_comes_twice_on_a_channel_is_a_corrupt_stream(alternating):
    task = alternating(2)
    task.feed("U1@0")
    assert task.feed("U1@0") == ["corrupt: channel 0 sent the barrier of checkpoint 1 twice"]


def test_a_channel_that_ends_needs_no_barrier_to_complete_the_input(alternating):
    task = alternating(3)
    task.feed("U1@0")
    assert task.feed("E@1") == []
    assert task.feed("E@0") == []
    assert task.feed("E@2") == ["stop persisting 1", "all in 1"]


def test_an_end_aborts_a_triggered_checkpoint_when_checkpoints_stop_with_the_first_task(alternating):
    task = alternating(2, after_tasks_finish=False)
    task.feed("U1@0")
    assert task.feed("E@1") == ["stop persisting 1, aborted", "abort 1 ended"]


# --- aligned inside ---------------------------------------------------------------------------------------------------


def test_aligned_barriers_are_aligned_for_as_long_as_it_takes(alternating):
    """Savepoints, and edges that cannot carry an unaligned barrier."""
    task = alternating(3)
    assert task.feed("B1@0 +1000 tick B1@1") == ["block 0", "block 1"]
    assert task.handler.next_deadline() is None
    assert task.feed("B1@2") == ["block 2", "trigger 1", "resume 0", "resume 1", "resume 2"]
    assert task.feed("F2@0 +1000 tick F2@1") == ["block 0", "block 1"]
    assert task.feed("E@2") == ["trigger 2", "resume 0", "resume 1"]
    assert task.barriers[1].options.forced_aligned


def test_aligned_and_unaligned_checkpoints_take_turns(alternating):
    task = alternating(2)
    for number in range(1, 21):
        kind = "BUT"[number % 3]
        task.feed(f"{kind}{number}@{number % 2} D@0 {kind}{number}@{1 - number % 2}")
    assert task.triggered == list(range(1, 21))
    assert task.aborted == []


def test_an_unaligned_checkpoint_subsumes_an_aligned_one_and_frees_its_channels(alternating):
    task = alternating(3)
    task.feed("B1@0 B1@2")
    assert task.feed("U2@1") == [
        "resume 0",
        "resume 2",
        "abort 1 subsumed",
        "persist 2 on [0, 2]",
        "trigger 2 unaligned",
    ]
    assert task.feed("B1@1") == ["resume 1"]


def test_an_aligned_checkpoint_can_be_cancelled(alternating):
    task = alternating(2)
    task.feed("B1@0")
    assert task.feed("X1@1") == ["resume 0", "abort 1 cancelled"]
    assert task.feed("B1@1") == ["resume 1"]


def test_an_end_in_an_aligned_checkpoint_counts_or_aborts(alternating):
    task = alternating(3)
    assert task.feed("B1@0 E@1") == ["block 0"]
    assert task.feed("B1@2") == ["block 2", "trigger 1", "resume 0", "resume 2"]
    task = alternating(3, after_tasks_finish=False)
    assert task.feed("B1@0 E@1") == ["block 0", "resume 0", "abort 1 ended"]


# --- announcements ----------------------------------------------------------------------------------------------------


def test_s16_a_barrier_that_turned_unaligned_upstream_turns_the_checkpoint(alternating):
    task = alternating(2, timeout_ms=2**31)
    assert task.feed("A1@0#0") == []
    assert task.feed("U1@1") == ["prioritize 0#0", "persist 1 on [0]", "trigger 1 unaligned"]


def test_an_unaligned_barrier_after_an_aligned_one_turns_the_checkpoint(alternating):
    task = alternating(3, timeout_ms=2**31)
    assert task.feed("T1@0 A1@2#4") == ["block 0"]
    assert task.feed("U1@1") == ["prioritize 2#4", "persist 1 on [2]", "trigger 1 unaligned", "resume 0"]
    assert task.feed("T1@2") == ["resume 2", "stop persisting 1", "all in 1"]


def test_the_last_barrier_may_turn_the_checkpoint(alternating):
    task = alternating(2)
    task.feed("T1@0")
    assert task.feed("U1@1") == [
        "persist 1 on []",
        "trigger 1 unaligned",
        "resume 0",
        "stop persisting 1",
        "all in 1",
    ]


def test_s12_announced_barriers_overtake_when_the_time_is_up(queued):
    task = queued(2)
    late = barrier(1, task.now, aligned_timeout_ms=10)
    for channel, item in [(0, 1), (0, 2), (0, late), (1, 3), (1, late)]:
        task.arrive(channel, item)
    assert task.triggered == []
    task.pass_time(11)
    assert task.triggered == []
    task.read(0)
    task.read(1)
    assert task.output == []
    assert task.triggered == [1]
    assert task.snapshots[1].unaligned
    assert task.snapshots[1].complete
    assert task.snapshots[1].saved == [[1, 2], [3]]
    for channel in (0, 0, 1):
        task.read(channel)
    assert task.output == [1, 2, 3]


def test_an_announcement_alone_begins_and_subsumes(alternating):
    task = alternating(2)
    task.feed("B1@0")
    assert task.feed("A2@1#3") == ["resume 0", "abort 1 subsumed"]
    assert task.handler.pending == 2
    assert task.feed("B1@1") == ["resume 1"]


@pytest.mark.parametrize("before", ["X1@1", "U1@0 U1@1", "U2@0"], ids=["cancelled", "complete", "older"])
def test_an_obsolete_announcement_is_dropped(alternating, before):
    task = alternating(2)
    task.feed(before)
    pending, deadline = task.handler.pending, task.handler.next_deadline()
    assert task.feed("A1@0#3 +50 tick") == []
    assert (task.handler.pending, task.handler.next_deadline()) == (pending, deadline)


def test_a_checkpoint_that_is_only_announced_can_be_cancelled(alternating):
    """Otherwise it would wait, and soon hold a channel, for a barrier that never comes."""
    task = alternating(2)
    task.feed("A1@0#2")
    assert task.feed("X1@1") == ["abort 1 cancelled"]
    assert task.handler.next_deadline() is None
    assert task.feed("T1@0") == ["resume 0"]


def test_a_barrier_that_was_read_is_not_moved(alternating):
    task = alternating(3)
    task.feed("A1@0#2 A1@1#5 T1@0")
    assert task.feed("+10 tick") == ["prioritize 1#5", "persist 1 on [1, 2]", "trigger 1 unaligned", "resume 0"]


def test_a_barrier_that_is_announced_after_it_was_read_is_not_moved(alternating):
    task = alternating(2)
    task.feed("T1@0 A1@0#2")
    assert task.feed("+10 tick") == ["persist 1 on [1]", "trigger 1 unaligned", "resume 0"]


def test_announcements_are_forgotten_with_their_checkpoint(alternating):
    task = alternating(2)
    task.feed("A1@0#2 A1@1#3 A2@1#9")
    assert task.feed("+10 tick") == ["prioritize 1#9"]


def test_a_channel_that_ends_is_not_told_to_move_its_barrier(alternating):
    task = alternating(2)
    task.feed("A1@0#2 A1@1#3 E@0")
    assert task.feed("+10 tick") == ["prioritize 1#3"]


def test_once_unaligned_an_announced_barrier_overtakes_at_once(alternating):
    task = alternating(3)
    task.feed("A1@0#2 +10 tick")
    assert task.feed("A1@1#4") == ["prioritize 1#4"]
    task.feed("T1@0")
    assert task.feed("A1@2#6") == ["prioritize 2#6"]


# --- time-outs --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_in_time_stays_aligned(alternating):
    task = alternating(2)
    assert task.feed("T1@0") == ["block 0"]
    assert task.handler.next_deadline() == task.created_at + 10
    assert task.feed("+9 tick +1 T1@1") == ["block 1", "trigger 1", "resume 0", "resume 1"]
    assert task.barriers == [task.barrier("T", 1)]
    assert task.handler.next_deadline() is None


def test_the_deadline_counts_from_the_creation_of_the_barrier(alternating):
    task = alternating(2)
    task.feed("+4 A1@0#0")
    assert task.handler.next_deadline() == task.created_at + 10


def test_a_deadline_that_has_passed_is_due_at_once(alternating):
    task = alternating(2)
    task.feed("+25 A1@0#0")
    assert task.handler.next_deadline() == task.now
    assert task.feed("tick") == ["prioritize 0#0"]


def test_only_the_first_barrier_or_announcement_sets_the_deadline(alternating):
    task = alternating(3)
    task.feed("A1@0#0")
    task.created_at = Instant(task.created_at + 5)
    task.feed("A1@1#0")
    assert task.handler.next_deadline() == task.created_at + 5


def test_the_deadline_before_the_first_barrier_moves_barriers_and_triggers_nothing(alternating):
    task = alternating(2)
    assert task.feed("A1@0#5 A1@1#7 +10 tick") == ["prioritize 0#5", "prioritize 1#7"]
    assert task.feed("T1@1") == ["persist 1 on [0]", "trigger 1 unaligned", "resume 1"]
    assert task.feed("T1@0") == ["resume 0", "stop persisting 1", "all in 1"]
    assert task.blocked == set()


def test_the_deadline_after_the_first_barrier_triggers_and_frees_its_channel(alternating):
    task = alternating(3)
    assert task.feed("T1@0 A1@2#3") == ["block 0"]
    assert task.feed("+10 tick") == ["prioritize 2#3", "persist 1 on [1, 2]", "trigger 1 unaligned", "resume 0"]
    assert task.feed("T1@1 T1@2") == ["resume 1", "resume 2", "stop persisting 1", "all in 1"]


@pytest.mark.parametrize("story", ["T1@0 +10 tick", "A1@0#0 +10 tick T1@0", "A1@0#0 +10 tick F1@1"])
def test_a_snapshot_that_turned_unaligned_says_so_for_good(alternating, story):
    """Whatever the barrier said that it was triggered by."""
    task = alternating(2)
    task.feed(story)
    assert task.barriers == [task.barrier("U", 1)]


def test_a_late_first_barrier_triggers_at_once(alternating):
    task = alternating(2)
    assert task.feed("+11 T1@0") == ["persist 1 on [1]", "trigger 1 unaligned", "resume 0"]
    assert task.barriers == [task.barrier("U", 1)]


def test_a_late_second_barrier_triggers_at_once(alternating):
    task = alternating(3)
    task.feed("T1@0 A1@1#8")
    assert task.feed("+11 T1@2") == [
        "prioritize 1#8",
        "persist 1 on [1]",
        "trigger 1 unaligned",
        "resume 0",
        "resume 2",
    ]
    assert task.barriers == [task.barrier("U", 1)]


def test_a_late_last_barrier_completes_the_alignment(alternating):
    task = alternating(2)
    assert task.feed("T1@0 +50 T1@1") == ["block 0", "block 1", "trigger 1", "resume 0", "resume 1"]
    task = alternating(1)
    assert task.feed("+50 T1@0") == ["block 0", "trigger 1", "resume 0"]


def test_a_barrier_exactly_as_old_as_its_time_out_is_not_late_when_it_is_read(alternating):
    task = alternating(2)
    assert task.feed("+10 T1@0") == ["block 0"]
    assert task.feed("tick") == ["persist 1 on [1]", "trigger 1 unaligned", "resume 0"]


def test_a_deadline_that_comes_after_the_checkpoint_turned_does_nothing(alternating):
    task = alternating(3)
    task.feed("A1@1#0 +11 T1@0")
    assert task.triggered == [1]
    assert task.handler.next_deadline() is not None
    assert task.feed("tick") == []
    assert task.handler.next_deadline() is None


def test_a_deadline_that_comes_before_the_first_barrier_of_a_turned_checkpoint_does_nothing(alternating):
    task = alternating(2)
    task.feed("A1@0#0 +10 tick tick")
    assert task.feed("+10 tick") == []
    assert task.triggered == []


@pytest.mark.parametrize("end", ["T1@1", "X1@1"], ids=["complete", "cancelled"])
def test_no_deadline_outlives_its_checkpoint(alternating, end):
    task = alternating(2)
    task.feed(f"T1@0 {end}")
    assert task.handler.next_deadline() is None
    assert task.feed("+50 tick") == []


def test_the_next_checkpoint_has_a_deadline_of_its_own(alternating):
    task = alternating(2)
    task.feed("T1@0 +10 tick T1@1")
    task.created_at = task.now
    assert task.feed("T2@0 T2@1") == ["block 0", "block 1", "trigger 2", "resume 0", "resume 1"]


def test_an_end_in_a_late_checkpoint_turns_it(alternating):
    task = alternating(3)
    task.feed("T1@0")
    assert task.feed("+11 E@1") == ["persist 1 on [2]", "trigger 1 unaligned", "resume 0"]
    assert task.feed("E@2") == ["stop persisting 1", "all in 1"]


def test_an_end_before_the_first_barrier_is_counted(alternating):
    task = alternating(2)
    task.feed("A1@0#0")
    assert task.feed("E@1") == []
    assert task.feed("T1@0") == ["block 0", "trigger 1", "resume 0"]
    task = alternating(2)
    task.feed("A1@0#0 +10 tick")
    assert task.feed("E@1") == []
    assert task.feed("T1@0") == ["persist 1 on []", "trigger 1 unaligned", "resume 0", "stop persisting 1", "all in 1"]


def test_a_checkpoint_with_nothing_but_ends_is_triggered_by_the_last(alternating):
    """An announced barrier that was never sent on: all there was to read before it has been read."""
    task = alternating(2)
    assert task.feed("A1@0#0 E@0 E@1") == ["trigger 1"]
    task = alternating(2)
    assert task.feed("A1@0#0 +10 tick E@0 E@1") == [
        "prioritize 0#0",
        "persist 1 on []",
        "trigger 1 unaligned",
        "stop persisting 1",
        "all in 1",
    ]


def test_an_abort_before_the_first_barrier_leads_back_to_the_start(alternating):
    task = alternating(2)
    task.feed("A1@0#0 +10 tick")
    assert task.feed("X1@1") == ["abort 1 cancelled"]
    assert task.feed("T1@0") == ["resume 0"]
    task.created_at = task.now
    assert task.feed("T2@0 T2@1") == ["block 0", "block 1", "trigger 2", "resume 0", "resume 1"]


# --- triggered by the master ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["", "T"])
def test_the_master_stands_in_for_every_open_channel_and_blocks_none(alternating, kind):
    task = alternating(3)
    task.feed("E@1")
    assert task.feed(f"M{kind}1") == ["trigger 1"]
    assert task.feed("B1@0 B1@2") == ["resume 0", "resume 2"]


def test_an_unaligned_trigger_of_the_master_saves_what_waits_and_completes(alternating):
    task = alternating(3)
    task.feed("E@1")
    assert task.feed("MU1") == ["persist 1 on [2]", "trigger 1 unaligned", "stop persisting 1", "all in 1"]


def test_a_late_trigger_of_the_master_turns_unaligned(alternating):
    task = alternating(2)
    assert task.feed("+11 MT1") == ["persist 1 on [1]", "trigger 1 unaligned", "stop persisting 1", "all in 1"]
    assert task.blocked == set()


def test_the_master_triggers_a_task_whose_channels_have_all_ended(alternating):
    task = alternating(2)
    task.feed("E@0 E@1")
    assert task.feed("M1") == ["trigger 1"]
    assert task.feed("MU2") == ["persist 2 on []", "trigger 2 unaligned", "stop persisting 2", "all in 2"]
    assert task.feed("MU2 MT2") == []


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_of_an_unaligned_checkpoint_are_told_twice(alternating):
    task = alternating(2)
    task.feed("+7 U1@0")
    task.handle(InputConsumed(bytes_processed=100))
    task.feed("+3 U1@1")
    assert task.metrics == [
        AlignmentMetrics(start_delay_ms=7, unaligned=True),
        AlignmentMetrics(start_delay_ms=7, alignment_ms=3, bytes_processed=100, unaligned=True),
    ]


def test_metrics_of_a_checkpoint_that_turned_include_the_time_it_was_aligned(alternating):
    task = alternating(2)
    task.feed("+2 T1@0")
    task.handle(InputConsumed(bytes_processed=5))
    task.feed("+8 tick +1 T1@1")
    assert task.metrics == [
        AlignmentMetrics(start_delay_ms=2, alignment_ms=8, bytes_processed=5, unaligned=True),
        AlignmentMetrics(start_delay_ms=2, alignment_ms=9, bytes_processed=5, unaligned=True),
    ]


def test_metrics_of_an_aligned_checkpoint_say_so(alternating):
    task = alternating(2)
    task.feed("+2 T1@0 +3 T1@1")
    assert task.metrics == [AlignmentMetrics(start_delay_ms=2, alignment_ms=3)]


def test_an_unaligned_barrier_over_an_edge_that_cannot_carry_one_is_aligned():
    handler = AlternatingHandler(channels=2, after_tasks_finish=True)
    forced = barrier(1, 0, unaligned=True, forced_aligned=True)
    first = handler.handle(BarrierReceived(channel=ChannelIndex(0), barrier=forced), Instant(0))
    assert first == [BlockChannel(channel=ChannelIndex(0))]
    second = handler.handle(BarrierReceived(channel=ChannelIndex(1), barrier=forced), Instant(0))
    assert [type(effect).__name__ for effect in second] == [
        "BlockChannel",
        "TriggerSnapshot",
        "ResumeChannel",
        "ResumeChannel",
    ]
