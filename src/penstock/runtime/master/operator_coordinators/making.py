"""The operator coordinators of a job, made from its plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import CoordinatorEvent
from penstock.core.ids import JobId, TaskId
from penstock.core.job.events import FailureCause
from penstock.core.messages import ToSlot
from penstock.core.recovery.tenure import Tenure
from penstock.plan.graph import Plan
from penstock.ports import Background
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.operator_coordinators.commits import DriverCommits
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost
from penstock.runtime.master.operator_coordinators.enumeration import SplitAssigner
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators


class Calls(NamedTuple):
    """The calls by which operator coordinators come back to the master."""

    feed: Callable[[CoordinatorEvent], None]
    send: Callable[[TaskId, ToSlot], None]
    fail: Callable[[FailureCause], None]
    guard: Guard
    """Lets the coordinators' work run only while this driver has the job."""


def make_coordinators(
    job: JobId, plan: Plan, found: Tenure, workers: Callable[[str], Background], calls: Calls
) -> OperatorCoordinators:
    """The operator coordinators of a job, one for each operator that has a part on the driver. `found` is what the
    driver found when its term began. `workers` makes a background for an operator."""
    coordinators = OperatorCoordinators(feed=calls.feed, send=calls.send)
    # What the checkpoints of earlier drivers promise is not known before a checkpoint is restored.
    keeps = found.term > 0 if found.outcome is None else found.outcome.keeps_prepared
    for operator in (operator for vertex in plan.vertices for operator in vertex.operators):
        step = operator.step
        if not isinstance(step, ReadStep | WriteStep) or not step.is_coordinated:
            continue
        host = CoordinatorHost(
            name=operator.name,
            job=job,
            background=workers(operator.operator),
            say=partial(coordinators.say, operator.operator),
            catching_up=partial(coordinators.catching_up, operator.operator),
            fail=calls.fail,
            guard=calls.guard,
        )
        coordinators.add(
            operator.operator,
            SplitAssigner(host, step.source.enumerator())
            if isinstance(step, ReadStep)
            else DriverCommits(host, step.sink.committer(), first_id=found.next_id, keeps=keeps),
        )
    return coordinators
