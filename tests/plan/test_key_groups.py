"""Key groups: each belongs to exactly one subtask, and subtasks own ranges of nearly equal size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_group_owners import owner_of

from penstock.plan.key_groups import default_max_parallelism, range_of


@pytest.mark.parametrize(
    ("parallelism", "groups"), [(1, 128), (85, 128), (86, 256), (100, 256), (20_000, 32_768), (30_000, 32_768)]
)
def test_the_number_of_groups_is_a_power_of_two_above_one_and_a_half_times_the_parallelism(
    parallelism: int, groups: int
) -> None:
    assert default_max_parallelism(parallelism) == groups


@given(st.integers(1, 600).flatmap(lambda groups: st.tuples(st.integers(1, groups), st.just(groups))))
def test_ranges_cover_all_groups_once_and_agree_with_the_owner(sizes: tuple[int, int]) -> None:
    parallelism, groups = sizes
    ranges = [range_of(subtask, parallelism=parallelism, groups=groups) for subtask in range(parallelism)]
    covered = [group for first, last in ranges for group in range(first, last + 1)]
    assert covered == list(range(groups))
    owners = [owner_of(group, parallelism=parallelism, groups=groups) for group in range(groups)]
    assert owners == [subtask for subtask, (first, last) in enumerate(ranges) for _ in range(first, last + 1)]
    lengths = [last - first + 1 for first, last in ranges]
    assert max(lengths) - min(lengths) <= 1
