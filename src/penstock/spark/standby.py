"""A driver that waits until it has the job."""

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
"""How often a driver that waits asks whether it has the job."""
AGAIN_S = 1.0
"""How long it waits when the storage does not say."""

log = logging.getLogger(__name__)


def open_election(chosen: HighAvailability, job: JobId, store: FileStore | RemoteStore) -> Election:
    """Where the drivers of a job meet. `store` has its checkpoints. Raises `UsageError` if a package is missing, or if
    drivers cannot meet there."""
    folder = layout.job_folder(job)
    if isinstance(chosen, InFiles):
        place = open_store(chosen.location, options=store.options)
        obstacle = place.obstacle_to_create()
        if obstacle is not None:
            raise UsageError(
                f"drivers cannot meet in {roots.shown(chosen.location)}, which cannot create a file for one of them "
                f"only: {obstacle}",
                hint=f"install penstock[{EXTRA}]; or use a folder that is mounted, or ps.zookeeper(...)",
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
    """Takes part in an election until it has the job."""

    election: Election
    build: Callable[[Leader], MasterParts]
    """Makes the master, when this driver has the job."""

    def seek(self, left: threading.Event, lost: Callable[[], None]) -> MasterParts | None:
        """Wait for the job; None if `left` was set before this driver had it. While `build` works nobody looks at it:
        the caller looks again. `lost` is called, from any thread, when another driver has it. Storage that is out of
        order is waited for. Raises whatever else `build` does."""
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
            # It was too slow to begin, and waits in line again.
            leader.resign()
            return None
        except BaseException:
            leader.resign()
            raise


def standby_view(job: JobId) -> JobView:
    """The job as a driver sees it that waits for it."""
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
