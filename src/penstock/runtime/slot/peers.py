"""The other slots of an attempt, as one of them sees them: who has which place, and with whom it has a link.

A slot has links only with those with which it shares a channel. From the others nothing ever comes: it must neither
need to reach them nor count their silence, and if one of them is replaced while its tasks go on, it is told nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.ids import Epoch, SlotId
from penstock.core.messages import PeerAddress
from penstock.plan.graph import Plan
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.links import Links


class Peers:
    """Those of one slot."""

    def __init__(self, slot: SlotId, address: SlotAddress, links: Links) -> None:
        self.place = int(slot.number)
        """This slot's own: the subtasks that it runs. A slot that stood by has the place of another."""
        self._slot = slot
        self._address = address
        self._links = links
        self._neighbours: dict[int, PeerAddress] = {}
        """By their places."""

    def connect(self, peers: Sequence[PeerAddress], plan: Plan, epoch: Epoch) -> None:
        """Reach, by the shortest way, those of all slots of the plan that are neighbours; forget those that are not, or
        are no more. `epoch` is that of the whole attempt."""
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
        """That one is no more. Who has its place is told with a later `connect`."""
        self._links.disconnect(str(slot))
        self._neighbours = {place: peer for place, peer in self._neighbours.items() if peer.slot != slot}

    def at(self, place: int) -> str:
        """The name of the neighbour in that place."""
        return str(self._neighbours[place].slot)

    def named(self, name: str) -> PeerAddress | None:
        """The neighbour of that name; None if it is a stranger, or is no more."""
        return next((peer for peer in self._neighbours.values() if str(peer.slot) == name), None)
