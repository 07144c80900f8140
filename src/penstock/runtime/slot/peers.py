"""The neighbours of a slot: the other slots of an attempt with which the slot shares a channel.

A slot has links only with its neighbours. Slots that are not neighbours never send anything to each other: they need
not be able to reach each other, and their silence does not count. If one of them is replaced while the tasks of the
other go on, the other slot is not told.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ids import Epoch, SlotId
from penstock.core.messages import PeerAddress
from penstock.plan.graph import Plan
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.links import Links


class Peers:
    """The neighbours of one slot, by place. The place of a slot is the number of the subtasks that the slot runs."""

    def __init__(self, slot: SlotId, address: SlotAddress, links: Links) -> None:
        self.place = int(slot.number)
        """The place of this slot. A spare slot gets the place of the lost slot that it replaces."""
        self._slot = slot
        self._address = address
        self._links = links
        self._neighbours: dict[int, PeerAddress] = {}
        """By place."""

    def connect(self, peers: Sequence[PeerAddress], plan: Plan, epoch: Epoch) -> None:
        """Connect to the neighbours, each by the shortest way, and disconnect slots that have ceased to be neighbours.
        `peers` are all slots of the plan, by place. `epoch` is the epoch of the whole attempt."""
        self.place = next((place for place, peer in enumerate(peers) if peer.slot == self._slot), self.place)
        known, places = self._neighbours, plan.neighbours_of_slot(self.place)
        self._neighbours = {place: peers[place] for place in places}
        stay = {peer.slot for peer in self._neighbours.values()}
        for peer in known.values():
            if peer.slot not in stay:
                self._links.disconnect(str(peer.slot))
        for peer in self._neighbours.values():
            self._links.connect(str(peer.slot), self._address.way_to(peer))
            self._links.begin(str(peer.slot), epoch)

    def forget(self, slot: SlotId) -> None:
        """A slot is gone. A later `connect` names the slot that takes its place."""
        self._links.disconnect(str(slot))
        self._neighbours = {place: peer for place, peer in self._neighbours.items() if peer.slot != slot}

    def at(self, place: int) -> str:
        """The name of the neighbour in a place."""
        return str(self._neighbours[place].slot)

    def named(self, name: str) -> PeerAddress | None:
        """The neighbour with this name; None if no neighbour has this name."""
        return next((peer for peer in self._neighbours.values() if str(peer.slot) == name), None)
