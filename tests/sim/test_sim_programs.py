"""Worlds in which a program is run again by its name, and bugs that only such worlds show."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planted_bugs import found, shows

from penstock.core.ids import CheckpointId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import Claim
from penstock.core.recovery.tenure import Inheritance
from penstock.runtime.master.runs import Run
from penstock.settings import NoRestart, Retention
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, CrashAtEnd, CrashInCall, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.programs import Rerun
from penstock.sim.rules import Rule
from penstock.sim.run import Result, run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES = (CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),)
CANCEL = {"requests": (UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=250),)}
STOP = {"requests": (UserRequest(at_ms=0, wish=Wish.STOP, moment=Moment.RUN, delay_ms=250),)}
DRAIN = {"requests": (UserRequest(at_ms=0, wish=Wish.DRAIN, moment=Moment.RUN, delay_ms=250),)}
FAILURE = {"faults": (SlotCrash(at_ms=300, slot=0, notice=Notice.TOLD),)}
DEATH = {"faults": (CrashInCall(at_ms=300, slot=None, call="send", calls=1, notice=Notice.TOLD),)}
DEATH_AT_END = {**CANCEL, "faults": (CrashAtEnd(at_ms=0, calls=4),)}
FINISHED: dict[str, Any] = {}
ENDS = {
    "cancelled": CANCEL,
    "stopped": STOP,
    "drained": DRAIN,
    "failed": FAILURE,
    "died": DEATH,
    "died at its end": DEATH_AT_END,
    "finished": FINISHED,
}


def run_again(
    make: Any, end: dict[str, Any], *, fresh: bool = False, shape: Shape = Shape.KEYED, **changes: Any
) -> list[Scenario]:
    """Programs on two slots whose first run ends like that, and that are run again on three."""
    retention = changes.pop("retention", Retention.KEEP)
    again = Again(parallelism=3, safety_ms=1_000, claim=Claim.NO_CLAIM, moved=False, **{"faults": CRASHES, **changes})
    made = [make.plain(number, again=again, rerun=Rerun(fresh=fresh), **end) for number in range(2)]
    made = [make.shape(make.steady(scenario), shape) for scenario in made]
    if end is FAILURE:
        made = [make.settings(scenario, restart=NoRestart()) for scenario in made]
    return [make.checkpoints(s, retention=retention, inline_threshold_bytes=0, interval_ms=40) for s in made]


def results(worlds: list[Scenario]) -> list[Result]:
    ran = [run_scenario(world) for world in worlds]
    assert [result.violations for result in ran] == [()] * len(ran)
    assert {result.jobs for result in ran} == {2}
    return ran


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("shape", [Shape.WINDOW, Shape.HASH_BROADCAST])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_program_that_is_run_again_goes_on_or_starts_over_however_it_ended(
    make: Any, end: dict[str, Any], shape: Shape, fresh: bool
):
    worlds = run_again(make, end, fresh=fresh, shape=shape, faults=() if end is FAILURE else CRASHES)
    assert {result.outcome for result in results(worlds)} == {JobState.FINISHED}


def drained_and_disturbed(make: Any, slot: int | None, retention: Retention, **changes: Any) -> list[Scenario]:
    """Programs of which a process dies when the savepoint that drains the job is there: a slot, or the driver. Nothing
    else is saved before."""
    crash = CrashAfterCheckpoint(at_ms=100, slot=slot, delay_ms=0, notice=Notice.TOLD)
    made = run_again(make, {**DRAIN, "faults": (crash,)}, retention=retention, faults=(), **changes)
    return [make.checkpoints(scenario, interval_ms=None) for scenario in made]


@pytest.mark.parametrize("retention", [Retention.KEEP, Retention.DELETE])
@pytest.mark.parametrize("shape", [Shape.WINDOW, Shape.KEYED])
@pytest.mark.parametrize("slot", [0, None], ids=["slot", "driver"])
def test_what_goes_wrong_between_a_drain_and_the_end_of_a_job_keeps_no_run_from_reading_on(
    make: Any, slot: int | None, shape: Shape, retention: Retention
):
    """1. A stop with drain has its savepoint. 2. A slot dies, and the job ends with that savepoint in the next attempt;
    or the driver dies, and the next run goes on from that savepoint. 3. The sources have more data. 4. The runs
    together read all of it."""
    ran = results(drained_and_disturbed(make, slot, retention, shape=shape))
    assert {result.outcome for result in ran} == {JobState.FINISHED}
    assert all(result.restores for result in ran)


def test_a_drained_job_that_is_cancelled_before_its_end_reads_on_when_it_is_run_again(make: Any):
    """1. A stop with drain has its savepoint. 2. A slot dies in silence, so that the job does not end. 3. The user
    cancels the job. 4. The program is run again."""
    crash = CrashAfterCheckpoint(at_ms=100, slot=0, delay_ms=0, notice=Notice.SILENT)
    cancel = UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=1_000)
    end = {"requests": (*DRAIN["requests"], cancel), "faults": (crash,)}
    worlds = [make.checkpoints(world, interval_ms=None) for world in run_again(make, end, faults=())]
    assert {result.outcome for result in results(worlds)} == {JobState.FINISHED}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_second_run_that_ends_early_leaves_what_a_third_would_go_on_from(make: Any, fresh: bool):
    early = (UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=5),)
    worlds = run_again(make, CANCEL, fresh=fresh, requests=early, faults=())
    assert {result.outcome for result in results(worlds)} == {JobState.CANCELLED}


def test_a_second_run_that_ends_early_needs_no_checkpoint_that_went_with_the_stop_of_the_first(make: Any):
    """1. Three checkpoints are retained. 2. The job is stopped: the savepoint is all that the next run needs, and the
    checkpoints go. 3. The next run is cancelled before it has a checkpoint."""
    early = (UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=5),)
    worlds = [make.checkpoints(world, num_retained=3) for world in run_again(make, STOP, requests=early, faults=())]
    assert {result.outcome for result in results(worlds)} == {JobState.CANCELLED}


@pytest.mark.parametrize("fresh", [False, True])
def test_drivers_of_the_second_run_may_die(make: Any, fresh: bool):
    deaths = [
        CrashInCall(at_ms=20, slot=None, call=c, calls=n, notice=Notice.TOLD)
        for c in ("write", "delete")
        for n in (1, 5)
    ]
    for death in deaths:
        results(run_again(make, CANCEL, fresh=fresh, faults=(death,)))


def test_worlds_are_run_again_in_every_way():
    drawn = [scenario for seed in range(1, 300) if (scenario := scenario_of(seed)).rerun is not None]
    assert len(drawn) > 20
    assert {(each.rerun.fresh, each.settings.checkpoint.retention) for each in drawn if each.rerun is not None} >= {
        (fresh, retention) for fresh in (False, True) for retention in (Retention.KEEP, Retention.DELETE)
    }


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_ids_that_are_used_twice_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The job deletes its checkpoints, and with them what says which ids are taken."""
    honest = layout.outlives_the_job
    monkeypatch.setattr(
        layout, "outlives_the_job", lambda job, folder: honest(job, folder) and folder != layout.counter_folder(job)
    )
    assert found(run_again(make, CANCEL, retention=Retention.DELETE)) == [Rule.CHECKPOINT_IDS]


