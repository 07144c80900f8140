"""What users ask for: rules about answers, savepoints and stops, each with a bug that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from planted_bugs import found, shows, worlds

from penstock.core.coordinator.archive import Archive
from penstock.core.coordinator.effects import AnswerRequest
from penstock.core.coordinator.stopping import StopWithSavepoint
from penstock.core.ids import Instant
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.runtime.master.driver import MasterDriver, SnapshotRequest
from penstock.runtime.master.requests import Answer
from penstock.runtime.task.operators.sink import SinkOperator
from penstock.runtime.task.subtask import Task
from penstock.settings import Mode
from penstock.sim.disk import Disk
from penstock.sim.faults import CrashAfterCheckpoint, SlotCrash, SlowStorage
from penstock.sim.inputs import SimReader
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.simulation import Parts
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish, draw_requests, draw_rescales
from penstock.sim.world import seeded

AT_THE_SAVEPOINT = CrashAfterCheckpoint(at_ms=251, slot=1, delay_ms=0, notice=Notice.TOLD)
"""What completes next is the savepoint of a stop at 250 ms."""


def ask(wish: Wish, at_ms: int = 250, moment: Moment = Moment.THEN, delay_ms: int = 0) -> UserRequest:
    return UserRequest(at_ms=at_ms, wish=wish, moment=moment, delay_ms=delay_ms)


def asking(make: Any, *wishes: UserRequest, shape: Shape = Shape.WINDOW, count: int = 2, **more: Any) -> list[Scenario]:
    """A few worlds of a steady job whose state lies in files, and a user who wants these."""

    def shaped(scenario: Scenario) -> Scenario:
        return make.checkpoints(make.shape(make.steady(scenario), shape), inline_threshold_bytes=0)

    return worlds(make, count, shaped, requests=wishes, **more)


# --- without a bug -----------------------------------------------------------------------

ENDS: dict[str, tuple[UserRequest, ...]] = {
    "before it runs": (ask(Wish.STOP, 0), ask(Wish.SAVEPOINT, 0), ask(Wish.CHECKPOINT, 1)),
    "two stops": (ask(Wish.STOP), ask(Wish.DRAIN)),
    "stop and cancel": (ask(Wish.STOP), ask(Wish.CANCEL, 252)),
    "many": tuple(ask(wish, at_ms) for at_ms in (150, 160, 240) for wish in (Wish.CHECKPOINT, Wish.SAVEPOINT)),
    "while it restarts": (ask(Wish.STOP, 0, Moment.FAILURE), ask(Wish.SAVEPOINT, 0, Moment.FAILURE, 20)),
    "after the end": (ask(Wish.STOP, 5_000), ask(Wish.SAVEPOINT, 6_000)),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", [Shape.UNION_WINDOW, Shape.DIAMOND])
def test_without_a_bug_no_request_breaks_a_rule(make: Any, end: str, shape: Shape):
    crash = SlotCrash(at_ms=300, slot=1, notice=Notice.TOLD)
    assert found(asking(make, *ENDS[end], shape=shape, faults=(crash,))) == []


@pytest.mark.parametrize("wish", [Wish.STOP, Wish.DRAIN])
@pytest.mark.parametrize("shape", Shape)
def test_a_stop_ends_every_job_in_the_middle_of_its_data(make: Any, shape: Shape, wish: Wish):
    result = run_scenario(asking(make, ask(wish), shape=shape, count=1)[0])
    assert (result.violations, result.outcome) == ((), JobState.FINISHED)
    assert result.granted == (wish,)


@pytest.mark.parametrize("shape", [Shape.KEYED, Shape.HASH_BROADCAST, Shape.UNION_WINDOW])
def test_with_at_least_once_a_stop_may_have_shown_records_that_it_would_have_read_again(make: Any, shape: Shape):
    """1. What came behind the barriers is committed with the checkpoint. 2. A slot dies. 3. The next attempt is stopped
    before it has read that again: it is shown, and the savepoint is before it."""
    crash = CrashAfterCheckpoint(at_ms=150, slot=1, delay_ms=0, notice=Notice.TOLD)
    stop = ask(Wish.STOP, 160, Moment.RUN, 1)
    tracked = [
        make.checkpoints(scenario, mode=Mode.AT_LEAST_ONCE)
        for scenario in asking(make, stop, shape=shape, count=4, faults=(crash,))
    ]
    assert found(tracked) == []
    assert Wish.STOP in run_scenario(tracked[0]).granted


def failing(make: Any, *, dies: bool) -> list[Scenario]:
    """A savepoint expires while its files are being written, and the driver may die before it has deleted them."""
    slow = SlowStorage(at_ms=250, for_ms=200, by_ms=20)
    death = (SlotCrash(at_ms=305, slot=None, notice=Notice.TOLD),) if dies else ()
    made = asking(make, ask(Wish.SAVEPOINT), faults=(slow, *death), lasting=True)
    return [make.checkpoints(scenario, timeout_ms=50) for scenario in made]


def test_what_there_is_of_a_savepoint_that_failed_may_be_left_if_its_driver_dies(make: Any):
    assert found(failing(make, dies=True)) == []


def test_what_is_left_of_a_savepoint_that_failed_is_found_if_its_driver_lives(make: Any):
    class Keeping(Disk):
        """Deletes no savepoint."""

        def remove(self, path: str) -> None:
            if not path.startswith("savepoints/"):
                super().remove(path)

    assert found(failing(make, dies=False)) == []
    assert found(failing(make, dies=False), Parts(disk=Keeping)) == [Rule.NO_ORPHANS]


def test_requests_that_come_too_early_or_too_late_are_refused(make: Any):
    result = run_scenario(asking(make, ask(Wish.STOP, 0), ask(Wish.STOP), ask(Wish.DRAIN), count=1)[0])
    assert result.violations == ()
    assert (result.granted, result.refused) == ((Wish.STOP,), (Wish.STOP, Wish.DRAIN))


# --- answers -----------------------------------------------------------------------


@pytest.mark.parametrize("times", [0, 2])
def test_a_request_that_is_not_answered_once_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, times: int):
    honest = MasterDriver.request

    def request(master: MasterDriver, wanted: SnapshotRequest, answer: Answer) -> None:
        honest(master, wanted, lambda result: [answer(result) for _ in range(times)] and None)

    monkeypatch.setattr(MasterDriver, "request", request)
    assert found(asking(make, ask(Wish.CHECKPOINT))) == [Rule.ANSWERED]


def test_a_checkpoint_that_is_promised_before_it_is_durable_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    class Losing(Disk):
        """Says that it wrote the pointers, and did not."""

        def put(self, path: str, data: bytes) -> None:
            if "/completed/" not in path:
                super().put(path, data)

    assert shows(Rule.ANSWERED, asking(make, ask(Wish.CHECKPOINT)), Parts(disk=Losing))


def test_a_stop_that_is_granted_before_all_tasks_have_ended_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """1. The savepoint is there, and the user is told that the job has stopped. 2. A slot dies. 3. The job starts again
    and goes on to the end of its data."""

    def hasty(stop: StopWithSavepoint, savepoint: CompletedCheckpoint) -> list[Any]:
        request = stop._request
        stop._reset()
        return [] if request is None else [AnswerRequest(request=request, result=savepoint)]

    stubborn = asking(make, ask(Wish.STOP), shape=Shape.KEYED, faults=(AT_THE_SAVEPOINT,))
    assert found(stubborn) == []
    monkeypatch.setattr(StopWithSavepoint, "saved", hasty)
    assert found(stubborn) == [Rule.STOPPED]


# --- savepoints -----------------------------------------------------------------------


def test_a_savepoint_that_lacks_a_file_is_found(make: Any):
    """The driver looks for the files before it writes the metadata, so a file must go afterwards."""

    class Forgetful(Disk):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            if path.startswith("savepoints/") and path.endswith("/_metadata"):
                folder = path.removesuffix("_metadata")
                for lost in [name for name in self.files if name.startswith(f"{folder}window-")]:
                    self.remove(lost)

    assert found(asking(make, ask(Wish.SAVEPOINT)), Parts(disk=Forgetful)) == [Rule.SAVEPOINTS]


def test_a_savepoint_that_is_taken_back_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Archive, "give_to_user", lambda self, pending: None)
    assert found(asking(make, ask(Wish.SAVEPOINT))) == [Rule.SAVEPOINTS]


def test_a_failed_savepoint_that_leaves_files_is_found(make: Any):
    """A slot dies while the savepoint is being written."""

    class Hoarding(Disk):
        def remove(self, path: str) -> None:
            if not path.startswith("savepoints/"):
                super().remove(path)

    crash = SlotCrash(at_ms=290, slot=1, notice=Notice.TOLD)
    failing = asking(make, ask(Wish.SAVEPOINT), count=4, work_us=(2_000, 10_000), faults=(crash,))
    assert found(failing) == []
    assert found(failing, Parts(disk=Hoarding)) == [Rule.NO_ORPHANS]


# --- stops -----------------------------------------------------------------------


def always(*, drain: bool) -> Callable[..., None]:
    honest = Task._finish_data

    def finish(task: Task, now: Instant, **_: bool) -> None:
        honest(task, now, drain=drain)

    return finish


@pytest.mark.parametrize(("wish", "drain"), [(Wish.STOP, True), (Wish.DRAIN, False)])
def test_windows_that_a_stop_closes_early_or_not_at_all_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, wish: Wish, drain: bool
):
    monkeypatch.setattr(Task, "_finish_data", always(drain=drain))
    assert found(asking(make, ask(wish), shape=Shape.UNION_WINDOW)) == [Rule.STOPPED]


@pytest.mark.parametrize("shape", [Shape.KEYED, Shape.HASH_BROADCAST])
def test_a_savepoint_that_is_ahead_of_what_was_shown_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape):
    honest = SimReader.snapshot

    def ahead(reader: SimReader) -> list[bytes]:
        rows, reader._rows = reader._rows, {split: row + 1 for split, row in reader._rows.items()}
        try:
            return honest(reader)
        finally:
            reader._rows = rows

    monkeypatch.setattr(SimReader, "snapshot", ahead)
    assert found(asking(make, ask(Wish.STOP), shape=shape)) == [Rule.STOPPED]


def test_a_sink_that_commits_nothing_at_the_end_of_a_stop_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The last transactions are in the savepoint, and must be visible when the job has stopped."""
    monkeypatch.setattr(SinkOperator, "_commit_next", lambda operator: None)
    assert shows(Rule.STOPPED, asking(make, ask(Wish.STOP), shape=Shape.KEYED))


# --- what is drawn -----------------------------------------------------------------------


def test_a_task_that_says_again_and_again_that_it_has_ended_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Task._try_to_end

    def chatty(self: Task, now: Instant) -> bool:
        ended = honest(self, now)
        if ended:
            self._host.finished(self.task)
        return ended

    monkeypatch.setattr(Task, "_try_to_end", chatty)
    assert found(asking(make, ask(Wish.DRAIN), count=1)) == [Rule.NO_LIVELOCK]


def test_the_requests_of_many_worlds_are_of_all_kinds():
    draws = (draw_requests, draw_rescales)
    drawn = [request for seed in range(200) for draw in draws for request in draw(seeded(seed), duration_ms=600)]
    assert {request.wish for request in drawn} == set(Wish)
    assert {request.moment for request in drawn} == set(Moment)
    assert any(request.at_ms == 0 for request in drawn)
    assert all(0 <= request.at_ms <= 600 for request in drawn)
