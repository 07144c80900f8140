"""The driver of a slot: one loop that feeds its tasks and talks to the master and to the other slots.

Life of a slot: call in at the master; build tasks when it says `Deploy`, answer `Ready`; begin with `Run`; drop them
with `CancelTasks` and wait for the next `Deploy`; end with `Leave`. A slot that loses its link to the master ends by
itself: it can no longer know what is true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

import cloudpickle
import msgspec

from penstock.core.elements import Barrier
from penstock.core.errors import InvariantError, LinkBroken, MalformedMessage
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, SlotId, TaskId
from penstock.core.job.regions import regions_of
from penstock.core.messages import (
    Acknowledge,
    Cancelled,
    CancelTasks,
    Credit,
    DataEnded,
    Decline,
    Deploy,
    Heartbeat,
    Leave,
    Leaving,
    NotifyAborted,
    NotifyComplete,
    OperatorEvent,
    OperatorEventTaken,
    PeerGone,
    Ready,
    Run,
    SnapshotMetrics,
    SplitsRead,
    SubtaskState,
    TaskFailed,
    TaskFinished,
    TaskRestore,
    ToMaster,
    TriggerCheckpoint,
)
from penstock.core.recovery import layout
from penstock.core.task.events import AbortNotified, AcknowledgeSnapshot, CompletionNotified, DeclineSnapshot
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import Background, Clock, Frame, Outcome, Store, Transport
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.attempts import Attempts
from penstock.runtime.chain import describe_failure
from penstock.runtime.channels import ChannelKey, Item
from penstock.runtime.deploying import restore_of
from penstock.runtime.deployment import Deployment, build_task, edge_schemas
from penstock.runtime.inflight import ChannelFiles, ChannelReader, InFlight
from penstock.runtime.links import Links
from penstock.runtime.operators.base import StateWriter
from penstock.runtime.peers import Peers
from penstock.runtime.task import Task
from penstock.settings import JobSettings
from penstock.storage.local_copies import CopyingStore, LocalCopies
from penstock.storage.places import Anywhere
from penstock.storage.snapshots import SnapshotReader, SnapshotWriter
from penstock.wire.codec import (
    BatchCodec,
    decode_credit,
    decode_element,
    decode_to_slot,
    encode_element,
    encode_message,
)
from penstock.wire.frames import Channel, Kind, Packet

MASTER = "master"
"""The master's name on the transport."""

NO_EPOCH = Epoch(0)
"""Links to and from the master live as long as the slot; their messages carry their epochs inside."""

