"""Where a savepoint of a job goes.

A savepoint is its user's, and outlives the job. A job without a checkpoint directory has only a temporary folder, which
goes with it: a savepoint of such a job needs a folder of the user's, and so does what Spark landed for the job, since
the savepoint names those files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.core.errors import UsageError
from penstock.core.recovery import roots
from penstock.storage.locations import open_store

FOLDER = "savepoints"
"""Below the checkpoint directory."""


@dataclass(frozen=True, kw_only=True)
class SavepointTargets:
    """What a job knows of the folders that its savepoints may go to."""

    directory: str | None
    """The checkpoint directory; None if the user gave none."""
    fleeting: tuple[str, ...] = ()
    """Names of steps whose files are in a temporary folder, and are needed by whoever starts from a savepoint."""

    def choose(self, given: str | os.PathLike[str] | None) -> str:
        """The full path of the folder below which the savepoint goes. Raises `UsageError` if there is none that would
        outlive the job."""
        if self.fleeting:
            steps = ", ".join(map(repr, self.fleeting))
            raise UsageError(
                f"a savepoint of this job could not be started from: it needs the files of {steps}, which are in a "
                "temporary folder that goes when the job ends",
                hint="start the job with Environment(checkpointing=ps.Checkpointing(directory=...)), or with landing=",
            )
        if given is not None:
            return open_store(given).location
        if self.directory is None:
            raise UsageError(
                "the job has no checkpoint directory, so it must be said where the savepoint goes; the job goes on",
                hint='job.savepoint("folder"), job.stop(savepoint="folder"), penstock savepoint JOB FOLDER, or '
                "penstock stop JOB --savepoint FOLDER; Environment(checkpointing=ps.Checkpointing(directory=...)) has "
                "a place for savepoints, too",
            )
        return roots.below(self.directory, FOLDER)
