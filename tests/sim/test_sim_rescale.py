"""Jobs that are rescaled again and again while their processes die: what is committed stays what it should be, and the
user is told the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import found, shows, worlds

import penstock as ps
from penstock.core.job.lifecycle import JobLifecycle
from penstock.runtime.master.requests import RescaleRequests
from penstock.runtime.task.inflight import ChannelReader
from penstock.sim.expected import Stage, next_stage
from penstock.sim.faults import CrashAfterRescale, DriverOversleeps, StorageErrors
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import UserRequest, Wish
from penstock.testing import collect, pause, run, runs, scripted

SECOND_US = 1_000_000
WORDS = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler", "mind", "suffer")
ROWS = 120


def script(number: int) -> list[dict]:
    """A word a second, in another order in each script."""
    return [{"word": WORDS[(i * (number + 1)) % len(WORDS)], "at": i * SECOND_US} for i in range(ROWS)]


def with_pauses(rows: list[dict]) -> list:
    """Time passes now and then, so that more can happen."""
    return [item for i, row in enumerate(rows) for item in ((pause(40), row) if i % 20 == 19 else (row,))]


def word_counts(env, source, results) -> None:
    # A subtask reads several scripts, and after a rescale others, which are not where its own are: nothing may be late
    # for that.
    words = env.read(source).watermark("at")
    words.key_by("word").window(ps.tumbling("5s")).aggregate(n=ps.count()).write(results)


def expected() -> Counter:
    rows = [row for number in range(5) for row in script(number)]
    return Counter((row["word"], row["at"] // SECOND_US // 5 * 5) for row in rows)


@pytest.fixture
def rescaled(monkeypatch):
    """Has every run be rescaled at random times, with barriers that overtake in channels that are soon full; returns
    what was answered."""
    answers: list[tuple[int, str | None]] = []
    settings, begin = runs._settings, runs._Cluster.run

    def overtaking(world, parallelism, interval_ms):
        made = settings(world, parallelism, interval_ms)
        tight = replace(made.network, channel_bytes=500, output_bytes=500, batch_bytes=200)
        unaligned = replace(made.checkpoint, unaligned=world.random.random() < 0.8)
        return replace(made, network=tight, checkpoint=unaligned)

    def run_rescaled(cluster):
        world = cluster._world

        def ask() -> None:
            if cluster._master.outcome is None:
                wanted = world.random.randint(1, 5)
                cluster._master.rescale(wanted, lambda text: answers.append((wanted, text)))
                cluster._master_actor.wake()
                world.after(world.between(10_000, 150_000), ask)

        world.after(world.between(10_000, 100_000), ask)
        begin(cluster)

    monkeypatch.setattr(runs, "_settings", overtaking)
    monkeypatch.setattr(runs._Cluster, "run", run_rescaled)
    return answers


@pytest.mark.parametrize("crashes", [0, 3])
@pytest.mark.slow
def test_nothing_is_lost_or_repeated_however_often_the_parallelism_changes(rescaled, crashes):
    done = 0
    for seed in range(15):
        rescaled.clear()
        source = scripted(*(with_pauses(script(number)) for number in range(5)), schema="word string, at timestamp")
        rows = run(
            lambda env, source=source: word_counts(env, source, collect()),
            parallelism=2,
            seed=seed,
            crashes=crashes,
            checkpoint_interval="30ms",
        )
        counts = Counter({(row["word"], row["window_start"].timestamp()): row["n"] for row in rows})
        assert len(rows) == len(counts), f"seed {seed} repeats windows"
        assert counts == expected(), f"seed {seed}"
        done += sum(text is None for _, text in rescaled)
    assert done > 30


# --- as the user of any world asks for it -----------------------------------------------------------------------


def rescaling(make: Any, *wanted: int, shape: Shape = Shape.KEYED, count: int = 3, **more: Any) -> list[Scenario]:
    """Worlds of a steady job on two slots that is asked to have others, one after the other."""

    def shaped(scenario: Scenario) -> Scenario:
        long = make.workload(make.shape(make.steady(scenario), shape), rows=80)
        return make.checkpoints(long, unaligned=True, inline_threshold_bytes=0, interval_ms=100)

    requests = tuple(
        UserRequest(at_ms=150 + 250 * number, wish=Wish.RESCALE, parallelism=parallelism)
        for number, parallelism in enumerate(wanted)
    )
    return worlds(make, count, shaped, requests=requests, **more)


@pytest.mark.parametrize("shape", Shape)
def test_every_job_goes_to_another_parallelism_and_on(make: Any, shape: Shape):
    results = [run_scenario(world) for world in rescaling(make, 3, 1, shape=shape, count=2)]
    assert [result.violations for result in results] == [(), ()]
    assert all(Wish.RESCALE in result.granted for result in results)


@pytest.mark.parametrize("slot", [None, 0, 1, 2])
@pytest.mark.parametrize("delay_ms", [0, 10, 40, 90])
def test_any_process_may_die_while_the_job_is_rescaled(make: Any, slot: int | None, delay_ms: int):
    crash = CrashAfterRescale(at_ms=0, slot=slot, delay_ms=delay_ms, notice=Notice.TOLD)
    assert found(rescaling(make, 3, 1, shape=Shape.HASH_BROADCAST, faults=(crash,), lasting=slot is None)) == []


@pytest.mark.parametrize("at_ms", [160, 270])
def test_a_driver_that_is_to_be_taken_over_from_may_still_rescale_the_job(make: Any, at_ms: int):
    """1. The user asks for a rescale. 2. The driver falls asleep, and another is to take the job over: the storage says
    no. 3. The first wakes up, has the job still, and rescales it."""
    refused = StorageErrors(at_ms=at_ms + 15, for_ms=10, share=1.0, after=False)
    slept = DriverOversleeps(at_ms=at_ms, for_ms=22, taken_over_ms=20)
    assert found(rescaling(make, 3, count=2, faults=(refused, slept), lasting=True)) == []


def test_a_rescale_together_with_a_stop_leaves_no_rule_broken(make: Any):
    for at_ms in (150, 160, 200, 240):
        stop = UserRequest(at_ms=at_ms, wish=Wish.STOP)
        together = [replace(world, requests=(*world.requests, stop)) for world in rescaling(make, 3)]
        assert found(together) == []


def test_a_rescale_that_is_said_to_be_done_and_is_not_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RescaleRequests, "prepared", lambda self: self._tell(None))
    assert found(rescaling(make, 3)) == [Rule.ANSWERED]


def test_a_rescale_that_is_never_answered_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RescaleRequests, "running", lambda self: None)
    monkeypatch.setattr(RescaleRequests, "given_up", lambda self, text: None)
    assert found(rescaling(make, 3)) == [Rule.ANSWERED]


def test_a_rescale_that_is_said_to_have_failed_and_is_done_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = RescaleRequests.ask

    def refused(self, plan, answer):
        honest(self, plan, lambda text: None)
        answer("no")

    monkeypatch.setattr(RescaleRequests, "ask", refused)
    assert found(rescaling(make, 3)) == [Rule.ANSWERED]


def test_a_job_that_does_not_come_up_again_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """Those who survive are not told to drop their tasks, and time is not watched."""
    honest = JobLifecycle._handle_rescale_confirmed

    def forgetful(self, now):
        effects = honest(self, now)
        self._attempt.deadline = None
        return effects[:1]

    monkeypatch.setattr(JobLifecycle, "_handle_rescale_confirmed", forgetful)
    assert shows(Rule.LIVENESS, rescaling(make, 3, count=1))


def test_data_in_flight_that_is_not_dealt_out_is_missed(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ChannelReader, "read_dealt", lambda self, task, dealt: {})
    assert shows(Rule.EXACTLY_ONCE, rescaling(make, 3))


def test_only_stages_that_were_not_undone_count():
    one, two, three = (Stage(parallelism=n, restored=r) for n, r in ((2, None), (3, 5), (4, 9)))
    assert next_stage((), one) == (one,)
    assert next_stage((one,), two) == (one, two)
    assert next_stage((one, two), Stage(parallelism=3, restored=7)) == (one, two)
    assert next_stage((one, two), three) == (one, two, three)
    # Another driver begins again, with what the program says, from an older checkpoint.
    assert next_stage((one, two, three), Stage(parallelism=2, restored=8)) == (
        one,
        two,
        Stage(parallelism=2, restored=8),
    )
    assert next_stage((one, two, three), one) == (one,)
