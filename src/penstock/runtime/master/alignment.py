"""The watermark groups of a job, on the master: feeds their machine, and tells the readers what the machine decides."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.api.aligned_sources import aligned_steps
from penstock.core.alignment.events import GroupEvent, Member, MembersBegan, MembersStopped, TimeTold
from penstock.core.alignment.groups import WatermarkGroups
from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, Instant, TaskId, VertexId
from penstock.core.messages import EventTimeReached, GroupTime, ToSlot
from penstock.plan.graph import Plan


class GroupTimes:
    """How far the watermark groups of a job have come. Has nothing to do in a job without aligned sources."""

    def __init__(self, send: Callable[[TaskId, ToSlot], None]) -> None:
        """`send` sends a message to the slot of a task."""
        self._send = send
        self._machine = WatermarkGroups()
        self._now = Instant(0)

    def start(self, plan: Plan, epoch: Epoch, tasks: Collection[TaskId] | None, *, ended: Collection[VertexId]) -> None:
        """These tasks are deployed; None: all tasks of the plan. Vertices that had `ended` hold nobody back."""
        members = tuple(m for m in _members_of(plan, ended) if tasks is None or m.task in tasks)
        self._feed(MembersBegan(epoch=epoch, members=members, others_go_on=tasks is not None))

    def heard(self, message: EventTimeReached) -> None:
        """A reader says how far it has come."""
        self._feed(TimeTold(task=message.task, epoch=message.epoch, time_us=message.time_us))

    def data_ended(self, task: TaskId, epoch: Epoch) -> None:
        """The data of a task has ended: the task holds nobody back."""
        self._feed(TimeTold(task=task, epoch=epoch, time_us=None))

    def stop(self) -> None:
        """The attempt is over."""
        self._feed(MembersStopped())

    def turn(self, now: Instant) -> None:
        """Time has passed."""
        self._now = now
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= now:
            self._feed(Ticked())

    def next_deadline(self) -> Instant | None:
        """When `turn` must be called at the latest."""
        return self._machine.next_deadline()

    def _feed(self, event: GroupEvent) -> None:
        for effect in self._machine.handle(event, self._now):
            task = effect.member.task
            self._send(task, GroupTime(epoch=effect.epoch, task=task, time_us=effect.time_us))


def _members_of(plan: Plan, ended: Collection[VertexId]) -> list[Member]:
    """The readers of all watermark groups, those of vertices that have ended left out."""
    return [
        Member(task=task, group=alignment.group, drift_us=alignment.drift_us, interval_ms=alignment.interval_ms)
        for vertex in plan.vertices
        if vertex.vertex not in ended
        for _, alignment in aligned_steps(vertex)
        for task in vertex.tasks
    ]
