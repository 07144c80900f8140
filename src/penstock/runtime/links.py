"""Links: a transport may lose messages together with a connection, and the links report every loss.

Each direction between two processes counts its packets, from zero in every epoch. A gap in the numbers means that
packets were lost. A keepalive, sent when a direction has been quiet, shows that the last packets were lost. Nothing is
sent again: the process that finds a gap reports a broken link. Packets of an epoch that the direction has left behind
are dropped.

These break a link, too:

* a packet that cannot be read. The error is reported as a broken link, and is never raised.
* the death of the peer's process, if the transport sees the death.
* the silence of the peer, if the owner of the links asks for `silence_ms`: a peer that lives and can be reached sends
  keepalives. Silence counts from the peer's first packet in an epoch, or from `all_have_begun` on. Before that, the
  peer may be in user code, not know of the epoch yet, and so send nothing.

All calls belong to the loop, except `send` and `say_alive`, which other threads may call, too. A lock keeps a packet
and its number together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import MalformedMessage
from penstock.core.ids import Epoch, Instant
from penstock.ports import Frame, Transport
from penstock.wire.frames import Channel, Header, Kind, Packet, pack, unpack

KEEPALIVE_MS = 1_000


@dataclass(slots=True)
class _Outgoing:
    epoch: Epoch = Epoch(0)
    sequence: int = 0
    last_sent: int = 0


@dataclass(slots=True)
class _Incoming:
    epoch: Epoch = Epoch(0)
    expected: int = 0


class Links:
    """All links of one process."""

    def __init__(
        self,
        transport: Transport,
        *,
        on_packet: Callable[[str, Packet], None],
        on_broken: Callable[[str, str], None],
        on_dump: Callable[[str, str], None] = lambda _peer, _stacks: None,
        silence_ms: int | None = None,
    ) -> None:
        """A link is broken after `silence_ms` without a packet from the peer, if the silence of the peer counts.
        `on_dump` gets the stacks of a peer that lives and cannot run Python."""
        self._transport = transport
        self._lock = threading.Lock()
        self._silence_ms = silence_ms
        self._on_packet = on_packet
        self._on_broken = on_broken
        self._on_dump = on_dump
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._heard: dict[str, Instant | None] = {}
        """When the last packet came from each peer with which an epoch was begun. None: the silence of the peer does
        not count yet."""
        self._now = Instant(0)
        self._look_again_at: Instant | None = None
        """No direction needs a keepalive before this time; None: not known, look at all directions."""

    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable, and keep the direction to `peer` alive."""
        with self._lock:
            self._transport.connect(peer, address)
            self._open(peer)

    def disconnect(self, *peers: str) -> None:
        """Forget these peers, in both directions."""
        with self._lock:
            for peer in peers:
                self._transport.disconnect(peer)
                self._outgoing.pop(peer, None)
                self._incoming.pop(peer, None)
                self._heard.pop(peer, None)

    def answer(self, peer: str, *, listens_at: str | None) -> None:
        """`peer` has called this process: keep the direction to `peer` alive. If `listens_at` is given, the link breaks
        when the process at that address is gone."""
        with self._lock:
            self._open(peer)
        if listens_at is not None:
            self._transport.follow(peer, listens_at)

    def let_go(self, peer: str) -> None:
        """`peer` is about to leave: the end of the process of `peer` does not break the link."""
        self._transport.let_go(peer)

    def begin(self, peer: str, epoch: Epoch) -> None:
        """Count from zero in both directions, in an epoch in which nothing has been sent to `peer` yet. Losses in
        earlier epochs do not count any more."""
        incoming = self._incoming.setdefault(peer, _Incoming())
        with self._lock:
            outgoing = self._open(peer)
            if epoch > outgoing.epoch:
                outgoing.epoch, outgoing.sequence = epoch, 0
        # The peer may have entered the epoch first.
        if epoch > incoming.epoch:
            incoming.epoch, incoming.expected = epoch, 0
        if self._silence_ms is not None:
            self._heard[peer] = None

    def all_have_begun(self) -> None:
        """Every peer has begun the epoch and sends keepalives: from here on the silence of every peer counts."""
        for peer, heard in self._heard.items():
            if heard is None:
                self._heard[peer] = self._now

    def hear_of(self, peer: str) -> None:
        """Another process says that `peer` lives and cannot say so itself: the silence of `peer` counts from here."""
        if self._heard.get(peer) is not None:
            self._heard[peer] = self._now

    def _open(self, peer: str) -> _Outgoing:
        outgoing = self._outgoing.get(peer)
        if outgoing is None:
            outgoing = self._outgoing[peer] = _Outgoing(last_sent=self._now)
        return outgoing

    def send(
        self,
        peer: str,
        kind: Kind,
        payload: Frame,
        *,
        epoch: Epoch,
        channel: Channel | None = None,
        cost: int = 0,
        attempt: Epoch = Epoch(0),
    ) -> None:
        """Send one packet. To a peer that this process has not connected, the packet goes over the connection that the
        peer made."""
        with self._lock:
            outgoing = self._open(peer)
            if epoch != outgoing.epoch:
                outgoing.epoch, outgoing.sequence = epoch, 0
            number = outgoing.sequence
            header = Header(sequence=number, epoch=epoch, kind=kind, channel=channel, cost=cost, attempt=attempt)
            outgoing.sequence += 1
            outgoing.last_sent = max(outgoing.last_sent, self._now)
            self._transport.send(peer, pack(header, payload))

    def receive(self, now: Instant) -> bool:
        """Hand every packet that has arrived to `on_packet`; returns whether there was any. A packet that `on_packet`
        refuses with `MalformedMessage` breaks the link."""
        self._now = now
        messages = self._transport.receive()
        for peer, frames in messages:
            if peer in self._heard:
                self._heard[peer] = now
            try:
                packets = unpack(frames)
            except MalformedMessage as error:
                self._on_broken(peer, str(error))
                continue
            for packet in packets:
                self._take(peer, packet)
        for peer, stacks in self._transport.dumped():
            self._on_dump(peer, stacks)
        for peer in self._transport.gone():
            self._on_broken(peer, "the process at the other end has died, or cannot be reached any more")
        return bool(messages)

    def _take(self, peer: str, packet: Packet) -> None:
        header = packet.header
        incoming = self._incoming.get(peer)
        if incoming is None:
            incoming = self._incoming[peer] = _Incoming()
        if header.epoch < incoming.epoch:
            return
        if header.epoch > incoming.epoch:
            incoming.epoch, incoming.expected = header.epoch, 0
        expected = incoming.expected
        # A keepalive carries the number of the next packet and does not use the number up.
        incoming.expected = header.sequence if header.kind is Kind.KEEPALIVE else header.sequence + 1
        if header.sequence != expected:
            lost = header.sequence - expected
            self._on_broken(peer, f"{lost} packets from {peer} were lost" if lost > 0 else f"{peer} repeated packets")
            return
        try:
            self._on_packet(peer, packet)
        except MalformedMessage as error:
            self._on_broken(peer, str(error))

    def keep_alive(self, now: Instant) -> Instant | None:
        """Send a keepalive in every direction that has been quiet, and report links whose peers are silent. Returns
        when to call again at the latest. To be called after `receive`: packets that arrived while the loop did not turn
        must not count as silence."""
        self._now = now
        # To send on a direction only puts its next keepalive off, so most turns need not look at all directions.
        if self._look_again_at is not None and now < self._look_again_at:
            return self._look_again_at
        self.say_alive(now)
        self._find_silent()
        with self._lock:
            # The thread beside the loop may send to a peer for the first time meanwhile.
            quiet = [outgoing.last_sent for outgoing in self._outgoing.values()]
        self._look_again_at = Instant(min(quiet) + KEEPALIVE_MS) if quiet else None
        return self._look_again_at

    def say_alive(self, now: Instant) -> None:
        """Send a keepalive in every direction that has been quiet."""
        with self._lock:
            for peer, outgoing in self._outgoing.items():
                if now - outgoing.last_sent >= KEEPALIVE_MS:
                    outgoing.last_sent = now
                    header = Header(sequence=outgoing.sequence, epoch=outgoing.epoch, kind=Kind.KEEPALIVE)
                    self._transport.send(peer, pack(header))

    def _find_silent(self) -> None:
        for peer, heard in list(self._heard.items()):
            silent_ms = 0 if heard is None else self._now - heard
            if self._silence_ms is not None and silent_ms >= self._silence_ms:
                # The silence of a peer is reported once in an epoch.
                del self._heard[peer]
                self._on_broken(peer, f"nothing came for {silent_ms} ms; check that the two hosts can reach each other")
