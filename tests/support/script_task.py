"""A task in a script: the real barrier handler, checkpoint machine and life of a task, without operators.

The task does what the machines say and tells each thing that it does in a line of text. Messages lie in the queues of
the script until the script delivers them, and a part of a checkpoint is durable when the script says so. A batch is a
word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from script_words import DataTaken, words_of

from penstock.core.barrier import events as inputs
from penstock.core.barrier.persister import ChannelPersister
from penstock.core.barrier.select import make_handler
from penstock.core.effects import Ticked
from penstock.core.elements import AnyElement, Barrier, CancelMarker, EndOfData, EndOfPartition, Watermark
from penstock.core.ids import ChannelIndex, CheckpointId, Epoch, Instant, JobId, OperatorId, SlotId, SlotIndex, TaskId
from penstock.core.messages import (
    Acknowledge,
    DataEnded,
    Decline,
    LetEnd,
    NotifyAborted,
    NotifyComplete,
    OperatorState,
    StateFile,
    SubtaskState,
    TaskFailed,
    TaskFinished,
    TriggerCheckpoint,
    WantsToEnd,
)
from penstock.core.reasons import CheckpointFailure
from penstock.core.task import events as task_events
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.core.task.data_ends import DataEnds
from penstock.core.task.life import LifeEvent, TaskLife
from penstock.core.task.output import OutputQueue
from penstock.settings import CheckpointSettings

JOB = JobId("job")
Item = str | AnyElement
ToTask = TriggerCheckpoint | NotifyComplete | NotifyAborted | LetEnd


class World(Protocol):
    """What a task needs of the script that it is in."""

    now: Instant

    def say(self, who: object, text: str) -> None:
        """Add a line to what happened."""

    def send(self, sender: object, receiver: object, message: Any) -> None:
        """Put a message at the end of a queue."""

    def queue(self, sender: object, receiver: object) -> OutputQueue[Any]:
        """The queue of a channel."""

    def store(
        self, name: str, done: Callable[[], None], failed: Callable[[str], None], is_ready: Callable[[], bool]
    ) -> None:
        """The script can perform this storage work, or have it fail, from here on."""


@dataclass(slots=True)
class Input:
    """The receiving end of a channel."""

    sender: TaskId
    queue: deque[tuple[Item, int]] = field(default_factory=deque)
    """What has arrived and has not been read, each with its number."""
    arrived: int = 0
    blocked: bool = False
    persister: ChannelPersister = field(default_factory=ChannelPersister)


@dataclass(slots=True)
class Part:
    """A task's part of a checkpoint that is not durable yet."""

    after_data: bool = False
    folder: str = ""
    """Where the path of the part's file begins: in the checkpoint directory, or in the folder of a savepoint."""
    waits_for_input: bool = False
    is_cancelled: bool = False
    saved: list[str] = field(default_factory=list)
    """The batches in flight that belong to the checkpoint."""


