"""How a job passes from one driver to the next, as small files of a store.

    old driver   writes a pointer ─────────► looks whether its term is the newest ──► it is: the checkpoint counts
    new driver   claims the next term ─────► reads the pointers ──► writes its inheritance ──► leads

Each driver writes before it reads, so at least one of the two drivers sees what the other driver has written: either
the old driver learns that it does not have the job any more, and does not act upon the checkpoint, or the new driver
finds the pointer. Both may happen: then the checkpoint counts, and only the new driver acts upon it. A pointer that the
old driver writes after the inheritance does not count.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import msgspec

from penstock.core.errors import CorruptFile, JobTakenOver, StorageError
from penstock.core.ids import CheckpointId, Term
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import INHERITANCE_VERSION, OUTCOME_VERSION, Inheritance, JobOutcome, Tenure
from penstock.ports import Store
from penstock.storage.completed import CompletedEntry, Counter, FileCompletedStore, checkpoint_ids
from penstock.storage.record_formats import LARGEST_RECORD_BYTES, RecordFormat

outcome_format = RecordFormat(
    b"PEND",
    OUTCOME_VERSION,
    JobOutcome,
    what="the outcome of a job",
    hint="restore the file from a copy; or delete the file to have the job go on from its newest checkpoint",
)
inheritance_format = RecordFormat(
    b"PTEN",
    INHERITANCE_VERSION,
    Inheritance,
    what="the record of what a driver found",
    hint="restore the file from a copy; or start the job under another name from its newest checkpoint",
)
_completed = msgspec.msgpack.Decoder(CompletedCheckpoint)


class End(NamedTuple):
    """The end of a job. A job that begins anew has another end later."""

    term: Term | None
    """The term of the driver that recorded the end; None if the record of the end names no term."""


def end_of(store: Store, job: JobFolder) -> End | None:
    """The end of a job, whichever driver has the job; None if the job has not ended. Blocks. Raises `StorageError` or
    `CorruptFile`."""
    while True:
        last, end, failure = _newest_inheritance(store, job), None, None
        try:
            end = _end(_ended(store, job, last))
        except StorageError as error:
            failure = error
        # A driver that takes the job over meanwhile writes its own inheritance, and then deletes the files that are
        # read here. In that case everything is read once more.
        if _newest_inheritance(store, job) != last:
            continue
        if failure is not None:
            raise failure
        return end


def take_over(store: Store, job: JobFolder, *, after: End | None = None, goes_on: bool = False) -> Tenure:
    """Begin the next term. If `after` is the end of the job, the job begins anew. With `goes_on` a job that has ended
    goes on from the checkpoints that it kept. Blocks.

    Raises `JobTakenOver` if another driver takes the job over at the same time, `StorageError` or `CorruptFile`. A
    further try costs a term and nothing else.
    """
    terms = terms_of(store, job)
    claimed = terms.claim()
    if claimed is None:
        raise taken_over(job)
    term = Term(claimed)
    found = _find(store, job)
    if after is not None and _end(found) == after:
        found = Inheritance(first_id=found.first_id)
    if goes_on:
        found = found.going_on()
    store.write(layout.tenure_file(job, term), inheritance_format.encode(found))
    if terms.next() != term + 1:
        raise taken_over(job)
    # Files that are left over do no harm, and the next driver deletes them.
    with suppress(StorageError):
        _tidy(store, job, term, found)
    return tenure_of(term, found)


def tenure_of(term: Term, found: Inheritance) -> Tenure:
    """The tenure of the driver of `term`, which found the inheritance `found`."""
    return Tenure(
        term=term,
        next_id=found.first_id,
        completed=found.completed,
        outcome=found.outcome,
        start=found.start,
        finished_with=found.finished_with,
    )


def terms_of(store: Store, job: JobFolder) -> Counter:
    """The terms of a job's drivers."""
    return Counter(store, layout.drivers_folder(job), first=0)


def taken_over(job: str) -> JobTakenOver:
    """The error for a driver that does not have the job any more."""
    return JobTakenOver(
        f"another driver has taken job {job} over", hint="this driver has let go of the job, and may be ended"
    )


def read_inheritance(store: Store, job: JobFolder, term: Term) -> Inheritance:
    """What the driver of `term` found. Raises `StorageError` or `CorruptFile`."""
    path = layout.tenure_file(job, term)
    return inheritance_format.decode(path, store.read(path, limit=LARGEST_RECORD_BYTES))


def decode_completed(checkpoint: CheckpointId, data: bytes) -> CompletedCheckpoint:
    """The record of a checkpoint, decoded. Raises `CorruptFile`."""
    try:
        return _completed.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(
            f"the record of checkpoint {checkpoint} cannot be read: {error}",
            hint=f"delete the record to give up checkpoint {checkpoint}, if an older checkpoint will do",
        ) from error


def _find(store: Store, job: JobFolder) -> Inheritance:
    before = _ended(store, job, _newest_inheritance(store, job))
    recorded = [_decode(entry) for entry in FileCompletedStore(store, job).load()]
    return msgspec.structs.replace(
        before,
        first_id=CheckpointId(max(before.first_id, checkpoint_ids(store, job).next())),
        completed=before.counting(recorded),
    )


def _newest_inheritance(store: Store, job: JobFolder) -> Term | None:
    folder = layout.tenures_folder(job)
    terms = [number for path in store.list_files(folder) if (number := layout.number_of(folder, path)) is not None]
    return Term(max(terms)) if terms else None


def _ended(store: Store, job: JobFolder, last: Term | None) -> Inheritance:
    """What the driver of the last term found, with the outcome of the job if the job has ended in that term or
    before."""
    before = read_inheritance(store, job, last) if last is not None else Inheritance()
    if before.outcome is not None:
        return before
    outcome = _read_outcome(store, job, last)
    ended_in = msgspec.UNSET if outcome is None or last is None else last
    return msgspec.structs.replace(before, outcome=outcome, ended_in=ended_in)


def _end(found: Inheritance) -> End | None:
    if found.outcome is None:
        return None
    return End(None if found.ended_in is msgspec.UNSET else found.ended_in)


def _read_outcome(store: Store, job: JobFolder, term: Term | None) -> JobOutcome | None:
    path = layout.termless_outcome_file(job) if term is None else layout.outcome_file(job, term)
    # To read the file at once would not tell a missing file from a store that is out of order.
    if path not in store.list_files(layout.outcome_folder(job)):
        return None
    return outcome_format.decode(path, store.read(path, limit=LARGEST_RECORD_BYTES))


def _tidy(store: Store, job: JobFolder, term: Term, found: Inheritance) -> None:
    """Delete the files that only earlier drivers needed, and pointers that earlier drivers recorded too late."""
    for folder in (layout.tenures_folder(job), layout.outcome_folder(job)):
        for path in store.list_files(folder):
            number = layout.number_of(folder, path)
            if (number is not None and number < term) or path == layout.termless_outcome_file(job):
                store.delete(path)
    counting = [layout.completed_file(job, completed.checkpoint) for completed in found.completed]
    for path in store.list_files(layout.completed_folder(job)):
        if path not in counting:
            store.delete(path)


def _decode(entry: CompletedEntry) -> CompletedCheckpoint:
    return decode_completed(entry.checkpoint, entry.data)
