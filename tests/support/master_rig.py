"""What a master is joined to, played by a test: the network, the cluster and storage."""

from __future__ import annotations

from penstock.core.errors import StorageError
from penstock.core.ids import Instant
from penstock.core.messages import Register
from penstock.runtime.links import Links
from penstock.runtime.master.slot_links import NO_EPOCH
from penstock.wire.codec import decode_to_slot, encode_message
from penstock.wire.frames import Kind


class Files(dict):
    """A store in memory."""

    failing = False
    refusing: frozenset[str] = frozenset()
    """What cannot be written."""

    def write(self, path, data):
        if path in self.refusing:
            raise StorageError("the disk is full")
        self[path] = bytes(data)

    def create(self, path, data):
        return self.setdefault(path, bytes(data)) == bytes(data)

    def read(self, path, *, limit=None):
        return self[path]

    def list_files(self, prefix):
        return sorted(path for path in self if path.startswith(f"{prefix}/"))

    def delete(self, path):
        self.pop(path, None)

    def delete_tree(self, prefix):
        if self.failing:
            raise StorageError("the disk is gone")
        for path in self.list_files(prefix):
            del self[path]

    def at(self, root):
        return FilesAt(self, root)


class FilesAt:
    """The same store, seen from another root."""

    def __init__(self, files, root):
        self._files = files
        self._root = root

    def write(self, path, data):
        self._files.write(f"{self._root}/{path}", data)

    def read(self, path):
        return self._files.read(f"{self._root}/{path}")

    def list_files(self, prefix):
        start = len(self._root) + 1
        return [path[start:] for path in self._files.list_files(f"{self._root}/{prefix}".rstrip("/"))]

    def delete(self, path):
        self._files.delete(f"{self._root}/{path}")


class Followed:
    """The part of a transport that tells who is gone: those that the test says."""

    def __init__(self):
        self.followed = {}
        self.lost = []
        self.dumps = []

    def follow(self, peer, address):
        self.followed[peer] = address

    def let_go(self, peer):
        self.followed.pop(peer, None)

    def gone(self):
        gone, self.lost = self.lost, []
        return gone

    def dumped(self):
        dumps, self.dumps = self.dumps, []
        return dumps


class Wires(Followed):
    """A transport that leads to the slots that the test plays."""

    def __init__(self):
        super().__init__()
        self.to_master = []
        self.to_slots = {}

    def connect(self, peer, address):
        raise AssertionError("slots call the master, not the other way round")

    def disconnect(self, peer):
        self.let_go(peer)

    def send(self, peer, frames):
        self.to_slots.setdefault(peer, []).append([bytes(frame) for frame in frames])

    def receive(self):
        arrived, self.to_master = self.to_master, []
        return arrived


class SlotWire:
    """The same network from the side of one slot."""

    def __init__(self, wires, name):
        self._wires = wires
        self._name = name

    def connect(self, peer, address):
        pass

    def send(self, peer, frames):
        self._wires.to_master.append((self._name, list(frames)))

    def gone(self):
        return []

    def dumped(self):
        return []

    def receive(self):
        return [("master", frames) for frames in self._wires.to_slots.pop(self._name, [])]


class Cluster:
    """Where slots come from: the test plays them."""

    def __init__(self):
        self.started = []
        self.stopped = []
        self.news = []

    def start(self, slot):
        self.started.append(slot)

    def stop(self, slot):
        self.stopped.append(slot)

    def ended(self):
        news, self.news = self.news, []
        return news


class Clock:
    """The time of a stage."""

    def __init__(self, stage):
        self._stage = stage

    def now(self):
        return Instant(self._stage.time)

    def precise_ms(self):
        return 0.0


class Slot:
    """A slot played by the test."""

    def __init__(self, wires, slot):
        self.slot = slot
        self.heard = []
        self.links = Links(SlotWire(wires, str(slot)), on_packet=self._on_packet, on_broken=lambda peer, text: None)

    def _on_packet(self, peer, packet):
        if packet.header.kind is Kind.CONTROL:
            self.heard.append(decode_to_slot(packet.payload))

    def say(self, message):
        self.links.send("master", Kind.CONTROL, encode_message(message), epoch=NO_EPOCH)

    def register(self):
        self.say(Register(slot=self.slot, host="h", pid=1, ipc_address="ipc", tcp_address=None))
        return self

    def hears(self):
        self.links.receive(Instant(0))
        heard, self.heard = self.heard, []
        return heard
