"""The DataFrames that Spark landed, as files, for the sources of a job, and whether the files must outlive the job.

For such a source, a savepoint names the files that are still to be read, and how far each file has been read. The
savepoint does not contain the files: they stay where Spark landed them. So a job that has completed a savepoint leaves
the landed files there when the job ends. A mark beside the landed files says so. The mark is written before the
savepoint is complete, because another driver may end the job.

Not handled here: files that a streaming query landed. The source of the query finds these files, and gives them up.
"""

from __future__ import annotations

from penstock.api.steps import ReadStep
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.plan.graph import Plan
from penstock.ports import Store

MARK = "_savepoint"
"""The name of the mark. File names that begin with an underscore are hidden: no reader takes the mark for data."""


class LandedInputs:
    """The landed files of one job. Calls block: use them in `Background` work only."""

    def __init__(self, folder: JobFolder, plan: Plan, store: Store) -> None:
        """`store` is where DataFrames are landed."""
        steps = [operator for vertex in plan.vertices for operator in vertex.operators]
        self._folders = [
            layout.inputs_folder(folder, operator.operator)
            for operator in steps
            if isinstance(operator.step, ReadStep) and not operator.step.is_coordinated
        ]
        self._store = store
        self._is_marked = False

    def keep_for_savepoint(self) -> None:
        """Make durable that the landed files outlive the job."""
        if self._is_marked:
            return
        for folder in self._folders:
            if self._store.list_files(folder):
                self._store.write(f"{folder}/{MARK}", b"")
        self._is_marked = True

    def kept(self) -> list[str]:
        """The folders of landed files that savepoints need. These folders lie in the folder of the job."""
        return [folder for folder in self._folders if f"{folder}/{MARK}" in self._store.list_files(folder)]
