"""The coordinator of a sink that commits on the driver.

The metadata of a complete checkpoint names what every subtask prepared, and at which barrier. Everything that was
prepared at one barrier is a *group*. A group is committed by one call, and groups are committed in the order of the
barriers. A group never changes once a checkpoint that names the group is complete. So a call that is made again after a
failure has the same id and the same content, whichever checkpoint is restored. When a call has returned, subtasks are
told to carry the group no further. The state of the next checkpoint says that the group is committed.

A driver that takes a job over first commits the groups that the newest checkpoint names, as after any failure. The
driver abandons what earlier drivers prepared beyond these groups. A driver that has lost the job commits and abandons
nothing.
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
        """Checkpoints below `first_id` belong to earlier drivers. `keeps`: a checkpoint of an earlier driver may be
        complete or retained, and may name groups. These groups are not known before the checkpoint is restored."""
        super().__init__(host)
        self._committer = committer
        committer.bind_hold(host.guard.hold)
        self._keeps = keeps
        self._committed = 0
        """All groups up to this checkpoint id are committed."""
        self._asked = 0
        """The commits of all groups up to this checkpoint id have returned or are under way."""
        self._promised: Sequence[bytes] = ()
        self._waiting: deque[tuple[int, list[bytes]]] = deque()
        """Groups to commit, in order. The commit of the first group is under way."""
        self._tried = 0
        self._returned = 0
        """`_tried` is the newest group whose commit was begun in this process, and `_returned` the newest group whose
        commit has returned."""
        self._asked_for = first_id - 1
        """The newest checkpoint that any subtask may have heard of."""
        self._saved: Sequence[bytes] = ()
        """The parts of the newest savepoint of this attempt, if no checkpoint has committed its groups yet."""

    def reset(self, restored: bytes | None, parts: Sequence[bytes]) -> None:
        """Start from a checkpoint. `run` commits the groups of the checkpoint first."""
        self._keeps = False
        self._committed = 0 if restored is None else msgspec.msgpack.decode(restored, type=int)
        self._asked = self._committed
        self._promised = parts
        self._saved = ()
        self._waiting.clear()

    def run(self) -> None:
        """Tell the subtasks up to which checkpoint all groups are committed, and commit the groups of the restored
        checkpoint that are not committed yet. The committer removes prepared results that no snapshot names."""
        super().run()
        if self._committed:
            self.tell_all(encode_event(Committed(checkpoint=self._committed)))
        promised, self._promised = self._promised, ()
        self._let_go_of_all_but(_committables((*promised, *self.saved)))
        self._commit(promised)

    def _let_go_of_all_but(self, promised: Sequence[bytes]) -> None:
        """Have the committer remove the results that earlier attempts prepared, except for the results that a completed
        checkpoint or a savepoint names."""
        newest, epoch = self._asked_for, self.epoch
        if epoch > 1:
            self.off_loop(lambda: self._committer.clean_up(self.host.job, epoch, promised), lambda _: None)
        if newest:
            self.off_loop(lambda: self._committer.abandon(newest, promised), lambda _: None)

    def snapshot(self, checkpoint: CheckpointId) -> bytes:
        """The state of this coordinator: the checkpoint id up to which all groups of committables are committed."""
        self._asked_for = max(self._asked_for, checkpoint)
        return msgspec.msgpack.encode(self._committed)

    def completed(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: ARG002
        """Commit the groups of the checkpoint, one by one. The groups of savepoints of this attempt are among them."""
        self._saved = ()
        if self.running:
            self._commit(parts)
        else:
            # The next attempt starts from this checkpoint, and gets the parts again. If no attempt follows, `close`
            # commits the groups.
            self._promised = parts

    def saved_with(self, checkpoint: CheckpointId, parts: Sequence[bytes]) -> None:  # noqa: ARG002  # parts have their ids
        """Nothing is committed for a savepoint. The parts of a newer savepoint repeat the parts of an older
        savepoint."""
        self._saved = parts

    def stop(self) -> None:
        """The attempt is over: the groups of its savepoints will not be committed with a checkpoint any more."""
        super().stop()
        self.saved, self._saved = (*self.saved, *self._saved), ()

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Nothing to do: subtasks carry on what they prepared, and it is committed with the next checkpoint."""

    def close(self) -> None:
        """Commit the groups of completed checkpoints that have not been tried, and close the committer. A group whose
        commit failed, and the groups behind it, are left to a job that starts from a snapshot that names them, or to
        another driver that has the job. Groups that only savepoints name are left to a job that starts from such a
        savepoint."""
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
        """The groups in `parts` whose commit was not asked for yet, in the order of the barriers."""
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
        """Commit one group. Runs off the loop. Apart from this call, only `close`, which runs off the loop too, uses
        `_tried` and `_returned`."""
        before, self._tried = self._tried, checkpoint
        try:
            self._committer.commit(checkpoint, committables)
        except (HoldUnknown, JobTakenOver):
            # The committer itself looked at the hold and stopped, before the commit or before the work that follows the
            # commit. So the group counts as not tried.
            self._tried = before
            raise
        self._returned = checkpoint

    def _commit_next(self) -> None:
        """Commit one group at a time: if the commit of a group fails, a later group must not be committed before it."""
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
