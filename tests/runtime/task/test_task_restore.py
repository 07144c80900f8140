"""How a subtask starts from a checkpoint: what was in flight comes first, and what had finished stays so."""

from __future__ import annotations

import pytest
from task_rig import WINDOW, Rig, barrier, rows

from penstock.core.elements import MAX_WATERMARK, EndOfData, EndOfPartition, Watermark
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.messages import SubtaskState, TaskRestore
from penstock.core.task.events import CompletionNotified

FINISHED = TaskRestore(finished=True)
ENDED = TaskRestore(data_ended=True)

# --- in-flight data of another parallelism ---------------------------------------------------------------------------


def test_no_channel_is_opened_before_all_that_was_in_flight_elsewhere_is_processed():
    rig = Rig(channels=3, restore=TaskRestore(), dealt={0: [rows(1), rows(2)], 2: [rows(3)]}).run()
    assert rig.grants == []
    for _ in range(2):
        assert rig.task.step(rig.host.time, 10)
        assert rig.grants == []
    assert rig.task.step(rig.host.time, 10)
    assert rig.grants == [(0, WINDOW), (1, WINDOW), (2, WINDOW)]
    story = [values for _, *values in rig.told()]
    assert sorted(story) == [[1], [2], [3]]
    assert story.index([1]) < story.index([2])


def test_what_was_dealt_takes_no_room_in_the_window():
    rig = Rig(channels=1, restore=TaskRestore(), dealt={0: [rows(*range(200)), rows(*range(200))]}).run()
    rig.steps()
    assert rig.grants == [(0, WINDOW)]
    rig.push(0, rows(1))
    rig.steps()
    assert rig.grants == [(0, WINDOW), (0, 8)]


def test_with_something_dealt_the_own_channels_wait_too():
    rig = Rig(channels=2, restore=TaskRestore(), inputs={1: [rows(5)]}, dealt={0: [rows(1)]}).run()
    assert rig.grants == []
    assert sorted(rig.steps()) == [("process", 1), ("process", 5)]
    assert rig.grants == [(0, WINDOW), (1, WINDOW)]


def test_without_anything_dealt_channels_open_at_once():
    rig = Rig(channels=1, restore=TaskRestore(), inputs={0: [rows(5)]}).run()
    assert rig.grants == [(0, WINDOW - 8)]


# --- tasks that had ended for good -----------------------------------------------------------------------------------


def test_a_finished_source_says_that_its_data_has_ended_and_runs_no_operator():
    rig = Rig(script=[rows(1)], restore=FINISHED).run()
    assert rig.sent == [Watermark(time_us=MAX_WATERMARK), EndOfData()]
    assert rig.steps() == [("data ended",)]
    assert rig.sent == []


def test_a_finished_task_hands_the_end_on_and_runs_no_operator():
    rig = Rig(channels=2, restore=FINISHED).run()
    assert rig.grants == [(0, WINDOW), (1, WINDOW)]
    for channel in (0, 1):
        rig.push(channel, Watermark(time_us=MAX_WATERMARK), EndOfData())
    assert rig.steps() == [("data ended",)]
    assert rig.sent == [Watermark(time_us=MAX_WATERMARK), EndOfData()]


def test_a_finished_task_takes_part_in_checkpoints_without_state_and_ends_with_the_next_one():
    rig = Rig(script=[], restore=FINISHED).run()
    rig.task.trigger(barrier(5), rig.host.time)
    rig.host.background.run()
    assert rig.host.states == {5: SubtaskState(finished=True)}
    rig.task.notify(CompletionNotified(checkpoint=CheckpointId(5)), rig.host.time)
    rig.data_taken()
    assert ("wants to end",) in rig.steps()
    rig.task.let_end(rig.host.time)
    assert rig.steps() == [("finished",)]
    assert rig.sent[-2:] == [barrier(5), EndOfPartition()]


def test_data_for_a_finished_task_is_a_bug_of_ours():
    rig = Rig(channels=1, restore=FINISHED).run()
    rig.push(0, rows(1))
    with pytest.raises(InvariantError, match="1 records came to a task that had ended for good"):
        rig.steps()


# --- tasks that had seen all their data ------------------------------------------------------------------------------


def test_a_source_that_had_ended_is_not_read_again_and_its_operators_do_not_finish_again():
    rig = Rig(script=[rows(1)], restore=ENDED).run()
    assert rig.steps() == [("data ended",)]
    assert rig.sent == [Watermark(time_us=MAX_WATERMARK), EndOfData()]
    assert rig.script


def test_a_task_that_had_seen_all_its_data_does_not_finish_again_but_reports_its_state():
    rig = Rig(channels=1, restore=ENDED).run()
    rig.push(0, EndOfData(), barrier(3))
    assert rig.steps() == [("data ended",), ("snapshot", 3, 0)]
    rig.host.background.run()
    state = rig.host.states[CheckpointId(3)]
    assert state is not None
    assert state.finished
    assert state.operators[0].broadcast == {"sum": b"0"}
