"""Which paths in the records of a job are believed.

Records (pointers, tenures, outcomes) lie in the checkpoint directory. Anybody who can write to that directory can craft
a record that makes a driver read or delete other files. So every path in a record is checked here before the path is
used:

    a checkpoint of the job      has its metadata and its private files directly in `<job>/chk-<n>`, and its shared
                                 files directly in `<job>/shared`
    another snapshot             has its metadata and its private files directly in its folder; its shared files may
                                 also lie in the folder, or directly in `shared` beside the folder
      in the directory           may be owned by the job, which then deletes the snapshot
      that the user named        may be owned by the job, too
      elsewhere                  is read, because a job may go on from a savepoint anywhere, and is never deleted
    files that others shared     lie in the directory or in a folder that the user named; or directly in a folder that
                                 has the name of a `shared` folder or of a savepoint, and then are never deleted

`CorruptFile` is raised for every other path. Records with a seal were written by the job itself: the job owns the files
that such a record says the job owns, wherever the files lie.

Deliberately not here: links. The code that opens a file makes sure that no link leads out of the folder
(`storage.places`).
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
    """The places where the files of a job may lie."""

    job: JobFolder
    directory: tuple[str, ...]
    """The checkpoint directory, under every name of the directory."""
    named: tuple[str, ...] = ()
    """The folders of the snapshots that the user starts the job from. The job may own files in these folders."""
    readable: tuple[str, ...] = ()
    """Other checkpoint directories that the user named. Files in these directories are read and never deleted."""
    sealed: bool = False
    """Whether the records have a seal, made with the job's key."""

    def may_own(self, path: str) -> bool:
        """Whether the job may own the file or folder at `path`, and so delete it."""
        return is_straight(path) and (self.sealed or _is_in((*self.directory, *self.named), path))

    def may_read(self, path: str) -> bool:
        """Whether the job may read the file at `path`, which another job or a savepoint shares with the job."""
        if self.may_own(path) or (is_straight(path) and _is_in(self.readable, path)):
            return True
        _, folder = split(split(path)[0])
        return is_straight(path) and (folder == SHARED or layout.is_savepoint_folder(folder))


def is_straight(path: str) -> bool:
    """Whether a path is a full path and has no name such as `..` that leads elsewhere."""
    text = path if scheme_of(path) is None else path.partition("?")[0].partition(":")[2].lstrip("/")
    names = text.rstrip("/").removeprefix("/").split("/")
    return is_full(path) and all(map(is_plain, names))


def believed(found: Tenure, grounds: Grounds) -> Tenure:
    """The tenure `found`, in which the job owns only files that the job may own. Raises `CorruptFile` if a record names
    a path that is not believed."""
    outcome = found.outcome
    return msgspec.structs.replace(
        found,
        completed=tuple(believed_record(record, grounds) for record in found.completed),
        outcome=None if outcome is None else _outcome(outcome, grounds),
    )


def believed_record(record: CompletedCheckpoint, grounds: Grounds) -> CompletedCheckpoint:
    """The record of one checkpoint, in which the job owns only files that the job may own. All other files are read and
    never deleted. Raises `CorruptFile` if the record names a path that is not believed."""
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
    """Raise `CorruptFile` unless the folder, the metadata and the private files of a snapshot lie where such a snapshot
    can have them."""
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
    """The outcome without the files to delete that the job may not own, and with believed records of the kept
    checkpoints."""
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
        f"the record of {record.title} names {path!r}, which does not lie where such a snapshot can have files",
        hint="somebody may have changed the record to make the job read or delete other files: do not go on from this "
        "record; if the job was started from a snapshot in that place, name the snapshot by restore=",
    )
