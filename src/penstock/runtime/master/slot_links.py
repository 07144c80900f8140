"""The master's links with its slots: which slots have registered, and the messages to and from slots."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.errors import MalformedMessage
from penstock.core.ids import Epoch, Instant, SlotId, TaskId
from penstock.core.job.events import SlotGone, SlotHeard, SlotRegistered
from penstock.core.messages import Leave, Register, ToMaster, ToSlot
from penstock.ports import Slots, Transport
from penstock.runtime.links import Links
from penstock.runtime.master.callers import Callers
from penstock.runtime.master.decisions import Decisions
from penstock.wire.codec import decode_to_master, encode_message
from penstock.wire.frames import Kind, Packet

NO_EPOCH = Epoch(0)


class SlotLinks:
    """Starts and stops slots, and exchanges messages with the slots that have registered."""

    def __init__(self, transport: Transport, host: Slots, decisions: Decisions) -> None:
        self.links = Links(transport, on_packet=self._on_packet, on_broken=self._on_broken, on_dump=self._on_dump)
        self._host = host
        self._decisions = decisions
        self._callers = Callers()
        self._hear: Callable[[ToMaster], None]
        self._hear_dump: Callable[[SlotId, str], None]

    def hear_with(self, hear: Callable[[ToMaster], None], hear_dump: Callable[[SlotId, str], None]) -> None:
        """Set who hears the messages and the dumps of registered slots. Called once, before the first turn."""
        self._hear = hear
        self._hear_dump = hear_dump

    @property
    def registered(self) -> dict[SlotId, Register]:
        """The registrations of slots."""
        return self._callers.registered

    # --- slots -----------------------------------------------------------------------------

    def start(self, slot: SlotId) -> None:
        """Ask the host for a slot."""
        self._host.start(slot)

    def stop(self, slot: SlotId) -> None:
        """Have the host end a slot."""
        self.links.disconnect(str(slot))
        self._host.stop(slot)

    def dismiss(self, slot: SlotId) -> None:
        """Tell a slot to leave. The end of the slot's process does not count as a failure any more."""
        self.links.let_go(str(slot))
        self.send(slot, Leave())

    def has_ended(self, slot: SlotId) -> None:
        """The host says that a slot has ended."""
        self.links.disconnect(*self._callers.names_of(slot))

    # --- to slots --------------------------------------------------------------------------

    def send(self, slot: SlotId, message: ToSlot) -> None:
        """Send a message to a slot."""
        self.links.send(str(slot), Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    def send_to_task(self, task: TaskId, message: ToSlot) -> None:
        """Send a message to the slot of a task."""
        slots = self._decisions.lifecycle.slots
        # A slot that is being replaced, or is not needed any more, has no task that could take the message. A message
        # to a slot that has not registered would be lost.
        if task.subtask < len(slots) and slots[task.subtask] in self.registered:
            self.send(slots[task.subtask], message)

    def keep_alive(self, now: Instant) -> Instant | None:
        """As in `Links`."""
        return self.links.keep_alive(now)

    # --- from slots ------------------------------------------------------------------------

    def receive(self, now: Instant) -> None:
        """Handle the packets that have arrived."""
        self.links.receive(now)

    def _on_packet(self, peer: str, packet: Packet) -> None:
        if (slot := self._callers.of(peer)) is not None:
            self._decisions.feed_job(SlotHeard(slot=slot))
        if packet.header.kind is not Kind.CONTROL:
            return
        try:
            message = decode_to_master(packet.payload)
        except MalformedMessage as error:
            self._on_broken(peer, str(error))
            return
        if isinstance(message, Register):
            self._register(message)
        else:
            self._hear(message)

    def _on_dump(self, peer: str, stacks: str) -> None:
        if (slot := self._callers.of(peer)) is not None:
            self._hear_dump(slot, stacks)

    def _register(self, message: Register) -> None:
        self.links.disconnect(*self._callers.add(message))
        self.links.answer(str(message.slot), listens_at=message.tcp_address or message.ipc_address)
        self._decisions.feed_job(SlotRegistered(slot=message.slot))

    def _on_broken(self, peer: str, text: str) -> None:
        """The link to a slot is broken, and messages of the slot may be lost: the master cannot know the state of the
        slot, and replaces the slot."""
        if (slot := self._callers.of(peer)) is None:
            return
        self.links.disconnect(peer)
        # If a later process of the incarnation has registered, the host would stop that process, which is not at fault.
        if not self._callers.has_successor(slot):
            self._host.stop(slot)
            self._decisions.feed_job(SlotGone(slot=slot, error=f"the link to it broke: {text}"))
