"""The processes of slots that have registered with the master.

The cluster itself may start an incarnation of a slot again, in another process. Then several processes of one
incarnation have registered, and only the newest process is the slot. `SlotId.attempt` tells these processes apart. The
host of the slots does not tell them apart.
"""

from __future__ import annotations

from penstock.core.ids import SlotId
from penstock.core.messages import Register


class Callers:
    """The registration of each process, and the name that each process has in the links."""

    def __init__(self) -> None:
        self.registered: dict[SlotId, Register] = {}
        self._by_name: dict[str, SlotId] = {}

    def add(self, message: Register) -> list[str]:
        """A process has registered as a slot. Returns the names of the earlier processes of the slot: the new process
        takes their place. Earlier incarnations are forgotten: the master gave them up before it asked for this
        incarnation."""
        slot = message.slot
        self.registered[slot] = message
        self._by_name[str(slot)] = slot
        return [
            *self._forget_before(slot),
            *(n for n in self.names_of(slot) if self._by_name[n].attempt < slot.attempt),
        ]

    def _forget_before(self, slot: SlotId) -> list[str]:
        """Forget the earlier incarnations of a slot; returns the names of their processes."""
        old = [o for o in self._by_name.values() if o.number == slot.number and o.incarnation < slot.incarnation]
        for other in old:
            del self.registered[other]
            del self._by_name[str(other)]
        return [str(other) for other in old]

    def of(self, name: str) -> SlotId | None:
        """The slot whose process has this name; None if no process of this name has registered."""
        return self._by_name.get(name)

    def names_of(self, slot: SlotId) -> list[str]:
        """The names of all processes of the slot's incarnation."""
        return [name for name, other in self._by_name.items() if other[:2] == slot[:2]]

    def has_successor(self, slot: SlotId) -> bool:
        """Whether a later process of the slot's incarnation has registered."""
        return any(self._by_name[name].attempt > slot.attempt for name in self.names_of(slot))
