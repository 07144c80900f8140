"""The parts of operators that run on the driver, made from the plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.api.hold import Hold
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import CoordinatorEvent
from penstock.core.ids import JobId, TaskId
from penstock.core.job.events import FailureCause
from penstock.core.messages import ToSlot
from penstock.core.recovery.tenure import Tenure
from penstock.plan.graph import Plan
from penstock.ports import JobRecords
from penstock.runtime.commits import DriverCommits
from penstock.runtime.coordinators import CoordinatorHost, OperatorCoordinators
from penstock.runtime.enumeration import SplitAssigner
from penstock.runtime.hooks import MasterHooks
from penstock.runtime.master_ports import MasterPorts
from penstock.settings import CheckpointSettings


class Calls(NamedTuple):
    """Where coordinators lead back to."""

    feed: Callable[[CoordinatorEvent], None]
    send: Callable[[TaskId, ToSlot], None]
    fail: Callable[[FailureCause], None]
    taken_over: Callable[[], None]


def make_coordinators(
    job: JobId,
    plan: Plan,
    settings: CheckpointSettings,
    ports: MasterPorts,
    found: Tenure,
    records: JobRecords,
    calls: Calls,
) -> OperatorCoordinators:
    """The coordinators of all operators that have one, and the hooks, of a job that the driver found as `found`."""
    hold = Hold(records.check)
    workers = ports.workers or (lambda _: ports.background)
    hooks = MasterHooks(
        {name: ports.hooks[name] for name in plan.hooks},
        timeout_ms=settings.hook_timeout_ms,
        hold=hold,
        background=workers,
        feed=calls.feed,
        fail=calls.fail,
        taken_over=calls.taken_over,
    )
    coordinators = OperatorCoordinators(feed=calls.feed, send=calls.send, hooks=hooks)
    # What drivers before this one promised is not known before it is restored.
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
            fail=calls.fail,
            hold=hold,
            taken_over=calls.taken_over,
        )
        coordinators.add(
            operator.operator,
            SplitAssigner(host, step.source.enumerator())
            if isinstance(step, ReadStep)
            else DriverCommits(host, step.sink.committer(), first_id=found.next_id, keeps=keeps),
        )
    return coordinators
