"""What a driver on standby makes of what goes wrong while it waits. Needs no Spark."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.core.errors import CorruptFile, JobCancelled, JobTakenOver, StorageError
from penstock.core.ids import Instant, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery.tenure import Tenure
from penstock.ports import Leader
from penstock.runtime.facts import JobFacts
from penstock.spark import standby
from penstock.spark.clock import WallClock
from penstock.spark.job import Job, MasterParts
from penstock.spark.savepoint_targets import SavepointTargets
from penstock.spark.standby import Standby, standby_view

PARTS = cast("MasterParts", object())
PATIENCE_S = 60


class Hold:
    """A leader that notes whether it let go."""

    has_resigned = False

    def resign(self) -> None:
        self.has_resigned = True


class Script:
    """An election, and a master in the making, that do what they are told, one after the other."""

    def __init__(self, *campaigns: Any) -> None:
        self._campaigns = deque(campaigns)
        self.holds: list[Hold] = []
        self.is_closed = False
        self._build: Any = None

    def campaign(self, _lost: Any) -> Leader | None:
        told = self._campaigns.popleft()
        if told is None or (isinstance(told, tuple) and told[0] == "campaign"):
            if told is not None:
                raise told[1]
            return None
        self._build = told
        self.holds.append(Hold())
        return cast("Leader", self.holds[-1])

    def build(self, _leader: Leader) -> MasterParts:
        if isinstance(self._build, BaseException):
            raise self._build
        return PARTS

    def close(self) -> None:
        self.is_closed = True

    def seek(self, left: threading.Event | None = None) -> MasterParts | None:
        return Standby(election=self, build=self.build).seek(left or threading.Event(), lambda: None)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "POLL_S", 0)
    monkeypatch.setattr(standby, "AGAIN_S", 0)


def test_a_driver_waits_until_it_has_the_job():
    script = Script(None, None, "now")
    assert script.seek() is PARTS
    assert not script.holds[0].has_resigned


def test_storage_that_is_out_of_order_is_waited_for_and_told_once(caplog: pytest.LogCaptureFixture):
    away = StorageError("ZooKeeper at zk:2181 could not be reached")
    script = Script(("campaign", away), StorageError("no such disk"), ("campaign", away), "now")
    assert script.seek() is PARTS
    assert [hold.has_resigned for hold in script.holds] == [True, False]
    assert caplog.messages == [f"this driver cannot take the job over now, and tries again: {away}"]


def test_a_driver_that_is_taken_over_from_before_it_has_begun_waits_again():
    script = Script(JobTakenOver("too slow"), None, "now")
    assert script.seek() is PARTS
    assert [hold.has_resigned for hold in script.holds] == [True, False]


@pytest.mark.parametrize("error", [CorruptFile("chk-1/_metadata is cut"), ValueError("a bug")])
def test_what_will_not_mend_is_raised_and_the_job_let_go(error: Exception):
    script = Script(error)
    with pytest.raises(type(error)):
        script.seek()
    assert script.holds[0].has_resigned


def test_a_driver_that_leaves_is_not_waited_for():
    left = threading.Event()
    left.set()
    script = Script()
    assert script.seek(left) is None
    assert script.is_closed


# --- the job of a driver that was on standby -------------------------------------------------------------------------


class Reign:
    """A leader, and the parts that are made for it, which note what becomes of them. Its master ends by itself with its
    first turn, unless it was told to end before."""

    def __init__(self, folder: Path, lost: Callable[[], None]) -> None:
        self.tenure = Tenure()
        self.is_lost = False
        self.closed: list[str] = []
        self.begins: Callable[[], None] = lambda: None
        self.sockets = folder / "sockets"
        self._lost = lost
        self.master = SimpleNamespace(
            outcome=None,
            stage=None,
            cause=None,
            is_run=False,
            checkpoints=tuple,
            facts=lambda: JobFacts(now=Instant(0), view=standby_view(JobId("job")), plan=None, checkpoints=()),
            beat=lambda _now: None,
            view=lambda: standby_view(JobId("job")),
            start=lambda _now: self.begins(),
            lose=lambda: self._end(JobState.SUSPENDED),
            cancel=lambda: self._end(JobState.CANCELLED),
            turn=lambda _now: self._end(JobState.FINISHED),
        )

    def lose(self) -> None:
        """As when another driver takes the job over."""
        self.is_lost = True
        self._lost()

    def resign(self) -> None:
        self.closed.append("leader")

    def parts(self) -> MasterParts:
        self.sockets.mkdir()
        return MasterParts(
            driver=cast("Any", self.master),
            transport=self._part("transport", wake=lambda: None, wait=lambda _ms: None),
            background=self._part("background"),
            workers=[self._part("worker")],
            slots=self._part("slots"),
            clock=WallClock(),
            socket_folder=self.sockets,
            signs=(),
            temporary_root=None,
            advice=lambda _: None,
            leader=cast("Leader", self),
        )

    def _part(self, name: str, **calls: Any) -> Any:
        return SimpleNamespace(close=lambda **_: self.closed.append(name), **calls)

    def _end(self, outcome: JobState) -> None:
        self.master.outcome = self.master.outcome or outcome


class Reigns:
    """An election in which the driver has the job whenever it asks, but for the first time; each time `builds` is
    called next."""

    def __init__(self, folder: Path, *builds: Callable[[Reign], None]) -> None:
        self._folder = folder
        self._builds = deque(builds)
        self._turns = deque([None, *builds])
        self.all: list[Reign] = []

    def campaign(self, lost: Callable[[], None]) -> Leader | None:
        if self._turns.popleft() is None:
            return None
        self.all.append(Reign(self._folder, lost))
        return cast("Leader", self.all[-1])

    def build(self, _leader: Leader) -> MasterParts:
        self._builds.popleft()(self.all[-1])
        return self.all[-1].parts()

    def close(self) -> None:
        """Nobody else takes part."""

    def start(self) -> Job:
        waits = Standby(election=self, build=self.build)
        return Job(
            job=JobId("job"),
            name="job",
            targets=SavepointTargets(directory=str(self._folder)),
            cores=lambda: 1,
            attempt=waits.attempt,
            seek=waits.seek,
            waiting=standby_view(JobId("job")),
        )


def is_too_slow(reign: Reign) -> None:
    reign.lose()
    raise JobTakenOver("too slow")


def test_what_a_driver_lost_before_it_waited_again_is_not_taken_from_it_later(tmp_path):
    """1. A driver gets ready; another takes over from it, and it hears of that. 2. It waits in line again. 3. It has
    the job, and keeps it."""
    reigns = Reigns(tmp_path, is_too_slow, lambda _: None)
    reigns.start().wait(PATIENCE_S)
    assert [reign.master.outcome for reign in reigns.all] == [None, JobState.FINISHED]


def test_a_driver_that_loses_the_job_while_it_gets_ready_again_lets_go_of_it(tmp_path):
    reigns = Reigns(tmp_path, is_too_slow, Reign.lose)
    with pytest.raises(JobTakenOver):
        reigns.start().wait(PATIENCE_S)
    assert [reign.master.outcome for reign in reigns.all] == [None, JobState.SUSPENDED]


def test_a_driver_that_is_told_to_leave_while_it_gets_ready_lets_go_of_the_job_and_does_not_cancel_it(tmp_path):
    ready, told = threading.Event(), threading.Event()

    def get_ready(_reign: Reign) -> None:
        ready.set()
        assert told.wait(PATIENCE_S)

    reigns = Reigns(tmp_path, get_ready)
    job = reigns.start()
    assert ready.wait(PATIENCE_S)
    job.cancel()
    told.set()
    with pytest.raises(JobCancelled, match="has left the standby for job 'job'"):
        job.wait(PATIENCE_S)
    (reign,) = reigns.all
    assert reign.master.outcome is None
    assert reign.closed == ["slots", "worker", "background", "transport", "leader"]
    assert not reign.sockets.exists()
    assert job.view().state is JobState.STANDBY


def test_a_driver_that_is_told_to_cancel_as_soon_as_it_has_the_job_cancels_it(tmp_path):
    begun, told = threading.Event(), threading.Event()

    def begins() -> None:
        begun.set()
        assert told.wait(PATIENCE_S)

    reigns = Reigns(tmp_path, lambda reign: setattr(reign, "begins", begins))
    job = reigns.start()
    assert begun.wait(PATIENCE_S)
    job.cancel()
    told.set()
    with pytest.raises(JobCancelled, match="job 'job' was cancelled"):
        job.wait(PATIENCE_S)
    assert reigns.all[0].master.outcome is JobState.CANCELLED
