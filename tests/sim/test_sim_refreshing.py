"""Jobs that join a stream with a table that changes all the time: every record is shown once, no record meets an
earlier version than the record of its key before it, whatever dies, and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from planted_bugs import found, worlds

from penstock.api.join_steps import JoinKind
from penstock.api.static_tables import TableVersion
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators.table_join import TableJoinOperator
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import Shape
from penstock.sim.joining import Joining
from penstock.sim.refreshing import ChangingTable
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=700, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=1_200, slot=1, notice=Notice.TOLD),
)


def refreshing(
    make: Any, count: int = 4, *, how: JoinKind = JoinKind.LEFT, unaligned: bool = False, **changes: Any
) -> list[Scenario]:
    """Jobs that join a stream with a table that changes. The table is kept by key in half of the jobs."""
    given = {"faults": CRASHES, "slice_rows": 2, **changes}
    made = worlds(make, count, make.steady, lambda s: make.shape(s, Shape.TABLE), **given)
    made = [make.workload(s, joining=Joining(how=how), refreshes=True, pause_ms=100) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("how", [JoinKind.INNER, JoinKind.LEFT, JoinKind.ANTI])
@pytest.mark.parametrize("unaligned", [False, True])
def test_no_record_meets_an_earlier_version_whatever_dies(make: Any, unaligned: bool, how: JoinKind):
    results = [run_scenario(world) for world in refreshing(make, unaligned=unaligned, how=how)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP, Wish.DRAIN])
def test_the_join_goes_on_at_another_parallelism(make: Any, wish: Wish):
    to = 3 if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=3, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = refreshing(make, unaligned=True, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_newer_versions_are_met_while_the_job_runs(make: Any, monkeypatch: pytest.MonkeyPatch):
    met: list[int] = []
    honest = TableJoinOperator._take

    def take(operator: TableJoinOperator, buckets: Any) -> None:
        met.append(operator._version.number)
        honest(operator, buckets)

    monkeypatch.setattr(TableJoinOperator, "_take", take)
    assert found(refreshing(make, faults=())) == []
    # More versions than there are subtasks, none of which is restarted.
    assert len([version for version in met if version]) > 4


def test_some_of_all_tables_change():
    drawn = [scenario_of(seed).workload for seed in range(1, 1_000)]
    kinds = Counter(workload.refreshes for workload in drawn if workload.shape is Shape.TABLE)
    assert kinds[True]
    assert kinds[False]


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_an_attempt_that_begins_with_an_early_version_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = TableJoinOperator.load

    def load(operator: TableJoinOperator, context: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChangingTable, "newest", lambda _: TableVersion(1, 0))
            honest(operator, context)

    monkeypatch.setattr(TableJoinOperator, "load", load)
    assert Rule.EXACTLY_ONCE in found(refreshing(make))


def test_a_version_that_takes_the_place_of_a_later_version_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = ChangingTable.batches_of

    def batches_of(table: ChangingTable, version: TableVersion) -> Any:
        return honest(table, TableVersion(100 - version.number, version.read_ms))

    monkeypatch.setattr(ChangingTable, "batches_of", batches_of)
    assert Rule.EXACTLY_ONCE in found(refreshing(make, faults=()))


def test_rows_that_are_lost_when_a_version_is_read_in_pieces_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = TableJoinOperator._bucketed
    monkeypatch.setattr(TableJoinOperator, "_bucketed", lambda operator, parts: honest(operator, parts[1:]))
    assert Rule.EXACTLY_ONCE in found(refreshing(make, faults=()))
