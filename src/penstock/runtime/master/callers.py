"""The processes of slots that have called the master.

The cluster may start a slot again by itself: then processes of several attempts of one incarnation have called, and
only the last of them is the slot. The host of slots does not tell them from each other.
"""

from __future__ import annotations

from penstock.core.ids import SlotId
from penstock.core.messages import Register


class Callers:
    """What each of them said of itself, and by which name it is called over the links."""

    def __init__(self) -> None:
        self.registered: dict[SlotId, Register] = {}
        self._by_name: dict[str, SlotId] = {}

    def add(self, message: Register) -> list[str]:
        """One has called; the names of those before it, whose slot it is from now on. Earlier incarnations are
        forgotten: the master had given them up before it asked for this one."""
        slot = message.slot
        self.registered[slot] = message
        self._by_name[str(slot)] = slot
        return [
            *self._forget_before(slot),
            *(n for n in self.names_of(slot) if self._by_name[n].attempt < slot.attempt),
        ]

    def _forget_before(self, slot: SlotId) -> list[str]:
        """The names of those that are forgotten."""
        old = [o for o in self._by_name.values() if o.number == slot.number and o.incarnation < slot.incarnation]
        for other in old:
            del self.registered[other]
            del self._by_name[str(other)]
        return [str(other) for other in old]

    def of(self, name: str) -> SlotId | None:
        """Who has this name; None for who has never called."""
        return self._by_name.get(name)

    def names_of(self, slot: SlotId) -> list[str]:
        """Of all attempts of its incarnation."""
        return [name for name, other in self._by_name.items() if other[:2] == slot[:2]]

    def has_successor(self, slot: SlotId) -> bool:
        """Whether a later attempt of its incarnation has called."""
        return any(self._by_name[name].attempt > slot.attempt for name in self.names_of(slot))
