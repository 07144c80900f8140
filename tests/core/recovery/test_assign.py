"""Which subtask starts from which state: the golden examples, and what must hold for any numbers."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.graph import CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile, TaskRestore
from penstock.core.recovery.assign import assign, encode_restore
from penstock.core.recovery.metadata import (
    CheckpointMetadata,
    MatchingRules,
    OperatorSnapshot,
    SnapshotKind,
    Unmatched,
)

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
    restores = assign(metadata, graph(2)).tasks
    assert [paths(restores[TaskId(V, i)]) for i in (0, 1)] == [["0-63"], ["64-127"]]


def test_keyed_state_goes_to_every_subtask_whose_range_it_meets():
    metadata = snapshot({0: keyed(0, 63), 1: keyed(64, 127)}, parallelism=2)
    restores = assign(metadata, graph(3)).tasks
    assert [paths(restores[TaskId(V, i)]) for i in range(3)] == [["0-63"], ["0-63", "64-127"], ["64-127"]]


def test_raw_keyed_state_goes_where_its_key_groups_go_with_other_state_and_without():
    raw = StateFile(path="raw", size=1, checksum=0)
    both = msgspec.structs.replace(keyed(0, 63), raw=(raw,))
    alone = OperatorState(operator=OP, raw=(raw,), key_groups=(64, 127))
    assert not alone.is_empty
    assert (both.size, alone.size) == (keyed(0, 63).size + 1, 1)
    restores = assign(snapshot({0: both, 1: alone}, parallelism=2), graph(4)).tasks
    found = [[(len(s.keyed), len(s.raw_keyed)) for s in restores[task].operators[OP]] for task in sorted(restores)]
    assert found == [[(1, 1)], [(1, 1)], [(0, 1)], [(0, 1)]]


def test_how_far_timers_fire_at_the_end_goes_with_the_timers():
    state = msgspec.structs.replace(keyed(0, 63), last_timer_us=17)
    restores = assign(snapshot({0: state, 1: keyed(64, 127)}, parallelism=2), graph(4)).tasks
    found = [[part.last_timer_us for part in restores[task].operators[OP]] for task in sorted(restores)]
    assert found == [[17], [17], [msgspec.UNSET], [msgspec.UNSET]]


def test_split_lists_stay_where_they_are_with_the_same_parallelism():
    metadata = snapshot({0: lists(s=(b"a", b"b", b"c")), 1: lists(s=())}, parallelism=2)
    assert split(assign(metadata, graph(2)).tasks, "s") == [(b"a", b"b", b"c"), ()]


def test_golden_split_of_three_and_two_parts_over_three_subtasks():
    metadata = snapshot({0: lists(s=(b"h0:0", b"h0:10", b"h0:20")), 1: lists(s=(b"h1:0", b"h1:15"))}, parallelism=2)
    assert split(assign(metadata, graph(3)).tasks, "s") == [(b"h0:0", b"h0:10"), (b"h0:20", b"h1:0"), (b"h1:15",)]


def test_union_lists_go_to_everyone_even_with_the_same_parallelism():
    states = {i: OperatorState(operator=OP, union_lists={"u": (bytes([i]),)}) for i in (0, 1)}
    restores = assign(snapshot(states, parallelism=2), graph(2)).tasks
    for task in restores:
        (state,) = restores[task].operators[OP]
        assert state.union_lists == {"u": (b"\x00", b"\x01")}


def test_broadcast_copies_are_dealt_round():
    states = {i: OperatorState(operator=OP, broadcast={"b": bytes([i])}) for i in (0, 1)}
    restores = assign(snapshot(states, parallelism=2), graph(5)).tasks
    got = [restores[TaskId(V, i)].operators[OP][0].broadcast["b"] for i in range(5)]
    assert got == [b"\x00", b"\x01", b"\x00", b"\x01", b"\x00"]


def test_each_broadcast_state_is_dealt_by_its_own_copies():
    """A state that was added to a savepoint has a copy in the first subtask only; the other state has one in each."""
    states = {
        0: OperatorState(operator=OP, broadcast={"b": b"b0", "added": b"a"}),
        1: OperatorState(operator=OP, broadcast={"b": b"b1"}),
    }
    for parallelism in (1, 2, 3, 5):
        restores = assign(snapshot(states, parallelism=2), graph(parallelism)).tasks
        got = [restores[TaskId(V, i)].operators[OP][0].broadcast for i in range(parallelism)]
        assert got == [{"b": f"b{i % 2}".encode(), "added": b"a"} for i in range(parallelism)]


def test_lists_that_only_some_subtasks_have_are_dealt_in_whole():
    states = {
        0: OperatorState(operator=OP, split_lists={"s": (b"a", b"b")}, union_lists={"u": (b"u",)}),
        1: OperatorState(operator=OP, split_lists={"t": (b"c",)}, union_lists={"v": (b"v",)}),
    }
    for parallelism in (1, 2, 3):
        restores = assign(snapshot(states, parallelism=2), graph(parallelism)).tasks
        shares = [restores[TaskId(V, i)].operators[OP][0] for i in range(parallelism)]
        assert all(share.union_lists == {"u": (b"u",), "v": (b"v",)} for share in shares)
        assert [part for share in shares for part in share.split_lists.get("s", ())] == [b"a", b"b"]
        assert [part for share in shares for part in share.split_lists.get("t", ())] == [b"c"]


def test_an_operator_that_the_checkpoint_does_not_know_is_left_out():
    new = OperatorId("new")
    metadata = snapshot({}, parallelism=2)
    assert assign(metadata, graph(2, operator=new)).tasks[TaskId(V, 0)].operators == {}


def test_operator_coordinators_get_their_state_if_their_operator_does():
    metadata = msgspec.structs.replace(
        snapshot({}, parallelism=2), coordinators={OP: b"position", OperatorId("gone"): b"of nobody"}
    )
    assert assign(metadata, graph(3)).coordinators == {OP: b"position"}
    ignoring = MatchingRules(unmatched=Unmatched.IGNORE)
    assert assign(metadata, graph(2, operator=OperatorId("new")), ignoring).coordinators == {}


def test_the_next_name_is_dealt_out_from_where_the_one_before_stopped():
    metadata = snapshot({0: lists(a=(b"1",), b=(b"2",)), 1: lists(a=(), b=())}, parallelism=2)
    restores = assign(metadata, graph(3)).tasks
    assert split(restores, "a") == [(b"1",), (), ()]
    assert split(restores, "b") == [(), (b"2",), ()]


def test_a_state_without_a_range_is_given_to_everybody():
    state = OperatorState(operator=OP, keyed=(StateFile(path="x", size=1, checksum=0),))
    restores = assign(snapshot({0: state}, parallelism=1), graph(2)).tasks
    assert [paths(restores[TaskId(V, i)]) for i in range(2)] == [["x"], ["x"]]


@pytest.mark.parametrize(("new", "rescaled"), [(2, False), (3, True)])
def test_a_task_is_told_whether_the_parallelism_was_another(new, rescaled):
    restores = assign(snapshot({}, parallelism=2), graph(new)).tasks
    assert all(restore.rescaled is rescaled for restore in restores.values())


def test_a_share_can_be_read_back_as_it_was_sent():
    restore = TaskRestore(operators={OP: (lists(s=(b"a",)),)}, data_ended=True)
    assert msgspec.msgpack.decode(encode_restore(restore), type=TaskRestore) == restore
