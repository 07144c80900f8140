"""What the tasks of a slot ask of the slot: the time, a place for snapshots, and messages to the master."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.elements import Barrier
from penstock.core.ids import ChannelIndex, CheckpointId, Instant, JobId, OperatorId, SlotId, TaskId
from penstock.core.messages import (
    Acknowledge,
    BarrierTaken,
    CatchingUp,
    DataEnded,
    Decline,
    EventTimeReached,
    SnapshotMetrics,
    SplitsRead,
    StepFull,
    SubtaskState,
    TaskFinished,
    WantsToEnd,
)
from penstock.core.recovery import layout
from penstock.core.task.events import AcknowledgeSnapshot, DeclineSnapshot
from penstock.ports import AsyncCalls, WorkResult
from penstock.runtime.slot.leftovers import Leftovers, SnapshotPlace
from penstock.runtime.slot.master_link import MasterLink
from penstock.runtime.slot.ports import SlotPorts
from penstock.runtime.slot.tasks import SlotTasks
from penstock.runtime.task.inflight import ChannelFiles, InFlight
from penstock.runtime.task.subtask import Task
from penstock.settings import JobSettings
from penstock.storage.local_copies import CopyingStore, LocalCopies
from penstock.storage.places import Anywhere
from penstock.storage.snapshots import SnapshotReader


class SlotTaskHost:
    """A `TaskHost`, the same for all tasks of a slot."""

    def __init__(  # noqa: PLR0913  # one keyword per part of the slot
        self,
        slot: SlotId,
        *,
        job: JobId,
        settings: JobSettings,
        ports: SlotPorts,
        tasks: SlotTasks,
        master: MasterLink,
        failed: Callable[[TaskId, BaseException], None],
        totals: Callable[[list[Task]], None],
    ) -> None:
        """`failed` drops a task that cannot go on, with its region. `totals` tells the master the totals of tasks."""
        self.background = ports.background
        self.slice_rows = ports.slice_rows
        self.time = Instant(0)
        """When this turn of the slot began."""
        self._slot = slot
        self._job = job
        self._checkpoint_settings = settings.checkpoint
        self._ports = ports
        self._tasks = tasks
        self._tell = master.tell
        self._tell_totals = totals
        self._fail = failed
        self._folder = layout.job_folder(job)
        self.copies = LocalCopies(settings.checkpoint.local_copies_bytes, self._folder)
        """Local copies of files of checkpoints, for a restart in this slot."""
        self._store = CopyingStore(ports.store, self.copies)
        self.leftovers = Leftovers(ports.background)
        """Deletes the files of snapshots that are not acknowledged."""
        self.channel_files = self._new_channel_files()

    @property
    def calls(self) -> AsyncCalls | None:
        """Runs async functions of the user's."""
        return self._ports.calls

    # --- time ----------------------------------------------------------------------------

    def now(self) -> Instant:
        """The time of this turn."""
        return self.time

    def precise_ms(self) -> float:
        """A clock for durations."""
        return self._ports.clock.precise_ms()

    # --- files ---------------------------------------------------------------------------

    def plan_taken(self) -> None:
        """The whole job was deployed with another plan: the edges have changed, and so have the codecs of their
        batches."""
        self.channel_files = self._new_channel_files()

    def _new_channel_files(self) -> ChannelFiles:
        return ChannelFiles(
            store=self._ports.store,
            copies=self.copies,
            background=self.background,
            codecs=self._tasks.codecs,
            path_of=lambda checkpoint: layout.channel_state_file(self._folder, checkpoint, self._slot.number),
            inline_threshold=self._checkpoint_settings.inline_threshold_bytes,
        )

    def state_reader(self) -> SnapshotReader:
        """A reader of the state to restore."""
        return SnapshotReader(Anywhere(self._ports.store), self.copies)

    def snapshot_files(self, task: TaskId, barrier: Barrier) -> SnapshotPlace:
        """A place for the task's snapshot."""
        threshold, left = self._checkpoint_settings.inline_threshold_bytes, self.leftovers
        store, prefix, target = self._store, layout.snapshot_prefix(task), barrier.options.target
        if target is not None:
            # A savepoint has a folder of its own. Paths inside the folder are relative, so that the folder can be
            # moved.
            return SnapshotPlace(store.at(target), "", prefix, threshold, leftovers=left)
        folder, shared = layout.checkpoint_folder(self._folder, barrier.checkpoint), layout.shared_folder(self._folder)
        return SnapshotPlace(store, folder, prefix, threshold, leftovers=left, shared_folder=shared)

    def discard(self, state: SubtaskState | None, target: str | None = None) -> None:
        """Delete the files of a snapshot that was not acknowledged; `target` is the folder of a savepoint. Placeholders
        name files of earlier checkpoints, which stay."""
        paths = [f.path for f in state.files if f.path is not None and not f.placeholder] if state else []
        store = self._ports.store if target is None else self._ports.store.at(target)
        self.leftovers.delete(store, paths)

    def save_channels(self, task: TaskId, collected: InFlight, saved: Callable[[WorkResult], None]) -> None:
        """Write a task's in-flight data, together with the in-flight data of the slot's other tasks."""
        self.channel_files.submit(task, collected, saved, self._tasks.active)

    def save_no_channels(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The task gives the checkpoint up: the slot's other tasks need not wait for the task's in-flight data."""
        self.channel_files.give_up(task, checkpoint, self._tasks.active)

    # --- the end of a task, and messages to the master ----------------------------------------------------------

    def failed(self, task: TaskId, error: BaseException) -> None:
        """Drop the failed task and the other tasks of its region in this slot, and tell the master why."""
        self._fail(task, error)

    def acknowledge(self, task: TaskId, effect: AcknowledgeSnapshot) -> None:
        """Tell the master that the task's part of the checkpoint is durable."""
        metrics = SnapshotMetrics(
            start_delay_ms=effect.metrics.start_delay_ms,
            alignment_ms=effect.metrics.alignment_ms,
            sync_ms=effect.sync_ms,
            async_ms=effect.async_ms,
            bytes_processed=effect.metrics.bytes_processed,
            bytes_persisted=effect.bytes_persisted,
            checkpointed_bytes=effect.checkpointed_bytes,
            unaligned=effect.metrics.unaligned,
            waited_for=self._waited_for(task, effect.metrics.last_channel),
            rows_in=effect.metrics.rows_in,
        )
        self._tell(
            Acknowledge(
                job=self._job,
                epoch=self._tasks.attempts.of(task),
                task=task,
                checkpoint=effect.checkpoint,
                state=effect.state,
                metrics=metrics,
            )
        )

    def _waited_for(self, task: TaskId, channel: ChannelIndex | None) -> TaskId | None:
        """The task at the sending end of a channel of this task."""
        found = self._tasks.by_id.get(task)
        if channel is None or found is None:
            return None
        key = found.gate.channels[channel].key
        return TaskId(self._tasks.plan.edges[key.edge].upstream, key.upstream)

    def decline(self, task: TaskId, effect: DeclineSnapshot) -> None:
        """Tell the master that the task does not take part in the checkpoint, and why."""
        self._tell(
            Decline(
                job=self._job,
                epoch=self._tasks.attempts.of(task),
                task=task,
                checkpoint=effect.checkpoint,
                reason=effect.reason,
                error=effect.error,
            )
        )

    def barrier_taken(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """Tell the operator coordinators of the task's operators, if there are any, that the task has the barrier."""
        if task.vertex in self._tasks.coordinated:
            self._tell(BarrierTaken(epoch=self._tasks.attempts.of(task), task=task, checkpoint=checkpoint))

    def data_ended(self, task: TaskId) -> None:
        """Tell the master that the task has seen all its data."""
        self._tell(DataEnded(slot=self._slot, epoch=self._tasks.attempts.of(task), task=task))

    def wants_to_end(self, task: TaskId) -> None:
        """Tell the master that the task has nothing left to do."""
        self._tell(WantsToEnd(slot=self._slot, epoch=self._tasks.attempts.of(task), task=task))

    def finished(self, task: TaskId) -> None:
        """Tell the master the totals of the task, and that the task has ended for good."""
        self._tell_totals([self._tasks.by_id[task]])
        self._tell(TaskFinished(slot=self._slot, epoch=self._tasks.attempts.of(task), task=task))

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:
        """Tell the master how many splits the task has read to their ends."""
        self._tell(SplitsRead(epoch=self._tasks.attempts.of(task), task=task, operator=operator, count=count))

    def event_time_reached(self, task: TaskId, time_us: int | None) -> None:
        """Tell the watermark group of the task how far the reader of the task has come."""
        self._tell(EventTimeReached(epoch=self._tasks.attempts.of(task), task=task, time_us=time_us))

    def step_full(self, task: TaskId, operator: OperatorId) -> None:
        """Tell the master that a step of the task takes no more records."""
        self._tell(StepFull(epoch=self._tasks.attempts.of(task), task=task, operator=operator))

    def catching_up(self, task: TaskId, operator: OperatorId, is_behind: bool) -> None:  # noqa: FBT001
        """Tell the master whether the source of the task is behind."""
        epoch = self._tasks.attempts.of(task)
        self._tell(CatchingUp(epoch=epoch, task=task, operator=operator, is_behind=is_behind))
