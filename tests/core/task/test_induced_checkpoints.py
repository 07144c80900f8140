"""A source whose data says where a checkpoint begins: trigger and mark, in either order, and what comes of the rest."""

from __future__ import annotations

import pytest

from penstock.core.elements import Barrier, CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.checkpoints import MOST_REMEMBERED_ABORTS
from penstock.core.task.induced import InducedCheckpoints


def barrier(checkpoint: int) -> Barrier:
    return Barrier(checkpoint=CheckpointId(checkpoint), timestamp=Instant(0), options=CheckpointOptions())


def mark(checkpoint: int) -> CheckpointId:
    return CheckpointId(checkpoint)


@pytest.fixture
def source() -> InducedCheckpoints:
    return InducedCheckpoints(CheckpointId(5))


def test_a_trigger_waits_for_its_mark_while_the_source_reads_on(source):
    assert source.trigger(barrier(5)) is None
    assert not source.awaits_trigger
    assert source.reach(mark(5)) == barrier(5)
    assert not source.awaits_trigger


def test_at_a_mark_without_a_trigger_nothing_is_read_until_the_trigger_is_here(source):
    assert source.reach(mark(5)) is None
    assert source.awaits_trigger
    assert source.trigger(barrier(5)) == barrier(5)
    assert not source.awaits_trigger


def test_behind_a_mark_that_waits_no_other_can_be_read(source):
    source.reach(mark(5))
    with pytest.raises(InvariantError, match="read on to the mark of checkpoint 6"):
        source.reach(mark(6))


def test_marks_of_earlier_attempts_are_passed_by(source):
    assert source.reach(mark(4)) is None
    assert not source.awaits_trigger
    assert source.trigger(barrier(4)) is None
    assert source.end() == []


def test_a_checkpoint_that_is_aborted_between_its_trigger_and_its_mark_begins_at_once(source):
    source.trigger(barrier(5))
    assert source.abort(mark(5)) == barrier(5)
    assert source.abort(mark(5)) is None
    assert source.reach(mark(5)) is None
    assert not source.awaits_trigger


def test_a_mark_is_taken_once(source):
    source.trigger(barrier(5))
    source.reach(mark(5))
    assert source.reach(mark(5)) is None
    assert not source.awaits_trigger
    assert source.trigger(barrier(5)) is None


def test_overlapping_checkpoints_begin_at_their_own_marks(source):
    source.trigger(barrier(5))
    source.trigger(barrier(6))
    assert source.reach(mark(5)) == barrier(5)
    assert source.reach(mark(6)) == barrier(6)


def test_a_mark_ahead_of_others_leaves_them_behind(source):
    """Barriers of a channel must come in order: one that was passed over is not taken afterwards."""
    source.trigger(barrier(5))
    source.trigger(barrier(6))
    assert source.reach(mark(6)) == barrier(6)
    assert source.reach(mark(5)) is None
    assert not source.awaits_trigger
    assert source.end() == []


def test_a_mark_whose_trigger_was_passed_over_is_not_waited_at(source):
    source.trigger(barrier(6))
    assert source.reach(mark(5)) is None
    assert not source.awaits_trigger
    assert source.reach(mark(6)) == barrier(6)


def test_a_newer_trigger_frees_a_source_that_waits_for_an_older_one(source):
    source.reach(mark(5))
    assert source.trigger(barrier(6)) is None
    assert not source.awaits_trigger
    assert source.reach(mark(6)) == barrier(6)


def test_a_source_ahead_of_the_triggers_waits_for_its_own(source):
    """1. The mark of 6 comes, since that of 5 was lost.  2. The trigger of 5 comes, and then that of 6."""
    source.reach(mark(6))
    assert source.trigger(barrier(5)) is None
    assert source.awaits_trigger
    assert source.trigger(barrier(6)) == barrier(6)
    assert source.end() == []


def test_an_abort_frees_a_source_that_waits_for_its_trigger(source):
    source.reach(mark(5))
    source.abort(CheckpointId(5))
    assert not source.awaits_trigger
    assert source.reach(mark(6)) is None
    source.abort(CheckpointId(5))
    assert source.awaits_trigger


def test_the_mark_of_an_aborted_checkpoint_is_passed_by_whether_it_was_triggered_or_not(source):
    source.trigger(barrier(5))
    source.abort(CheckpointId(5))
    source.abort(CheckpointId(6))
    for checkpoint in (5, 6):
        assert source.reach(mark(checkpoint)) is None
        assert not source.awaits_trigger
    assert source.reach(mark(7)) is None
    assert source.awaits_trigger


def test_aborted_checkpoints_are_remembered_until_a_newer_one_is_taken_and_never_too_many(source):
    for checkpoint in range(5, 6 + MOST_REMEMBERED_ABORTS):
        source.abort(CheckpointId(checkpoint))
    newest = 5 + MOST_REMEMBERED_ABORTS
    assert source.reach(mark(newest)) is None
    assert not source.awaits_trigger
    # The oldest is forgotten: its mark has the source wait for the next trigger.
    source.reach(mark(5))
    assert source.awaits_trigger
    source.trigger(barrier(newest + 1))
    assert source.reach(mark(newest + 1)) == barrier(newest + 1)
    assert source.reach(mark(6)) is None
    assert not source.awaits_trigger


def test_at_the_end_of_the_data_all_that_were_triggered_begin_in_order(source):
    source.trigger(barrier(5))
    source.trigger(barrier(6))
    assert source.end() == [barrier(5), barrier(6)]
    assert source.end() == []


def test_the_end_of_the_data_waits_for_no_trigger(source):
    source.reach(mark(5))
    assert source.end() == []
    assert not source.awaits_trigger


def test_an_abort_of_a_checkpoint_that_was_taken_changes_nothing(source):
    source.trigger(barrier(5))
    source.reach(mark(5))
    source.reach(mark(6))
    source.abort(CheckpointId(5))
    assert source.awaits_trigger
    assert source.trigger(barrier(6)) == barrier(6)
