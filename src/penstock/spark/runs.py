"""Runs of a program: a job goes on from its newest checkpoint if it is run again, by the same name and directory.

`runtime.master.runs` decides which job has the name, and what becomes of the job that had the name before. In this
module the run gets a lease, which shows that its driver is alive: another driver that runs the same name in the same
directory meanwhile is refused. This module also tells the user which checkpoint the run goes on from.

On some storages, two drivers that create the same file may both succeed. There it cannot be decided which driver has
the name. So on such a storage every run is a new job, and a log message says so (`starts_over`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.api.restoring import Restore
from penstock.core.errors import UsageError
from penstock.core.ids import JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout, roots
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.places import is_full
from penstock.core.recovery.tenure import Tenure
from penstock.plan.graph import Plan
from penstock.ports import Leader
from penstock.runtime.master.runs import LostJob, Run, take_job
from penstock.runtime.master.starting import StartingPoint, inherited
from penstock.settings import JobSettings
from penstock.spark.clock import WallClock, fresh_token
from penstock.storage.election import FileElection
from penstock.storage.exclusive import EXTRA
from penstock.storage.files import FileStore
from penstock.storage.names import JobName
from penstock.storage.remote import RemoteStore

LEASE_MS = 10_000
"""When another driver has shown no sign of life for this long, its job counts as a job that no driver runs. In a
mounted folder, a driver on the same host sees at once that the other driver is dead."""
PATIENCE_MS = LEASE_MS + 5_000
POLL_S = 0.1

log = logging.getLogger(__name__)


def begin_run(
    store: FileStore | RemoteStore,
    name: str,
    slug: str,
    given: Restore | None,
    *,
    fresh: bool,
    check: Callable[[Restore], object] = lambda _: None,
) -> Run:
    """Take the job that has the name, or give the name to a new job. A new job is made if no job has the name, with
    `fresh`, and if the user gives a snapshot that the job did not begin with. `slug` is the id of the name, and the
    first part of the job's id. `check` raises if a new job cannot start from the given snapshot; for a job that goes
    on, `check` is not called. Blocks. Raises `UsageError` if another driver runs the job, `StorageError` or
    `CorruptFile`. The store must be able to `create`."""
    return take_job(
        JobName(store, name, slug),
        given,
        fresh=fresh,
        lead=lambda job, lost, goes_on: _lead(store, name, job, lost, goes_on=goes_on),
        new_job=lambda: JobId(f"{slug}-{fresh_token()}"),
        path_of=store.path_of,
        check=check,
    )


def _lead(store: FileStore | RemoteStore, name: str, job: JobId, lost: LostJob, *, goes_on: bool) -> Leader:
    clock = WallClock()
    election = FileElection(
        store, layout.job_folder(job), lease_ms=LEASE_MS, anew=False, clock_ms=clock.precise_ms, goes_on=goes_on
    )
    until, told = clock.precise_ms() + PATIENCE_MS, False
    while (leader := election.campaign(lost)) is None:
        if election.is_held() or clock.precise_ms() >= until:
            raise UsageError(
                f"job {name!r} is running already in {roots.shown(store.location)}: another program, or this program, "
                "has started the job",
                hint="wait until the running job ends, or end it (penstock list, penstock stop); or give this job "
                "another name, or a Checkpointing(directory=...) of its own",
            )
        if not told:
            log.warning(
                "job %r may be running in another program: this program waits, for %d s at most, until that is known",
                name,
                PATIENCE_MS // 1_000,
            )
            told = True
        threading.Event().wait(POLL_S)
    return leader


def continued(
    name: str, plan: Plan, store: FileStore | RemoteStore, tenure: Tenure, settings: JobSettings
) -> StartingPoint | Plan:
    """The point from which a job goes on that is run again. Raises `UsageError` if the checkpoint does not fit the
    program."""
    try:
        return inherited(plan, store, tenure, settings)
    except UsageError as error:
        place = _described(tenure.completed[-1], store) if tenure.completed else "its beginning"
        ways = "fresh=True starts the job over"
        raise UsageError(
            f"job {name!r} cannot go on from {place}: {error.message}",
            hint=f"{error.hint}; {ways}" if error.hint else ways,
        ) from error


def starts_over(name: str, store: FileStore | RemoteStore, obstacle: str) -> str:
    """One line that says why a job is a new job, whatever ran before under its name, and what to do."""
    return (
        f"job {name!r} starts over as a new job, whatever ran before, and a second driver would not be refused: in "
        f"{roots.shown(store.location)} two drivers could create the same file: {obstacle}; to let the job go on, "
        f"install penstock[{EXTRA}] (S3, Google Cloud Storage), or name a checkpoint by restore=, or let drivers meet "
        "by high_availability=ps.zookeeper(...)"
    )


def announcement(name: str, found: Tenure, store: FileStore | RemoteStore) -> str | None:
    """One line that says what becomes of a job that ran before; None for a job that did not run before."""
    if found.outcome is not None:
        return (
            f"job {name!r} has {_ENDED.get(found.outcome.state, 'ended')} before, and its sources have no more data: "
            f"nothing is run; fresh=True starts the job over"
        )
    if found.completed:
        newest = found.completed[-1]
        return f"job {name!r} goes on from {_described(newest, store)}; fresh=True starts the job over"
    if found.term > 0:
        return f"job {name!r} ran before and has no checkpoint to go on from: the job begins at its beginning"
    return None


_ENDED = {JobState.FINISHED: "finished"}


def _described(record: CompletedCheckpoint, store: FileStore | RemoteStore) -> str:
    at = datetime.fromtimestamp(record.completed / 1_000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    place = record.location if is_full(record.location) else roots.below(store.location, record.location)
    return f"{record.kind.value.lower()} {record.checkpoint} of {at}, in {roots.shown(place)}"
