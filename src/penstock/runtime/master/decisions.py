"""The machines that decide about a running job, and the line in which events wait for them.

To perform an effect of a machine may bring about another event, for the same machine or for the other machine. Such an
event waits until all effects of the machine have been performed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import CheckpointCompleted, CoordinatorEffect
from penstock.core.coordinator.events import CoordinatorEvent
from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, Instant
from penstock.core.job.events import AttemptFailed, CheckpointDone, FailureCause, JobEffect, JobEvent, StopChanged
from penstock.core.job.lifecycle import JobLifecycle


class _ForLifecycle(NamedTuple):
    event: JobEvent


class _ForCoordinator(NamedTuple):
    event: CoordinatorEvent


class Decisions:
    """Feeds events to the lifecycle of a job and to its checkpoint coordinator, and has their effects performed."""

    def __init__(
        self, lifecycle: JobLifecycle, coordinator: CheckpointCoordinator, *, draws: tuple[float, ...], now: Instant
    ) -> None:
        self.lifecycle = lifecycle
        self.coordinator = coordinator
        self.now = now
        """The time of the turn."""
        self._draws = draws
        self._line: deque[_ForLifecycle | _ForCoordinator] = deque()
        self._is_draining = False
        self._perform_job: Callable[[JobEffect], None]
        self._perform_checkpoints: Callable[[list[CoordinatorEffect]], None]

    def perform_with(
        self, job: Callable[[JobEffect], None], checkpoints: Callable[[list[CoordinatorEffect]], None]
    ) -> None:
        """Set who performs the effects of the lifecycle, and who performs the effects of the coordinator. Called once,
        before the first event."""
        self._perform_job = job
        self._perform_checkpoints = checkpoints

    def draw_of(self, epoch: Epoch) -> float:
        """The number in [0, 1) that was drawn for an attempt."""
        return self._draws[epoch % len(self._draws)]

    def feed_job(self, event: JobEvent) -> None:
        """Feed an event to the lifecycle."""
        self._line.append(_ForLifecycle(event))
        self._drain()

    def feed_coordinator(self, event: CoordinatorEvent) -> None:
        """Feed an event to the checkpoint coordinator."""
        self._line.append(_ForCoordinator(event))
        self._drain()

    def fail_with(self, cause: FailureCause) -> None:
        """The running attempt has failed as a whole."""
        self.feed_job(AttemptFailed(epoch=self.lifecycle.epoch, cause=cause))

    def tick(self) -> None:
        """Feed `Ticked` to each machine whose deadline has come."""
        if (at := self.lifecycle.next_deadline()) is not None and at <= self.now:
            self.feed_job(Ticked())
        if (at := self.coordinator.next_deadline()) is not None and at <= self.now:
            self.feed_coordinator(Ticked())

    def next_deadline(self) -> Instant | None:
        """When `tick` must be called at the latest."""
        times = (self.lifecycle.next_deadline(), self.coordinator.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self.lifecycle.validate()
        self.coordinator.validate()

    def _drain(self) -> None:
        """Feed the waiting events one by one. All effects of an event are performed before the next event is fed."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._line:
                match self._line.popleft():
                    case _ForLifecycle(event):
                        for effect in self.lifecycle.handle(event, self.now):
                            self._perform_job(effect)
                    case _ForCoordinator(event):
                        self._coordinate(event)
        finally:
            self._is_draining = False

    def _coordinate(self, event: CoordinatorEvent) -> None:
        was_stopping = self.coordinator.is_stopping
        effects = self.coordinator.handle(event, self.now)
        self._perform_checkpoints(effects)
        if any(isinstance(effect, CheckpointCompleted) for effect in effects):
            self._line.appendleft(_ForLifecycle(CheckpointDone()))
        if (is_stopping := self.coordinator.is_stopping) != was_stopping:
            # The lifecycle must know of the stop before it decides about any other event that waits.
            self._line.appendleft(_ForLifecycle(StopChanged(is_under_way=is_stopping)))
