"""What the readers of watermark groups and the master tell their machines, and what the machines want told."""

from __future__ import annotations

import msgspec

from penstock.core.alignment.times import LeastTime
from penstock.core.effects import Effect, Event, Ticked
from penstock.core.ids import Epoch, TaskId

# --- the readers of all groups, on the master ------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A reader of a watermark group: a subtask of a source with an aligned watermark."""

    task: TaskId
    group: str
    drift_us: int
    interval_ms: int


class MembersBegan(Event, frozen=True, kw_only=True):
    """Tasks are deployed: all tasks of an attempt, or the tasks of some regions (`others_go_on`)."""

    epoch: Epoch
    members: tuple[Member, ...]
    others_go_on: bool = False


class TimeTold(Event, frozen=True, kw_only=True):
    """A reader says how far it has come."""

    task: TaskId
    epoch: Epoch
    time_us: LeastTime


class MembersStopped(Event, frozen=True, kw_only=True):
    """The attempt is over."""


GroupEvent = MembersBegan | TimeTold | MembersStopped | Ticked


class TellGroupTime(Effect, frozen=True, kw_only=True):
    """Tell a reader how far its group has come."""

    member: Member
    epoch: Epoch
    time_us: LeastTime


# --- one reader, in its task -----------------------------------------------------------------------------------------


class LeastSeen(Event, frozen=True, kw_only=True):
    """The reader has come so far. Fed in whenever that may have changed."""

    time_us: LeastTime


class GroupTimeTold(Event, frozen=True, kw_only=True):
    """The master says how far the group has come."""

    time_us: LeastTime


ReaderEvent = LeastSeen | GroupTimeTold


class TellTime(Effect, frozen=True, kw_only=True):
    """Tell the master how far the reader has come."""

    time_us: LeastTime
