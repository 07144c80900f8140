"""What a driver finds when the driver takes a job over, and what a driver leaves behind when the job has ended.

A job may outlive its driver. Each driver has a *term*; the next driver has the next term. The epochs of a driver's
attempts and the incarnations of its slots are higher than those of all earlier drivers, so that slots and tasks of
earlier drivers are fenced. The outcome of a job is recorded before the first record of a checkpoint is deleted.
Otherwise a later driver could find neither records nor an outcome, would take the job for a new job, and would do
everything once more.

A driver that was given up may still live, and wake up. Files that such a driver writes must not change what the job is
restored from. So a driver that takes a job over records what it found, its *inheritance*, in a file of its own term.
From then on the inheritance counts, and records that earlier drivers write or remove do not count.

A job that has ended goes on when its program is run again, if the outcome names kept checkpoints: the next driver finds
these checkpoints (`Inheritance.going_on`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.graph import CheckpointEdge, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, OperatorId, Term
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind

EPOCHS_PER_TERM = 1_000_000
"""More attempts than any driver makes: one attempt a second, for eleven days without a break."""

OUTCOME_VERSION = 1
"""Raised by one whenever an older program could misread an outcome that a newer program wrote."""

INHERITANCE_VERSION = 1
"""Raised by one whenever an older program could misread an inheritance that a newer program wrote."""


def attempt_of(epoch: Epoch) -> int:
    """The number of an attempt as people count: each driver, or each run of a program, makes its first one."""
    return epoch % EPOCHS_PER_TERM


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Files that the job owns and that lie outside the job's folder: they belong to a snapshot that the job claimed."""

    folder: str | None
    """A folder that is deleted with all its content, the metadata first; None: no folder is deleted."""
    paths: tuple[str, ...] = ()
    """Files that are deleted, in the folder or elsewhere."""


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. New fields: at the end, with a default."""

    state: JobState
    cause: str = ""
    """Why the job failed; empty if the job did not fail."""
    retained: tuple[CheckpointId, ...] = ()
    """The checkpoints that outlive the job."""
    foreign: tuple[Foreign, ...] | msgspec.UnsetType = msgspec.UNSET
    """The files to delete outside the job's folder; unset if there are no such files."""
    saved: bool | msgspec.UnsetType = msgspec.UNSET
    """True if a savepoint names results that the job has not committed: the prepared results of sinks stay. Otherwise
    unset."""
    spared: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The full paths of folders and files of snapshots that the job was started from and leaves as they were. They may
    lie in the folder of the job. Unset if there are no such paths."""
    kept: tuple[CompletedCheckpoint, ...] | msgspec.UnsetType = msgspec.UNSET
    """The checkpoints that the job can go on from when its program is run again, oldest first. Unset if there are no
    such checkpoints, or if the ended job is not to go on."""

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on when its program is run again."""
        return self.kept is not msgspec.UNSET

    @property
    def keeps_prepared(self) -> bool:
        """Whether the prepared results of sinks must stay."""
        return bool(self.retained) or self.saved is True or self.goes_on


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided when a job began and holds for all drivers of the job, and the job graph. New fields: at the
    end, with a default."""

    splits: dict[OperatorId, tuple[bytes, ...]]
    """The splits of every source. No source is asked for its splits again."""
    max_parallelism: int
    """The number of key groups."""
    vertices: tuple[CheckpointVertex, ...] = ()
    """The job graph, as the program of the newest driver has it."""
    edges: tuple[CheckpointEdge, ...] = ()
    """The edges of the job graph, as the program of the newest driver has it."""
    places: dict[OperatorId, str] | msgspec.UnsetType = msgspec.UNSET
    """By operator: where the operator's part on the driver keeps the files that the next driver must find. Unset if no
    operator has such files."""

    def place_of(self, operator: OperatorId) -> str | None:
        """Where an operator's part on the driver keeps the files that the next driver must find; None if the operator
        has no such files yet."""
        return None if self.places is msgspec.UNSET else self.places.get(operator)

    def changed_steps(self, program: Start) -> tuple[str, ...]:
        """Which steps the program has lost or gained since the program that had the job before, in a text for people.
        Empty if the steps of the program before are not known."""
        before, after = _steps(self.vertices), _steps(program.vertices)
        if not before:
            return ()
        gone = [f"{name!r} is gone" for operator, name in before.items() if operator not in after]
        new = [f"{name!r} is new" for operator, name in after.items() if operator not in before]
        return (*gone, *new)


def _steps(vertices: tuple[CheckpointVertex, ...]) -> dict[OperatorId, str]:
    return {o: v.labels[o].name if o in v.labels else o for v in vertices for o in v.operators}


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver found when the driver took a job over. New fields: at the end, with a default."""

    first_id: CheckpointId = CheckpointId(1)
    """The lowest checkpoint id that no earlier driver can have used."""
    completed: tuple[CompletedCheckpoint, ...] = ()
    """The checkpoints that counted when the driver took the job over; or the snapshot that the job began with."""
    outcome: JobOutcome | None = None
    start: Start | None = None
    ended_in: Term | msgspec.UnsetType = msgspec.UNSET
    """The term of the driver that recorded the outcome; unset if there is no outcome, or if the term is not known."""
    finished_with: CheckpointId | msgspec.UnsetType = msgspec.UNSET
    """Set if the job had come to the end of its data and goes on with more data: the last checkpoint of the job, or the
    savepoint that drained the job. Otherwise unset."""

    def going_on(self) -> Inheritance:
        """The inheritance for a job whose program is run again. A job that kept checkpoints goes on from them. A job
        that kept nothing and had come to the end of its data stays ended. A job that kept nothing and ended in another
        way begins at its beginning. A job whose driver died goes on from its newest checkpoint."""
        outcome = self.outcome
        if outcome is None:
            return self.reading_on(self.completed[-1], at_end=False) if self.completed else self
        if outcome.kept is msgspec.UNSET:
            return self if outcome.state is JobState.FINISHED else Inheritance(first_id=self.first_id)
        last = outcome.kept[-1]
        found = msgspec.structs.replace(self, completed=outcome.kept, outcome=None, ended_in=msgspec.UNSET)
        at_end = outcome.state is JobState.FINISHED and last.kind is not SnapshotKind.SUSPEND
        return found.reading_on(last, at_end=at_end)

    def reading_on(self, last: CompletedCheckpoint, *, at_end: bool) -> Inheritance:
        """The same for a job that goes on from `last`: the sources look for more data if the data had come to its end
        there. The data had come to its end if the job was `at_end`. The savepoint that drained the job says the same,
        however the job ended after that savepoint. A run that goes on from such a checkpoint and ends before the run
        has a checkpoint of its own leaves the data at its end."""
        at_end = at_end or last.kind is SnapshotKind.TERMINATE or last.checkpoint == self.finished_with
        return msgspec.structs.replace(self, finished_with=last.checkpoint if at_end else msgspec.UNSET)

    def counting(self, recorded: Sequence[CompletedCheckpoint]) -> tuple[CompletedCheckpoint, ...]:
        """Which checkpoints count, if `recorded` are on record now, in the order of their ids. The driver's own
        checkpoints count, and the checkpoints that the driver found and that are still on record. The newest checkpoint
        that the driver found counts in any case, until the driver has a newer checkpoint: only then does the driver
        drop it."""
        known = {found.checkpoint: None for found in self.completed}
        counting = tuple(c for c in recorded if c.checkpoint >= self.first_id or c.checkpoint in known)
        if self.completed and (not counting or counting[-1].checkpoint < self.completed[-1].checkpoint):
            # An earlier driver, which still lives, has removed the record.
            return (*counting, self.completed[-1])
        return counting


class Tenure(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver found when its term began."""

    term: Term = Term(0)
    next_id: CheckpointId = CheckpointId(1)
    """The lowest checkpoint id that no checkpoint has had."""
    completed: tuple[CompletedCheckpoint, ...] = ()
    """The checkpoints on record."""
    outcome: JobOutcome | None = None
    """Set if the job has ended: only the files that the job left behind are to be deleted."""
    start: Start | None = None
    """None if the job has not begun yet."""
    finished_with: CheckpointId | msgspec.UnsetType = msgspec.UNSET
    """Set if the job had come to the end of its data and goes on with more data: the snapshot with which the job had
    come to that end. Otherwise unset."""

    @property
    def first_epoch(self) -> Epoch:
        """The epoch of this driver's first attempt. The incarnations of this driver's slots begin with the same
        number."""
        return Epoch(self.term * EPOCHS_PER_TERM + 1)
