"""The driver of a slot: one loop that lets the slot's tasks make steps and exchanges messages with the master and with
other slots.

Life of a slot: the slot registers with the master. On `Deploy` the slot builds tasks and answers `Ready`. On `Run` the
tasks begin. On `CancelTasks` the slot drops tasks and waits for the next `Deploy`. On `Leave` the slot ends. A slot
that loses its link to the master ends by itself, because the master may have replaced the slot.

    master     the link to the master, and whether the master is silent          master_link.py
    tasks      the tasks of this slot, and the attempt of each task              tasks.py
    peers      the other slots with which this slot shares a channel             peers.py
    exchange   batches, elements and credit of the channels                      exchange.py
    host       what the tasks ask of the slot                                    task_host.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import assert_never

from penstock.core.elements import Barrier
from penstock.core.errors import LinkBroken, fault_of
from penstock.core.ids import Epoch, Instant, JobId, SlotId, TaskId
from penstock.core.messages import (
    Cancelled,
    CancelTasks,
    Decline,
    Deploy,
    EndData,
    GroupTime,
    Heartbeat,
    Leave,
    Leaving,
    LetEnd,
    NotifyAborted,
    NotifyComplete,
    OperatorEvent,
    OperatorEventTaken,
    PeerAlive,
    PeerGone,
    Ready,
    Run,
    TaskFailed,
    TaskRestore,
    ToMaster,
    TriggerCheckpoint,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.task.events import AbortNotified, CompletionNotified
from penstock.plan.graph import Plan
from penstock.ports import WorkResult
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.links import Links
from penstock.runtime.master.orders import restore_of
from penstock.runtime.pulse import Pulse, Stuck
from penstock.runtime.slot.deployment import Deployment, build_task
from penstock.runtime.slot.exchange import Exchange
from penstock.runtime.slot.loading import Loading
from penstock.runtime.slot.master_link import MASTER, MasterLink
from penstock.runtime.slot.peers import Peers
from penstock.runtime.slot.ports import SlotPorts
from penstock.runtime.slot.task_host import SlotTaskHost
from penstock.runtime.slot.tasks import SlotTasks
from penstock.runtime.task.chain import StepFailed, describe_failure
from penstock.runtime.task.inflight import ChannelReader
from penstock.runtime.task.subtask import Task
from penstock.settings import JobSettings
from penstock.wire.codec import decode_to_slot
from penstock.wire.frames import Kind, Packet

STEPS_PER_TURN = 64
"""In one turn each task makes at most this many steps."""
TURN_BUDGET_MS = 2.0
"""After this long a turn makes no further steps: the next turn receives messages first."""

log = logging.getLogger(__name__)


class SlotDriver:
    """One slot, from its registration with the master until the slot leaves."""

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
        self._job = job
        self._settings = settings
        self._ports = ports
        self._address = address
        # Longer than the master waits for a slot that hangs: this limit is for two slots that cannot reach each other.
        silence_ms = settings.slot.heartbeat_timeout_ms * 3 // 2
        self._links = Links(
            ports.transport, on_packet=self._on_packet, on_broken=self._on_broken, silence_ms=silence_ms
        )
        self._master = MasterLink(self._links, master_address, settings.slot)
        self._pulse = Pulse(
            self._links,
            stuck_after_ms=settings.slot.stuck_after_ms,
            whereabouts=ports.whereabouts,
            report=self._report_stuck,
        )
        self._loading = Loading(slot, settings.slot, ports.load_whereabouts)
        self._tasks = SlotTasks(slot, ports.clock.precise_ms)
        self._peers = Peers(slot, address, self._links)
        self._exchange = Exchange(slot, links=self._links, peers=self._peers, tasks=self._tasks, guard=self._guard)
        self._host = SlotTaskHost(
            slot,
            job=job,
            settings=settings,
            ports=ports,
            tasks=self._tasks,
            master=self._master,
            failed=self._fail_with_region,
            totals=self._tell_last,
        )

    # --- the driver's contract -----------------------------------------------------------

    def turn(self, now: Instant) -> Instant | None:
        """Take the messages that have arrived and work for a while. Returns when the next turn must begin at the
        latest; None if the slot has left."""
        self._host.time = now
        self._pulse.turned(now)
        if not self._master.has_called_in:
            self._master.call_in(self._address.registration_of(self.slot), now)
        self._links.receive(now)
        self._ports.background.collect()
        if self._ports.calls is not None:
            self._ports.calls.collect()
        if self.left:
            return None
        if self._master.is_silent(now):
            self._leave(f"the slot heard nothing from the master for {self._settings.slot.heartbeat_timeout_ms} ms")
        busy, meter = self._work(), self._tasks.meter
        for task in self._tasks.named():
            self._guard(task, task.tick, now)
            meter.spent(task)
        meter.look(self._tasks.by_id.values())
        deadlines = [self._heartbeat(now), self._links.keep_alive(now)]
        if busy or any(task.wants_step for task in self._tasks.by_id.values()):
            return now
        deadlines += [task.next_deadline() for task in self._tasks.by_id.values()]
        return min((d for d in deadlines if d is not None), default=None)

    def beat(self, now: Instant) -> None:
        """If the loop has not turned for a while, tell the other processes that this process lives, and tell the master
        where the loop is. To be called several times a second, from a thread beside the loop, at any time before
        `close`."""
        self._pulse.beat(now)

    def close(self) -> None:
        """Drop all tasks as if they were cancelled, without a message to the master. The shell closes the ports."""
        self._stop_tasks(self._tasks.named())
        self._host.copies.close()

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        for task in self._tasks.by_id.values():
            task.validate()

    def _work(self) -> bool:
        """Let the tasks make steps, in rounds, until no task has anything to do or the turn has lasted long enough.
        Returns whether a task made a step in the last round."""
        meter, now, max_rows = self._tasks.meter, self._host.time, self._settings.source_batch_rows
        until = meter.begin() + TURN_BUDGET_MS
        did = False
        for _ in range(STEPS_PER_TURN):
            did = False
            # Downstream tasks first: the data in the slot leaves before more data comes in.
            for task in reversed(list(self._tasks.by_id.values())):
                if self._guard(task, task.step, now, max_rows):
                    did = True
                    meter.spent(task)
            if not did or meter.at_ms >= until:
                break
        return did

    def _guard(self, task: Task, call: Callable[..., bool | None], *args: object) -> bool:
        """Call into a task. If the call raises, the task fails with its region. Returns what the call returned, as a
        bool."""
        try:
            return bool(call(*args))
        except BaseException as error:  # noqa: BLE001  # user code and connectors raise anything; the attempt ends
            self._pass_on(error)
            self._fail_with_region(task.task, error)
            return False

    def _pass_on(self, error: BaseException) -> None:
        """Raise an error again that is meant for the process, and not for a task."""
        if isinstance(error, KeyboardInterrupt) and not self._ports.owns_process:
            raise error

    # --- failures ------------------------------------------------------------------------

    def _fail_with_region(self, task: TaskId, error: BaseException) -> None:
        """Drop the failed task and the other tasks of its region in this slot, and tell the master why."""
        self._fail(task, error, self._tasks.attempts.region_of(task))

    def _fail(self, task: TaskId, error: BaseException, region: Sequence[TaskId] | None) -> None:
        """Tell the master why a task failed, and drop the tasks of the region in this slot. None: drop all tasks."""
        if task not in self._tasks.by_id:
            return
        epoch, vertex = self._tasks.attempts.of(task), self._tasks.name_of(task.vertex)
        self._tell_failure(task, error, epoch=epoch, vertex=vertex, whole=region is None)
        self._drop_tasks(region)

    def _tell_failure(self, task: TaskId, error: BaseException, *, epoch: Epoch, vertex: str, whole: bool) -> None:
        operator, line, text, user_code = describe_failure(error, vertex=vertex)
        raised = error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error
        known = {"job": self._job, "task": str(task), "operator": operator, "error": line}
        log.warning("%r of job %s failed in subtask %d: %s", operator, self._job, task.subtask, line, extra=known)
        # The slot may have no other chance: what led to the failure may be among the lines.
        self._hand_on_logs()
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
                fault=fault_of(raised),
            )
        )

    # --- the master ----------------------------------------------------------------------

    def _tell(self, message: ToMaster) -> None:
        self._master.tell(message)

    def _heartbeat(self, now: Instant) -> Instant:
        if self._master.is_heartbeat_due(now):
            self._tell_totals(self._tasks.named())
            if (loading := self._loading.report(now)) is not None:
                self._tell(loading)
            self._hand_on_logs()
        return self._master.next_heartbeat

    def _tell_totals(self, tasks: Sequence[Task]) -> None:
        metrics = {str(task.task): task.metrics() for task in tasks}
        process = self._ports.process()
        self._tell(Heartbeat(slot=self.slot, epoch=self._tasks.epoch, metrics=metrics, process=process))

    def _tell_last(self, tasks: Sequence[Task]) -> None:
        """Tell what tasks have done that end: what they have logged and printed must not be left behind."""
        self._tell_totals(tasks)
        self._hand_on_logs()

    def _report_stuck(self, stuck: Stuck) -> None:
        """Called from the thread beside the loop."""
        self._tell(stuck.told_by(self.slot, self._tasks.epoch))
        self._hand_on_logs()

    def _hand_on_logs(self) -> None:
        logs = self._ports.logs
        while logs is not None and (logged := logs.take(self.slot)) is not None:
            self._tell(logged)

    def _on_packet(self, peer: str, packet: Packet) -> None:
        if self.left:
            return
        header = packet.header
        if peer == MASTER:
            self._master.heard(self._host.time)
            if header.kind is Kind.CONTROL:
                self._on_message(packet)
        elif header.epoch == self._tasks.epoch:
            # Packets of other epochs are fenced. The exchange drops packets for tasks that this slot has dropped and
            # other slots have not dropped yet.
            self._exchange.receive(packet)

    def _on_broken(self, peer: str, text: str) -> None:
        if peer == MASTER:
            self._leave(f"the link to the master broke: {text}")
        elif self._tasks.by_id and (found := self._peers.named(peer)) is not None:
            place = f"{self.slot} on {self._address.host} to {peer} on {found.host}"
            self._fail(next(iter(self._tasks.by_id)), LinkBroken(f"the link from {place} broke: {text}"), None)

    def _on_message(self, packet: Packet) -> None:
        message = decode_to_slot(packet.payload)
        match message:
            case Deploy():
                self._deploy(message)
            case Run():
                self._run(message)
            case CancelTasks():
                if message.epoch >= self._tasks.epoch:
                    self._drop_tasks(message.tasks or None)
                self._tell(Cancelled(slot=self.slot, epoch=message.epoch, tasks=message.tasks))
            case PeerAlive():
                self._links.hear_of(str(message.slot))
            case PeerGone():
                self._peers.forget(message.slot)
            case TriggerCheckpoint():
                self._trigger(message)
            case NotifyComplete():
                self._host.copies.completed(message.checkpoint)
                self._host.channel_files.forget_before(message.checkpoint)
                self._host.leftovers.try_again()
                completed = CompletionNotified(checkpoint=message.checkpoint, subsumed=message.subsumed)
                self._with_task(message.task, message.epoch, lambda t: t.notify(completed, self._host.time))
            case NotifyAborted():
                self._host.copies.aborted(message.checkpoint)
                aborted = AbortNotified(checkpoint=message.checkpoint, latest_completed=message.latest_completed)
                self._with_task(message.task, message.epoch, lambda t: t.notify(aborted, self._host.time))
            case LetEnd():
                self._with_task(message.task, message.epoch, lambda t: t.let_end(self._host.time))
            case OperatorEvent():
                self._take_event(message)
            case GroupTime():
                self._with_task(message.task, message.epoch, lambda t: t.group_time(message.time_us, self._host.time))
            case EndData():
                self._with_task(message.task, message.epoch, lambda t: t.end_data())
            case Leave():
                self._drop_tasks()
                self._hand_on_logs()
                self._tell(Leaving(slot=self.slot))
                self._leave(None)
            case _:
                assert_never(message)

    def _trigger(self, message: TriggerCheckpoint) -> None:
        task, epoch, checkpoint = message.task, message.epoch, message.checkpoint
        if self._tasks.is_alive(task, epoch):
            barrier = Barrier(checkpoint=checkpoint, timestamp=message.timestamp, options=message.options)
            self._with_task(task, epoch, lambda t: t.trigger(barrier, self._host.time))
            return
        # Without this answer the master would wait for the acknowledgement until the checkpoint expires.
        reason, error = CheckpointFailure.UNKNOWN_TASK_NOTIFICATION_FAILED, f"{self.slot} does not run the task"
        self._tell(Decline(job=self._job, epoch=epoch, task=task, checkpoint=checkpoint, reason=reason, error=error))

    def _take_event(self, message: OperatorEvent) -> None:
        task, epoch = message.task, message.epoch
        is_alive = self._tasks.is_alive(task, epoch)
        if is_alive:
            self._with_task(task, epoch, lambda t: t.handle_event(message.operator, message.event))
        # A task that failed while it handled the event does not have the event.
        delivered = is_alive and task in self._tasks.by_id
        self._tell(OperatorEventTaken(epoch=epoch, task=task, number=message.number, delivered=delivered))

    def _with_task(self, task: TaskId, epoch: Epoch, call: Callable[[Task], None]) -> None:
        found = self._tasks.of_epoch(task, epoch)
        if found is not None:
            self._guard(found, call, found)

    def _leave(self, error: str | None) -> None:
        self._drop_tasks()
        self.left = True
        self.error = error

    # --- attempts ------------------------------------------------------------------------

    def _deploy(self, message: Deploy) -> None:
        if message.epoch <= max(self._tasks.epoch, self._tasks.attempts.newest):
            return
        if message.plan:
            self._drop_tasks()
            self._tasks.epoch = message.attempt or message.epoch
        try:
            if message.plan:
                self._tasks.take_plan(message.plan)
                self._host.plan_taken()
            plan = self._tasks.plan
            if message.peers:
                self._peers.connect(message.peers, plan, self._tasks.epoch)
            restores = {task: restore_of(message, task) for task in message.tasks}
            tasks = self._build(plan, message, restores)
        except BaseException as error:  # noqa: BLE001  # a peer out of reach, a program that cannot be unpickled or built
            self._pass_on(error)
            self._drop_tasks()
            self._tell_failure(message.tasks[0], error, epoch=message.epoch, vertex="deployment", whole=True)
            return
        epoch = message.epoch
        channels = ChannelReader(plan, self._host.state_reader(), self._tasks.codecs)

        loading: list[TaskId] = []

        def load() -> None:
            for task in tasks:
                loading.append(task.task)
                task.load(restores[task.task], channels)

        def loaded(outcome: WorkResult) -> None:
            self._loading.end(epoch)
            if not all(self._tasks.has(task) for task in tasks):
                return
            if outcome.error is not None:
                self._fail_with_region(loading[-1], outcome.error)
                return
            for task in tasks:
                self._guard(task, task.open)
            if all(self._tasks.has(task) for task in tasks):
                self._tell(Ready(slot=self.slot, epoch=epoch))

        self._loading.begin(epoch, self._host.time)
        self._ports.background.submit(load, loaded)

    def _build(self, plan: Plan, message: Deploy, restores: dict[TaskId, TaskRestore]) -> list[Task]:
        deployment = Deployment(
            job=message.job,
            epoch=message.epoch,
            plan=plan,
            settings=self._settings,
            restored=message.restored_checkpoint,
            first_checkpoint=message.first_checkpoint,
            saved=message.saved,
            host=self._host,
            reader=self._host.state_reader(),
            deliver=self._exchange.deliver,
            grant=self._exchange.grant,
            data_taken=self._exchange.tell_data_taken,
            make_backend=self._ports.make_backend,
            runs=self._ports.runs,
        )
        built = [build_task(task, restore, deployment) for task, restore in restores.items()]
        self._tasks.add(built, message.epoch)
        return built

    def _run(self, message: Run) -> None:
        # The master sends `Run` when every slot is ready. So every slot has its links, and silence counts from here.
        self._links.all_have_begun()
        for task in self._tasks.named():
            if self._tasks.attempts.of(task.task) == message.epoch:
                self._guard(task, task.run, self._host.time)

    def _drop_tasks(self, names: Sequence[TaskId] | None = None) -> None:
        """Drop the named tasks, or all tasks, and tell the master the totals of the dropped tasks."""
        dropped = self._tasks.named(names)
        if dropped:
            self._tell_totals(dropped)
        self._stop_tasks(dropped)

    def _stop_tasks(self, dropped: list[Task]) -> None:
        self._tasks.remove(dropped)
        for task in dropped:
            task.stop(self._host.time)
