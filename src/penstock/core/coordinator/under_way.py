"""The checkpoints that are under way: each from the chosen request to the end of the checkpoint.

Each step asks the shell for something, and the answer of the shell leads to the next step (`pending.Phase`). An answer
for a checkpoint that has ended, or is already further, changes nothing; only the files that the work left behind are
deleted. A checkpoint ends either in `_complete` or in `_abort`, exactly once. Both leave an `RequestResult` for the
requester.

Rules of this file:

* Nobody is told that a checkpoint is complete before the checkpoint's record is stored. A savepoint that does not stop
  the job is complete as soon as its metadata is written, and no task is told.
* A checkpoint can be aborted until the storing of its record begins. From then on only the answer of the store decides.
* Records are stored one at a time. When a newer checkpoint completes first, the older checkpoint is aborted as
  subsumed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, assert_never

import msgspec

from penstock.core.coordinator.archive import Archive
from penstock.core.coordinator.effects import (
    AcknowledgeIgnored,
    AckVerdict,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointStarted,
    CoordinatorEffect,
    CreateLocation,
    RequestFailure,
    SendToTask,
    TellCheckpointAborted,
    TellCheckpointComplete,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    FilesDeleted,
    JobEnd,
    LocationCreated,
    LocationFailed,
    MetadataFailed,
    MetadataWritten,
    PointerFailed,
    PointerStored,
)
from penstock.core.coordinator.finalize import CannotFinalize, Finalizer
from penstock.core.coordinator.gateway import Gateways
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.coordinator.participants import CheckpointPlan
from penstock.core.coordinator.pending import EARLY_PHASES, PendingCheckpoint, Phase
from penstock.core.coordinator.requests import Request, failure_of
from penstock.core.coordinator.stats import CheckpointStatistics
from penstock.core.coordinator.stopping import restart_after
from penstock.core.coordinator.story import Stories
from penstock.core.coordinator.tasks import TaskBoard
from penstock.core.coordinator.tolerance import FailureTolerance
from penstock.core.coordinator.triggering import MasterEvent, Triggering
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Instant, JobId, TaskId
from penstock.core.messages import Acknowledge, Decline, NotifyAborted, NotifyComplete
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.metadata import CompletedCheckpoint, DiscardRules, SnapshotKind
from penstock.settings import CheckpointSettings

REMEMBERED_EXPIRED = 16
"""For this many expired checkpoints a late acknowledgement is told apart from other late acknowledgements."""

StorageEvent = (
    LocationCreated | LocationFailed | MetadataWritten | MetadataFailed | PointerStored | PointerFailed | FilesDeleted
)


class RequestResult(NamedTuple):
    """The result of a request that had become a checkpoint."""

    request: Request
    result: CompletedCheckpoint | RequestFailure


class CheckpointsUnderWay:
    """Every checkpoint from its beginning to its end. Effects are appended to `effects`, results of requests to
    `outcomes`; the owner takes both away."""

    def __init__(
        self,
        job: JobId,
        settings: CheckpointSettings,
        graph: CheckpointGraph,
        options: CoordinatorOptions,
        archive: Archive,
        board: TaskBoard,
        next_id: CheckpointId,
    ) -> None:
        self.effects: list[CoordinatorEffect] = []
        self.outcomes: list[RequestResult] = []
        self.next_id = next_id
        self.last_completion: Instant | None = None
        self.stats = CheckpointStatistics(graph, settings.history)
        self.stories = Stories()
        self.archive = archive
        self._job = job
        self._settings = settings
        self._first_id = next_id
        self._board = board
        self._job_settings = options.job_settings
        self._finalizer = Finalizer(job, graph, archive.registry, options.job_settings)
        self._tolerance = FailureTolerance(settings.tolerable_failures)
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}
        self._triggering = Triggering(graph, board, self.effects)
        self._expired: deque[CheckpointId] = deque(maxlen=REMEMBERED_EXPIRED)
        self._is_shut_down = False
        self.is_drained = False
        """Whether all tasks are at the end of their data because of a stop with drain that failed."""

    def change_graph(self, graph: CheckpointGraph) -> None:
        """The job has been rescaled. No checkpoint may be under way."""
        if self._pending:
            raise InvariantError(f"the job is rescaled while checkpoints {sorted(self._pending)} are under way")
        if self._job_settings:
            self._job_settings = {**self._job_settings, "parallelism": max(v.parallelism for v in graph.vertices)}
        self._finalizer = Finalizer(self._job, graph, self.archive.registry, self._job_settings)
        self.gateways.change_graph(graph)

    @property
    def num_pending(self) -> int:
        """How many checkpoints are under way."""
        return len(self._pending)

    @property
    def is_triggering(self) -> bool:
        """Whether a checkpoint is on its way to the tasks."""
        return self._triggering.current is not None

    @property
    def gateways(self) -> Gateways:
        """The gateways of the operator coordinators."""
        return self._triggering.gateways

    def next_deadline(self) -> Instant | None:
        """When the next checkpoint expires, or a deletion is to be tried again. A checkpoint whose record is being
        stored does not expire."""
        deadlines = [self._deadline(p) for p in self._pending.values() if p.phase is not Phase.STORING]
        cleaning = self.archive.cleaner.next_deadline()
        return min(deadlines if cleaning is None else [*deadlines, cleaning], default=None)

    def _deadline(self, pending: PendingCheckpoint) -> Instant:
        deadline = Instant(pending.created + self._settings.timeout_ms)
        if pending.phase is Phase.HOOKS and pending.hooks_asked is not None:
            return min(deadline, Instant(pending.hooks_asked + self._settings.hook_timeout_ms))
        return deadline

    # --- triggering ---------------------------------------------------------------------------------------------------

    def begin(self, request: Request, plan: CheckpointPlan, now: Instant) -> None:
        """Begin a checkpoint for the request, with the next id."""
        checkpoint = self.next_id
        self.next_id = CheckpointId(checkpoint + 1)
        kind = self._kind_of(request)
        pending = PendingCheckpoint(
            checkpoint=checkpoint,
            kind=kind,
            request=request,
            plan=plan,
            options=self._options_of(kind, request),
            created=now,
        )
        self._pending[checkpoint] = self._triggering.current = pending
        if kind.is_savepoint:
            self.archive.savepoints.begin(checkpoint)
        self.stats.began(pending)
        queued_ms = now - request.submitted
        self.stories.tell(checkpoint, now, f"{kind.value} begins after {queued_ms} ms, {len(plan.wait)} tasks")
        self.effects += [
            CheckpointStarted(checkpoint=checkpoint, kind=kind, queued_ms=queued_ms),
            CreateLocation(checkpoint=checkpoint, kind=kind, options=pending.options),
        ]

    def _kind_of(self, request: Request) -> SnapshotKind:
        latest = self.archive.latest
        if request.kind is SnapshotKind.CHECKPOINT and latest is not None and not latest.can_be_built_on:
            # The latest snapshot belongs to the user, who may delete its files at any time: no checkpoint may refer to
            # them.
            return SnapshotKind.FULL_CHECKPOINT
        return request.kind

    def _options_of(self, kind: SnapshotKind, request: Request) -> CheckpointOptions:
        # A barrier must not overtake the end of drained data: sources would end before the tasks downstream, and the
        # data that the tasks downstream have not read would be forgotten.
        unaligned = self._settings.unaligned and not kind.is_savepoint and not self.is_drained
        timeout_ms = self._settings.aligned_timeout_ms or None
        return CheckpointOptions(
            unaligned=unaligned and timeout_ms is None,
            aligned_timeout_ms=timeout_ms if unaligned else None,
            savepoint=kind.is_savepoint,
            synchronous=kind.is_synchronous,
            drain=kind is SnapshotKind.TERMINATE,
            full=kind is not SnapshotKind.CHECKPOINT,
            target=request.target,
            canonical=request.canonical,
            final=request.final,
        )

    def handle_master(self, event: MasterEvent, now: Instant) -> None:
        """Handle an event about an operator coordinator, its events, or a hook."""
        pending = self._triggering.current
        failure = self._triggering.handle(event)
        if pending is None:
            return
        if failure is not None:
            if failure.fails_job is not None:
                # Before the abort: the abort may fail the job because of too many failed checkpoints, and the first
                # `FailJob` names the cause that people see.
                self.effects.append(failure.fails_job)
            self._abort(pending, failure.reason, failure.text, now)
        else:
            self._after_step(pending, now)

    def _after_step(self, pending: PendingCheckpoint, now: Instant) -> None:
        if pending.phase is Phase.HOOKS and pending.hooks_asked is None:
            pending.hooks_asked = now
        elif pending.phase is Phase.TASKS:
            self.stories.tell(pending.checkpoint, now, f"{len(pending.plan.trigger)} tasks triggered")
            # A source that an outside system tells when to begin may have acknowledged before the trigger was sent.
            self._after_acknowledge(pending, now)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def acknowledge(self, message: Acknowledge, now: Instant) -> None:
        """A task says that its part is durable."""
        checkpoint, task, state = message.checkpoint, message.task, message.state
        if message.job != self._job:
            self._ignore(message, AckVerdict.FOREIGN)
            return
        if checkpoint < self._first_id:
            # The checkpoint began before this driver had the job. This driver cannot know whether a completed
            # checkpoint uses the files, so the files stay.
            self._ignore(message, AckVerdict.LATE)
            return
        problem = None
        if state is not None:
            deletions, problem = self.archive.register(state, checkpoint)
            self.effects += deletions
        pending = self._pending.get(checkpoint)
        verdict = self._judge(message, pending)
        if verdict in (AckVerdict.UNKNOWN, AckVerdict.LATE, AckVerdict.EXPIRED) and state is not None:
            self.effects += self.archive.discard(state, checkpoint, pending)
        if verdict in (AckVerdict.ACCEPTED, AckVerdict.LATE, AckVerdict.EXPIRED):
            self.stats.acknowledged(checkpoint, task, now, state, message.metrics)
        if verdict is not AckVerdict.ACCEPTED or pending is None:
            self._ignore(message, verdict)
            return
        self.effects += self.gateways.open_for_task(task, checkpoint)
        if problem is not None:
            self._abort(pending, CheckpointFailure.DECLINED, f"task {task} {problem}", now, task=task)
        else:
            self._after_acknowledge(pending, now)

    def _judge(self, message: Acknowledge, pending: PendingCheckpoint | None) -> AckVerdict:
        if pending is None:
            return AckVerdict.EXPIRED if message.checkpoint in self._expired else AckVerdict.LATE
        if not self._board.is_current(message.task, message.epoch):
            return AckVerdict.UNKNOWN
        return pending.acknowledge_task(message.task, message.state)

    def _ignore(self, message: Acknowledge, verdict: AckVerdict) -> None:
        self.effects.append(AcknowledgeIgnored(checkpoint=message.checkpoint, task=message.task, verdict=verdict))

    def decline(self, message: Decline, now: Instant) -> None:
        """A task says that the task will not take part. Once all tasks have acknowledged, a decline changes nothing."""
        pending = self._pending.get(message.checkpoint)
        if message.job != self._job or not self._board.is_current(message.task, message.epoch):
            return
        if pending is not None and pending.num_awaited > 0:
            text = f"task {message.task}: {message.error}" if message.error else f"task {message.task}"
            self._abort(pending, message.reason, text, now, task=message.task)

    def _after_acknowledge(self, pending: PendingCheckpoint, now: Instant) -> None:
        if not pending.is_acknowledged:
            return
        metadata = self._finalizer.finalize(pending, drained=self.is_drained)
        if isinstance(metadata, CannotFinalize):
            self._abort(pending, metadata.reason, metadata.text, now)
            return
        location = self._location_of(pending)
        pending.phase = Phase.WRITING
        pending.metadata = metadata
        self.stories.tell(pending.checkpoint, now, "all tasks acknowledged")
        self.effects.append(WriteMetadata(checkpoint=pending.checkpoint, location=location, metadata=metadata))

    def _location_of(self, pending: PendingCheckpoint) -> str:
        if pending.location is None:
            raise self.stories.broken(pending.checkpoint, "has no folder")
        return pending.location

    # --- storage ------------------------------------------------------------------------------------------------------

    def handle_storage(self, event: StorageEvent, now: Instant) -> None:
        """Storage work has answered. The checkpoint may have ended meanwhile."""
        match event:
            case LocationCreated() | LocationFailed():
                self._handle_location(event, now)
            case MetadataWritten() | MetadataFailed():
                self._handle_metadata(event, now)
            case PointerStored() | PointerFailed():
                pending = self._in_phase(event.checkpoint, Phase.STORING)
                if pending is not None:
                    self._handle_pointer(pending, event, now)
            case FilesDeleted():
                self.effects += self.archive.deleted(event.cleaning, event.error, now)
            case _:
                assert_never(event)

    def _in_phase(self, checkpoint: CheckpointId, phase: Phase) -> PendingCheckpoint | None:
        pending = self._pending.get(checkpoint)
        return pending if pending is not None and pending.phase is phase else None

    def _handle_location(self, event: LocationCreated | LocationFailed, now: Instant) -> None:
        pending = self._in_phase(event.checkpoint, Phase.LOCATING)
        if isinstance(event, LocationFailed):
            if pending is not None:
                self._abort(pending, CheckpointFailure.IO, event.error, now)
            self.effects += self.archive.answered(event.checkpoint)
        elif pending is None:
            self.effects += self.archive.answered(event.checkpoint, event.location)
        else:
            self.stories.tell(event.checkpoint, now, f"located at {event.location}")
            if pending.kind.is_savepoint:
                self.archive.savepoints.locate(event.checkpoint, event.location)
            self._triggering.locate(pending, event.location)
            self._after_step(pending, now)

    def _handle_metadata(self, event: MetadataWritten | MetadataFailed, now: Instant) -> None:
        pending = self._in_phase(event.checkpoint, Phase.WRITING)
        if pending is None:
            self.effects += self.archive.answered(event.checkpoint)
        elif isinstance(event, MetadataFailed):
            self._abort(pending, CheckpointFailure.FINALIZE_FAILED, event.error, now)
            self.effects += self.archive.answered(event.checkpoint)
        else:
            pending.phase = Phase.READY
            pending.completed = self._completed_from(pending, event, now)
            if pending.kind.is_savepoint and not pending.kind.is_synchronous:
                self._complete(pending, pending.completed, now)
            else:
                self._store_next()

    def _completed_from(self, pending: PendingCheckpoint, event: MetadataWritten, now: Instant) -> CompletedCheckpoint:
        metadata = pending.metadata
        if metadata is None:
            raise self.stories.broken(pending.checkpoint, "metadata was written before the coordinator made metadata")
        savepoint = pending.kind.is_savepoint
        return CompletedCheckpoint(
            job=self._job,
            checkpoint=pending.checkpoint,
            timestamp=pending.created,
            completed=now,
            kind=pending.kind,
            location=self._location_of(pending),
            path=event.path,
            size=metadata.size,
            metadata_size=event.size,
            discard=DiscardRules() if savepoint else self._discard_rules,
            private_files=pending.own_files(),
            shared_files=() if savepoint else self.archive.registry.describe(metadata.files),
        )

    @property
    def _discard_rules(self) -> DiscardRules:
        return DiscardRules.of(self._settings.retention, finished=not self._settings.goes_on_when_finished)

    def _store_next(self) -> None:
        """Store the record of the oldest checkpoint that is ready, if no record is being stored."""
        ready = [p for p in self._pending.values() if p.phase is Phase.READY]
        if self.archive.is_storing or not ready:
            return
        pending = min(ready, key=lambda p: p.checkpoint)
        if pending.completed is None:
            raise self.stories.broken(pending.checkpoint, "is ready to be stored without a record")
        pending.phase = Phase.STORING
        self.effects.append(self.archive.store(pending.completed))

    def _handle_pointer(self, pending: PendingCheckpoint, event: PointerStored | PointerFailed, now: Instant) -> None:
        if isinstance(event, PointerStored):
            stored = self.archive.stored()
            for old in stored.subsumed:
                if old.discard.subsumed:
                    self.stats.discarded(old.checkpoint)
            last = stored.subsumed[-1] if stored.subsumed else None
            subsumed = last.checkpoint if last is not None and last.discard.subsumed else None
            self._complete(pending, stored.completed, now, subsumed=subsumed)
            self.effects += stored.effects
        else:
            pending.files_are_doubtful = event.inconsistent
            if event.inconsistent and pending.kind.is_savepoint:
                self.archive.give_to_user(pending)
            leftovers = self.archive.not_stored(inconsistent=event.inconsistent)
            self._abort(pending, CheckpointFailure.FINALIZE_FAILED, event.error, now)
            self.effects += leftovers
        self._store_next()

    # --- the two ends -------------------------------------------------------------------------------------------------

    def _complete(
        self,
        pending: PendingCheckpoint,
        completed: CompletedCheckpoint,
        now: Instant,
        *,
        subsumed: CheckpointId | None = None,
    ) -> None:
        checkpoint = pending.checkpoint
        self._remove(pending)
        self.last_completion = now
        self.stories.tell(checkpoint, now, "completed")
        self._tolerance.succeeded(checkpoint)
        self.stats.completed(completed)
        if pending.kind.is_savepoint:
            self.archive.give_to_user(pending)
        self.effects.append(CheckpointCompleted(completed=completed, took_ms=now - pending.created))
        self.outcomes.append(RequestResult(pending.request, completed))
        self.effects += self.gateways.open(checkpoint)
        if pending.kind.is_savepoint and not pending.kind.is_synchronous:
            return
        for older in self._abortable():
            if older.checkpoint < checkpoint and not older.kind.is_savepoint:
                self._abort(older, CheckpointFailure.SUBSUMED, f"checkpoint {checkpoint} completed", now)
        for task in self._told(pending):
            message = NotifyComplete(
                epoch=self._board.epoch_of(task), task=task, checkpoint=checkpoint, subsumed=subsumed
            )
            self.effects.append(SendToTask(task=task, message=message))
        ends_all = pending.kind.is_synchronous
        ends_finished = self._settings.after_tasks_finish or pending.options.final
        self._board.settle(
            t for t, s in pending.states.items() if ends_all or (ends_finished and s is not None and s.finished)
        )
        self.effects += [TellCheckpointComplete(operator=o, checkpoint=checkpoint) for o in self.gateways.operators]

    def _abort(
        self, pending: PendingCheckpoint, reason: CheckpointFailure, text: str, now: Instant, task: TaskId | None = None
    ) -> None:
        checkpoint = pending.checkpoint
        if reason is CheckpointFailure.SUBSUMED and pending.kind.is_savepoint:
            raise self.stories.broken(checkpoint, "a savepoint cannot be subsumed")
        self._remove(pending)
        if reason is CheckpointFailure.EXPIRED:
            self._expired.append(checkpoint)
        self.stories.tell(checkpoint, now, f"aborted: {reason.text}: {text}")
        self.stats.failed(checkpoint, reason, text, now)
        self.effects.append(CheckpointAborted(checkpoint=checkpoint, reason=reason, text=text))
        self.outcomes.append(RequestResult(pending.request, self._failure_of(pending, reason, text)))
        if not pending.files_are_doubtful:
            self.effects += self.archive.abandon(pending)
        verdict = self._tolerance.failed(pending.kind, reason, text, checkpoint=checkpoint, task=task)
        if pending.kind.is_synchronous and pending.phase not in EARLY_PHASES:
            verdict = restart_after(reason, text)
        if verdict is not None:
            self.effects.append(verdict)
        self.effects += self.gateways.open(checkpoint)
        latest = self.archive.latest
        for told in self._told(pending):
            message = NotifyAborted(
                epoch=self._board.epoch_of(told),
                task=told,
                checkpoint=checkpoint,
                latest_completed=None if latest is None else latest.checkpoint,
            )
            self.effects.append(SendToTask(task=told, message=message))
        self.effects += [TellCheckpointAborted(operator=o, checkpoint=checkpoint) for o in self.gateways.operators]

    @staticmethod
    def _failure_of(pending: PendingCheckpoint, reason: CheckpointFailure, text: str) -> RequestFailure:
        failure = failure_of(reason, text)
        if pending.files_are_doubtful and pending.completed is not None and pending.kind.is_savepoint:
            return msgspec.structs.replace(failure, savepoint=pending.completed.path)
        return failure

    def _remove(self, pending: PendingCheckpoint) -> None:
        del self._pending[pending.checkpoint]
        self._triggering.leave(pending)

    def _told(self, pending: PendingCheckpoint) -> list[TaskId]:
        """The tasks of the checkpoint that still run. They run in the attempt in which the checkpoint was taken: before
        a task comes up again, every checkpoint has been aborted or stored."""
        return [] if self._is_shut_down else [t for t in pending.plan.wait if self._board.is_running(t)]

    def _abortable(self) -> list[PendingCheckpoint]:
        return [p for p in self._pending.values() if p.phase is not Phase.STORING]

    # --- from outside -------------------------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Time has passed: abort every checkpoint whose time is over, and try a failed deletion again if a try is
        due."""
        self.effects += self.archive.clean_again(now)
        for pending in self._abortable():
            if self._deadline(pending) <= now:
                self._abort(pending, CheckpointFailure.EXPIRED, _missing(pending, now), now)

    def abort_all(self, reason: CheckpointFailure, text: str, now: Instant) -> None:
        """Abort every checkpoint that can still be aborted."""
        for pending in self._abortable():
            self._abort(pending, reason, text, now)

    def abort_awaiting(self, task: TaskId, reason: CheckpointFailure, text: str, now: Instant) -> None:
        """Abort every checkpoint that this task has not acknowledged: the task will never acknowledge it."""
        for pending in [p for p in self._abortable() if p.awaits_task(task)]:
            self._abort(pending, reason, text, now)

    def awaits(self, task: TaskId) -> bool:
        """Whether a checkpoint needs the acknowledgement of this task."""
        return any(pending.awaits_task(task) for pending in self._pending.values())

    def shut_down(self, status: JobEnd, now: Instant) -> None:
        """No checkpoint begins any more, and pending checkpoints are aborted. A record that is being stored is still
        waited for."""
        self._is_shut_down = True
        self.abort_all(CheckpointFailure.COORDINATOR_SHUTDOWN, f"the job is {status.value}", now)
        self.archive.cleaner.shut_down(now)
        self.effects += self.archive.shut_down(status)
        self.effects += self.archive.clean_again(now)

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        self.archive.validate()
        latest = self.archive.latest
        for checkpoint, pending in self._pending.items():
            if checkpoint >= self.next_id:
                raise self.stories.broken(checkpoint, "has an id that was not given away yet")
            if latest is not None and checkpoint <= latest.checkpoint and not pending.kind.is_savepoint:
                raise self.stories.broken(checkpoint, f"is under way although {latest.checkpoint} is complete")
            early = pending.phase in EARLY_PHASES
            if early != (self._triggering.current is pending):
                raise self.stories.broken(
                    checkpoint, f"is {pending.phase.value}, which does not fit the checkpoint that is being triggered"
                )
        storing = sum(p.phase is Phase.STORING for p in self._pending.values())
        if storing != self.archive.is_storing:
            raise InvariantError(
                f"{storing} checkpoints are being stored as complete, and the archive of checkpoints says otherwise"
            )


def _missing(pending: PendingCheckpoint, now: Instant) -> str:
    """The text that says which hooks or tasks an expired checkpoint was waiting for."""
    if pending.phase is Phase.HOOKS and pending.hooks_asked is not None:
        hooks, took_ms = ", ".join(map(repr, pending.awaited_hooks)), now - pending.hooks_asked
        return f"after {took_ms} ms there is no answer from hooks: {hooks}"
    return f"{pending.num_awaited} of {len(pending.plan.wait)} tasks missing, {pending.phase.value}"
