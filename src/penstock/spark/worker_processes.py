"""The processes of slots as the kernel of the driver's host sees them, which tells at once when one has died.

Spark takes 150 to 250 milliseconds to tell that a Python worker was killed, and all that time the job stands still.
Where Spark is one JVM on the driver's own host, and does not try a failed task again by itself, its word need not be
waited for. Elsewhere it is: on other hosts a process number says nothing here, and the slot of a task that is tried
again comes back by itself.
"""

from __future__ import annotations

import os
import re
import select
from typing import Protocol

from penstock.core.ids import SlotId

_LOCAL_WITHOUT_RETRIES = re.compile(r"local(\[[^,\]]+\])?")


class Waiting(Protocol):
    """What the driver's loop waits with."""

    def watch(self, descriptor: int) -> None:
        """End waits as long as this descriptor has something to read."""
        ...

    def unwatch(self, descriptor: int) -> None:
        """Wait without it again."""
        ...


def can_be_seen(master: str) -> bool:
    """Whether with this master URL the death of a worker's process is the end of its slot, and is seen from here."""
    return _LOCAL_WITHOUT_RETRIES.fullmatch(master) is not None and hasattr(os, "pidfd_open")


class WorkerProcesses:
    """The processes that are followed. Belongs to the thread of the driver's loop."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._descriptors: dict[SlotId, int] = {}
        self._poll = select.poll()

    def follow(self, slot: SlotId, pid: int) -> None:
        """See when this process dies, which is that of the slot. Asking again changes nothing."""
        if slot in self._descriptors:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            # It is dead already, or the kernel does not say: Spark will.
            return
        self._descriptors[slot] = descriptor
        self._poll.register(descriptor, select.POLLIN)
        self._waiting.watch(descriptor)

    def let_go(self, slot: SlotId) -> None:
        """The slot is over, whatever becomes of its process: Spark may use it for something else."""
        descriptor = self._descriptors.pop(slot, None)
        if descriptor is not None:
            self._waiting.unwatch(descriptor)
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def dead(self) -> list[SlotId]:
        """The slots whose processes have died since the last call."""
        if not self._descriptors:
            return []
        readable = {descriptor for descriptor, _ in self._poll.poll(0)}
        found = [slot for slot, descriptor in self._descriptors.items() if descriptor in readable]
        for slot in found:
            self.let_go(slot)
        return found

    def close(self) -> None:
        """Follow nothing any more."""
        for slot in list(self._descriptors):
            self.let_go(slot)
