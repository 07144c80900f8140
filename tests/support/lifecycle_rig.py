"""A job's life in tests: its slots and tasks, and events in groups."""

from __future__ import annotations

from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, Instant, SlotId, SlotIndex, TaskId, VertexId
from penstock.core.job.events import JobEffect, JobEvent, SlotCancelled, SlotReady, SlotRegistered
from penstock.core.job.lifecycle import JobLifecycle


def slot(number: int, incarnation: int = 1, attempt: int = 0) -> SlotId:
    return SlotId(SlotIndex(number), incarnation, attempt)


def tasks(count: int) -> tuple[TaskId, ...]:
    """One for each slot."""
    return tuple(TaskId(VertexId("v"), i) for i in range(count))


def feed(job: JobLifecycle, now: int, *events: JobEvent) -> list[JobEffect]:
    """Feed these; all effects. The job must be right after each of them."""
    effects: list[JobEffect] = []
    for event in events:
        effects += job.handle(event, Instant(now))
        job.validate()
    return effects


def tick(job: JobLifecycle, now: int) -> list[JobEffect]:
    """Let time pass; all effects."""
    effects = feed(job, now, Ticked())
    deadline = job.next_deadline()
    assert deadline is None or deadline > now, "a stale deadline would livelock the driver"
    return effects


def up(*slots: SlotId) -> list[JobEvent]:
    return [SlotRegistered(slot=s) for s in slots]


def ready(epoch: int, *slots: SlotId) -> list[JobEvent]:
    return [SlotReady(slot=s, epoch=Epoch(epoch)) for s in slots]


def cancelled(epoch: int, *slots: SlotId) -> list[JobEvent]:
    return [SlotCancelled(slot=s, epoch=Epoch(epoch)) for s in slots]


def kinds(effects: list[JobEffect]) -> list[type]:
    """What they are, without what is in them."""
    return [type(effect) for effect in effects]
