"""Credits: never more on its way than the window, and never a sender that waits for credit nobody owes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvariantError
from penstock.core.flow import CreditReceiver, CreditSender


def test_nothing_may_be_sent_before_the_first_grant():
    assert not CreditSender(100).may_send(1)


def test_the_first_grant_is_the_whole_window_and_comes_once():
    receiver = CreditReceiver(100)
    assert receiver.open() == 100
    with pytest.raises(InvariantError, match="twice"):
        receiver.open()


def test_small_consumptions_are_granted_together():
    receiver = CreditReceiver(100)
    assert [receiver.consumed(10, queue_empty=False) for _ in range(3)] == [0, 0, 30]


def test_an_empty_queue_holds_no_credit_back():
    assert CreditReceiver(100).consumed(1, queue_empty=True) == 1


def test_a_batch_larger_than_the_window_is_our_bug():
    with pytest.raises(InvariantError, match="can never be sent"):
        CreditSender(100).may_send(101)


def test_sending_without_credit_is_our_bug():
    with pytest.raises(InvariantError, match="sent with a credit of 0"):
        CreditSender(100).spend(1)


def test_more_credit_than_the_window_is_our_bug():
    sender = CreditSender(100)
    sender.granted(100)
    with pytest.raises(InvariantError, match="exceeds"):
        sender.granted(1)


@given(st.integers(1, 200), st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=80))
def test_any_traffic_stays_in_the_window_and_drains(window: int, steps: list[tuple[bool, int]]):
    sender, receiver = CreditSender(window), CreditReceiver(window)
    sender.granted(receiver.open())
    queue: list[int] = []
    for sends, size in steps:
        cost = min(size, window)
        if sends and sender.may_send(cost):
            sender.spend(cost)
            queue.append(cost)
        elif queue:
            done = queue.pop(0)
            sender.granted(receiver.consumed(done, queue_empty=not queue))
        assert sum(queue) <= window
    while queue:
        done = queue.pop(0)
        sender.granted(receiver.consumed(done, queue_empty=not queue))
    assert sender.available == window


def test_restored_data_takes_its_room_and_leaves_one_byte_to_begin_with():
    receiver = CreditReceiver(100)
    assert receiver.reserve([30, 20]) == [30, 20]
    assert receiver.open() == 50
    full = CreditReceiver(100)
    assert full.reserve([70, 60]) == [39, 60]
    assert full.open() == 1


def test_restored_data_beyond_the_window_is_charged_at_its_end():
    receiver = CreditReceiver(100)
    assert receiver.reserve([500, 90]) == [9, 90]


@given(st.integers(1, 200), st.lists(st.integers(1, 300), max_size=10), st.lists(st.integers(1, 200), max_size=40))
def test_credit_for_restored_data_comes_back_when_it_has_been_read(window: int, restored: list[int], sizes: list[int]):
    sender, receiver = CreditSender(window), CreditReceiver(window)
    queue = receiver.reserve(restored)
    sender.granted(receiver.open())
    for size in sizes:
        if sender.may_send(min(size, window)):
            sender.spend(min(size, window))
            queue.append(min(size, window))
        assert sum(queue) <= window
        if queue:
            done = queue.pop(0)
            sender.granted(receiver.consumed(done, queue_empty=not queue))
    while queue:
        done = queue.pop(0)
        sender.granted(receiver.consumed(done, queue_empty=not queue))
    assert sender.available == window


def test_data_cannot_be_restored_into_an_open_channel():
    receiver = CreditReceiver(100)
    receiver.open()
    with pytest.raises(InvariantError, match="has been opened"):
        receiver.reserve([1])


@given(st.integers(2, 100), st.lists(st.integers(1, 120), max_size=10))
def test_what_was_restored_is_granted_again_as_it_is_read(window: int, sizes: list[int]):
    receiver = CreditReceiver(window)
    costs = receiver.reserve(sizes)
    granted = receiver.open()
    for left, cost in enumerate(costs):
        granted += receiver.consumed(cost, queue_empty=left == len(costs) - 1)
    assert granted == window
