"""How long the records of one input wait for another input."""

from __future__ import annotations

from penstock.core.ids import ChannelIndex, Instant
from penstock.core.task.waiting import InputWait, WaitFor

A, B = ChannelIndex(1), ChannelIndex(2)


def waiting(**wanted: int) -> InputWait:
    wait = InputWait(WaitFor(**wanted))
    wait.begin((A, B), Instant(100))
    return wait


def test_the_end_is_that_of_all_channels():
    wait = waiting()
    wait.advanced(A, 10**18, idle=False)
    wait.ended(A)
    assert not wait.is_over(Instant(10**9))
    wait.ended(B)
    wait.ended(B)
    assert wait.is_over(Instant(100))
    assert wait.next_deadline() is None


def test_event_time_must_have_come_so_far_on_every_channel_that_has_not_ended_and_is_not_idle():
    wait = waiting(watermark_us=50)
    wait.advanced(A, 49, idle=False)
    wait.advanced(B, 50, idle=False)
    assert not wait.is_over(Instant(100))
    wait.advanced(A, 51, idle=False)
    assert wait.is_over(Instant(100))
    idle = waiting(watermark_us=50)
    idle.advanced(A, 0, idle=True)
    idle.ended(B)
    assert idle.is_over(Instant(100))


def test_a_time_is_counted_from_the_beginning_and_an_end_is_as_good():
    wait = waiting(time_ms=30)
    assert wait.next_deadline() == 130
    assert not wait.is_over(Instant(129))
    assert wait.is_over(Instant(130))
    early = waiting(time_ms=30)
    early.ended(A)
    early.ended(B)
    assert early.is_over(Instant(101))


def test_without_channels_there_is_nothing_to_wait_for():
    wait = InputWait(WaitFor())
    wait.begin((), Instant(0))
    assert wait.is_over(Instant(0))
