"""Makes a plan ready to run: lands DataFrames, and chooses the places for files of sources and sinks.

Sources and sinks prepare themselves (`Source.prepared`, `Sink.prepared`): this module gives each of them its `Site`.

For a job that may outlive its driver, the places and the splits of its sources are on record, so that the next driver
goes on with the files in these places. A place is chosen once and has a random token in its name, so that a job of the
same name that begins anew has other places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.connector import Footprint, KeptFiles, Sink, Site, Source, UnpreparedSink
from penstock.api.grouped import GroupedFunction
from penstock.api.steps import KeyedProcessStep, ReadStep, TableJoinStep, WriteStep
from penstock.connectors.table import TableSink
from penstock.core.errors import UsageError
from penstock.core.ids import JobId, OperatorId, Term
from penstock.core.recovery import layout, roots
from penstock.core.recovery.tenure import Start
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import OperatorPlan, Plan
from penstock.private_folders import check_private
from penstock.spark.clock import fresh_token
from penstock.spark.foreach import LandedResults
from penstock.spark.kept_files import StoredFiles
from penstock.spark.result_places import check_known, folder_at
from penstock.spark.tables import open_table, table_left_by
from penstock.storage.files import FileStore
from penstock.storage.seals import PLAIN, StoreOptions


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Makes a plan ready to run: lands DataFrames, asks sources for their splits, and checks that sinks can be
    written."""

    job: JobId
    spark: Any
    landing: str
    """The root of the landing folder."""
    begin: tuple[OperatorId, ...] | None = None
    """The operators that begin at their beginning; None: all operators. The splits of all other sources are in a
    snapshot."""
    began: Start | None = None
    """The record of how the job began, with another driver; None if there is no such record."""
    term: Term | None = None
    """The term of the driver, if the job may outlive the driver: two drivers must not land a DataFrame in the same
    place."""
    options: StoreOptions = PLAIN
    """How sinks write and read the files that they keep for the driver."""
    has_ended: bool = False
    """Whether the job has ended, and only the files that the job left behind are to be cleaned up."""

    def prepare(self, plan: Plan) -> Plan:
        """The plan with prepared sources and sinks, and with the splits of the sources."""
        self._narrow_earlier()
        vertices = tuple(
            replace(vertex, operators=tuple(self._prepared(o, vertex.parallelism) for o in vertex.operators))
            for vertex in plan.vertices
        )
        return replace(plan, vertices=vertices)

    def _narrow_earlier(self) -> None:
        """Narrow the folders that an earlier driver of the job, with an earlier version, made for all users to
        enter."""
        if roots.is_local(self.landing) and not self.has_ended:
            landing, job = FileStore(self.landing, options=self.options), layout.job_folder(self.job)
            landing.narrow(job)
            landing.narrow(layout.results_of_job(job))

    def _prepared(self, operator: OperatorPlan, parallelism: int) -> OperatorPlan:
        step, site = operator.step, _SparkSite(self, operator.operator)
        match step:
            case WriteStep():
                step = replace(step, sink=self._sink(step, site))
            case ReadStep():
                source = step.source.prepared(site)
                known = site.splits is not None or not site.begins
                splits = site.splits or () if known else tuple(source.splits(parallelism))
                step = replace(step, source=source, splits=splits)
            case KeyedProcessStep(function=GroupedFunction() as function):
                step = replace(step, function=function.landed(site.inputs_path if site.begins else None))
            case TableJoinStep() if not self.has_ended:
                step = replace(step, table=step.table.landed(site.inputs_path))
            case _:
                pass
        return replace(operator, step=step)

    def _sink(self, step: WriteStep, site: Site) -> Sink:
        """The prepared sink. Raises `UsageError` if the sink cannot be written."""
        sink = step.sink.prepared(site, step.schema)
        # If the job has ended, the table of a sink may be gone, and a sink that the driver commits has its folder
        # already: such a sink is only cleaned up.
        is_left = self.has_ended and (sink.commits_on_driver or isinstance(sink, UnpreparedSink))
        if not is_left:
            sink.start(self.job)
        return sink


