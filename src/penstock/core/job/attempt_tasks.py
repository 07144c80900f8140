"""The tasks of a job: which tasks must restart together, which epoch each task has, and which tasks have ended.

An attempt of the whole job gives all tasks its epoch. When a region restarts alone, the tasks of the region get the
next epoch, and the other tasks keep their epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.regions import Region, regions_at


class AttemptTasks:
    """The tasks of one job."""

    def __init__(self, tasks: Iterable[TaskId], regions: Mapping[TaskId, Region]) -> None:
        """Without `regions` all tasks restart together."""
        self._tasks = dict.fromkeys(tasks)
        self._regions = regions
        self.epochs: dict[TaskId, Epoch] = {}
        """The epoch with which each task was deployed last."""
        self._unfinished: dict[TaskId, None] = {}

    def become(self, tasks: Iterable[TaskId], regions: Mapping[TaskId, Region]) -> None:
        """From the next attempt on the job has these tasks."""
        self._tasks = dict.fromkeys(tasks)
        self._regions = regions

    def deploy_all(self, epoch: Epoch) -> None:
        """All tasks are deployed, with this epoch."""
        self._unfinished = dict(self._tasks)
        self.epochs = dict.fromkeys(self._tasks, epoch)

    def deploy(self, region: Region, epoch: Epoch) -> None:
        """The tasks of a region are deployed again, with this epoch."""
        self.epochs |= dict.fromkeys(region, epoch)

    def end(self, task: TaskId) -> bool:
        """A task has ended for good. Returns whether all tasks have ended."""
        self._unfinished.pop(task, None)
        return not self._unfinished

    @property
    def finished(self) -> int:
        """How many tasks of the attempt have ended for good."""
        return len(self._tasks) - len(self._unfinished)

    def region_of(self, task: TaskId | None) -> Region:
        """The tasks that must restart together with `task`; empty if the whole job must restart."""
        return () if task is None else self._regions.get(task, ())

    def region_at(self, place: int) -> Region:
        """The tasks that must restart if the slot in `place` is lost."""
        return regions_at(place, self._regions)

    def are_more_than(self, region: Region) -> bool:
        """Whether the region has tasks, and the job has tasks outside the region."""
        return 0 < len(region) < len(self._tasks)
