"""Every shape and every mode of a job finds the kind of bug it is there for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from planted_bugs import found, shows, worlds

from penstock.core.barrier.select import make_handler
from penstock.core.coordinator.participants import CheckpointPlan, Planner
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.plan.graph import Edge
from penstock.runtime.slot import deployment
from penstock.runtime.task.channels import InputGate
from penstock.runtime.task.operators.windows import WindowOperator
from penstock.runtime.task.outputs import OutputEdge, TaskOutputs
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.watermarks import WatermarkValve
from penstock.settings import CheckpointSettings, Mode
from penstock.sim.faults import CrashAfterCheckpoint, SlotCrash
from penstock.sim.inputs import SimReader
from penstock.sim.jobs import Shape
from penstock.sim.rules import Rule
from penstock.sim.scenario import Scenario
from penstock.sim.slots import Notice

CRASHES = tuple(CrashAfterCheckpoint(at_ms=at_ms, slot=1, delay_ms=5, notice=Notice.TOLD) for at_ms in (100, 500))
CRASH = SlotCrash(at_ms=400, slot=1, notice=Notice.TOLD)
TRACKED = {"mode": Mode.AT_LEAST_ONCE}


def of(make: Any, shape: Shape, count: int = 3, **changes: object) -> list[Scenario]:
    return worlds(make, count, make.steady, lambda s: make.shape(s, shape), **changes)


# --- shapes -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [Shape.DIAMOND, Shape.HASH_HASH, Shape.HASH_FORWARD, Shape.UNION, Shape.TWICE])
def test_a_barrier_that_does_not_wait_for_the_other_inputs_repeats_records(
    make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape
):
    monkeypatch.setattr(InputGate, "block", lambda self, index: None)
    assert shows(Rule.EXACTLY_ONCE, of(make, shape, 5, faults=CRASHES))


def test_event_time_of_the_fastest_input_drops_records_as_late(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The sources that end early are at the end of event time when the others are in the middle."""
    honest = WatermarkValve._merged

    def hasty(valve: WatermarkValve) -> object:
        valve._idle = [time < max(valve._times) for time in valve._times]
        return honest(valve)

    monkeypatch.setattr(WatermarkValve, "_merged", hasty)
    assert found(of(make, Shape.UNION_WINDOW)) == [Rule.EXACTLY_ONCE]


def test_one_event_time_for_all_splits_of_a_reader_drops_records_as_late(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SimReader, "progress", lambda self: None)
    assert found(of(make, Shape.WINDOW)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("shape", [Shape.BROADCAST, Shape.HASH_BROADCAST])
def test_a_broadcast_that_leaves_a_subtask_out_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape):
    def to_some(edge: OutputEdge, batch: pa.RecordBatch) -> None:
        for subpartition in edge.subpartitions[:-1]:
            subpartition.add_batch(batch)

    monkeypatch.setattr(OutputEdge, "_to_all", to_some)
    assert found(of(make, shape, 1)) == [Rule.EXACTLY_ONCE]


