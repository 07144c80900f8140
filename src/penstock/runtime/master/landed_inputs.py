"""The DataFrames that Spark landed for the sources of a job, and who needs them after it.

A savepoint has of such a source the files that are still to be read, and how far; the files themselves stay where they
were landed. So a job that has completed a savepoint leaves them there when it ends. That it has is written down beside
them, before the savepoint is complete: another driver may see the job end.

What a streaming query landed is no business of this file: those files are found, and given up, by the query's source.
"""

from __future__ import annotations

from penstock.api.steps import ReadStep
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.plan.graph import Plan
from penstock.ports import Store

MARK = "_savepoint"
"""The file that says it. Names that begin so are hidden: no reader takes it for data."""


class LandedInputs:
    """What was landed for a job. Calls block: use them in `Background` work only."""

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
        """From now on what was landed outlives the job."""
        if self._is_marked:
            return
        for folder in self._folders:
            if self._store.list_files(folder):
                self._store.write(f"{folder}/{MARK}", b"")
        self._is_marked = True

    def kept(self) -> list[str]:
        """The folders that savepoints need; they lie in the folder of the job."""
        return [folder for folder in self._folders if f"{folder}/{MARK}" in self._store.list_files(folder)]
