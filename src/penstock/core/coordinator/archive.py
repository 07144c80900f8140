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

Files that lie outside the folder of the job, because it claimed the snapshot that it was started from, are found by
nobody once no record names them. A record that names such files stays until they are deleted: a driver that takes the
job over deletes them again. What the end of a job is to delete there is part of its outcome.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.coordinator.cleaner import Cleaner
from penstock.core.coordinator.effects import CleaningGivenUp, DeleteFiles, ForgetPointers, StorePointer
from penstock.core.coordinator.events import JobEnd
from penstock.core.coordinator.pending import PendingCheckpoint, Phase, own_files_of
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import SubtaskState
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, DiscardRules
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Foreign

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

    def __init__(self, num_retained: int, completed: tuple[CompletedCheckpoint, ...], cleaner: Cleaner) -> None:
        self.registry = SharedStateRegistry()
        self.cleaner = cleaner
        self._retained = RetainedCheckpoints(num_retained, completed)
        for checkpoint in self._retained.all:
            self.registry.register_restored(checkpoint)
        surplus = self._retained.drop_surplus()
        self._left_alone = [c.checkpoint for c in surplus if not c.discard.subsumed]
        """Still on record, and not the job's to delete."""
        self._subsumed = [c for c in surplus if c.discard.subsumed]
        """Not retained any more, but on record: files of theirs are still used, or not known to be deleted."""
        retained = self._retained.all
        self._stale = self.registry.drop_unused(retained[0].checkpoint) if retained else []
        """Shared files that a driver before this one may have deleted, or not."""
        self._named_until: dict[CheckpointId, set[int]] = {}
        """Records that stay until these deletions have ended."""
        self._storing: CompletedCheckpoint | None = None
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

    def foreign_after(self, status: JobEnd) -> tuple[Foreign, ...]:
        """What would be deleted outside the folder of the job, if it ended like this now."""
        everything = (*self._retained.all, *self._doubtful)
        kept = [c for c in everything if not _discards(c.discard, status)]
        used = {shared.created_by for c in kept for shared in c.shared_files}
        ending = [*self._subsumed, *(c for c in everything if c not in kept)]
        claimed = [c for c in ending if c.claim is Claim.CLAIM and not (c.is_self_contained and c.checkpoint in used)]
        places = [Foreign(folder=c.location, paths=c.private_files) for c in claimed]
        shared = [path for path in self.registry.unused_paths(kept) if is_full(path)]
        places += [Foreign(folder=None, paths=tuple(shared))] if shared else []
        return (*places, *(place for place in self.cleaner.foreign() if place not in places))

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

    def clean_again(self, now: Instant) -> list[DeleteFiles]:
        """Try a deletion again that failed, if one is due. A file that is registered by now stays: it is another one of
        the same name."""
        return self.cleaner.retry(self.registry.has_path, now)

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
        forget = [c for c in gone if not self.registry.holds(c, lowest) and not self._lies_outside(c)]
        forget += [c for c in self._doubtful if c.checkpoint < completed.checkpoint]
        return StorePointer(completed=completed, forget=(*self._left_alone, *(c.checkpoint for c in forget)))

    @staticmethod
    def _lies_outside(completed: CompletedCheckpoint) -> bool:
        """Whether it goes with files that do not lie in the folder of the job."""
        return completed.discard.subsumed and (completed.claim is Claim.CLAIM or bool(_foreign(completed)))

    def stored(self) -> Stored:
        """The record is durable: older ones may go."""
        completed = self._take_storing()
        self._left_alone = []
        subsumed = self._retained.add(completed)
        before = [c for c in (*self._subsumed, *subsumed) if self._lies_outside(c)]
        self._subsumed += [c for c in subsumed if c.discard.subsumed]
        outdated = [c for c in self._doubtful if c.checkpoint < completed.checkpoint and c.discard.subsumed]
        self._doubtful = [c for c in self._doubtful if c.checkpoint > completed.checkpoint]
        effects: list[StorageEffect] = []
        for checkpoint in outdated:
            effects += self._delete(checkpoint)
        lowest = self._retained.all[0].checkpoint
        effects += self.cleaner.clean_leftovers([*self._take_stale(), *self.registry.drop_unused(lowest)])
        effects += self._delete_subsumed(lowest)
        self._name_until(before, [e for e in effects if isinstance(e, DeleteFiles)])
        return Stored(completed, tuple(subsumed), effects + self._sweep())

    def _take_stale(self) -> list[str]:
        stale, self._stale = self._stale, []
        # One that is registered by now is another file of the same name.
        return [path for path in stale if not self.registry.has_path(path)]

    def _name_until(self, records: list[CompletedCheckpoint], deletions: list[DeleteFiles]) -> None:
        """Keep records until what they name is deleted."""
        for record in (c for c in records if c not in self._subsumed):
            foreign = _foreign(record)
            self._named_until[record.checkpoint] = {
                d.cleaning for d in deletions if d.folder == record.location or foreign.intersection(d.paths)
            }

    def deleted(self, cleaning: int, error: str | None, now: Instant) -> list[ForgetPointers | CleaningGivenUp]:
        """A deletion has ended; without an error, in success."""
        effects: list[ForgetPointers | CleaningGivenUp] = [*self.cleaner.ended(cleaning, error, now)]
        if error is None:
            for left in self._named_until.values():
                left.discard(cleaning)
            done = tuple(checkpoint for checkpoint, left in self._named_until.items() if not left)
            for checkpoint in done:
                del self._named_until[checkpoint]
            effects += [ForgetPointers(checkpoints=done)] if done else []
        return effects

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
        records = sorted(
            (*self._left_alone, *self._named_until, *(c.checkpoint for c in (*everything, *self._subsumed)))
        )
        self._left_alone = []
        self._named_until.clear()
        kept = [c for c in everything if not _discards(c.discard, self._ended)]
        self._subsumed += [c for c in everything if _discards(c.discard, self._ended)]
        self._retained.keep_only(kept)
        self._doubtful = []
        effects: list[StorageEffect] = [ForgetPointers(checkpoints=tuple(records))] if records else []
        effects += self.cleaner.clean_leftovers([*self._take_stale(), *self.registry.drop_all_but(kept)])
        return effects + self._delete_subsumed(CheckpointId(0))

    def validate(self) -> None:
        """Raise `InvariantError` if the state contradicts itself."""
        ids = [c.checkpoint for c in self._retained.all]
        if ids != sorted(set(ids)):
            raise InvariantError(f"the retained checkpoints {ids} are not in order")


def _foreign(completed: CompletedCheckpoint) -> frozenset[str]:
    """Shared files of a checkpoint that are the job's and do not lie in its folder."""
    paths = (shared.file.path for shared in completed.shared_files if shared.owned)
    return frozenset(path for path in paths if path is not None and is_full(path))


def _discards(rules: DiscardRules, status: JobEnd) -> bool:
    return {
        JobEnd.FINISHED: rules.finished,
        JobEnd.FAILED: rules.failed,
        JobEnd.CANCELLED: rules.cancelled,
        JobEnd.SUSPENDED: False,
    }[status]
