"""The checkpoint coordinator: every decision about checkpoints that is made on the driver.

    request ─► decider ─► plan ─► CreateLocation ─► SnapshotOperatorCoordinator… ─► TriggerHook… ─► TriggerCheckpoint…
            ─► all acknowledged ─► WriteMetadata ─► StorePointer ─► NotifyComplete…

This file knows the job: which tasks run, when the schedule is on, and which request is answered how. `under_way` has
the life of a checkpoint from the chosen request on. `archive` knows which file belongs to which owner. `decider` knows
when a request may start. The schedule is on while the job is running, all tasks run or have finished, at least one
running task still needs a checkpoint, and no stop is under way.

Rules of this file:

* Every request is answered exactly once.
* When the job or a task leaves the running state, waiting requests are dropped and pending checkpoints are aborted.
* After every event the line of requests is looked at again.
* A failover waits until `is_settled`. While a record is being stored, nobody knows which checkpoint is the latest.
  Tasks that restart from the checkpoint before it would repeat what the stored checkpoint has committed.

Deliberately not handled here: what a task does with barriers, and how the job restarts.
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.coordinator.archive import Archive
from penstock.core.coordinator.cleaner import Cleaner
from penstock.core.coordinator.decider import Dropped, Load, RequestDecider
from penstock.core.coordinator.effects import (
    AnswerRequest,
    CoordinatorEffect,
    RequestDropped,
    RequestFailure,
    SendToTask,
)
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    BacklogChanged,
    BarrierPassed,
    CheckpointRequested,
    CoordinatorEvent,
    Declined,
    FailedOver,
    FilesDeleted,
    HookFailed,
    HookTriggered,
    JobEnd,
    LocationCreated,
    LocationFailed,
    MetadataFailed,
    MetadataWritten,
    OperatorCoordinatorFailed,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
    PointerFailed,
    PointerStored,
    RequestKind,
    ScheduleAllowed,
    ScheduleForbidden,
    ShutDown,
    TaskAsksToEnd,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.coordinator.participants import NotReady, Planner
from penstock.core.coordinator.requests import Request, failure_of, kind_of, refusal_of
from penstock.core.coordinator.schedule import FinalTrigger, PeriodicSchedule
from penstock.core.coordinator.stopping import StopWithSavepoint
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.coordinator.under_way import CheckpointsUnderWay
from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Instant, JobId, TaskId
from penstock.core.messages import LetEnd
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind
from penstock.core.recovery.tenure import Foreign
from penstock.core.views import CheckpointDetails, CheckpointsView
from penstock.settings import CheckpointSettings

MAX_MIN_PAUSE_MS = 365 * 24 * 3_600_000
"""A longer minimum pause counts as a year."""

DEFAULT_OPTIONS = CoordinatorOptions()

STOPS = "the savepoint that stops the job is complete"
"""Why no request becomes a checkpoint from then on."""

TaskEvent = TaskRunning | TaskDataEnded | TaskAsksToEnd | TaskEnded | TaskFailing
JobEvent = AttemptStarted | FailedOver | ScheduleAllowed | ScheduleForbidden | BacklogChanged | ShutDown


class CheckpointCoordinator:
    """Feed it events, perform its effects in order."""

    def __init__(
        self,
        job: JobId,
        settings: CheckpointSettings,
        graph: CheckpointGraph,
        next_id: CheckpointId,
        completed: tuple[CompletedCheckpoint, ...] = (),
        options: CoordinatorOptions = DEFAULT_OPTIONS,
    ) -> None:
        """`next_id` is the lowest id that no checkpoint has had. `completed` are the checkpoints in the store, and the
        snapshot that the job is started from, if there is such a snapshot."""
        highest = max((c.checkpoint for c in completed), default=CheckpointId(0))
        min_pause_ms = min(settings.min_pause_ms, MAX_MIN_PAUSE_MS)
        self._settings = settings
        self._options = options
        self._board = TaskBoard(graph)
        self._planner = Planner(graph, after_tasks_finish=settings.after_tasks_finish)
        self._decider = RequestDecider(
            max_concurrent=settings.max_concurrent, min_pause_ms=min_pause_ms, queue_limit=options.queue_limit
        )
        self._schedule = PeriodicSchedule(
            interval_ms=settings.interval_ms, min_pause_ms=min_pause_ms, during_backlog=settings.during_backlog
        )
        self._final = FinalTrigger()
        self._stopping = StopWithSavepoint()
        self._under_way = CheckpointsUnderWay(
            job,
            settings,
            graph,
            options,
            Archive(
                settings.num_retained,
                completed,
                Cleaner(tries=settings.delete_attempts, retry_ms=settings.delete_retry_ms),
            ),
            self._board,
            max(next_id, CheckpointId(highest + 1)),
        )
        self._effects = self._under_way.effects
        self._now: Instant | None = None
        self._is_allowed = False
        self._draw = 0.0
        self._is_up = False
        self._ended: JobEnd | None = None

    # --- the machine --------------------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: Instant) -> list[CoordinatorEffect]:
        """Take one event in and return the effects to perform. `now` never goes back."""
        if self._now is not None and now < self._now:
            raise InvariantError(f"time went back from {self._now} to {now}")
        self._now = now
        self._dispatch(event, now)
        self._settle_outcomes(now)
        self._update_schedule(now)
        # After the other steps: the abort of an expired checkpoint may have switched the schedule on, and a checkpoint
        # that is due now must not wait for the next tick.
        if isinstance(event, Ticked) and self._schedule.is_due(now):
            self._submit(Request(kind=SnapshotKind.CHECKPOINT, submitted=now, periodic=True), now)
        self._let_tasks_end()
        self._look_at_requests(now)
        taken = list(self._effects)
        self._effects.clear()
        return taken

    def _dispatch(self, event: CoordinatorEvent, now: Instant) -> None:
        match event:
            case Acknowledged():
                self._under_way.acknowledge(event.message, now)
            case Declined():
                self._under_way.decline(event.message, now)
            case Ticked():
                self._under_way.tick(now)
            case TaskRunning() | TaskDataEnded() | TaskAsksToEnd() | TaskEnded() | TaskFailing():
                self._handle_task(event, now)
            case CheckpointRequested():
                self._handle_request(event, now)
            case (
                LocationCreated()
                | LocationFailed()
                | MetadataWritten()
                | MetadataFailed()
                | PointerStored()
                | PointerFailed()
                | FilesDeleted()
            ):
                self._under_way.handle_storage(event, now)
            case (
                OperatorCoordinatorSnapshotted()
                | OperatorCoordinatorFailed()
                | OperatorEventSubmitted()
                | OperatorEventDelivered()
                | OperatorEventLost()
                | BarrierPassed()
                | HookTriggered()
                | HookFailed()
            ):
                self._under_way.handle_master(event, now)
            case (
                AttemptStarted()
                | FailedOver()
                | ScheduleAllowed()
                | ScheduleForbidden()
                | BacklogChanged()
                | ShutDown()
            ):
                self._handle_job(event, now)
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if the coordinator waits for no time, only for
        events."""
        final = self._final.at if self._may_take_final else None
        times = (self._under_way.next_deadline(), self._schedule.next_trigger, final)
        return min((t for t in times if t is not None), default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        self._board.validate()
        self._under_way.validate()
        if self._schedule.next_trigger is not None and not self._is_up:
            raise InvariantError("the periodic schedule is on although not everything runs")
        if self._under_way.outcomes or self._effects:
            raise InvariantError("outcomes or effects were left lying")

    # --- what can be seen ---------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether no storage work is under way that must be waited for. Before `ShutDown` that is the storing of a
        record, which decides what can be restored: a driver waits for this before the driver chooses what to restore.
        After `ShutDown` that is all storage work, deletions included."""
        archive = self._under_way.archive
        return not archive.is_storing if self._ended is None else archive.is_idle

    @property
    def is_stopping(self) -> bool:
        """Whether a stop with savepoint is under way, or the job restarts from the savepoint of such a stop and
        ends."""
        return self._stopping.is_under_way

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that a failover restores."""
        return self._under_way.archive.latest

    @property
    def doubtful(self) -> tuple[CheckpointId, ...]:
        """Checkpoints whose records must be withdrawn before `latest` is restored."""
        return self._under_way.archive.doubtful

    def kept_after(self, status: JobEnd) -> tuple[CheckpointId, ...]:
        """The checkpoints that would outlive the job, if the job ended with this status now."""
        return self._under_way.archive.kept_after(status)

    def records_after(self, status: JobEnd) -> tuple[CompletedCheckpoint, ...]:
        """What the job could go on from later, oldest first, if the job ended with this status now."""
        return self._under_way.archive.records_after(status)

    def foreign_after(self, status: JobEnd) -> tuple[Foreign, ...]:
        """What would be deleted outside the folder of the job, if the job ended with this status now."""
        return self._under_way.archive.foreign_after(status)

    def spared_after(self, status: JobEnd) -> tuple[str, ...]:
        """Folders and files of snapshots that the job was started from, and that would stay if the job ended with this
        status now."""
        return self._under_way.archive.spared_after(status)

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The completed checkpoints in the store, oldest first."""
        return self._under_way.archive.retained

    @property
    def failed_savepoints(self) -> tuple[str, ...]:
        """The folders of savepoints that did not complete; to be asked when no savepoint is under way. The folders have
        been deleted, but a task that was given up may not know that, and may write into such a folder again."""
        return self._under_way.archive.savepoints.failed_folders

    @property
    def next_id(self) -> CheckpointId:
        """The id of the next checkpoint."""
        return self._under_way.next_id

    def view(self) -> CheckpointsView:
        """Statistics of all checkpoints."""
        return self._under_way.stats.view(waiting=len(self._decider), next_trigger=self._schedule.next_trigger)

    def details(self) -> tuple[CheckpointDetails, ...]:
        """The checkpoints that are remembered, newest first, each with its vertices and their subtasks."""
        return self._under_way.stats.details()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _handle_task(self, event: TaskEvent, now: Instant) -> None:
        task = event.task
        if not self._board.is_current(task, event.epoch):
            return
        match event:
            case TaskRunning():
                self._board.run(task)
                if self._stopping.ends_again:
                    self._board.settle([task])
            case TaskDataEnded():
                self._board.end_data(task)
                # The task's last data may still wait behind back-pressure for long, but the task has nothing left to
                # catch up with.
                self._schedule.forget_backlog(now, (task,))
            case TaskAsksToEnd():
                self._board.ask(task)
            case TaskEnded():
                self._handle_task_ended(task, now)
            case TaskFailing():
                self._handle_task_failing(task, event.error, now)
            case _:
                assert_never(event)

    def _handle_task_ended(self, task: TaskId, now: Instant) -> None:
        self._board.finish(task)
        self._schedule.forget_backlog(now, (task,))
        if self._board.all_finished:
            self._effects += self._stopping.all_finished()

    def _handle_task_failing(self, task: TaskId, error: str, now: Instant) -> None:
        if self._board.is_finished(task):
            return
        text = f"task {task}: {error}" if error else f"task {task}"
        self._board.stop([task])
        self._under_way.gateways.reset([task])
        self._under_way.abort_awaiting(task, CheckpointFailure.TASK_FAILED, text, now)
        self._effects += self._stopping.task_failed(text)

    def _let_tasks_end(self) -> None:
        """Tell the tasks to end that want to end and that no checkpoint waits for. No checkpoint begins before these
        tasks have ended."""
        for task in self._board.asking:
            if not self._under_way.awaits(task):
                self._board.let_go(task)
                message = LetEnd(epoch=self._board.epoch_of(task), task=task)
                self._effects.append(SendToTask(task=task, message=message))

    # --- the job ------------------------------------------------------------------------------------------------------

    def _handle_job(self, event: JobEvent, now: Instant) -> None:
        if self._ended is not None:
            return
        match event:
            case AttemptStarted():
                self._handle_attempt_started(event, now)
            case FailedOver():
                self._fail_over(event.tasks, now)
            case ScheduleAllowed():
                self._is_allowed = True
                self._draw = event.draw
            case ScheduleForbidden():
                self._is_allowed = False
            case BacklogChanged():
                self._handle_backlog(event, now)
            case ShutDown():
                self._handle_shut_down(event.status, now)
            case _:
                assert_never(event)

    def _handle_backlog(self, event: BacklogChanged, now: Instant) -> None:
        if event.task is None or (event.epoch is not None and self._board.is_current(event.task, event.epoch)):
            self._schedule.change_backlog((event.operator, event.task), now, backlog=event.backlog)

    def _fail_over(self, tasks: tuple[TaskId, ...] | None, now: Instant) -> None:
        stopped = self._board.tasks if tasks is None else tasks
        self._board.stop(stopped)
        self._under_way.gateways.reset(stopped)
        self._under_way.abort_all(CheckpointFailure.FAILOVER, "", now)
        self._final.reset()
        if tasks is None:
            self._schedule.forget_backlog(now)
            self._effects += self._stopping.attempt_ended("the job restarts")
        else:
            self._schedule.forget_backlog(now, tasks)
            self._effects += self._stopping.task_failed("some tasks restart")

    def _handle_attempt_started(self, event: AttemptStarted, now: Instant) -> None:
        if self._under_way.archive.is_storing:
            raise InvariantError("an attempt starts while the outcome of the latest checkpoint is not known")
        self._fail_over(event.tasks, now)
        if event.graph is not None:
            self._board.change_graph(event.graph)
            self._planner = Planner(event.graph, after_tasks_finish=self._settings.after_tasks_finish)
            self._under_way.change_graph(event.graph)
        tasks = self._board.tasks if event.tasks is None else event.tasks
        self._board.deploy(event.epoch, tasks, event.finished_vertices)
        self._under_way.is_drained = event.drained
        self._stopping.ends_again = event.is_last
        if event.is_last:
            self._drop_waiting(CheckpointFailure.COORDINATOR_SUSPENDED, STOPS, now)
        if event.restored is not None:
            self._under_way.stats.restored(event.restored, now)

    def _handle_shut_down(self, status: JobEnd, now: Instant) -> None:
        self._ended = status
        if status is JobEnd.FINISHED:
            for task in self._board.tasks:
                self._board.finish(task)
            self._effects += self._stopping.all_finished()
        else:
            self._effects += self._stopping.attempt_ended(f"the job is {status.value}")
        self._drop_waiting(CheckpointFailure.COORDINATOR_SHUTDOWN, "", now)
        self._under_way.shut_down(status, now)

    def _update_schedule(self, now: Instant) -> None:
        is_up = self._is_allowed and self._board.all_up and self._ended is None
        if self._is_up and not is_up:
            self._suspend("not everything runs", now)
        self._is_up = is_up
        is_wanted = is_up and not self._stopping.is_under_way and not self._board.all_settled
        if is_wanted and not self._schedule.is_on:
            self._schedule.start(now, self._draw)
        elif not is_wanted:
            self._schedule.stop()
        if is_up and self._board.all_settled:
            self._drop_unasked(now)

    def _drop_unasked(self, now: Instant) -> None:
        """Drop the requests that nobody waits for: a further checkpoint would save nothing new. Requests of users
        stay."""
        for request in self._decider.clear_unasked():
            self._fail(request, CheckpointFailure.PERIODIC_SCHEDULER_SHUTDOWN, "", now)
        self._final.give_up()

    def _suspend(self, text: str, now: Instant) -> None:
        self._drop_waiting(CheckpointFailure.COORDINATOR_SUSPENDED, "", now)
        self._under_way.abort_all(CheckpointFailure.COORDINATOR_SUSPENDED, text, now)
        self._settle_outcomes(now)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handle_request(self, event: CheckpointRequested, now: Instant) -> None:
        refusal = self._refusal_of(event)
        if refusal is not None:
            self._effects.append(AnswerRequest(request=event.request, result=refusal))
            return
        kind = kind_of(event)
        if kind.is_synchronous:
            self._suspend("the job is being stopped", now)
            self._stopping.begin(event.request)
        self._submit(
            Request(
                kind=kind,
                submitted=now,
                answer_to=event.request,
                # Unaligned checkpoints must run one at a time, so a savepoint waits its turn like every other request.
                forced=kind.is_savepoint and not self._settings.unaligned,
                target=event.target,
                canonical=event.canonical,
            ),
            now,
        )

    def _refusal_of(self, event: CheckpointRequested) -> RequestFailure | None:
        if self._ended is not None:
            return failure_of(CheckpointFailure.COORDINATOR_SHUTDOWN, f"the job is {self._ended.value}")
        if event.kind is RequestKind.STOP and self._stopping.is_under_way:
            return RequestFailure(reason=None, text="the job is already being stopped with a savepoint")
        if self._stopping.is_saved:
            return failure_of(CheckpointFailure.COORDINATOR_SUSPENDED, STOPS)
        return refusal_of(event)

    def _submit(self, request: Request, now: Instant) -> None:
        dropped = self._decider.submit(request)
        if dropped is not None:
            self._drop(dropped, now)

    def _look_at_requests(self, now: Instant) -> None:
        """Start every request that may start now."""
        if self._board.awaits_last_checkpoint:
            self._final.arm(now)
        if self._may_take_final and self._final.is_due(now):
            self._submit(Request(kind=SnapshotKind.CHECKPOINT, submitted=now, final=True), now)
        while self._decider and (choice := self._decider.choose(self._load(), now)) is not None:
            if isinstance(choice, Dropped):
                self._drop(choice, now)
                continue
            plan = self._planner.plan(self._board)
            if isinstance(plan, NotReady):
                self._fail(choice, CheckpointFailure.NOT_ALL_REQUIRED_TASKS_RUNNING, plan.text, now)
                continue
            if choice.kind.is_synchronous:
                self._stopping.started()
            self._under_way.begin(choice, plan, now)

    @property
    def _may_take_final(self) -> bool:
        return self._is_up and not self._stopping.is_under_way

    def _load(self) -> Load:
        return Load(
            is_triggering=self._under_way.is_triggering,
            is_stopping=self._stopping.is_under_way,
            is_task_leaving=self._board.is_any_leaving,
            num_pending=self._under_way.num_pending,
            num_cleaning=self._under_way.archive.cleaner.num_checkpoints,
            last_completion=self._under_way.last_completion,
        )

    def _drop_waiting(self, reason: CheckpointFailure, text: str, now: Instant) -> None:
        for request in self._decider.clear():
            self._fail(request, reason, text, now)

    def _drop(self, dropped: Dropped, now: Instant) -> None:
        if dropped.retry_after_ms is not None:
            self._schedule.retry_after(dropped.retry_after_ms, now)
        self._fail(dropped.request, dropped.reason, "", now)

    def _fail(self, request: Request, reason: CheckpointFailure, text: str, now: Instant) -> None:
        """Answer a request that never became a checkpoint."""
        self._effects.append(RequestDropped(periodic=request.periodic, reason=reason, text=text))
        self._settle(request, failure_of(reason, text), now)

    def _settle_outcomes(self, now: Instant) -> None:
        outcomes = list(self._under_way.outcomes)
        self._under_way.outcomes.clear()
        for outcome in outcomes:
            self._settle(outcome.request, outcome.result, now)

    def _settle(self, request: Request, result: CompletedCheckpoint | RequestFailure, now: Instant) -> None:
        """A request has its result: answer the requester, if there is a requester."""
        failed = isinstance(result, RequestFailure)
        if request.final and failed:
            self._final.retry(now)
        if request.answer_to is None:
            return
        if request.kind.is_synchronous and isinstance(result, CompletedCheckpoint):
            self._effects += self._stopping.saved(result)
            if self._board.all_finished:
                self._effects += self._stopping.all_finished()
            self._drop_waiting(CheckpointFailure.COORDINATOR_SUSPENDED, STOPS, now)
            return
        if request.kind.is_synchronous:
            self._stopping.failed()
        self._effects.append(AnswerRequest(request=request.answer_to, result=result))
