"""The parts of operators that run on the driver, made from the plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import CoordinatorEvent
from penstock.core.ids import TaskId
from penstock.core.job.events import FailureCause
from penstock.core.messages import ToSlot
from penstock.plan.graph import Plan
from penstock.runtime.commits import DriverCommits
from penstock.runtime.coordinators import CoordinatorHost, OperatorCoordinators
from penstock.runtime.enumeration import SplitAssigner
from penstock.runtime.master_ports import MasterPorts


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
