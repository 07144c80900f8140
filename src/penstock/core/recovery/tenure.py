"""What a driver finds when it takes a job over, and what it leaves behind when the job has ended.

A job may outlive its driver. Each driver has a *term*, the next number; the epochs of its attempts and the incarnations
of its slots lie above those of all drivers before it, so that whatever they left running is fenced. How the job ended
is recorded before the first of its records goes: a driver that finds neither records nor an outcome begins at the
beginning, and would otherwise do everything once more.

A driver that was given up may still live, and wake up. What it writes then must not change what the job is restored
from. So a driver that takes a job over writes down what it found, its *inheritance*, in a place of its own; from then
on that counts, and whatever drivers before it record or remove does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.core.graph import CheckpointEdge, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, OperatorId, Term
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint

EPOCHS_PER_TERM = 1_000_000
"""More attempts than any driver makes: at one a second, for eleven days without a break."""

OUTCOME_VERSION = 1
"""Raised whenever an older program could misread what a newer one wrote."""

INHERITANCE_VERSION = 1
"""Likewise."""


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """Something of the job's that does not lie in its folder: it came with a snapshot that the job claimed."""

    folder: str | None
    """All of it goes; its metadata first."""
    paths: tuple[str, ...] = ()
    """Files beside it, or in it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. New fields: at the end, with a default."""

    state: JobState
    cause: str = ""
    """Why it failed; empty if it did not."""
    retained: tuple[CheckpointId, ...] = ()
    """The checkpoints that outlive it."""
    foreign: tuple[Foreign, ...] | msgspec.UnsetType = msgspec.UNSET
    """What is to be deleted outside the job's folder; unset if there is nothing."""
    saved: bool | msgspec.UnsetType = msgspec.UNSET
    """True if a savepoint names results that the job has not committed: what sinks prepared stays. Else unset."""

    @property
    def keeps_prepared(self) -> bool:
        """Whether what sinks prepared must stay."""
        return bool(self.retained) or self.saved is True


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided when a job began, and holds for all of its drivers, and the graph of the job. New fields: at the
    end, with a default."""

    splits: dict[OperatorId, tuple[bytes, ...]]
    """Of every source: none is asked for them again."""
    max_parallelism: int
    """The number of key groups."""
    vertices: tuple[CheckpointVertex, ...] = ()
    """The job graph, as the program of the newest driver has it."""
    edges: tuple[CheckpointEdge, ...] = ()
    """Likewise."""
    places: dict[OperatorId, str] | msgspec.UnsetType = msgspec.UNSET
    """Where the parts on the driver keep what the next driver must find, by operator; unset if there are none."""

    def place_of(self, operator: OperatorId) -> str | None:
        """Where an operator's part on the driver keeps what the next driver must find; None if it has nothing yet."""
        return None if self.places is msgspec.UNSET else self.places.get(operator)

    def changed_steps(self, program: Start) -> tuple[str, ...]:
        """What a program has otherwise than the one that had the job before, for people. Empty if that is not known."""
        before, after = _steps(self.vertices), _steps(program.vertices)
        if not before:
            return ()
        gone = [f"{name!r} is gone" for operator, name in before.items() if operator not in after]
        new = [f"{name!r} is new" for operator, name in after.items() if operator not in before]
        return (*gone, *new)


def _steps(vertices: tuple[CheckpointVertex, ...]) -> dict[OperatorId, str]:
    return {o: v.labels[o].name if o in v.labels else o for v in vertices for o in v.operators}


class Inheritance(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver found when it took a job over. New fields: at the end, with a default."""

    first_id: CheckpointId = CheckpointId(1)
    """The lowest checkpoint id that no driver before it can have used."""
    completed: tuple[CompletedCheckpoint, ...] = ()
    """The checkpoints that counted then; or the snapshot that the job began with."""
    outcome: Outcome | None = None
    start: Start | None = None
    ended_in: Term | msgspec.UnsetType = msgspec.UNSET
    """The term of the driver that recorded the outcome; unset if there is none, or if that is not known."""

    def counting(self, recorded: Sequence[CompletedCheckpoint]) -> tuple[CompletedCheckpoint, ...]:
        """Which checkpoints count, if these, by id, are on record now: those of the driver itself, and of those that it
        found whatever it has not dropped since. It drops the newest of them only when it has a newer one."""
        known = {found.checkpoint: None for found in self.completed}
        counting = tuple(c for c in recorded if c.checkpoint >= self.first_id or c.checkpoint in known)
        if self.completed and (not counting or counting[-1].checkpoint < self.completed[-1].checkpoint):
            # A driver before it has removed the record since.
            return (*counting, self.completed[-1])
        return counting


class Tenure(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's time with a job, as it begins."""

    term: Term = Term(0)
    next_id: CheckpointId = CheckpointId(1)
    """The lowest checkpoint id that was never given away."""
    completed: tuple[CompletedCheckpoint, ...] = ()
    """The checkpoints on record."""
    outcome: Outcome | None = None
    """Set if the job has ended, and only its leftovers are to be cleaned up."""
    start: Start | None = None
    """None if the job has not begun yet."""

    @property
    def first_epoch(self) -> Epoch:
        """Of this driver's attempts; slots are numbered from the same number on."""
        return Epoch(self.term * EPOCHS_PER_TERM + 1)
