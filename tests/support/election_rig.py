"""Places where drivers meet, for the contracts of elections and of what outlives a driver."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zookeeper_server import ZooKeeperServer

from penstock.api.high_availability import InZooKeeper
from penstock.core.ids import JobId
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Tenure
from penstock.ports import Election, JobRecords, Leader, Store
from penstock.storage.election import FileElection
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.records import FileRecords
from penstock.storage.tenure import end_of, take_over

JOB = JobId("job")
FOLDER = layout.job_folder(JOB)
PATIENCE_S = 120
LEASE_MS = 10_000
"""Longer than a busy machine keeps a driver from showing that it lives."""


def clock_ms() -> float:
    return time.monotonic() * 1_000


class Taken(NamedTuple):
    """What a driver has that has the job."""

    tenure: Tenure
    records: JobRecords


class Office(Protocol):
    """Where a job is taken over, whoever has it, and although that driver may live on."""

    def take_over(self, *, anew: bool = False) -> Taken: ...

    def close(self) -> None: ...


class Meeting(Protocol):
    """Where drivers wait for a job."""

    def driver(self, *, anew: bool = False) -> Election:
        """One that waits; with `anew` it has a job begin once more that had ended when it first asked."""
        ...

    def wait_for(self, driver: Election) -> Leader:
        """The hold that a driver gets on the job."""
        ...

    def put_to_sleep(self, leader: Leader) -> None: ...

    def wake(self, leader: Leader) -> None: ...

    def close(self) -> None: ...


class StoreOffice:
    """In files of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def take_over(self, *, anew: bool = False) -> Taken:
        tenure = take_over(self._store, FOLDER, after=end_of(self._store, FOLDER) if anew else None)
        return Taken(tenure, FileRecords(self._store, FOLDER, term=tenure.term))

    def close(self) -> None:
        """Nothing is open."""


class _Drivers:
    """Those that were made, to be closed."""

    def __init__(self) -> None:
        self._waiting: list[Election] = []
        self._leaders: list[Leader] = []

    def noted(self, election: Any) -> Any:
        self._waiting.append(election)
        campaign = election.campaign

        def noting(lost: Any) -> Leader | None:
            leader = campaign(lost)
            if leader is not None:
                self._leaders.append(leader)
            return leader

        election.campaign = noting
        return election

    def wait_for(self, driver: Election) -> Leader:
        deadline = time.monotonic() + PATIENCE_S
        while (leader := driver.campaign(lambda: None)) is None:
            assert time.monotonic() < deadline, "the driver never got the job"
            time.sleep(0.02)
        return leader

    def close(self) -> None:
        for each in self._waiting:
            each.close()
        for leader in self._leaders:
            # A test may have had it resign.
            with suppress(OSError):
                leader.resign()


class FileMeeting(_Drivers):
    """In a folder, or an object store. While a driver sleeps those who wait find that a lease passes whenever they look
    at their clocks."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._root = root
        self._asleep: dict[int, threading.Event] = {}
        self._slept_ms = 0

    def driver(self, *, anew: bool = False) -> Election:
        store = open_store(self._root)
        return self.noted(FileElection(store, FOLDER, lease_ms=LEASE_MS, anew=anew, clock_ms=self._clock_ms))

    def _clock_ms(self) -> float:
        if self._asleep:
            self._slept_ms += LEASE_MS
        return clock_ms() + self._slept_ms

    def put_to_sleep(self, leader: Any) -> None:
        """It holds its lock, and shows no sign of life."""
        awake = self._asleep[id(leader)] = threading.Event()
        beat, run = leader._beat, leader._terms.next

        def sleeping() -> int:
            awake.wait()
            return run()

        leader._terms.next = sleeping
        leader._beat = lambda: None if not awake.is_set() else beat()

    def wake(self, leader: Any) -> None:
        self._asleep.pop(id(leader)).set()

    def close(self) -> None:
        for awake in self._asleep.values():
            awake.set()
        super().close()


class ZooKeeperMeeting(_Drivers):
    """In ZooKeeper, with the checkpoints in a folder. An office, too."""

    def __init__(self, server: ZooKeeperServer, folder: Path, *, session_timeout_ms: int = 10_000) -> None:
        super().__init__()
        self._server = server
        self._session_timeout_ms = session_timeout_ms
        self._store = FileStore(folder)
        self._root = f"/test-{uuid.uuid4().hex}"
        self._last: Any = None

    def driver(self, *, anew: bool = False) -> Election:
        from penstock.storage.zookeeper import ZooKeeperElection

        settings = InZooKeeper(
            hosts=self._server.hosts,
            root=self._root,
            session_timeout_ms=self._session_timeout_ms,
            restart_finished=anew,
        )
        return self.noted(ZooKeeperElection(settings, JOB, self._store, token=uuid.uuid4().hex, clock_ms=clock_ms))

    def take_over(self, *, anew: bool = False) -> Taken:
        if self._last is not None:
            self.put_to_sleep(self._last)
        self._last = leader = self.wait_for(self.driver(anew=anew))
        return Taken(leader.tenure, leader.records)

    def put_to_sleep(self, leader: Any) -> None:
        """ZooKeeper ends its session: another client has ended it in its name."""
        from kazoo.client import KazooClient

        client, awake = leader._session.client, threading.Event()
        connect = client._connection._connect

        def sleeping(*args: Any) -> Any:
            awake.wait()
            return connect(*args)

        # Or it would take the session back as soon as another has it.
        client._connection._connect = sleeping
        again = KazooClient(hosts=self._server.hosts, client_id=client.client_id)
        again.start()
        again.stop()
        again.close()
        client._connection._connect = connect
        awake.set()

    def wake(self, leader: Any) -> None:
        """It was never told to sleep."""
