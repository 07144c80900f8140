"""Where a program meets Spark: builds the plan, lands DataFrames, starts the job master and the slots."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from penstock.api.backends import StateBackend, as_state_settings
from penstock.api.checkpointing import Checkpointing
from penstock.api.durations import Duration, duration_ms
from penstock.api.foreach import ForEachCheckpoint
from penstock.api.grouped import GroupedFunction, HostedProcessor
from penstock.api.program import Program
from penstock.api.restoring import Restore
from penstock.api.restoring import restore as make_restore
from penstock.api.steps import KeyedProcessStep, ReadStep, WriteStep
from penstock.api.stream import Stream
from penstock.connectors.parquet import local_path
from penstock.connectors.table import TableSink
from penstock.core.errors import SettingsError, UsageError
from penstock.core.ids import JobId, OperatorId, SlotId
from penstock.core.recovery import layout, roots
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.plan import RestorePlan
from penstock.net.keys import make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.plan.graph import OperatorPlan, Plan
from penstock.runtime.master import MasterDriver, MasterPorts
from penstock.runtime.slot import MASTER
from penstock.runtime.starting import StartingPoint, record_start, starting_point
from penstock.runtime.views import JobView
from penstock.settings import (
    CheckpointSettings,
    ExponentialDelay,
    JobSettings,
    NetworkSettings,
    NoRestart,
    Restart,
    SlotSettings,
)
from penstock.spark.background import ThreadBackground, Workers
from penstock.spark.clock import WallClock, draws, fresh_token
from penstock.spark.data_source_writing import DataSourceSink
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.foreach import LandedResults
from penstock.spark.host_rules import Needs
from penstock.spark.job import Job, MasterParts
from penstock.spark.preflight import (
    capacity_now,
    check_host,
    check_session,
    is_called_by_tcp,
    master_address,
    task_slots,
    use_own_interpreter,
)
from penstock.spark.slots import SparkSlots
from penstock.spark.streams import StreamSource
from penstock.spark.tables import open_table
from penstock.spark.worker import SlotSpec
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.remote import RemoteStore

LARGEST_PROGRAM_BYTES = 1_000_000
"""A plan up to this size goes to a slot twice: with its Spark task, for its imports, and when it is deployed."""


class Environment(Program):
    """A program that runs on a SparkSession.

    Args:
        spark: the session, a classic one or one of Spark Connect; its tasks become the job's slots.
        parallelism: how many slots, and so how many subtasks each step. Default: one less than Spark has cores.
        checkpointing: when checkpoints are taken and where they are kept. Without it the job takes only its final
            one, into a temporary folder, and a failure ends it.
        restart: what follows a failure: `no_restart()`, `fixed_delay(...)`, `exponential_delay(...)`,
            `failure_rate(...)`. Default: exponential delay with checkpointing, none without.
        max_parallelism: the number of key groups; the job can never be rescaled beyond it.
        network: how slots exchange batches.
        slots: how slots are watched.
        spare_slots: how many slots are kept ready besides, with no work, to take the place of one that dies at once
            instead of after the second or so that a new one needs. Each costs a core.
        source_batch_rows: a source is asked for at most this many rows at a time.
        state_backend: where keyed state is kept while the job runs: `ps.memory()`, or its name.
        landing: where Spark lands the DataFrames of `from_dataframe`: a folder that the driver and all executors have
            mounted. Default: the checkpoint directory, if that is such a folder.

    """

    def __init__(  # noqa: PLR0913  # one keyword per question; all have defaults
        self,
        spark: Any,
        *,
        parallelism: int | None = None,
        checkpointing: Checkpointing | None = None,
        restart: Restart | None = None,
        max_parallelism: int | None = None,
        network: NetworkSettings | None = None,
        slots: SlotSettings | None = None,
        spare_slots: int = 0,
        source_batch_rows: int = JobSettings.source_batch_rows,
        state_backend: StateBackend | None = None,
        landing: str | os.PathLike[str] | None = None,
    ) -> None:
        check_session(spark)
        if restart is None:
            restart = ExponentialDelay() if checkpointing is not None else NoRestart()
        settings = JobSettings(
            parallelism=parallelism if parallelism is not None else max(1, task_slots(spark) - 1 - spare_slots),
            max_parallelism=max_parallelism,
            checkpoint=checkpointing.settings if checkpointing is not None else CheckpointSettings(),
            restart=restart,
            network=network or NetworkSettings(),
            slot=replace(slots or SlotSettings(), spares=spare_slots) if spare_slots else slots or SlotSettings(),
            source_batch_rows=source_batch_rows,
            state=as_state_settings(state_backend),
        )
        problems = settings.problems()
        if problems:
            raise SettingsError(problems)
        super().__init__(settings, processor_host=self._host_processor)
        self._spark = spark
        self._checkpointing = checkpointing
        self._landing = FileStore(landing) if landing is not None else None

    def from_dataframe(self, frame: Any, *, name: str | None = None) -> Stream:
        """A stream of the rows of a batch DataFrame, whatever Spark SQL made it.

        Spark writes the DataFrame once, when the job starts, into the job's directory (or into `landing`, see
        `Environment`); from there it is read and, after a failure, read again exactly as before.
        """
        self._check_landing()
        return self.read(DataFrameSource(frame), name=name)

    def from_stream(
        self,
        frame: Any,
        *,
        trigger: Duration | None = None,
        available_now: bool = False,
        directory: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> Stream:
        """A stream of the rows of a streaming DataFrame, whatever Structured Streaming source and SQL made it.

        A query of Spark's lands its micro-batches in the job's directory (or in `landing`, see `Environment`), from
        where each is read exactly once, as long as Spark's source can be read again; files go when a completed
        checkpoint no longer needs them. The query runs as long as the job, and needs cores of its own.

        Args:
            frame: what `spark.readStream` and SQL gave; nothing that keeps state may be in it that needs another
                output mode than append.
            trigger: how often Spark takes a batch. Default: as soon as there is something.
            available_now: take what is there now, in as many batches as the source likes, and end.
            directory: where to land and keep what must outlive the job, so that another job can go on from a
                snapshot of this one: a folder that the driver and all executors have mounted.
            name: of the step.

        """
        if directory is None:
            self._check_landing()
        trigger_ms = None if trigger is None else duration_ms(trigger, argument="trigger")
        if available_now and trigger_ms is not None:
            raise UsageError("trigger and available_now were both given", hint="choose one of them")
        place = None if directory is None else Path(local_path(os.fspath(directory)))
        source = StreamSource(frame, trigger_ms=trigger_ms, available_now=available_now, directory=place)
        return self.read(source, name=name)

    def _check_landing(self) -> None:
        directory = self._checkpointing.location if self._checkpointing is not None else ""
        if self._landing is None and not roots.is_local(directory):
            raise UsageError(
                f"a DataFrame cannot be landed in {roots.shown(directory)}, which is no mounted folder",
                hint="give Environment(landing=...) a folder that the driver and all executors have mounted",
            )

    def _host_processor(self, given: HostedProcessor) -> GroupedFunction:
        from penstock.spark.processors import host_processor

        if given.initial_state is not None:
            self._check_landing()
        return host_processor(given, self._spark)

    def start(self, name: str = "job", *, restore: Restore | str | os.PathLike[str] | None = None) -> Job:
        """Start the job and return at once; the handle says how it goes.

        With `restore` it goes on from a savepoint or checkpoint, its own of an earlier run or another job's, with
        whatever parallelism: a path, or `penstock.restore(...)` for more than a path.

        Raises:
            UsageError: what it is to start from is not there, or does not fit the program.

        """
        check_session(self._spark)
        plan = self.plan()
        needs = Needs(parallelism=self.settings.parallelism, spare_slots=self.settings.slot.spares)
        check_host(self._spark, needs, self.settings.network)
        use_own_interpreter(self._spark)
        job = JobId(f"{_slug(name)}-{fresh_token()}")
        point = None if restore is None else self._starting_point(plan, restore)
        store = open_store(self._storage_root())
        # Whoever cannot read there learns it here, and not from the first checkpoint.
        store.list_files(layout.job_folder(job))
        landing = self._landing or store
        if point is None:
            plan = self._prepare(plan, job, landing)
        else:
            plan = self._prepare(point.plan, job, landing, begin=point.fresh)
            record_start(store, job, point)
        return self._launch(plan, job=job, name=name, store=store, started_from=point.record if point else None)

    def restore_plan(self, restore: Restore | str | os.PathLike[str]) -> RestorePlan:
        """What `start` with the same `restore` would do, without doing it: which state goes where, what is left over,
        what is new. Print it to read it.

        Raises:
            UsageError: it is not there, or does not fit the program.

        """
        return self._starting_point(self.plan(), restore).restore_plan

    def run(self, name: str = "job", *, restore: Restore | str | os.PathLike[str] | None = None) -> JobView:
        """Start the job, as `start` does, and wait for its end; its last view. Ctrl-C cancels it.

        Raises:
            JobFailed: it failed for good; the cause is in the text.

        """
        job = self.start(name, restore=restore)
        try:
            return job.wait()
        except KeyboardInterrupt:
            job.cancel()
            job.finish()
            raise

    def _storage_root(self) -> str:
        if self._checkpointing is not None:
            return self._checkpointing.location
        return tempfile.mkdtemp(prefix="penstock-")

    def _starting_point(self, plan: Plan, restore: Restore | str | os.PathLike[str]) -> StartingPoint:
        chosen = restore if isinstance(restore, Restore) else make_restore(restore)
        return starting_point(open_store(chosen.path), chosen, plan, self.settings)

    def _prepare(
        self,
        plan: Plan,
        job: JobId,
        landing: FileStore | RemoteStore,
        *,
        begin: tuple[OperatorId, ...] | None = None,
    ) -> Plan:
        """Land DataFrames, ask sources for their splits, see that sinks can be written. `begin` names the sources that
        begin at their beginning; the others have their splits in the snapshot that the job starts from."""

        def prepared(operator: OperatorPlan) -> OperatorPlan:
            step = operator.step
            if isinstance(step, WriteStep) and isinstance(step.sink, ForEachCheckpoint):
                self._check_landing()
                place = Path(landing.location) / layout.results_folder(layout.job_folder(job), operator.operator)
                step = replace(step, sink=LandedResults(place, self._spark, step.sink.function))
            if isinstance(step, WriteStep) and isinstance(step.sink, DataSourceSink):
                messages = layout.results_folder(layout.job_folder(job), operator.operator)
                step = replace(step, sink=step.sink.placed(landing.location, messages))
            if isinstance(step, WriteStep) and isinstance(step.sink, TableSink):
                step = replace(step, sink=open_table(step.sink, self._spark, step.schema))
            if isinstance(step, WriteStep):
                step.sink.start(job)
                return replace(operator, step=step)
            folder = layout.inputs_folder(layout.job_folder(job), operator.operator)
            if isinstance(step, KeyedProcessStep) and isinstance(step.function, GroupedFunction):
                is_new = begin is None or operator.operator in begin
                function = step.function.landed(Path(landing.location) / folder if is_new else None)
                return replace(operator, step=replace(step, function=function))
            if not isinstance(step, ReadStep):
                return operator
            source = step.source
            folder = layout.inputs_folder(layout.job_folder(job), operator.operator)
            if isinstance(source, StreamSource):
                resumes = begin is not None and operator.operator not in begin
                return replace(
                    operator, step=replace(step, source=source.land(Path(landing.location) / folder, resumes=resumes))
                )
            if begin is not None and operator.operator not in begin:
                source = source.resumed() if isinstance(source, DataFrameSource) else source
                return replace(operator, step=replace(step, source=source))
            if isinstance(source, DataFrameSource):
                source = source.land(FileStore(landing.location).root / folder)
            splits = tuple(source.splits(plan.parallelism))
            return replace(operator, step=replace(step, source=source, splits=splits))

        return replace(
            plan,
            vertices=tuple(
                replace(vertex, operators=tuple(prepared(o) for o in vertex.operators)) for vertex in plan.vertices
            ),
        )

    def _launch(
        self,
        plan: Plan,
        *,
        job: JobId,
        name: str,
        store: FileStore | RemoteStore,
        started_from: CompletedCheckpoint | None,
    ) -> Job:
        network = self.settings.network
        socket_folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        keys = make_job_keys()
        clock = WallClock()
        by_ipc, by_tcp = network.transport != "tcp", is_called_by_tcp(self._spark, network)
        host = master_address(self._spark, network)
        transport = ZmqTransport(
            MASTER, keys=keys, ipc_dir=socket_folder if by_ipc else None, host=host if by_tcp else None
        )
        background = ThreadBackground(transport.wake, name=f"penstock-master-{job}-background")
        workers = Workers(transport.wake, prefix=f"penstock-master-{job}-")
        program = cloudpickle.dumps(plan)

        def spec(slot: SlotId) -> SlotSpec:
            return SlotSpec(
                slot=slot,
                job=job,
                settings=self.settings,
                storage_root=store.location,
                master_ipc=transport.ipc_address,
                master_tcp=transport.tcp_address,
                driver_host=socket.gethostname(),
                socket_folder=str(socket_folder) if by_ipc else None,
                keys=keys,
                program=program if len(program) <= LARGEST_PROGRAM_BYTES else b"",
            )

        slots = SparkSlots(self._spark, job=job, job_name=name, spec=spec, wake=transport.wake)
        ports = MasterPorts(
            clock=clock,
            transport=transport,
            background=background,
            store=store,
            slots=slots,
            landing=self._landing,
            workers=workers.make,
        )
        parts = MasterParts(
            driver=self._master(plan, job, ports, started_from),
            transport=transport,
            background=background,
            workers=workers.made,
            slots=slots,
            clock=clock,
            socket_folder=socket_folder,
            storage_root=store.location,
            temporary_root=Path(store.location) if self._checkpointing is None else None,
            cores=lambda: task_slots(self._spark) - self.settings.slot.spares,
            capacity=lambda: capacity_now(self._spark),
        )
        return Job(job=job, name=name, parts=parts)

    def _master(
        self, plan: Plan, job: JobId, ports: MasterPorts, started_from: CompletedCheckpoint | None
    ) -> MasterDriver:
        settings = self.settings
        return MasterDriver(
            job=job, plan=plan, settings=settings, ports=ports, draws=draws(), started_from=started_from
        )


def _slug(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-").lower()
    if not slug:
        raise UsageError(f"job name {name!r} has no letter or digit", hint='for example env.start("hot-auctions")')
    return slug[:60]
