"""Which sources nothing needs any more, because steps behind them are full.

A step that is *full*, such as a limit, takes no more records: whatever else comes, the step hands on nothing more. So a
source whose records all go to full steps has nothing left to do, and its data may end.

    source ──► map ──┬──► limit (full) ──► sink           the source goes on: the second sink needs its records
                     └──► sink

Rules of this file
    * A step that is full stays full: also after a restore, since no source is ended before every checkpoint that may
      still complete has the step as full (`runtime/task/operators/limit.py` says when a step may tell).
    * A source is ended once in an attempt of its tasks. Nothing of this is state: in the next attempt the full steps
      tell again, and the tasks of a source that have ended already hear nothing new.
    * What an earlier attempt of a step tells is refused by its epoch.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from penstock.core.effects import Effect, Event
from penstock.core.ids import Epoch, Instant, OperatorId, TaskId


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the job, with the steps that read its records."""

    operator: OperatorId
    tasks: tuple[TaskId, ...]
    feeds: tuple[OperatorId, ...]
    """The steps that read any output of the step, side outputs included. A step that feeds no other step needs its
    records for itself."""
    is_source: bool = False


class StepsBegan(Event, frozen=True, kw_only=True):
    """Tasks are deployed: all tasks of an attempt, or these tasks of some regions (`restarted`)."""

    epoch: Epoch
    steps: tuple[PlannedStep, ...]
    """All steps of the job."""
    restarted: tuple[TaskId, ...] | None = None


class StepsStopped(Event, frozen=True, kw_only=True):
    """The attempt is over."""


class FullTold(Event, frozen=True, kw_only=True):
    """The only subtask of a step says that the step is full."""

    task: TaskId
    epoch: Epoch
    operator: OperatorId


FullStepsEvent = StepsBegan | StepsStopped | FullTold


class EndSource(Effect, frozen=True, kw_only=True):
    """Nothing needs the records of this source any more: let the data of its tasks end."""

    operator: OperatorId
    tasks: tuple[tuple[TaskId, Epoch], ...]


class FullSteps:
    """The full steps of a job, and the sources that were ended because of them."""

    def __init__(self) -> None:
        self._steps: dict[OperatorId, PlannedStep] = {}
        self._epochs: dict[TaskId, Epoch] = {}
        self._full: dict[OperatorId, None] = {}
        self._ended: dict[OperatorId, None] = {}

    def handle(self, event: FullStepsEvent, now: Instant) -> list[EndSource]:  # noqa: ARG002  # nothing here waits
        """Take one event in."""
        match event:
            case StepsBegan():
                self._begin(event)
                return []
            case StepsStopped():
                self._steps, self._epochs, self._full, self._ended = {}, {}, {}, {}
                return []
            case FullTold():
                return self._heard(event)
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """None: only an event can help."""
        return None

    def validate(self) -> None:
        """Nothing here can contradict itself."""

    def _begin(self, event: StepsBegan) -> None:
        self._steps = {step.operator: step for step in event.steps}
        if event.restarted is None:
            self._full, self._ended = {}, {}
            self._epochs = {task: event.epoch for step in event.steps for task in step.tasks}
            return
        again = dict.fromkeys(event.restarted, event.epoch)
        self._epochs.update(again)
        self._full = {o: None for o in self._full if not self._is_restarted(o, again)}
        self._ended = {o: None for o in self._ended if not self._is_restarted(o, again)}

    def _is_restarted(self, operator: OperatorId, again: dict[TaskId, Epoch]) -> bool:
        return any(task in again for task in self._steps[operator].tasks)

    def _heard(self, event: FullTold) -> list[EndSource]:
        if self._epochs.get(event.task) != event.epoch or event.operator not in self._steps:
            return []
        self._full[event.operator] = None
        found = [
            step
            for step in self._steps.values()
            if step.is_source and step.operator not in self._ended and not self._is_needed(step, {})
        ]
        self._ended.update({step.operator: None for step in found})
        return [
            EndSource(operator=step.operator, tasks=tuple((task, self._epochs[task]) for task in step.tasks))
            for step in found
        ]

    def _is_needed(self, step: PlannedStep, known: dict[OperatorId, bool]) -> bool:
        """Whether anything needs the records of a step. `known` has the answers so far: without it a program with many
        branches that become one again would be walked through once for every path."""
        if step.operator in self._full:
            return False
        if step.operator not in known:
            readers = [self._steps[reader] for reader in step.feeds]
            known[step.operator] = not readers or any(self._is_needed(reader, known) for reader in readers)
        return known[step.operator]
