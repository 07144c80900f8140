"""The event time of a watermark group is the least event time of its readers."""

from __future__ import annotations

from penstock.core.alignment.events import Member, MembersBegan, MembersStopped, TimeTold
from penstock.core.alignment.groups import WatermarkGroups
from penstock.core.alignment.times import NOT_BEGUN, LeastTime
from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, Instant, TaskId, VertexId

FAST, SLOW, THIRD = (TaskId(VertexId(name), 0) for name in ("fast", "slow", "third"))
FIRST, SECOND = Epoch(1), Epoch(2)


def member(task: TaskId, *, group: str = "all", drift_us: int = 80, interval_ms: int = 100) -> Member:
    return Member(task=task, group=group, drift_us=drift_us, interval_ms=interval_ms)


def groups(*members: Member) -> WatermarkGroups:
    made = WatermarkGroups()
    assert made.handle(MembersBegan(epoch=FIRST, members=members), Instant(0)) == []
    return made


def tell(
    machine: WatermarkGroups, task: TaskId, time_us: LeastTime, *, now: int = 0, epoch: Epoch = FIRST
) -> dict[TaskId, LeastTime]:
    """Feed what a reader tells; which readers are told what."""
    effects = machine.handle(TimeTold(task=task, epoch=epoch, time_us=time_us), Instant(now))
    return {effect.member.task: effect.time_us for effect in effects}


def ticked(machine: WatermarkGroups, now: int) -> dict[TaskId, LeastTime]:
    return {effect.member.task: effect.time_us for effect in machine.handle(Ticked(), Instant(now))}


def test_the_least_time_is_told_to_all_readers():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    assert tell(machine, SLOW, 500) == {FAST: 500, SLOW: 500}


def test_nobody_is_answered_before_all_have_begun():
    machine = groups(member(FAST), member(SLOW), member(THIRD))
    assert tell(machine, FAST, 1_000) == {}
    assert tell(machine, THIRD, None) == {}
    assert machine.next_deadline() is None
    assert tell(machine, SLOW, 4_000) == {FAST: 1_000, SLOW: 1_000, THIRD: 1_000}


def test_a_reader_that_holds_nobody_back_does_not_count():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500)
    assert tell(machine, SLOW, None) == {FAST: 1_000, SLOW: 1_000}
    assert tell(machine, FAST, None) == {FAST: None, SLOW: None}


def test_a_reader_that_was_idle_counts_again():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, None)
    tell(machine, FAST, 9_000)
    assert tell(machine, SLOW, 2_000) == {FAST: 2_000, SLOW: 2_000}


def test_a_small_rise_is_told_when_the_interval_is_over():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500, now=10)
    assert tell(machine, SLOW, 509, now=20) == {}
    assert machine.next_deadline() == 110
    assert ticked(machine, 109) == {}
    assert ticked(machine, 110) == {FAST: 509, SLOW: 509}
    assert machine.next_deadline() is None


def test_a_rise_by_a_good_part_of_the_drift_is_told_at_once():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500)
    assert tell(machine, SLOW, 510) == {FAST: 510, SLOW: 510}


def test_the_smallest_drift_of_a_group_decides_what_is_a_good_part():
    machine = groups(member(FAST, drift_us=8_000), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500)
    assert tell(machine, SLOW, 510) == {FAST: 510, SLOW: 510}


def test_a_reader_that_was_restarted_alone_is_answered_although_the_group_has_not_moved():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500)
    machine.handle(MembersBegan(epoch=SECOND, members=(member(FAST),), others_go_on=True), Instant(5))
    assert tell(machine, FAST, 800, epoch=SECOND) == {FAST: 500}
    assert tell(machine, SLOW, 700) == {FAST: 700, SLOW: 700}


def test_a_reader_that_was_restarted_further_behind_holds_the_others_back():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 900)
    machine.handle(MembersBegan(epoch=SECOND, members=(member(SLOW),), others_go_on=True), Instant(5))
    assert tell(machine, FAST, 1_500) == {}
    assert tell(machine, SLOW, 100, epoch=SECOND) == {FAST: 100, SLOW: 100}


def test_what_an_earlier_attempt_tells_is_refused():
    machine = groups(member(FAST), member(SLOW))
    machine.handle(MembersBegan(epoch=SECOND, members=(member(FAST), member(SLOW))), Instant(5))
    assert tell(machine, FAST, 1_000, epoch=FIRST) == {}
    assert tell(machine, THIRD, 1_000, epoch=SECOND) == {}
    tell(machine, SLOW, 3_000, epoch=SECOND)
    assert tell(machine, FAST, 2_000, epoch=SECOND) == {FAST: 2_000, SLOW: 2_000}


def test_a_new_attempt_begins_anew():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 9_000)
    machine.handle(MembersBegan(epoch=SECOND, members=(member(FAST),)), Instant(5))
    assert tell(machine, FAST, 100, epoch=SECOND) == {FAST: 100}


def test_groups_know_nothing_of_each_other():
    machine = groups(member(FAST, group="one"), member(SLOW, group="two"))
    assert tell(machine, FAST, 9_000) == {FAST: 9_000}
    assert tell(machine, SLOW, 100) == {SLOW: 100}


def test_nothing_is_told_when_the_attempt_is_over():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    machine.handle(MembersStopped(), Instant(5))
    assert tell(machine, SLOW, 500) == {}
    assert machine.next_deadline() is None


def test_a_reader_between_two_splits_keeps_the_time_where_it_is():
    machine = groups(member(FAST), member(SLOW))
    tell(machine, FAST, 1_000)
    tell(machine, SLOW, 500)
    assert tell(machine, SLOW, NOT_BEGUN) == {}
    assert tell(machine, SLOW, 450) == {FAST: 450, SLOW: 450}
