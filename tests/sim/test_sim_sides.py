"""Jobs with side outputs and late records: every record is shown once in its place, and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from planted_bugs import found, shows, worlds

from penstock.api.steps import LATE
from penstock.core.recovery.metadata import Claim
from penstock.runtime.task.operators.late_windows import LateRecordsOperator
from penstock.runtime.task.operators.side_rows import SideRows
from penstock.runtime.task.outputs import SideOutput, TaskOutputs
from penstock.sim.again import Again
from penstock.sim.faults import CrashAfterCheckpoint, Fault, SlotCrash
from penstock.sim.jobs import ASIDE, TICK_US, Shape
from penstock.sim.rules import Rule
from penstock.sim.run import run_scenario, scenario_of
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice
from penstock.sim.user import Moment, UserRequest, Wish
from penstock.sim.window_kinds import TIMED, WindowKind

CRASHES: tuple[Fault, ...] = (
    CrashAfterCheckpoint(at_ms=0, slot=0, delay_ms=5, notice=Notice.TOLD),
    SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD),
)


def aside(make: Any, shape: Shape, count: int = 4, *, unaligned: bool = False, **changes: Any) -> list[Scenario]:
    """Jobs of a shape with side outputs. Records are out of order by many windows."""
    made = worlds(make, count, make.steady, lambda s: make.shape(s, shape), **{"faults": CRASHES, **changes})
    made = [make.workload(s, window_us=3 * TICK_US, disorder_us=30 * TICK_US) for s in made]
    return [make.checkpoints(s, interval_ms=40, unaligned=unaligned) for s in made]


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("shape", ASIDE)
def test_every_record_is_shown_once_whatever_dies(make: Any, shape: Shape, unaligned: bool):
    results = [run_scenario(world) for world in aside(make, shape, unaligned=unaligned)]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("lateness_us", [0, 8 * TICK_US])
@pytest.mark.parametrize("kind", TIMED)
def test_every_record_counts_in_its_last_window_or_comes_out_late(make: Any, kind: WindowKind, lateness_us: int):
    given = [make.workload(world, windows=kind, lateness_us=lateness_us) for world in aside(make, Shape.LATE)]
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert all(result.restores for result in results)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("wish", [Wish.RESCALE, Wish.STOP])
@pytest.mark.parametrize("shape", ASIDE)
def test_records_of_side_outputs_go_over_to_another_parallelism(make: Any, shape: Shape, wish: Wish, parallelism: int):
    to = parallelism if wish is Wish.RESCALE else None
    request = UserRequest(at_ms=0, wish=wish, moment=Moment.CHECKPOINT, delay_ms=10, parallelism=to)
    again = Again(parallelism=parallelism, claim=Claim.NO_CLAIM, moved=False, safety_ms=1_000)
    given = aside(make, shape, unaligned=True, requests=(request,), again=again, faults=())
    results = [run_scenario(world) for world in given]
    assert [result.violations for result in results] == [()] * len(results)
    assert any(wish in result.granted for result in results)


def test_records_are_late_in_these_worlds(make: Any, monkeypatch: pytest.MonkeyPatch):
    late: Counter[str] = Counter()
    honest = LateRecordsOperator._late_records

    def counting(operator: LateRecordsOperator, batch: Any) -> Any:
        is_late = honest(operator, batch)
        late.update({"records": batch.num_rows, "late": 0 if is_late is None else int(is_late.sum())})
        return is_late

    monkeypatch.setattr(LateRecordsOperator, "_late_records", counting)
    assert found(aside(make, Shape.LATE)) == []
    assert 10 < late["late"] < late["records"] / 2


def test_a_few_of_all_worlds_have_side_outputs_of_every_kind():
    shapes = Counter(scenario_of(seed).workload.shape for seed in range(1, 400))
    assert all(shapes[shape] for shape in ASIDE)
    assert 0.02 < sum(shapes[shape] for shape in ASIDE) / 400 < 0.15


# --- planted bugs -----------------------------------------------------------------------------------------------------


def test_in_flight_records_of_side_outputs_that_are_not_saved_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = TaskOutputs.send_barrier

    def send(outputs: TaskOutputs, barrier: Any) -> Any:
        main = {subpartition.key for subpartition in outputs._all_main}
        return {key: batches for key, batches in honest(outputs, barrier).items() if key in main}

    monkeypatch.setattr(TaskOutputs, "send_barrier", send)
    crashes = tuple(CrashAfterCheckpoint(at_ms=ms, slot=1, delay_ms=5, notice=Notice.TOLD) for ms in (100, 250, 400))
    given = aside(make, Shape.SPLIT, unaligned=True, faults=crashes)
    pressed = [make.workload(world, pause_ms=1, rows=120) for world in given]
    assert shows(Rule.EXACTLY_ONCE, pressed)


def test_rows_that_leave_only_with_the_next_batch_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    """A snapshot between two batches lacks the rows that were emitted, and the barrier comes before them."""
    honest = SideRows.flush
    waiting: dict[int, int] = {}

    def late_flush(rows: SideRows) -> None:
        waiting[id(rows)] = waiting.get(id(rows), 0) + 1
        if waiting[id(rows)] % 2:
            honest(rows)

    monkeypatch.setattr(SideRows, "flush", late_flush)
    assert shows(Rule.EXACTLY_ONCE, aside(make, Shape.SIDES))


@pytest.mark.parametrize("shape", ASIDE)
def test_records_of_side_outputs_that_are_lost_are_found(make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape):
    honest = SideOutput.emit
    monkeypatch.setattr(SideOutput, "emit", lambda side, batch: honest(side, batch.slice(1)))
    assert found(aside(make, shape, 1)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("kind", TIMED)
def test_late_records_that_count_in_no_window_and_do_not_come_out_are_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: WindowKind
):
    monkeypatch.setattr(LateRecordsOperator, "_late_records", lambda operator, batch: None)
    given = [make.workload(world, windows=kind) for world in aside(make, Shape.LATE)]
    assert shows(Rule.EXACTLY_ONCE, given)


def test_late_records_that_come_out_and_open_their_window_again_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def process(operator: LateRecordsOperator, batch: Any) -> None:
        late = operator._late_records(batch)
        if late is not None and late.any():
            operator.sides[LATE].emit(batch.filter(pa.array(late)))
        operator._combining.process(batch)
        operator._combining.before_barrier()
        for partials in operator._taken:
            operator._table.append(pa.Table.from_batches([partials]))
        operator._taken.clear()

    monkeypatch.setattr(LateRecordsOperator, "process", process)
    assert shows(Rule.EXACTLY_ONCE, aside(make, Shape.LATE))
