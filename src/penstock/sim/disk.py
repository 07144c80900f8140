"""The storage of a world: files in memory, which outlive every process.

A faulty call raises before it has done anything, or after it has done everything; the caller cannot tell which. All
processes see a write at once. In some worlds a write is durable only when the piece of background work that made the
write has ended: if the writer crashes before, the write may be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.core.errors import MissingFile, Retry, StorageError
from penstock.ports import Frame
from penstock.sim.world import Actor, World

WriteTap = Callable[[str, bytes], None]
"""Called with the path and the content of every file that is written."""


class Disk:
    """All files of a world, and the faults of the storage."""

    def __init__(self, world: World) -> None:
        self.files: dict[str, bytes] = {}
        self.taps: list[WriteTap] = []
        self.undo_taps: list[Callable[[str], None]] = []
        """Called with the path of every file whose write is undone."""
        self.reads: list[tuple[str, str]] = []
        """Which process has read which path, in order."""
        self.writers: dict[str, str] = {}
        """By path: the process that wrote the file last."""
        self.written_us: dict[str, int] = {}
        """By path: when the file was written last."""
        self.unwritten: list[str] = []
        """The paths of the writes that raised. Such a file may exist all the same."""
        self.errors = 0
        """How many calls raised because of a fault."""
        self.world = world
        self._faulty_until_us = 0
        self._fault_share = 0.0
        self._fails_after = False

    def fail(self, *, for_us: int, share: float, after: bool) -> None:
        """For `for_us`, a share of all calls raises. With `after` a call does its work before it raises."""
        self._faulty_until_us = self.world.now_us + for_us
        self._fault_share = share
        self._fails_after = after

    def store(self, actor: Actor) -> SimStore:
        """The disk as one process sees it."""
        return SimStore(self, actor)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file."""
        self.files[path] = data
        self.world.trace("write", path, data)
        for tap in self.taps:
            tap(path, data)

    def remove(self, path: str) -> None:
        """Delete a file, if the file exists."""
        if self.files.pop(path, None) is not None:
            self.world.trace("delete", path)

    def undo(self, path: str, made: bytes | None, before: bytes | None) -> None:
        """A change was not durable: the file becomes what it was before the change, unless the file was changed again
        since."""
        if self.files.get(path) != made:
            return
        self.world.trace("undo", path)
        if before is None:
            del self.files[path]
        else:
            self.files[path] = before
        if made is not None:
            for tap in self.undo_taps:
                tap(path)

    def draw_fault(self, call: str, path: str) -> str | None:  # noqa: ARG002
        """Whether a call raises `before` or `after` its work; None if the call does not raise."""
        if self.world.now_us >= self._faulty_until_us or self.world.random.random() >= self._fault_share:
            return None
        return "after" if self._fails_after else "before"


class SimStore:
    """`Store` of one actor."""

    def __init__(self, disk: Disk, actor: Actor, root: str = "") -> None:
        self._disk = disk
        self._actor = actor
        self._root = root

    def at(self, root: str) -> SimStore:
        """The files below another root, on the same disk."""
        return SimStore(self._disk, self._actor, f"{root.strip('/')}/")

    @property
    def location(self) -> str:
        """The root, as a full path."""
        return f"/{self._root}".rstrip("/")

    def path_of(self, place: str) -> str | None:
        """The path of `place`, a full path, below this root; None if `place` does not lie below this root."""
        path = place.strip("/")
        return path.removeprefix(self._root) if path.startswith(self._root) else None

    def write(self, path: str, data: Frame) -> None:
        """Create or replace a file, all or nothing."""
        path = self._root + path
        content = bytes(memoryview(data))

        def put() -> None:
            self._remember(path, content)
            self._disk.writers[path] = self._actor.name
            self._disk.written_us[path] = self._disk.world.now_us
            self._disk.put(path, content)

        self._perform("write", path, put)

    def create(self, path: str, data: Frame) -> bool:
        """Create a file, all or nothing; False if the file exists already."""
        full = self._root + path
        if full in self._disk.files:
            self._perform("create", full, lambda: None)
            return False
        self.write(path, data)
        return True

    def obstacle_to_create(self) -> str | None:
        """None: if several writers create the same file, exactly one of them succeeds."""
        return None

    def names(self, place: str) -> str | None:
        """The same as `path_of`: there are no links."""
        return self.path_of(place)

    def followed(self, place: str) -> str:
        """The place as it is: there are no links."""
        return place

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        """The whole file. Raises `StorageError` if the file has more than `limit` bytes, `MissingFile` if the file does
        not exist."""
        path = self._root + path
        self._perform("read", path, lambda: self._disk.reads.append((self._actor.name, path)))
        if path not in self._disk.files:
            raise MissingFile(f"{path} does not exist")
        content = self._disk.files[path]
        if limit is not None and len(content) > limit:
            raise StorageError(f"{path} has {len(content)} bytes, and at most {limit} bytes are expected")
        return content

    def read_pieces(self, path: str, *, limit: int | None = None) -> Iterator[bytes]:
        """The file in one piece."""
        yield self.read(path, limit=limit)

    def list_files(self, prefix: str) -> list[str]:
        """All files below a folder, sorted."""
        below = self._root + prefix
        self._perform("list", below, lambda: None)
        return sorted(path.removeprefix(self._root) for path in self._disk.files if is_below(path, below))

    def delete(self, path: str) -> None:
        """Remove one file."""
        path = self._root + path
        self._perform("delete", path, lambda: self._remove(path))

    def delete_tree(self, prefix: str) -> None:
        """Remove a folder with all that is in it."""
        prefix = self._root + prefix

        def remove_all() -> None:
            for path in [path for path in self._disk.files if is_below(path, prefix)]:
                self._remove(path)

        self._perform("delete", prefix, remove_all)

    def delete_empty(self, prefix: str) -> None:
        """Nothing to remove: on this disk a folder exists only while it has files."""
        self._perform("delete", self._root + prefix, lambda: None)

    def _remove(self, path: str) -> None:
        if path in self._disk.files:
            self._remember(path, None)
            self._disk.remove(path)

    def _remember(self, path: str, made: bytes | None) -> None:
        before = self._disk.files.get(path)
        self._actor.unsynced.append(lambda: self._disk.undo(path, made, before))

    def _perform(self, call: str, path: str, action: Callable[[], None]) -> None:
        self._actor.used(call)
        fault = self._disk.draw_fault(call, path)
        if fault != "before":
            action()
        if fault is not None:
            self._disk.errors += 1
            if call == "write":
                self._disk.unwritten.append(path)
            raise StorageError(f"cannot {call} {path}: the storage is out of order", retry=Retry.LATER)
        # The process may also die here, when the work is done and the caller does not know it yet.
        self._actor.used(f"{call}-done")


def is_below(path: str, prefix: str) -> bool:
    """Whether a file lies in a folder, however deep."""
    folder = prefix.rstrip("/")
    return folder == "" or path.startswith(f"{folder}/")
