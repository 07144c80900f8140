"""A reader of a watermark group reads no split that is too far ahead, and tells the group how far it has come."""

from __future__ import annotations

from penstock.core.alignment.events import GroupTimeTold, LeastSeen
from penstock.core.alignment.reader import ReaderAlignment
from penstock.core.alignment.times import NOT_BEGUN, LeastTime
from penstock.core.ids import Instant


def reader() -> ReaderAlignment:
    return ReaderAlignment(drift_us=100, interval_ms=1_000)


def see(machine: ReaderAlignment, time_us: LeastTime, now: int = 0) -> list[LeastTime]:
    return [effect.time_us for effect in machine.handle(LeastSeen(time_us=time_us), Instant(now))]


def answer(machine: ReaderAlignment, time_us: LeastTime, now: int = 0) -> None:
    machine.handle(GroupTimeTold(time_us=time_us), Instant(now))


def test_a_split_that_has_not_begun_may_be_read():
    assert reader().may_read(NOT_BEGUN)


def test_a_split_that_has_begun_waits_for_the_first_answer():
    machine = reader()
    see(machine, 500)
    assert not machine.may_read(500)
    answer(machine, 450)
    assert machine.may_read(500)


def test_a_split_may_be_ahead_by_the_drift_and_no_further():
    machine = reader()
    answer(machine, 450)
    assert machine.may_read(550)
    assert not machine.may_read(551)


def test_the_limit_goes_back_with_the_group():
    machine = reader()
    answer(machine, 450)
    answer(machine, 300)
    assert not machine.may_read(401)


def test_a_group_that_holds_nobody_back_has_no_limit():
    machine = reader()
    answer(machine, None)
    assert machine.may_read(10**15)


def test_what_the_group_must_know_is_told_at_once():
    machine = reader()
    assert see(machine, NOT_BEGUN) == []
    assert see(machine, 500) == [500]
    assert see(machine, 525) == [525]
    assert see(machine, 400) == [400]
    assert see(machine, NOT_BEGUN) == [NOT_BEGUN]
    assert see(machine, None) == [None]
    assert see(machine, 500) == [500]


def test_a_small_step_is_told_when_the_interval_is_over():
    machine = reader()
    see(machine, 500, now=10)
    assert see(machine, 524, now=20) == []
    assert machine.next_deadline() == 1_010
    assert see(machine, 524, now=1_009) == []
    assert see(machine, 524, now=1_010) == [524]
    assert machine.next_deadline() is None


def test_a_reader_without_splits_tells_that_it_holds_nobody_back():
    assert see(reader(), None) == [None]
