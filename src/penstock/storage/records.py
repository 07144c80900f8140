"""The records of a job, which outlive the driver, as small files of a store. Implements `ports.JobRecords`.

After each change a driver checks that its term is still the newest term: see `storage.tenure` for why that is enough.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.core.errors import InvariantError
from penstock.core.ids import CheckpointId, Term
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import JobOutcome, Start
from penstock.ports import Store
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.tenure import inheritance_format, outcome_format, read_inheritance, taken_over, terms_of


class FileRecords:
    """The records of one job. Calls block."""

    def __init__(self, store: Store, job: JobFolder, *, term: Term | None) -> None:
        """`term` is the term of the driver; None for a job that ends with its driver, which no other driver can take
        over."""
        self._store = store
        self._job = job
        self._term = term
        self._completed = FileCompletedStore(store, job)
        self._ids = checkpoint_ids(store, job)
        self._terms = terms_of(store, job)

    def record(self, checkpoint: CheckpointId, data: bytes, *, forget: Iterable[CheckpointId] = ()) -> None:
        """Make it durable that `checkpoint` is complete; only then drop the records of the checkpoints in `forget`."""
        forgotten = sorted(forget)
        if checkpoint in forgotten:
            raise InvariantError(
                f"one call was to record checkpoint {checkpoint} and to drop the record of the same checkpoint"
            )
        self._completed.record(checkpoint, data)
        self.check()
        for old in forgotten:
            self._completed.remove(old)

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether there is a record of the checkpoint."""
        found = any(entry.checkpoint == checkpoint for entry in self._completed.load())
        self.check()
        return found

    def remove(self, checkpoint: CheckpointId) -> None:
        """Drop the record of a checkpoint. Nothing happens if there is no record."""
        self._completed.remove(checkpoint)
        self.check()

    def take_ids(self, below: CheckpointId) -> None:
        """Make it durable that checkpoint ids below `below` are used."""
        self._ids.advance(below)
        self.check()

    def record_start(self, start: Start, began_with: CompletedCheckpoint | None) -> None:
        """Make it durable how the job began, and with which snapshot."""
        self.check()
        if self._term is not None:
            found = read_inheritance(self._store, self._job, self._term)
            began = found.completed if began_with is None else (began_with,)
            begun = msgspec.structs.replace(found, start=start, completed=began)
            self._store.write(layout.tenure_file(self._job, self._term), inheritance_format.encode(begun))
        self.check()

    def record_outcome(self, outcome: JobOutcome) -> None:
        """Make it durable how the job ended."""
        if self._term is None:
            raise InvariantError("the outcome of a job that ends with its driver was to be recorded")
        self._store.write(layout.outcome_file(self._job, self._term), outcome_format.encode(outcome))
        self.check()

    def clear(self) -> None:
        """Drop the records of all checkpoints."""
        # The check comes before the deletions, too: another driver may have begun the job anew, and the records may
        # belong to that driver.
        self.check()
        for path in self._store.list_files(layout.completed_folder(self._job)):
            self._store.delete(path)
        self.check()

    def check(self) -> None:
        """Raise `JobTakenOver` if another driver has the job."""
        if self._term is not None and self._terms.next() != self._term + 1:
            raise taken_over(self._job)
