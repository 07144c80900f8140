"""Carries items to the receiving ends of the channels of a slot's tasks, and credit to the sending ends.

If both ends of a channel are in this slot, a call carries the item or the credit. Otherwise a packet goes over the link
to the neighbour that has the other end.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.core.errors import MalformedMessage
from penstock.core.ids import SlotId
from penstock.core.messages import Credit
from penstock.ports import Frame
from penstock.runtime.links import Links
from penstock.runtime.slot.master_link import NO_EPOCH
from penstock.runtime.slot.peers import Peers
from penstock.runtime.slot.tasks import SlotTasks
from penstock.runtime.task.channels import ChannelKey, Item
from penstock.wire.codec import decode_credit, decode_element, encode_element, encode_message
from penstock.wire.frames import Channel, Kind, Packet


class Exchange:
    """The exchange of one slot. `guard` calls into a task, and fails the task if the call raises."""

    def __init__(
        self, slot: SlotId, *, links: Links, peers: Peers, tasks: SlotTasks, guard: Callable[..., bool]
    ) -> None:
        self._slot = slot
        self._links = links
        self._peers = peers
        self._tasks = tasks
        self._guard = guard

    # --- to the other end ----------------------------------------------------------------

    def deliver(self, key: ChannelKey, item: Item, cost: int) -> None:
        """Send an item to the receiving end of its channel: by a call in this slot, over a link to another slot."""
        if key.downstream == self._peers.place:
            self._deliver_here(key, item, cost)
            return
        tasks = self._tasks
        channel = Channel(*key)
        peer = self._peers.at(key.downstream)
        payload: Frame
        if isinstance(item, msgspec.Struct):
            kind, payload, cost = Kind.ELEMENT, encode_element(item), 0
        else:
            kind, payload = Kind.BATCH, tasks.codecs[key.edge].encode(item)
        attempt = tasks.attempts.of_channel(key) if tasks.attempts.newest > tasks.epoch else NO_EPOCH
        self._links.send(peer, kind, payload, epoch=tasks.epoch, channel=channel, cost=cost, attempt=attempt)

    def grant(self, key: ChannelKey, bytes_granted: int) -> None:
        """Send credit to the sending end of a channel."""
        if key.upstream == self._peers.place:
            self._grant_here(key, bytes_granted)
        else:
            self._send_credit(key, bytes_granted)

    def tell_data_taken(self, key: ChannelKey) -> None:
        """Tell the sending end of a channel that all data of the channel has been processed."""
        if key.upstream == self._peers.place:
            self._data_taken_here(key)
        else:
            self._send_credit(key, 0, data_taken=True)

    def _send_credit(self, key: ChannelKey, bytes_granted: int, *, data_taken: bool = False) -> None:
        credit = Credit(
            epoch=self._tasks.attempts.of_channel(key),
            edge=key.edge,
            upstream=key.upstream,
            downstream=key.downstream,
            bytes_granted=bytes_granted,
            data_taken=data_taken,
        )
        peer = self._peers.at(key.upstream)
        self._links.send(peer, Kind.CREDIT, encode_message(credit), epoch=self._tasks.epoch)

    # --- from the other end --------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        """Hand a neighbour's packet to the end of the channel in this slot. A packet with another epoch than its
        channel is dropped. Raises `MalformedMessage` if this slot does not have that end of the channel."""
        header, attempts = packet.header, self._tasks.attempts
        if header.kind is Kind.CREDIT:
            credit = decode_credit(packet.payload)
            key = ChannelKey(credit.edge, credit.upstream, credit.downstream)
            if not attempts.writes(key):
                raise MalformedMessage(f"credit came for channel {key}, which no task of {self._slot} writes")
            if credit.epoch == attempts.of_channel(key):
                if credit.bytes_granted or not credit.data_taken:
                    self._grant_here(key, credit.bytes_granted)
                if credit.data_taken:
                    self._data_taken_here(key)
        elif header.channel is not None:
            key = ChannelKey(*header.channel)
            if not attempts.reads(key):
                raise MalformedMessage(f"an item came in channel {key}, which no task of {self._slot} reads")
            if (header.attempt or header.epoch) != attempts.of_channel(key) or key not in self._tasks.readers:
                # The packet belongs to tasks that have been dropped for a restart.
                return
            is_batch = header.kind is Kind.BATCH
            item = self._tasks.codecs[key.edge].decode(packet.payload) if is_batch else decode_element(packet.payload)
            self._deliver_here(key, item, header.cost)

    # --- here ----------------------------------------------------------------------------

    def _deliver_here(self, key: ChannelKey, item: Item, cost: int) -> None:
        reader = self._tasks.readers.get(key)
        if reader is not None:
            reader.gate.push(key, item, cost)

    def _grant_here(self, key: ChannelKey, bytes_granted: int) -> None:
        writer = self._tasks.writers.get(key)
        if writer is not None:
            writer.outputs.grant(key, bytes_granted)
            self._guard(writer, writer.outputs.flush_channel, key)

    def _data_taken_here(self, key: ChannelKey) -> None:
        writer = self._tasks.writers.get(key)
        if writer is not None:
            writer.outputs.data_taken(key)
