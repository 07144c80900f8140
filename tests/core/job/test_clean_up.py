"""The steps at the end of a job: each by itself, and again when that may help."""

from __future__ import annotations

from penstock.core.ids import Instant
from penstock.core.job.clean_up import CleanUp


def at(ms: int) -> Instant:
    return Instant(ms)


def test_a_clean_up_is_over_when_every_step_has_succeeded():
    steps = CleanUp(2, tries=3, retry_ms=100)
    assert steps.begin() == [0, 1]
    assert not steps.ended(0, at(0), may_succeed_later=False)
    assert [steps.is_over, steps.ended(1, at(0), may_succeed_later=False), steps.is_over] == [False, False, True]
    assert steps.next_deadline() is None


def test_a_clean_up_without_steps_is_over_at_once():
    steps = CleanUp(0, tries=3, retry_ms=100)
    assert steps.begin() == []
    assert steps.is_over


def test_a_step_that_may_succeed_later_is_done_again_after_a_pause_that_doubles():
    steps = CleanUp(1, tries=3, retry_ms=100)
    steps.begin()
    assert steps.ended(0, at(0), may_succeed_later=True)
    assert steps.next_deadline() == 100
    assert steps.due(at(99)) == []
    assert steps.due(at(100)) == [0]
    assert steps.due(at(100)) == []
    assert steps.ended(0, at(110), may_succeed_later=True)
    assert steps.next_deadline() == 310
    assert steps.due(at(310)) == [0]
    assert not steps.ended(0, at(310), may_succeed_later=True), "three times is enough"
    assert steps.is_over


def test_a_step_that_waits_does_not_keep_the_others():
    steps = CleanUp(3, tries=3, retry_ms=100)
    steps.begin()
    steps.ended(2, at(0), may_succeed_later=True)
    steps.ended(0, at(0), may_succeed_later=True)
    steps.ended(1, at(0), may_succeed_later=False)
    assert not steps.is_over
    assert steps.due(at(100)) == [0, 2]
