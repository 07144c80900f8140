"""Whose state is whose, and what becomes of the rest."""

from __future__ import annotations

import pytest
from snapshot_rig import graph_of, operator, snapshot_of, vertex

from penstock.core.errors import UsageError
from penstock.core.graph import OperatorLabel
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.recovery.assign import assign
from penstock.core.recovery.matching import match, most_like
from penstock.core.recovery.metadata import NO_SURPRISES, MatchingRules, Unmatched

IGNORE = MatchingRules(unmatched=Unmatched.IGNORE)


def test_state_is_found_by_the_operator_id_wherever_the_operator_runs():
    metadata = snapshot_of(operator("read"), operator("count"))
    tasks = assign(metadata, graph_of(vertex("read", "new", "count"))).tasks
    share = tasks[TaskId(VertexId("read"), 0)].operators
    assert sorted(share) == ["count", "read"]


def test_an_operator_that_the_snapshot_does_not_know_starts_afresh():
    matched = match(snapshot_of(operator("read")), graph_of(vertex("read", "new")), NO_SURPRISES)
    assert (matched.restored, matched.fresh) == (("read",), ("new",))


def test_state_that_nobody_wants_is_refused_with_what_it_is_most_like():
    metadata = snapshot_of(operator("auctions", label=OperatorLabel(name="auctions", kind="window")), operator("gone"))
    program = graph_of(vertex("auction-totals", "zzz", kinds={"auction-totals": "window", "zzz": "map"}))
    with pytest.raises(UsageError) as caught:
        assign(metadata, program)
    text = str(caught.value)
    assert "state of 2 steps that the program does not have" in text
    assert "auctions (window), 4 bytes, most like the new step auction-totals (window)" in text
    assert "gone, 4 bytes" in text
    for way in ("name='auctions'", ".renamed('auctions', ...)", "drop=['auctions', 'gone']", "unmatched='ignore'"):
        assert way in text


def test_an_operator_without_state_may_go():
    assert assign(snapshot_of(operator("gone", state=False)), graph_of(vertex("read"))).matched.left_over == ()


def test_the_state_of_an_operator_coordinator_is_state_too():
    metadata = snapshot_of(operator("gone", state=False), coordinators={OperatorId("gone"): b"splits"})
    with pytest.raises(UsageError, match="gone"):
        assign(metadata, graph_of(vertex("read")))


def test_state_that_nobody_wants_can_be_left_over():
    assert match(snapshot_of(operator("gone")), graph_of(vertex("read")), IGNORE).left_over == ("gone",)


def test_a_step_can_be_dropped_by_name_and_the_others_must_still_fit():
    metadata = snapshot_of(operator("gone"), operator("lost"))
    drop = MatchingRules(drop=(OperatorId("gone"),))
    with pytest.raises(UsageError, match="state of 1 step that the program does not have: lost"):
        match(metadata, graph_of(vertex("read")), drop)
    both = MatchingRules(drop=(OperatorId("gone"), OperatorId("lost")))
    assert match(metadata, graph_of(vertex("read")), both).dropped == ("gone", "lost")


def test_a_step_can_be_dropped_by_the_name_that_people_gave_it():
    metadata = snapshot_of(operator("totals-3f2a", label=OperatorLabel(name="Totals!")))
    assert match(metadata, graph_of(vertex("read")), MatchingRules(drop=("Totals!",))).dropped == ("totals-3f2a",)


def test_a_step_of_the_program_whose_state_is_dropped_starts_afresh():
    rules = MatchingRules(drop=(OperatorId("read"),))
    assignment = assign(snapshot_of(operator("read")), graph_of(vertex("read")), rules)
    assert assignment.matched.fresh == ("read",)
    assert all(task.operators == {} for task in assignment.tasks.values())


def test_dropping_what_is_not_there_is_an_error_that_says_what_is():
    with pytest.raises(UsageError, match="has no such step") as caught:
        match(snapshot_of(operator("read")), graph_of(vertex("read")), MatchingRules(drop=(OperatorId("reed"),)))
    assert caught.value.hint == "choose from the steps of checkpoint 7: read"


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ({}, None),
        ({"counts": ""}, "counts"),
        ({"zzz": ""}, None),
        ({"zzz": "window"}, "zzz"),
        ({"counts": "write"}, None),
        ({"zzz": "window", "counter": "window"}, "counter"),
        ({"counter": "window", "zzz": "window"}, "counter"),
    ],
    ids=["none", "name alike", "nothing alike", "same kind", "another kind", "better one later", "better one first"],
)
def test_what_an_operator_is_most_like(candidates, expected):
    gone = operator("count", label=OperatorLabel(name="count", kind="window"))
    labels = {OperatorId(o): OperatorLabel(name=o, kind=kind) for o, kind in candidates.items()}
    assert most_like(gone, labels) == expected


def test_names_tell_more_than_ids_where_the_snapshot_has_none():
    gone = operator("bids.window-auction", label=OperatorLabel())
    labels = {OperatorId("x"): OperatorLabel(name="bids.window")}
    assert most_like(gone, labels) == "x"
