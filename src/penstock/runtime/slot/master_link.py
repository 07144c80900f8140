"""The link of a slot to the master: what the slot says there, when, and whether the master is still heard of."""

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
"""Links to and from the master live as long as the slot; their messages carry their epochs inside."""


class MasterLink:
    """Of one slot, from its call to the master until it leaves."""

    def __init__(self, links: Links, address: str, settings: SlotSettings) -> None:
        self._links = links
        self._settings = settings
        self._heard_at: Instant | None = None
        """When the master was heard of last; None before the slot has called in."""
        self.next_heartbeat = Instant(0)
        links.connect(MASTER, address)

    def tell(self, message: ToMaster) -> None:
        """Send a message to the master. May be called from beside the loop."""
        self._links.send(MASTER, Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    @property
    def has_called_in(self) -> bool:
        """Whether the master knows of the slot, or will."""
        return self._heard_at is not None

    def call_in(self, registration: Register, now: Instant) -> None:
        """Say that the slot is here."""
        self._heard_at = now
        self.tell(registration)

    def heard(self, now: Instant) -> None:
        """The master has said something."""
        self._heard_at = now

    def is_silent(self, now: Instant) -> bool:
        """Whether the master has not been heard of for too long: this slot may have been given up."""
        return self._heard_at is not None and now - self._heard_at >= self._settings.heartbeat_timeout_ms

    def is_heartbeat_due(self, now: Instant) -> bool:
        """Whether the master is to hear how far the tasks are; if so, the next time comes an interval later."""
        if now < self.next_heartbeat:
            return False
        self.next_heartbeat = Instant(now + self._settings.heartbeat_interval_ms)
        return True
