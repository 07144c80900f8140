"""Which batches of a channel belong to an unaligned checkpoint."""

from __future__ import annotations

import pytest

from penstock.core.barrier.persister import ChannelPersister, PersistStatus
from penstock.core.ids import CheckpointId


def at(number):
    return CheckpointId(number)


@pytest.fixture
def channel():
    return ChannelPersister()


def test_nothing_is_saved_before_it_starts_or_after_it_stops(channel):
    assert not channel.saves(0)
    channel.start(at(1))
    channel.stop(at(1))
    assert channel.status is PersistStatus.COMPLETED
    assert not channel.saves(1)


def test_everything_is_saved_until_the_barrier_arrives(channel):
    assert channel.start(at(1))
    assert [channel.saves(n) for n in (3, 4)] == [True, True]
    assert channel.barrier_arrived(at(1), 5)
    assert not channel.saves(6)


def test_of_what_waits_only_what_is_ahead_of_a_barrier_that_has_arrived_is_saved(channel):
    channel.barrier_arrived(at(1), 4)
    assert channel.start(at(1))
    assert channel.status is PersistStatus.BARRIER_RECEIVED
    assert [n for n in range(2, 8) if channel.saves(n)] == [2, 3]


def test_an_older_barrier_that_has_arrived_does_not_limit_a_newer_checkpoint(channel):
    channel.barrier_arrived(at(1), 4)
    assert channel.start(at(2))
    assert channel.status is PersistStatus.BARRIER_PENDING
    assert [n for n in range(3, 7) if channel.saves(n)] == [3, 4, 5, 6]


def test_a_newer_checkpoint_takes_over_from_one_that_was_never_stopped(channel):
    channel.start(at(1))
    channel.barrier_arrived(at(1), 2)
    assert channel.start(at(3))
    assert channel.saves(9)


def test_it_does_not_start_for_a_checkpoint_older_than_a_barrier_that_has_arrived(channel):
    channel.barrier_arrived(at(2), 4)
    assert not channel.start(at(1))
    assert channel.status is PersistStatus.BARRIER_RECEIVED


@pytest.mark.parametrize("older", [1, 4])
def test_a_barrier_older_than_the_pending_one_is_ignored(channel, older):
    channel.start(at(5))
    assert not channel.barrier_arrived(at(older), 3)
    assert channel.saves(7)


def test_the_barrier_of_a_checkpoint_that_was_stopped_is_ignored(channel):
    channel.start(at(3))
    channel.stop(at(3))
    assert not channel.barrier_arrived(at(3), 8)
    assert channel.status is PersistStatus.COMPLETED
    assert channel.barrier_arrived(at(4), 9)


def test_a_newer_barrier_ends_the_saving_of_an_older_checkpoint(channel):
    channel.start(at(1))
    assert channel.barrier_arrived(at(2), 6)
    assert not channel.saves(7)


def test_a_stop_is_ignored_once_a_newer_barrier_has_been_seen(channel):
    channel.start(at(1))
    channel.barrier_arrived(at(2), 6)
    channel.stop(at(1))
    assert channel.status is PersistStatus.BARRIER_RECEIVED
    assert channel.start(at(2))
    assert [n for n in range(4, 9) if channel.saves(n)] == [4, 5]


def test_a_stop_for_a_checkpoint_it_never_saw_counts(channel):
    channel.stop(at(4))
    assert not channel.barrier_arrived(at(4), 0)
