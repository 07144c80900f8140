"""The coordinator of a sink that commits on the driver.

When a checkpoint is complete, its metadata names what every subtask prepared, since which barrier. What was prepared at
one barrier is committed by one call, in the order of the barriers. Such a group never changes once a checkpoint that
names it is complete, so a call that is made again after a failure has the same id and the same content, whichever
checkpoint is restored. When a call has returned, subtasks are told to carry the group no further; that it has is in the
state of the next checkpoint.

A driver that takes a job over begins by committing what the newest checkpoint promises, as after any failure, and lets
go of what drivers before it prepared beyond that. A driver that has lost the job commits and abandons nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from penstock.api.connector import Committer
from penstock.api.hold import HoldUnknown
from penstock.core.errors import JobTakenOver
from penstock.core.ids import CheckpointId
from penstock.runtime.master.operator_coordinators.contract import CoordinatorHost, OperatorCoordinator
from penstock.runtime.task.operators.events import Committed, encode_event
from penstock.runtime.task.operators.sink import COMMITTABLES, decode_committables


class DriverCommits(OperatorCoordinator):
    """Commits groups one after another."""

    parts_name = COMMITTABLES
    outlives_slots = True

    def __init__(
        self,
        host: CoordinatorHost,
        committer: Committer,
        *,
        first_id: CheckpointId = CheckpointId(1),
        keeps: bool = False,
    ) -> None:
        """Checkpoints below `first_id` are those of drivers before this one. `keeps` says that one of them is complete,
        or retained: it may promise something, which is not known before it is restored."""
        super().__init__(host)
        self._committer = committer
        committer.bind_hold(host.guard.hold)
        self._keeps = keeps
        self._committed = 0
        """Everything up to here is committed."""
        self._asked = 0
        """Everything up to here is committed or under way."""
        self._promised: Sequence[bytes] = ()
        self._waiting: deque[tuple[int, list[bytes]]] = deque()
        """The first one is under way."""
        self._tried = 0
        self._returned = 0
        """The newest commits that were begun, and that have returned, in this process."""
        self._asked_for = first_id - 1
        """The newest checkpoint that any subtask may have heard of."""
        self._saved: Sequence[bytes] = ()
        """What savepoints of this attempt promise, and no checkpoint has committed yet."""

    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """What the restored checkpoint promised is committed first."""
        self._keeps = False
        self._committed = 0 if restored is None else msgspec.msgpack.decode(restored, type=int)
        self._asked = self._committed
        self._promised = parts
        self._saved = ()
        self._waiting.clear()

    def run(self) -> None:
        """Say what is on record, and commit what is promised beyond it."""
        super().run()
        if self._committed:
            self.tell_all(encode_event(Committed(checkpoint=self._committed)))
        promised, self._promised = self._promised, ()
        self._let_go_of_all_but(_committables((*promised, *self.saved)))
        self._commit(promised)

    def _let_go_of_all_but(self, promised: Sequence[bytes]) -> None:
        """Attempts before this one may have prepared what no completed checkpoint, and no savepoint, names."""
        newest, epoch = self._asked_for, self.epoch
        if epoch > 1:
            self.off_loop(lambda: self._committer.clean_up(self.host.job, epoch, promised), lambda _: None)
        if newest:
            self.off_loop(lambda: self._committer.abandon(newest, promised), lambda _: None)

    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """What is committed."""
        self._asked_for = max(self._asked_for, checkpoint)
        return msgspec.msgpack.encode(self._committed)

    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: ARG002
        """Commit what the checkpoint promises, group by group. What savepoints of this attempt promise is among it."""
        self._saved = ()
        if self.running:
            self._commit(parts)
        else:
            # The next attempt starts from it, and is told of them again; if there is none, they are owed.
            self._promised = parts

    def saved_with(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: ARG002  # parts have their ids
        """Nothing is committed for a savepoint. Parts of a newer one repeat those of an older one."""
        self._saved = parts

    def stop(self) -> None:
        """The attempt is over: what its savepoints promise will not be committed with a checkpoint any more."""
        super().stop()
        self.saved, self._saved = (*self.saved, *self._saved), ()

    def aborted(self, checkpoint: CheckpointId) -> None:
        """What was prepared for it is carried on, and committed with the next one."""

    def close(self) -> None:
        """Commit what has been promised and not been tried, and close the committer. What is left after one that failed
        may be done by another job, from a snapshot that promises it; or by another driver, if that has the job. What
        only savepoints promise is left to a job that starts from one."""
        owed = deque(group for group in (*self._waiting, *self._groups(self._promised)) if group[0] > self._returned)
        keeps = True
        try:
            try:
                while owed and owed[0][0] > self._tried:
                    self.host.guard.hold.check()
                    self._perform(*owed[0])
                    owed.popleft()
            finally:
                self.host.guard.hold.check()
                if not self._keeps:
                    promised = [committable for _, group in owed for committable in group]
                    self._committer.abandon(self._asked_for, [*promised, *_committables(self.saved)])
                keeps = bool(owed) or self._keeps or bool(self.saved)
        finally:
            self._committer.close(owes=keeps)

    def _groups(self, parts: Sequence[bytes]) -> list[tuple[int, list[bytes]]]:
        """What is to be committed and was not asked for yet, in the order of the barriers."""
        groups: dict[int, list[bytes]] = {}
        for checkpoint, committable in (piece for part in parts for piece in decode_committables(part)):
            if checkpoint > self._asked:
                groups.setdefault(checkpoint, []).append(committable)
        return sorted(groups.items())

    def _commit(self, parts: Sequence[bytes]) -> None:
        idle = not self._waiting
        for group in self._groups(parts):
            self._asked = group[0]
            self._waiting.append(group)
        if idle:
            self._commit_next()

    def _perform(self, checkpoint: int, committables: list[bytes]) -> None:
        """Runs off the loop, where only it and `close` do."""
        before, self._tried = self._tried, checkpoint
        try:
            self._committer.commit(checkpoint, committables)
        except (HoldUnknown, JobTakenOver):
            # The committer looked again, and did not do it, or had done it before and not all that follows.
            self._tried = before
            raise
        self._returned = checkpoint

    def _commit_next(self) -> None:
        """One at a time: what follows one that fails must not be committed before it."""
        if not self._waiting:
            return
        checkpoint, committables = self._waiting[0]

        def done(_: None) -> None:
            self._waiting.popleft()
            self._committed = checkpoint
            self.tell_all(encode_event(Committed(checkpoint=checkpoint)))
            self._commit_next()

        self.off_loop(lambda: self._perform(checkpoint, committables), done)


def _committables(parts: Sequence[bytes]) -> list[bytes]:
    return [piece[1] for part in parts for piece in decode_committables(part)]
