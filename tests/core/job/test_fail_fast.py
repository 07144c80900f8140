"""Failures that end a job at once, whatever its restart strategy would do."""

from __future__ import annotations

import pytest
from lifecycle_rig import cancelled, feed, ready, slot, tasks, tick, up

from penstock.core.errors import Fault
from penstock.core.ids import Epoch
from penstock.core.job.events import AttemptEnded, AttemptFailed, CheckpointDone, FailureCause, JobStarted, JobState
from penstock.core.job.fail_fast import PROGRESS_CHECKPOINTS, SAME_FAILURES, FailFast
from penstock.core.job.lifecycle import JobLifecycle
from penstock.settings import ExponentialDelay, FixedDelay, NoRestart, Restart, SlotSettings

A1 = slot(0)
STRATEGIES: list[Restart | None] = [None, FixedDelay(attempts=9), ExponentialDelay(), NoRestart()]


def raised(text: str = "KeyError: 'price'", *, line: int = 7, operator: str = "clean") -> FailureCause:
    frames = f'Traceback (most recent call last):\n  File "main.py", line 3, in f\n  File "main.py", line {line}, in g'
    return FailureCause(text=text, traceback=f"{frames}\n{text}", operator=operator, fault=Fault.PROGRAM)


def follow(cause: FailureCause, fail_fast: FailFast, times: int) -> list[bool]:
    """Whether each of so many failures in a row ends the job."""
    return [fail_fast.failed(cause) is not None for _ in range(times)]


@pytest.mark.parametrize("restart", STRATEGIES, ids=str)
def test_what_no_restart_can_mend_ends_the_job_with_every_strategy(restart: Restart | None):
    fail_fast = FailFast(restart, has_progressed=True)
    assert (
        fail_fast.failed(FailureCause(text="CorruptFile: cut", fault=Fault.PERMANENT))
        == "no restart can mend this error"
    )


def test_an_error_of_the_program_before_the_first_checkpoint_ends_the_job():
    assert follow(raised(), FailFast(None), 1) == [True]


def test_the_same_error_ends_the_job_when_it_comes_again_and_again_without_a_checkpoint_between():
    fail_fast = FailFast(None)
    fail_fast.progressed()
    assert follow(raised(), fail_fast, SAME_FAILURES) == [False] * (SAME_FAILURES - 1) + [True]


def test_a_few_checkpoints_between_two_failures_are_progress():
    fail_fast = FailFast(None)
    for _ in range(2 * SAME_FAILURES):
        for _ in range(PROGRESS_CHECKPOINTS):
            fail_fast.progressed()
        assert follow(raised(), fail_fast, SAME_FAILURES - 1) == [False] * (SAME_FAILURES - 1)


@pytest.mark.parametrize("checkpoints", [1, PROGRESS_CHECKPOINTS - 1])
def test_an_error_that_comes_behind_every_completed_checkpoint_ends_the_job(checkpoints: int):
    fail_fast, told = FailFast(None), []
    for _ in range(SAME_FAILURES):
        for _ in range(checkpoints):
            fail_fast.progressed()
        told += follow(raised(), fail_fast, 1)
    assert told == [False] * (SAME_FAILURES - 1) + [True]


def test_an_error_that_names_another_record_each_time_is_the_same_error():
    fail_fast = FailFast(None, has_progressed=True)
    told = [fail_fast.failed(raised(f"KeyError: 'record {i}'")) for i in range(SAME_FAILURES)]
    assert told[-1] is not None
    assert told[-1].startswith(f"the same error came {SAME_FAILURES} times")


@pytest.mark.parametrize(
    "others",
    [
        [raised(line=1), raised(line=2), raised(line=3)],
        [raised(operator="a"), raised(operator="b"), raised(operator="c")],
        [raised("KeyError: 1"), raised("TypeError: 1"), raised("ValueError: 1")],
    ],
    ids=["lines", "steps", "kinds"],
)
def test_errors_at_other_places_are_counted_by_themselves(others: list[FailureCause]):
    fail_fast = FailFast(None, has_progressed=True)
    assert [fail_fast.failed(cause) for cause in others * (SAME_FAILURES - 1)] == [None] * 3 * (SAME_FAILURES - 1)
    assert fail_fast.failed(others[0]) is not None


