"""Background work and storage of a master whose pace and failures the test decides."""

from __future__ import annotations

from collections import deque

from penstock.core.errors import StorageError
from penstock.ports import Outcome


class Held:
    """Background work of which each look gets at most `pieces` done, in the end all."""

    def __init__(self):
        self.pieces = 1_000
        self._waiting = deque()

    def submit(self, work, done):
        self._waiting.append((work, done))

    def collect(self):
        for _ in range(min(self.pieces, len(self._waiting))):
            work, done = self._waiting.popleft()
            try:
                outcome = Outcome(value=work())
            except Exception as error:  # noqa: BLE001  # as a real one would
                outcome = Outcome(error=error)
            done(outcome)


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
