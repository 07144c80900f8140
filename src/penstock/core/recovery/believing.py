"""Which paths in the records of a job are believed.

Records (pointers, tenures, outcomes) lie in the checkpoint directory, and whoever can write there can craft one: for a
driver to read files elsewhere, or to delete them. So every path in a record goes through here before anything is done
with it:

    a checkpoint of the job      lies in `<job>/chk-<n>` with its files; what it shares, in `<job>/shared`
    another snapshot             has its metadata and its files directly in its folder
      in the directory           may be the job's, which then deletes it
      that the user named        likewise
      elsewhere                  is read, since a job may go on from a savepoint anywhere, and never deleted
    files that others shared     lie in the directory, or where the user named; or in a folder as jobs and savepoints
                                 have them, and then are never deleted

`CorruptFile` is raised for whatever else a record names. Records with a seal are those of the job itself: what they say
is the job's is the job's, wherever it lies.

Deliberately not here: links. Whoever opens a file sees to it that none leads out (`storage.places`).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.core.errors import CorruptFile
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, DiscardRules, SharedFile
from penstock.core.recovery.places import SHARED, is_full, is_plain
from penstock.core.recovery.roots import below, inside, scheme_of, split
from penstock.core.recovery.tenure import Foreign, JobOutcome, Tenure


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """Where things of a job may lie."""

    job: JobFolder
    directory: tuple[str, ...]
    """The checkpoint directory, by every name that it has."""
    named: tuple[str, ...] = ()
    """Folders that the user has the job start from: what a job claims of them is the job's."""
    readable: tuple[str, ...] = ()
    """Checkpoint directories that the user named besides: what lies there is read and never deleted."""
    sealed: bool = False
    """Whether records have a seal of the job's key."""

    def may_own(self, path: str) -> bool:
        """Whether a job may delete what lies there."""
        return is_straight(path) and (self.sealed or _is_in((*self.directory, *self.named), path))

    def may_read(self, path: str) -> bool:
        """Whether a job may read the file there, which others have shared with it."""
        if self.may_own(path) or (is_straight(path) and _is_in(self.readable, path)):
            return True
        _, folder = split(split(path)[0])
        return is_straight(path) and (folder == SHARED or layout.is_savepoint_folder(folder))


def is_straight(path: str) -> bool:
    """Whether a full path leads where its names say, and nowhere else."""
    text = path if scheme_of(path) is None else path.partition("?")[0].partition(":")[2].lstrip("/")
    names = text.rstrip("/").removeprefix("/").split("/")
    return is_full(path) and all(map(is_plain, names))


def believed(found: Tenure, grounds: Grounds) -> Tenure:
    """What a driver found, as far as it is believed. Raises `CorruptFile`."""
    outcome = found.outcome
    return msgspec.structs.replace(
        found,
        completed=tuple(believed_record(record, grounds) for record in found.completed),
        outcome=None if outcome is None else _outcome(outcome, grounds),
    )


def believed_record(record: CompletedCheckpoint, grounds: Grounds) -> CompletedCheckpoint:
    """The record of one checkpoint, as far as it is believed: what it says that the job owns stays where it is, if it
    lies where nothing of the job's can be expected. Raises `CorruptFile`."""
    _check_places(record, grounds)
    shared = tuple(_shared(one, record, grounds) for one in record.shared_files)
    if record.claim is None and not record.kind.is_savepoint:
        return msgspec.structs.replace(record, shared_files=shared)
    if record.claim is Claim.CLAIM and grounds.may_own(record.location):
        return msgspec.structs.replace(record, shared_files=shared)
    return msgspec.structs.replace(
        record,
        shared_files=tuple(msgspec.structs.replace(one, owned=False) for one in shared),
        discard=DiscardRules(),
        claim=Claim.LEGACY if record.claim is Claim.CLAIM else record.claim,
    )


def _check_places(record: CompletedCheckpoint, grounds: Grounds) -> None:
    """Raise `CorruptFile` unless a snapshot lies where such a snapshot can lie, with all that is its alone."""
    location = record.location
    if record.claim is None and not record.kind.is_savepoint:
        is_there = location == layout.checkpoint_folder(grounds.job, record.checkpoint)
    else:
        is_there = is_straight(location)
    if not is_there:
        raise _strange(record, location)
    if record.path != below(location, layout.METADATA_NAME):
        raise _strange(record, record.path)
    # Paths of a savepoint that the job took begin in its folder.
    of_itself = record.claim is None and record.kind.is_savepoint
    for path in record.private_files:
        if not is_plain(path if of_itself else inside(location, path) or ""):
            raise _strange(record, path)


def _shared(one: SharedFile, record: CompletedCheckpoint, grounds: Grounds) -> SharedFile:
    path = one.file.path
    if path is None:
        return one
    if not is_full(path):
        if not is_plain(path.removeprefix(f"{layout.shared_folder(grounds.job)}/")):
            raise _strange(record, path)
        return one
    beside = (record.location, below(split(record.location)[0], SHARED))
    is_its_own = record.claim is not None and any(is_plain(inside(folder, path) or "") for folder in beside)
    if not is_its_own and not grounds.may_read(path):
        raise _strange(record, path)
    return one if grounds.may_own(path) else msgspec.structs.replace(one, owned=False)


def _outcome(outcome: JobOutcome, grounds: Grounds) -> JobOutcome:
    """What is to be deleted elsewhere goes only if it may be the job's."""
    foreign, kept = outcome.foreign, outcome.kept
    if foreign is not msgspec.UNSET:
        foreign = tuple(_foreign(place, grounds) for place in foreign)
    if kept is not msgspec.UNSET:
        kept = tuple(believed_record(record, grounds) for record in kept)
    return msgspec.structs.replace(outcome, foreign=foreign, kept=kept)


def _foreign(place: Foreign, grounds: Grounds) -> Foreign:
    paths = tuple(path for path in place.paths if grounds.may_own(path))
    if place.folder is None or grounds.may_own(place.folder):
        return Foreign(folder=place.folder, paths=paths)
    return Foreign(folder=None)


def _is_in(roots: tuple[str, ...], path: str) -> bool:
    return any(path == root or inside(root, path) is not None for root in roots)


def _strange(record: CompletedCheckpoint, path: str) -> CorruptFile:
    return CorruptFile(
        f"the record of {record.title} names {path!r}, which does not lie where that can have files",
        hint="the record was changed, or made to read or delete other files: do not go on from it; if the job was "
        "started from a snapshot in that place, name the snapshot by restore=",
    )
