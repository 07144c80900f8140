"""Long batches of slow row functions: how they are cut, and that nothing waits behind more than a slice of one."""

from __future__ import annotations

import pytest
from task_rig import Rig, barrier, rows

from penstock.core.elements import Barrier, CheckpointOptions
from penstock.core.ids import CheckpointId, Instant
from penstock.runtime.task.slices import FIRST_ROWS, MOST_ROWS, SLICE_MS, Slices


def learned(ms_per_row: float) -> Slices:
    slices = Slices()
    for _ in range(30):
        slices.took(slices.rows, slices.rows * ms_per_row)
    return slices


@pytest.mark.parametrize(
    ("ms_per_row", "wanted"),
    [(0.001, SLICE_MS * 1_000), (0.1, SLICE_MS * 10), (SLICE_MS, 1), (100.0, 1), (1e-9, MOST_ROWS)],
)
def test_a_slice_becomes_as_long_as_it_should_take(ms_per_row, wanted):
    assert learned(ms_per_row).rows == pytest.approx(wanted, abs=1)


def test_one_slow_row_halves_a_slice_and_one_fast_slice_doubles_it():
    slices = learned(0.1)
    before = slices.rows
    slices.took(before, 10_000.0)
    assert slices.rows == before // 2
    slices.took(before // 2, 0.001)
    assert slices.rows == before // 2 * 2


def test_the_short_end_of_a_batch_proves_nothing():
    slices = learned(0.1)
    before = slices.rows
    slices.took(before // 2 - 1, 0.0001)
    slices.took(before, 0.0)
    assert slices.rows == before


def test_the_short_end_of_a_batch_that_is_slow_halves_a_slice():
    slices = learned(0.1)
    before = slices.rows
    slices.took(before // 2 - 1, SLICE_MS * 2)
    assert slices.rows == before // 2


def test_a_cut_keeps_all_rows_in_order_and_shares_the_cost():
    slices = Slices()
    batch = rows(*range(100))
    first, rest, left = slices.cut(batch, 800)
    assert first.column(0).to_pylist() + rest.column(0).to_pylist() == list(range(100))
    assert first.num_rows == FIRST_ROWS
    assert left == 800 - FIRST_ROWS * 8


def test_a_barrier_of_another_channel_waits_for_no_more_than_a_slice():
    """One channel has a long batch of rows that take a millisecond each; the only other one brings barriers."""
    rig = Rig(channels=2, row_ms=1).run()
    rig.push(0, rows(*[1] * 100))
    for _ in range(5):
        rig.task.step(rig.host.time, 10)
    rig.push(1, barrier(1))
    begun = rig.host.time
    while not rig.task.gate.channels[1].blocked:
        assert rig.task.step(rig.host.time, 10)
    assert rig.host.time - begun <= SLICE_MS
    assert rig.task.gate.channels[0].queue


def test_an_overtaking_barrier_comes_before_the_next_slice_and_the_rest_of_the_batch_is_in_flight():
    rig = Rig(channels=1, row_ms=1, unaligned=True).run()
    rig.push(0, rows(*[1] * 100))
    rig.task.step(rig.host.time, 10)
    assert rig.told() == [("process", *[1] * FIRST_ROWS)]
    overtaking = CheckpointOptions(unaligned=True)
    rig.push(0, Barrier(checkpoint=CheckpointId(1), timestamp=Instant(0), options=overtaking))
    rig.task.step(rig.host.time, 10)
    assert rig.told() == [("snapshot", 1, FIRST_ROWS)]
    ((_, saved),) = rig.host.collected[1].inputs.items()
    assert sum(batch.num_rows for batch in saved) == 100 - FIRST_ROWS
