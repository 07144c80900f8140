"""Which barrier handler a task gets. The job's checkpoint settings decide."""

from __future__ import annotations

from typing import Protocol

from penstock.core.barrier.aligned import AlignedHandler
from penstock.core.barrier.alternating import AlternatingHandler
from penstock.core.barrier.events import HandlerEffect, HandlerEvent
from penstock.core.barrier.tracker import BarrierTracker
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.settings import CheckpointSettings, Mode


class BarrierHandler(Protocol):
    """Decides, from the barriers on a task's input channels, when the task takes its snapshot."""

    def handle(self, event: HandlerEvent, now: Instant) -> list[HandlerEffect]:
        """Take one event in and return the effects to perform. `now` never goes back."""
        ...

    def next_deadline(self) -> Instant | None:
        """The latest time at which `Ticked` must be fed in; None if the handler waits for no time, only for events."""
        ...

    def validate(self) -> None:
        """Raise `InvariantError` if the machine's own state contradicts itself."""
        ...

    @property
    def pending(self) -> CheckpointId | None:
        """The checkpoint whose barriers are being collected; the newest, if there are several such checkpoints; None if
        there is no such checkpoint."""
        ...


def make_handler(settings: CheckpointSettings | None, *, channels: int) -> BarrierHandler:
    """The handler of a task with `channels` input channels. Settings are None for a job that never takes a checkpoint.

    A job without an interval still takes checkpoints, on request and at its end. The job's mode holds for these
    checkpoints, too.
    """
    if settings is None:
        return BarrierTracker(channels=channels, after_tasks_finish=True)
    if problems := settings.problems():
        raise InvariantError(f"a job was built with wrong settings: {'; '.join(problems)}")
    after_tasks_finish = settings.after_tasks_finish
    if settings.mode is Mode.AT_LEAST_ONCE:
        return BarrierTracker(channels=channels, after_tasks_finish=after_tasks_finish)
    if settings.unaligned:
        return AlternatingHandler(channels=channels, after_tasks_finish=after_tasks_finish)
    return AlignedHandler(channels=channels, after_tasks_finish=after_tasks_finish)
