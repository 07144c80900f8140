"""Where a program meets Spark: builds the plan, lands DataFrames, starts the job master and the slots."""

from __future__ import annotations

import re
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.api.backends import StateBackend, as_state_settings
from penstock.api.checkpointing import Checkpointing
from penstock.api.program import Program
from penstock.api.steps import ReadStep, WriteStep
from penstock.api.stream import Stream
from penstock.core.errors import SettingsError, UsageError
from penstock.core.ids import JobId, SlotId
from penstock.core.recovery import layout
from penstock.net.keys import make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.plan.graph import OperatorPlan, Plan
from penstock.runtime.master import MasterDriver, MasterPorts
from penstock.runtime.slot import MASTER
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
from penstock.spark.background import ThreadBackground
from penstock.spark.clock import WallClock, draws, fresh_token
from penstock.spark.dataframes import DataFrameSource
from penstock.spark.job import Job, MasterParts
from penstock.spark.preflight import check_host, check_session, free_cores, is_local, use_own_interpreter
from penstock.spark.slots import SparkSlots
from penstock.spark.worker import SlotSpec
from penstock.storage.files import FileStore


class Environment(Program):
    """A program that runs on a SparkSession.

    Args:
        spark: the session; its tasks become the job's slots.
        parallelism: how many slots, and so how many subtasks each step. Default: one less than Spark has cores.
        checkpointing: when checkpoints are taken and where they are kept. Without it the job takes only its final
            one, into a temporary folder, and a failure ends it.
        restart: what follows a failure: `no_restart()`, `fixed_delay(...)`, `exponential_delay(...)`. Default:
            exponential delay with checkpointing, none without.
        max_parallelism: the number of key groups; the job can never be rescaled beyond it.
        network: how slots exchange batches.
        slots: how slots are watched.
        source_batch_rows: a source is asked for at most this many rows at a time.
        state_backend: where keyed state is kept while the job runs: `ps.memory()`, or its name.

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
        source_batch_rows: int = JobSettings.source_batch_rows,
        state_backend: StateBackend | None = None,
    ) -> None:
        check_session(spark)
        if restart is None:
            restart = ExponentialDelay() if checkpointing is not None else NoRestart()
        settings = JobSettings(
            parallelism=parallelism if parallelism is not None else max(1, free_cores(spark) - 1),
            max_parallelism=max_parallelism,
            checkpoint=checkpointing.settings if checkpointing is not None else CheckpointSettings(),
            restart=restart,
            network=network or NetworkSettings(),
            slot=slots or SlotSettings(),
            source_batch_rows=source_batch_rows,
            state=as_state_settings(state_backend),
        )
        problems = settings.problems()
        if problems:
            raise SettingsError(problems)
        super().__init__(settings)
        self._spark = spark
        self._checkpointing = checkpointing

    def from_dataframe(self, frame: Any, *, name: str | None = None) -> Stream:
        """A stream of the rows of a batch DataFrame, whatever Spark SQL made it.

        Spark writes the DataFrame once, when the job starts, into the job's directory; from there it is read and, after
        a failure, read again exactly as before.
        """
        return self.read(DataFrameSource(frame), name=name)

    def start(self, name: str = "job") -> Job:
        """Start the job and return at once; the handle says how it goes."""
        check_session(self._spark)
        plan = self.plan()
        check_host(self._spark, parallelism=self.settings.parallelism)
        use_own_interpreter(self._spark)
        job = JobId(f"{_slug(name)}-{fresh_token()}")
        root = self._storage_root()
        plan = self._prepare(plan, job, root)
        return self._launch(plan, job=job, name=name, root=root)

    def run(self, name: str = "job") -> JobView:
        """Start the job and wait for its end; its last view. Ctrl-C cancels it.

        Raises:
            JobFailed: it failed for good; the cause is in the text.

        """
        job = self.start(name)
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

    def _prepare(self, plan: Plan, job: JobId, root: str) -> Plan:
        """Land DataFrames, ask sources for their splits, see that sinks can be written."""
        inputs = FileStore(root).root

        def prepared(operator: OperatorPlan) -> OperatorPlan:
            step = operator.step
            if isinstance(step, WriteStep):
                step.sink.start(job)
            if not isinstance(step, ReadStep):
                return operator
            source = step.source
            if isinstance(source, DataFrameSource):
                folder = inputs / layout.inputs_folder(layout.job_folder(job), operator.operator)
                source = source.land(Path(folder))
            splits = tuple(source.splits(plan.parallelism))
            return replace(operator, step=replace(step, source=source, splits=splits))

        return replace(
            plan,
            vertices=tuple(
                replace(vertex, operators=tuple(prepared(o) for o in vertex.operators)) for vertex in plan.vertices
            ),
        )

    def _launch(self, plan: Plan, *, job: JobId, name: str, root: str) -> Job:
        local = is_local(self._spark)
        kind = self.settings.network.transport
        socket_folder = Path(tempfile.mkdtemp(prefix="penstock-"))
        keys = make_job_keys()
        clock = WallClock()
        by_ipc, by_tcp = kind != "tcp", kind == "tcp" or not local
        host = "127.0.0.1" if local else self._spark.sparkContext.getConf().get("spark.driver.host")
        transport = ZmqTransport(
            MASTER, keys=keys, ipc_dir=socket_folder if by_ipc else None, host=host if by_tcp else None
        )
        background = ThreadBackground(transport.wake, name=f"penstock-master-{job}-background")

        def spec(slot: SlotId) -> SlotSpec:
            return SlotSpec(
                slot=slot,
                job=job,
                settings=self.settings,
                storage_root=root,
                master_ipc=transport.ipc_address,
                master_tcp=transport.tcp_address,
                driver_host=socket.gethostname(),
                socket_folder=str(socket_folder) if by_ipc else None,
                keys=keys,
            )

        slots = SparkSlots(self._spark, job=job, job_name=name, spec=spec, wake=transport.wake)
        driver = MasterDriver(
            job=job,
            plan=plan,
            settings=self.settings,
            ports=MasterPorts(
                clock=clock, transport=transport, background=background, store=FileStore(root), slots=slots
            ),
            draws=draws(),
        )
        parts = MasterParts(
            driver=driver,
            transport=transport,
            background=background,
            slots=slots,
            clock=clock,
            socket_folder=socket_folder,
            storage_root=root,
            temporary_root=Path(root) if self._checkpointing is None else None,
        )
        return Job(job=job, name=name, parts=parts)


def _slug(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-").lower()
    if not slug:
        raise UsageError(f"job name {name!r} has no letter or digit", hint='for example env.start("hot-auctions")')
    return slug[:60]
