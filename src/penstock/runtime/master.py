"""The driver of the job master: feeds the job's lifecycle and the checkpoint coordinator, and does what they say.

It lives on the Spark driver, on a thread of its own; slots call in over the transport. What blocks (files, reading a
checkpoint back) runs in the background, and its outcome comes back as an event.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

import cloudpickle

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import AnswerRequest, RequestFailure
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    CheckpointRequested,
    CoordinatorEvent,
    Declined,
    FailedOver,
    JobEnd,
    RequestKind,
    ScheduleAllowed,
    ScheduleForbidden,
    ShutDown,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.effects import Ticked
from penstock.core.errors import MalformedMessage
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, RequestId, SlotId, TaskId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
)
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.messages import (
    Acknowledge,
    Cancelled,
    CancelTasks,
    DataEnded,
    Decline,
    Deploy,
    Heartbeat,
    Leave,
    Leaving,
    PeerAddress,
    Ready,
    Register,
    Run,
    TaskFailed,
    TaskFinished,
    TaskRestore,
    ToMaster,
    ToSlot,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery import layout
from penstock.core.recovery.assign import assign, encode_restore
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import Plan
from penstock.ports import Background, Clock, Outcome, Slots, Store, Transport
from penstock.runtime.checkpointing import CheckpointEffects
from penstock.runtime.ending import FinalCleanUp
from penstock.runtime.links import Links
from penstock.runtime.views import FailureView, JobView, SlotView
from penstock.settings import JobSettings
from penstock.storage.metadata import decode_metadata
from penstock.wire.codec import decode_to_master, encode_message
from penstock.wire.frames import Kind, Packet

FAILURES_SHOWN = 16
NO_EPOCH = Epoch(0)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MasterPorts:
    """What the shell supplies to the master."""

    clock: Clock
    transport: Transport
    background: Background
    store: Store
    slots: Slots
    landing: Store | None = None
    """Where DataFrames were landed, if not in `store`."""


@dataclass(frozen=True, kw_only=True)
class SnapshotRequest:
    """What a user asks of a running job."""

    kind: RequestKind
    target: str | None = None
    """Where a savepoint goes; None for checkpoints."""
    drain: bool = False
    """With a stop: event time goes to its end first."""


Answer = Callable[[CompletedCheckpoint | RequestFailure], None]


class MasterDriver:
    """One job, from its start until nothing of it is left."""

    def __init__(
        self, *, job: JobId, plan: Plan, settings: JobSettings, ports: MasterPorts, draws: tuple[float, ...]
    ) -> None:
        self.outcome: JobState | None = None
        self.cause: FailureCause | None = None
        self._job = job
        self._folder = layout.job_folder(job)
        self._plan = plan
        self._pickled_plan = cloudpickle.dumps(plan)
        self._settings = settings
        self._ports = ports
        self._draws = draws
        self._graph = checkpoint_graph(plan)
        self._lifecycle = JobLifecycle(
            slots=plan.parallelism, tasks=plan.tasks, settings=settings.slot, restart=settings.restart, draws=draws
        )
        self._coordinator = CheckpointCoordinator(job, settings.checkpoint, self._graph, CheckpointId(1))
        self._checkpointing = CheckpointEffects(
            job=job,
            store=ports.store,
            background=ports.background,
            feed=self._feed_coordinator,
            send=self._send_to_task,
            fail=self._fail_attempt,
            answer=self._answer,
        )
        self._links = Links(ports.transport, on_packet=self._on_packet, on_broken=self._on_broken)
        self._slots: dict[SlotId, Register] = {}
        self._names: dict[str, SlotId] = {}
        self._waiting_deploy: DeployTasks | None = None
        self._restored: CompletedCheckpoint | None = None
        self._metrics: dict[str, dict[str, float]] = {}
        self._rows_before = 0
        self._failures: deque[FailureView] = deque(maxlen=FAILURES_SHOWN)
        self._restarts = 0
        self._job_ended: JobEnded | None = None
        self._is_ending = False
        self._ending = FinalCleanUp(
            job, plan=plan, background=ports.background, store=ports.store, landing=ports.landing
        )
        self._answers: dict[RequestId, Answer] = {}
        self._queue: deque[tuple[str, Any]] = deque()
        self._draining = False
        self._now = Instant(0)

    # --- the driver's contract -----------------------------------------------------------

    def start(self, now: Instant) -> None:
        """Begin: ask for slots."""
        self._now = now
        self._feed_job(JobStarted())

    def cancel(self) -> None:
        """End the job as soon as possible. Belongs to the loop's thread."""
        self._feed_job(CancelRequested())

    def request(self, request: SnapshotRequest, answer: Answer) -> None:
        """Take a checkpoint or savepoint, or stop with a savepoint; `answer` is called once, from a turn. Belongs to
        the loop's thread."""
        if self.outcome is not None or self._job_ended is not None:
            answer(RequestFailure(reason=CheckpointFailure.COORDINATOR_SHUTDOWN, text="the job has ended"))
            return
        number = RequestId(len(self._answers) + 1)
        self._answers[number] = answer
        self._feed_coordinator(
            CheckpointRequested(
                request=number,
                kind=request.kind,
                target=request.target,
                drain=request.drain,
            )
        )

    def _answer(self, effect: AnswerRequest) -> None:
        self._answers[effect.request](effect.result)

    def turn(self, now: Instant) -> Instant | None:
        """Take what has arrived and do what follows; when to be called again at the latest."""
        self._now = now
        self._links.receive(now)
        self._ports.background.collect()
        for ended in self._ports.slots.ended():
            self._links.disconnect(str(ended.slot))
            self._feed_job(SlotGone(slot=ended.slot, error=ended.error))
        if _due(self._lifecycle.next_deadline(), now):
            self._feed_job(Ticked())
        if _due(self._coordinator.next_deadline(), now):
            self._feed_coordinator(Ticked())
        self._try_deploy()
        self._try_to_end()
        if self.outcome is not None:
            return None
        deadlines = [machine.next_deadline() for machine in (self._lifecycle, self._coordinator, self._ending)]
        times = [self._links.keep_alive(now), *deadlines]
        return min((t for t in times if t is not None), default=None)

    @property
    def finished_tasks(self) -> int:
        """How many tasks of the running attempt have ended for good."""
        return self._lifecycle.finished_tasks

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self._lifecycle.validate()
        self._coordinator.validate()

    def view(self) -> JobView:
        """The job as it is now, frozen. Belongs to the loop's thread."""
        tasks = {name: dict(values) for name, values in self._metrics.items()}
        watermarks = [int(v["watermark_us"]) for v in tasks.values() if "watermark_us" in v]
        sources = [str(t) for v in self._plan.vertices if v.is_source for t in v.tasks]
        ends = [str(t) for v in self._plan.vertices if not self._plan.outputs_of(v.vertex) for t in v.tasks]
        rows_in = sum(int(tasks[t]["rows_in"]) for t in sources if t in tasks)
        return JobView(
            job=self._job,
            state=self._lifecycle.state,
            epoch=self._lifecycle.epoch,
            restarts=self._restarts,
            slots=tuple(self._slot_view(slot) for slot in self._lifecycle.slots),
            rows_in=rows_in,
            rows_read=self._rows_before + rows_in,
            rows_out=sum(int(tasks[t]["rows_in"]) for t in ends if t in tasks),
            watermark_us=min(watermarks, default=None),
            late_dropped=sum(int(v.get("late_dropped", 0)) for v in tasks.values()),
            restored_checkpoint=self._restored.checkpoint if self._restored is not None else None,
            checkpoints=self._coordinator.view(),
            failures=tuple(self._failures),
            tasks=tasks,
        )

    def _slot_view(self, slot: SlotId) -> SlotView:
        known = self._slots.get(slot)
        return SlotView(
            number=slot.number,
            incarnation=slot.incarnation,
            host=known.host if known is not None else None,
            pid=known.pid if known is not None else None,
        )

    # --- what slots say ------------------------------------------------------------------

    def _on_packet(self, peer: str, packet: Packet) -> None:
        slot = self._names.get(peer)
        if slot is not None:
            self._feed_job(SlotHeard(slot=slot))
        if packet.header.kind is not Kind.CONTROL:
            return
        try:
            message = decode_to_master(packet.payload)
        except MalformedMessage as error:
            self._on_broken(peer, str(error))
            return
        self._on_message(message)

    def _on_broken(self, peer: str, text: str) -> None:
        """A slot whose words were lost cannot be trusted to be where we think it is: it is replaced."""
        slot = self._names.get(peer)
        if slot is not None:
            self._ports.slots.stop(slot)
            self._links.disconnect(peer)
            self._feed_job(SlotGone(slot=slot, error=f"the link to it broke: {text}"))

    def _on_message(self, message: ToMaster) -> None:
        match message:
            case Register():
                self._slots[message.slot] = message
                self._names[str(message.slot)] = message.slot
                self._links.answer(str(message.slot))
                self._feed_job(SlotRegistered(slot=message.slot))
            case Heartbeat():
                if message.epoch == self._lifecycle.epoch:
                    self._metrics.update(message.metrics)
            case Ready():
                self._feed_job(SlotReady(slot=message.slot, epoch=message.epoch))
            case Cancelled():
                self._feed_job(SlotCancelled(slot=message.slot, epoch=message.epoch))
            case TaskFailed():
                self._on_task_failed(message)
            case DataEnded():
                self._feed_coordinator(TaskDataEnded(task=message.task, epoch=message.epoch))
            case TaskFinished():
                self._feed_coordinator(TaskEnded(task=message.task, epoch=message.epoch))
                self._feed_job(TaskDone(task=message.task, epoch=message.epoch))
            case Acknowledge():
                self._feed_coordinator(Acknowledged(message=message))
            case Decline():
                self._feed_coordinator(Declined(message=message))
            case Leaving():
                pass
            case _:
                assert_never(message)

    def _on_task_failed(self, message: TaskFailed) -> None:
        self._feed_coordinator(TaskFailing(task=message.task, epoch=message.epoch, error=message.error))
        cause = FailureCause(
            text=message.error,
            traceback=message.traceback,
            operator=message.operator,
            subtask=message.task.subtask,
            user_code=message.user_code,
        )
        self._feed_job(AttemptFailed(epoch=message.epoch, cause=cause))

    def _send(self, slot: SlotId, message: ToSlot) -> None:
        self._links.send(str(slot), Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    def _send_to_task(self, task: TaskId, message: ToSlot) -> None:
        slot = self._lifecycle.slots[task.subtask]
        # A slot that is being replaced has no task to hear it, and what is sent before it calls in would be lost.
        if slot in self._slots:
            self._send(slot, message)

    # --- the lifecycle -------------------------------------------------------------------

    def _feed_job(self, event: JobEvent) -> None:
        self._queue.append(("job", event))
        self._drain()

    def _drain(self) -> None:
        """Feed queued events one by one; what one of them brings about is done before the next is looked at."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                machine, event = self._queue.popleft()
                if machine == "job":
                    for effect in self._lifecycle.handle(event, self._now):
                        self._perform(effect)
                else:
                    self._checkpointing.perform(self._coordinator.handle(event, self._now))
        finally:
            self._draining = False

    def _perform(self, effect: JobEffect) -> None:
        match effect:
            case StartSlot():
                self._ports.slots.start(effect.slot)
            case StopSlot():
                self._links.disconnect(str(effect.slot))
                self._ports.slots.stop(effect.slot)
            case TellLeave():
                self._send(effect.slot, Leave())
            case TellCancel():
                self._send(effect.slot, CancelTasks(epoch=effect.epoch))
            case DeployTasks():
                self._waiting_deploy = effect
            case RunTasks():
                self._run(effect)
            case AttemptEnded():
                self._attempt_ended(effect)
            case JobEnding():
                log.info("job ending", extra={"job": self._job, "outcome": effect.outcome.value})
                self._feed_coordinator(ScheduleForbidden())
                self._feed_coordinator(ShutDown(status=_END[effect.outcome]))
            case JobEnded():
                self._job_ended = effect
            case _:
                assert_never(effect)

    def _run(self, effect: RunTasks) -> None:
        for slot in effect.slots:
            self._send(slot, Run(epoch=effect.epoch))
        for task in self._plan.tasks:
            self._feed_coordinator(TaskRunning(task=task, epoch=effect.epoch))
        self._feed_coordinator(ScheduleAllowed(draw=self._draws[effect.epoch % len(self._draws)]))
        log.info("job running", extra={"job": self._job, "epoch": effect.epoch})

    def _attempt_ended(self, effect: AttemptEnded) -> None:
        cause = effect.cause
        log.warning("attempt failed", extra={"job": self._job, "epoch": effect.epoch, "cause": cause.text})
        self._failures.append(
            FailureView(
                epoch=effect.epoch,
                when=self._now,
                text=cause.text,
                operator=cause.operator,
                subtask=cause.subtask,
                traceback=cause.traceback,
                user_code=cause.user_code,
                restart_in_ms=effect.restart_in_ms,
            )
        )
        self._restarts += effect.restart_in_ms is not None
        self._rows_before = self.view().rows_read
        self._metrics.clear()
        self._waiting_deploy = None
        self._feed_coordinator(ScheduleForbidden())
        self._feed_coordinator(FailedOver())

    def _fail_attempt(self, text: str, task: TaskId | None) -> None:
        """The coordinator says that the attempt must end."""
        cause = FailureCause(text=text, operator=None, subtask=task.subtask if task is not None else None)
        self._feed_job(AttemptFailed(epoch=self._lifecycle.epoch, cause=cause))

    # --- deployment ----------------------------------------------------------------------

    def _try_deploy(self) -> None:
        """Deploy as soon as it is certain which checkpoint is the newest."""
        effect = self._waiting_deploy
        if effect is None or not self._coordinator.is_settled:
            return
        self._waiting_deploy = None
        if not self._is_deploying(effect.epoch):
            return
        self._restored = latest = self._coordinator.latest
        self._feed_coordinator(AttemptStarted(epoch=effect.epoch, restored=latest))
        if latest is None:
            self._deploy(effect, {})
            return
        store, graph = self._ports.store, self._graph

        def read() -> dict[TaskId, TaskRestore]:
            return assign(decode_metadata(latest.path, store.read(latest.path)), graph)

        def done(outcome: Outcome) -> None:
            if not self._is_deploying(effect.epoch):
                return
            if outcome.error is not None:
                self._fail_attempt(f"checkpoint {latest.checkpoint} could not be restored: {outcome.error}", None)
                return
            self._deploy(effect, outcome.value)

        self._ports.background.submit(read, done)

    def _is_deploying(self, epoch: Epoch) -> bool:
        """Whether that attempt still waits to be deployed: it may have failed, or the job been cancelled, meanwhile."""
        return self._lifecycle.epoch == epoch and self._lifecycle.state is JobState.DEPLOYING

    def _deploy(self, effect: DeployTasks, restores: dict[TaskId, TaskRestore]) -> None:
        peers = tuple(
            PeerAddress(slot=s, host=known.host, ipc_address=known.ipc_address, tcp_address=known.tcp_address)
            for s, known in ((slot, self._slots[slot]) for slot in effect.slots)
        )
        for slot in effect.slots:
            tasks = self._plan.tasks_of_slot(slot.number)
            self._send(
                slot,
                Deploy(
                    epoch=effect.epoch,
                    job=self._job,
                    plan=self._pickled_plan,
                    tasks=tasks,
                    peers=peers,
                    restored_checkpoint=self._restored.checkpoint if self._restored is not None else None,
                    restore={str(t): encode_restore(restores[t]) for t in tasks if t in restores},
                    first_checkpoint=self._coordinator.next_id,
                ),
            )

    # --- checkpoints ---------------------------------------------------------------------

    def _feed_coordinator(self, event: CoordinatorEvent) -> None:
        self._queue.append(("coordinator", event))
        self._drain()

    # --- the end -------------------------------------------------------------------------

    def _try_to_end(self) -> None:
        """When no slot is left and all files are settled: clean up, then say how the job ended."""
        ended = self._job_ended
        if ended is None or not self._coordinator.is_settled:
            return
        if not self._is_ending:
            self._is_ending = True
            self._ending.begin(tuple(c.checkpoint for c in self._coordinator.retained), self._now)
        else:
            self._ending.tick(self._now)
        if self._ending.is_over:
            self._finish(ended)

    def _finish(self, ended: JobEnded) -> None:
        self.outcome, self.cause = ended.outcome, ended.cause
        log.info("job ended", extra={"job": self._job, "outcome": ended.outcome.value})


_END = {JobState.FINISHED: JobEnd.FINISHED, JobState.FAILED: JobEnd.FAILED, JobState.CANCELLED: JobEnd.CANCELLED}


def _due(deadline: Instant | None, now: Instant) -> bool:
    return deadline is not None and now >= deadline


def checkpoint_graph(plan: Plan) -> CheckpointGraph:
    """What the coordinator must know about a plan."""
    return CheckpointGraph(
        vertices=tuple(
            CheckpointVertex(
                vertex=v.vertex,
                parallelism=v.parallelism,
                operators=tuple(o.operator for o in v.operators),
                is_source=v.is_source,
            )
            for v in plan.vertices
        ),
        edges=tuple(
            CheckpointEdge(upstream=e.upstream, downstream=e.downstream, all_to_all=e.partitioning.all_to_all)
            for e in plan.edges
        ),
        max_parallelism=plan.max_parallelism,
    )
