"""A coordinator with a shell around it that can be told to answer later, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import (
    AnswerRequest,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointStarted,
    CoordinatorEffect,
    CreateLocation,
    DeleteFiles,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    Declined,
    FilesDeleted,
    LocationCreated,
    MetadataWritten,
    PointerStored,
    RequestKind,
    ScheduleAllowed,
    TaskRunning,
)
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.effects import Ticked
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import (
    Acknowledge,
    Decline,
    NotifyAborted,
    NotifyComplete,
    OperatorState,
    SnapshotMetrics,
    StateFile,
    SubtaskState,
    TriggerCheckpoint,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint, DiscardRules, SnapshotKind
from penstock.core.views import CheckpointDetails, SubtasksView
from penstock.settings import CheckpointSettings, Retention

JOB = JobId("job")
EffectT = TypeVar("EffectT")


def vertex(name: str, parallelism: int = 1, **more: Any) -> CheckpointVertex:
    return CheckpointVertex(
        vertex=VertexId(name), parallelism=parallelism, operators=(OperatorId(f"op-{name}"),), **more
    )


def graph_of(
    *vertices: CheckpointVertex, edges: tuple[tuple[str, str, bool], ...] = (), hooks: tuple[str, ...] = ()
) -> CheckpointGraph:
    return CheckpointGraph(
        vertices=vertices,
        hooks=hooks,
        edges=tuple(
            CheckpointEdge(upstream=VertexId(up), downstream=VertexId(down), all_to_all=all_to_all)
            for up, down, all_to_all in edges
        ),
    )


def sources(number: int, *, hooks: tuple[str, ...] = ()) -> CheckpointGraph:
    """So many tasks that are all triggered."""
    return graph_of(*(vertex(f"t{i + 1}", is_source=True) for i in range(number)), hooks=hooks)


def task(name: str, subtask: int = 0) -> TaskId:
    return TaskId(VertexId(name), subtask)


def state_file(path: str, key: str | None = None, *, placeholder: bool = False, checksum: int = 7) -> StateFile:
    """A placeholder says nothing about the content it stands for."""
    if placeholder:
        return StateFile(path=path or None, size=0, checksum=0, shared_key=key, placeholder=True)
    return StateFile(path=path, size=10, checksum=checksum, shared_key=key)


def state_of(name: str, *files: StateFile, finished: bool = False, union: bool = False) -> SubtaskState:
    """The state of one subtask of the vertex `name`."""
    lists: dict[str, tuple[bytes, ...]] = {"all": (b"part",)} if union else {}
    operator = OperatorState(operator=OperatorId(f"op-{name}"), keyed=files, union_lists=lists)
    return SubtaskState(operators=(operator,), finished=finished)


def record_of(checkpoint: int, kind: SnapshotKind = SnapshotKind.CHECKPOINT, **more: Any) -> CompletedCheckpoint:
    """The record of a completed checkpoint that was there before."""
    return CompletedCheckpoint(
        job=JOB,
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(0),
        completed=Instant(1),
        kind=kind,
        location=f"old/chk-{checkpoint}",
        path=f"old/chk-{checkpoint}/_metadata",
        size=1,
        **{"discard": DiscardRules.of(Retention.DELETE)} | more,
    )


class Rig:
    """Feeds events, performs what the coordinator wants of storage, and remembers all of it.

    `hold` names kinds of effects that are left unanswered. Every event is followed by `validate`; after a tick the next
    deadline must lie in the future.
    """

    def __init__(
        self,
        graph: CheckpointGraph | None = None,
        *,
        completed: tuple[CompletedCheckpoint, ...] = (),
        next_id: int = 1,
        options: CoordinatorOptions | None = None,
        **settings: Any,
    ) -> None:
        self.graph = graph or sources(2)
        self.settings = replace(CheckpointSettings(retention=Retention.DELETE), **settings)
        self.coordinator = CheckpointCoordinator(
            JOB,
            self.settings,
            self.graph,
            CheckpointId(next_id),
            completed,
            options or CoordinatorOptions(),
        )
        self.now = 1_000
        self.epoch = 0
        self.hold: set[type] = set()
        self.log: list[CoordinatorEffect] = []
        self.deleted: list[str] = []
        self._next_request = 1

    def details(self, checkpoint: int) -> CheckpointDetails | None:
        """What is remembered of a checkpoint."""
        return next((c for c in self.coordinator.details() if c.checkpoint == checkpoint), None)

    def subtasks(self, checkpoint: int, vertex: str) -> SubtasksView:
        """What is remembered of a vertex of a checkpoint."""
        details = self.details(checkpoint)
        assert details is not None
        return next(v for v in details.vertices if v.vertex == vertex)

    # --- feeding ------------------------------------------------------------------------------------------------------

    def feed(self, *events: CoordinatorEvent) -> list[CoordinatorEffect]:
        """Feed these, and the answers to what they bring about; returns all effects."""
        seen: list[CoordinatorEffect] = []
        waiting = list(events)
        while waiting:
            event = waiting.pop(0)
            effects = self.coordinator.handle(event, Instant(self.now))
            self.coordinator.validate()
            deadline = self.coordinator.next_deadline()
            assert not isinstance(event, Ticked) or deadline is None or deadline > self.now
            seen += effects
            for effect in effects:
                if isinstance(effect, DeleteFiles):
                    self.deleted += [*effect.paths, *([effect.folder] if effect.folder else [])]
                if type(effect) not in self.hold:
                    waiting += self.answers_to(effect)
        self.log += seen
        return seen

    @staticmethod
    def answers_to(effect: CoordinatorEffect) -> list[CoordinatorEvent]:
        match effect:
            case CreateLocation():
                root = effect.options.target or "ckpt"
                return [LocationCreated(checkpoint=effect.checkpoint, location=f"{root}/chk-{effect.checkpoint}")]
            case WriteMetadata():
                path = f"{effect.location}/_metadata"
                return [MetadataWritten(checkpoint=effect.checkpoint, path=path, size=100)]
            case StorePointer():
                return [PointerStored(checkpoint=effect.completed.checkpoint)]
            case DeleteFiles():
                return [FilesDeleted(cleaning=effect.cleaning)]
            case _:
                return []

    def start(self, draw: float = 0.0, **more: Any) -> Rig:
        """A new attempt; all tasks run."""
        self.epoch += 1
        epoch = Epoch(self.epoch)
        self.feed(AttemptStarted(epoch=epoch, **more))
        self.feed(*(TaskRunning(task=t, epoch=epoch) for t in self.graph.tasks))
        self.feed(ScheduleAllowed(draw=draw))
        return self

    def tick(self, after_ms: int = 0) -> list[CoordinatorEffect]:
        self.now += after_ms
        return self.feed(Ticked())

    def until(self, instant: int) -> list[CoordinatorEffect]:
        """Tick at every deadline up to that time."""
        seen: list[CoordinatorEffect] = []
        while (deadline := self.coordinator.next_deadline()) is not None and deadline <= instant:
            self.now = max(self.now, deadline)
            seen += self.feed(Ticked())
        self.now = instant
        return seen

    def request(self, kind: RequestKind = RequestKind.CHECKPOINT, **more: Any) -> list[CoordinatorEffect]:
        """Ask as a user. Requests are numbered from 1."""
        number = RequestId(self._next_request)
        self._next_request += 1
        if kind is not RequestKind.CHECKPOINT:
            more.setdefault("target", "savepoints")
        return self.feed(CheckpointRequested(request=number, kind=kind, **more))

    def ack(
        self,
        name: str,
        checkpoint: int,
        state: SubtaskState | None = None,
        *,
        subtask: int = 0,
        epoch: int | None = None,
        job: str = JOB,
        metrics: SnapshotMetrics | None = None,
    ) -> list[CoordinatorEffect]:
        message = Acknowledge(
            job=JobId(job),
            epoch=Epoch(self.epoch if epoch is None else epoch),
            task=task(name, subtask),
            checkpoint=CheckpointId(checkpoint),
            state=state,
            metrics=metrics or SnapshotMetrics(),
        )
        return self.feed(Acknowledged(message=message))

    def ack_all(self, checkpoint: int) -> list[CoordinatorEffect]:
        return [e for t in self.graph.tasks for e in self.ack(t.vertex, checkpoint, subtask=t.subtask)]

    def take(self, checkpoint: int, *files: StateFile, **asked: Any) -> list[CoordinatorEffect]:
        """Have a checkpoint taken whose first task wrote these files."""
        effects = self.request(**asked)
        first, *others = self.graph.tasks
        effects += self.ack(first.vertex, checkpoint, state_of(first.vertex, *files))
        for other in others:
            effects += self.ack(other.vertex, checkpoint, subtask=other.subtask)
        return effects

    def decline(
        self,
        name: str,
        checkpoint: int,
        reason: CheckpointFailure = CheckpointFailure.DECLINED_TASK_NOT_READY,
        *,
        subtask: int = 0,
        epoch: int | None = None,
        job: str = JOB,
    ) -> list[CoordinatorEffect]:
        message = Decline(
            job=JobId(job),
            epoch=Epoch(self.epoch if epoch is None else epoch),
            task=task(name, subtask),
            checkpoint=CheckpointId(checkpoint),
            reason=reason,
            error="because",
        )
        return self.feed(Declined(message=message))

    # --- looking ------------------------------------------------------------------------------------------------------

    @property
    def in_progress(self) -> list[int]:
        view = self.coordinator.view()
        return sorted(c.checkpoint for c in view.history if c.status.value == "IN_PROGRESS")

    @property
    def retained(self) -> list[int]:
        return [c.checkpoint for c in self.coordinator.retained]

    @property
    def waiting(self) -> int:
        return self.coordinator.view().waiting


class Pick:
    """Short forms of what a list of effects says."""

    @staticmethod
    def of(effects: list[CoordinatorEffect], kind: type[EffectT]) -> list[EffectT]:
        return [e for e in effects if isinstance(e, kind)]

    @staticmethod
    def begun(effects: list[CoordinatorEffect]) -> list[int]:
        return [e.checkpoint for e in effects if isinstance(e, CheckpointStarted)]

    @staticmethod
    def completed(effects: list[CoordinatorEffect]) -> list[int]:
        return [e.completed.checkpoint for e in effects if isinstance(e, CheckpointCompleted)]

    @staticmethod
    def aborted(effects: list[CoordinatorEffect]) -> list[tuple[int, CheckpointFailure]]:
        return [(e.checkpoint, e.reason) for e in effects if isinstance(e, CheckpointAborted)]

    @staticmethod
    def triggered(effects: list[CoordinatorEffect]) -> list[TaskId]:
        sent = (e for e in effects if isinstance(e, SendToTask))
        return [e.task for e in sent if isinstance(e.message, TriggerCheckpoint)]

    @staticmethod
    def told_complete(effects: list[CoordinatorEffect]) -> list[tuple[TaskId, int]]:
        sent = (e for e in effects if isinstance(e, SendToTask))
        return [(e.task, e.message.checkpoint) for e in sent if isinstance(e.message, NotifyComplete)]

    @staticmethod
    def told_aborted(effects: list[CoordinatorEffect]) -> list[tuple[TaskId, int]]:
        sent = (e for e in effects if isinstance(e, SendToTask))
        return [(e.task, e.message.checkpoint) for e in sent if isinstance(e.message, NotifyAborted)]

    @staticmethod
    def answers(effects: list[CoordinatorEffect]) -> dict[int, Any]:
        """Request -> its result, each asked for only once."""
        found = [e for e in effects if isinstance(e, AnswerRequest)]
        assert len({e.request for e in found}) == len(found)
        return {e.request: e.result for e in found}


@pytest.fixture
def rig() -> Callable[..., Rig]:
    return Rig


@pytest.fixture
def store() -> Callable[..., Rig]:
    """A job that runs and tolerates any number of failed checkpoints, so that what is on storage can be looked at."""

    def build(**more: Any) -> Rig:
        return Rig(**{"tolerable_failures": None} | more).start()

    return build


@pytest.fixture
def pick() -> type[Pick]:
    return Pick


class Builders:
    """Graphs, tasks and states in short."""

    vertex = staticmethod(vertex)
    graph = staticmethod(graph_of)
    sources = staticmethod(sources)
    task = staticmethod(task)
    file = staticmethod(state_file)
    state = staticmethod(state_of)
    record = staticmethod(record_of)


@pytest.fixture
def make() -> type[Builders]:
    return Builders
