"""The addresses of slots, and at which address a slot calls another slot."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import StreamError
from penstock.core.ids import SlotId
from penstock.core.messages import PeerAddress, Register


@dataclass(frozen=True, kw_only=True)
class SlotAddress:
    """Where a slot is, and where other slots can call the slot."""

    host: str
    """The name of the host, for people: two hosts may have the same name."""
    pid: int
    ipc_scope: str = ""
    """Processes with the same scope can call each other's `ipc_address`."""
    ipc_address: str | None = None
    tcp_address: str | None = None

    def registration_of(self, slot: SlotId) -> Register:
        """The message by which a slot at this address registers with the master."""
        return Register(
            slot=slot,
            host=self.host,
            pid=self.pid,
            ipc_scope=self.ipc_scope,
            ipc_address=self.ipc_address,
            tcp_address=self.tcp_address,
        )

    def way_to(self, peer: PeerAddress) -> str:
        """Where a slot at this address calls `peer`: by IPC if the two have the same scope, else by TCP. Raises
        `StreamError` if `peer` has no such address."""
        address = peer.ipc_address if peer.ipc_scope == self.ipc_scope else None
        address = address or peer.tcp_address
        if address is None:
            raise StreamError(f"{peer.slot} on {peer.host} has no address that a slot on {self.host} can reach")
        return address


def peer_address(registered: Register) -> PeerAddress:
    """What other slots are told of a registered slot."""
    return PeerAddress(
        slot=registered.slot,
        host=registered.host,
        ipc_scope=registered.ipc_scope,
        ipc_address=registered.ipc_address,
        tcp_address=registered.tcp_address,
    )
