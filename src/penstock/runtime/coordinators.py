"""Operator coordinators: the parts of sources and sinks that run on the driver, beside the master.

The checkpoint coordinator says when each takes its snapshot, and its gateways keep what they say on the right side of
the barriers (`core.coordinator.gateway`). This file performs that, over all coordinators of a job; what one of them
does is in `runtime.enumeration` and `runtime.commits`.

    start ──► run ──► snapshot, completed, …  ──► stop          once per attempt
    leave ──► end                                               once per job: connectors let go of what they have

Whatever blocks runs in the coordinator's own background. What comes back from an attempt that has stopped is dropped.

Before each piece of such work the driver's hold on the job is looked at, in the background too. If another driver has
the job, the work is not done, and the master is told. If that cannot be found out, it is asked again later: nothing is
done in doubt, and no attempt fails because of it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from penstock.api.hold import ASK_AGAIN_MS, Hold, HoldUnknown
from penstock.core.coordinator.effects import (
    SendOperatorEvent,
    SnapshotOperatorCoordinator,
    TellCheckpointAborted,
    TellCheckpointComplete,
)
from penstock.core.coordinator.events import (
    CoordinatorEvent,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
)
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId, TaskId
from penstock.core.job.events import FailureCause
from penstock.core.messages import OperatorEvent, OperatorEventTaken, SplitsRead, ToSlot
from penstock.core.recovery.assign import Assignment
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.ports import Background, Outcome
from penstock.runtime.hooks import MasterHooks
from penstock.runtime.operators.user_code import driver_cause, one_line
from penstock.runtime.saved_results import Saved, parts_of

CoordinatorWork = SnapshotOperatorCoordinator | SendOperatorEvent | TellCheckpointComplete | TellCheckpointAborted

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CoordinatorHost:
    """What a coordinator may use."""

    name: str
    """What people call the operator."""
    job: str = ""
    background: Background
    say: Callable[[int, bytes], None]
    """(subtask, event): have it sent, when no barrier is in between."""
    fail: Callable[[FailureCause], None]
    hold: Hold = field(default_factory=Hold)
    taken_over: Callable[[], None] = lambda: None
    """Called when it turns out that another driver has the job."""


class OperatorCoordinator(ABC):
    """The coordinator of one operator. All calls come from the master's loop, and never block."""

    parts_name: str
    """The name of the operator's list state that it wants to see of every checkpoint."""
    outlives_slots: bool = False
    """Whether it ends only when no subtask can do anything any more, and every checkpoint is decided."""

    def __init__(self, host: CoordinatorHost) -> None:
        self.host = host
        self.has_ended = False
        self.parallelism = 0
        self.epoch = 0
        self.saved: Sequence[bytes] = ()
        self._attempt = 0
        self._running = False
        self._doubtful: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        """Work that was not done because nobody could say who has the job, and what was asked for since."""
        self._ask_at: Instant | None = None

    @property
    def running(self) -> bool:
        """Whether the tasks of an attempt run."""
        return self._running

    def start(
        self,
        restored: bytes | None,
        parts: Sequence[bytes],
        *,
        parallelism: int,
        epoch: int = 1,
        saved: Sequence[bytes] = (),
    ) -> None:
        """An attempt is deployed, from the state and the operator's parts of a checkpoint, or from nothing; `saved` are
        parts that savepoints have, of earlier attempts."""
        self._attempt += 1
        self.parallelism = parallelism
        self.epoch = epoch
        self.saved = saved
        self.reset(restored, parts)

    @abstractmethod
    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """Take up the state of a checkpoint, or begin at the beginning."""

    def run(self) -> None:
        """The tasks of the attempt run: events reach them from here on."""
        self._running = True

    def stop(self) -> None:
        """The attempt is over."""
        self._attempt += 1
        self._running = False
        self._doubtful, self._ask_at = [], None

    @abstractmethod
    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """The state, as of now."""

    @abstractmethod
    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:
        """`checkpoint`, in which the subtasks have these parts, is durable."""

    def saved_with(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: B027
        """A savepoint is complete in which the subtasks have these parts; the job goes on, and is told of them again
        with the next checkpoint."""

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None:
        """`checkpoint` will never complete."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Runs off the loop, may block."""

    def splits_read(self, subtask: int, count: int) -> None:  # noqa: B027  # only an enumerator's part needs it
        """A subtask has read so many splits to their ends since the attempt began."""

    def turn(self, now: Instant) -> None:  # noqa: B027  # not all of them do something by themselves
        """Time has passed."""

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        return None

    def tell_all(self, event: bytes) -> None:
        """Say the same to every subtask."""
        for subtask in range(self.parallelism):
            self.host.say(subtask, event)

    def off_loop(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run what may block; `done` gets its value, on the loop, if the attempt still goes on; an error fails the
        attempt. If the attempt is over before its turn comes, or another driver has the job, it is not run at all."""
        if self._doubtful:
            self._doubtful.append((work, done))
            return
        attempt = self._attempt

        def guarded() -> Any:
            if self._attempt != attempt:
                return None
            self.host.hold.check()
            return work()

        def ended(outcome: Outcome) -> None:
            if self.host.hold.is_lost:
                if not self.host.hold.has_let_go:
                    self.host.taken_over()
            elif self._attempt != attempt:
                return
            elif isinstance(outcome.error, HoldUnknown):
                if not self._doubtful:
                    extra = {"operator": self.host.name, "error": str(outcome.error)}
                    log.warning("who has the job cannot be found out now; the driver's part waits", extra=extra)
                self._doubtful.append((work, done))
            elif outcome.error is not None:
                self.host.fail(driver_cause(self.host.name, outcome.error))
            else:
                done(outcome.value)

        self.host.background.submit(guarded, ended)

    def ask_again(self, now: Instant) -> None:
        """Do, in its order, what could not be done in doubt, when it is time to."""
        if not self._doubtful:
            return
        if self._ask_at is None:
            self._ask_at = Instant(now + ASK_AGAIN_MS)
        elif now >= self._ask_at:
            waiting, self._doubtful, self._ask_at = self._doubtful, [], None
            for work, done in waiting:
                self.off_loop(work, done)

    @property
    def asks_at(self) -> Instant | None:
        """When `ask_again` must be called at the latest."""
        return self._ask_at

    def end(self) -> None:
        """The job has ended: close, behind everything that is under way; `has_ended` says when it is done."""
        self.stop()

        def ended(outcome: Outcome) -> None:
            self.has_ended = True
            # What another driver has is its to close.
            if outcome.error is not None and not self.host.hold.is_lost:
                extra = {"operator": self.host.name, "error": one_line(outcome.error)}
                log.warning("a connector could not be closed", extra=extra)

        self.host.background.submit(self.close, ended)


class OperatorCoordinators:
    """All operator coordinators of a job."""

    def __init__(
        self,
        *,
        feed: Callable[[CoordinatorEvent], None],
        send: Callable[[TaskId, ToSlot], None],
        hooks: MasterHooks,
    ) -> None:
        self.hooks = hooks
        """Those that belong to no operator, and have a part in checkpoints all the same."""
        self._feed = feed
        self.send = send
        """Sends a message to the slot of a task."""
        self._known: dict[OperatorId, OperatorCoordinator] = {}
        self._parts: dict[CheckpointId, dict[OperatorId, tuple[bytes, ...]]] = {}
        """Of checkpoints whose metadata is being written."""
        self._is_leaving = False
        self._is_ending = False

    def let_go(self) -> None:
        """Another driver has the job, or may take it over: connectors commit nothing more and delete nothing, and let
        go of what they have."""
        self.hooks.let_go()
        for coordinator in self._known.values():
            coordinator.host.hold.let_go()

    def add(self, operator: OperatorId, coordinator: OperatorCoordinator) -> None:
        """Take one more, before the job starts."""
        self._known[operator] = coordinator

    def say(self, operator: OperatorId, subtask: int, event: bytes) -> None:
        """Have an event sent to a subtask."""
        self._feed(OperatorEventSubmitted(operator=operator, subtask=subtask, event=event))

    def start(self, assignment: Assignment, epoch: Epoch, saved: Saved, *, parallelism: int) -> None:
        """An attempt is deployed; `saved` is what savepoints of earlier ones name."""
        for operator, coordinator in self._known.items():
            parts: list[bytes] = []
            for restore in assignment.tasks.values():
                for state in restore.operators.get(operator, ()):
                    parts += state.split_lists.get(coordinator.parts_name, ())
            restored = assignment.coordinators.get(operator)
            kept = saved.get(operator, ())
            coordinator.start(restored, parts, parallelism=parallelism, epoch=epoch, saved=kept)

    def run(self) -> None:
        """All tasks run."""
        for coordinator in self._known.values():
            coordinator.run()

    def stop(self) -> None:
        """The attempt is over. What checkpoints have that are being stored stays known: they may still complete, and
        whoever is told so must not take them for empty."""
        self.hooks.stop()
        for coordinator in self._known.values():
            coordinator.stop()

    def turn(self, now: Instant) -> None:
        """Time has passed, or work has ended."""
        self.hooks.turn(now)
        for coordinator in self._known.values():
            coordinator.host.background.collect()
            if coordinator.running:
                coordinator.turn(now)
                coordinator.ask_again(now)

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        times = [at for c in self._known.values() if c.running for at in (c.next_deadline(), c.asks_at)]
        return min((time for time in (*times, self.hooks.next_deadline()) if time is not None), default=None)

    def leave(self) -> None:
        """The outcome of the job is decided: connectors let go of what the slots do not need any more."""
        if not self._is_leaving:
            self._is_leaving = True
            for coordinator in self._known.values():
                if coordinator.outlives_slots:
                    coordinator.stop()
                else:
                    coordinator.end()

    def end(self) -> None:
        """No slot is left, and every checkpoint is decided: all connectors let go of what they have."""
        self.leave()
        if not self._is_ending:
            self._is_ending = True
            self.hooks.end()
            for coordinator in self._known.values():
                if coordinator.outlives_slots:
                    coordinator.end()

    @property
    def have_ended(self) -> bool:
        """Whether `end` is done."""
        return self.hooks.have_ended and all(coordinator.has_ended for coordinator in self._known.values())

    # --- checkpoints ---------------------------------------------------------------------

    def metadata_made(self, metadata: CheckpointMetadata) -> None:
        """All subtasks have acknowledged a checkpoint: their parts are known."""
        if self._known:
            self._parts[metadata.checkpoint] = {o: parts_of(metadata, o, c.parts_name) for o, c in self._known.items()}

    def savepoint_completed(self, checkpoint: CheckpointId) -> None:
        """A savepoint that the job goes on from is complete."""
        for operator, coordinator in self._known.items():
            coordinator.saved_with(checkpoint, self._parts.get(checkpoint, {}).get(operator, ()))

    def perform(self, effect: CoordinatorWork) -> None:
        """Do what the checkpoint coordinator says."""
        match effect:
            case SnapshotOperatorCoordinator():
                state = self._known[effect.operator].snapshot(effect.checkpoint)
                self._feed(
                    OperatorCoordinatorSnapshotted(operator=effect.operator, checkpoint=effect.checkpoint, state=state)
                )
            case SendOperatorEvent():
                message = OperatorEvent(
                    epoch=effect.epoch,
                    task=effect.task,
                    operator=effect.operator,
                    number=effect.number,
                    event=effect.event,
                )
                self.send(effect.task, message)
            case TellCheckpointComplete():
                parts = self._parts.get(effect.checkpoint, {}).get(effect.operator, ())
                self._known[effect.operator].completed(effect.checkpoint, parts)
                # Older ones are subsumed, and will not complete any more.
                self._forget(effect.operator, [c for c in self._parts if c <= effect.checkpoint])
            case TellCheckpointAborted():
                self._known[effect.operator].aborted(effect.checkpoint)
                # Older ones may still be being stored.
                self._forget(effect.operator, [c for c in self._parts if c == effect.checkpoint])
            case _:
                assert_never(effect)

    def taken(self, message: OperatorEventTaken) -> None:
        """A slot says what became of an event."""
        if message.delivered:
            self._feed(OperatorEventDelivered(number=message.number))
        else:
            self._feed(OperatorEventLost(number=message.number, task_not_running=True))

    def splits_read(self, message: SplitsRead) -> None:
        """A slot says how far a source has come."""
        coordinator = self._known.get(message.operator)
        if coordinator is not None and coordinator.running:
            coordinator.splits_read(message.task.subtask, message.count)

    def _forget(self, operator: OperatorId, checkpoints: Sequence[CheckpointId]) -> None:
        for known in checkpoints:
            self._parts[known].pop(operator, None)
            if not self._parts[known]:
                del self._parts[known]
