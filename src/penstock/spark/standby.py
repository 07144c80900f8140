"""A driver on standby: waits until it has the job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.api.high_availability import HighAvailability, InFiles
from penstock.core.errors import CorruptFile, JobTakenOver, StorageError, UsageError
from penstock.core.ids import Epoch, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout, roots
from penstock.core.views import CheckpointCounts, CheckpointsView, SummaryView
from penstock.ports import Election, Leader
from penstock.runtime.views import JobView
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.job import MasterParts
from penstock.storage.election import FileElection
from penstock.storage.exclusive import EXTRA
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.remote import RemoteStore

POLL_S = 0.1
"""How often a driver on standby campaigns for the job."""
AGAIN_S = 1.0
"""How long a driver on standby waits after an error of the storage."""

log = logging.getLogger(__name__)


def open_election(chosen: HighAvailability, job: JobId, store: FileStore | RemoteStore) -> Election:
    """The election for a job. `store` has the checkpoints of the job. Raises `UsageError` if a package is missing, or
    if drivers cannot meet in the chosen place."""
    folder = layout.job_folder(job)
    if isinstance(chosen, InFiles):
        place = open_store(chosen.location, options=store.options)
        obstacle = place.obstacle_to_create()
        if obstacle is not None:
            raise UsageError(
                f"drivers cannot meet in {roots.shown(chosen.location)}, where two drivers could create the same file: "
                f"{obstacle}",
                hint=f"install penstock[{EXTRA}]; or use a mounted folder, or ps.zookeeper(...)",
            )
        return FileElection(
            place,
            folder,
            lease_ms=chosen.lease_ms,
            anew=chosen.restart_finished,
            clock_ms=WallClock().precise_ms,
        )
    from penstock.storage.zookeeper import ZooKeeperElection

    return ZooKeeperElection(chosen, job, store, token=fresh_token(), clock_ms=WallClock().precise_ms)


@dataclass(frozen=True, kw_only=True)
class Standby:
    """Takes part in an election until this driver has the job."""

    election: Election
    build: Callable[[Leader], MasterParts]
    """Makes the parts of the master, when this driver has the job."""

    def seek(self, left: threading.Event, lost: Callable[[], None]) -> MasterParts | None:
        """Wait until this driver has the job, and make the parts of the master. Returns None if `left` was set before
        this driver had the job. `left` is not looked at while `build` works, so the caller must look at `left` again.
        `lost` is called, from any thread, when another driver has the job. After a `StorageError` the driver tries
        again. Raises `CorruptFile`, and every other error of `build`."""
        told = False
        while not left.is_set():
            pause_s = POLL_S
            try:
                parts = self.attempt(lost)
            except CorruptFile:
                raise
            except StorageError as error:
                parts, pause_s = None, AGAIN_S
                if not told:
                    log.warning("this driver cannot take the job over now, and tries again: %s", error)
                told = True
            if parts is not None:
                return parts
            left.wait(pause_s)
        self.election.close()
        return None

    def attempt(self, lost: Callable[[], None]) -> MasterParts | None:
        """Take the job over, if no other driver has it."""
        leader = self.election.campaign(lost)
        if leader is None:
            return None
        try:
            return self.build(leader)
        except JobTakenOver:
            # This driver was too slow: another driver has taken the job over. This driver waits again.
            leader.resign()
            return None
        except BaseException:
            leader.resign()
            raise


def standby_view(job: JobId) -> JobView:
    """The view of a job on a driver that is on standby."""
    return JobView(
        job=job,
        state=JobState.STANDBY,
        epoch=Epoch(0),
        restarts=0,
        slots=(),
        rows_in=0,
        rows_read=0,
        rows_out=0,
        watermark_us=None,
        restored_checkpoint=None,
        checkpoints=CheckpointsView(counts=CheckpointCounts(), summary=SummaryView(), history=()),
        failures=(),
    )
