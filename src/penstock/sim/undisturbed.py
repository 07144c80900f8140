"""Whether regions in which nothing failed go on as they were, as the messages between master and slots show.

A region may restart beside other regions only for a reason: a task of the region has failed, or a task of the region
gets another slot. All tasks of such a region restart, and no other tasks. A slot that stays drops a task before the
slot gets the task again. No slot is told to drop other tasks. No task speaks in an epoch that it was not deployed with.
"""

from __future__ import annotations

from collections.abc import Mapping

import cloudpickle

from penstock.core.ids import Epoch, TaskId
from penstock.core.job.regions import Region, regions_of
from penstock.core.messages import (
    Acknowledge,
    CancelTasks,
    DataEnded,
    Deploy,
    Run,
    TaskFailed,
    TaskFinished,
    ToMaster,
    ToSlot,
)
from penstock.core.recovery.tenure import EPOCHS_PER_TERM
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.sim.rules import Rule
from penstock.sim.world import World
from penstock.wire.codec import decode_to_master, decode_to_slot
from penstock.wire.frames import Kind, unpack


class RegionChecker:
    """Follows the slot and the epoch of each task, and why tasks restart."""

    def __init__(self, world: World, *, master: str) -> None:
        self._world = world
        self._master = master
        self._plan = b""
        self._regions: Mapping[TaskId, Region] = {}
        self._attempt = Epoch(0)
        self._homes: dict[TaskId, str] = {}
        self._epochs: dict[TaskId, Epoch] = {}
        self._ever: dict[tuple[TaskId, Epoch], None] = {}
        self._failed: dict[TaskId, Epoch] = {}
        self._dropped: dict[TaskId, None] = {}
        """The tasks that slots were told to drop, and that were not deployed again since."""
        self._repairs: dict[Epoch, tuple[dict[TaskId, None], dict[TaskId, None]]] = {}
        """For each epoch of some tasks only, until the epoch runs: its tasks, and the tasks that are the reason."""
        self.replaced = 0
        """How many times a slot joined other slots that went on."""
        self._joined = Epoch(0)

    def __call__(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Look at one message."""
        for header, payload in unpack(frames):
            if header.kind is not Kind.CONTROL:
                continue
            if sender == self._master:
                self._ordered(decode_to_slot(payload), receiver)
            elif receiver == self._master:
                self._told(decode_to_master(payload))

    def _told(self, message: ToMaster) -> None:
        match message:
            case TaskFailed():
                self._failed[message.task] = message.epoch
            case Acknowledge() | DataEnded() | TaskFinished() if (message.task, message.epoch) not in self._ever:
                self._violate(f"{message.task} speaks in epoch {message.epoch}, with which it was not deployed")
            case _:
                pass

    def _ordered(self, message: ToSlot, slot: str) -> None:
        if not isinstance(message, Deploy | Run | CancelTasks):
            return
        if isinstance(message, Deploy):
            self._ever |= dict.fromkeys((task, message.epoch) for task in message.tasks)
        if message.epoch // EPOCHS_PER_TERM < self._attempt // EPOCHS_PER_TERM:
            # The message comes from a driver whose job was taken over.
            return
        match message:
            case Deploy(beside_others=False):
                self._begin(message, slot)
            case Deploy():
                self._restart(message, slot)
            case Run():
                self._run(message.epoch)
            case CancelTasks():
                here = tuple(task for task, home in self._homes.items() if home == slot)
                self._dropped |= dict.fromkeys(message.tasks or here)

    def _begin(self, message: Deploy, slot: str) -> None:
        if message.epoch > self._attempt:
            self._attempt = message.epoch
            for known in (self._homes, self._epochs, self._dropped, self._repairs):
                known.clear()
        if message.plan != self._plan:
            self._plan = message.plan
            self._regions = regions_of(checkpoint_graph(cloudpickle.loads(message.plan)))
        self._deployed(message, slot)

    def _restart(self, message: Deploy, slot: str) -> None:
        tasks, reasons = self._repairs.setdefault(message.epoch, ({}, {}))
        is_new = bool(message.plan)
        if is_new and message.epoch > self._joined:
            self._joined = message.epoch
            self.replaced += 1
        for task in message.tasks:
            if is_new and self._homes.get(task) == slot:
                self._violate(f"{slot} is to join the job with {task}, which the slot already has")
            if not is_new and (self._homes.get(task) != slot or task not in self._dropped):
                self._violate(f"{slot} gets {task} again, which the slot was not told to drop")
            tasks[task] = None
            if is_new or self._failed.get(task) == self._epochs.get(task):
                reasons[task] = None
        self._deployed(message, slot)

    def _deployed(self, message: Deploy, slot: str) -> None:
        for task in message.tasks:
            self._homes[task] = slot
            self._epochs[task] = message.epoch
            self._dropped.pop(task, None)

    def _run(self, epoch: Epoch) -> None:
        tasks, reasons = self._repairs.pop(epoch, ({}, {}))
        if not tasks:
            return
        joined = dict.fromkeys(task for reason in reasons for task in self._regions[reason])
        if needless := [str(task) for task in tasks if task not in joined]:
            self._violate(f"{', '.join(needless)} restarted in epoch {epoch}, and nothing in their region failed")
        if torn := [str(task) for task in joined if task not in tasks]:
            self._violate(f"{', '.join(torn)} did not restart in epoch {epoch} with the other tasks of their region")
        if gone := [str(task) for task in self._dropped]:
            self._violate(f"{', '.join(gone)} were dropped, and were not deployed again in epoch {epoch}")

    def _violate(self, text: str) -> None:
        self._world.violate(Rule.REGIONS, text)
