"""What must hold of any deal, over many random ones."""

from __future__ import annotations

import random

from penstock.core.ids import OperatorId, VertexId
from penstock.core.key_groups import range_of
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery.mappers import ambiguous, by_range, round_robin
from penstock.core.recovery.metadata import OperatorSnapshot
from penstock.core.recovery.operator_state import deal

RUNS = 10_000
OP = OperatorId("op")


def snapshot_of(states: dict[int, OperatorState], parallelism: int, groups: int = 128) -> OperatorSnapshot:
    return OperatorSnapshot(
        operator=OP, vertex=VertexId("v"), parallelism=parallelism, max_parallelism=groups, subtasks=states
    )


def test_split_union_and_broadcast_state_at_any_parallelism():
    draw = random.Random(36)
    for _ in range(RUNS):
        old, new = draw.randint(1, 9), draw.randint(1, 9)
        names = [f"s{i}" for i in range(draw.randint(0, 3))]
        states = {}
        for subtask in range(old):
            split = {n: tuple(f"{n}.{subtask}.{i}".encode() for i in range(draw.randint(0, 5))) for n in names}
            union = {"u": tuple(f"u.{subtask}.{i}".encode() for i in range(draw.randint(0, 3)))}
            broadcast = {"b": bytes([subtask])}
            states[subtask] = OperatorState(operator=OP, split_lists=split, union_lists=union, broadcast=broadcast)
        shares = [states_of[0] for states_of in deal(snapshot_of(states, old), new)]
        for name in names:
            before = [part for subtask in range(old) for part in states[subtask].split_lists[name]]
            assert [part for share in shares for part in share.split_lists.get(name, ())] == before
        if old != new:
            counts = [sum(map(len, share.split_lists.values())) for share in shares]
            assert max(counts) - min(counts) <= 1
        everything = tuple(part for subtask in range(old) for part in states[subtask].union_lists["u"])
        assert all(share.union_lists["u"] == everything for share in shares)
        copies = [sum(share.broadcast["b"] == bytes([i]) for share in shares) for i in range(old)]
        assert copies == [new // old + (i < new % old) for i in range(old)]


def test_every_key_group_goes_from_its_owner_of_then_to_its_owner_of_today():
    draw = random.Random(37)
    for _ in range(RUNS // 10):
        groups = draw.randint(1, 200)
        old, new = draw.randint(1, min(groups, 12)), draw.randint(1, min(groups, 12))
        ranges = [range_of(i, parallelism=old, groups=groups) for i in range(old)]
        states = {
            i: OperatorState(operator=OP, keyed=(StateFile(path=str(i), size=1, checksum=0),), key_groups=ranges[i])
            for i in range(old)
        }
        shares = deal(snapshot_of(states, old, groups), new)
        mapping = by_range(old, new, groups=groups)
        for subtask, share in enumerate(shares):
            got = tuple(int(file.path or "") for state in share for file in state.keyed)
            assert got == mapping[subtask]
            first, last = range_of(subtask, parallelism=new, groups=groups)
            owners = {g * old // groups for g in range(first, last + 1)}
            assert set(got) == owners


def test_in_turn_each_of_then_goes_to_one_of_today_and_none_has_two_more_than_another():
    draw = random.Random(38)
    for _ in range(RUNS // 10):
        old, new = draw.randint(1, 40), draw.randint(1, 40)
        mapping = round_robin(old, new)
        assert sorted(i for olds in mapping for i in olds) == list(range(old))
        assert max(map(len, mapping)) - min(map(len, mapping)) <= 1
        assert ambiguous(mapping) == frozenset()