STEPS_PER_TURN = 64
"""A turn lets each task do at most this many things."""
TURN_BUDGET_MS = 2.0
"""A turn looks at its messages again after working this long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SlotPorts:
    """What the shell supplies to a slot."""

    clock: Clock
    transport: Transport
    background: Background
    store: Store


class SlotDriver:
    """One slot, from its call to the master until it leaves."""

    def __init__(
        self,
        slot: SlotId,
        *,
        job: JobId,
        settings: JobSettings,
        ports: SlotPorts,
        address: SlotAddress,
        master_address: str,
    ) -> None:
        self.slot = slot
        self.left = False
        self.error: str | None = None
        self.background = ports.background
        self._job = job
        self._folder = layout.job_folder(job)
        self._settings = settings
        self._ports = ports
        self._copies = LocalCopies(settings.checkpoint.local_copies_bytes, self._folder)
        self._store = CopyingStore(ports.store, self._copies)
        self._address = address
        # Later than the master finds out about a slot that hangs: this is for two that cannot reach each other.
        silence_ms = settings.slot.heartbeat_timeout_ms * 3 // 2
        self._links = Links(
            ports.transport, on_packet=self._on_packet, on_broken=self._on_broken, silence_ms=silence_ms
        )
        self._links.connect(MASTER, master_address)
        self._epoch = Epoch(0)
        """That of the whole attempt, and of links. Tasks that were restarted beside others have a later one."""
        self._plan: Plan | None = None
        self._tasks: dict[TaskId, Task] = {}
        self._attempts = Attempts()
        self._readers: dict[ChannelKey, Task] = {}
        """Who has the receiving end of a channel."""
        self._writers: dict[ChannelKey, Task] = {}
        """Who has the sending end of a channel."""
        self._peers = Peers(slot, address, self._links)
        self._codecs: dict[int, BatchCodec] = {}
        self._channel_files = self._new_channel_files()
        self._registered = False
        self._next_heartbeat = Instant(0)
        self._master_heard: Instant | None = None
        self._now = Instant(0)

    # --- the driver's contract -----------------------------------------------------------

    def turn(self, now: Instant) -> Instant | None:
        """Take what has arrived and work for a while; when to be called again at the latest."""
        self._now = now
        if not self._registered:
            self._register()
        self._links.receive(now)
        self._ports.background.collect()
        if self.left:
            return None
        self._watch_master()
        busy = self._work()
        for task in list(self._tasks.values()):
            self._guard(task, task.tick, now)
        deadlines = [self._heartbeat(now), self._links.keep_alive(now)]
        if busy or any(task.wants_step for task in self._tasks.values()):
            return now
        deadlines += [task.next_deadline() for task in self._tasks.values()]
        return min((d for d in deadlines if d is not None), default=None)

    def close(self) -> None:
        """Drop all tasks, as if cancelled. The shell closes the ports."""
        self._drop_tasks()
        self._copies.close()

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        for task in self._tasks.values():
            task.validate()

    def _work(self) -> bool:
        """Step the tasks in turn until none has anything to do or the turn has lasted long enough."""
        clock, max_rows = self._ports.clock, self._settings.source_batch_rows
        until = clock.precise_ms() + TURN_BUDGET_MS
        did = False
        for _ in range(STEPS_PER_TURN):
            did = False
            # Downstream first: what is on its way gets out before more comes in.
            for task in reversed(list(self._tasks.values())):
                if self._guard(task, task.step, self._now, max_rows):
                    did = True
            if not did or clock.precise_ms() >= until:
                break
        return did

    def _guard(self, task: Task, call: Callable[..., bool | None], *args: object) -> bool:
        """Call into a task; whatever it raises fails the attempt."""
        try:
            return bool(call(*args))
        except Exception as error:  # noqa: BLE001  # user code and connectors raise anything; the attempt ends with it
            self.failed(task.task, error)
            return False

    # --- what tasks ask for --------------------------------------------------------------

    def now(self) -> Instant:
        """The time of this turn."""
        return self._now

    def precise_ms(self) -> float:
        """A clock for durations."""
        return self._ports.clock.precise_ms()

    def snapshot_files(self, task: TaskId, barrier: Barrier) -> StateWriter:
        """A place for the task's snapshot."""
        threshold = self._settings.checkpoint.inline_threshold_bytes
        store, prefix, target = self._store, layout.snapshot_prefix(task), barrier.options.target
        if target is not None:
            # The savepoint's own folder: paths inside it are relative, so that it can be moved.
            return SnapshotWriter(store.at(target), "", prefix, threshold)
        folder, shared = layout.checkpoint_folder(self._folder, barrier.checkpoint), layout.shared_folder(self._folder)
        return SnapshotWriter(store, folder, prefix, threshold, shared_folder=shared)

    def discard(self, state: SubtaskState | None, target: str | None = None) -> None:
        """Delete the files of a snapshot that nobody will use; `target` is the folder of a savepoint."""
        paths = [f.path for f in state.files if f.path is not None and f.shared_key is None] if state else []
        store = self._ports.store if target is None else self._ports.store.at(target)

        def delete() -> None:
            for path in paths:
                store.delete(path)

        if paths:
            self._ports.background.submit(delete, lambda _: None)

    def save_channels(self, task: TaskId, collected: InFlight, saved: Callable[[Outcome], None]) -> None:
        """Write a task's in-flight data, together with that of the slot's other tasks."""
        self._channel_files.submit(task, collected, saved, self._members())

    def save_no_channels(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """The task gives the checkpoint up: others need not wait for its in-flight data."""
        self._channel_files.give_up(task, checkpoint, self._members())

    def _members(self) -> tuple[TaskId, ...]:
        return tuple(task for task, found in self._tasks.items() if found.is_active)

    def acknowledge(self, task: TaskId, effect: AcknowledgeSnapshot) -> None:
        """Tell the master that the task's part is durable."""
        metrics = SnapshotMetrics(
            start_delay_ms=effect.metrics.start_delay_ms,
            alignment_ms=effect.metrics.alignment_ms,
            sync_ms=effect.sync_ms,
            async_ms=effect.async_ms,
            bytes_processed=effect.metrics.bytes_processed,
            bytes_persisted=effect.bytes_persisted,
            checkpointed_bytes=effect.checkpointed_bytes,
            unaligned=effect.metrics.unaligned,
        )
        self._tell(
            Acknowledge(
                job=self._job,
                epoch=self._attempts.of(task),
                task=task,
                checkpoint=effect.checkpoint,
                state=effect.state,
                metrics=metrics,
            )
        )

    def decline(self, task: TaskId, effect: DeclineSnapshot) -> None:
        """Tell the master that the task will not take part."""
        self._tell(
            Decline(
                job=self._job,
                epoch=self._attempts.of(task),
                task=task,
                checkpoint=effect.checkpoint,
                reason=effect.reason,
                error=effect.error,
            )
        )

    def data_ended(self, task: TaskId) -> None:
        """Tell the master that the task has seen all its data."""
        self._tell(DataEnded(slot=self.slot, epoch=self._attempts.of(task), task=task))

    def finished(self, task: TaskId) -> None:
        """Tell the master that the task has ended for good."""
        self._tell(TaskFinished(slot=self.slot, epoch=self._attempts.of(task), task=task))

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:
        """Tell the master how far a source has come."""
        self._tell(SplitsRead(epoch=self._attempts.of(task), task=task, operator=operator, count=count))

    def failed(self, task: TaskId, error: BaseException) -> None:
        """End the task here, with all of its region, and tell the master why."""
        self._fail(task, error, self._attempts.region_of(task))

    def _fail(self, task: TaskId, error: BaseException, region: Sequence[TaskId] | None) -> None:
        """Without a region, no task of this slot goes on."""
        if task not in self._tasks:
            return
        vertex = self._plan.vertex(task.vertex).name if self._plan is not None else str(task.vertex)
        self._tell_failure(task, error, epoch=self._attempts.of(task), vertex=vertex, whole=region is None)
        self._drop_tasks(region)

    def _tell_failure(self, task: TaskId, error: BaseException, *, epoch: Epoch, vertex: str, whole: bool) -> None:
        operator, line, text, user_code = describe_failure(error, vertex=vertex)
        log.warning("task failed: %s", line, extra={"task": str(task), "operator": operator, "error": line})
        self._tell(
            TaskFailed(
                slot=self.slot,
                epoch=epoch,
                task=task,
                operator=operator,
                error=line,
                traceback=text,
                user_code=user_code,
                whole=whole,
            )
        )

    # --- the master ----------------------------------------------------------------------

    def _tell(self, message: ToMaster) -> None:
        self._links.send(MASTER, Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    def _register(self) -> None:
        self._registered = True
        self._master_heard = self._now
        self._tell(self._address.registration_of(self.slot))

    def _watch_master(self) -> None:
        """End if the master has been silent for too long: this slot may have been given up."""
        timeout_ms = self._settings.slot.heartbeat_timeout_ms
        if self._master_heard is not None and self._now - self._master_heard >= timeout_ms:
            self._leave(f"the master was not heard of for {timeout_ms} ms")

    def _heartbeat(self, now: Instant) -> Instant:
        if now >= self._next_heartbeat:
            self._next_heartbeat = Instant(now + self._settings.slot.heartbeat_interval_ms)
            metrics = {str(task.task): task.metrics() for task in self._tasks.values()}
            self._tell(Heartbeat(slot=self.slot, epoch=self._epoch, metrics=metrics))
        return self._next_heartbeat

    def _on_packet(self, peer: str, packet: Packet) -> None:
        if self.left:
            return
        header = packet.header
        if peer == MASTER:
            self._master_heard = self._now
            if header.kind is Kind.CONTROL:
                self._on_message(packet)
            return
        if header.epoch != self._epoch or not self._tasks:
            # Of another attempt, or of one that has ended here and not yet everywhere: fenced.
            return
        if header.kind is Kind.CREDIT:
            credit = decode_credit(packet.payload)
            key = ChannelKey(credit.edge, credit.upstream, credit.downstream)
            if not self._attempts.writes(key):
                raise MalformedMessage(f"credit for channel {key}, which no task of {self.slot} writes")
            if credit.epoch == self._attempts.of_channel(key):
                self._grant_here(key, credit.bytes_granted)
        elif header.channel is not None:
            key = ChannelKey(*header.channel)
            if not self._attempts.reads(key):
                raise MalformedMessage(f"item in channel {key}, which no task of {self.slot} reads")
            if (header.attempt or header.epoch) != self._attempts.of_channel(key) or key not in self._readers:
                # Of tasks that are being restarted, or have been.
                return
            is_batch = header.kind is Kind.BATCH
            item = self._codecs[key.edge].decode(packet.payload) if is_batch else decode_element(packet.payload)
            self._deliver_here(key, item, header.cost)

    def _on_broken(self, peer: str, text: str) -> None:
        if peer == MASTER:
            self._leave(f"the link to the master broke: {text}")
        elif self._tasks and (found := self._peers.named(peer)) is not None:
            place = f"{self.slot} on {self._address.host} to {peer} on {found.host}"
            self._fail(next(iter(self._tasks)), LinkBroken(f"the link from {place} broke: {text}"), None)

    def _on_message(self, packet: Packet) -> None:
        message = decode_to_slot(packet.payload)
        match message:
            case Deploy():
                self._deploy(message)
            case Run():
                self._run(message)
            case CancelTasks():
                if message.epoch >= self._epoch:
                    self._drop_tasks(message.tasks or None)
                self._tell(Cancelled(slot=self.slot, epoch=message.epoch, tasks=message.tasks))
            case PeerGone():
                self._peers.forget(message.slot)
            case TriggerCheckpoint():
                barrier = Barrier(checkpoint=message.checkpoint, timestamp=message.timestamp, options=message.options)
                self._with_task(message.task, message.epoch, lambda t: t.trigger(barrier, self._now))
            case NotifyComplete():
                self._copies.completed(message.checkpoint)
                completed = CompletionNotified(checkpoint=message.checkpoint, subsumed=message.subsumed)
                self._with_task(message.task, message.epoch, lambda t: t.notify(completed, self._now))
            case NotifyAborted():
                self._copies.aborted(message.checkpoint)
                aborted = AbortNotified(checkpoint=message.checkpoint, latest_completed=message.latest_completed)
                self._with_task(message.task, message.epoch, lambda t: t.notify(aborted, self._now))
            case OperatorEvent():
                self._take_event(message)
            case Leave():
                self._tell(Leaving(slot=self.slot))
                self._leave(None)
            case _:
                assert_never(message)

    def _take_event(self, message: OperatorEvent) -> None:
        task, epoch = message.task, message.epoch
        found = self._tasks.get(task)
        is_alive = epoch == self._attempts.of(task) and found is not None and found.is_alive
        if is_alive:
            self._with_task(task, epoch, lambda t: t.handle_event(message.operator, message.event))
        # A task that failed over the event does not have it.
        delivered = is_alive and task in self._tasks
        self._tell(OperatorEventTaken(epoch=epoch, task=task, number=message.number, delivered=delivered))

    def _with_task(self, task: TaskId, epoch: Epoch, call: Callable[[Task], None]) -> None:
        found = self._tasks.get(task)
        if found is not None and epoch == self._attempts.of(task):
            self._guard(found, call, found)

    def _leave(self, error: str | None) -> None:
        self._drop_tasks()
        self.left = True
        self.error = error

    # --- attempts ------------------------------------------------------------------------

    def _deploy(self, message: Deploy) -> None:
        if message.epoch <= max(self._epoch, self._attempts.newest):
            return
        if message.plan:
            self._drop_tasks()
            self._epoch = message.attempt or message.epoch
        try:
            plan = self._plan_for(message)
            if message.peers:
                self._peers.connect(message.peers, plan, self._epoch)
            restores = {task: restore_of(message, task) for task in message.tasks}
            tasks = self._build(plan, message, restores)
        except Exception as error:  # noqa: BLE001  # a peer out of reach, a program that cannot be unpickled or built
            self._drop_tasks()
            self._tell_failure(message.tasks[0], error, epoch=message.epoch, vertex="deployment", whole=True)
            return
        epoch = message.epoch
        channels = ChannelReader(plan, self._state_reader(), self._codecs)

        def load() -> None:
            for task in tasks:
                task.load(restores[task.task], channels)

        def loaded(outcome: Outcome) -> None:
            if any(self._tasks.get(task.task) is not task for task in tasks):
                return
            if outcome.error is not None:
                self.failed(tasks[0].task, outcome.error)
                return
            for task in tasks:
                self._guard(task, task.open)
            if all(self._tasks.get(task.task) is task for task in tasks):
                self._tell(Ready(slot=self.slot, epoch=epoch))

        self._ports.background.submit(load, loaded)

    def _state_reader(self) -> SnapshotReader:
        return SnapshotReader(Anywhere(self._ports.store), self._copies)

    def _new_channel_files(self) -> ChannelFiles:
        return ChannelFiles(
            store=self._ports.store,
            copies=self._copies,
            background=self._ports.background,
            codecs=self._codecs,
            path_of=lambda checkpoint: layout.channel_state_file(self._folder, checkpoint, self.slot.number),
            inline_threshold=self._settings.checkpoint.inline_threshold_bytes,
        )

    def _plan_for(self, message: Deploy) -> Plan:
        if message.plan:
            plan: Plan = cloudpickle.loads(message.plan)
            self._plan = plan
            self._attempts = Attempts(regions_of(checkpoint_graph(plan)))
            self._codecs = {number: BatchCodec(schema) for number, schema in edge_schemas(plan).items()}
            self._channel_files = self._new_channel_files()
        if self._plan is None:
            raise InvariantError(f"{self.slot} is to restart tasks of a job that it does not run")
        return self._plan

    def _build(self, plan: Plan, message: Deploy, restores: dict[TaskId, TaskRestore]) -> list[Task]:
        deployment = Deployment(
            job=message.job,
            epoch=message.epoch,
            plan=plan,
            settings=self._settings,
            restored=message.restored_checkpoint,
            first_checkpoint=message.first_checkpoint,
            saved=message.saved,
            host=self,
            reader=self._state_reader(),
            deliver=self._deliver,
            grant=self._grant,
        )
        built = [build_task(task, restore, deployment) for task, restore in restores.items()]
        for task in built:
            inputs, outputs = [channel.key for channel in task.gate.channels], tuple(task.outputs.channels)
            self._tasks[task.task] = task
            self._attempts.begin(task.task, message.epoch, inputs, outputs)
            self._readers.update(dict.fromkeys(inputs, task))
            self._writers.update(dict.fromkeys(outputs, task))
        # In the order of the plan, whoever was restarted.
        self._tasks = {task: self._tasks[task] for task in plan.tasks if task in self._tasks}
        return built

    def _run(self, message: Run) -> None:
        for task in list(self._tasks.values()):
            if self._attempts.of(task.task) == message.epoch:
                self._guard(task, task.run, self._now)

    def _drop_tasks(self, names: Sequence[TaskId] | None = None) -> None:
        """Drop tasks: those named, or all."""
        dropped = [task for task in self._tasks.values() if names is None or task.task in names]
        for task in dropped:
            del self._tasks[task.task]
        self._readers = {key: task for key, task in self._readers.items() if task.task in self._tasks}
        self._writers = {key: task for key, task in self._writers.items() if task.task in self._tasks}
        for task in dropped:
            task.stop(self._now)

    # --- channels ------------------------------------------------------------------------

    def _deliver(self, key: ChannelKey, item: Item, cost: int) -> None:
        """Send an item to the receiving end of its channel: to ourselves by a queue, to others by their link."""
        if key.downstream == self._peers.place:
            self._deliver_here(key, item, cost)
            return
        channel = Channel(*key)
        peer = self._peers.at(key.downstream)
        payload: Frame
        if isinstance(item, msgspec.Struct):
            kind, payload, cost = Kind.ELEMENT, encode_element(item), 0
        else:
            kind, payload = Kind.BATCH, self._codecs[key.edge].encode(item)
        attempt = self._attempts.of_channel(key) if self._attempts.newest > self._epoch else NO_EPOCH
        self._links.send(peer, kind, payload, epoch=self._epoch, channel=channel, cost=cost, attempt=attempt)

    def _deliver_here(self, key: ChannelKey, item: Item, cost: int) -> None:
        reader = self._readers.get(key)
        if reader is not None:
            reader.gate.push(key, item, cost)

    def _grant(self, key: ChannelKey, bytes_granted: int) -> None:
        """Send credit to the sending end of a channel."""
        if key.upstream == self._peers.place:
            self._grant_here(key, bytes_granted)
            return
        epoch = self._attempts.of_channel(key)
        credit = Credit(
            epoch=epoch, edge=key.edge, upstream=key.upstream, downstream=key.downstream, bytes_granted=bytes_granted
        )
        peer = self._peers.at(key.upstream)
        self._links.send(peer, Kind.CREDIT, encode_message(credit), epoch=self._epoch)

    def _grant_here(self, key: ChannelKey, bytes_granted: int) -> None:
        writer = self._writers.get(key)
        if writer is not None:
            writer.outputs.grant(key, bytes_granted)
            self._guard(writer, writer.outputs.flush_channel, key)
