"""How far a job has come, by what its slots tell with their heartbeats; and what went wrong on the way."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from penstock.core.ids import Instant, JobId
from penstock.core.job.events import AttemptEnded, FailureCause, RegionEnded
from penstock.core.messages import TaskFailed
from penstock.plan.graph import Plan
from penstock.runtime.views import FailureView, failure_view, place_of

log = logging.getLogger(__name__)

FAILURES_SHOWN = 16


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the tasks of the running attempt have done; see `JobView` for what each number means."""

    rows_in: int
    rows_read: int
    rows_out: int
    watermark_us: int | None
    late_dropped: int
    tasks: dict[str, dict[str, float]]


class JobProgress:
    """Collects what slots say, one attempt after another."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self.failures: deque[FailureView] = deque(maxlen=FAILURES_SHOWN)
        self.restarts = 0
        self._metrics: dict[str, dict[str, float]] = {}
        self._rows_before = 0

    def heard(self, metrics: dict[str, dict[str, float]]) -> None:
        """Tasks of the running attempt have come so far."""
        self._metrics.update(metrics)

    def attempt_failed(self, effect: AttemptEnded, now: Instant) -> None:
        """The running attempt is over, in failure."""
        self._tell("attempt", effect)
        self.failures.append(failure_view(effect, now))
        self.restarts += effect.restart_in_ms is not None

    def region_failed(self, effect: RegionEnded, plan: Plan, now: Instant) -> None:
        """These tasks of the running attempt are over, in failure: theirs counts from zero."""
        self._tell("region", effect)
        self.failures.append(failure_view(effect, now))
        self.restarts += 1
        before = self.totals(plan).rows_in
        for task in effect.tasks:
            self._metrics.pop(str(task), None)
        self._rows_before += before - self.totals(plan).rows_in

    def _tell(self, what: str, effect: AttemptEnded | RegionEnded) -> None:
        # In full: a job may be restarted for ever, and then nobody else says why.
        cause, pause_ms = effect.cause, effect.restart_in_ms
        follows = "it is not started again" if pause_ms is None else f"it is started again in {pause_ms} ms"
        known = {"job": self._job, "epoch": effect.epoch, "cause": cause.text}
        log.warning("%s failed%s: %s; %s", what, place_of(cause), cause.text, follows, extra=known)

    def attempt_left(self, plan: Plan) -> None:
        """The running attempt, of `plan`, is over: what follows counts from zero."""
        self._rows_before = self.totals(plan).rows_read
        self._metrics.clear()

    def totals(self, plan: Plan) -> Totals:
        """Over all tasks of the running attempt."""
        tasks = {name: dict(values) for name, values in self._metrics.items()}
        watermarks = [int(values["watermark_us"]) for values in tasks.values() if "watermark_us" in values]
        sources = [str(task) for vertex in plan.vertices if vertex.is_source for task in vertex.tasks]
        ends = [str(task) for vertex in plan.vertices if not plan.outputs_of(vertex.vertex) for task in vertex.tasks]
        rows_in = sum(int(tasks[task]["rows_in"]) for task in sources if task in tasks)
        return Totals(
            rows_in=rows_in,
            rows_read=self._rows_before + rows_in,
            rows_out=sum(int(tasks[task]["rows_in"]) for task in ends if task in tasks),
            watermark_us=min(watermarks, default=None),
            late_dropped=sum(int(values.get("late_dropped", 0)) for values in tasks.values()),
            tasks=tasks,
        )


def cause_of(message: TaskFailed) -> FailureCause:
    """What made a task fail, as its slot says."""
    return FailureCause(
        text=message.error,
        traceback=message.traceback,
        operator=message.operator,
        subtask=message.task.subtask,
        user_code=message.user_code,
    )
