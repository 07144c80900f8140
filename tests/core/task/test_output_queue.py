"""The queue of an output channel: who overtakes whom, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import Barrier, CheckpointOptions, EndOfData, Watermark
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.task.output import OutputQueue


def barrier(number: int, **options: Any) -> Barrier:
    return Barrier(checkpoint=CheckpointId(number), timestamp=Instant(0), options=CheckpointOptions(**options))


def c(number: int) -> CheckpointId:
    return CheckpointId(number)


def queue(*items: object) -> OutputQueue[int]:
    made: OutputQueue[int] = OutputQueue()
    for item in items:
        if isinstance(item, int):
            made.add_data(item, item)
        else:
            made.add_element(item)  # type: ignore[arg-type]
    return made


def drain(made: OutputQueue[int]) -> list[object]:
    out: list[object] = []
    while (head := made.peek()) is not None:
        out.append(head[0])
        made.pop()
    return out


EVENT = Watermark(time_us=3)


def test_s20_an_unaligned_barrier_overtakes_all_and_saves_the_data_but_no_event():
    made = queue(1, 2, EVENT, 4)
    assert made.add_barrier(barrier(1, unaligned=True)) == [1, 2, 4]
    assert drain(made) == [barrier(1, unaligned=True), 1, 2, EVENT, 4]


def test_an_aligned_barrier_waits_in_its_turn_and_saves_nothing():
    made = queue(1, 2)
    assert made.add_barrier(barrier(1)) == []
    made.add_data(3, 3)
    assert drain(made) == [1, 2, barrier(1), 3]


def test_a_barrier_forced_to_align_waits_in_its_turn():
    made = queue(1)
    assert made.add_barrier(barrier(1, unaligned=True, forced_aligned=True)) == []
    assert drain(made)[0] == 1


def test_a_barrier_that_leaves_in_time_has_overtaken_nothing():
    made = queue(1)
    assert made.add_barrier(barrier(1, aligned_timeout_ms=10)) == []
    assert made.waiting == 1
    assert drain(made) == [1, barrier(1, aligned_timeout_ms=10)]
    assert not made.waiting
    assert made.time_out(c(1)) is None


def test_a_barrier_that_times_out_goes_to_the_front_as_unaligned_and_saves_what_was_ahead_of_it():
    made = queue(1, EVENT, 2)
    made.add_barrier(barrier(1, aligned_timeout_ms=10))
    made.add_data(5, 5)
    assert made.time_out(c(1)) == [1, 2]
    assert drain(made) == [barrier(1, unaligned=True), 1, EVENT, 2, 5]


def test_barriers_of_other_checkpoints_ahead_are_not_data():
    made = queue(1)
    made.add_barrier(barrier(1))
    made.add_data(2, 2)
    made.add_barrier(barrier(2, aligned_timeout_ms=10))
    assert made.time_out(c(2)) == [1, 2]


def test_a_newer_barrier_ends_the_wait_of_an_older_one():
    made = queue(1)
    made.add_barrier(barrier(1, aligned_timeout_ms=10))
    made.add_barrier(barrier(2, aligned_timeout_ms=10))
    assert made.time_out(c(1)) is None
    assert made.waiting == 2


def test_priority_elements_keep_their_own_order():
    made = queue(1)
    made.add_barrier(barrier(1, unaligned=True))
    made.add_barrier(barrier(2, unaligned=True))
    assert drain(made) == [barrier(1, unaligned=True), barrier(2, unaligned=True), 1]


def test_length_and_bytes_follow_the_queue():
    made = queue(1, 2, EndOfData())
    made.add_barrier(barrier(1, unaligned=True))
    assert (len(made), made.queued_bytes) == (4, 3)
    drain(made)
    assert (len(made), made.queued_bytes) == (0, 0)
    assert made.peek() is None


def test_of_watermarks_that_follow_each_other_only_the_last_waits():
    made = queue(1, Watermark(time_us=5), Watermark(time_us=4, idle=True), 2, Watermark(time_us=9))
    assert drain(made) == [1, Watermark(time_us=5, idle=True), 2, Watermark(time_us=9)]


def test_data_must_cost_something():
    with pytest.raises(InvariantError, match="data must cost at least 1"):
        queue().add_data(1, 0)


def test_a_barrier_that_is_not_where_it_waits_is_our_bug():
    made = queue(1)
    made._waiting = c(1)
    with pytest.raises(InvariantError, match="is to time out, and is not in the queue"):
        made.time_out(c(1))


@given(st.lists(st.integers(0, 4), max_size=40))
def test_data_keeps_its_order_and_what_is_saved_is_what_was_not_sent(steps: list[int]):
    made: OutputQueue[int] = OutputQueue()
    sent: list[int] = []
    added = 0
    checkpoint = 0
    open_timeout: int | None = None
    for step in steps:
        if step == 0:
            added += 1
            made.add_data(added, 1)
        elif step == 1:
            checkpoint += 1
            assert made.add_barrier(barrier(checkpoint, unaligned=True)) == list(range(len(sent) + 1, added + 1))
        elif step == 2:
            checkpoint += 1
            made.add_barrier(barrier(checkpoint, aligned_timeout_ms=1))
            open_timeout = checkpoint
            ahead = added
        elif step == 3 and open_timeout is not None:
            saved = made.time_out(c(open_timeout))
            assert saved is None or saved == list(range(len(sent) + 1, ahead + 1))
            open_timeout = None
        elif (head := made.peek()) is not None:
            made.pop()
            if isinstance(head[0], int):
                sent.append(head[0])
    assert sent == list(range(1, len(sent) + 1))
