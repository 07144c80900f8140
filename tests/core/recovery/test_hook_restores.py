"""Hooks on their way back: whose state is whose, and when tasks may be deployed."""

from __future__ import annotations

import pytest

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId
from penstock.core.recovery.assign import assign
from penstock.core.recovery.hook_states import HookRestores, hook_states
from penstock.core.recovery.metadata import CheckpointMetadata, MatchingRules, SnapshotKind, Unmatched

ONE, TWO = Epoch(1), Epoch(2)
SNAPSHOT = CheckpointMetadata(
    job=JobId("job"),
    checkpoint=CheckpointId(7),
    timestamp=Instant(0),
    kind=SnapshotKind.CHECKPOINT,
    operators={},
    hooks={"outside": b"7", "gone": b"x"},
)


def graph(*hooks: str) -> CheckpointGraph:
    return CheckpointGraph(vertices=(), hooks=hooks)


def test_each_hook_gets_its_own_state_and_a_new_one_none():
    assert hook_states(SNAPSHOT, graph("new", "gone", "outside"), MatchingRules()) == {"gone": b"x", "outside": b"7"}


def test_state_of_a_hook_that_the_program_does_not_have_is_refused():
    with pytest.raises(UsageError, match="state of hooks that the program does not have: gone"):
        hook_states(SNAPSHOT, graph("outside"), MatchingRules())


@pytest.mark.parametrize("rules", [MatchingRules(drop=("gone",)), MatchingRules(unmatched=Unmatched.IGNORE)])
def test_unless_the_user_knows_it(rules):
    assert assign(SNAPSHOT, graph("outside"), rules).hooks == {"outside": b"7"}


def test_a_hook_whose_state_is_dropped_starts_without():
    assert hook_states(SNAPSHOT, graph("outside", "gone"), MatchingRules(drop=("outside",))) == {"gone": b"x"}


def test_what_is_to_be_dropped_must_be_there():
    with pytest.raises(UsageError, match="the state of nobody is to be dropped"):
        assign(SNAPSHOT, graph("outside"), MatchingRules(drop=("nobody",)))


# --- who is missing --------------------------------------------------------------------------------------------------


def test_all_hooks_must_have_come_back():
    restores = HookRestores(100)
    restores.begin(("a", "b"), ONE, Instant(1_000))
    assert not restores.restored("a")
    assert restores.is_wanted("b", ONE)
    assert restores.restored("b")
    assert restores.next_deadline() is None


def test_an_answer_counts_once_and_for_its_own_attempt():
    restores = HookRestores(100)
    restores.begin(("a", "b"), ONE, Instant(0))
    restores.restored("a")
    assert not restores.is_wanted("a", ONE)
    restores.begin(("a", "b"), TWO, Instant(0))
    assert not restores.is_wanted("b", ONE)
    assert restores.is_wanted("a", TWO)


def test_who_is_late_is_told_once_and_not_waited_for_any_more():
    restores = HookRestores(100)
    assert restores.late(Instant(5_000)) == []
    restores.begin(("a", "b", "c"), ONE, Instant(1_000))
    restores.restored("b")
    assert restores.next_deadline() == 1_100
    assert restores.late(Instant(1_099)) == []
    assert restores.late(Instant(1_100)) == ["a", "c"]
    assert restores.late(Instant(1_200)) == []
    assert not restores.is_wanted("a", ONE)


def test_an_attempt_that_has_ended_waits_for_nobody():
    restores = HookRestores(100)
    restores.begin(("a",), ONE, Instant(0))
    restores.give_up()
    assert not restores.is_wanted("a", ONE)
    assert restores.late(Instant(1_000)) == []
