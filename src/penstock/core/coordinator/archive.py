"""Which files and records exist on behalf of checkpoints, and who owns each.

A file belongs to exactly one of:

* a pending checkpoint: deleted with it,
* a retained checkpoint: deleted when it is subsumed or the job ends, as its discard rules say,
* the registry of shared files: deleted when no retained checkpoint can use it any more,
* the user: a savepoint that completed; never deleted,
* nobody: the acknowledgement was late, or work answered for a checkpoint that had ended; deleted at once.

Nothing is deleted while work of ours could still write beside it: the folder of a checkpoint that is aborted while its
folder or its metadata is being made goes when that work has answered.

A record that may or may not have been stored keeps its files: another driver could find it. Once a newer record is
stored, which drops the doubtful one, they go.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.coordinator.cleaner import Cleaner
from penstock.core.coordinator.effects import DeleteFiles, ForgetPointers, StorePointer
from penstock.core.coordinator.events import JobEnd
from penstock.core.coordinator.pending import PendingCheckpoint, Phase, own_files_of
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId
from penstock.core.messages import SubtaskState
from penstock.core.recovery.metadata import CompletedCheckpoint, DiscardRules

StorageEffect = StorePointer | ForgetPointers | DeleteFiles


class _Leftover(NamedTuple):
    paths: tuple[str, ...]
    folder: str | None


class Stored(NamedTuple):
    """What storing a completed checkpoint led to."""

    completed: CompletedCheckpoint
    subsumed: tuple[CompletedCheckpoint, ...]
    """Those that are not retained any more, oldest first."""
    effects: list[StorageEffect]


class Archive:
    """Everything durable that the coordinator answers for."""

    def __init__(self, num_retained: int, completed: tuple[CompletedCheckpoint, ...]) -> None:
        self.registry = SharedStateRegistry()
        self.cleaner = Cleaner()
        self._retained = RetainedCheckpoints(num_retained, completed)
        for checkpoint in self._retained.all:
            self.registry.register_restored(checkpoint)
        self._storing: CompletedCheckpoint | None = None
        self._subsumed: list[CompletedCheckpoint] = []
        """Not retained any more, but files in their folders are still used."""
        self._doubtful: list[CompletedCheckpoint] = []
        """Perhaps stored, perhaps not."""
        self._savepoints: dict[CheckpointId, str | None] = {}
        """All savepoints of this driver's time, for users take few -> the folder of each, if it got one."""
        self._of_user: dict[CheckpointId, frozenset[str]] = {}
        """Those of them that completed -> their files."""
        self._unanswered: dict[CheckpointId, _Leftover] = {}
        """Aborted while work for them was under way."""
        self._ended: JobEnd | None = None
        self._is_swept = False

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The completed checkpoints in the store, oldest first."""
        return self._retained.all

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """What a failover restores."""
        return self._retained.latest

    @property
    def doubtful(self) -> tuple[CheckpointId, ...]:
        """Those that may be on record although storing them seemed to fail. A failover that restores an older one
        withdraws them first: another driver would find them when what they promised to commit is gone."""
        return tuple(c.checkpoint for c in self._doubtful)

    def kept_after(self, status: JobEnd) -> tuple[CheckpointId, ...]:
        """Those that the job took and that would outlive it, if it ended like this now."""
        everything = (*self._retained.all, *self._doubtful)
        own = [c for c in everything if c.claim is None]
        return tuple(sorted(c.checkpoint for c in own if not _discards(c.discard, status)))

    @property
    def is_storing(self) -> bool:
        """Whether a record is being stored: until the answer nobody knows what a failover would restore."""
        return self._storing is not None

    @property
    def is_idle(self) -> bool:
        """Whether no storage work is under way at all, of pending checkpoints aside."""
        return not self.is_storing and not self._unanswered and self.cleaner.is_idle

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def register(self, state: SubtaskState, checkpoint: CheckpointId) -> tuple[list[DeleteFiles], str | None]:
        """Take note of the shared files that an acknowledgement names, whatever becomes of it; a savepoint shares none.
        The text says why it cannot be right; None if it can."""
        if checkpoint in self._savepoints:
            borrowed = any(f.placeholder for f in state.files)
            return [], "a savepoint refers to a file of another checkpoint" if borrowed else None
        retained = self._retained.all
        if retained and checkpoint < retained[0].checkpoint:
            # Whatever it wrote was let go, or would be: registered again, it would be taken for a file that exists.
            return self.cleaner.clean_leftovers(self.registry.strays_in(state.files)), None
        registration = self.registry.register(state.files, checkpoint)
        deletions = self.cleaner.clean_leftovers(registration.superfluous)
        if self._is_swept:
            deletions += self.cleaner.clean_leftovers(self.registry.drop_all_but(self._retained.all))
        return deletions, registration.problem

    def discard(
        self, state: SubtaskState, checkpoint: CheckpointId, pending: PendingCheckpoint | None
    ) -> list[DeleteFiles]:
        """Delete what an acknowledgement that does not count brought along. What the same checkpoint holds already
        stays: the message may be a repeated one."""
        held = set(self._of_user.get(checkpoint, ()))
        held.update(*(c.private_files for c in self._known() if c.checkpoint == checkpoint))
        if pending is not None:
            held.update(pending.own_files())
        own = own_files_of(state, shares=checkpoint not in self._savepoints)
        left = [path for path in own if path not in held]
        return self.cleaner.clean_leftovers(left, self._savepoints.get(checkpoint))

    def _known(self) -> tuple[CompletedCheckpoint, ...]:
        return (*self._retained.all, *self._subsumed, *self._doubtful)

    # --- aborted checkpoints ------------------------------------------------------------------------------------------

    def abandon(self, pending: PendingCheckpoint) -> list[DeleteFiles]:
        """Delete what belongs to a checkpoint that will never complete, now or when its work has answered."""
        leftover = _Leftover(pending.own_files(), pending.location)
        if pending.phase in (Phase.LOCATING, Phase.WRITING):
            self._unanswered[pending.checkpoint] = leftover
            return []
        return self._clean(pending.checkpoint, leftover)

    def answered(self, checkpoint: CheckpointId, folder: str | None = None) -> list[DeleteFiles]:
        """Work for a checkpoint that is not pending has answered, having made `folder` or not."""
        leftover = self._unanswered.pop(checkpoint, None)
        if leftover is None:
            return []
        return self._clean(checkpoint, leftover if leftover.folder is not None else leftover._replace(folder=folder))

    def _clean(self, checkpoint: CheckpointId, leftover: _Leftover) -> list[DeleteFiles]:
        return self.cleaner.clean_checkpoint(leftover.paths, leftover.folder, self._savepoints.get(checkpoint))

    # --- completed checkpoints ----------------------------------------------------------------------------------------

    def expect_savepoint(self, checkpoint: CheckpointId) -> None:
        """A savepoint begins under that id."""
        self._savepoints[checkpoint] = None

    def locate_savepoint(self, checkpoint: CheckpointId, folder: str) -> None:
        """A savepoint has its folder, in which the paths of its files begin."""
        self._savepoints[checkpoint] = folder

    @property
    def failed_savepoints(self) -> tuple[str, ...]:
        """The folders of savepoints that did not complete, when none is under way."""
        failed = (folder for checkpoint, folder in self._savepoints.items() if checkpoint not in self._of_user)
        return tuple(folder for folder in failed if folder is not None)

    def give_to_user(self, pending: PendingCheckpoint) -> None:
        """A savepoint is there, and nobody but the user deletes it."""
        self._of_user[pending.checkpoint] = frozenset(pending.own_files())

    def store(self, completed: CompletedCheckpoint) -> StorePointer:
        """Have a completed checkpoint recorded; one at a time, so that they complete in order."""
        if self._storing is not None:
            raise InvariantError(f"checkpoints {self._storing.checkpoint} and {completed.checkpoint} stored at once")
        self._storing = completed
        lowest = self._retained.lowest_with(completed)
        gone = [*self._subsumed, *self._retained.subsumed_by(completed)]
        # One whose folder is still used stays on record, or a driver that crashes would leave it behind for good.
        forget = [c for c in gone if not self.registry.holds(c, lowest)]
        forget += [c for c in self._doubtful if c.checkpoint < completed.checkpoint]
        return StorePointer(completed=completed, forget=tuple(c.checkpoint for c in forget))

    def stored(self) -> Stored:
        """The record is durable: older ones may go."""
        completed = self._take_storing()
        subsumed = self._retained.add(completed)
        self._subsumed += [c for c in subsumed if c.discard.subsumed]
        outdated = [c for c in self._doubtful if c.checkpoint < completed.checkpoint and c.discard.subsumed]
        self._doubtful = [c for c in self._doubtful if c.checkpoint > completed.checkpoint]
        effects: list[StorageEffect] = []
        for checkpoint in outdated:
            effects += self._delete(checkpoint)
        lowest = self._retained.all[0].checkpoint
        effects += self.cleaner.clean_leftovers(self.registry.drop_unused(lowest))
        effects += self._delete_subsumed(lowest)
        return Stored(completed, tuple(subsumed), effects + self._sweep())

    def not_stored(self, *, inconsistent: bool) -> list[StorageEffect]:
        """The record was not stored; if `inconsistent`, it may have been all the same."""
        completed = self._take_storing()
        if inconsistent:
            self._doubtful.append(completed)
        return self._sweep()

    def _take_storing(self) -> CompletedCheckpoint:
        completed, self._storing = self._storing, None
        if completed is None:
            raise InvariantError("the store of completed checkpoints answered without being asked")
        return completed

    def _delete(self, completed: CompletedCheckpoint) -> list[DeleteFiles]:
        return self.cleaner.clean_checkpoint(completed.private_files, completed.location)

    def _delete_subsumed(self, lowest: CheckpointId) -> list[DeleteFiles]:
        """Delete those whose folders no checkpoint from `lowest` on uses."""
        held = [c for c in self._subsumed if self.registry.holds(c, lowest)]
        free = [c for c in self._subsumed if not self.registry.holds(c, lowest)]
        self._subsumed = held
        return [deletion for checkpoint in free for deletion in self._delete(checkpoint)]

    # --- the end ------------------------------------------------------------------------------------------------------

    def shut_down(self, status: JobEnd) -> list[StorageEffect]:
        """The job is over, or given up by this driver. A record that is being stored is waited for first."""
        self._ended = status
        return self._sweep()

    def _sweep(self) -> list[StorageEffect]:
        """After a final end: drop all records, and delete what the discard rules say."""
        if self._ended is None or not self._ended.is_final or self.is_storing:
            return []
        self._is_swept = True
        everything = [*self._retained.all, *self._doubtful]
        records = sorted(c.checkpoint for c in (*everything, *self._subsumed))
        kept = [c for c in everything if not _discards(c.discard, self._ended)]
        self._subsumed += [c for c in everything if _discards(c.discard, self._ended)]
        self._retained.keep_only(kept)
        self._doubtful = []
        effects: list[StorageEffect] = [ForgetPointers(checkpoints=tuple(records))] if records else []
        effects += self.cleaner.clean_leftovers(self.registry.drop_all_but(kept))
        return effects + self._delete_subsumed(CheckpointId(0))

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        ids = [c.checkpoint for c in self._retained.all]
        if ids != sorted(set(ids)):
            raise InvariantError(f"the retained checkpoints {ids} are not in order")


def _discards(rules: DiscardRules, status: JobEnd) -> bool:
    return {
        JobEnd.FINISHED: rules.finished,
        JobEnd.FAILED: rules.failed,
        JobEnd.CANCELLED: rules.cancelled,
        JobEnd.SUSPENDED: False,
    }[status]
