"""How old a view of a job may be. Needs no Spark: the master is played, and its clock stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.core.ids import Epoch, Instant, JobId
from penstock.core.job.events import JobState
from penstock.runtime.views import JobView
from penstock.spark import job as job_module
from penstock.spark.job import Job, MasterParts
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

    def __init__(self) -> None:
        self.outcome: JobState | None = None
        self.cause = None
        self.stage = (JobState.CREATED, Epoch(0), 0)
        self._ahead = list(STAGES)

    def start(self, now: Instant) -> None:
        """Nothing has happened yet."""

    def turn(self, now: Instant) -> Instant | None:
        if self._ahead:
            self.stage = self._ahead.pop(0)
        else:
            self.outcome = JobState.FINISHED
        return None

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


def test_state_attempt_and_restarts_are_shown_as_soon_as_they_change(tmp_path: Path):
    """Whoever has seen what an attempt did, and looks then, sees that attempt and not the one before it."""
    driver = PlayedDriver()
    seen: list[tuple[JobState, Epoch, int]] = []
    waits_ms: list[int] = []
    started: list[Job] = []
    is_there = threading.Event()

    def look(wait_ms: int) -> None:
        view = started[0].view()
        seen.append((view.state, view.epoch, view.restarts))
        waits_ms.append(wait_ms)

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
        assert is_there.wait(60)
        return parts

    started.append(
        Job(
            job=JOB,
            name="job",
            storage_root=str(tmp_path),
            cores=lambda: 4,
            attempt=lambda _: None,
            seek=seek,
            waiting=standby_view(JOB),
        )
    )
    is_there.set()
    assert started[0].wait(60).state is JobState.FINISHED
    assert seen == STAGES
    assert waits_ms == [job_module.VIEW_EVERY_MS] * len(STAGES)
