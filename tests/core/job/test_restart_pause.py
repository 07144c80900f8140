"""Whether a job starts again after a failure, and when."""

from __future__ import annotations

import pytest

from penstock.core.errors import Fault
from penstock.core.ids import Instant
from penstock.core.job.events import FailureCause
from penstock.core.job.restart_pause import START_FAILURES_BEFORE_FIRST_RUN, RestartPause
from penstock.settings import FixedDelay

NOW = Instant(1_000)
LOST = FailureCause(text="slot 0 was lost")


def pause(*, attempts: int = 2, ran_before: bool = True) -> RestartPause:
    return RestartPause(FixedDelay(attempts=attempts, delay_ms=500), ran_before=ran_before, draws=(0.5,))


def test_the_job_starts_again_when_the_pause_of_its_strategy_is_over():
    waiting = pause()
    assert waiting.begin(LOST, NOW) == (LOST, 500)
    assert [waiting.lasts(Instant(at)) for at in (1_000, 1_499, 1_500)] == [True, True, False]
    waiting.end()
    assert waiting.until is None
    assert not waiting.lasts(NOW)


def test_a_job_that_fails_too_often_is_given_up_and_the_cause_says_why():
    waiting = pause(attempts=1)
    waiting.begin(LOST, NOW)
    cause, delay_ms = waiting.begin(LOST, NOW)
    assert delay_ms is None
    assert cause.why_final
    assert waiting.until is None


def test_what_no_restart_can_mend_is_given_up_at_once():
    cause, delay_ms = pause().begin(FailureCause(text="cut", fault=Fault.PERMANENT), NOW)
    assert (cause.why_final, delay_ms) == ("no restart can mend this error", None)


def test_a_failure_that_is_the_price_of_what_a_user_asked_for_costs_no_restart():
    waiting = pause(attempts=1)
    free = FailureCause(text="the savepoint was given up", free=True)
    assert [waiting.begin(free, NOW)[1] for _ in range(3)] == [0, 0, 0]
    assert waiting.begin(LOST, NOW)[1] == 500


def test_slots_that_cannot_be_started_share_one_pause():
    waiting = pause(attempts=1)
    assert not waiting.keeps_slots_waiting(NOW)
    assert [waiting.begin_for_slot(LOST, 1, NOW) for _ in range(3)] == [None, None, None]
    assert waiting.keeps_slots_waiting(NOW)
    final = waiting.begin_for_slot(LOST, 2, Instant(1_500))
    assert final is not None
    assert final.why_final


@pytest.mark.parametrize("failed_starts", [1, START_FAILURES_BEFORE_FIRST_RUN - 1])
def test_before_the_job_ever_ran_slots_are_asked_for_without_a_pause(failed_starts: int):
    waiting = pause(ran_before=False)
    assert waiting.begin_for_slot(LOST, failed_starts, NOW) is None
    assert waiting.until is None


def test_before_the_job_ever_ran_few_starts_are_tried():
    waiting = pause(ran_before=False)
    assert waiting.begin_for_slot(LOST, START_FAILURES_BEFORE_FIRST_RUN, NOW) == LOST
    waiting.ran()
    assert waiting.begin_for_slot(LOST, START_FAILURES_BEFORE_FIRST_RUN, NOW) is None
