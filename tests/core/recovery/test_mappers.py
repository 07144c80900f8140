"""Who takes over whose data: the golden tables."""

from __future__ import annotations

import pytest

from penstock.core.recovery.mappers import ambiguous, by_range, round_robin


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (3, 2, ((0, 1), (1, 2))),
        (2, 3, ((0,), (0, 1), (1,))),
        (3, 7, ((0,), (0,), (0, 1), (1,), (1, 2), (2,), (2,))),
        (7, 3, ((0, 1, 2), (2, 3, 4), (4, 5, 6))),
        (4, 4, ((0,), (1,), (2,), (3,))),
    ],
)
def test_by_range(old, new, expected):
    assert by_range(old, new) == expected


def test_by_range_follows_the_key_groups_that_there_are():
    # Of 10 groups 3 subtasks own 0-3, 4-6, 7-9, and 4 subtasks 0-2, 3-4, 5-7, 8-9.
    assert by_range(3, 4, groups=10) == ((0,), (0, 1), (1, 2), (2,))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (10, 4, ((0, 4, 8), (1, 5, 9), (2, 6), (3, 7))),
        (2, 5, ((0,), (1,), (), (), ())),
        (3, 2, ((0, 2), (1,))),
        (2, 3, ((0,), (1,), ())),
    ],
)
def test_round_robin(old, new, expected):
    assert round_robin(old, new) == expected


def test_ambiguous_are_those_that_several_get():
    assert ambiguous(by_range(3, 2)) == {1}
    assert ambiguous(by_range(2, 3)) == {0, 1}
    assert ambiguous(round_robin(10, 4)) == frozenset()
