"""The snapshot that a job, or an attempt of a job, starts from: found, checked against the program, and dealt out to
the tasks."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from penstock.api.restoring import Restore
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, JobId, OperatorId
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import regions_of
from penstock.core.recovery import layout
from penstock.core.recovery.assign import NOTHING_RESTORED, Assignment, assign, fitting_key_groups
from penstock.core.recovery.believing import Grounds, believed
from penstock.core.recovery.finished import reopened, with_more_data
from penstock.core.recovery.metadata import CompletedCheckpoint, restored_from
from penstock.core.recovery.restore_plan import OperatorFate, RestorePlan, plan_restore
from penstock.core.recovery.roots import below, split
from penstock.core.recovery.tenure import Tenure
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import JobRecords, Store
from penstock.runtime.master.pickled_state import refuse_pickles
from penstock.settings import JobSettings
from penstock.storage.files import FileStore
from penstock.storage.places import Anywhere
from penstock.storage.remote import RemoteStore
from penstock.storage.restoring import find_snapshot, read_completed
from penstock.storage.snapshots import SnapshotReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A snapshot that fits the program."""

    plan: Plan
    """The plan of the program, with as many key groups as the snapshot has."""
    record: CompletedCheckpoint
    """The snapshot as the first of the job's checkpoints."""
    restore_plan: RestorePlan

    @property
    def fresh(self) -> tuple[OperatorId, ...]:
        """Operators of the program that start without state from the snapshot."""
        fates = (OperatorFate.FRESH, OperatorFate.DROPPED)
        return tuple(o.operator for o in self.restore_plan.operators if o.vertex is not None and o.fate in fates)


def starting_point(store: Store, restore: Restore, plan: Plan, settings: JobSettings) -> StartingPoint:
    """Look at the snapshot that a job is to start from. Blocks. Raises `UsageError` if the snapshot is not there or
    does not fit the program, `CorruptFile` or `StorageError` if the snapshot cannot be read."""
    found = find_snapshot(store, restore.path, also_in=restore.also_in)
    graph = checkpoint_graph(plan)
    groups = fitting_key_groups(found.metadata, graph, restore.rules, given=settings.max_parallelism)
    plan = plan.with_key_groups(groups)
    record = restored_from(
        found.metadata,
        location=found.folder,
        path=found.path,
        metadata_size=found.metadata_size,
        claim=restore.claim,
        retention=settings.checkpoint.retention,
        rules=restore.rules,
    )
    restore_plan = plan_restore(found.metadata, checkpoint_graph(plan), restore.rules)
    if not restore.unpickle:
        refuse_pickles(found.metadata, plan, SnapshotReader(Anywhere(store)))
    return StartingPoint(plan=plan, record=record, restore_plan=restore_plan)


def found_by(
    driver: Tenure, store: FileStore | RemoteStore, job: JobId, given: Restore | None, *, sealed: bool
) -> Tenure:
    """What a driver found of a job, as far as the records of the job are believed: unless the records are `sealed`,
    anybody who can write to the checkpoint directory may have written them. `given` is the snapshot that the program
    names. Raises `CorruptFile` if a record names files that cannot belong to the job."""
    grounds = Grounds(
        job=layout.job_folder(job),
        directory=tuple(dict.fromkeys((store.location, store.followed(store.location)))),
        named=() if given is None else _named(store.followed(given.path)),
        readable=() if given is None else tuple(map(store.followed, given.also_in)),
        sealed=sealed,
    )
    checked = believed(driver, grounds)
    for before, after in zip(driver.completed, checked.completed, strict=True):
        if before.claim is not after.claim:
            known = {"job": job, "location": before.location}
            log.warning(
                "%s in %s stays where it is: the job has claimed the snapshot, but restore= does not name the snapshot",
                before.title,
                before.location,
                extra=known,
            )
    return checked


def _named(path: str) -> tuple[str, ...]:
    """The folders that belong to a snapshot that the user named."""
    above, name = split(path)
    if name == layout.METADATA_NAME:
        path, (above, name) = above, split(above)
    return (path, below(above, "shared")) if layout.checkpoint_number(name) is not None else (path,)


def point_of(
    store: Store,
    record: CompletedCheckpoint,
    plan: Plan,
    settings: JobSettings,
    *,
    finished_with: CheckpointId | msgspec.UnsetType = msgspec.UNSET,
) -> StartingPoint:
    """Read the snapshot that a job of an earlier driver goes on from, and check that the snapshot fits the program of
    this driver, which may differ from the earlier program. `finished_with` is the snapshot with which the job had come
    to the end of its data, if the job goes on with more data; otherwise unset. Blocks. Raises `UsageError` if the
    snapshot does not fit the program, `CorruptFile` or `StorageError` if the snapshot cannot be read."""
    metadata = read_completed(store, record)
    if finished_with == record.checkpoint:
        metadata = reopened(metadata, checkpoint_graph(plan))
    groups = fitting_key_groups(metadata, checkpoint_graph(plan), record.rules, given=settings.max_parallelism)
    plan = plan.with_key_groups(groups)
    restore_plan = plan_restore(metadata, checkpoint_graph(plan), record.rules)
    return StartingPoint(plan=plan, record=record, restore_plan=restore_plan)


def inherited(plan: Plan, store: Store, tenure: Tenure, settings: JobSettings) -> StartingPoint | Plan:
    """What a job of an earlier driver goes on from: the newest checkpoint of the job, checked against the program; or,
    without a checkpoint, the beginning of the job. Blocks. Raises `UsageError` if the checkpoint does not fit the
    program."""
    if tenure.completed:
        return point_of(store, tenure.completed[-1], plan, settings, finished_with=tenure.finished_with)
    return plan if tenure.start is None else plan.with_key_groups(tenure.start.max_parallelism)


def restore_newest(
    store: Store,
    records: JobRecords,
    latest: CompletedCheckpoint | None,
    doubtful: tuple[CheckpointId, ...],
    graph: CheckpointGraph,
    found: Tenure,
) -> Assignment:
    """The state that the tasks of an attempt start from. The records of `doubtful` checkpoints are withdrawn first.
    `found` is what the driver found when its term began. Blocks. Raises `StorageError`, `CorruptFile`, and `UsageError`
    if the checkpoint does not fit the graph."""
    for checkpoint in doubtful:
        records.remove(checkpoint)
    if latest is None:
        return NOTHING_RESTORED
    metadata = read_completed(store, latest)
    had_ended = latest.checkpoint == found.finished_with
    if had_ended:
        metadata = reopened(metadata, graph)
    more_data = had_ended or (latest.claim is not None and metadata.is_drained)
    assigned = assign(metadata if latest.claim is None else with_more_data(metadata, graph), graph, latest.rules)
    return msgspec.structs.replace(assigned, more_data=more_data)


def record_start(records: JobRecords, point: StartingPoint) -> None:
    """Record the snapshot that the job starts from, so that a driver that takes the job over before the first
    checkpoint starts from the same snapshot. Blocks. Raises `StorageError`, `JobTakenOver`."""
    records.record(point.record.checkpoint, msgspec.msgpack.encode(point.record))


def make_lifecycle(plan: Plan, settings: JobSettings, found: Tenure, draws: tuple[float, ...]) -> JobLifecycle:
    """The lifecycle of a job, for the time that this driver has the job."""
    return JobLifecycle(
        slots=plan.parallelism,
        tasks=regions_of(checkpoint_graph(plan)),
        settings=settings.slot,
        restart=settings.restart,
        first_epoch=found.first_epoch,
        ran_before=bool(found.completed),
        draws=draws,
    )
