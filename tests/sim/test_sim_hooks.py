"""Jobs with a hook, whose marks say where checkpoints begin; and results that only a savepoint promises.

And the bugs that these could have: each is found by one of the first worlds of its kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import first_found, found, shows

from penstock.core.ids import CheckpointId
from penstock.core.recovery.hook_states import HookRestores
from penstock.core.recovery.metadata import Claim
from penstock.core.task.induced import InducedCheckpoints
from penstock.runtime.master.operator_coordinators.commits import DriverCommits
from penstock.runtime.master.saved_results import SavedResults
from penstock.runtime.task.operators.sink import SinkOperator, restored_committables, writer_context
from penstock.settings import CheckpointSettings
from penstock.sim.again import Again
from penstock.sim.faults import SinkErrors, SlotCrash
from penstock.sim.jobs import OnDriver
from penstock.sim.marking_hook import Hooked
from penstock.sim.rules import Rule
from penstock.sim.run import scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES = (SlotCrash(at_ms=150, slot=1, notice=Notice.TOLD), SlotCrash(at_ms=450, slot=0, notice=Notice.TOLD))


def hooked(scenario: Scenario, *, induces: bool = True, mark_us: int = 10_000) -> Scenario:
    workload = replace(scenario.workload, induces=induces)
    return replace(scenario, hook=Hooked(induces=induces, mark_us=mark_us), workload=workload, faults=CRASHES)


def hooked_worlds(make: Any, count: int = 12) -> list[Scenario]:
    kinds = [(True, 0), (True, 10_000), (True, 100_000), (False, 0)]
    return [
        hooked(make.plain(number), induces=kinds[number % 4][0], mark_us=kinds[number % 4][1])
        for number in range(count)
    ]


def test_a_tenth_of_the_worlds_has_a_hook_of_every_kind():
    drawn = [scenario.hook for scenario in map(scenario_of, range(1, 401))]
    chosen = [hook for hook in drawn if hook is not None]
    assert 0.05 < len(chosen) / len(drawn) < 0.15
    assert {hook.induces for hook in chosen} == {True, False}


def test_jobs_with_hooks_keep_every_rule_whatever_dies(make: Any):
    assert found(hooked_worlds(make)) == []


def test_a_hook_that_is_out_of_order_for_a_while_costs_checkpoints_and_attempts_and_nothing_else(make: Any):
    away = SinkErrors(at_ms=100, for_ms=400, share=0.7, after=True)
    assert found([replace(world, faults=(away, *CRASHES)) for world in hooked_worlds(make)]) == []


@pytest.mark.parametrize("seed", [9, 82, 95])
def test_a_checkpoint_that_waits_for_its_hook_while_tasks_end_sends_no_barrier_behind_their_end(seed: int):
    """1. A checkpoint waits for its hook. 2. An older one completes, and lets tasks end. 3. The hook answers."""
    drawn = scenario_of(seed)
    checkpoint = replace(
        drawn.settings.checkpoint, interval_ms=10, min_pause_ms=0, max_concurrent=4, hook_timeout_ms=3_000
    )
    world = replace(
        drawn,
        hook=Hooked(induces=seed % 2 == 0, mark_us=5_000),
        workload=replace(drawn.workload, induces=seed % 2 == 0),
        settings=replace(drawn.settings, checkpoint=checkpoint),
    )
    assert found([world]) == []


def test_a_checkpoint_that_is_aborted_before_a_source_comes_to_its_mark_holds_nothing_up():
    """1. Two sources send their barriers. 2. The checkpoint is aborted before the third source comes to its mark. 3. No
    other checkpoint follows, and the tasks behind wait for the third barrier."""
    assert found([scenario_of(4782)]) == []


def test_tasks_that_begin_before_the_hook_is_back_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(HookRestores, "restored", lambda self, hook: True)
    monkeypatch.setattr(
        "penstock.runtime.master.hook_calls.MasterHooks._submit", lambda self, name, work, done, **_: done_first(done)
    )
    assert shows(Rule.HOOKS, hooked_worlds(make, 4))


def done_first(done: Any) -> None:
    from penstock.ports import WorkResult

    done(WorkResult())


def test_a_source_that_waits_at_marks_of_earlier_attempts_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    make_first = InducedCheckpoints.__init__
    monkeypatch.setattr(InducedCheckpoints, "__init__", lambda self, first: make_first(self, CheckpointId(0)))
    plain = CheckpointSettings(interval_ms=None, timeout_ms=2_000, tolerable_failures=None)
    asked = tuple(UserRequest(at_ms=at_ms, wish=Wish.CHECKPOINT, moment=Moment.THEN) for at_ms in (60, 100))
    worlds = [replace(world, requests=asked) for world in hooked_worlds(make)]
    worlds = [replace(world, settings=replace(world.settings, checkpoint=plain)) for world in worlds]
    assert shows(Rule.LIVENESS, worlds)


# --- savepoints that a job goes on from ------------------------------------------------------------------------------


def saving(make: Any, *, lose_a_slot: bool, on_driver: bool = False, count: int = 8) -> list[Scenario]:
    """Worlds in which the user takes a savepoint, cancels, and has another job go on from it."""
    requests = (
        UserRequest(at_ms=0, wish=Wish.SAVEPOINT, moment=Moment.RUN, delay_ms=200),
        UserRequest(at_ms=0, wish=Wish.CANCEL, moment=Moment.RUN, delay_ms=800 if lose_a_slot else 300),
    )
    worlds = []
    for number in range(count):
        world = make.plain(number)
        settings = replace(world.settings, checkpoint=replace(world.settings.checkpoint, interval_ms=None))
        chosen = OnDriver(sinks=("sink",), cleans_by_attempt=number % 2 == 0) if on_driver else None
        worlds.append(
            replace(
                world,
                settings=settings,
                workload=replace(world.workload, on_driver=chosen, pause_ms=200),
                requests=requests,
                faults=(SlotCrash(at_ms=300, slot=1, notice=Notice.TOLD),) if lose_a_slot else (),
                again=Again(parallelism=1 + number % 3, claim=Claim.NO_CLAIM, moved=False, safety_ms=100),
            )
        )
    return worlds


@pytest.mark.parametrize("on_driver", [False, True])
@pytest.mark.parametrize("lose_a_slot", [False, True])
def test_what_a_savepoint_promises_is_shown_by_the_job_that_goes_on_from_it(
    make: Any, lose_a_slot: bool, on_driver: bool
):
    assert found(saving(make, lose_a_slot=lose_a_slot, on_driver=on_driver)) == []


@pytest.mark.slow
def test_sinks_that_are_cleaned_at_the_end_of_the_first_job_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SavedResults, "may_be_needed", False)
    assert set(first_found(saving(make, lose_a_slot=False))) & {Rule.FENCING, Rule.LIVENESS}


@pytest.mark.slow
def test_a_committer_that_lets_go_of_what_savepoints_promise_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DriverCommits, "saved_with", lambda self, checkpoint, parts: None)
    assert first_found(saving(make, lose_a_slot=False, on_driver=True)) != []


@pytest.mark.slow
def test_a_restart_that_removes_what_savepoints_promise_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def load(self: SinkOperator, context: Any) -> None:
        committables = [committable for _, committable in restored_committables(context)]
        if committables:
            self._sink.commit(committables)
        self._sink.clean(writer_context(context), committables)

    monkeypatch.setattr(SinkOperator, "load", load)
    assert set(first_found(saving(make, lose_a_slot=True))) & {Rule.FENCING, Rule.LIVENESS}
