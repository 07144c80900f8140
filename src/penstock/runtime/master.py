"""The driver of the job master: feeds the job's lifecycle and the checkpoint coordinator, and does what they say.

It lives on the Spark driver, on a thread of its own; slots call in over the transport. What blocks (files, reading a
checkpoint back) runs in the background, and its outcome comes back as an event.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Any, assert_never

import cloudpickle

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import AnswerRequest, RequestFailure
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    CoordinatorEvent,
    Declined,
    FailedOver,
    JobEnd,
    ScheduleAllowed,
    ScheduleForbidden,
    ShutDown,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.effects import Ticked
from penstock.core.errors import JobTakenOver, MalformedMessage
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, RequestId, SlotId, TaskId
from penstock.core.job.events import (
    AttemptEnded,
    AttemptFailed,
    AttemptRescaled,
    CancelRequested,
    DeployTasks,
    FailureCause,
    JobEffect,
    JobEnded,
    JobEnding,
    JobEvent,
    JobStarted,
    JobState,
    LeadershipLost,
    RegionEnded,
    RescaleGivenUp,
    RescalePrepared,
    RunTasks,
    SlotCancelled,
    SlotGone,
    SlotHeard,
    SlotReady,
    SlotRegistered,
    StartSlot,
    StopChanged,
    StopSlot,
    TaskDone,
    TellCancel,
    TellLeave,
    TellPeerGone,
)
from penstock.core.messages import (
    Acknowledge,
    Cancelled,
    CancelTasks,
    DataEnded,
    Decline,
    Heartbeat,
    Leave,
    Leaving,
    OperatorEventTaken,
    PeerGone,
    Ready,
    Register,
    Run,
    SplitsRead,
    TaskFailed,
    TaskFinished,
    ToMaster,
    ToSlot,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery import layout
from penstock.core.recovery.assign import NOTHING_RESTORED, Assignment
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Outcome as JobOutcome
from penstock.core.recovery.tenure import Tenure
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import JobRecords, Outcome
from penstock.runtime.callers import Callers
from penstock.runtime.checkpointing import Answers, CheckpointEffects
from penstock.runtime.deploying import Orders, deployments
from penstock.runtime.ending import JOB_END, Ending, Record, outcome_of, retained_after
from penstock.runtime.links import Links
from penstock.runtime.master_parts import Calls, make_coordinators
from penstock.runtime.master_ports import MasterPorts as MasterPorts
from penstock.runtime.progress import JobProgress, cause_of
from penstock.runtime.requests import Answer, RescaleAnswer, RescaleRequests, answer_to_stop, refusal_to_rescale
from penstock.runtime.requests import SnapshotRequest as SnapshotRequest
from penstock.runtime.starting import make_lifecycle, restore_newest
from penstock.runtime.views import JobView, slot_view
from penstock.settings import JobSettings
from penstock.storage.records import FileRecords
from penstock.wire.codec import decode_to_master, encode_message
from penstock.wire.frames import Kind, Packet

NO_EPOCH = Epoch(0)

log = logging.getLogger(__name__)


class MasterDriver:
    """One job, from its start until nothing of it is left."""

    def __init__(
        self,
        *,
        job: JobId,
        plan: Plan,
        settings: JobSettings,
        ports: MasterPorts,
        draws: tuple[float, ...],
        tenure: Tenure | None = None,
        started_from: CompletedCheckpoint | None = None,
    ) -> None:
        """`tenure` is what the driver found when it took the job over; None for a job that ends with its driver.
        `started_from` is the snapshot that a new job begins with; one that was taken over has it on its record."""
        self.outcome: JobState | None = None
        self.cause: FailureCause | None = None
        self._job = job
        self._plan = plan
        self._pickled_plan = cloudpickle.dumps(plan)
        self._settings = settings
        self._ports = ports
        self._draws = draws
        self._graph = checkpoint_graph(plan)
        self._tenure = tenure
        found, term = (tenure, tenure.term) if tenure is not None else (Tenure(), None)
        self._records = records = ports.records or FileRecords(ports.store, layout.job_folder(job), term=term)
        self._lifecycle = make_lifecycle(plan, settings, found, draws)
        completed = found.completed or (() if started_from is None else (started_from,))
        self._coordinator = CheckpointCoordinator(job, settings.checkpoint, self._graph, found.next_id, completed)
        calls = Calls(self._feed_coordinator, self._send_to_task, self._fail_with, self.lose)
        self._coordinators = make_coordinators(job, plan, settings.checkpoint, ports, found, records, calls)
        self._ending = Ending(job=job, plan=plan, records=records, ports=ports, found=found)
        self._checkpointing = self._make_checkpointing(records)
        self._links = Links(ports.transport, on_packet=self._on_packet, on_broken=self._on_broken)
        self._callers = Callers()
        self._attempt = NO_EPOCH  # in which all tasks were deployed last
        self._waiting_deploy: DeployTasks | None = None
        self._restored: CompletedCheckpoint | None = None
        self._progress = JobProgress(job)
        self._job_ending: JobEnding | None = None
        self._shut_down: JobEnd | None = None
        self._stopped_by: AnswerRequest | None = None
        self._job_ended: JobEnded | None = None
        self._requests = 0
        self._answers: dict[RequestId, Answer] = {}
        self._rescales = RescaleRequests(feed=self._feed_job, request=self.request)
        self._rescaled_graph: CheckpointGraph | None = None  # set while the coordinator does not know of it
        self._queue: deque[tuple[str, Any]] = deque()
        self._draining = False
        self._now = Instant(0)

    def _make_checkpointing(self, records: JobRecords) -> CheckpointEffects:
        return CheckpointEffects(
            job=self._job,
            store=self._ports.store,
            records=records,
            background=self._ports.background,
            master=Answers(self._feed_coordinator, self._fail_attempt, self._answer, self.lose),
            coordinators=self._coordinators,
            ending=self._ending,
        )

    # --- the driver's contract -----------------------------------------------------------

    def start(self, now: Instant) -> None:
        """Begin: ask for slots, unless the job has ended already."""
        self._now = now
        if self._tenure is not None and self._tenure.outcome is not None:
            self._end_again(self._tenure.outcome)
        else:
            self._feed_job(JobStarted())

    def cancel(self) -> None:
        """End the job as soon as possible. Belongs to the loop's thread."""
        self._now = self._ports.clock.now()
        self._feed_job(CancelRequested())

    def lose(self, why: str = "another driver has taken the job over") -> None:
        """Another driver has the job, or must take it over: let the slots go, commit nothing more, delete nothing.
        Belongs to the loop's thread."""
        # If the outcome is on record, the job has ended with this driver.
        if self._shut_down is None:
            log.warning(why, extra={"job": self._job})
            self._checkpointing.let_go()
            self._feed_job(LeadershipLost())

    def request(self, request: SnapshotRequest, answer: Answer) -> None:
        """Take a checkpoint or savepoint, or stop with a savepoint; `answer` is called once, from a turn. Belongs to
        the loop's thread."""
        if self.outcome is not None or self._job_ended is not None:
            answer(RequestFailure(reason=CheckpointFailure.COORDINATOR_SHUTDOWN, text="the job has ended"))
            return
        self._requests += 1
        number = RequestId(self._requests)
        self._answers[number] = answer
        self._now = self._ports.clock.now()
        self._feed_coordinator(request.event(number))

    def rescale(self, parallelism: int, answer: RescaleAnswer) -> None:
        """Change the parallelism of the running job; `answer` is called once, from a turn. Belongs to the loop's
        thread."""
        has_ended = self.outcome is not None or self._job_ended is not None
        refusal = "the job has ended" if has_ended else refusal_to_rescale(parallelism, self._plan, self._coordinator)
        if refusal is not None:
            answer(refusal)
            return
        self._rescales.ask(self._plan.rescaled(parallelism), answer)

    def _answer(self, effect: AnswerRequest) -> None:
        result = effect.result
        if self._tenure is not None and isinstance(result, CompletedCheckpoint) and result.kind.is_synchronous:
            # Nobody is told that the job has stopped before a driver that takes it over would know.
            self._stopped_by = effect
            return
        self._answers.pop(effect.request)(result)

    def turn(self, now: Instant) -> Instant | None:
        """Take what has arrived and do what follows; when to be called again at the latest."""
        self._now = now
        self._links.receive(now)
        self._ports.background.collect()
        for ended in self._ports.slots.ended():
            self._links.disconnect(*self._callers.names_of(ended.slot))
            if ended.host_gone and self._tenure is not None and self._job_ending is None:
                self.lose(f"this driver cannot go on with the job, and leaves it to another: {ended.error}")
            self._feed_job(SlotGone(slot=ended.slot, error=ended.error, host_gone=ended.host_gone))
        if (at := self._lifecycle.next_deadline()) is not None and at <= now:
            self._feed_job(Ticked())
        if (at := self._coordinator.next_deadline()) is not None and at <= now:
            self._feed_coordinator(Ticked())
        self._coordinators.turn(now)
        self._try_deploy()
        self._ending.turn(now)
        self._try_to_shut_down()
        self._try_to_end()
        if self.outcome is not None:
            return None
        machines = (self._lifecycle, self._coordinator, self._ending, self._coordinators)
        times = [self._links.keep_alive(now), *(machine.next_deadline() for machine in machines)]
        return min((t for t in times if t is not None), default=None)

    @property
    def finished_tasks(self) -> int:
        """How many tasks of the running attempt have ended for good."""
        return self._lifecycle.finished_tasks

    @property
    def stage(self) -> tuple[JobState, Epoch, int]:
        """The state, the attempt and the number of restarts: a view that shows others is of the past."""
        return self._lifecycle.state, self._lifecycle.epoch, self._progress.restarts

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self._lifecycle.validate()
        self._coordinator.validate()

    def view(self) -> JobView:
        """The job as it is now, frozen. Belongs to the loop's thread."""
        return JobView(
            job=self._job,
            state=self.outcome or self._lifecycle.state,
            epoch=self._lifecycle.epoch,
            restarts=self._progress.restarts,
            slots=tuple(slot_view(slot, self._callers.registered.get(slot)) for slot in self._lifecycle.slots),
            restored_checkpoint=self._restored_id,
            checkpoints=self._coordinator.view(),
            failures=tuple(self._progress.failures),
            spares=tuple(slot_view(slot, self._callers.registered.get(slot)) for slot in self._lifecycle.spares),
            **vars(self._progress.totals(self._plan)),
        )

    @property
    def _restored_id(self) -> CheckpointId | None:
        return self._restored.checkpoint if self._restored is not None else None

    # --- what slots say ------------------------------------------------------------------

    def _on_packet(self, peer: str, packet: Packet) -> None:
        if (slot := self._callers.of(peer)) is not None:
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
        if (slot := self._callers.of(peer)) is None:
            return
        self._links.disconnect(peer)
        # The host would stop the successor, which is not at fault.
        if not self._callers.has_successor(slot):
            self._ports.slots.stop(slot)
            self._feed_job(SlotGone(slot=slot, error=f"the link to it broke: {text}"))

    def _on_message(self, message: ToMaster) -> None:
        match message:
            case Register():
                self._links.disconnect(*self._callers.add(message))
                self._links.answer(str(message.slot), listens_at=message.tcp_address or message.ipc_address)
                self._feed_job(SlotRegistered(slot=message.slot))
            case Heartbeat():
                if message.epoch == self._attempt:
                    self._progress.heard(message.metrics)
            case Ready():
                self._feed_job(SlotReady(slot=message.slot, epoch=message.epoch))
            case Cancelled():
                self._feed_job(SlotCancelled(slot=message.slot, epoch=message.epoch, tasks=message.tasks))
            case TaskFailed():
                self._on_task_failed(message)
            case DataEnded():
                self._feed_coordinator(TaskDataEnded(task=message.task, epoch=message.epoch))
            case TaskFinished():
                # A job that was cancelled has not stopped, even if its last task then ends by itself.
                if self._job_ending is None:
                    self._feed_coordinator(TaskEnded(task=message.task, epoch=message.epoch))
                self._feed_job(TaskDone(task=message.task, epoch=message.epoch))
            case Acknowledge():
                self._feed_coordinator(Acknowledged(message=message))
            case Decline():
                self._feed_coordinator(Declined(message=message))
            case OperatorEventTaken():
                self._coordinators.taken(message)
            case SplitsRead():
                if message.epoch == self._lifecycle.epoch:
                    self._coordinators.splits_read(message)
            case Leaving():
                pass
            case _:
                assert_never(message)

    def _on_task_failed(self, message: TaskFailed) -> None:
        # A job that is being stopped has ended its sources everywhere: it goes on, or stops, as a whole.
        whole = message.whole or self._coordinator.is_stopping
        self._feed_coordinator(TaskFailing(task=message.task, epoch=message.epoch, error=message.error))
        self._feed_job(AttemptFailed(epoch=message.epoch, cause=cause_of(message), task=message.task, whole=whole))

    def _send(self, slot: SlotId, message: ToSlot) -> None:
        self._links.send(str(slot), Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    def _send_to_task(self, task: TaskId, message: ToSlot) -> None:
        slots = self._lifecycle.slots
        # A slot that is being replaced, or is not needed any more, has no task to hear it, and what is sent before it
        # calls in would be lost.
        if task.subtask < len(slots) and slots[task.subtask] in self._callers.registered:
            self._send(slots[task.subtask], message)

    # --- the lifecycle and the checkpoints -----------------------------------------------

    def _feed_job(self, event: JobEvent) -> None:
        self._queue.append(("job", event))
        self._drain()

    def _feed_coordinator(self, event: CoordinatorEvent) -> None:
        self._queue.append(("coordinator", event))
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
                    was_stopping = self._coordinator.is_stopping
                    self._checkpointing.perform(self._coordinator.handle(event, self._now))
                    if (is_stopping := self._coordinator.is_stopping) != was_stopping:
                        # Before whatever else the lifecycle has to decide upon.
                        self._queue.appendleft(("job", StopChanged(is_under_way=is_stopping)))
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
                self._links.let_go(str(effect.slot))
                self._send(effect.slot, Leave())
            case TellCancel():
                self._send(effect.slot, CancelTasks(epoch=effect.epoch, tasks=effect.tasks))
            case TellPeerGone():
                self._send(effect.slot, PeerGone(slot=effect.gone))
            case DeployTasks():
                self._waiting_deploy = effect
            case RunTasks():
                self._run(effect)
            case AttemptEnded():
                self._progress.attempt_failed(effect, self._now)
                self._leave_attempt()
            case RegionEnded():
                self._progress.region_failed(effect, self._plan, self._now)
                self._ending.saved.attempt_over()
                self._feed_coordinator(FailedOver(tasks=effect.tasks))
            case RescalePrepared():
                self._rescales.prepared()
            case RescaleGivenUp():
                self._rescales.given_up(effect.text)
            case AttemptRescaled():
                self._attempt_rescaled(effect)
            case JobEnding():
                log.info("job ending", extra={"job": self._job, "outcome": effect.outcome.value})
                self._feed_coordinator(ScheduleForbidden())
                self._rescales.given_up("the job ended before")
                self._coordinators.leave()
                self._job_ending = effect
            case JobEnded():
                self._job_ended = effect
            case _:
                assert_never(effect)

    def _run(self, effect: RunTasks) -> None:
        for slot in effect.slots:
            self._send(slot, Run(epoch=effect.epoch))
        for task in self._plan.tasks if effect.tasks is None else effect.tasks:
            self._feed_coordinator(TaskRunning(task=task, epoch=effect.epoch))
        self._feed_coordinator(ScheduleAllowed(draw=self._draws[effect.epoch % len(self._draws)]))
        self._coordinators.run()
        log.info("job running", extra={"job": self._job, "epoch": effect.epoch})
        self._rescales.running()

    def _attempt_rescaled(self, effect: AttemptRescaled) -> None:
        log.info("job rescaling", extra={"job": self._job, "epoch": effect.epoch, "slots": effect.slots})
        self._leave_attempt()
        self._rescales.changing()
        self._plan = self._plan.rescaled(effect.slots)
        self._pickled_plan = cloudpickle.dumps(self._plan)
        self._graph = self._rescaled_graph = checkpoint_graph(self._plan)

    def _leave_attempt(self) -> None:
        self._progress.attempt_left(self._plan)
        self._waiting_deploy = None
        self._ending.saved.attempt_over()
        self._coordinators.stop()
        self._feed_coordinator(ScheduleForbidden())
        self._feed_coordinator(FailedOver())

    def _fail_attempt(self, text: str, task: TaskId | None) -> None:
        """The coordinator says that the attempt must end."""
        self._fail_with(FailureCause(text=text, operator=None, subtask=task.subtask if task is not None else None))

    def _fail_with(self, cause: FailureCause) -> None:
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
        doubtful = self._coordinator.doubtful
        if latest is None and not doubtful and not self._ending.saved.is_unread:
            self._go_back(effect, NOTHING_RESTORED)
            return

        def read() -> Assignment:
            self._ending.saved.read()
            return restore_newest(self._ports.store, self._records, latest, doubtful, self._graph)

        def done(outcome: Outcome) -> None:
            if not self._is_deploying(effect.epoch):
                return
            if isinstance(outcome.error, JobTakenOver):
                self.lose()
                return
            if outcome.error is not None:
                what = f"{latest.title} could not be restored" if latest else "the job's records could not be read"
                self._fail_attempt(f"{what}: {outcome.error}", None)
                return
            if effect.tasks is not None and outcome.value.finished:
                self._fail_attempt("steps that had ended cannot be restarted beside others", None)
                return
            self._go_back(effect, outcome.value)

        self._ports.background.submit(read, done)

    def _is_deploying(self, epoch: Epoch) -> bool:
        """Whether that attempt still waits to be deployed: it may have failed, or the job been cancelled, meanwhile."""
        return self._lifecycle.epoch == epoch and self._lifecycle.state in (JobState.DEPLOYING, JobState.REPAIRING)

    def _go_back(self, effect: DeployTasks, assignment: Assignment) -> None:
        """Deploy when all hooks are back where the checkpoint was."""
        deploy = partial(self._deploy, effect, assignment)
        self._coordinators.hooks.restore(self._restored_id, assignment.hooks, effect.epoch, then=deploy)

    def _deploy(self, effect: DeployTasks, assignment: Assignment) -> None:
        if not self._is_deploying(effect.epoch):
            return
        self._feed_coordinator(
            AttemptStarted(
                epoch=effect.epoch,
                tasks=effect.tasks,
                restored=self._restored,
                finished_vertices=assignment.finished,
                graph=self._rescaled_graph,
                drained=assignment.drained,
            )
        )
        self._rescaled_graph = None
        saved = self._ending.saved.owed
        self._coordinators.start(assignment, effect.epoch, saved, parallelism=self._plan.parallelism)
        self._attempt = effect.epoch if effect.tasks is None else self._attempt
        orders = Orders(
            job=self._job,
            plan=self._plan,
            pickled_plan=self._pickled_plan,
            restored=self._restored_id,
            first_checkpoint=self._coordinator.next_id,
            attempt=self._attempt,
            saved=saved,
        )
        for slot, message in deployments(effect, assignment, self._callers.registered, orders):
            self._send(slot, message)

    # --- the end -------------------------------------------------------------------------

    def _try_to_shut_down(self) -> None:
        """When the outcome is decided: have it recorded if another driver could ask, then end all checkpoints."""
        ending = self._job_ending
        if ending is None or self._shut_down is not None:
            return
        status = JOB_END[ending.outcome]
        if self._tenure is not None and status is not JobEnd.SUSPENDED:
            if not self._coordinator.is_settled:
                return
            if self._ending.record is Record.NONE:
                self._ending.write_record(outcome_of(ending, self._coordinator, self._ending.saved), self._now)
            if self._ending.taken_over:
                self.lose()
                return
            if self._ending.record is Record.GIVEN_UP:
                status = JobEnd.SUSPENDED
            elif self._ending.record is not Record.DURABLE:
                return
        self._shut_down = status
        if status is JobEnd.SUSPENDED:
            self._coordinators.let_go()
        if self._stopped_by is not None:
            self._answers.pop(self._stopped_by.request)(answer_to_stop(self._stopped_by, status))
        self._feed_coordinator(ShutDown(status=status))

    def _try_to_end(self) -> None:
        """When no slot is left and all files are settled: clean up, then say how the job ended."""
        ended = self._job_ended
        if ended is None or self._shut_down is None or not self._coordinator.is_settled:
            return
        if not self._coordinators.have_ended:
            self._coordinators.end()
            return
        if not self._ending.is_cleaning and self._shut_down is not JobEnd.SUSPENDED:
            retained = retained_after(ended, self._tenure, self._coordinator.retained)
            self._ending.clean_up(retained, self._coordinator.failed_savepoints, self._now)
        if self._ending.is_over or self._shut_down is JobEnd.SUSPENDED:
            self.outcome, self.cause = ended.outcome, ended.cause
            log.info("job ended", extra={"job": self._job, "outcome": ended.outcome.value})

    def _end_again(self, outcome: JobOutcome) -> None:
        """An earlier driver saw the job end, and may not have cleaned up all of it."""
        self._shut_down = JOB_END[outcome.state]
        self._ending.resume(outcome)
        cause = FailureCause(text=outcome.cause) if outcome.cause else None
        self._job_ended = JobEnded(outcome=outcome.state, cause=cause)
