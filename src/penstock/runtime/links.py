"""Links: what turns a transport that may lose messages with a connection into one that says so.

Each direction between two processes counts its packets, from zero in every epoch. A gap means that packets were lost; a
keepalive, sent when a direction has been quiet, shows a loss at the very end. Nothing is sent again: the side that
finds a gap reports a broken link, and the attempt of the job ends with it. Packets of an epoch that the direction has
left behind are dropped. What cannot be read breaks the link too; nothing that a peer sent is ever raised. The death of
a peer breaks it at once, where the transport sees it. And so does silence, where that is asked for: keepalives should
have come from a peer that can be reached. A peer that has not been heard of in an epoch may not have learned of the
epoch, and says nothing while it is in user code: its silence counts when all are known to have begun.

All calls belong to the loop, except `send` and `say_alive`, which may also come from beside it. A lock keeps a packet
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
        silence_ms: int | None = None,
    ) -> None:
        """After `silence_ms` without a packet from a peer whose silence counts, the link to it is broken."""
        self._transport = transport
        self._lock = threading.Lock()
        self._silence_ms = silence_ms
        self._on_packet = on_packet
        self._on_broken = on_broken
        self._outgoing: dict[str, _Outgoing] = {}
        self._incoming: dict[str, _Incoming] = {}
        self._heard: dict[str, Instant | None] = {}
        """When there last was something from each peer with which an epoch was begun; None: not counted yet."""
        self._now = Instant(0)
        self._look_again_at: Instant | None = None
        """No direction will have been quiet for too long before this; None if that must be looked up."""

    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable and keep the direction to it alive."""
        with self._lock:
            self._transport.connect(peer, address)
            self._open(peer)

    def disconnect(self, *peers: str) -> None:
        """Forget these, in both directions."""
        with self._lock:
            for peer in peers:
                self._transport.disconnect(peer)
                self._outgoing.pop(peer, None)
                self._incoming.pop(peer, None)
                self._heard.pop(peer, None)

    def answer(self, peer: str, *, listens_at: str | None) -> None:
        """Keep alive the direction to a peer that has called in, and notice when it is gone."""
        with self._lock:
            self._open(peer)
        if listens_at is not None:
            self._transport.follow(peer, listens_at)

    def let_go(self, peer: str) -> None:
        """`peer` is about to leave: that it is gone then breaks nothing."""
        self._transport.let_go(peer)

    def begin(self, peer: str, epoch: Epoch) -> None:
        """Count from zero in both directions, in an epoch of which nothing has been sent to `peer`. What was lost in an
        earlier epoch matters no more."""
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
        """Every peer has begun the epoch, and keeps its direction alive: from here on silence counts."""
        for peer, heard in self._heard.items():
            if heard is None:
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
        """Send one packet. A peer that is not connected here is answered over the connection it made."""
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
        """Hand on every packet that has arrived; whether there was any. A packet that `on_packet` refuses with
        `MalformedMessage` breaks its link."""
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
        for peer in self._transport.gone():
            self._on_broken(peer, "its process has died, or cannot be reached any more")
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
        # A keepalive repeats the number of the next packet instead of taking one.
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
        """Send a keepalive in every direction that has been quiet; when to call again at the latest. To be called after
        `receive`: what has arrived while this process did not look is no silence."""
        self._now = now
        # Sending only makes a direction quiet later, so most turns need not look at all of them.
        if self._look_again_at is not None and now < self._look_again_at:
            return self._look_again_at
        self.say_alive(now)
        self._find_silent()
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
                # Told once in an epoch.
                del self._heard[peer]
                self._on_broken(peer, f"nothing came from it for {silent_ms} ms; can the two hosts reach each other?")
