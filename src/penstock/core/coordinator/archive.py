"""Which files and records exist for checkpoints, and which owner deletes each of them.

A file belongs to exactly one of:

* a pending checkpoint: the file is deleted with the checkpoint,
* a retained checkpoint: the file is deleted when the checkpoint is subsumed or the job ends, as the checkpoint's
  discard rules say,
* the registry of shared files: the file is deleted when no retained checkpoint can use the file any more,
* the user, if the file is part of a completed savepoint: the file is never deleted,
* nobody, if the acknowledgement was late, or storage work answered for a checkpoint that had ended: the file is deleted
  at once.

Nothing is deleted while storage work could still write beside it. The folder of a checkpoint that is aborted while its
folder or its metadata is being made is deleted when that work has answered.

A record is doubtful if nobody knows whether the record was stored. The files of a doubtful record stay, because another
driver could find the record. Storing a newer record drops the doubtful record, and then the files are deleted.

A job that claimed the snapshot it was started from owns files outside the folder of the job. Once no record names these
files, nobody finds them. So a record that names such files stays until the files are deleted: a driver that takes the
job over deletes them again. The outcome of a job names the files outside the folder that the end of the job deletes.

Until the job has a completed checkpoint of its own, the claimed snapshot is the only place of the job's state. So a
claimed snapshot is deleted when a checkpoint of the job subsumes it, or later together with the job's own checkpoints.
A job that fails, and a job that ends without a checkpoint of its own, leave the claimed snapshot as it was.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.coordinator.cleaner import Cleaner
from penstock.core.coordinator.effects import CleaningGivenUp, DeleteFiles, ForgetPointers, StorePointer
from penstock.core.coordinator.events import JobEnd
from penstock.core.coordinator.pending import PendingCheckpoint, Phase, own_files_of
from penstock.core.coordinator.registry import SharedStateRegistry
from penstock.core.coordinator.retention import RetainedCheckpoints
from penstock.core.coordinator.savepoints import Savepoints
from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import SubtaskState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, DiscardRules
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Foreign

StorageEffect = StorePointer | ForgetPointers | DeleteFiles


class _Leftover(NamedTuple):
    paths: tuple[str, ...]
    folder: str | None


class Stored(NamedTuple):
    """What follows from the stored record of a completed checkpoint."""

    completed: CompletedCheckpoint
    subsumed: tuple[CompletedCheckpoint, ...]
    """The checkpoints that are not retained any more, oldest first."""
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
        """Checkpoints that are still on record and that the job may not delete."""
        self._subsumed = [c for c in surplus if c.discard.subsumed]
        """Checkpoints that are not retained any more but still on record: some of their files are still used, or are
        not known to be deleted."""
        retained = self._retained.all
        self._stale = self.registry.drop_unused(retained[0].checkpoint) if retained else []
        """Unused shared files. A driver before this driver may have deleted them, or not."""
        self._unowned = tuple(c for c in completed if c.claim in (Claim.NO_CLAIM, Claim.LEGACY))
        """Snapshots that the job was started from and that it never deletes."""
        self._named_until: dict[CheckpointId, set[int]] = {}
        """By checkpoint: the deletions that must end before the record of the checkpoint may be dropped."""
        self._storing: CompletedCheckpoint | None = None
        self._doubtful: list[CompletedCheckpoint] = []
        """Checkpoints whose records may have been stored, or not."""
        self.savepoints = Savepoints()
        self._unanswered: dict[CheckpointId, _Leftover] = {}
        """What is left of checkpoints that were aborted while storage work for them was under way."""
        self._ended: JobEnd | None = None
        self._is_swept = False

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The completed checkpoints in the store, oldest first."""
        return self._retained.all

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that a failover restores."""
        return self._retained.latest

    @property
    def doubtful(self) -> tuple[CheckpointId, ...]:
        """Checkpoints that may be on record although storing their records seemed to fail. A failover that restores an
        older checkpoint withdraws these records first. Otherwise another driver could find a doubtful checkpoint later,
        when what that checkpoint promised to commit is gone."""
        return tuple(c.checkpoint for c in self._doubtful)

    def kept_after(self, status: JobEnd) -> tuple[CheckpointId, ...]:
        """The job's own checkpoints that would outlive the job, if the job ended with this status now."""
        everything = (*self._retained.all, *self._doubtful)
        own = [c for c in everything if c.claim is None]
        return tuple(sorted(c.checkpoint for c in own if not _discards(c.discard, status)))

    def records_after(self, status: JobEnd) -> tuple[CompletedCheckpoint, ...]:
        """What the job could go on from later, oldest first, if the job ended with this status now: its own
        checkpoints, the savepoint that stops the job, or the snapshot that the job was started from. Nothing if the
        latest checkpoint is deleted: the job would go on from an older checkpoint, and what the latest checkpoint has
        committed would be committed again."""
        kept = tuple(c for c in self._retained.all if not _discards(c.discard, status))
        return kept if kept and kept[-1] is self.latest else ()

    def foreign_after(self, status: JobEnd) -> tuple[Foreign, ...]:
        """What would be deleted outside the folder of the job, if the job ended with this status now."""
        kept = self._left_by(status)
        used = {shared.created_by for c in kept for shared in c.shared_files}
        ending = [c for c in (*self._retained.all, *self._doubtful, *self._subsumed) if c not in kept]
        claimed = [c for c in ending if c.claim is Claim.CLAIM and not (c.is_self_contained and c.checkpoint in used)]
        places = [Foreign(folder=c.location, paths=_with_folder(c)) for c in claimed]
        shared = [path for path in self.registry.unused_paths(kept) if is_full(path)]
        places += [Foreign(folder=None, paths=tuple(shared))] if shared else []
        return (*places, *(place for place in self.cleaner.foreign() if place not in places))

    def spared_after(self, status: JobEnd) -> tuple[str, ...]:
        """Folders and files of snapshots that the job was started from, and that would stay if the job ended with this
        status now. They may lie in the folder of the job, if an earlier job had the same name."""
        left = [*self._unowned, *(c for c in self._left_by(status) if c.claim is Claim.CLAIM)]
        shared = (shared.file.path for c in left for shared in c.shared_files)
        places = dict.fromkeys((*(c.location for c in left), *(path for path in shared if path is not None)))
        return tuple(place for place in places if is_full(place))

    def _left_by(self, status: JobEnd) -> list[CompletedCheckpoint]:
        """The checkpoints that stay if the job ends with this status now. A claimed savepoint that was subsumed while
        its files are used stays whole until nobody uses the files: a failure of the job does not delete the
        savepoint."""
        left = [c for c in (*self._retained.all, *self._doubtful) if not self._ends(c, status)]
        if status is JobEnd.FAILED:
            left += [c for c in self._subsumed if self.registry.holds(c, CheckpointId(0))]
        return left

    def _ends(self, completed: CompletedCheckpoint, status: JobEnd) -> bool:
        if completed.claim is Claim.CLAIM and not self._has_own:
            return False
        return _discards(completed.discard, status)

    @property
    def _has_own(self) -> bool:
        """Whether the job has a completed checkpoint of its own whose record is known to be stored."""
        return any(c.claim is None for c in self._retained.all)

    @property
    def is_storing(self) -> bool:
        """Whether a record is being stored. Until the store answers, nobody knows which checkpoint a failover
        restores."""
        return self._storing is not None

    @property
    def is_idle(self) -> bool:
        """Whether no storage work is under way, apart from the work for pending checkpoints."""
        return not self.is_storing and not self._unanswered and self.cleaner.is_idle

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    def register(self, state: SubtaskState, checkpoint: CheckpointId) -> tuple[list[DeleteFiles], str | None]:
        """Register the shared files that an acknowledgement names, also if the acknowledgement will not count. A
        savepoint shares no files. The returned text says why the acknowledgement cannot be right; None if it can."""
        if self.savepoints.is_forgotten(checkpoint):
            # The acknowledgement is so late that it may belong to a savepoint. Files of the user are left alone.
            return [], None
        if checkpoint in self.savepoints:
            borrowed = any(f.placeholder for f in state.files)
            return [], "a savepoint refers to a file of another checkpoint" if borrowed else None
        retained = self._retained.all
        if retained and checkpoint < retained[0].checkpoint:
            # The checkpoint is older than every retained checkpoint, so its shared files were deleted, or are to be. A
            # deleted file that is registered again would be taken for a file that exists.
            return self.cleaner.clean_leftovers(self.registry.strays_in(state.files)), None
        registration = self.registry.register(state.files, checkpoint)
        deletions = self.cleaner.clean_leftovers(registration.superfluous)
        if self._is_swept:
            deletions += self.cleaner.clean_leftovers(self.registry.drop_all_but(self._retained.all))
        return deletions, registration.problem

    def discard(
        self, state: SubtaskState, checkpoint: CheckpointId, pending: PendingCheckpoint | None
    ) -> list[DeleteFiles]:
        """Delete the files of an acknowledgement that does not count. Files that the same checkpoint already has stay:
        the acknowledgement may have come twice."""
        held = set(self.savepoints.files_of_user(checkpoint))
        held.update(*(c.private_files for c in self._known() if c.checkpoint == checkpoint))
        if pending is not None:
            held.update(pending.own_files())
        own = own_files_of(state, shares=checkpoint not in self.savepoints)
        if self.savepoints.is_forgotten(checkpoint):
            own = [path for path in own if layout.is_in_checkpoint_folder(path, checkpoint)]
        left = [path for path in own if path not in held]
        return self.cleaner.clean_leftovers(left, self.savepoints.folder_of(checkpoint))

    def _known(self) -> tuple[CompletedCheckpoint, ...]:
        return (*self._retained.all, *self._subsumed, *self._doubtful)

    # --- aborted checkpoints ------------------------------------------------------------------------------------------

    def abandon(self, pending: PendingCheckpoint) -> list[DeleteFiles]:
        """Delete the files of a checkpoint that will never complete: now, or when its storage work has answered."""
        leftover = _Leftover(pending.own_files(), pending.location)
        if pending.kind.is_savepoint:
            self.savepoints.fail(pending.checkpoint)
        if pending.phase in (Phase.LOCATING, Phase.WRITING):
            self._unanswered[pending.checkpoint] = leftover
            return []
        return self._clean(pending.checkpoint, leftover)

    def answered(self, checkpoint: CheckpointId, folder: str | None = None) -> list[DeleteFiles]:
        """Storage work for a checkpoint that is not pending any more has answered. The work made `folder`; None: the
        work made no folder."""
        leftover = self._unanswered.pop(checkpoint, None)
        if leftover is None:
            return []
        self.savepoints.locate_failed(checkpoint, folder)
        return self._clean(checkpoint, leftover if leftover.folder is not None else leftover._replace(folder=folder))

    def _clean(self, checkpoint: CheckpointId, leftover: _Leftover) -> list[DeleteFiles]:
        return self.cleaner.clean_checkpoint(leftover.paths, leftover.folder, self.savepoints.folder_of(checkpoint))

    def clean_again(self, now: Instant) -> list[DeleteFiles]:
        """Try a failed deletion again, if a deletion is due. A path that is registered by now stays: another file has
        the same path."""
        return self.cleaner.retry(self.registry.has_path, now)

    # --- completed checkpoints ----------------------------------------------------------------------------------------

    def give_to_user(self, pending: PendingCheckpoint) -> None:
        """A savepoint is complete, and only the user may delete it."""
        self.savepoints.complete(pending.checkpoint, pending.own_files())

    def store(self, completed: CompletedCheckpoint) -> StorePointer:
        """Store the record of a completed checkpoint. Records are stored one at a time, so that checkpoints complete in
        order."""
        if self._storing is not None:
            raise InvariantError(f"checkpoints {self._storing.checkpoint} and {completed.checkpoint} stored at once")
        self._storing = completed
        lowest = self._retained.lowest_with(completed)
        gone = [*self._subsumed, *self._retained.subsumed_by(completed)]
        # A checkpoint whose folder is still used stays on record. Otherwise nobody would find the folder after a crash
        # of this driver.
        forget = [c for c in gone if not self.registry.holds(c, lowest) and not self._lies_outside(c)]
        forget += [c for c in self._doubtful if c.checkpoint < completed.checkpoint]
        return StorePointer(completed=completed, forget=(*self._left_alone, *(c.checkpoint for c in forget)))

    @staticmethod
    def _lies_outside(completed: CompletedCheckpoint) -> bool:
        """Whether deleting the checkpoint deletes files outside the folder of the job."""
        return completed.discard.subsumed and (completed.claim is Claim.CLAIM or bool(_foreign(completed)))

    def stored(self) -> Stored:
        """The record is durable: older checkpoints may be deleted."""
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
        # If the path is registered by now, another file has the same path.
        return [path for path in stale if not self.registry.has_path(path)]

    def _name_until(self, records: list[CompletedCheckpoint], deletions: list[DeleteFiles]) -> None:
        """Keep records until the files that they name are deleted."""
        for record in (c for c in records if c not in self._subsumed):
            foreign = _foreign(record)
            self._named_until[record.checkpoint] = {
                d.cleaning for d in deletions if d.folder == record.location or foreign.intersection(d.paths)
            }

    def deleted(self, cleaning: int, error: str | None, now: Instant) -> list[ForgetPointers | CleaningGivenUp]:
        """A deletion has ended; it succeeded if `error` is None."""
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
        """Storing the record failed. If `inconsistent`, nobody knows whether the record was stored all the same."""
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
        return self.cleaner.clean_checkpoint(_with_folder(completed), completed.location)

    def _delete_subsumed(self, lowest: CheckpointId) -> list[DeleteFiles]:
        """Delete the subsumed checkpoints whose folders no checkpoint from `lowest` on uses."""
        held = [c for c in self._subsumed if self.registry.holds(c, lowest)]
        free = [c for c in self._subsumed if not self.registry.holds(c, lowest)]
        self._subsumed = held
        return [deletion for checkpoint in free for deletion in self._delete(checkpoint)]

    # --- the end ------------------------------------------------------------------------------------------------------

    def shut_down(self, status: JobEnd) -> list[StorageEffect]:
        """The job is over, or this driver gives the job up. If a record is being stored, nothing is deleted before the
        store has answered."""
        self._ended = status
        return self._sweep()

    def _sweep(self) -> list[StorageEffect]:
        """After a final end: drop all records, and delete the checkpoints that the discard rules name."""
        if self._ended is None or not self._ended.is_final or self.is_storing:
            return []
        self._is_swept = True
        everything = [*self._retained.all, *self._doubtful]
        records = sorted(
            (*self._left_alone, *self._named_until, *(c.checkpoint for c in (*everything, *self._subsumed)))
        )
        self._left_alone = []
        self._named_until.clear()
        kept = self._left_by(self._ended)
        self._subsumed = [c for c in (*self._subsumed, *everything) if c not in kept]
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


def _with_folder(completed: CompletedCheckpoint) -> tuple[str, ...]:
    """The files that are deleted together with the folder of a checkpoint. In a folder that is not the job's own,
    nothing but these files is deleted."""
    if completed.claim is not Claim.CLAIM or not completed.is_self_contained:
        return completed.private_files
    shared = (shared.file.path for shared in completed.shared_files if shared.owned)
    return (*completed.private_files, *(path for path in shared if path is not None))


def _foreign(completed: CompletedCheckpoint) -> frozenset[str]:
    """Shared files of a checkpoint that the job owns and that lie outside the folder of the job."""
    paths = (shared.file.path for shared in completed.shared_files if shared.owned)
    return frozenset(path for path in paths if path is not None and is_full(path))


def _discards(rules: DiscardRules, status: JobEnd) -> bool:
    return {
        JobEnd.FINISHED: rules.finished,
        JobEnd.FAILED: rules.failed,
        JobEnd.CANCELLED: rules.cancelled,
        JobEnd.SUSPENDED: False,
    }[status]
