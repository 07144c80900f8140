"""Jobs with parts on the driver: enumerators that find splits over time, sinks that commit for all subtasks at once.

And the bugs that these could have: each is found by one of the first few hundred seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import pytest
from planted_bugs import found, shows

from penstock.api.hold import Hold
from penstock.core.coordinator.gateway import Gateways, SubtaskGateway
from penstock.runtime.master.effects import CheckpointEffects
from penstock.runtime.master.operator_coordinators.commits import DriverCommits
from penstock.runtime.master.operator_coordinators.contract import OperatorCoordinator
from penstock.runtime.master.operator_coordinators.enumeration import SplitAssigner
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators
from penstock.runtime.task.operators.driver_sink import DriverCommittedSink
from penstock.runtime.task.operators.sink import decode_committables, restored_committables
from penstock.runtime.task.operators.source import SourceOperator
from penstock.settings import Mode
from penstock.sim.external import system_of
from penstock.sim.faults import CrashAfterCheckpoint, SinkErrors, SlotCrash
from penstock.sim.jobs import ASIDE, OnDriver, Shape
from penstock.sim.on_driver import SimCommitter, SimEnumerator
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import sinks_of
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

SEEDS = range(1, 601)
ROWS = {Rule.EXACTLY_ONCE, Rule.AT_LEAST_ONCE, Rule.STOPPED}
FINDS = OnDriver(sources=(0,), known=1, at_once=1, look_ms=20, unread=None)


@lru_cache(maxsize=1)
def drawn() -> tuple[Scenario, ...]:
    """The first worlds with parts on the driver."""
    scenarios = (scenario_of(seed) for seed in SEEDS)
    return tuple(scenario for scenario in scenarios if scenario.workload.on_driver is not None)


def search(first: int | None) -> list[Scenario]:
    """The drawn worlds. The world with the seed that is known to show a bug comes first, if there is such a world."""
    return sorted(drawn(), key=lambda world: world.seed != first)


def first_found(seed: int | None = None) -> tuple[Rule, ...]:
    """The rules that the first world finds broken in which one is. The search begins at the world with this seed."""
    broken = (tuple(dict.fromkeys(v.rule for v in run_scenario(world).violations)) for world in search(seed))
    return next((rules for rules in broken if rules), ())


def is_found(rule: Rule, seed: int | None = None) -> bool:
    """Whether some world finds this rule broken. The search begins at the world with this seed."""
    return shows(rule, search(seed))


# --- worlds -----------------------------------------------------------------------


def test_a_fifth_of_the_worlds_has_parts_on_the_driver_of_every_kind():
    chosen = [world.workload.on_driver for world in drawn()]
    assert 0.12 < len(chosen) / len(SEEDS) < 0.28
    assert {(bool(each.sources), bool(each.sinks)) for each in chosen} == {(True, False), (False, True), (True, True)}
    assert {each.unread is None for each in chosen} == {each.cleans_by_attempt for each in chosen} == {True, False}
    # Rows wait for a source, first records are counted, records are sorted, and streams are joined, only where all
    # splits are known from the beginning.
    without = {
        Shape.WAITS,
        Shape.LIMIT,
        Shape.LIMIT_BESIDE,
        Shape.JOIN,
        Shape.CHANGES,
        Shape.MEETS,
        Shape.SORTED,
        *ASIDE,
    }
    assert {world.workload.shape for world in drawn()} == set(Shape) - without
    assert {world.settings.checkpoint.mode for world in drawn()} == set(Mode)
    assert {each.spoils_after is None for each in chosen} == {True, False}
    assert any(world.lasting for world in drawn())
    assert any(world.requests for world in drawn())


@pytest.mark.parametrize("shape", Shape)
def test_every_shape_shows_every_record_once_whatever_runs_on_the_driver(make: Any, shape: Shape):
    faults = (
        CrashAfterCheckpoint(at_ms=100, slot=1, delay_ms=5, notice=Notice.TOLD),
        SinkErrors(at_ms=300, for_ms=200, share=0.3, after=True),
        SlotCrash(at_ms=700, slot=0, notice=Notice.TOLD),
    )
    made = make.shape(make.steady(make.plain(1, faults=faults)), shape)
    chosen = replace(FINDS, sources=tuple(range(made.workload.sources)), sinks=sinks_of(shape))
    splits = 1 if shape in (Shape.LIMIT, Shape.LIMIT_BESIDE) else 6
    assert run_scenario(make.workload(made, splits=splits, rows=120 // splits, on_driver=chosen)).violations == ()


@pytest.mark.parametrize("shape", [Shape.KEYED, Shape.PIPELINES])
def test_an_enumerator_whose_snapshot_raises_costs_one_attempt_of_the_whole_job(make: Any, shape: Shape):
    spoiling = make.workload(
        make.shape(make.checkpoints(make.plain(1), interval_ms=50, tolerable_failures=None), shape),
        splits=8,
        rows=40,
        pause_ms=30,
        on_driver=replace(FINDS, spoils_after=1),
    )
    told = run_scenario(spoiling, keep_log=True)
    assert told.violations == ()
    assert (told.attempts, told.repairs) == (2, 0)
    assert "cannot be part of a checkpoint" in "\n".join(told.log)


def test_the_log_tells_what_the_driver_finds_and_commits(make: Any):
    told = run_scenario(make.workload(make.plain(), on_driver=replace(FINDS, sinks=("sink",))), keep_log=True)
    text = "\n".join(told.log)
    assert "finds splits [1]" in text
    assert "SplitsAdded 1 splits" in text
    assert any("commits checkpoint" in line and "to sink" in line for line in told.log)


@pytest.mark.parametrize("slot", [0, None], ids=["slot", "driver"])
def test_the_driver_commits_what_a_drained_job_promised_before_the_job_ends_again(make: Any, slot: int | None):
    """1. A stop with drain has its savepoint. 2. A process dies. 3. The next attempt ends with that savepoint, and
    waits until the driver has committed what the savepoint promised: nobody would commit that after the end."""
    drain = UserRequest(at_ms=0, wish=Wish.DRAIN, moment=Moment.RUN, delay_ms=250)
    crash = CrashAfterCheckpoint(at_ms=100, slot=slot, delay_ms=0, notice=Notice.TOLD)
    slowly = replace(FINDS, known=2, sinks=("sink",), work_us=(20_000, 400_000))
    for number in range(3):
        made = make.steady(make.plain(number, requests=(drain,), faults=(crash,), lasting=True))
        told = run_scenario(make.checkpoints(make.workload(made, on_driver=slowly), interval_ms=None), keep_log=True)
        assert (told.violations, told.restores, told.checkpoints) == ((), 1, 1)
        commits = [number for number, line in enumerate(told.log) if "commits checkpoint" in line]
        ends = [number for number, line in enumerate(told.log) if "is ending: finished" in line]
        assert commits[-1] < ends[0]


# --- planted bugs: splits -----------------------------------------------------------------------


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return monkeypatch.setattr


@pytest.mark.slow
def test_events_that_are_not_held_back_are_found(plant: Any):
    plant(SubtaskGateway, "close", lambda gateway, checkpoint: None)
    assert Rule.SPLITS in first_found(seed=90)


@pytest.mark.slow
def test_a_snapshot_that_is_taken_when_the_tasks_have_taken_theirs_is_found(plant: Any):
    honest = CheckpointEffects._write_metadata

    def late(effects: CheckpointEffects, effect: Any) -> None:
        known = effects._coordinators._known
        states = {o: msgspec.msgpack.encode(c._state) for o, c in known.items() if isinstance(c, SplitAssigner)}
        coordinators = {**effect.metadata.coordinators, **states}
        metadata = msgspec.structs.replace(effect.metadata, coordinators=coordinators)
        honest(effects, msgspec.structs.replace(effect, metadata=metadata))

    plant(CheckpointEffects, "_write_metadata", late)
    assert is_found(Rule.SPLITS, seed=64)


@pytest.mark.slow
def test_a_snapshot_that_does_not_wait_for_events_on_their_way_is_found(plant: Any):
    plant(Gateways, "on_the_way", lambda gateways, operator: set())
    assert Rule.SPLITS in first_found(seed=129)


def test_splits_that_are_not_given_back_after_a_failure_are_found(plant: Any):
    honest = SplitAssigner.reset

    def stubborn(assigner: SplitAssigner, restored: Any, parts: Any) -> None:
        before = assigner._state
        honest(assigner, restored, parts)
        assigner._state = before

    plant(SplitAssigner, "reset", stubborn)
    assert {*ROWS, Rule.SPLITS} & set(first_found())


def test_the_state_of_a_checkpoint_that_was_aborted_is_found_if_it_is_restored(plant: Any):
    newest: dict[int, bytes] = {}
    take, reset = SplitAssigner.snapshot, SplitAssigner.reset

    def keeping(assigner: SplitAssigner, checkpoint: Any) -> bytes:
        newest[id(assigner)] = state = take(assigner, checkpoint)
        return state

    def wrong(assigner: SplitAssigner, restored: Any, parts: Any) -> None:
        reset(assigner, newest.get(id(assigner), restored) if restored is not None else None, parts)

    plant(SplitAssigner, "snapshot", keeping)
    plant(SplitAssigner, "reset", wrong)
    assert {*ROWS, Rule.SPLITS} & set(first_found())


@pytest.mark.slow
def test_what_was_found_for_an_attempt_that_is_over_is_found_if_it_is_given_out(plant: Any):
    """1. The enumerator is asked. 2. The attempt fails, the next begins and asks again. 3. Both answers are taken."""
    plant(SplitAssigner, "_attempt", property(lambda part: 0, lambda part, number: None), raising=False)
    assert set(first_found(seed=69)) & {Rule.SPLITS, Rule.FENCING}


def test_a_split_that_is_given_to_two_readers_is_found(plant: Any):
    honest = SplitAssigner._found

    def generous(assigner: SplitAssigner, found: Any) -> None:
        honest(assigner, replace(found, splits=[*found.splits, *found.splits]))

    plant(SplitAssigner, "_found", generous)
    assert Rule.SPLITS in first_found()


@pytest.mark.slow
def test_readers_that_are_not_told_again_that_nothing_follows_wait_for_ever(plant: Any):
    honest = SplitAssigner.run

    def silent(assigner: SplitAssigner) -> None:
        if assigner._state.ended:
            OperatorCoordinator.run(assigner)
        else:
            honest(assigner)

    plant(SplitAssigner, "run", silent)
    assert Rule.LIVENESS in first_found(seed=39)


@pytest.mark.slow
def test_an_enumerator_that_is_told_of_every_checkpoint_comes_to_nothing_else_if_they_are_frequent(
    make: Any, plant: Any
):
    slowly = replace(FINDS, work_us=(50_000, 100_000))
    plain = make.workload(make.plain(liveness_ms=8_000), splits=20, rows=4, on_driver=slowly)
    frequent = make.checkpoints(plain, interval_ms=10)
    assert found([frequent]) == []

    def eager(assigner: SplitAssigner, checkpoint: Any, parts: Any) -> None:
        position = assigner._positions.pop(checkpoint, None)
        assigner.off_loop(lambda: assigner._enumerator.consumed(position, parts), lambda _: None)

    plant(SplitAssigner, "completed", eager)
    assert found([frequent]) == [Rule.LIVENESS]


@pytest.mark.slow
def test_an_enumerator_that_lets_go_of_what_a_restart_needs_is_found(plant: Any):
    honest = SimEnumerator.consumed
    plant(SimEnumerator, "consumed", lambda enumerator, position, unread: honest(enumerator, position, ()))
    assert Rule.SPLITS in first_found(seed=39)


def test_a_reader_that_forgets_what_it_was_given_when_it_is_asked_is_found(plant: Any):
    plant(SourceOperator, "handle_event", _forgetting(SourceOperator.handle_event))
    assert Rule.SPLITS in first_found()


def _forgetting(honest: Any) -> Any:
    calls: Iterator[int] = iter(range(1_000_000))

    def handle(operator: SourceOperator, event: bytes) -> None:
        if b"SplitsAdded" not in event or next(calls) % 3:
            honest(operator, event)

    return handle


# --- planted bugs: commits -----------------------------------------------------------------------


def test_a_group_that_is_committed_twice_is_found(plant: Any):
    honest = DriverCommits._perform

    def twice(commits: DriverCommits, *group: Any) -> None:
        honest(commits, *group)
        honest(commits, *group)

    plant(DriverCommits, "_perform", twice)
    assert Rule.COMMITS in first_found()


def test_groups_that_are_committed_in_another_order_are_found(plant: Any):
    honest = DriverCommits._groups
    plant(DriverCommits, "_groups", lambda commits, parts: honest(commits, parts)[::-1])
    assert Rule.COMMITS in first_found()


def test_what_a_restored_checkpoint_promised_is_missed_if_nobody_commits_it(plant: Any):
    honest = DriverCommits.reset

    def forgetful(commits: DriverCommits, restored: Any, parts: Any) -> None:
        honest(commits, restored, ())
        promised = [piece[0] for part in parts for piece in decode_committables(part)]
        commits._committed = commits._asked = max([commits._committed, *promised])

    plant(DriverCommits, "reset", forgetful)
    assert ROWS & set(first_found())


def test_a_group_that_lacks_the_part_of_one_subtask_is_found(plant: Any):
    honest = OperatorCoordinators.metadata_made

    def partial(coordinators: OperatorCoordinators, metadata: Any) -> None:
        honest(coordinators, metadata)
        for parts in coordinators._parts.values():
            parts.update({o: known[:1] for o, known in parts.items() if len(known) > 1})

    plant(OperatorCoordinators, "metadata_made", partial)
    assert {*ROWS, Rule.COMMITS} & set(first_found())


@pytest.mark.slow
def test_what_was_promised_is_missed_if_it_is_abandoned(plant: Any):
    honest = SimCommitter.abandon
    plant(SimCommitter, "abandon", lambda committer, checkpoint, promised: honest(committer, checkpoint, ()))
    assert Rule.FENCING in first_found()


def test_a_driver_that_commits_when_another_has_the_job_is_found(plant: Any):
    plant(Hold, "check", lambda hold: None)
    assert Rule.FENCING in first_found()


@pytest.mark.slow
def test_a_sink_that_carries_nothing_beyond_the_checkpoint_is_found(plant: Any):
    """What an aborted checkpoint had prepared, or the driver has not committed yet, is in no later one."""
    honest = DriverCommittedSink.completed

    def hasty(sink: DriverCommittedSink, checkpoint: Any) -> None:
        honest(sink, checkpoint)
        sink._forget(sink._transactions[:])

    plant(DriverCommittedSink, "completed", hasty)
    assert is_found(Rule.EXACTLY_ONCE, seed=75)


def to_and_fro(make: Any, number: int) -> Scenario:
    """The job is rescaled twice before the driver has committed what was prepared first, and restarts then."""
    wishes = [(0, Moment.RUN, 20, 3), (1, Moment.RUN, 120, 2)]
    requests = tuple(
        UserRequest(at_ms=at_ms, wish=Wish.RESCALE, moment=moment, delay_ms=delay_ms, parallelism=parallelism)
        for at_ms, moment, delay_ms, parallelism in wishes
    )
    faults = tuple(SlotCrash(at_ms=at_ms, slot=0, notice=Notice.TOLD) for at_ms in (600, 1_200))
    plain = make.steady(make.plain(number, requests=requests, faults=faults, safety_ms=1_500))
    slowly = OnDriver(sinks=("sink",), work_us=(100_000, 600_000), cleans_by_attempt=True)
    return make.checkpoints(make.workload(plain, rows=80, pause_ms=30, on_driver=slowly), interval_ms=50)


@pytest.mark.slow
def test_what_another_subtask_carries_is_missed_if_those_who_prepared_it_clean_up(make: Any, plant: Any):
    made = [to_and_fro(make, number) for number in range(6)]
    assert found(made) == []
    honest = DriverCommittedSink.load

    def tidy(sink: DriverCommittedSink, context: Any) -> None:
        honest(sink, context)
        kept = [committable for _, committable in restored_committables(context)]
        if not context.rescaled:
            system_of(sink._sink.world).abandon(
                lambda t: t.subtask == context.task.subtask and t.epoch < context.epoch and t.token not in kept
            )

    plant(DriverCommittedSink, "load", tidy)
    assert shows(Rule.FENCING, made)
