"""The metrics of jobs for Prometheus.

The numbers come from the documents of jobs, one document per job, which the page of the driver makes. `SERIES` has
every metric with its labels; the page docs/reference/metrics.md is written from `SERIES`.

Labels are few: the job, and the step and the subtask or the slot. Keys of records are never labels. A job that has
ended has its state and its counts; the series of its subtasks and slots are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from penstock.api.metrics import BELOW, VALUE
from penstock.runtime.user_metrics import ReportedPart, reported_parts

Document = Mapping[str, Any]
Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""

JOB = ("job", "job_name")
STEP = (*JOB, "step", "subtask")
SLOT = (*JOB, "slot", "host")
USER_METRIC = "penstock_user_"
"""Where the names of the metrics of users' functions begin."""
LONGEST_LAG_MS = 400 * 24 * 3_600_000
"""An event time that is further behind is the time of old data, and no lag."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric."""

    name: str
    """Without the ending `_total` of counters."""
    kind: str
    """`counter` or `gauge`."""
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Document], Iterator[Sample]]
    """The samples of a job."""

    @property
    def shown_name(self) -> str:
        """The name by which Prometheus has the metric."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def exposition(jobs: Iterable[Document]) -> tuple[bytes, str]:
    """The metrics of these jobs in the text format of Prometheus, and the content type of the text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(jobs)))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collected:
    """All metrics of some jobs."""

    def __init__(self, jobs: list[Document]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """The metrics, each with the samples of all jobs."""
        for series in SERIES:
            family = _family(series.name, series.kind, series.help, series.labels)
            for job in self._jobs:
                for labels, value in series.samples(job):
                    family.add_metric(labels, value)
            if family.samples:
                yield family
        yield from _user_families(self._jobs)


def _family(name: str, kind: str, text: str, labels: Iterable[str]) -> CounterMetricFamily | GaugeMetricFamily:
    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    return make(name, text, labels=list(labels))


# --- of a job ---------------------------------------------------------------------------------------------------------


def _job(job: Document) -> tuple[str, ...]:
    return str(job["job"]), str(job["name"])


def is_over(job: Document) -> bool:
    """Whether the job has ended."""
    return job["ended"] is not None


def _of_job(find: Callable[[Document], float | None]) -> Callable[[Document], Iterator[Sample]]:
    def samples(job: Document) -> Iterator[Sample]:
        value = find(job)
        if value is not None:
            yield _job(job), float(value)

    return samples


def _of_running_job(find: Callable[[Document], float | None]) -> Callable[[Document], Iterator[Sample]]:
    return _of_job(lambda job: None if is_over(job) else find(job))


def _states(job: Document) -> Iterator[Sample]:
    yield (*_job(job), str(job["state"])), 1.0


def _dropped(job: Document) -> Iterator[Sample]:
    for reason, count in job["dropped"].items():
        yield (*_job(job), reason), float(count)


def _checkpoints(job: Document) -> Iterator[Sample]:
    for result in ("completed", "failed"):
        yield (*_job(job), result), float(job["checkpoints"]["counts"][result])


def _latest(name: str, *, per: float = 1.0) -> Callable[[Document], Iterator[Sample]]:
    def find(job: Document) -> float | None:
        latest = job["checkpoints"]["latest_completed"]
        return None if latest is None else float(latest[name]) / per

    return _of_job(find)


def _age(job: Document) -> float | None:
    latest = job["checkpoints"]["latest_completed"]
    return None if latest is None else max(0.0, float(job["now"] - latest["triggered"]) / 1_000)


def _lag(job: Document) -> float | None:
    if job["watermark_ms"] is None or abs(lag := job["now"] - job["watermark_ms"]) > LONGEST_LAG_MS:
        return None
    return max(0.0, float(lag) / 1_000)


# --- of subtasks and slots --------------------------------------------------------------------------------------------


def _of_subtasks(column: str, *, per: float = 1.0) -> Callable[[Document], Iterator[Sample]]:
    def samples(job: Document) -> Iterator[Sample]:
        for vertex in () if is_over(job) else job["vertices"]:
            values = vertex["subtasks"].get(column, ())
            for subtask, value in enumerate(values):
                if value is not None:
                    yield (*_job(job), vertex["key"], str(subtask)), value / per

    return samples


def _times(job: Document) -> Iterator[Sample]:
    for what in ("busy", "waiting", "blocked", "idle"):
        for labels, value in _of_subtasks(f"{what}_ms", per=1_000)(job):
            yield (*labels, what), value


def _others(job: Document) -> Iterator[Sample]:
    for vertex in () if is_over(job) else job["vertices"]:
        for subtask, found in enumerate(vertex["subtasks"].get("other", ())):
            for name, value in found.items():
                if "/" not in name:
                    yield (*_job(job), vertex["key"], str(subtask), name), float(value)


def _processes(job: Document) -> Iterator[Sample]:
    for slot in () if is_over(job) else job["slots"]:
        for name, value in slot["process"].items():
            yield (*_job(job), slot["id"], slot["host"] or "", name), float(value)


def _stuck(job: Document) -> Iterator[Sample]:
    for stuck in job["stuck"]:
        yield (*_job(job), str(stuck["slot"])), stuck["stuck_ms"] / 1_000


SERIES = (
    Series(
        name="penstock_job_state",
        kind="gauge",
        labels=(*JOB, "state"),
        samples=_states,
        help="1 for the state that the job is in.",
    ),
    Series(
        name="penstock_job_uptime_seconds",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(lambda job: (job["now"] - job["started"]) / 1_000),
        help="How long ago this driver began to run the job.",
    ),
    Series(
        name="penstock_job_restarts",
        kind="counter",
        labels=JOB,
        samples=_of_job(lambda job: job["restarts"]),
        help="How often the job, or regions of the job, restarted.",
    ),
    Series(
        name="penstock_job_parallelism",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(lambda job: job["parallelism"]),
        help="How many slots the job has.",
    ),
    Series(
        name="penstock_job_records_read",
        kind="counter",
        labels=JOB,
        samples=_of_job(lambda job: job["rows"]["read"]),
        help="Records that the sources have read, records that were read again after a failure included.",
    ),
    Series(
        name="penstock_job_records_at_sinks",
        kind="gauge",
        labels=JOB,
        samples=_of_job(lambda job: job["rows"]["out"]),
        help="Records that have reached the sinks in the running attempt.",
    ),
    Series(
        name="penstock_job_records_dropped",
        kind="gauge",
        labels=(*JOB, "reason"),
        samples=_dropped,
        help="Records, or partial results, that were dropped in the running attempt, by reason: late, timeless, "
        "beyond_time, lines_skipped.",
    ),
    Series(
        name="penstock_job_records_at_risk",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(lambda job: job["at_risk"]["records"]),
        help="Records that would be read again after a failure now.",
    ),
    Series(
        name="penstock_job_watermark_seconds",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(lambda job: None if job["watermark_ms"] is None else job["watermark_ms"] / 1_000),
        help="The watermark that is furthest behind, in seconds since 1970.",
    ),
    Series(
        name="penstock_job_watermark_lag_seconds",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(_lag),
        help="How far that watermark is behind the clock. Absent for data that is older than 400 days.",
    ),
    Series(
        name="penstock_checkpoints",
        kind="counter",
        labels=(*JOB, "result"),
        samples=_checkpoints,
        help="Checkpoints that have ended since this driver began to run the job, by result: completed, failed.",
    ),
    Series(
        name="penstock_checkpoints_in_progress",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(lambda job: job["checkpoints"]["counts"]["in_progress"]),
        help="Checkpoints that are under way.",
    ),
    Series(
        name="penstock_last_checkpoint_id",
        kind="gauge",
        labels=JOB,
        samples=_latest("checkpoint"),
        help="The number of the newest completed checkpoint.",
    ),
    Series(
        name="penstock_last_checkpoint_age_seconds",
        kind="gauge",
        labels=JOB,
        samples=_of_running_job(_age),
        help="How long ago the newest completed checkpoint was triggered: what a failure now would cost.",
    ),
    Series(
        name="penstock_last_checkpoint_duration_seconds",
        kind="gauge",
        labels=JOB,
        samples=_latest("duration_ms", per=1_000),
        help="How long the newest completed checkpoint took, from its trigger to the last acknowledgement.",
    ),
    Series(
        name="penstock_last_checkpoint_written_bytes",
        kind="gauge",
        labels=JOB,
        samples=_latest("checkpointed_bytes"),
        help="Bytes that the newest completed checkpoint wrote.",
    ),
    Series(
        name="penstock_last_checkpoint_state_bytes",
        kind="gauge",
        labels=JOB,
        samples=_latest("state_bytes"),
        help="Bytes that a restore of the newest completed checkpoint reads.",
    ),
    Series(
        name="penstock_last_checkpoint_in_flight_bytes",
        kind="gauge",
        labels=JOB,
        samples=_latest("persisted_bytes"),
        help="Bytes of in-flight data in the newest completed checkpoint.",
    ),
    Series(
        name="penstock_slot_stuck_seconds",
        kind="gauge",
        labels=(*JOB, "slot"),
        samples=_stuck,
        help="For how long the loop of a slot has been in one call. Absent for slots whose loops turn.",
    ),
    Series(
        name="penstock_subtask_records_in",
        kind="counter",
        labels=STEP,
        samples=_of_subtasks("rows_in"),
        help="Records that the subtask has taken, or, in a source, read, in the running attempt.",
    ),
    Series(
        name="penstock_subtask_records_out",
        kind="counter",
        labels=STEP,
        samples=_of_subtasks("rows_out"),
        help="Records that the subtask has sent to other vertices.",
    ),
    Series(
        name="penstock_subtask_bytes_in",
        kind="counter",
        labels=STEP,
        samples=_of_subtasks("bytes_in"),
        help="Bytes of the batches that came through channels.",
    ),
    Series(
        name="penstock_subtask_bytes_out",
        kind="counter",
        labels=STEP,
        samples=_of_subtasks("bytes_out"),
        help="Bytes of the batches that were sent through channels.",
    ),
    Series(
        name="penstock_subtask_output_waiting_bytes",
        kind="gauge",
        labels=STEP,
        samples=_of_subtasks("queued_bytes"),
        help="Bytes that wait in the subtask until their receivers have room.",
    ),
    Series(
        name="penstock_subtask_input_waiting_bytes",
        kind="gauge",
        labels=STEP,
        samples=_of_subtasks("waiting_bytes"),
        help="Bytes that have come in and wait for the subtask.",
    ),
    Series(
        name="penstock_subtask_time_seconds",
        kind="counter",
        labels=(*STEP, "what"),
        samples=_times,
        help="What the time of the subtask went to: busy in its steps, waiting for its turn in the slot, blocked by "
        "receivers without room (back-pressure), idle.",
    ),
    Series(
        name="penstock_subtask_watermark_seconds",
        kind="gauge",
        labels=STEP,
        samples=_of_subtasks("watermark_ms", per=1_000),
        help="The watermark of the subtask, in seconds since 1970.",
    ),
    Series(
        name="penstock_subtask_number",
        kind="gauge",
        labels=(*STEP, "number"),
        samples=_others,
        help="Other numbers that steps report, by name, such as timers_fired or requests_in_flight.",
    ),
    Series(
        name="penstock_slot_process",
        kind="gauge",
        labels=(*SLOT, "number"),
        samples=_processes,
        help="Numbers about the slot's process, by name, such as its memory and its processor time.",
    ),
)
"""Every metric of Penstock's own."""


# --- of users' functions ----------------------------------------------------------------------------------------------


def _user_families(jobs: Iterable[Document]) -> Iterator[Metric]:
    """One family per name and kind of metric. Of two kinds with one name, the second kind is in the name, too."""
    found: dict[tuple[str, str], dict[tuple[str, ...], dict[str, float]]] = {}
    for job in jobs:
        for part in () if is_over(job) else _user_parts(job):
            labels = (*_job(job), part.operator, str(part.subtask))
            found.setdefault((part.name, part.kind), {}).setdefault(labels, {})[part.part] = part.value
    taken: set[str] = set()
    for (name, kind), subtasks in sorted(found.items()):
        shown = f"{USER_METRIC}{name}" if name not in taken else f"{USER_METRIC}{name}_{kind}"
        taken.add(name)
        text = f"The {kind} {name!r} of functions of the program."
        if kind == "histogram":
            family = HistogramMetricFamily(shown, text, labels=STEP)
            for labels, parts in subtasks.items():
                family.add_metric(labels, buckets=_buckets(parts), sum_value=parts["sum"])
            yield family
        else:
            plain = _family(shown.removesuffix("_total") if kind == "counter" else shown, kind, text, STEP)
            for labels, parts in subtasks.items():
                plain.add_metric(labels, parts[VALUE])
            yield plain


def _user_parts(job: Document) -> Iterator[ReportedPart]:
    tasks = {
        f"{vertex['key']}[{subtask}]": numbers
        for vertex in job["vertices"]
        for subtask, numbers in enumerate(vertex["subtasks"].get("other", ()))
    }
    return reported_parts(tasks)


def _buckets(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    bounds = sorted(float(part.removeprefix(BELOW)) for part in parts if part.startswith(BELOW))
    return [*((repr(bound), parts[f"{BELOW}{bound!r}"]) for bound in bounds), ("+Inf", parts["count"])]
