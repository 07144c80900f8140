"""The restart of some regions alone: their tasks are dropped, then deployed again, while the other tasks go on.

    cancelling ── the tasks are dropped, all slots are up, the pause is over ──► deploying ── all are ready ──► done

A slot has the tasks whose subtask number is its place. The tasks of a lost slot are gone with the slot: the slot that
gets its place has nothing to drop, but must come up first. Failures meanwhile are not handled here: the whole job
restarts instead.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.events import DeployTasks, RunTasks, TellCancel, TellPeerGone
from penstock.core.job.regions import Region
from penstock.core.job.slot_states import SlotState, SlotStates


class Repair:
    """The restart of one or more regions alone, as one region: which places must still drop or restore tasks of the
    region."""

    def __init__(self, region: Region, lost: int | None = None) -> None:
        """`lost` is the place whose slot is gone; None if no slot is gone."""
        self.region = region
        self.is_deploying = False
        self._lost = lost
        self.missing: dict[int, None] = dict.fromkeys(place for place in self.places if place != lost)
        """The places that have not dropped their tasks yet; when the region is deployed, the places that are not ready
        yet."""

    @property
    def places(self) -> tuple[int, ...]:
        """The places where tasks of the region run, in order."""
        return tuple(sorted({task.subtask for task in self.region}))

    def drops(self, task: TaskId | None) -> bool:
        """Whether a task is being dropped, so that nothing follows from its failure or its end."""
        return not self.is_deploying and task in self.region

    def begins(self, slots: SlotStates, epoch: Epoch) -> list[TellCancel | TellPeerGone]:
        """What the slots are told first. Must be called while the lost slot still has its place."""
        tasks = {place: tuple(task for task in self.region if task.subtask == place) for place in self.places}
        told: list[TellCancel | TellPeerGone] = [
            TellCancel(slot=slots.members[place].slot, epoch=epoch, tasks=tasks[place]) for place in self.missing
        ]
        if self._lost is not None:
            gone = slots.members[self._lost].slot
            # These slots have other tasks that go on. Without this message the slots would report the link to the lost
            # slot as broken, and the whole job would restart. The deployment tells these slots which slot has the place
            # of the lost slot. Slots without tasks of the region share no channel with the lost slot.
            told += [TellPeerGone(slot=slots.members[place].slot, gone=gone) for place in self.missing]
        return told

    def can_deploy(self, slots: SlotStates) -> bool:
        """Whether no task of the region runs any more, and every place has a slot."""
        return not self.is_deploying and not self.missing and all(known.registered for known in slots.in_order)

    def deploys(self, slots: SlotStates, epoch: Epoch) -> DeployTasks:
        """What the slots are told when `can_deploy` is true. From here on all places of the region must become
        ready."""
        self.is_deploying = True
        self.missing = dict.fromkeys(self.places)
        names = tuple(known.slot for known in slots.in_order)
        joining = () if self._lost is None else (slots.members[self._lost].slot,)
        return DeployTasks(epoch=epoch, slots=names, tasks=self.region, joining=joining)

    def runs(self, slots: SlotStates, epoch: Epoch) -> RunTasks:
        """What the slots are told when all places are ready."""
        names = tuple(slots.members[place].slot for place in self.places)
        return RunTasks(epoch=epoch, slots=names, tasks=self.region)

    def done(self, place: int) -> bool:
        """The slot in `place` has dropped its tasks, or is ready. Returns whether no place is missing any more."""
        self.missing.pop(place, None)
        return not self.missing

    def late(self, slots: SlotStates) -> list[tuple[SlotState, str]]:
        """The slots in the missing places, each with the fact for the error text. A slot that restores tasks and has
        said what it is doing is not late."""
        missing = [slots.members[place] for place in self.missing]
        if self.is_deploying:
            return [(s, "the slot did not restore its tasks in time") for s in missing if not s.is_at_work]
        return [(s, "the slot did not drop its tasks in time") for s in missing]
