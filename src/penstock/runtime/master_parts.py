"""What a job master is put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import CoordinatorEvent
from penstock.core.ids import TaskId
from penstock.core.job.events import FailureCause
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import regions_of
from penstock.core.messages import ToSlot
from penstock.core.recovery.tenure import Tenure
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import Background, Clock, Slots, Store, Transport
from penstock.runtime.commits import DriverCommits
from penstock.runtime.coordinators import CoordinatorHost, OperatorCoordinators
from penstock.runtime.enumeration import SplitAssigner
from penstock.settings import JobSettings


@dataclass(frozen=True, kw_only=True)
class MasterPorts:
    """What the shell supplies to the master."""

    clock: Clock
    transport: Transport
    background: Background
    store: Store
    slots: Slots
    landing: Store | None = None
    """Where DataFrames were landed, if not in `store`."""
    workers: Callable[[str], Background] | None = None
    """Makes a background of its own for an operator's part on the driver, which may block for long, by a name for its
    thread. Without it all use the master's."""


def make_lifecycle(plan: Plan, settings: JobSettings, found: Tenure, draws: tuple[float, ...]) -> JobLifecycle:
    """The life of a job that was found like this."""
    return JobLifecycle(
        slots=plan.parallelism,
        tasks=regions_of(checkpoint_graph(plan)),
        settings=settings.slot,
        restart=settings.restart,
        first_epoch=found.first_epoch,
        ran_before=bool(found.completed),
        draws=draws,
    )


def make_coordinators(
    plan: Plan,
    ports: MasterPorts,
    *,
    feed: Callable[[CoordinatorEvent], None],
    send: Callable[[TaskId, ToSlot], None],
    fail: Callable[[FailureCause], None],
) -> OperatorCoordinators:
    """The coordinators of all operators that have one."""
    coordinators = OperatorCoordinators(feed=feed, send=send)
    for operator in (operator for vertex in plan.vertices for operator in vertex.operators):
        step = operator.step
        if not isinstance(step, ReadStep | WriteStep) or not step.is_coordinated:
            continue
        host = CoordinatorHost(
            name=operator.name,
            background=ports.background if ports.workers is None else ports.workers(operator.operator),
            say=partial(coordinators.say, operator.operator),
            fail=fail,
        )
        coordinators.add(
            operator.operator,
            SplitAssigner(host, step.source.enumerator())
            if isinstance(step, ReadStep)
            else DriverCommits(host, step.sink.committer()),
        )
    return coordinators
