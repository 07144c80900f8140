"""How many key groups a job has that starts from a snapshot."""

from __future__ import annotations

import pytest
from snapshot_rig import graph_of, operator, snapshot_of, vertex

from penstock.core.errors import UsageError
from penstock.core.ids import OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.assign import assign, fitting_key_groups
from penstock.core.recovery.key_group_count import key_group_count
from penstock.core.recovery.metadata import MatchingRules


def keyed(name: str, groups: int):
    """An operator with keyed state."""
    file = StateFile(path="x", size=1, checksum=0)
    state = OperatorState(operator=OperatorId(name), keyed=(file,), key_groups=(0, groups - 1))
    return operator(name, parallelism=1, groups=groups, subtasks={0: state})


def test_the_number_of_the_snapshot_is_adopted_if_ours_was_derived():
    assert key_group_count(snapshot_of(keyed("count", 42)), graph_of(vertex("count"), groups=128), given=None) == 42


def test_a_number_that_was_given_is_not_overridden():
    with pytest.raises(UsageError, match="taken with max_parallelism 42, the job has 20") as caught:
        key_group_count(snapshot_of(keyed("count", 42)), graph_of(vertex("count"), groups=20), given=20)
    assert caught.value.hint == "set max_parallelism=42, or leave max_parallelism out"
    assert key_group_count(snapshot_of(keyed("count", 42)), graph_of(vertex("count"), groups=42), given=42) == 42


def test_a_parallelism_above_the_number_of_the_snapshot_is_refused():
    program = graph_of(vertex("count", parallelism=5))
    with pytest.raises(UsageError, match="cannot be restored with a parallelism of 5") as caught:
        key_group_count(snapshot_of(keyed("count", 4)), program, given=None)
    assert caught.value.hint == "choose a parallelism of at most 4"


def test_operators_in_one_chain_with_keyed_state_must_agree():
    metadata = snapshot_of(keyed("count", 42), operator("map", groups=64))
    with pytest.raises(
        UsageError, match="count with max_parallelism 42 and map with 64, which the program runs in one"
    ):
        key_group_count(metadata, graph_of(vertex("count", "map")), given=None)


def test_without_keyed_state_a_chain_may_disagree_and_its_first_operator_counts():
    metadata = snapshot_of(operator("read", groups=42), operator("map", groups=64))
    assert key_group_count(metadata, graph_of(vertex("read", "map")), given=None) == 42


def test_vertices_that_disagree_are_refused():
    metadata = snapshot_of(keyed("count", 42), keyed("top", 64))
    with pytest.raises(UsageError, match=r"different numbers of key groups \(count: 42, top: 64\)"):
        key_group_count(metadata, graph_of(vertex("count"), vertex("top")), given=None)


def test_a_snapshot_that_knows_no_operator_of_the_program_does_not_matter():
    assert key_group_count(snapshot_of(keyed("gone", 42)), graph_of(vertex("new"), groups=16), given=None) == 16


def test_nothing_is_dealt_out_over_another_number_of_key_groups():
    with pytest.raises(UsageError, match="max_parallelism 42"):
        assign(snapshot_of(keyed("count", 42)), graph_of(vertex("count"), groups=20))


def test_a_step_that_is_dropped_does_not_count():
    metadata = snapshot_of(keyed("count", 42), keyed("top", 64))
    graph = graph_of(vertex("count"), vertex("top"))
    assert fitting_key_groups(metadata, graph, MatchingRules(drop=("top",)), given=None) == 42
