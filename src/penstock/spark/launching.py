"""What a job's master is put together from in the driver: connections, threads, storage, and slots on Spark."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from penstock.api.hooks import CheckpointHook
from penstock.core.ids import JobId, SlotId
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.net.folders import make_root
from penstock.net.keys import JobKeys, make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.plan.graph import Plan
from penstock.ports import Leader
from penstock.runtime.master.driver import MasterDriver, MasterPorts
from penstock.runtime.master.runs import Run
from penstock.runtime.slot.master_link import MASTER
from penstock.runtime.whereabouts import of_thread
from penstock.settings import JobSettings
from penstock.spark import shared_folders
from penstock.spark.background import ThreadBackground, Workers
from penstock.spark.clock import WallClock, draws
from penstock.spark.job import MasterParts, master_thread
from penstock.spark.job_lines import lines_of
from penstock.spark.preflight import advice_on, is_called_by_tcp, is_local, master_address
from penstock.spark.preparing import folders_written
from penstock.spark.refreshing import Refreshes, refreshed_tables
from penstock.spark.slots import SparkSlots
from penstock.spark.worker import SlotSpec
from penstock.storage.files import FileStore
from penstock.storage.remote import RemoteStore
from penstock.storage.seals import StoreOptions

LARGEST_PROGRAM_BYTES = 1_000_000
"""A plan of at most this size is sent to a slot twice: with the slot's Spark task, so that the slot imports the modules
of the plan early, and with the deployment."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Puts the masters of an environment's jobs together. A master does nothing before its thread is started."""

    spark: Any
    settings: JobSettings
    options: StoreOptions
    landing: FileStore | None
    shared_folders: list[Path]
    """The folders that the user has named and that the driver and all slots must have mounted."""
    hooks: Mapping[str, CheckpointHook]
    is_storage_temporary: bool
    """Whether the storage of the job is a temporary folder, which is deleted with the job."""

    def launch(
        self,
        plan: Plan,
        *,
        job: JobId,
        name: str,
        store: FileStore | RemoteStore,
        started_from: CompletedCheckpoint | None = None,
        leader: Leader | None = None,
        run: Run | None = None,
    ) -> MasterParts:
        """The parts of a job's master. A job that has a tenure has a `leader`, and a job that goes on has a `run`."""
        settings = self.settings if run is None else run.settings
        socket_folder, keys, clock = make_root(), make_job_keys(), WallClock()
        transport = self._open_transport(keys, socket_folder)
        background = ThreadBackground(transport.wake, name=f"penstock-master-{job}-background")
        workers = Workers(transport.wake, prefix=f"penstock-master-{job}-")
        signs = self._signs(plan)
        known = {"job": job, "storage_root": store.location, "options": self.options, "signs": signs, "keys": keys}
        spec = _slot_specs(plan, settings, transport, socket_folder, **known)
        lines = lines_of(job, clock, settings)
        slots = SparkSlots(self.spark, job=job, job_name=name, spec=spec, wake=transport.wake)
        ports = MasterPorts(
            clock=clock,
            transport=transport,
            background=background,
            store=store,
            slots=slots,
            landing=self.landing,
            records=leader.records if leader is not None else None,
            workers=workers.make,
            whereabouts=of_thread(master_thread(job)),
            hooks=self.hooks,
            is_run=run is not None,
            when_safe=None if run is None else run.when_safe(store, self.landing, plan),
            lines=lines.hear,
        )
        driver = MasterDriver(
            job=job,
            plan=plan,
            settings=settings,
            ports=ports,
            draws=draws(),
            tenure=leader.tenure if leader is not None else None,
            started_from=started_from,
        )
        return MasterParts(
            driver=driver,
            transport=transport,
            background=background,
            workers=workers.made,
            slots=slots,
            clock=clock,
            socket_folder=socket_folder,
            signs=signs,
            temporary_root=Path(store.location) if self.is_storage_temporary else None,
            advice=lambda cause: advice_on(cause, self.spark),
            leader=leader,
            lines=lines,
            refreshes=Refreshes(refreshed_tables(plan), job=job),
        )

    def _signs(self, plan: Plan) -> tuple[str, ...]:
        """Signs in the folders that all hosts must have mounted. Driver and slots on one host have the same folders."""
        return shared_folders.sign([] if is_local(self.spark) else [*self.shared_folders, *folders_written(plan)])

    def _open_transport(self, keys: JobKeys, socket_folder: Path) -> ZmqTransport:
        network = self.settings.network
        by_ipc, by_tcp = network.transport != "tcp", is_called_by_tcp(self.spark, network)
        host = master_address(self.spark, network)
        return ZmqTransport(MASTER, keys=keys, ipc_dir=socket_folder if by_ipc else None, host=host if by_tcp else None)


def _slot_specs(
    plan: Plan, settings: JobSettings, transport: ZmqTransport, socket_folder: Path, **known: Any
) -> Callable[[SlotId], SlotSpec]:
    """The function that makes the `SlotSpec` of a slot."""
    by_ipc = settings.network.transport != "tcp"
    program = cloudpickle.dumps(plan)

    def spec(slot: SlotId) -> SlotSpec:
        return SlotSpec(
            slot=slot,
            settings=settings,
            master_ipc=transport.ipc_address,
            master_tcp=transport.tcp_address,
            driver_host=socket.gethostname(),
            socket_folder=str(socket_folder) if by_ipc else None,
            program=program if len(program) <= LARGEST_PROGRAM_BYTES else b"",
            **known,
        )

    return spec
