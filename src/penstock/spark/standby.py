"""A driver that waits until it has the job, and what it makes of what the drivers before it left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock.api.foreach import ForEachCheckpoint
from penstock.api.grouped import GroupedFunction
from penstock.api.high_availability import HighAvailability, InFiles
from penstock.api.steps import KeyedProcessStep, ReadStep, WriteStep
from penstock.connectors.table import TableSink
from penstock.core.errors import CorruptFile, JobTakenOver, StorageError
from penstock.core.ids import Epoch, JobId, OperatorId, Term
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Start, Tenure
from penstock.core.views import CheckpointCounts, CheckpointsView, SummaryView
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import OperatorPlan, Plan
from penstock.ports import Election, Leader, Store
from penstock.runtime.starting import StartingPoint, point_of
from penstock.runtime.views import JobView
from penstock.settings import JobSettings
from penstock.spark.clock import WallClock, fresh_token
from penstock.spark.data_source_writing import DataSourceSink
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.foreach import LandedResults
from penstock.spark.job import MasterParts
from penstock.spark.streams import StreamSource
from penstock.spark.tables import open_table
from penstock.storage.election import FileElection
from penstock.storage.files import FileStore

POLL_S = 0.1
"""How often a driver that waits asks whether it has the job."""
AGAIN_S = 1.0
"""How long it waits when the storage does not say."""

log = logging.getLogger(__name__)


def open_election(chosen: HighAvailability, job: JobId, store: Store) -> Election:
    """Where the drivers of a job meet. `store` has its checkpoints. Raises `UsageError` if a package is missing."""
    folder = layout.job_folder(job)
    if isinstance(chosen, InFiles):
        return FileElection(
            FileStore(chosen.location),
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
        """Wait for the job; None if `left` was set before this driver had it. `lost` is called, from any thread, when
        another driver has it. Storage that is out of order is waited for. Raises whatever else `build` does."""
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


# --- what a driver makes of what it found ----------------------------------------------------------------------------


def inherited(plan: Plan, store: Store, tenure: Tenure, settings: JobSettings) -> StartingPoint | Plan:
    """What a job goes on from that has begun with another driver: its newest checkpoint, checked against the program,
    or its beginning. Blocks. Raises `UsageError` if the checkpoint does not fit the program."""
    if tenure.completed:
        return point_of(store, tenure.completed[-1], plan, settings)
    return plan if tenure.start is None else plan.with_key_groups(tenure.start.max_parallelism)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Makes a plan ready to run: DataFrames landed, sources asked for their splits, sinks seen to be writable."""

    job: JobId
    spark: Any
    landing: str
    """Where DataFrames go."""
    begin: tuple[OperatorId, ...] | None = None
    """The sources that begin at their beginning; None: all. The others have their splits in a snapshot."""
    known: dict[OperatorId, tuple[bytes, ...]]
    """Splits that were asked for when the job began."""
    term: Term | None = None
    """Of the driver, if the job may outlive it: two of them must not land a DataFrame in the same place."""

    def prepare(self, plan: Plan) -> Plan:
        """The plan with the splits of its sources."""
        vertices = tuple(
            replace(vertex, operators=tuple(self._prepared(o, plan.parallelism) for o in vertex.operators))
            for vertex in plan.vertices
        )
        return replace(plan, vertices=vertices)

    def _prepared(self, operator: OperatorPlan, parallelism: int) -> OperatorPlan:
        step = operator.step
        if isinstance(step, WriteStep) and isinstance(step.sink, ForEachCheckpoint):
            place = Path(self.landing) / layout.results_folder(layout.job_folder(self.job), operator.operator)
            step = replace(step, sink=LandedResults(place, self.spark, step.sink.function))
        if isinstance(step, WriteStep) and isinstance(step.sink, DataSourceSink):
            messages = layout.results_folder(layout.job_folder(self.job), operator.operator)
            step = replace(step, sink=step.sink.placed(self.landing, messages))
        if isinstance(step, WriteStep) and isinstance(step.sink, TableSink):
            step = replace(step, sink=open_table(step.sink, self.spark, step.schema))
        if isinstance(step, WriteStep):
            step.sink.start(self.job)
            return replace(operator, step=step)
        is_new = self.begin is None or operator.operator in self.begin
        if isinstance(step, KeyedProcessStep) and isinstance(step.function, GroupedFunction):
            function = step.function.landed(Path(self.landing) / self._folder(operator) if is_new else None)
            return replace(operator, step=replace(step, function=function))
        if not isinstance(step, ReadStep):
            return operator
        source: Any = step.source
        if isinstance(source, StreamSource):
            landed = source.land(Path(self.landing) / self._folder(operator), resumes=not is_new)
            return replace(operator, step=replace(step, source=landed))
        splits = self.known.get(operator.operator)
        if splits is not None or not is_new:
            source = source.resumed() if isinstance(source, DataFrameSource) else source
            return replace(operator, step=replace(step, source=source, splits=splits or ()))
        if isinstance(source, DataFrameSource):
            source = source.land(FileStore(self.landing).root / self._folder(operator))
        return replace(operator, step=replace(step, source=source, splits=tuple(source.splits(parallelism))))

    def _folder(self, operator: OperatorPlan) -> str:
        folder = layout.inputs_folder(layout.job_folder(self.job), operator.operator)
        return folder if self.term is None else f"{folder}/{self.term}"


class PartOnDriver(NamedTuple):
    """An operator that does something on the driver while the job runs."""

    title: str
    lands_results: bool
    """Whether it hands results over as files, which need a mounted folder."""


def parts_on_driver(plan: Plan) -> list[PartOnDriver]:
    """The operators of a program that have one."""
    found: list[PartOnDriver] = []
    for operator in (o for vertex in plan.vertices for o in vertex.operators):
        step, title = operator.step, f"step {operator.name!r}"
        if isinstance(step, ReadStep) and step.source.discovers:
            found.append(PartOnDriver(title, lands_results=False))
        elif isinstance(step, WriteStep) and (
            isinstance(step.sink, ForEachCheckpoint | TableSink) or step.sink.commits_on_driver
        ):
            found.append(PartOnDriver(title, lands_results=isinstance(step.sink, ForEachCheckpoint)))
    return found


def start_of(plan: Plan) -> Start:
    """What drivers that take the job over must know of it: the graph, and what they must not decide anew."""
    steps = {o.operator: o.step for vertex in plan.vertices for o in vertex.operators}
    splits = {operator: tuple(step.splits) for operator, step in steps.items() if isinstance(step, ReadStep)}
    graph = checkpoint_graph(plan)
    return Start(splits=splits, max_parallelism=plan.max_parallelism, vertices=graph.vertices, edges=graph.edges)
