"""Which completed checkpoints are kept.

While there are more completed checkpoints than wanted, the oldest checkpoint is removed, except

* the latest checkpoint of all, and
* the newest checkpoint that is not a savepoint, unless the latest is a synchronous savepoint: the job ends with a
  synchronous savepoint.
"""

from __future__ import annotations

from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.recovery.metadata import CompletedCheckpoint


class RetainedCheckpoints:
    """The completed checkpoints in the store, in order."""

    def __init__(self, num_retained: int, completed: tuple[CompletedCheckpoint, ...]) -> None:
        self._num_retained = num_retained
        self._list = sorted(completed, key=lambda c: c.checkpoint)

    @property
    def all(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, oldest first."""
        return tuple(self._list)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that a failover restores."""
        return self._list[-1] if self._list else None

    def subsumed_by(self, newcomer: CompletedCheckpoint) -> list[CompletedCheckpoint]:
        """The checkpoints that are removed if `newcomer` is added, oldest first."""
        if self._list and self._list[-1].checkpoint >= newcomer.checkpoint:
            raise InvariantError(
                f"checkpoint {newcomer.checkpoint} completed after checkpoint {self._list[-1].checkpoint}"
            )
        return self._surplus([*self._list, newcomer])

    def _surplus(self, together: list[CompletedCheckpoint]) -> list[CompletedCheckpoint]:
        latest = together[-1]
        if latest.kind.is_synchronous:
            spared = None
        else:
            spared = next((c for c in reversed(together) if not c.kind.is_savepoint), None)
        removable = [c for c in together[:-1] if c is not spared]
        return removable[: max(0, len(together) - self._num_retained)]

    def lowest_with(self, newcomer: CompletedCheckpoint) -> CheckpointId:
        """The lowest id that is left if `newcomer` is added."""
        gone = {c.checkpoint for c in self.subsumed_by(newcomer)}
        return min(c.checkpoint for c in (*self._list, newcomer) if c.checkpoint not in gone)

    def add(self, newcomer: CompletedCheckpoint) -> list[CompletedCheckpoint]:
        """Add `newcomer`. Returns the checkpoints that are removed for it, oldest first."""
        subsumed = self.subsumed_by(newcomer)
        gone = {c.checkpoint for c in subsumed}
        self._list = [c for c in self._list if c.checkpoint not in gone] + [newcomer]
        return subsumed

    def drop_surplus(self) -> list[CompletedCheckpoint]:
        """Remove the checkpoints that are too many. Returns them, oldest first."""
        surplus = self._surplus(self._list) if self._list else []
        self._list = [c for c in self._list if c not in surplus]
        return surplus

    def keep_only(self, completed: list[CompletedCheckpoint]) -> None:
        """The job is over; only these checkpoints are left."""
        self._list = sorted(completed, key=lambda c: c.checkpoint)
