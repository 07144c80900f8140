"""What the comparison of shown rows with expected rows finds."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.sim.comparison import Standard, check_parts
from penstock.sim.window_kinds import WindowKind
from penstock.sim.world import World

WINDOW = (0, 0, 50_000)
WANTED = {"sink": Counter({(*WINDOW, 12, 922): 1})}


@pytest.mark.parametrize(
    ("parts", "complete", "repeats", "is_right"),
    [
        ([(10, 922), (2, 727)], True, False, True),
        ([(2, 727)], True, False, False),
        ([], True, False, False),
        ([(12, 727)], True, False, False),
        ([(2, 727)], False, False, True),
        ([], False, False, True),
        ([(12, 922), (2, 727)], False, False, False),
        ([(2, 999)], False, False, False),
        ([(12, 922), (2, 727)], True, True, True),
        ([(2, 727)], True, True, False),
        ([(12, 999)], True, True, False),
    ],
)
def test_all_parts_of_a_window_together_have_its_records(parts, complete, repeats, is_right):
    world = World(1, keep_log=False)
    shown = {"sink": Counter((*WINDOW, count, top) for count, top in parts)}
    check_parts(world, shown, WANTED, Standard(complete=complete, repeats=repeats), WindowKind.TUMBLING)
    assert (not world.violations) is is_right


def test_a_window_that_nothing_was_read_for_is_wrong_even_if_rows_may_be_missing():
    world = World(1, keep_log=False)
    shown = {"sink": Counter({(1, 0, 50_000, 1, 1): 1})}
    check_parts(world, shown, WANTED, Standard(complete=False), WindowKind.TUMBLING)
    assert world.violations


@pytest.mark.parametrize(("count", "is_right"), [(5, True), (4, False), (6, False)])
def test_all_sessions_of_a_key_together_have_its_records_whatever_their_bounds(count, is_right):
    world = World(1, keep_log=False)
    shown = {"sink": Counter([(0, 0, 20_000, 7, 922), (0, 30_000, 50_000, count, 3)])}
    check_parts(world, shown, WANTED, Standard(complete=True), WindowKind.SESSION)
    assert (not world.violations) is is_right
