"""Builds the tasks of one slot from the plan and the state to restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from penstock.api.steps import ReadStep, WatermarkStep
from penstock.core.barrier.select import make_handler
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import TaskRestore
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.plan.graph import Edge, Plan, Side
from penstock.plan.key_groups import range_of
from penstock.runtime.task.chain import FinishedChain, OperatorChain
from penstock.runtime.task.channels import ChannelKey, InputChannel, InputGate, Item, Subpartition
from penstock.runtime.task.host import TaskHost
from penstock.runtime.task.operators.base import OperatorContext, StateReader
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.operators.sorted_runs import RunOptions
from penstock.runtime.task.outputs import OutputEdge, TaskOutputs
from penstock.runtime.task.subtask import Task
from penstock.settings import JobSettings
from penstock.state.backends import MakeBackend


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What the tasks of one slot have in common in one epoch."""

    job: JobId
    epoch: Epoch
    plan: Plan
    settings: JobSettings
    restored: CheckpointId | None
    first_checkpoint: CheckpointId
    """Checkpoint ids below this id belong to earlier attempts."""
    saved: Mapping[OperatorId, tuple[bytes, ...]]
    """By operator: parts of the operator's list of committables that savepoints contain. What these parts name must not
    be removed."""
    host: TaskHost
    reader: StateReader
    deliver: Callable[[ChannelKey, Item, int], None]
    """Hands an item to the receiving end of a channel, in this slot or in another slot."""
    grant: Callable[[ChannelKey, int], None]
    """Hands credit to the sending end of a channel, in this slot or in another slot."""
    data_taken: Callable[[ChannelKey], None]
    """Tells the sending end of a channel that all data of the channel has been processed."""
    make_backend: MakeBackend | None = None
    """Makes the back end of keyed state. None: the back end that the settings name."""
    runs: RunOptions = field(default_factory=RunOptions)
    """How the runs of columnar state are kept."""


def build_task(task: TaskId, restore: TaskRestore, deployment: Deployment) -> Task:
    """Build a task with its operators, its input channels and its output channels. Nothing is read or opened."""
    settings = deployment.settings
    gate = _build_gate(task, deployment)

    def fail(error: BaseException) -> None:
        # The failure goes to this task object and not to its id: a task of the next attempt has the same id.
        built.fail(error)

    def wake_at(time: Instant) -> None:
        built.wake_at(time)

    built = Task(
        task,
        chain=FinishedChain()
        if restore.finished
        else _build_chain(task, restore, deployment, fail=fail, wake_at=wake_at),
        gate=gate,
        outputs=_build_outputs(task, deployment),
        handler=make_handler(settings.checkpoint, channels=len(gate.channels)),
        checkpoints=TaskCheckpoints(
            restored=deployment.restored,
            max_concurrent=settings.checkpoint.max_concurrent,
            after_tasks_finish=settings.checkpoint.after_tasks_finish,
            restored_is_last=restore.is_last,
        ),
        host=deployment.host,
        first_checkpoint=deployment.first_checkpoint,
    )
    return built


def _build_gate(task: TaskId, deployment: Deployment) -> InputGate:
    window = deployment.settings.network.channel_bytes
    return InputGate(
        [
            InputChannel(
                ChannelKey(edge.number, upstream, task.subtask),
                window_bytes=window,
                grant=deployment.grant,
                data_taken=deployment.data_taken,
                input_number=edge.input_number,
            )
            for edge, upstream in deployment.plan.channels_into(task)
        ]
    )


def _build_outputs(task: TaskId, deployment: Deployment) -> TaskOutputs:
    network, plan = deployment.settings.network, deployment.plan
    edges = []
    for edge in plan.outputs_of(task.vertex):
        subpartitions = [
            Subpartition(
                ChannelKey(edge.number, task.subtask, target),
                deliver=deployment.deliver,
                batch_bytes=network.batch_bytes,
                window_bytes=network.channel_bytes,
            )
            for target in plan.targets_of(edge, task.subtask)
        ]
        edges.append(OutputEdge(edge, plan, subpartitions))
    return TaskOutputs(edges, output_bytes=network.output_bytes)


def _build_chain(
    task: TaskId,
    restore: TaskRestore,
    deployment: Deployment,
    *,
    fail: Callable[[BaseException], None],
    wake_at: Callable[[Instant], None],
) -> OperatorChain:
    plan, host = deployment.plan, deployment.host
    vertex = plan.vertex(task.vertex)

    def context(operator: OperatorId, name: str) -> OperatorContext:
        return OperatorContext(
            job=deployment.job,
            epoch=deployment.epoch,
            task=task,
            operator=operator,
            name=name,
            parallelism=vertex.parallelism,
            max_parallelism=plan.max_parallelism,
            key_groups=range_of(task.subtask, parallelism=vertex.parallelism, groups=plan.max_parallelism),
            now=host.now,
            background=host.background,
            restored=restore.operators.get(operator, ()),
            fresh=deployment.restored is None or operator not in restore.operators,
            saved=tuple(deployment.saved.get(operator, ())),
            rescaled=restore.rescaled,
            reader=deployment.reader,
            fail=fail,
            wake_at=wake_at,
            splits_read=partial(host.splits_read, task, operator),
            catching_up=partial(host.catching_up, task, operator),
            event_time_reached=partial(host.event_time_reached, task),
            is_full=partial(host.step_full, task, operator),
            state=deployment.settings.state,
            calls=host.calls,
            make_backend=deployment.make_backend,
            runs=deployment.runs,
        )

    planned = vertex.operators
    return OperatorChain([build_operator(o.step) for o in planned], [context(o.operator, o.name) for o in planned])


def edge_schemas(plan: Plan) -> dict[int, pa.Schema]:
    """The schema of the records on every edge, by the number of the edge."""
    leaving: dict[VertexId, pa.Schema] = {}
    aside: dict[Side, pa.Schema] = {}

    def on_edge(edge: Edge) -> pa.Schema:
        return leaving[edge.upstream] if edge.side is None else aside[edge.side]

    for vertex in plan.vertices:
        inputs = plan.inputs_of(vertex.vertex)
        schema = on_edge(inputs[0]) if inputs else None
        for operator in vertex.operators:
            for name, side_schema in getattr(operator.step, "sides", {}).items():
                aside[Side(operator=operator.operator, name=name)] = side_schema
            if isinstance(operator.step, ReadStep):
                schema = operator.step.source.schema
            elif not isinstance(operator.step, WatermarkStep):
                schema = operator.step.schema
        if schema is None:
            raise InvariantError(f"vertex {vertex.vertex} has neither an input nor a source")
        leaving[vertex.vertex] = schema
    return {edge.number: on_edge(edge) for edge in plan.edges}