def test_a_run_that_forgets_which_ids_were_taken_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Inheritance.going_on
    monkeypatch.setattr(
        Inheritance, "going_on", lambda self: msgspec.structs.replace(honest(self), first_id=CheckpointId(1))
    )
    assert shows(Rule.CHECKPOINT_IDS, run_again(make, CANCEL))


def test_a_run_that_begins_at_its_beginning_although_something_was_kept_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Inheritance, "going_on", lambda self: Inheritance(first_id=self.first_id))
    assert shows(Rule.NEWEST, run_again(make, CANCEL))


def test_a_finished_job_that_is_run_once_more_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Inheritance, "going_on", lambda self: Inheritance(first_id=self.first_id))
    assert shows(Rule.EXACTLY_ONCE, run_again(make, FINISHED, retention=Retention.DELETE))


def test_an_old_job_that_goes_too_early_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = Run.when_safe

    def at_once(self: Run, *given: Any) -> None:
        work = honest(self, *given)
        if work is not None:
            work()

    monkeypatch.setattr(Run, "when_safe", at_once)
    assert found(run_again(make, CANCEL, fresh=True)) == [Rule.STARTED_OVER]


def test_an_old_job_that_never_goes_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Run, "when_safe", lambda self, *given: None)
    assert found(run_again(make, CANCEL, fresh=True)) == [Rule.STARTED_OVER]
