"""Which subtask starts from which state: the golden examples, and what must hold for any numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile, TaskRestore
from penstock.core.recovery.assign import assign
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind

OP = OperatorId("op")
V = VertexId("v")


def graph(parallelism: int, *, groups: int = 128, operator: OperatorId = OP) -> CheckpointGraph:
    vertex = CheckpointVertex(vertex=V, parallelism=parallelism, operators=(operator,), is_source=True)
    return CheckpointGraph(vertices=(vertex,), max_parallelism=groups)


def snapshot(states: dict[int, OperatorState], *, parallelism: int, groups: int = 128) -> CheckpointMetadata:
    operator = OperatorSnapshot(operator=OP, vertex=V, parallelism=parallelism, max_parallelism=groups, subtasks=states)
    return CheckpointMetadata(
        job=JobId("j"),
        checkpoint=CheckpointId(7),
        timestamp=Instant(0),
        kind=SnapshotKind.CHECKPOINT,
        operators={OP: operator},
    )


def keyed(first: int, last: int) -> OperatorState:
    file = StateFile(path=f"{first}-{last}", size=1, checksum=0)
    return OperatorState(operator=OP, keyed=(file,), key_groups=(first, last))


def lists(**names: tuple[bytes, ...]) -> OperatorState:
    return OperatorState(operator=OP, split_lists=names)


def paths(restore: TaskRestore) -> list[str | None]:
    return [f.path for state in restore.operators[OP] for f in state.keyed]


def split(restores: dict[TaskId, TaskRestore], name: str) -> list[tuple[bytes, ...]]:
    return [
        tuple(p for state in restores[task].operators[OP] for p in state.split_lists.get(name, ()))
        for task in sorted(restores)
    ]


def test_with_the_same_parallelism_everyone_gets_their_own():
    metadata = snapshot({0: keyed(0, 63), 1: keyed(64, 127)}, parallelism=2)
    restores = assign(metadata, graph(2))
    assert [paths(restores[TaskId(V, i)]) for i in (0, 1)] == [["0-63"], ["64-127"]]


def test_keyed_state_goes_to_every_subtask_whose_range_it_meets():
    metadata = snapshot({0: keyed(0, 63), 1: keyed(64, 127)}, parallelism=2)
    restores = assign(metadata, graph(3))
    assert [paths(restores[TaskId(V, i)]) for i in range(3)] == [["0-63"], ["0-63", "64-127"], ["64-127"]]


def test_split_lists_stay_where_they_are_with_the_same_parallelism():
    metadata = snapshot({0: lists(s=(b"a", b"b", b"c")), 1: lists(s=())}, parallelism=2)
    assert split(assign(metadata, graph(2)), "s") == [(b"a", b"b", b"c"), ()]


def test_golden_split_of_three_and_two_parts_over_three_subtasks():
    metadata = snapshot({0: lists(s=(b"h0:0", b"h0:10", b"h0:20")), 1: lists(s=(b"h1:0", b"h1:15"))}, parallelism=2)
    assert split(assign(metadata, graph(3)), "s") == [(b"h0:0", b"h0:10"), (b"h0:20", b"h1:0"), (b"h1:15",)]


def test_union_lists_go_to_everyone_even_with_the_same_parallelism():
    states = {i: OperatorState(operator=OP, union_lists={"u": (bytes([i]),)}) for i in (0, 1)}
    restores = assign(snapshot(states, parallelism=2), graph(2))
    for task in restores:
        (state,) = restores[task].operators[OP]
        assert state.union_lists == {"u": (b"\x00", b"\x01")}


def test_broadcast_copies_are_dealt_round():
    states = {i: OperatorState(operator=OP, broadcast={"b": bytes([i])}) for i in (0, 1)}
    restores = assign(snapshot(states, parallelism=2), graph(5))
    got = [restores[TaskId(V, i)].operators[OP][0].broadcast["b"] for i in range(5)]
    assert got == [b"\x00", b"\x01", b"\x00", b"\x01", b"\x00"]


def test_an_operator_that_the_checkpoint_does_not_know_is_left_out():
    new = OperatorId("new")
    metadata = snapshot({}, parallelism=2)
    assert assign(metadata, graph(2, operator=new))[TaskId(V, 0)].operators == {}


def test_state_of_a_step_that_is_gone_is_an_error_that_names_it():
    metadata = snapshot({0: lists(s=(b"a",))}, parallelism=1)
    with pytest.raises(UsageError, match="does not have: op"):
        assign(metadata, graph(1, operator=OperatorId("new")))


def test_another_number_of_key_groups_is_an_error_that_says_what_to_set():
    metadata = snapshot({0: keyed(0, 41)}, parallelism=1, groups=42)
    with pytest.raises(UsageError, match="max_parallelism=42"):
        assign(metadata, graph(1, groups=20))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_every_part_arrives_once_and_shares_are_even(sizes: list[tuple[int, int]], new: int):
    states = {
        i: lists(a=tuple(b"a%d.%d" % (i, n) for n in range(x)), b=tuple(b"b%d.%d" % (i, n) for n in range(y)))
        for i, (x, y) in enumerate(sizes)
    }
    restores = assign(snapshot(states, parallelism=len(sizes)), graph(new))
    for name in ("a", "b"):
        dealt = [part for parts in split(restores, name) for part in parts]
        assert sorted(dealt) == sorted(p for s in states.values() for p in s.split_lists[name])
    if new != len(sizes):
        both = [len(a) + len(b) for a, b in zip(split(restores, "a"), split(restores, "b"), strict=True)]
        assert max(both) - min(both) <= 1
