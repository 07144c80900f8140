"""Cleans up after a job: sinks are told, and files go that no retained checkpoint refers to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from penstock.api.steps import WriteStep
from penstock.core.errors import ExternalError, Retry
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.job.clean_up import CleanUp
from penstock.core.recovery import layout
from penstock.plan.graph import Plan
from penstock.ports import Background, Outcome, Store

ATTEMPTS = 5
RETRY_MS = 1_000

log = logging.getLogger(__name__)


class _Step(NamedTuple):
    name: str
    work: Callable[[], None]


class FinalCleanUp:
    """The clean-up of one job, begun when its last slot has left and no storage work is under way."""

    def __init__(self, job: JobId, *, plan: Plan, background: Background, store: Store, landing: Store | None) -> None:
        self._job = job
        self._folder = layout.job_folder(job)
        self._plan = plan
        self._background = background
        self._store = store
        self._landing = landing
        self._steps: list[_Step] = []
        self._clean_up = CleanUp(0, attempts=ATTEMPTS, retry_ms=RETRY_MS)
        self._now = Instant(0)

    def begin(self, retained: tuple[CheckpointId, ...], now: Instant) -> None:
        """Start. Whoever goes on from a retained checkpoint needs what it refers to, and nothing else."""
        self._now = now
        if retained:
            self._steps = [_Step("checkpoint directory", lambda: _sweep(self._store, self._folder, retained))]
        else:
            # Each by itself: a sink that cannot be reached must not keep the others, and the files, from being cleaned.
            steps = [operator.step for vertex in self._plan.vertices for operator in vertex.operators]
            sinks = [step.sink for step in steps if isinstance(step, WriteStep)]
            self._steps = [_Step(f"sink {sink.name}", partial(sink.end, self._job)) for sink in sinks]
            self._steps.append(_Step("checkpoint directory", lambda: self._store.delete_tree(self._folder)))
            if self._landing is not None:
                self._steps.append(_Step("landed DataFrames", partial(self._landing.delete_tree, self._folder)))
        self._clean_up = CleanUp(len(self._steps), attempts=ATTEMPTS, retry_ms=RETRY_MS)
        for step in self._clean_up.begin():
            self._submit(step)

    def tick(self, now: Instant) -> None:
        """Time has passed: do again what is due."""
        self._now = now
        for step in self._clean_up.due(now):
            self._submit(step)

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called; None if only an outcome can help."""
        return self._clean_up.next_deadline()

    @property
    def is_over(self) -> bool:
        """Whether everything is cleaned up, or given up."""
        return self._clean_up.is_over

    def _submit(self, number: int) -> None:
        step = self._steps[number]

        def done(outcome: Outcome) -> None:
            error = outcome.error
            later = isinstance(error, ExternalError) and error.retry is Retry.LATER
            again = self._clean_up.ended(number, self._now, may_succeed_later=later)
            if error is not None and not again:
                log.warning(
                    "cleaning up failed; penstock verify shows what is left",
                    extra={"job": self._job, "step": step.name, "error": str(error)},
                )

        self._background.submit(step.work, done)


def _sweep(store: Store, folder: layout.JobFolder, retained: tuple[CheckpointId, ...]) -> None:
    """Delete what slots wrote for checkpoints that had ended, when nobody could hear of it any more, and pointers that
    could not be dropped: a job that is over has none."""
    for path in store.list_files(layout.completed_folder(folder)):
        store.delete(path)
    kept = [layout.checkpoint_folder(folder, checkpoint) for checkpoint in retained]
    found = [layout.checkpoint_folder_of(folder, path) for path in store.list_files(folder)]
    for place in dict.fromkeys(place for place in found if place is not None and place not in kept):
        store.delete_tree(place)
