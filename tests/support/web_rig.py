"""A job that never ran, and the server's application around it, for tests of what is answered."""

from __future__ import annotations

import asyncio
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from penstock.core.coordinator.stats import spread_of
from penstock.core.errors import SnapshotFailed
from penstock.core.ids import OperatorId, TaskId, VertexId
from penstock.core.job.events import FailureCause, JobState
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import SnapshotKind
from penstock.core.views import (
    CheckpointCounts,
    CheckpointDetails,
    CheckpointStatus,
    CheckpointsView,
    CheckpointTotals,
    CheckpointView,
    RestoredView,
    SubtasksView,
    SubtaskView,
    SummaryView,
)
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.facts import AttemptView, JobFacts, RescaleView, SlotFacts, TaskView
from penstock.runtime.views import FailureView, JobView, SlotView
from penstock.web.access import Access
from penstock.web.acting import Acting
from penstock.web.actions import Actions
from penstock.web.app import App
from penstock.web.ids import job_id, vertex_id
from penstock.web.routes import all_routes
from penstock.web.watched_jobs import ShownJob, WatchedJobs

NOW = 1_795_000_100_000
BEGAN = 1_795_000_000_000
JOB = "bids-1"
KEY = job_id(JOB)
SOURCE, WINDOW = vertex_id("bids"), vertex_id("window")
SETTINGS = {
    "parallelism": 2,
    "restart": None,
    "checkpoint": {"interval_ms": 1_000, "timeout_ms": 600_000, "mode": "exactly-once", "retention": "keep"},
    "state": {"backend": "memory"},
    "penstock-checkpoint-directory": "/data/checkpoints",
}
HOSTILE = "<script>alert('&')</script>"


def make_plan(parallelism=2, *, name="window"):
    nodes = (
        Node(number=0, operator=OperatorId("bids"), name="bids", step=object(), is_source=True),
        Node(number=1, operator=OperatorId("bids.where"), name="where", step=object(), inputs=(Input(node=0),)),
        Node(
            number=2,
            operator=OperatorId("window"),
            name=name,
            step=object(),
            inputs=(Input(node=1, partitioning=Partitioning.HASH, keys=("auction",)),),
        ),
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=max(128, parallelism))


def totals(rows, *, busy=400.0, waiting=100.0, blocked=300.0, idle=200.0, **more):
    return {
        "rows_in": rows,
        "rows_out": rows,
        "batches_in": 1,
        "bytes_in": 10 * rows,
        "bytes_out": 20 * rows,
        "queued_bytes": 5,
        "waiting_bytes": 7,
        "busy_ms": busy,
        "waiting_ms": waiting,
        "blocked_ms": blocked,
        "idle_ms": idle,
        **more,
    }


def make_tasks(parallelism=2, *, factor=1):
    found = {}
    for i in range(parallelism):
        found[f"bids[{i}]"] = totals(1_000 * factor)
        found[f"window[{i}]"] = totals(500 * factor, busy=900, waiting=50, blocked=0, idle=50, watermark_us=77_000_000)
    return found


def subtask(i, **more):
    known = {
        "acknowledged": BEGAN + 5_000,
        "duration_ms": 1_000,
        "checkpointed_bytes": 100,
        "state_bytes": 400,
        "sync_ms": 1.0,
        "async_ms": 20.0,
    }
    return SubtaskView(**{"subtask": i, **known, **more})


def vertex_in(vertex, subtasks, *, status=CheckpointStatus.COMPLETED):
    there = [s for s in subtasks if s.acknowledged is not None]
    names = ("checkpointed_bytes", "state_bytes", "processed_bytes", "persisted_bytes")
    spreads = {name: spread_of(getattr(s, name) for s in there) for name in (*names, "sync_ms", "async_ms")}
    return SubtasksView(
        vertex=VertexId(vertex),
        status=status if len(there) < len(subtasks) else CheckpointStatus.COMPLETED,
        duration_ms=max((s.duration_ms for s in there), default=0),
        totals=CheckpointTotals(
            num_subtasks=len(subtasks),
            num_acknowledged=len(there),
            latest_ack=max((s.acknowledged for s in there), default=None),
            **{name: sum(getattr(s, name) for s in there) for name in names},
            unaligned=any(s.unaligned for s in there),
        ),
        durations_ms=spread_of(s.duration_ms for s in there),
        alignment_ms=spread_of(s.alignment_ms for s in there),
        start_delay_ms=spread_of(s.start_delay_ms for s in there),
        subtasks=tuple(subtasks),
        **spreads,
    )