def test_a_task_that_forgets_one_of_its_outputs_is_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    def emit(outputs: TaskOutputs, batch: pa.RecordBatch) -> None:
        outputs._edges[0].emit(batch)

    monkeypatch.setattr(TaskOutputs, "emit", emit)
    assert found(of(make, Shape.TWO_SINKS, 1)) == [Rule.EXACTLY_ONCE]
    assert found(of(make, Shape.DIAMOND, 1)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("shape", [Shape.TWICE, Shape.DIAMOND, Shape.UNION, Shape.HASH_HASH, Shape.REBALANCE_HASH])
def test_an_exchange_that_sends_a_key_to_everybody_in_turn_is_found(
    make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape
):
    def in_turn(edge: OutputEdge, batch: pa.RecordBatch) -> None:
        parts = partition(batch, edge.edge.keys, parallelism=len(edge.subpartitions), groups=edge._groups)
        edge._turn += 1
        for subpartition, part in zip(
            edge.subpartitions, parts[edge._turn % 2 :] + parts[: edge._turn % 2], strict=True
        ):
            if part is not None:
                subpartition.add_batch(part)

    monkeypatch.setattr(OutputEdge, "_by_key", in_turn)
    assert found(of(make, shape)) == [Rule.KEY_ORDER]


@pytest.mark.slow
def test_a_checkpoint_that_waits_for_sources_that_have_ended_leaves_the_job_hanging(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    def for_everybody(planner: Planner, board: TaskBoard) -> CheckpointPlan:
        return CheckpointPlan(trigger=planner._sources, wait=planner._everybody)

    monkeypatch.setattr(Planner, "_plan_with_finished", for_everybody)
    assert found(of(make, Shape.UNION, 2)) == [Rule.LIVENESS]


def test_tasks_that_leave_although_no_checkpoint_is_taken_without_them_leave_the_job_hanging(
    make: Any, monkeypatch: pytest.MonkeyPatch
):
    waiting = [make.checkpoints(s, after_tasks_finish=False) for s in of(make, Shape.UNION, 2)]
    assert found(waiting) == []
    honest = TaskCheckpoints.__init__

    def deaf(machine: TaskCheckpoints, **given: Any) -> None:
        honest(machine, **{**given, "after_tasks_finish": True})

    monkeypatch.setattr(TaskCheckpoints, "__init__", deaf)
    assert found(waiting) == [Rule.LIVENESS]


# --- modes -----------------------------------------------------------------------


def tracked(make: Any, shape: Shape, count: int = 3, **changes: object) -> list[Scenario]:
    return [make.checkpoints(s, **TRACKED) for s in of(make, shape, count, **changes)]


def test_at_least_once_repeats_records_and_that_is_allowed(make: Any, monkeypatch: pytest.MonkeyPatch):
    """The same worlds in exactly-once, with the same handler of barriers, are found wrong."""

    def tracker(settings: CheckpointSettings, *, channels: int) -> object:
        return make_handler(CheckpointSettings(mode=Mode.AT_LEAST_ONCE), channels=channels)

    assert found(tracked(make, Shape.KEYED, 5, faults=CRASHES)) == []
    monkeypatch.setattr(deployment, "make_handler", tracker)
    assert found(of(make, Shape.KEYED, 5, faults=CRASHES)) == [Rule.EXACTLY_ONCE]


@pytest.mark.parametrize("shape", [Shape.KEYED, Shape.DIAMOND, Shape.UNION_WINDOW])
def test_at_least_once_that_loses_records_is_found(make: Any, monkeypatch: pytest.MonkeyPatch, shape: Shape):
    honest = SimReader.snapshot

    def ahead(reader: SimReader) -> list[bytes]:
        rows, reader._rows = reader._rows, {split: row + 1 for split, row in reader._rows.items()}
        try:
            return honest(reader)
        finally:
            reader._rows = rows

    monkeypatch.setattr(SimReader, "snapshot", ahead)
    assert found(tracked(make, shape, faults=(CRASH,))) == [Rule.AT_LEAST_ONCE]


def test_at_least_once_without_a_failure_repeats_nothing(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = TaskOutputs.emit

    def twice(outputs: TaskOutputs, batch: pa.RecordBatch) -> None:
        honest(outputs, batch)
        honest(outputs, batch)

    monkeypatch.setattr(TaskOutputs, "emit", twice)
    assert found(tracked(make, Shape.KEYED, 1)) == [Rule.EXACTLY_ONCE]


def test_at_least_once_windows_that_close_early_are_found(make: Any, monkeypatch: pytest.MonkeyPatch):
    honest = WindowOperator.watermark

    def hasty(operator: WindowOperator, time_us: int, *, idle: bool = False) -> None:
        honest(operator, time_us + 15_000 if time_us < 2**60 else time_us, idle=idle)

    monkeypatch.setattr(WindowOperator, "watermark", hasty)
    assert found(tracked(make, Shape.WINDOW, 2, faults=(CRASH,))) == [Rule.AT_LEAST_ONCE]


def test_an_unaligned_barrier_is_aligned_where_an_input_of_the_vertex_cannot_carry_it(make: Any):
    """Both inputs of the vertex, though only one of them is to blame."""
    seen: dict[tuple[str, bool], None] = {}

    class Watching:
        def __init__(self, honest: Any) -> None:
            self.honest = honest

        def __call__(self, edge: OutputEdge, barrier: Any) -> Any:
            described: Edge = edge.edge
            sent = self.honest(edge, barrier)
            seen[described.partitioning.value, edge._can_overtake] = None
            return sent

    for shape in (Shape.HASH_BROADCAST, Shape.HASH_FORWARD, Shape.REBALANCE_HASH):
        seen.clear()
        with pytest.MonkeyPatch.context() as patch:
            watching = Watching(OutputEdge.send_barrier)
            patch.setattr(OutputEdge, "send_barrier", lambda edge, barrier, w=watching: w(edge, barrier))
            unaligned = [make.checkpoints(s, unaligned=True, max_concurrent=1) for s in of(make, shape, 1)]
            assert found(unaligned) == []
        overtakes = shape is Shape.REBALANCE_HASH
        assert {can for _, can in seen} == {overtakes}
