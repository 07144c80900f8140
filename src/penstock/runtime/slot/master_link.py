"""The link of a slot to the master: sends messages, says when a heartbeat is due, and notices a silent master."""

from __future__ import annotations

from penstock.core.ids import Epoch, Instant
from penstock.core.messages import Register, ToMaster
from penstock.runtime.links import Links
from penstock.settings import SlotSettings
from penstock.wire.codec import encode_message
from penstock.wire.frames import Kind

MASTER = "master"
"""The master's name on the transport."""

NO_EPOCH = Epoch(0)
"""The epoch of packets to and from the master. A link with the master lives as long as the slot, and each message
carries its own epoch."""


class MasterLink:
    """The link of one slot, from the slot's registration until the slot leaves."""

    def __init__(self, links: Links, address: str, settings: SlotSettings) -> None:
        self._links = links
        self._settings = settings
        self._heard_at: Instant | None = None
        """When a packet of the master came last; None before the slot has registered."""
        self.next_heartbeat = Instant(0)
        links.connect(MASTER, address)

    def tell(self, message: ToMaster) -> None:
        """Send a message to the master. May be called from a thread beside the loop."""
        self._links.send(MASTER, Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    @property
    def has_called_in(self) -> bool:
        """Whether the slot has sent its registration."""
        return self._heard_at is not None

    def call_in(self, registration: Register, now: Instant) -> None:
        """Register the slot with the master."""
        self._heard_at = now
        self.tell(registration)

    def heard(self, now: Instant) -> None:
        """A packet of the master has come."""
        self._heard_at = now

    def is_silent(self, now: Instant) -> bool:
        """Whether the master has been silent for too long. The master may have given this slot up."""
        return self._heard_at is not None and now - self._heard_at >= self._settings.heartbeat_timeout_ms

    def is_heartbeat_due(self, now: Instant) -> bool:
        """Whether a heartbeat must be sent. If so, the next heartbeat is due one interval later."""
        if now < self.next_heartbeat:
            return False
        self.next_heartbeat = Instant(now + self._settings.heartbeat_interval_ms)
        return True
