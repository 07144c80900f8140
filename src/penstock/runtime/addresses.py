"""Where slots are, and by which way they call each other."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import StreamError
from penstock.core.ids import SlotId
from penstock.core.messages import PeerAddress, Register


@dataclass(frozen=True, kw_only=True)
class SlotAddress:
    """Where a slot is, and where others can call it."""

    host: str
    """For people: hosts may have the same name."""
    pid: int
    ipc_scope: str = ""
    """Processes that have it in common can call each other's `ipc_address`."""
    ipc_address: str | None = None
    tcp_address: str | None = None

    def registration_of(self, slot: SlotId) -> Register:
        """How a slot that is here calls in."""
        return Register(
            slot=slot,
            host=self.host,
            pid=self.pid,
            ipc_scope=self.ipc_scope,
            ipc_address=self.ipc_address,
            tcp_address=self.tcp_address,
        )

    def way_to(self, peer: PeerAddress) -> str:
        """Where a slot that is here calls a peer, by the shortest way. Raises `StreamError` if it cannot."""
        address = peer.ipc_address if peer.ipc_scope == self.ipc_scope else None
        address = address or peer.tcp_address
        if address is None:
            raise StreamError(f"{peer.slot} on {peer.host} has no address that a slot on {self.host} can reach")
        return address


def peer_address(registered: Register) -> PeerAddress:
    """What the others are told of a slot."""
    return PeerAddress(
        slot=registered.slot,
        host=registered.host,
        ipc_scope=registered.ipc_scope,
        ipc_address=registered.ipc_address,
        tcp_address=registered.tcp_address,
    )
