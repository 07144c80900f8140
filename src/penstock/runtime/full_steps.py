"""The full steps of a job: feeds their machine, and has the sources ended that nothing needs any more.

The master of a job uses this file, and so does a look at a stream, which has no master.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise

from penstock.core.full_steps import (
    EndSource,
    FullSteps,
    FullStepsEvent,
    FullTold,
    PlannedStep,
    StepsBegan,
    StepsStopped,
)
from penstock.core.ids import Epoch, Instant, OperatorId, TaskId
from penstock.core.messages import StepFull
from penstock.plan.graph import Plan


class UnneededSources:
    """Ends the sources whose records nothing needs any more."""

    def __init__(self, end: Callable[[EndSource], None]) -> None:
        self._end = end
        self._machine = FullSteps()

    def start(self, plan: Plan, epoch: Epoch, tasks: Collection[TaskId] | None) -> None:
        """These tasks are deployed; None: all tasks of the plan."""
        restarted = None if tasks is None else tuple(tasks)
        self._feed(StepsBegan(epoch=epoch, steps=planned_steps(plan), restarted=restarted))

    def heard(self, message: StepFull) -> None:
        """A step says that it is full."""
        self._feed(FullTold(task=message.task, epoch=message.epoch, operator=message.operator))

    def stop(self) -> None:
        """The attempt is over."""
        self._feed(StepsStopped())

    def _feed(self, event: FullStepsEvent) -> None:
        for effect in self._machine.handle(event, Instant(0)):
            self._end(effect)


def planned_steps(plan: Plan) -> tuple[PlannedStep, ...]:
    """All steps of a plan, each with the steps that read its records."""
    found: list[PlannedStep] = []
    for vertex in plan.vertices:
        operators = [planned.operator for planned in vertex.operators]
        feeds: dict[OperatorId, list[OperatorId]] = {o: [] for o in operators}
        for before, after in pairwise(operators):
            feeds[before].append(after)
        for edge in plan.outputs_of(vertex.vertex):
            source = operators[-1] if edge.side is None else edge.side.operator
            feeds[source].append(plan.vertex(edge.downstream).operators[0].operator)
        found += [
            PlannedStep(
                operator=operator,
                tasks=vertex.tasks,
                feeds=tuple(dict.fromkeys(feeds[operator])),
                is_source=vertex.is_source and operator == operators[0],
            )
            for operator in operators
        ]
    return tuple(found)
