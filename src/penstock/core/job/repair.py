"""Some regions on their way back: their tasks are dropped, then deployed again, while the rest of the job goes on.

    cancelling ── nobody has them, every place has a slot, the pause is over ──► deploying ── all are ready ──► done

A slot has the tasks whose subtask is its place. If one was lost, its tasks went with it, and whoever gets its place has
nothing to drop, but must come up first. Whatever goes wrong on the way is not dealt with here: the whole job restarts
instead.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.events import DeployTasks, RunTasks, TellCancel, TellPeerGone
from penstock.core.job.regions import Region
from penstock.core.job.slot_states import SlotState, SlotStates


class Repair:
    """Who must still drop, and who must still restore, tasks of the region."""

    def __init__(self, region: Region, lost: int | None = None) -> None:
        """`lost` is the place whose slot is gone; None if all are there."""
        self.region = region
        self.is_deploying = False
        self._lost = lost
        self.missing: dict[int, None] = dict.fromkeys(place for place in self.places if place != lost)
        """The places that have not done yet what is asked of them now."""

    @property
    def places(self) -> tuple[int, ...]:
        """Where its tasks run, in order."""
        return tuple(sorted({task.subtask for task in self.region}))

    def drops(self, task: TaskId | None) -> bool:
        """Whether a task is about to be dropped, whatever becomes of it."""
        return not self.is_deploying and task in self.region

    def begins(self, slots: SlotStates, epoch: Epoch) -> list[TellCancel | TellPeerGone]:
        """What the slots are told first, when none has the place of the lost one yet."""
        tasks = {place: tuple(task for task in self.region if task.subtask == place) for place in self.places}
        told: list[TellCancel | TellPeerGone] = [
            TellCancel(slot=slots.members[place].slot, epoch=epoch, tasks=tasks[place]) for place in self.missing
        ]
        if self._lost is not None:
            gone = slots.members[self._lost].slot
            # Until they learn who has the place, with what they are deployed: their other tasks go on, and would fail
            # of its silence. Slots aside have nothing to do with it: whoever shares a channel with it is in the region.
            told += [TellPeerGone(slot=slots.members[place].slot, gone=gone) for place in self.missing]
        return told

    def can_deploy(self, slots: SlotStates) -> bool:
        """Whether no task of the region runs any more, and every place has a slot."""
        return not self.is_deploying and not self.missing and all(known.registered for known in slots.in_order)

    def deploys(self, slots: SlotStates, epoch: Epoch) -> DeployTasks:
        """What they are told then; from here on all must become ready."""
        self.is_deploying = True
        self.missing = dict.fromkeys(self.places)
        names = tuple(known.slot for known in slots.in_order)
        joining = () if self._lost is None else (slots.members[self._lost].slot,)
        return DeployTasks(epoch=epoch, slots=names, tasks=self.region, joining=joining)

    def runs(self, slots: SlotStates, epoch: Epoch) -> RunTasks:
        """What they are told last."""
        names = tuple(slots.members[place].slot for place in self.places)
        return RunTasks(epoch=epoch, slots=names, tasks=self.region)

    def done(self, place: int) -> bool:
        """A place has dropped its tasks, or is ready; whether that was the last one."""
        self.missing.pop(place, None)
        return not self.missing

    def late(self, slots: SlotStates) -> list[tuple[SlotState, str]]:
        """Who keeps all waiting, and what is said of it."""
        text = "did not restore its tasks in time" if self.is_deploying else "did not drop its tasks in time"
        return [(slots.members[place], text) for place in self.missing]
