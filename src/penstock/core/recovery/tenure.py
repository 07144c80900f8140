"""What a driver finds when it takes a job over, and what it leaves behind when the job has ended.

A job may outlive its driver. Each driver has a *term*, the next number; the epochs of its attempts and the incarnations
of its slots lie above those of all drivers before it, so that whatever they left running is fenced. How the job ended
is recorded before the first of its records goes: a driver that finds neither records nor an outcome begins at the
beginning, and would otherwise do everything once more.
"""

from __future__ import annotations

import msgspec

from penstock.core.ids import CheckpointId, Epoch, Term
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint

EPOCHS_PER_TERM = 1_000_000
"""More attempts than any driver makes: at one a second, for eleven days without a break."""

OUTCOME_VERSION = 1
"""Raised whenever an older program could misread what a newer one wrote."""


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


class Tenure(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's time with a job, as it begins."""

    term: Term = Term(0)
    next_id: CheckpointId = CheckpointId(1)
    """The lowest checkpoint id that was never given away."""
    completed: tuple[CompletedCheckpoint, ...] = ()
    """The checkpoints on record."""
    outcome: Outcome | None = None
    """Set if the job has ended, and only its leftovers are to be cleaned up."""

    @property
    def first_epoch(self) -> Epoch:
        """Of this driver's attempts; slots are numbered from the same number on."""
        return Epoch(self.term * EPOCHS_PER_TERM + 1)
