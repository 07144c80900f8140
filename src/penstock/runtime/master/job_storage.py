"""The files and records of a job, and how the master changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.core.recovery.layout import JobFolder
from penstock.ports import Background, JobRecords, Store, WorkResult
from penstock.runtime.master.guard import Guard


@dataclass(frozen=True, kw_only=True)
class JobStorage:
    """The files and records of one job. They are changed off the loop, and only while this driver has the job."""

    job: JobId
    store: Store
    records: JobRecords
    background: Background
    guard: Guard
    """The hold of this guard need not look which driver has the job: the records themselves raise `JobTakenOver`."""

    @property
    def folder(self) -> JobFolder:
        """The folder of the job in the store."""
        return layout.job_folder(self.job)

    def submit(self, work: Callable[[], Any], done: Callable[[WorkResult], None]) -> None:
        """Have work done off the loop, unless the job is lost. `done` gets the result in either case."""
        self.guard.submit(self.background, work, done, lost=done)