def make_checkpoint(
    number, sources, windows, *, status=CheckpointStatus.COMPLETED, kind=SnapshotKind.CHECKPOINT, failure=None, ended=60
):
    """A checkpoint that ended `ended` ms after the last acknowledgement."""
    vertices = (vertex_in("bids", sources, status=status), vertex_in("window", windows, status=status))
    acks = [v.totals.latest_ack for v in vertices if v.totals.latest_ack is not None]
    duration = max(v.duration_ms for v in vertices)
    sums = ("num_subtasks", "num_acknowledged", "checkpointed_bytes", "state_bytes", "processed_bytes")
    latest = max(acks, default=None)
    return CheckpointDetails(
        checkpoint=number,
        kind=kind,
        status=status,
        triggered=BEGAN + 4_000,
        queued_ms=3,
        duration_ms=duration,
        canonical=kind.is_savepoint,
        totals=CheckpointTotals(
            latest_ack=latest, **{name: sum(getattr(v.totals, name) for v in vertices) for name in sums}
        ),
        vertices=vertices,
        path=f"/data/checkpoints/bids-1/chk-{number}/_metadata" if status is CheckpointStatus.COMPLETED else None,
        ended=None if status is CheckpointStatus.IN_PROGRESS else (latest or BEGAN) + ended,
        failure=failure,
    )


def _head(details):
    fields = {name: getattr(details, name) for name in CheckpointView.__struct_fields__ if name != "vertices"}
    return CheckpointView(**fields, vertices=())


def default_checkpoints(parallelism=2):
    sources = [subtask(i, rows_in=300) for i in range(parallelism)]
    windows = [subtask(i, operators={"window": 400}) for i in range(parallelism)]
    silent = [subtask(i, acknowledged=None, duration_ms=0) for i in range(parallelism)]
    return (
        make_checkpoint(4, sources, silent, status=CheckpointStatus.IN_PROGRESS),
        make_checkpoint(3, sources, windows),
        make_checkpoint(2, sources, silent, status=CheckpointStatus.FAILED, failure=CheckpointFailure.EXPIRED),
        make_checkpoint(1, sources, windows, kind=SnapshotKind.SAVEPOINT),
    )


def make_facts(state=JobState.RUNNING, *, parallelism=2, checkpoints=None, tasks=None, failures=True, name="window"):
    plan = make_plan(parallelism, name=name)
    checkpoints = default_checkpoints(parallelism) if checkpoints is None else checkpoints
    newest = {c.status: _head(c) for c in reversed(checkpoints) if not c.kind.is_savepoint}
    savepoints = [_head(c) for c in checkpoints if c.kind.is_savepoint]
    failure = FailureView(
        epoch=1,
        when=BEGAN + 1_000,
        text="ValueError: 5",
        operator=name,
        subtask=1,
        traceback="Traceback\nValueError: 5",
        user_code=True,
        restart_in_ms=100,
    )
    view = JobView(
        job=JOB,
        state=state,
        epoch=2,
        restarts=1,
        slots=tuple(SlotView(number=i, incarnation=1, host="h", pid=10 + i) for i in range(parallelism)),
        rows_in=1_000 * parallelism,
        rows_read=1_500 * parallelism,
        rows_out=500 * parallelism,
        watermark_us=77_000_000,
        restored_checkpoint=1,
        checkpoints=CheckpointsView(
            counts=CheckpointCounts(restored=1, total=4, in_progress=1, completed=2, failed=1),
            summary=SummaryView(),
            history=tuple(_head(c) for c in checkpoints),
            latest_completed=newest.get(CheckpointStatus.COMPLETED),
            latest_savepoint=savepoints[0] if savepoints else None,
            latest_failed=newest.get(CheckpointStatus.FAILED),
            latest_restored=RestoredView(
                checkpoint=1, kind=SnapshotKind.SAVEPOINT, restored=BEGAN + 1_200, path="/data/checkpoints/x"
            ),
        ),
        failures=(failure,) if failures else (),
        tasks=make_tasks(parallelism) if tasks is None else tasks,
    )
    return JobFacts(
        now=NOW,
        view=view,
        plan=plan,
        checkpoints=checkpoints,
        entered={JobState.STARTING: BEGAN, JobState.DEPLOYING: BEGAN + 1_100, state: BEGAN + 1_300},
        attempts=two_attempts(name, parallelism),
        tasks={task: TaskView(attempt=1, epoch=2, deployed=BEGAN + 1_100, ran=BEGAN + 1_300) for task in plan.tasks},
        rescales=(RescaleView(asked=BEGAN + 50_000, before=1, after=2, state="completed", times={"completed": NOW}),),
        slots=two_slots(parallelism),
    )