def test_an_error_without_a_traceback_has_a_place_too():
    bare = FailureCause(text="KeyError: 1", operator="clean", fault=Fault.PROGRAM)
    assert follow(bare, FailFast(None, has_progressed=True), SAME_FAILURES)[-1]


@pytest.mark.parametrize("has_progressed", [False, True])
def test_what_may_pass_is_for_the_strategy_to_decide(has_progressed: bool):
    fail_fast = FailFast(None, has_progressed=has_progressed)
    away = FailureCause(text="ConnectionError: refused", operator="clean", fault=Fault.PASSING)
    assert not any(follow(away, fail_fast, 20))


@pytest.mark.parametrize("restart", STRATEGIES[1:], ids=str)
def test_who_chooses_a_strategy_has_errors_of_the_program_tried_again(restart: Restart):
    assert not any(follow(raised(), FailFast(restart), 20))


# --- in the life of a job -----------------------------------------------------------------------


def running(restart: Restart | None, *, ran_before: bool = False) -> JobLifecycle:
    job = JobLifecycle(slots=1, tasks=tasks(1), settings=SlotSettings(), restart=restart, ran_before=ran_before)
    feed(job, 0, JobStarted(), *up(A1), *ready(1, A1))
    assert job.state is JobState.RUNNING
    return job


def fail(job: JobLifecycle, now: int, cause: FailureCause) -> AttemptEnded:
    ended = feed(job, now, AttemptFailed(epoch=job.epoch, cause=cause))[0]
    assert isinstance(ended, AttemptEnded)
    return ended


def go_on(job: JobLifecycle, now: int) -> None:
    """Let the job restart after a failure."""
    feed(job, now, *cancelled(job.epoch, A1))
    tick(job, now + 10_000)
    feed(job, now + 10_001, *ready(job.epoch, A1))
    assert job.state is JobState.RUNNING


def test_a_job_with_a_typo_ends_with_its_first_failure_and_says_why():
    job = running(None)
    ended = fail(job, 10, raised())
    assert ended.restart_in_ms is None
    assert "before the first checkpoint" in ended.cause.why_final
    assert job.state is JobState.ENDING


def test_a_job_whose_commits_fail_behind_every_checkpoint_ends():
    job = running(None)
    for attempt in range(SAME_FAILURES - 1):
        feed(job, attempt * 100_000 + 1, CheckpointDone())
        assert fail(job, attempt * 100_000 + 10, raised()).restart_in_ms is not None
        go_on(job, attempt * 100_000 + 11)
    feed(job, 900_001, CheckpointDone())
    ended = fail(job, 900_010, raised())
    assert ended.restart_in_ms is None
    assert job.state is JobState.ENDING


def test_after_a_checkpoint_the_job_ends_with_the_third_failure_at_one_place():
    job = running(None)
    feed(job, 1, CheckpointDone())
    for attempt in range(SAME_FAILURES - 1):
        assert fail(job, attempt * 100_000 + 10, raised()).restart_in_ms is not None
        go_on(job, attempt * 100_000 + 11)
    assert fail(job, 1_000_000, raised()).restart_in_ms is None


def test_a_job_that_was_taken_over_has_had_its_first_checkpoint():
    job = running(None, ran_before=True)
    assert fail(job, 10, raised()).restart_in_ms is not None


def test_a_region_of_a_job_ends_the_job_too():
    job = running(FixedDelay(attempts=9))
    cause = FailureCause(text="UsageError: no", fault=Fault.PERMANENT)
    effects = feed(job, 1, AttemptFailed(epoch=Epoch(1), cause=cause, task=tasks(1)[0]))
    assert isinstance(effects[0], AttemptEnded)
    assert effects[0].restart_in_ms is None
    assert effects[0].cause.why_final == "no restart can mend this error"
