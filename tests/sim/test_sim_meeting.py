"""Jobs with a function over two keyed streams: every row is shown as the records of both streams say, whatever dies, on
both back ends; and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted_bugs import found, worlds

from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators.co_process import CoOperator
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)


def meetings(
    make: Any, count: int = 3, *, shares_files: bool = False, unaligned: bool = False, **changes: Any
) -> list[Scenario]:
    """Jobs with a function over two streams, which do their work in small slices."""
    given = {"faults": CRASHES, "slice_rows": 2, **changes}
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.MEETS), **given)
    made = [make.workload(s, keys=3, shares_keys=True, other_rows=(30,), shares_files=shares_files) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("shares_files", [False, True])
@pytest.mark.parametrize("unaligned", [False, True])
def test_every_row_is_shown_once_whatever_dies(make: Any, unaligned: bool, shares_files: bool):
    results = [run_scenario(world) for world in meetings(make, unaligned=unaligned, shares_files=shares_files)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
def test_a_function_over_two_streams_goes_on_at_another_parallelism(make: Any, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = meetings(make, unaligned=True, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_a_few_of_all_worlds_have_a_function_over_two_streams_on_both_back_ends():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_500)]
    kinds = Counter(workload.shares_files for workload in drawn if workload.shape is Shape.MEETS)
    assert all(kinds[shares] for shares in (False, True))
    assert 0.004 < kinds.total() / 1_500 < 0.05


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_an_event_time_that_does_not_wait_for_the_right_stream_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CoOperator, "timeless_inputs", (1,))
    longer = [make.workload(world, other_rows=(120,)) for world in meetings(make, faults=())]
    assert Rule.EXACTLY_ONCE in found(longer)


def test_records_of_the_right_stream_that_are_handled_as_the_left_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CoOperator, "process_input", lambda operator, batch, _: operator.process(batch))
    assert Rule.EXACTLY_ONCE in found(meetings(make, faults=()))


def test_state_that_only_one_stream_sees_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = CoOperator.process_input

    def process_input(operator: CoOperator, batch: Any, number: int) -> Any:
        set_key = operator._backend.set_key
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(operator._backend, "set_key", lambda key, group: set_key(key + 1_000 * number, group))
            work = honest(operator, batch, number)
            while work is not None and work.go_on():
                """All rows are handled while the key is wrong."""
        return None

    monkeypatch.setattr(CoOperator, "process_input", process_input)
    assert Rule.EXACTLY_ONCE in found(meetings(make, faults=()))
