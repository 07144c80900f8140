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
