"""How old a view of a job may be, and what is said at its end. Needs no Spark: the master is played, and its clock
stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from completed_records import completed

from penstock.core.errors import JobFailed
from penstock.core.ids import Epoch, Instant, JobId
from penstock.core.job.events import FailureCause, JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.views import CheckpointDetails
from penstock.runtime.facts import JobFacts
from penstock.runtime.views import JobView
from penstock.spark import job as job_module
from penstock.spark.job import Job, MasterParts
from penstock.spark.savepoint_targets import SavepointTargets
from penstock.spark.standby import standby_view

JOB = JobId("job")
STAGES = [
    (JobState.DEPLOYING, Epoch(1), 0),
    (JobState.RUNNING, Epoch(1), 0),
    (JobState.FAILING, Epoch(1), 1),
    (JobState.DEPLOYING, Epoch(2), 1),
    (JobState.RUNNING, Epoch(2), 1),
]


class PlayedDriver:
    """Goes on to the next stage with each turn, and through all of them without any time passing."""

    ends_as = JobState.FINISHED
    goes_on_from: CompletedCheckpoint | None = None

    def __init__(self) -> None:
        self.listed: tuple[CheckpointDetails, ...] = ()
        self.outcome: JobState | None = None
        self.cause: FailureCause | None = None
        self.stage = (JobState.CREATED, Epoch(0), 0)
        self._ahead = list(STAGES)

    def start(self, now: Instant) -> None:
        """Nothing has happened yet."""

    def turn(self, now: Instant) -> Instant | None:
        if self._ahead:
            self.stage = self._ahead.pop(0)
        else:
            self.outcome = self.ends_as
        return None

    def beat(self, now: Instant) -> None:
        """The loop turns: there is nothing to say beside it."""

    def checkpoints(self) -> tuple[CheckpointDetails, ...]:
        return self.listed

    def facts(self) -> JobFacts:
        return JobFacts(now=Instant(1_000_000), view=self.view(), plan=None, checkpoints=self.listed)

    def view(self) -> JobView:
        state, epoch, restarts = self.stage
        return replace(standby_view(JOB), state=self.outcome or state, epoch=epoch, restarts=restarts)


class Still:
    """A clock that stands still, and everything else that has nothing to do."""

    def now(self) -> Instant:
        return Instant(1_000_000)

    def close(self, **_: Any) -> None:
        """Nothing is open."""


class Between(Still):
    """A transport that calls somebody whenever the master waits for what comes in."""

    def __init__(self, call: Callable[[int], None]) -> None:
        self.wait = call
        self.wake = lambda: None


@pytest.fixture(autouse=True)
def _no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module.Job, "_open_control", lambda _: None)


def started(driver: PlayedDriver, tmp_path: Path, look: Callable[[int], None], begins: threading.Event) -> Job:
    """A job whose master begins when `begins` is set."""
    still = cast("Any", Still())
    parts = MasterParts(
        driver=cast("Any", driver),
        transport=cast("Any", Between(look)),
        background=still,
        workers=(),
        slots=still,
        clock=still,
        socket_folder=tmp_path / "sockets",
        signs=(),
        temporary_root=None,
        advice=lambda _: None,
    )

    def seek(*_: Any) -> MasterParts:
        assert begins.wait(60)
        return parts

    return Job(
        job=JOB,
        name="job",
        targets=SavepointTargets(directory=str(tmp_path)),
        cores=lambda: 4,
        attempt=lambda _: None,
        seek=seek,
        waiting=standby_view(JOB),
    )


def test_state_attempt_and_restarts_are_shown_as_soon_as_they_change(tmp_path: Path):
    """Whoever has seen what an attempt did, and looks then, sees that attempt and not the one before it."""
    seen: list[tuple[JobState, Epoch, int]] = []
    waits_ms: list[int] = []
    is_there = threading.Event()

    def look(wait_ms: int) -> None:
        view = job.view()
        seen.append((view.state, view.epoch, view.restarts))
        waits_ms.append(wait_ms)

    job = started(PlayedDriver(), tmp_path, look, is_there)
    is_there.set()
    assert job.wait(60).state is JobState.FINISHED
    assert seen == STAGES
    assert waits_ms == [job_module.VIEW_EVERY_MS] * len(STAGES)


class Failing(PlayedDriver):
    """Ends in failure, since Spark is gone."""

    ends_as = JobState.FAILED

    def __init__(self) -> None:
        super().__init__()
        self.cause = FailureCause(text="the SparkSession was stopped")
        self.goes_on_from = completed(7)


def test_a_job_that_fails_while_nobody_waits_for_it_says_so_with_its_name_and_what_follows(tmp_path, caplog):
    begins = threading.Event()
    begins.set()
    job = started(Failing(), tmp_path, lambda _: None, begins)
    job.finish()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"][1:] == [
        "job 'job' has ended in failure: the SparkSession was stopped; run the program again to go on from checkpoint 7"
    ]


def test_a_job_that_somebody_waits_for_tells_whoever_waits(tmp_path, caplog):
    begins = threading.Event()
    job = started(Failing(), tmp_path, lambda _: None, begins)
    threading.Timer(0.5, begins.set).start()
    with pytest.raises(JobFailed, match="the SparkSession was stopped"):
        job.wait(60)
    assert "has ended in failure" not in caplog.text


def test_a_call_that_gives_up_waiting_leaves_the_other_calls_counted(tmp_path, caplog):
    begins, raised = threading.Event(), []
    job = started(Failing(), tmp_path, lambda _: None, begins)

    def wait() -> None:
        with pytest.raises(JobFailed):
            job.wait(60)
        raised.append(True)

    others = [threading.Thread(target=wait) for _ in range(8)]
    for other in others:
        other.start()
    for _ in range(8):
        with pytest.raises(TimeoutError):
            job.wait(0)
    begins.set()
    for other in others:
        other.join()
    assert len(raised) == len(others)
    assert "has ended in failure" not in caplog.text
    with pytest.raises(JobFailed):
        job.wait(60)
    assert not job._waiting


class Cancelled(Failing):
    ends_as = JobState.CANCELLED

    def cancel(self) -> None:
        """It ends by itself."""


def test_ctrl_c_says_what_becomes_of_the_job(tmp_path, caplog):
    begins = threading.Event()
    begins.set()
    started(Cancelled(), tmp_path, lambda _: None, begins)._stop_interrupted()
    assert "interrupted; job 'job' was stopped; run the program again to go on from checkpoint 7" in caplog.text


def details(checkpoint: int) -> CheckpointDetails:
    return cast("Any", f"details of checkpoint {checkpoint}")


def test_checkpoints_are_those_that_the_master_knows_now_and_the_last_ones_of_a_job_that_has_ended(tmp_path: Path):
    driver, may_begin, may_end = PlayedDriver(), threading.Event(), threading.Event()
    driver.listed = (details(2), details(1))
    runs = threading.Event()

    def turn(now: Instant) -> Instant | None:
        runs.set()
        if may_end.is_set():
            driver.listed = (details(3),)
            driver.outcome = JobState.FINISHED
        return None

    driver.turn = turn  # type: ignore[method-assign]
    job = started(driver, tmp_path, lambda wait_ms: time.sleep(0.001), may_begin)
    try:
        assert job.checkpoints == [], "it waits for its turn"
        may_begin.set()
        assert runs.wait(60)
        assert job.checkpoints == [details(2), details(1)]
        driver.listed = (details(3), details(2))
        assert job.checkpoints == [details(3), details(2)]
    finally:
        may_begin.set()
        may_end.set()
    assert job.wait(60).state is JobState.FINISHED
    assert job.checkpoints == [details(3)]
