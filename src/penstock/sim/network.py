"""The network of a world: keeps messages between two processes in order, delays them, and loses connections.

Messages from one process to another arrive in order. When a connection breaks, the messages on their way are lost, and
neither process is told. Messages that are sent before the connection works again are lost too, or held back until then.
In some worlds a process that follows another process is told of the other's death, and sometimes of a broken
connection, which looks like a death.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from penstock.ports import Frame
from penstock.sim.world import Actor, World

ADDRESS_PREFIX = "sim:"


class _Parcel:
    """One message on its way."""

    __slots__ = ("frames", "lost")

    def __init__(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.lost = False


class _Wire:
    """One direction between two processes."""

    __slots__ = ("down_until_us", "holds_back", "last_us", "parcels")

    def __init__(self) -> None:
        self.parcels: deque[_Parcel] = deque()
        self.last_us = 0
        self.down_until_us = 0
        self.holds_back = False

    def lose(self, first: int) -> None:
        """The messages on their way are lost, from parcel number `first` on."""
        for parcel in list(self.parcels)[first:]:
            parcel.lost = True


Tap = Callable[[str, str, list[bytes]], None]
"""Called with the sender, the receiver and the frames of every message that is sent."""


class Network:
    """All connections of a world."""

    def __init__(
        self, world: World, *, latency_us: tuple[int, int], spike_share: float = 0.0, seen_share: float = 0.0
    ) -> None:
        """`seen_share` is the probability that a follower of a process is told of the process's death. A follower is
        told of a broken connection with a third of this probability."""
        self._world = world
        self._seen_share = seen_share
        self._latency_us = latency_us
        self._spike_share = spike_share
        self._ends: dict[str, SimTransport] = {}
        self._aside: list[tuple[str, Callable[[str], bool], SimTransport]] = []
        self._wires: dict[tuple[str, str], _Wire] = {}
        self.taps: list[Tap] = []
        self.messages = 0
        self.cuts = 0

    def transport(self, actor: Actor) -> SimTransport:
        """The transport of a process."""
        end = SimTransport(self, actor)
        self._ends[actor.name] = end
        return end

    def cut(self, one: str, other: str, *, for_us: int, holds_back: bool) -> None:
        """Break the connection between two processes, both ways. With `holds_back`, messages that are sent meanwhile
        arrive when the connection works again; otherwise they are lost."""
        self.cuts += 1
        for pair in ((one, other), (other, one)):
            wire = self._wire(*pair)
            wire.lose(0)
            wire.down_until_us = max(wire.down_until_us, self._world.now_us + for_us)
            wire.holds_back = holds_back
            self._end_lifelines(*pair, self._seen_share / 3)

    def died(self, name: str) -> None:
        """A process is gone: the last messages that the process sent may be lost."""
        for (sender, _), wire in self._wires.items():
            if sender == name and wire.parcels:
                wire.lose(self._world.random.randint(0, len(wire.parcels)))
        self._ends.pop(name, None)
        for other in list(self._ends):
            self._end_lifelines(other, name, self._seen_share)

    def _end_lifelines(self, follower: str, followed: str, share: float) -> None:
        end = self._ends.get(follower)
        if end is not None and end.follows(followed) and self._world.random.random() < share:
            self._world.after(self._world.between(100, 100_000), lambda: end.lose(followed))

    def set_aside(self, name: str, belongs: Callable[[str], bool]) -> None:
        """Another process takes the name of a process. Messages from the senders for which `belongs` is true still go
        to the first process."""
        end = self._ends.pop(name, None)
        if end is not None:
            self._aside.append((name, belongs, end))

    def _end_of(self, sender: str, receiver: str) -> SimTransport | None:
        for name, belongs, end in self._aside:
            if name == receiver and belongs(sender):
                return end
        return self._ends.get(receiver)

    def forget(self, sender: str, receiver: str) -> None:
        """The sender closed its side: messages that have not left yet are lost."""
        wire = self._wire(sender, receiver)
        wire.lose(self._world.random.randint(0, len(wire.parcels)))

    def send(self, sender: str, receiver: str, frames: list[bytes]) -> None:
        """Put one message on its way."""
        world = self._world
        self.messages += 1
        world.trace("send", f"{sender}>{receiver}", b"|".join(frames))
        for tap in self.taps:
            tap(sender, receiver, frames)
        wire = self._wire(sender, receiver)
        leaves_us = world.now_us
        if wire.down_until_us > leaves_us:
            if not wire.holds_back:
                return
            leaves_us = wire.down_until_us
        latency_us = world.between(*self._latency_us)
        if world.random.random() < self._spike_share:
            latency_us += world.between(10_000, 200_000)
        wire.last_us = max(wire.last_us + 1, leaves_us + latency_us)
        wire.parcels.append(_Parcel(list(frames)))
        world.at(wire.last_us, lambda: self._arrive(sender, receiver, wire))

    def _arrive(self, sender: str, receiver: str, wire: _Wire) -> None:
        # Arrivals of one wire are on the heap in the order of its parcels, so the oldest parcel arrives.
        parcel = wire.parcels.popleft()
        end = self._end_of(sender, receiver)
        if parcel.lost or end is None:
            return
        end.deliver(sender, parcel.frames)

    def _wire(self, sender: str, receiver: str) -> _Wire:
        return self._wires.setdefault((sender, receiver), _Wire())


class SimTransport:
    """`Transport` of one actor."""

    def __init__(self, network: Network, actor: Actor) -> None:
        self._network = network
        self._actor = actor
        self._name = actor.name
        self._connected: dict[str, None] = {}
        self._callers: dict[str, None] = {}
        self._inbox: list[tuple[str, list[Frame]]] = []
        self._followed: dict[str, None] = {}
        self._gone: list[str] = []
        self.ipc_address: str | None = f"{ADDRESS_PREFIX}{actor.name}"

    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable. The address of a process follows from its name."""
        self._actor.used("connect")
        self._check(peer, address)
        self._connected[peer] = None

    def disconnect(self, peer: str) -> None:
        """Forget `peer`; messages to `peer` that have not left yet are dropped."""
        self._actor.used("disconnect")
        if peer in self._connected:
            del self._connected[peer]
            self._network.forget(self._name, peer)
        self._callers.pop(peer, None)
        self.let_go(peer)

    def send(self, peer: str, frames: Sequence[Frame]) -> None:
        """Queue one message."""
        self._actor.used("send")
        if peer in self._connected or peer in self._callers:
            self._network.send(self._name, peer, [bytes(memoryview(frame)) for frame in frames])

    def receive(self) -> list[tuple[str, list[Frame]]]:
        """Every message that has arrived, oldest first."""
        arrived, self._inbox = self._inbox, []
        if arrived:
            self._actor.used("receive")
        return arrived

    def follow(self, peer: str, address: str) -> None:
        """From here on, tell in `gone` when `peer` is gone. The network may fail to notice it."""
        self._actor.used("follow")
        self._check(peer, address)
        self._followed[peer] = None

    def let_go(self, peer: str) -> None:
        """Follow `peer` no more."""
        self._followed.pop(peer, None)

    def gone(self) -> list[str]:
        """The followed processes that are gone since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def dumped(self) -> list[tuple[str, str]]:
        """Nothing: no code of a world holds Python's lock."""
        return []

    def follows(self, peer: str) -> bool:
        """Whether the end of the connection to `peer` would be noticed."""
        return peer in self._followed

    def lose(self, peer: str) -> None:
        """The connection to `peer` has ended."""
        if peer in self._followed:
            del self._followed[peer]
            self._gone.append(peer)
            self._actor.wake()

    def _check(self, peer: str, address: str) -> None:
        if address != f"{ADDRESS_PREFIX}{peer}":
            raise ValueError(f"{peer} cannot be reached at {address!r}")

    def has_heard(self, peer: str) -> bool:
        """Whether a message of `peer` has arrived here."""
        return peer in self._callers

    def deliver(self, sender: str, frames: list[Frame]) -> None:
        """A message of `sender` has arrived."""
        self._callers[sender] = None
        self._inbox.append((sender, frames))
        self._actor.wake()
