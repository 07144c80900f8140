"""The event time of each watermark group: the least event time of the readers of the group.

Rules of this file
    * A reader that has ended, is idle or has no splits holds nobody back.
    * Nobody is answered before every reader has begun or holds nobody back. Later, the event time of the group does not
      rise while a reader has not begun. In both cases the reader may turn out to be the one that is furthest behind.
    * The event time of a group may fall: a split that is further behind may begin, and a reader that was restarted goes
      back. The other readers wait then.
    * A reader that begins is answered at once, since the reader waits for the answer.

A rise is told to all readers at once if it is a good part of the drift, otherwise once in an interval. What an earlier
attempt of a task tells is refused by its epoch.

    begin of an attempt ──► every reader has not begun ──► all have, or hold nobody back: the first answer
    region restarts     ──► its readers have not begun; the other readers keep their times
"""

from __future__ import annotations

from typing import assert_never

from penstock.core.alignment.events import GroupEvent, Member, MembersBegan, MembersStopped, TellGroupTime, TimeTold
from penstock.core.alignment.times import NOT_BEGUN, LeastTime
from penstock.core.effects import Ticked
from penstock.core.ids import Epoch, Instant, TaskId

ANSWERED_PARTS = 8
"""A rise of a group is told at once when it is this part of the smallest drift of the group."""


class WatermarkGroups:
    """All watermark groups of a job."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def handle(self, event: GroupEvent, now: Instant) -> list[TellGroupTime]:
        """Take one event in."""
        match event:
            case MembersBegan():
                if not event.others_go_on:
                    self._groups = {}
                for member in event.members:
                    self._groups.setdefault(member.group, _Group()).begin(member, event.epoch)
                return []
            case MembersStopped():
                self._groups = {}
                return []
            case TimeTold():
                found = (group for group in self._groups.values() if group.has(event.task, event.epoch))
                return [tell for group in found for tell in group.heard(event.task, event.time_us, now)]
            case Ticked():
                return [tell for group in self._groups.values() for tell in group.tick(now)]
            case _:
                assert_never(event)

    def next_deadline(self) -> Instant | None:
        """When a small rise is told at the latest; None if every reader knows how far its group has come."""
        times = (group.deadline for group in self._groups.values())
        return min((time for time in times if time is not None), default=None)

    def validate(self) -> None:
        """Nothing here can contradict itself."""


class _Group:
    """One group. `_time_us` is known when every reader has begun once, or holds nobody back."""

    def __init__(self) -> None:
        self._members: dict[TaskId, tuple[Member, Epoch]] = {}
        self._times: dict[TaskId, LeastTime] = {}
        self._time_us: LeastTime = NOT_BEGUN
        self._told: LeastTime = NOT_BEGUN
        self._told_at = Instant(0)

    def begin(self, member: Member, epoch: Epoch) -> None:
        """A reader is deployed."""
        self._members[member.task] = (member, epoch)
        self._times[member.task] = NOT_BEGUN

    def has(self, task: TaskId, epoch: Epoch) -> bool:
        """Whether the task is a reader of this group in this epoch."""
        return task in self._members and self._members[task][1] == epoch

    def heard(self, task: TaskId, time_us: LeastTime, now: Instant) -> list[TellGroupTime]:
        """A reader says how far it has come."""
        begins = self._times[task] == NOT_BEGUN
        self._times[task] = time_us
        self._time_us = self._least()
        if self._time_us == NOT_BEGUN:
            return []
        if self._is_urgent():
            return self._tell_all(now)
        return [self._told_to(task)] if begins else []

    def tick(self, now: Instant) -> list[TellGroupTime]:
        """Tell a small rise, if it is time."""
        return [] if self.deadline is None or now < self.deadline else self._tell_all(now)

    @property
    def deadline(self) -> Instant | None:
        """When the readers must be told at the latest."""
        if self._time_us in (NOT_BEGUN, self._told):
            return None
        return Instant(self._told_at + min(member.interval_ms for member, _ in self._members.values()))

    def _least(self) -> LeastTime:
        counting = [time for time in self._times.values() if time is not None]
        begun = [time for time in counting if time != NOT_BEGUN]
        if not counting:
            return None
        if len(begun) == len(counting):
            return min(begun)
        known = self._time_us
        if known == NOT_BEGUN or not begun:
            return known
        return min(begun) if known is None else min(known, *begun)

    def _is_urgent(self) -> bool:
        time_us, told = self._time_us, self._told
        if time_us == told:
            return False
        if time_us is None or told is None or told == NOT_BEGUN or time_us < told:
            return True
        return (time_us - told) * ANSWERED_PARTS >= min(member.drift_us for member, _ in self._members.values())

    def _tell_all(self, now: Instant) -> list[TellGroupTime]:
        self._told, self._told_at = self._time_us, now
        return [self._told_to(task) for task in self._members]

    def _told_to(self, task: TaskId) -> TellGroupTime:
        member, epoch = self._members[task]
        return TellGroupTime(member=member, epoch=epoch, time_us=self._time_us)
