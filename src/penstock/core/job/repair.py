"""One region on its way back: its tasks are dropped, then deployed again, while the rest of the job goes on.

    cancelling ── every slot has dropped them, the pause is over ──► deploying ── every slot is ready ──► done

A slot has the tasks whose subtask is its place. Whatever goes wrong on the way is not dealt with here: the whole job
restarts instead.
"""

from __future__ import annotations

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.events import RunTasks, TellCancel
from penstock.core.job.regions import Region
from penstock.core.job.slot_states import SlotStates


class Repair:
    """Who must still drop, and who must still restore, tasks of the region."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.is_deploying = False
        self.missing: dict[int, None] = dict.fromkeys(self.places)
        """The places that have not done yet what is asked of them now."""

    @property
    def places(self) -> tuple[int, ...]:
        """Where its tasks run, in order."""
        return tuple(sorted({task.subtask for task in self.region}))

    @property
    def delay_text(self) -> str:
        """What is said of a slot that keeps all waiting."""
        return "did not restore its tasks in time" if self.is_deploying else "did not drop its tasks in time"

    def drops(self, task: TaskId | None) -> bool:
        """Whether a task is about to be dropped, whatever becomes of it."""
        return not self.is_deploying and task in self.region

    def cancels(self, slots: SlotStates, epoch: Epoch) -> list[TellCancel]:
        """What the slots are told first."""
        tasks = {place: tuple(task for task in self.region if task.subtask == place) for place in self.places}
        return [TellCancel(slot=slots.members[p].slot, epoch=epoch, tasks=tasks[p]) for p in self.places]

    def runs(self, slots: SlotStates, epoch: Epoch) -> RunTasks:
        """What they are told last."""
        names = tuple(slots.members[place].slot for place in self.places)
        return RunTasks(epoch=epoch, slots=names, tasks=self.region)

    def done(self, place: int) -> bool:
        """A place has dropped its tasks, or is ready; whether that was the last one."""
        self.missing.pop(place, None)
        return not self.missing

    def deploy(self) -> None:
        """All have dropped them: from here on all must become ready."""
        self.is_deploying = True
        self.missing = dict.fromkeys(self.places)
