"""A whole job in this process: real drivers, sockets and files; slots are threads that can be killed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.ids import JobId, SlotId
from penstock.core.job.events import JobState
from penstock.net.keys import make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.ports import SlotEnded, Store
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.master.driver import MasterDriver, MasterPorts
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.master_link import MASTER
from penstock.runtime.slot.ports import SlotPorts
from penstock.runtime.whereabouts import of_thread
from penstock.settings import JobSettings
from penstock.spark.background import ThreadBackground
from penstock.spark.clock import WallClock, draws
from penstock.storage.files import FileStore
from penstock.storage.seals import PLAIN, StoreOptions


class ThreadSlots:
    """`Slots` whose slots are threads. `kill` ends one without a word, as SIGKILL would."""

    def __init__(self, job: ThreadedJob) -> None:
        self._job = job
        self._ended: deque[SlotEnded] = deque()
        self._threads: list[threading.Thread] = []
        self.killed: dict[SlotId, threading.Event] = {}
        self.started: list[SlotId] = []

    def start(self, slot: SlotId) -> None:
        self.started.append(slot)
        self.killed[slot] = threading.Event()
        thread = threading.Thread(target=self._run, args=(slot, self.killed[slot]), daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, slot: SlotId) -> None:
        self.killed[slot].set()

    def ended(self) -> list[SlotEnded]:
        news = []
        while self._ended:
            news.append(self._ended.popleft())
        return news

    def kill(self, number: int) -> None:
        """The newest of that number."""
        newest = [slot for slot in self.started if slot.number == number][-1]
        self.killed[newest].set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _run(self, slot: SlotId, killed: threading.Event) -> None:
        job = self._job
        clock = WallClock()
        folder = None if job.tcp else job.sockets
        transport = ZmqTransport(str(slot), keys=job.keys, ipc_dir=folder, host="127.0.0.1" if job.tcp else None)
        background = ThreadBackground(transport.wake, name=f"background-{slot}")
        ports = SlotPorts(
            clock=clock,
            transport=transport,
            background=background,
            store=job.store_of(slot),
            load_whereabouts=of_thread(f"background-{slot}"),
        )
        address = SlotAddress(host="here", pid=1, ipc_address=transport.ipc_address, tcp_address=transport.tcp_address)
        driver = SlotDriver(
            slot,
            job=job.id,
            settings=job.settings,
            ports=ports,
            address=address,
            master_address=job.transport.tcp_address if job.tcp else job.transport.ipc_address,
        )
        error = None
        try:
            while not driver.left:
                if killed.is_set():
                    error = "killed"
                    break
                now = clock.now()
                deadline = driver.turn(now)
                if deadline is None or deadline > now:
                    transport.wait(20 if deadline is None else min(20, max(0, deadline - clock.now())))
            else:
                error = driver.error
                transport.wait(10)
        finally:
            background.close()
            driver.close()
            transport.close()
        self._ended.append(SlotEnded(slot, error))
        self._job.transport.wake()


class ThreadedJob:
    """The master of a job, turned by the test's own thread. `store_of` makes the stores of slots."""

    def __init__(
        self,
        plan,
        settings: JobSettings,
        folder: Path,
        *,
        tcp: bool = False,
        job: str = "job-1",
        started_from=None,
        store_of: Callable[[SlotId], Store] | None = None,
        tenure=None,
        workers=None,
        hooks=None,
        options: StoreOptions = PLAIN,
        is_run: bool = False,
        when_safe=None,
    ) -> None:
        self.id = JobId(job)
        self.settings = settings
        self.folder = folder
        self.tcp = tcp
        self.keys = make_job_keys()
        self.clock = WallClock()
        self.sockets = folder / f"sockets-{job}{'' if tenure is None else tenure.term}"
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        self.transport = ZmqTransport(
            MASTER,
            keys=self.keys,
            ipc_dir=None if tcp else self.sockets,
            host="127.0.0.1" if tcp else None,
        )
        self.background = ThreadBackground(self.transport.wake, name="background-master")
        self.slots = ThreadSlots(self)
        self.store = FileStore(folder / "checkpoints", options=options)
        self.store_of = store_of or (lambda slot: FileStore(self.store.root, options=options))
        ports = MasterPorts(
            clock=self.clock,
            transport=self.transport,
            background=self.background,
            store=self.store,
            slots=self.slots,
            workers=workers,
            hooks=hooks or {},
            is_run=is_run,
            when_safe=when_safe,
        )
        self.driver = MasterDriver(
            job=self.id,
            plan=plan,
            settings=settings,
            ports=ports,
            draws=draws(),
            started_from=started_from,
            tenure=tenure,
        )

    def run(self, each_turn=lambda job: None, *, within_s: float = 180.0) -> JobState:
        self.driver.start(self.clock.now())
        return self.go_on(each_turn, within_s=within_s)

    def go_on(self, each_turn=lambda job: None, *, within_s: float = 180.0) -> JobState:
        until = self.clock.precise_ms() + within_s * 1_000
        while self.driver.outcome is None:
            assert self.clock.precise_ms() < until, f"the job hangs: {self.driver.view()}"
            now = self.clock.now()
            deadline = self.driver.turn(now)
            self.driver.validate()
            each_turn(self)
            if self.driver.outcome is None:
                self.transport.wait(10 if deadline is None else min(10, max(0, deadline - self.clock.now())))
        return self.driver.outcome

    def close(self) -> None:
        for killed in self.slots.killed.values():
            killed.set()
        self.slots.join()
        self.background.close()
        self.transport.close()


@pytest.fixture
def threaded_job(tmp_path):
    jobs: list[ThreadedJob] = []

    def make(plan, settings: JobSettings, **options) -> ThreadedJob:
        job = ThreadedJob(plan, settings, tmp_path, **options)
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.close()
