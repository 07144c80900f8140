"""Which attempt each task and each channel of a slot belongs to.

All tasks of a slot begin with the epoch of the whole attempt. The tasks of a region that was restarted alone have a
later epoch, and so have the channels between these tasks. A packet with another epoch than its channel belongs to tasks
that have been dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.regions import Region
from penstock.runtime.task.channels import ChannelKey

NONE = Epoch(0)


class Attempts:
    """The epochs of one slot, from one deployment of the whole job to the next."""

    def __init__(self, regions: Mapping[TaskId, Region] | None = None) -> None:
        self._regions = regions or {}
        self._tasks: dict[TaskId, Epoch] = {}
        self._inputs: dict[ChannelKey, Epoch] = {}
        self._outputs: dict[ChannelKey, Epoch] = {}
        self.newest = NONE
        """The highest epoch that a task was deployed with."""

    def begin(self, task: TaskId, epoch: Epoch, inputs: Iterable[ChannelKey], outputs: Iterable[ChannelKey]) -> None:
        """A task, with these channels, was deployed."""
        self.newest = max(self.newest, epoch)
        self._tasks[task] = epoch
        self._inputs.update(dict.fromkeys(inputs, epoch))
        self._outputs.update(dict.fromkeys(outputs, epoch))

    def of(self, task: TaskId) -> Epoch:
        """The epoch of a task that was deployed in this slot, even if the task is gone; `NONE` for any other task."""
        return self._tasks.get(task, NONE)

    def of_channel(self, key: ChannelKey) -> Epoch:
        """The epoch of a channel with an end in this slot; `NONE` for any other channel."""
        return self._inputs.get(key, self._outputs.get(key, NONE))

    def reads(self, key: ChannelKey) -> bool:
        """Whether the receiving end of a channel belongs to this slot."""
        return key in self._inputs

    def writes(self, key: ChannelKey) -> bool:
        """Whether the sending end of a channel belongs to this slot."""
        return key in self._outputs

    def region_of(self, task: TaskId) -> Region:
        """The tasks that restart together with a task, the task included."""
        return self._regions.get(task, (task,))
