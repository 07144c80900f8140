"""From a plan to tasks: what flows on each edge, and how the parts of a task are joined."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pytest

from penstock.api.connector import End, Source, SourceReader
from penstock.api.steps import MapBatchesStep, ReadStep, SelectStep, SplitStep, WatermarkStep, WhereStep
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState, TaskRestore
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.slot.deployment import Deployment, build_task, edge_schemas
from penstock.settings import JobSettings, NetworkSettings

NUMBERS = pa.schema([pa.field("n", pa.int64()), pa.field("ts", pa.timestamp("us"))])
NAMED = pa.schema([pa.field("name", pa.string())])


class Nothing(SourceReader):
    def poll(self, max_rows, now_ms):
        return End()

    def snapshot(self):
        return []


class Numbers(Source):
    @property
    def schema(self):
        return NUMBERS

    def splits(self, parallelism):
        return []

    def open(self, splits):
        return Nothing()


def plan_of(*steps, parallelism=2):
    """(name, step, inputs) each; an input is (name, partitioning)."""
    numbers = {name: number for number, (name, _, _) in enumerate(steps)}
    nodes = tuple(
        Node(
            number=numbers[name],
            operator=OperatorId(name),
            name=name,
            step=step,
            inputs=tuple(
                Input(node=numbers[source], partitioning=how, keys=("n",) if how is Partitioning.HASH else ())
                for source, how in inputs
            ),
            is_source=not inputs,
        )
        for name, step, inputs in steps
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=128)


READ = ReadStep(source=Numbers())
MARK = WatermarkStep(column="ts", delay_us=0, idle_after_ms=None)
NAME = SelectStep(columns=(pl.col("n").cast(pl.String).alias("name"),), keep=False, schema=NAMED)
SAME = MapBatchesStep(function=lambda batch: batch, kind="arrow", schema=NAMED)
FORWARD, HASH, REBALANCE = Partitioning.FORWARD, Partitioning.HASH, Partitioning.REBALANCE


# --- edge_schemas ----------------------------------------------------------------------------------------------------


def test_an_edge_carries_what_leaves_the_last_operator_of_its_vertex():
    plan = plan_of(
        ("read", READ, ()),
        ("mark", MARK, (("read", FORWARD),)),
        ("name", NAME, (("mark", FORWARD),)),
        ("same", SAME, (("name", REBALANCE),)),
    )
    assert edge_schemas(plan) == {0: NAMED}


def test_a_watermark_step_changes_no_schema_wherever_it_stands():
    plan = plan_of(
        ("read", READ, ()),
        ("mark", MARK, (("read", REBALANCE),)),
        ("name", NAME, (("mark", HASH),)),
        ("same", SAME, (("name", REBALANCE),)),
    )
    assert edge_schemas(plan) == {0: NUMBERS, 1: NUMBERS, 2: NAMED}


def test_every_branch_of_a_stream_carries_the_schema_of_its_beginning():
    where = WhereStep(condition=pl.col("n") > 0, schema=NUMBERS)
    plan = plan_of(
        ("read", READ, ()),
        ("name", NAME, (("read", FORWARD),)),
        ("where", where, (("read", HASH),)),
        ("same", SAME, (("name", REBALANCE),)),
    )
    by_target = {edge.downstream: edge_schemas(plan)[edge.number] for edge in plan.edges}
    assert by_target == {"name": NUMBERS, "where": NUMBERS, "same": NAMED}


def test_an_edge_of_a_side_output_carries_the_schema_of_the_side_output():
    split = SplitStep(conditions=(("many", pl.col("n") > 5),), schema=NUMBERS)
    nodes = (
        Node(number=0, operator=OperatorId("read"), name="read", step=READ, is_source=True),
        Node(number=1, operator=OperatorId("split"), name="split", step=split, inputs=(Input(node=0),)),
        Node(number=2, operator=OperatorId("name"), name="name", step=NAME, inputs=(Input(node=1),)),
        Node(number=3, operator=OperatorId("mark"), name="mark", step=MARK, inputs=(Input(node=1, side="many"),)),
        Node(number=4, operator=OperatorId("same"), name="same", step=SAME, inputs=(Input(node=2), Input(node=2))),
        Node(number=5, operator=OperatorId("again"), name="again", step=MARK, inputs=(Input(node=3), Input(node=3))),
    )
    plan = build_plan(nodes, parallelism=1, max_parallelism=None)
    by_target = {edge.downstream: edge_schemas(plan)[edge.number] for edge in plan.edges}
    assert by_target == {"mark": NUMBERS, "same": NAMED, "again": NUMBERS}


def test_a_vertex_that_gets_its_records_from_nowhere_is_a_bug():
    plan = plan_of(("mark", MARK, ()), ("name", NAME, (("mark", HASH),)))
    with pytest.raises(InvariantError, match="mark"):
        edge_schemas(plan)


# --- build_task ------------------------------------------------------------------------------------------------------


class Host:
    """The slot of the built tasks."""

    def __init__(self):
        self.background = None
        self.calls = None
        self.failures = []
        self.slice_rows = 1

    def precise_ms(self):
        return 5.0

    def now(self):
        return Instant(5)

    def failed(self, task, error):
        self.failures.append((task, str(error)))

    def event_time_reached(self, task, time_us):
        pass

    def catching_up(self, task, operator, is_behind):
        pass

    def step_full(self, task, operator):
        pass

    def splits_read(self, task, operator, count):
        """Nobody plans ahead here."""


@pytest.fixture
def host():
    return Host()


PLAN = plan_of(("read", READ, ()), ("name", NAME, (("read", HASH),)), ("same", SAME, (("name", FORWARD),)))


def deployment(host, **changes):
    values = {
        "job": JobId("job"),
        "epoch": Epoch(7),
        "plan": PLAN,
        "settings": JobSettings(parallelism=2, network=NetworkSettings(channel_bytes=640)),
        "restored": None,
        "first_checkpoint": CheckpointId(1),
        "saved": {},
        "host": host,
        "reader": None,
        "deliver": lambda key, item, cost: None,
        "grant": lambda key, granted: None,
        "data_taken": lambda key: None,
    }
    return Deployment(**{**values, **changes})


def contexts_of(task):
    task.open()
    return [operator.context for operator in task.chain.operators]


def test_a_task_has_a_channel_from_and_to_every_subtask_of_an_exchange(host):
    read = build_task(TaskId(VertexId("read"), 1), TaskRestore(), deployment(host))
    name = build_task(TaskId(VertexId("name"), 0), TaskRestore(), deployment(host))
    assert [channel.key for channel in read.gate.channels] == []
    assert read.outputs.channels == ((0, 1, 0), (0, 1, 1))
    assert [channel.key for channel in name.gate.channels] == [(0, 0, 0), (0, 1, 0)]
    assert name.outputs.channels == ()


def test_a_channel_is_opened_with_the_window_of_the_settings(host):
    grants = []
    made = deployment(host, grant=lambda key, granted: grants.append((key.upstream, granted)))
    build_task(TaskId(VertexId("name"), 0), TaskRestore(), made).run(Instant(5))
    assert grants == [(0, 640), (1, 640)]


def test_every_operator_of_the_chain_knows_who_it_is(host):
    task = build_task(TaskId(VertexId("name"), 1), TaskRestore(), deployment(host))
    first, second = contexts_of(task)
    assert (first.operator, second.operator) == ("name", "same")
    assert (first.job, first.epoch, first.task.subtask, first.parallelism) == ("job", 7, 1, 2)
    assert (first.max_parallelism, first.key_groups) == (128, (64, 127))
    assert first.now() == 5


def test_state_goes_to_the_operator_whose_it_is(host):
    state = OperatorState(operator=OperatorId("same"), broadcast={"n": b"1"})
    restore = TaskRestore(operators={OperatorId("same"): (state,)})
    made = deployment(host, restored=CheckpointId(3))
    first, second = contexts_of(build_task(TaskId(VertexId("name"), 0), restore, made))
    assert (first.restored, second.restored) == ((), (state,))


def test_an_operator_that_the_checkpoint_knows_is_not_fresh_though_nothing_fell_to_its_subtask(host):
    restore = TaskRestore(operators={OperatorId("same"): ()})
    made = deployment(host, restored=CheckpointId(3))
    first, second = contexts_of(build_task(TaskId(VertexId("name"), 0), restore, made))
    assert (first.fresh, second.fresh) == (True, False)


def test_a_start_without_a_checkpoint_is_fresh(host):
    assert all(c.fresh for c in contexts_of(build_task(TaskId(VertexId("name"), 0), TaskRestore(), deployment(host))))


def test_an_operator_can_fail_its_task_and_only_while_it_runs(host):
    """1. A commit is under way. 2. The attempt ends and the next one has a task of the same id. 3. The commit fails."""
    task = build_task(TaskId(VertexId("name"), 0), TaskRestore(), deployment(host))
    context, _ = contexts_of(task)
    context.fail(ValueError("while it runs"))
    task.stop(Instant(6))
    context.fail(ValueError("too late"))
    assert host.failures == [(task.task, "while it runs")]


def test_nothing_is_opened_by_building():
    host = SimpleNamespace(
        background=None,
        calls=None,
        now=lambda: Instant(0),
        precise_ms=lambda: 0.0,
        slice_rows=1,
        splits_read=lambda *_: None,
        catching_up=lambda *_: None,
        event_time_reached=lambda *_: None,
        step_full=lambda *_: None,
    )
    task = build_task(TaskId(VertexId("read"), 0), TaskRestore(), deployment(host))
    assert not hasattr(task.chain.head, "context")