class _SparkSite(Site):
    """The site of a source or sink of a job on Spark."""

    def __init__(self, preparation: Preparation, operator: OperatorId) -> None:
        began, begin = preparation.began, preparation.begin
        self._preparation = preparation
        self._operator = operator
        self.job = preparation.job
        self.known_place = None if began is None else began.place_of(operator)
        self.begins = begin is None or operator in begin
        self.splits = None if began is None else began.splits.get(operator)
        self.has_ended = preparation.has_ended
        self.landing = preparation.landing
        self.options = preparation.options

    def inputs(self) -> str:
        folder = layout.inputs_folder(layout.job_folder(self._preparation.job), self._operator)
        term = self._preparation.term
        return self._made(folder if term is None else f"{folder}/{term}-{fresh_token()}")

    def inputs_path(self) -> Path:
        """The full path of `inputs`."""
        return Path(self.landing, self.inputs())

    def known_inputs(self, given: Path | None) -> str | None:
        known = self.known_place
        if known is not None and Path(known) != given:
            check_known(known, layout.inputs_folder(layout.job_folder(self._preparation.job), self._operator))
        return known

    def results(self) -> str:
        folder = layout.results_folder(layout.job_folder(self._preparation.job), self._operator)
        if self.known_place is not None:
            return self._made(check_known(self.known_place, folder))
        # For a job that has ended, only places on record are to be cleaned up: the token makes a place without files.
        is_fixed = self._preparation.term is None and not self.has_ended
        return self._made(folder if is_fixed else f"{folder}/{fresh_token()}")

    def _made(self, folder: str) -> str:
        """Make a folder before Spark or a slot would make the folder, with a mode that lets other users in. Raises
        `UsageError` if another user can put files there, or another folder in its place."""
        if self.has_ended or not roots.is_local(self.landing):
            return folder
        known = folder_at(Path(folder)) if Path(folder).is_absolute() else None
        landing, path = (self.landing, folder) if known is None else (known.landing, "/".join(known.names))
        store = FileStore(landing, options=self.options)
        store.make_folder(path)
        check_private(
            store.root / path,
            what="the folder for landed rows and results",
            setting="Environment(landing=...)",
            mode=self.options.folder_mode,
        )
        return folder

    def kept_files(self, folder: str) -> KeptFiles:
        return StoredFiles(root=self.landing, folder=folder, options=self.options)

    def fresh_token(self) -> str:
        return fresh_token()

    def handing_over(self, function: Callable[[Any, int], Any]) -> Sink:
        return LandedResults(Path(self.landing) / self.results(), self._preparation.spark, function)

    def table(self, name: str, *, path: str | None, partition_by: tuple[str, ...], schema: pa.Schema) -> Sink | None:
        spark = self._preparation.spark
        if self.has_ended:
            return table_left_by(name, spark)
        opened = open_table(TableSink(table=name, path=path, partition_by=partition_by), spark, schema)
        if self.known_place not in (None, opened.path):
            raise UsageError(
                f"the files of table {name} are in {opened.path} for this driver, and in {self.known_place} for the "
                f"driver that had job {self.job} before",
                hint="give all drivers the same catalog, or give ps.table a path= that all of them have mounted",
            )
        return opened


def needs_landing(plan: Plan) -> bool:
    """Whether slots hand results over to the driver as files, which need a mounted folder."""
    return any(footprint.shares_landing for _, footprint in _footprints(plan))


def finds_more_later(plan: Plan) -> bool:
    """Whether a source that comes to its end may find more data when the program is run again."""
    steps = (operator.step for operator in _operators(plan))
    return any(isinstance(step, ReadStep) and step.source.finds_more_later for step in steps)


def landed_steps(plan: Plan) -> tuple[str, ...]:
    """The names of the steps that have files in the landing folder to which snapshots of the job refer."""
    return tuple(operator.name for operator, footprint in _footprints(plan) if footprint.in_landing)


def folders_written(plan: Plan) -> list[Path]:
    """The folders that slots write results into."""
    return [Path(footprint.written) for _, footprint in _footprints(plan) if footprint.written is not None]


def start_of(plan: Plan) -> Start:
    """The record of how the job begins, for drivers that take the job over: the graph, and the decisions that such a
    driver must not make anew."""
    reads = {o.operator: o.step for o in _operators(plan) if isinstance(o.step, ReadStep)}
    places = {o.operator: footprint.place for o, footprint in _footprints(plan) if footprint.place is not None}
    graph = checkpoint_graph(plan)
    return Start(
        splits={operator: tuple(step.splits) for operator, step in reads.items()},
        max_parallelism=plan.max_parallelism,
        vertices=graph.vertices,
        edges=graph.edges,
        places=places or msgspec.UNSET,
    )


def _operators(plan: Plan) -> list[OperatorPlan]:
    return [operator for vertex in plan.vertices for operator in vertex.operators]


def _footprints(plan: Plan) -> list[tuple[OperatorPlan, Footprint]]:
    """The operators that are sources or sinks, each with its footprint: what it leaves outside the job's
    checkpoints."""
    ends: list[tuple[OperatorPlan, Source | Sink]] = []
    for operator in _operators(plan):
        match operator.step:
            case ReadStep(source=source):
                ends.append((operator, source))
            case WriteStep(sink=sink):
                ends.append((operator, sink))
            case _:
                pass
    return [(operator, end.footprint) for operator, end in ends]
