"""Makes a plan ready to run: what Spark must do first, and where parts on the driver keep what they have.

A job that may outlive its driver has its places on record, with the splits of its sources: the next driver goes on with
what lies there. They are chosen once, with a token, so that a job of the same name that begins anew has others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.api.connector import Sink, Source
from penstock.api.foreach import ForEachCheckpoint
from penstock.api.grouped import GroupedFunction
from penstock.api.steps import KeyedProcessStep, ReadStep, WriteStep
from penstock.connectors.parquet import ParquetSink
from penstock.connectors.table import TableSink
from penstock.core.errors import UsageError
from penstock.core.ids import JobId, OperatorId, Term
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Start
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import OperatorPlan, Plan
from penstock.spark.clock import fresh_token
from penstock.spark.data_source_writing import DataSourceSink
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.foreach import LandedResults
from penstock.spark.streams import LandedStream, StreamSource
from penstock.spark.tables import CatalogTable, open_table, table_left_by
from penstock.storage.files import FileStore


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Makes a plan ready to run: DataFrames landed, sources asked for their splits, sinks seen to be writable."""

    job: JobId
    spark: Any
    landing: str
    """Where DataFrames go."""
    begin: tuple[OperatorId, ...] | None = None
    """The sources that begin at their beginning; None: all. The others have their splits in a snapshot."""
    began: Start | None = None
    """What was decided when the job began, with another driver."""
    term: Term | None = None
    """Of the driver, if the job may outlive it: two of them must not land a DataFrame in the same place."""
    has_ended: bool = False
    """Whether the job has ended, and only what is left of it is to be cleaned up."""

    def prepare(self, plan: Plan) -> Plan:
        """The plan with the splits of its sources."""
        vertices = tuple(
            replace(vertex, operators=tuple(self._prepared(o, plan.parallelism) for o in vertex.operators))
            for vertex in plan.vertices
        )
        return replace(plan, vertices=vertices)

    def _prepared(self, operator: OperatorPlan, parallelism: int) -> OperatorPlan:
        step = operator.step
        if isinstance(step, WriteStep):
            return replace(operator, step=replace(step, sink=self._sink(operator, step)))
        is_new = self.begin is None or operator.operator in self.begin
        if isinstance(step, KeyedProcessStep) and isinstance(step.function, GroupedFunction):
            function = step.function.landed(Path(self.landing) / self._inputs(operator) if is_new else None)
            return replace(operator, step=replace(step, function=function))
        if not isinstance(step, ReadStep):
            return operator
        source: Any = step.source
        if isinstance(source, StreamSource):
            return replace(operator, step=replace(step, source=self._stream(operator, source, is_new=is_new)))
        splits = None if self.began is None else self.began.splits.get(operator.operator)
        if splits is not None or not is_new:
            source = source.resumed() if isinstance(source, DataFrameSource) else source
            return replace(operator, step=replace(step, source=source, splits=splits or ()))
        if isinstance(source, DataFrameSource):
            source = source.land(FileStore(self.landing).root / self._inputs(operator))
        return replace(operator, step=replace(step, source=source, splits=tuple(source.splits(parallelism))))

    # --- parts on the driver -------------------------------------------------------------

    def _sink(self, operator: OperatorPlan, step: WriteStep) -> Sink:
        """The sink as the driver has it, and seen to be writable."""
        sink, known = step.sink, self._known_place(operator)
        if isinstance(sink, TableSink):
            return table_left_by(sink, self.spark) if self.has_ended else self._table(sink, step, known)
        if isinstance(sink, ForEachCheckpoint):
            place = known or str(Path(self.landing) / self._results(operator))
            sink = LandedResults(Path(place), self.spark, sink.function)
        elif isinstance(sink, DataSourceSink):
            sink = sink.placed(self.landing, known or self._results(operator))
        if not self.has_ended or not sink.commits_on_driver:
            sink.start(self.job)
        return sink

    def _table(self, sink: TableSink, step: WriteStep, known: str | None) -> Sink:
        opened = open_table(sink, self.spark, step.schema)
        if known not in (None, opened.path):
            raise UsageError(
                f"the files of table {sink.table} are in {opened.path} here, and in {known} for the driver that had "
                f"job {self.job} before",
                hint="give all drivers the same catalog, or give ps.table a path= that all of them have mounted",
            )
        opened.start(self.job)
        return opened

    def _stream(self, operator: OperatorPlan, source: StreamSource, *, is_new: bool) -> Source:
        known = self._known_place(operator)
        if known is not None:
            return source.taken_over(Path(known))
        inputs = Path(self.landing) / self._inputs(operator)
        return source.taken_over(inputs) if self.has_ended else source.land(inputs, resumes=not is_new)

    def _known_place(self, operator: OperatorPlan) -> str | None:
        return None if self.began is None else self.began.place_of(operator.operator)

    def _inputs(self, operator: OperatorPlan) -> str:
        folder = layout.inputs_folder(layout.job_folder(self.job), operator.operator)
        return folder if self.term is None else f"{folder}/{self.term}-{fresh_token()}"

    def _results(self, operator: OperatorPlan) -> str:
        folder = layout.results_folder(layout.job_folder(self.job), operator.operator)
        # Of a job that has ended only what is on record is to be cleaned up.
        return folder if self.term is None and not self.has_ended else f"{folder}/{fresh_token()}"


def needs_landing(plan: Plan) -> bool:
    """Whether results are handed over as files, which need a mounted folder."""
    steps = (o.step for vertex in plan.vertices for o in vertex.operators)
    return any(isinstance(step, WriteStep) and isinstance(step.sink, ForEachCheckpoint) for step in steps)


def folders_written(plan: Plan) -> list[Path]:
    """Where slots put the results of the job."""
    steps = (o.step for vertex in plan.vertices for o in vertex.operators)
    sinks = [step.sink for step in steps if isinstance(step, WriteStep)]
    return [Path(sink.path) for sink in sinks if isinstance(sink, ParquetSink)]


def start_of(plan: Plan) -> Start:
    """What drivers that take the job over must know of it: the graph, and what they must not decide anew."""
    steps = {o.operator: o.step for vertex in plan.vertices for o in vertex.operators}
    splits = {operator: tuple(step.splits) for operator, step in steps.items() if isinstance(step, ReadStep)}
    places = {operator: place for operator, step in steps.items() if (place := _place_of(step)) is not None}
    graph = checkpoint_graph(plan)
    return Start(
        splits=splits,
        max_parallelism=plan.max_parallelism,
        vertices=graph.vertices,
        edges=graph.edges,
        places=places or msgspec.UNSET,
    )


def _place_of(step: Any) -> str | None:
    match step:
        case ReadStep(source=LandedStream() as stream):
            return str(stream.place)
        case WriteStep(sink=LandedResults() | CatalogTable() as sink):
            return sink.path
        case WriteStep(sink=DataSourceSink() as sink):
            return sink.folder
        case _:
            return None
