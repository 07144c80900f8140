"""What a master is joined to, played by a test: the network, the cluster and storage."""

from __future__ import annotations

from penstock.core.errors import StorageError


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

    def read(self, path):
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


class Followed:
    """The part of a transport that tells who is gone: those that the test says."""

    def __init__(self):
        self.followed = {}
        self.lost = []

    def follow(self, peer, address):
        self.followed[peer] = address

    def let_go(self, peer):
        self.followed.pop(peer, None)

    def gone(self):
        gone, self.lost = self.lost, []
        return gone


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
