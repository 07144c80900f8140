"""Snapshots under way over layered containers, and when the frozen layers may be changed again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any

from penstock.core.ids import CheckpointId
from penstock.state.layers import Layers


class _Stage(Enum):
    WAITING = auto()
    RUNNING = auto()
    OVER = auto()


class Underway:
    """One snapshot, used by two threads: the loop, and the thread that does the work of the snapshot. The loop may give
    the snapshot up until the work has begun."""

    def __init__(self, checkpoint: CheckpointId) -> None:
        self.checkpoint = checkpoint
        self._stage = _Stage.WAITING
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """The work starts; False if the snapshot was given up."""
        with self._lock:
            if self._stage is not _Stage.WAITING:
                return False
            self._stage = _Stage.RUNNING
            return True

    def end(self) -> None:
        """The work is done, or failed."""
        self._stage = _Stage.OVER

    def give_up(self) -> None:
        """The snapshot is not needed any more. Work that has begun goes on."""
        with self._lock:
            if self._stage is _Stage.WAITING:
                self._stage = _Stage.OVER

    @property
    def is_over(self) -> bool:
        """Whether the snapshot does not read the frozen layers any more."""
        return self._stage is _Stage.OVER


class SnapshotsUnderway:
    """All snapshots of one set of containers. Only the loop may use this object; only an `Underway` goes to other
    threads."""

    def __init__(self, containers: Callable[[], Iterable[Layers[Any]]]) -> None:
        self._containers = containers
        self._open: list[Underway] = []

    def begin(self, checkpoint: CheckpointId) -> Underway:
        """Begin a snapshot. The caller has just frozen the containers for it."""
        self._open.append(Underway(checkpoint))
        return self._open[-1]

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: give up the snapshots of earlier checkpoints whose work has not begun."""
        for snapshot in self._open:
            if snapshot.checkpoint < checkpoint:
                snapshot.give_up()
        self.settle()

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is aborted: give up its snapshot, if the work of the snapshot has not begun."""
        for snapshot in self._open:
            if snapshot.checkpoint == checkpoint:
                snapshot.give_up()
        self.settle()

    def settle(self) -> bool:
        """Forget the snapshots that are over. Returns whether no snapshot is under way, so that layers may be
        folded."""
        if self._open:
            self._open = [snapshot for snapshot in self._open if not snapshot.is_over]
            if not self._open:
                for layers in self._containers():
                    layers.thaw()
        return not self._open

    def fold(self, budget: int) -> int:
        """Do about `budget` steps of folding, if no snapshot is under way. Returns how many steps were done."""
        done = 0
        if self.settle():
            for layers in self._containers():
                if layers.is_folding and done < budget:
                    done += layers.fold(budget - done)
        return done