class ScriptTask:
    """One attempt of a task."""

    def __init__(
        self,
        task: TaskId,
        world: World,
        *,
        settings: CheckpointSettings,
        epoch: Epoch,
        restored: CheckpointId | None,
        senders: list[TaskId],
        receivers: list[TaskId],
    ) -> None:
        self.task = task
        self.epoch = epoch
        self.is_busy = False
        """Whether the task has no room for the output of further batches, and reads none."""
        self.life = TaskLife()
        self.handler = make_handler(settings, channels=len(senders))
        self.checkpoints = TaskCheckpoints(
            restored=restored, max_concurrent=settings.max_concurrent, after_tasks_finish=settings.after_tasks_finish
        )
        self.parts: dict[CheckpointId, Part] = {}
        self._world = world
        self._inputs = [Input(sender) for sender in senders]
        self._ends = DataEnds(len(senders))
        self._receivers = receivers
        self._untaken = list(receivers)
        """The receivers that have not processed all data of this task."""
        self._overtaken: list[str] = []
        self._output_timeout: tuple[CheckpointId, Instant] | None = None

    # --- what comes in ----------------------------------------------------------------------

    def start(self) -> None:
        """The master lets the task run."""
        self.life.handle(LifeEvent.STARTED)
        self.decide(task_events.TaskStarted())
        self.read()

    def hear(self, message: ToTask) -> None:
        """The master says something."""
        match message:
            case TriggerCheckpoint():
                self._trigger(message)
            case NotifyComplete():
                completed = task_events.CompletionNotified(checkpoint=message.checkpoint, subsumed=message.subsumed)
                self.decide(completed)
            case NotifyAborted():
                latest = message.latest_completed
                self.decide(task_events.AbortNotified(checkpoint=message.checkpoint, latest_completed=latest))
            case LetEnd():
                self.decide(task_events.EndAllowed())
            case _:
                assert_never(message)

    def _trigger(self, message: TriggerCheckpoint) -> None:
        barrier = Barrier(checkpoint=message.checkpoint, timestamp=message.timestamp, options=message.options)
        if self._inputs:
            self.feed(inputs.TriggeredByMaster(barrier=barrier))
            return
        if barrier.options.synchronous and self.life.state.reads:
            self.finish_data(EndOfData(drain=barrier.options.drain, stopped=barrier.options.drain))
        self.decide(task_events.SnapshotDue(barrier=barrier))

    def data_taken(self, receiver: TaskId) -> None:
        """A receiver has processed all data of this task."""
        self._untaken.remove(receiver)
        self._ask_to_end()

    def arrive(self, sender: TaskId, item: Item) -> None:
        """An element or a batch of a channel has arrived."""
        index = next(i for i, channel in enumerate(self._inputs) if channel.sender == sender)
        channel = self._inputs[index]
        channel.arrived += 1
        number = channel.arrived
        overtakes = False
        if isinstance(item, Barrier):
            channel.persister.barrier_arrived(item.checkpoint, number)
            overtakes = item.options.overtakes
        elif isinstance(item, str):
            self._save(channel, item, number)
        if overtakes:
            channel.queue.appendleft((item, number))
        else:
            channel.queue.append((item, number))
        if isinstance(item, Barrier) and item.options.timeoutable and self.life.state.takes_steps:
            self.feed(inputs.BarrierAnnounced(channel=ChannelIndex(index), barrier=item, sequence=number))
        self.read()

    def read(self) -> None:
        """Read all that may be read now. Elements go first, as barriers that have overtaken batches do."""
        while self.life.state.takes_steps and (index := self._readable()) is not None:
            item, _ = self._inputs[index].queue.popleft()
            self._take(ChannelIndex(index), item)

    def _readable(self) -> int | None:
        heads = [(i, c.queue[0][0]) for i, c in enumerate(self._inputs) if c.queue and not c.blocked]
        elements = [i for i, head in heads if isinstance(head, Barrier | CancelMarker | EndOfPartition)]
        others = [] if self.is_busy else [i for i, _ in heads]
        return next(iter(elements + others), None)

    def _take(self, index: ChannelIndex, item: Item) -> None:
        sender = self._inputs[index].sender
        match item:
            case str():
                self._say(f"reads {item} of {sender}")
            case Barrier():
                self.feed(inputs.BarrierReceived(channel=index, barrier=item))
            case CancelMarker():
                self.feed(inputs.CancelReceived(channel=index, checkpoint=item.checkpoint))
            case EndOfPartition():
                self.feed(inputs.ChannelEnded(channel=index))
            case EndOfData():
                end = self._ends.ended(item)
                if end is not None:
                    self.finish_data(end)
                self._world.send(self.task, sender, DataTaken())
            case Watermark():
                raise AssertionError("scripts know no event time")
            case _:
                assert_never(item)

    # --- machines ---------------------------------------------------------------------------

    def feed(self, event: inputs.HandlerEvent) -> None:
        """Tell the barrier handler what came in."""
        for effect in self.handler.handle(event, self._world.now):
            self._perform_input(effect)
        self.handler.validate()

    def decide(self, event: task_events.TaskEvent) -> None:
        """Tell the checkpoint machine what happened."""
        for effect in self.checkpoints.handle(event, self._world.now):
            self._perform(effect)
        self.checkpoints.validate()

    def _perform_input(self, effect: inputs.HandlerEffect) -> None:
        match effect:
            case inputs.BlockChannel():
                self._inputs[effect.channel].blocked = True
                self._say(f"reads nothing more of {self._inputs[effect.channel].sender}")
            case inputs.ResumeChannel():
                if self._inputs[effect.channel].blocked:
                    self._inputs[effect.channel].blocked = False
                    self._say(f"goes on reading {self._inputs[effect.channel].sender}")
            case inputs.PrioritizeBarrier():
                channel = self._inputs[effect.channel]
                found = next((x for x in channel.queue if x[1] == effect.sequence), None)
                if found is not None:
                    channel.queue.remove(found)
                    channel.queue.appendleft(found)
                    self._say(f"takes the barrier of {channel.sender} before the batches that wait")
            case inputs.StartPersisting():
                self._start_saving(effect.checkpoint)
            case inputs.StopPersisting():
                for channel in self._inputs:
                    channel.persister.stop(effect.checkpoint)
                if effect.checkpoint in self.parts:
                    self.parts[effect.checkpoint].waits_for_input = False
            case inputs.TriggerSnapshot():
                self.decide(task_events.SnapshotDue(barrier=effect.barrier, metrics=effect.metrics))
            case inputs.AllBarriersIn():
                self.decide(task_events.InputStateComplete(checkpoint=effect.checkpoint, metrics=effect.metrics))
            case inputs.AbortSnapshot():
                self.decide(task_events.SnapshotImpossible(checkpoint=effect.checkpoint, reason=effect.reason))
            case inputs.CorruptInput():
                self.fail(f"corrupt input: {effect.text}")
            case _:
                assert_never(effect)

    def _perform(self, effect: task_events.TaskEffect) -> None:
        match effect:
            case task_events.PrepareOperators() | task_events.TellBarrierPassed():
                pass
            case task_events.BroadcastBarrier():
                self._overtaken = self._send_barrier(effect.barrier)
            case task_events.BroadcastCancelMarker():
                self._broadcast(CancelMarker(checkpoint=effect.checkpoint))
            case task_events.ArmOutputTimeout():
                timeout_ms = effect.barrier.options.aligned_timeout_ms or 0
                self._output_timeout = effect.barrier.checkpoint, Instant(effect.barrier.timestamp + timeout_ms)
            case task_events.SaveOutput():
                self.parts.setdefault(effect.checkpoint, Part()).saved += self._overtaken
            case task_events.TakeSnapshot():
                self._take_snapshot(effect)
            case task_events.CancelSnapshot():
                part = self.parts.get(effect.checkpoint)
                if part is not None and not part.is_cancelled:
                    part.is_cancelled = True
                    self._say(f"gives up its part of chk-{effect.checkpoint}")
            case task_events.AcknowledgeSnapshot():
                self._tell_master(Acknowledge, checkpoint=effect.checkpoint, state=effect.state, job=JOB)
            case task_events.DeclineSnapshot():
                why = {"reason": effect.reason, "error": effect.error}
                self._tell_master(Decline, checkpoint=effect.checkpoint, job=JOB, **why)
            case task_events.DiscardSnapshot():
                self._say(f"deletes its part of chk-{effect.checkpoint}")
            case task_events.TellCompleted():
                self._say(f"commits up to chk-{effect.checkpoint}")
            case task_events.TellSubsumed():
                self._say(f"forgets up to chk-{effect.checkpoint}")
            case task_events.TellAborted():
                self._say(f"knows that chk-{effect.checkpoint} is aborted")
            case task_events.AskToEnd():
                self.life.handle(LifeEvent.LAST_CHECKPOINT_COMPLETE)
                self._ask_to_end()
            case task_events.EndTask():
                self.life.handle(LifeEvent.LET_GO)
                self._broadcast(EndOfPartition())
                self.life.handle(LifeEvent.ALL_SENT)
                self._tell_master(TaskFinished, slot=self._slot)
            case task_events.GiveUpStop():
                self.fail(f"savepoint chk-{effect.checkpoint}, for which the task had ended its data, was given up")
            case task_events.FailTask():
                self.fail(effect.text)
            case _:
                assert_never(effect)

    # --- the end ----------------------------------------------------------------------------

    def finish_data(self, end: EndOfData) -> None:
        """All data of the task has been seen."""
        self.life.handle(LifeEvent.DATA_SEEN)
        self.life.handle(LifeEvent.OPERATORS_THROUGH)
        self._broadcast(end)
        self.decide(task_events.DataFinished(drained=end.drain))
        if end.drain:
            self._tell_master(DataEnded, slot=self._slot)

    def _ask_to_end(self) -> None:
        if self.life.state.may_ask and not self._untaken:
            self.life.handle(LifeEvent.ASKED)
            self._tell_master(WantsToEnd, slot=self._slot)

    def fail(self, error: str) -> None:
        """The task cannot go on."""
        self._say(f"fails: {error}")
        self.stop()
        self._tell_master(TaskFailed, slot=self._slot, operator=self.task.vertex, error=error)

    def stop(self) -> None:
        """The task is over."""
        self.life.handle(LifeEvent.STOPPED)
        self.decide(task_events.TaskStopped())

    # --- parts of checkpoints ---------------------------------------------------------------

    def _start_saving(self, checkpoint: CheckpointId) -> None:
        if not all(channel.persister.start(checkpoint) for channel in self._inputs):
            for channel in self._inputs:
                channel.persister.stop(checkpoint)
            reason = CheckpointFailure.DECLINED_SUBSUMED
            self.decide(task_events.SnapshotImpossible(checkpoint=checkpoint, reason=reason))
            return
        self.parts[checkpoint] = Part(waits_for_input=True)
        for channel in self._inputs:
            for item, number in channel.queue:
                if isinstance(item, str):
                    self._save(channel, item, number)

    def _save(self, channel: Input, batch: str, number: int) -> None:
        saving = [c for c, part in self.parts.items() if part.waits_for_input and not part.is_cancelled]
        if saving and channel.persister.saves(number):
            self.parts[saving[-1]].saved.append(batch)
            self._say(f"saves {batch} of {channel.sender} with chk-{saving[-1]}")

    def _take_snapshot(self, effect: task_events.TakeSnapshot) -> None:
        checkpoint = effect.barrier.checkpoint
        part = self.parts.setdefault(checkpoint, Part())
        part.after_data = effect.after_data
        part.folder = "" if effect.barrier.options.savepoint else f"chk-{checkpoint}/"
        self._say(f"freezes its part of chk-{checkpoint}{', after its data' if effect.after_data else ''}")
        self.decide(task_events.SnapshotTaken(checkpoint=checkpoint, sync_ms=0))
        self._world.store(
            f"chk-{checkpoint} {self.task}",
            lambda: self._written(checkpoint),
            lambda error: self._write_failed(checkpoint, error),
            lambda: self._is_complete(checkpoint),
        )

    def _is_complete(self, checkpoint: CheckpointId) -> bool:
        """Whether all data in flight that belongs to the part is known, or nobody needs the part."""
        part = self.parts[checkpoint]
        waits_for_output = any(q.waiting == checkpoint for q in self._queues)
        return part.is_cancelled or not (part.waits_for_input or waits_for_output)

    def _written(self, checkpoint: CheckpointId) -> None:
        """The part is durable."""
        part = self.parts.pop(checkpoint)
        if part.saved:
            self._say(f"has saved in flight with chk-{checkpoint}: {' '.join(part.saved)}")
        kept = StateFile(path=f"{part.folder}{self.task}", size=10, checksum=7)
        operator = OperatorState(operator=OperatorId(self.task.vertex), keyed=(kept,))
        state = SubtaskState(operators=(operator,), finished=part.after_data)
        self.decide(task_events.SnapshotWritten(checkpoint=checkpoint, state=state, async_ms=0, checkpointed_bytes=10))

    def _write_failed(self, checkpoint: CheckpointId, error: str) -> None:
        """The part could not be written."""
        del self.parts[checkpoint]
        self.decide(task_events.SnapshotWriteFailed(checkpoint=checkpoint, error=error))

    # --- output -----------------------------------------------------------------------------

    @property
    def _queues(self) -> list[OutputQueue[Any]]:
        return [self._world.queue(self.task, receiver) for receiver in self._receivers]

    def _broadcast(self, element: AnyElement) -> None:
        for receiver in self._receivers:
            self._world.send(self.task, receiver, element)

    def _send_barrier(self, barrier: Barrier) -> list[str]:
        waiting = [queue.add_barrier(barrier) for queue in self._queues]
        for receiver, overtaken in zip(self._receivers, waiting, strict=True):
            past = f", past {' '.join(overtaken)}" if overtaken else ""
            self._world.say(f"{self.task} -> {receiver}", f"{words_of(barrier)}{past}")
        return [batch for overtaken in waiting for batch in overtaken]

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called."""
        waiting = self._output_timeout
        output = waiting[1] if waiting and any(q.waiting == waiting[0] for q in self._queues) else None
        return min((t for t in (self.handler.next_deadline(), output) if t is not None), default=None)

    def tick(self) -> None:
        """Time has passed."""
        deadline = self.handler.next_deadline()
        if deadline is not None and self._world.now >= deadline:
            self.feed(Ticked())
        if self._output_timeout is not None and self._world.now >= self._output_timeout[1]:
            checkpoint, self._output_timeout = self._output_timeout[0], None
            self._time_out(checkpoint)
        self.read()

    def _time_out(self, checkpoint: CheckpointId) -> None:
        part = self.parts.get(checkpoint)
        if part is None or part.is_cancelled:
            return
        for receiver, queue in zip(self._receivers, self._queues, strict=True):
            overtaken = queue.time_out(checkpoint)
            if overtaken is not None:
                part.saved += overtaken
                past = f" past {' '.join(overtaken)}" if overtaken else ""
                self._say(f"takes barrier {checkpoint} to {receiver} forward{past}")

    # --- telling ----------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._world.say(self.task, text)

    @property
    def _slot(self) -> SlotId:
        return SlotId(SlotIndex(self.task.subtask), 1)

    def _tell_master(self, message: type[Any], **fields: Any) -> None:
        self._world.send(self.task, "master", message(task=self.task, epoch=self.epoch, **fields))