def two_attempts(name, parallelism):
    cause = FailureCause(text="ValueError: 5", traceback="Traceback\nValueError: 5", operator=name, subtask=1)
    first = AttemptView(
        epoch=1,
        tasks=None,
        deployed=BEGAN + 100,
        ran=BEGAN + 200,
        ended=BEGAN + 1_000,
        how="failed",
        cause=cause,
        restart_in_ms=100,
        rows_read_after=500 * parallelism,
    )
    second = AttemptView(
        epoch=2, tasks=None, deployed=BEGAN + 1_100, ran=BEGAN + 1_300, restored=1, rows_read_before=500 * parallelism
    )
    return first, second


def two_slots(parallelism):
    return tuple(
        SlotFacts(
            number=i,
            incarnation=1,
            name=f"slot-{i}.1.0",
            host="h",
            pid=10 + i,
            spare=False,
            heard=NOW - 100,
            process={"rss_bytes": 1e8, "peak_rss_bytes": 2e8, "cpu_s": 1.5, "threads": 3},
        )
        for i in range(parallelism)
    )


class Played:
    """A job that does at once what it is asked, and remembers it."""

    def __init__(self, facts=None):
        self.facts = facts or make_facts()
        self.did = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = None

    def _do(self, *what):
        self.gate.wait(30)
        self.did.append(what)
        if self.failing is not None:
            raise self.failing

    def checkpoint(self, *, full=False):
        self._do("checkpoint", full)
        return 7

    def savepoint(self, directory=None, *, native=False):
        self._do("savepoint", directory, native)
        return "/data/checkpoints/savepoints/sp-8"

    def stop(self, *, savepoint=None, drain=False, native=False):
        self._do("stop", savepoint, drain, native)
        return "/data/checkpoints/savepoints/sp-9"

    def rescale(self, parallelism):
        self._do("rescale", parallelism)

    def cancel(self):
        self._do("cancel")

    def log_lines(self, *, after=0, slot=None, lines=200):
        place = {"operator": "window", "subtask": 1}
        line = {"time": BEGAN, "slot": slot, "level": "INFO", "logger": "x", **place, "text": "it was said"}
        return {"lines": [line, {**line, "logger": "print", "text": "printed"}], "next": 2, "left_out": 0}


REFUSED = SnapshotFailed("the savepoint failed: the disk is full")


class Rig:
    """The application with one job, asked without a network."""

    def __init__(
        self, *, facts=None, token=None, folders=("/data/checkpoints",), settings=None, hosts=(), archived=None
    ):
        self.time_ms = 0.0
        self.job = Played(facts)
        self.archived = []
        self.jobs = WatchedJobs(ended_kept=3, clock_ms=self._clock, archived=archived or self.archived.append)
        self.executor = ThreadPoolExecutor(2)
        self.add(JOB, self.job, folders=folders, settings=settings)
        acting = Acting(
            Actions(self.executor, self._clock, lambda: secrets.token_hex(16)), self.jobs.driven, self.jobs.folders
        )
        self.routes = all_routes(acting)
        self.app = App(jobs=self.jobs, routes=self.routes, access=Access(token=token, hosts=hosts), about=make_about)

    def _clock(self):
        # Every look is fresh.
        self.time_ms += 1_000
        return self.time_ms

    def add(self, job, played, *, folders=("/data/checkpoints",), settings=None, name="bids"):
        self.jobs.add(
            ShownJob(
                job=job,
                name=name,
                driven=played,
                ask=lambda answer: answer(played.facts),
                settings=SETTINGS if settings is None else settings,
                folders=folders,
            )
        )

    def ask(self, method, path, **more):
        async def call():
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=True)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())

    def get(self, path, status=200, **more):
        answer = self.ask("GET", path, **more)
        assert answer.status_code == status, answer.text
        return answer.json()

    def ended(self, path):
        """The status of an action, when the action has ended."""
        pause = threading.Event()
        for _ in range(600):
            found = self.get(path)
            if found["status"]["id"] == "COMPLETED":
                return found["operation"]
            pause.wait(0.01)
        raise AssertionError("the action does not end")

    def close(self):
        self.job.gate.set()
        self.executor.shutdown()


class _NoLogs:
    def names(self, job, slot):
        return [{"name": "a.log", "size": 3, "mtime": 5}] if slot is None else []

    def read(self, job, slot, name):
        return "abc" if name == "a.log" and slot is None else None


def make_about():
    return {
        "version": "0.1.0",
        "address": "http://127.0.0.1:8081",
        "logs": _NoLogs(),
        "process": {"rss_bytes": 1e8, "peak_rss_bytes": 1e8, "cpu_s": 2.0, "threads": 9},
        "config": {"penstock.version": "0.1.0"},
        "environment": {"jvm": {"version": "Python", "arch": "x", "options": []}, "classpath": []},
        "hardware": {"cores": 2, "memory_bytes": 8_000_000_000},
        "threads": lambda: [{"threadName": "t", "stringifiedThreadInfo": "s\n"}],
    }


def task(name, i):
    return TaskId(VertexId(name), i)
