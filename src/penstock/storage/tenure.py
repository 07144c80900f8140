"""How a job passes from one driver to the next, as small files of a store."""

from __future__ import annotations

import msgspec

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Term
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import OUTCOME_VERSION, Outcome, Tenure
from penstock.ports import Store
from penstock.storage.completed import CompletedEntry, Counter, FileCompletedStore, checkpoint_ids
from penstock.storage.sealed import Seal

_outcome = Seal(
    b"PEND",
    OUTCOME_VERSION,
    Outcome,
    what="the outcome of a job",
    hint="restore it from a copy; or delete it to have the job go on from its newest checkpoint",
)
_completed = msgspec.msgpack.Decoder(CompletedCheckpoint)


def take_over(store: Store, job: JobFolder) -> Tenure:
    """Begin the next term. Blocks. Raises `StorageError` or `CorruptFile`; trying again costs a term and nothing else.

    Only one driver may do this at a time: whoever starts drivers sees to that.
    """
    terms = Counter(store, layout.drivers_folder(job), first=0)
    term = terms.next()
    terms.advance(term + 1)
    return Tenure(
        term=Term(term),
        next_id=CheckpointId(checkpoint_ids(store, job).next()),
        completed=tuple(_decode(entry) for entry in FileCompletedStore(store, job).load()),
        outcome=_read_outcome(store, job),
    )


def record_outcome(store: Store, job: JobFolder, outcome: Outcome) -> None:
    """Make it durable how the job ended. Blocks. Raises `StorageError`; recording it again does no harm."""
    store.write(layout.outcome_file(job), _outcome.encode(outcome))


def _read_outcome(store: Store, job: JobFolder) -> Outcome | None:
    path = layout.outcome_file(job)
    # Asking for the file itself would not tell a missing one from a store that is out of order.
    return _outcome.decode(path, store.read(path)) if path in store.list_files(layout.outcome_folder(job)) else None


def _decode(entry: CompletedEntry) -> CompletedCheckpoint:
    try:
        return _completed.decode(entry.data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(
            f"the record of checkpoint {entry.checkpoint} cannot be read: {error}",
            hint=f"delete it to give up checkpoint {entry.checkpoint}, if an older one will do",
        ) from error
