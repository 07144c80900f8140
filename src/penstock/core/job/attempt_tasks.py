"""The tasks of a job: which of them must restart together, which attempt each belongs to, and which have ended.

An attempt of the whole job gives all tasks its epoch. When a region is restarted, its tasks get the next epoch and the
others keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.regions import Region, regions_at


class AttemptTasks:
    """Of one job."""

    def __init__(self, tasks: Iterable[TaskId], regions: Mapping[TaskId, Region]) -> None:
        """Without `regions` all tasks restart together."""
        self._tasks = dict.fromkeys(tasks)
        self._regions = regions
        self.epochs: dict[TaskId, Epoch] = {}
        """The epoch of every task, since the task was deployed."""
        self._unfinished: dict[TaskId, None] = {}

    def become(self, tasks: Iterable[TaskId], regions: Mapping[TaskId, Region]) -> None:
        """The next attempt has these tasks instead."""
        self._tasks = dict.fromkeys(tasks)
        self._regions = regions

    def deploy_all(self, epoch: Epoch) -> None:
        """All tasks begin anew."""
        self._unfinished = dict(self._tasks)
        self.epochs = dict.fromkeys(self._tasks, epoch)

    def deploy(self, region: Region, epoch: Epoch) -> None:
        """The tasks of a region begin anew."""
        self.epochs |= dict.fromkeys(region, epoch)

    def end(self, task: TaskId) -> bool:
        """A task has ended for good; whether all have."""
        self._unfinished.pop(task, None)
        return not self._unfinished

    @property
    def finished(self) -> int:
        """How many tasks of the attempt have ended for good."""
        return len(self._tasks) - len(self._unfinished)

    def region_of(self, task: TaskId | None) -> Region:
        """The tasks that must restart with a task; none if all must."""
        return () if task is None else self._regions.get(task, ())

    def region_at(self, place: int) -> Region:
        """The tasks that must restart if the slot in a place is lost."""
        return regions_at(place, self._regions)

    def are_more_than(self, region: Region) -> bool:
        """Whether a region can be restarted while other tasks go on."""
        return 0 < len(region) < len(self._tasks)
