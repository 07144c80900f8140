"""The life of a task: every state, every event, and what a task does in each state."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.core.errors import InvariantError
from penstock.core.task.life import LifeEvent, LifeState, TaskLife, next_state

LIFE = [
    (LifeEvent.STARTED, LifeState.RUNNING),
    (LifeEvent.DATA_SEEN, LifeState.FINISHING),
    (LifeEvent.OPERATORS_THROUGH, LifeState.AWAITING_CHECKPOINT),
    (LifeEvent.LAST_CHECKPOINT_COMPLETE, LifeState.MAY_END),
    (LifeEvent.ASKED, LifeState.WANTS_TO_END),
    (LifeEvent.LET_GO, LifeState.LEAVING),
    (LifeEvent.ALL_SENT, LifeState.ENDED),
]
"""What happens to a task that comes to its end, and what becomes of it."""

IN_ORDER = [LifeState.RESTORING, *(state for _, state in LIFE)]
ALLOWED = {(before, event): after for before, (event, after) in zip(IN_ORDER, LIFE, strict=False)} | {
    (LifeState.MAY_END, LifeEvent.LET_GO): LifeState.LEAVING
}


def test_a_task_goes_through_all_states_to_its_end():
    life = TaskLife()
    assert life.state is LifeState.RESTORING
    for event, expected in LIFE:
        life.handle(event)
        assert life.state is expected


def test_the_master_may_let_a_task_go_that_has_not_asked_yet():
    assert next_state(LifeState.MAY_END, LifeEvent.LET_GO) is LifeState.LEAVING


@pytest.mark.parametrize("state", [state for state in LifeState if not state.is_over])
def test_a_task_can_be_stopped_at_any_time_before_its_end(state):
    assert next_state(state, LifeEvent.STOPPED) is LifeState.CANCELLED


@pytest.mark.parametrize("state", [LifeState.ENDED, LifeState.CANCELLED])
@pytest.mark.parametrize("event", list(LifeEvent))
def test_a_task_that_is_over_hears_nothing(state, event):
    assert next_state(state, event) is state


@pytest.mark.parametrize("state", [state for state in LifeState if not state.is_over])
def test_whatever_else_happens_to_a_task_is_a_bug_of_ours(state):
    for event in LifeEvent:
        if event is LifeEvent.STOPPED:
            continue
        if (state, event) in ALLOWED:
            assert next_state(state, event) is ALLOWED[state, event]
        else:
            with pytest.raises(InvariantError, match=f"a task that is {state.value.name} heard that {event.value}"):
                next_state(state, event)


def test_a_task_that_was_told_something_impossible_stays_where_it_is():
    life = TaskLife()
    with pytest.raises(InvariantError):
        life.handle(LifeEvent.LET_GO)
    assert life.state is LifeState.RESTORING


def test_what_a_task_has_given_up_doing_it_does_not_begin_again():
    """It reads, then only emits, then only takes part in checkpoints, then only makes steps."""
    facts = [(s.reads, s.emits, s.takes_part, s.takes_steps, not s.is_over) for s in IN_ORDER[1:]]
    assert facts[0] == (True,) * 5
    assert facts[-1] == (False,) * 5
    assert all(all(after <= before for before, after in zip(*pair, strict=True)) for pair in pairwise(facts))
    assert all(fact == tuple(sorted(fact)) for fact in facts)


def test_a_task_that_is_restored_or_cancelled_does_nothing():
    for state in (LifeState.RESTORING, LifeState.CANCELLED):
        assert (state.reads, state.emits, state.takes_part, state.takes_steps) == (False,) * 4
    assert LifeState.CANCELLED.is_over
    assert not LifeState.RESTORING.is_over


def test_the_master_is_asked_once_when_the_last_checkpoint_is_complete():
    assert [state for state in LifeState if state.may_ask] == [LifeState.MAY_END]


def test_every_state_has_a_name_of_its_own():
    assert len({state.value.name for state in LifeState}) == len(LifeState) == 9
