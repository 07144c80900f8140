"""The folder that a savepoint of a job goes to.

The user owns a savepoint, and a savepoint outlives the job. A job without a checkpoint directory has only a temporary
folder, which is deleted when the job ends. So the user must name a folder for a savepoint of such a job. The files that
Spark landed for the job must not be in the temporary folder either, since the savepoint refers to these files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.core.errors import UsageError
from penstock.core.recovery import layout, roots
from penstock.storage.locations import open_store


@dataclass(frozen=True, kw_only=True)
class SavepointTargets:
    """Chooses the folder for a savepoint of a job."""

    directory: str | None
    """The checkpoint directory; None if the user gave none."""
    fleeting: tuple[str, ...] = ()
    """The names of steps whose files are in a temporary folder. A job that starts from a savepoint needs these
    files."""

    def choose(self, given: str | os.PathLike[str] | None) -> str:
        """The full path of the folder below which the savepoint goes. Raises `UsageError` if the savepoint, or a file
        that the savepoint needs, would not outlive the job."""
        if self.fleeting:
            steps = ", ".join(map(repr, self.fleeting))
            raise UsageError(
                f"no job could start from a savepoint of this job: the savepoint would need the files of {steps}, "
                "which are in a temporary folder that is deleted when the job ends",
                hint="start the job with Environment(checkpointing=ps.Checkpointing(directory=...)), or with landing=",
            )
        if given is not None:
            return open_store(given).location
        if self.directory is None:
            raise UsageError(
                "no folder for the savepoint was given, and the job has no checkpoint directory; the job goes on",
                hint='give a folder: job.savepoint("folder"), job.stop(savepoint="folder"), penstock savepoint JOB '
                "FOLDER, or penstock stop JOB --savepoint FOLDER; or give the job a checkpoint directory: "
                "Environment(checkpointing=ps.Checkpointing(directory=...))",
            )
        return roots.below(self.directory, layout.SAVEPOINTS)
