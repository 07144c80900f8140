"""What a job, or an attempt of it, starts from: found, checked against the program, and dealt out."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.api.restoring import Restore
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import regions_of
from penstock.core.recovery.assign import NOTHING_RESTORED, Assignment, assign, fitting_key_groups
from penstock.core.recovery.finished import with_more_data
from penstock.core.recovery.metadata import CompletedCheckpoint, restored_from
from penstock.core.recovery.plan import OperatorFate, RestorePlan, plan_restore
from penstock.core.recovery.tenure import Tenure
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import JobRecords, Store
from penstock.settings import JobSettings
from penstock.storage.restoring import find_snapshot, read_completed


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A snapshot that fits the program."""

    plan: Plan
    """The program's, with as many key groups as the snapshot has."""
    record: CompletedCheckpoint
    """The snapshot as the first of the job's checkpoints."""
    restore_plan: RestorePlan

    @property
    def fresh(self) -> tuple[OperatorId, ...]:
        """Operators of the program that begin at their beginning."""
        fates = (OperatorFate.FRESH, OperatorFate.DROPPED)
        return tuple(o.operator for o in self.restore_plan.operators if o.vertex is not None and o.fate in fates)


def starting_point(store: Store, restore: Restore, plan: Plan, settings: JobSettings) -> StartingPoint:
    """Look at what a job is to start from. Blocks. Raises `UsageError` if it is not there or does not fit the program,
    `CorruptFile` or `StorageError` if it cannot be read."""
    found = find_snapshot(store, restore.path)
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
    return StartingPoint(plan=plan, record=record, restore_plan=restore_plan)


def point_of(store: Store, record: CompletedCheckpoint, plan: Plan, settings: JobSettings) -> StartingPoint:
    """Look at what a job goes on from that another driver had, if this driver has another program. Blocks. Raises
    `UsageError` if it does not fit the program, `CorruptFile` or `StorageError` if it cannot be read."""
    metadata = read_completed(store, record)
    groups = fitting_key_groups(metadata, checkpoint_graph(plan), record.rules, given=settings.max_parallelism)
    plan = plan.with_key_groups(groups)
    restore_plan = plan_restore(metadata, checkpoint_graph(plan), record.rules)
    return StartingPoint(plan=plan, record=record, restore_plan=restore_plan)


def restore_newest(
    store: Store,
    records: JobRecords,
    latest: CompletedCheckpoint | None,
    doubtful: tuple[CheckpointId, ...],
    graph: CheckpointGraph,
) -> Assignment:
    """What the tasks of an attempt start from. Records that are in doubt are withdrawn first. Blocks. Raises
    `StorageError`, `CorruptFile`, and `UsageError` if the checkpoint does not fit the graph."""
    for checkpoint in doubtful:
        records.remove(checkpoint)
    if latest is None:
        return NOTHING_RESTORED
    metadata = read_completed(store, latest)
    return assign(metadata if latest.claim is None else with_more_data(metadata), graph, latest.rules)


def record_start(records: JobRecords, point: StartingPoint) -> None:
    """Put the snapshot on the job's record, so that another driver that takes the job over before its first checkpoint
    begins from there too. Blocks. Raises `StorageError`, `JobTakenOver`."""
    records.record(point.record.checkpoint, msgspec.msgpack.encode(point.record))


def make_lifecycle(plan: Plan, settings: JobSettings, found: Tenure, draws: tuple[float, ...]) -> JobLifecycle:
    """The life of a job with this driver."""
    return JobLifecycle(
        slots=plan.parallelism,
        tasks=regions_of(checkpoint_graph(plan)),
        settings=settings.slot,
        restart=settings.restart,
        first_epoch=found.first_epoch,
        ran_before=bool(found.completed),
        draws=draws,
    )
