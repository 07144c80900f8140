"""The implementations that the contract suites run against. To add one: write its harness and name it in `params`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from election_rig import FileMeeting, Meeting, Office, StoreOffice, ZooKeeperMeeting
from pyarrow.fs import LocalFileSystem
from state_rig import close_steps

from penstock.net.keys import make_job_keys
from penstock.net.zeromq import ZmqTransport
from penstock.ports import Frame, Store, Transport
from penstock.sim.disk import Disk
from penstock.sim.world import Actor, World
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.remote import Connection, RemoteStore

WAIT_MS = 1_000
PATIENCE_S = 120


class Network(Protocol):
    """A harness: named processes that can reach each other."""

    def join(self, name: str) -> Transport:
        """A process of that name comes up."""
        ...

    def leave(self, name: str) -> None:
        """The process of that name goes away."""
        ...

    def address(self, name: str) -> str:
        """Where it can be called."""
        ...

    def arrived(self, name: str, count: int) -> list[tuple[str, list[Frame]]]:
        """The next messages that arrive at it, `count` or more; fails the test if they do not."""
        ...


class ZmqNetwork:
    """Real sockets of this host."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._keys = make_job_keys()
        self._members: dict[str, ZmqTransport] = {}

    def join(self, name: str) -> ZmqTransport:
        assert name not in self._members
        member = ZmqTransport(
            name,
            keys=self._keys,
            ipc_dir=self._folder if self._kind == "ipc" else None,
            host=None if self._kind == "ipc" else "127.0.0.1",
            encrypt=self._kind != "plain-tcp",
        )
        self._members[name] = member
        return member

    def leave(self, name: str) -> None:
        self._members.pop(name).close()

    def address(self, name: str) -> str:
        member = self._members[name]
        address = member.ipc_address or member.tcp_address
        assert address is not None
        return address

    def arrived(self, name: str, count: int) -> list[tuple[str, list[Frame]]]:
        member = self._members[name]
        messages = member.receive()
        deadline = time.monotonic() + PATIENCE_S
        while len(messages) < count:
            member.wait(WAIT_MS)
            messages += member.receive()
            assert time.monotonic() < deadline, f"{len(messages)} of {count} messages arrived at {name}"
        return messages

    def close(self) -> None:
        for name in list(self._members):
            self.leave(name)


@pytest.fixture(params=["ipc", "encrypted-tcp", "plain-tcp"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    """An empty network of each kind."""
    made = ZmqNetwork(request.param, tmp_path / "sockets")
    yield made
    made.close()


def renaming_store(folder: Path) -> RemoteStore:
    """As on HDFS, but in a folder: files are visible while they are written, and are renamed when they are whole."""
    files = LocalFileSystem()
    connection = Connection(files=files, small=files, path=str(folder), renames=True)
    return RemoteStore("hdfs://name-node/root", connect=lambda _: connection)


@pytest.fixture(params=["files", "renaming", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind."""
    match request.param:
        case "files":
            return FileStore(tmp_path / "root")
        case "renaming":
            return renaming_store(tmp_path / "root")
        case _:
            server = request.getfixturevalue("s3")
            return open_store(server.uri(f"contract/{uuid.uuid4()}"))


@pytest.fixture(params=["files", "s3"])
def creating_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind that can create a file for one of several writers."""
    if request.param == "files":
        return FileStore(tmp_path / "root")
    return open_store(request.getfixturevalue("s3").uri(f"contract/{uuid.uuid4()}"))


# Those on ZooKeeper need Java.
ON_ZOOKEEPER = pytest.param("zookeeper", marks=pytest.mark.slow)


@pytest.fixture(params=["files", "simulated", "s3", ON_ZOOKEEPER])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    """A place of each kind where a job is taken over."""
    made: Office
    match request.param:
        case "files":
            made = StoreOffice(FileStore(tmp_path))
        case "simulated":
            world = World(1)
            made = StoreOffice(Disk(world).store(Actor(world, "master")))
        case "s3":
            made = StoreOffice(open_store(request.getfixturevalue("s3").uri(f"office/{uuid.uuid4()}")))
        case _:
            made = ZooKeeperMeeting(request.getfixturevalue("zookeeper"), tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["files", "s3", ON_ZOOKEEPER])
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    """A place of each kind where drivers wait for a job."""
    made: Meeting
    match request.param:
        case "files":
            made = FileMeeting(str(tmp_path))
        case "s3":
            made = FileMeeting(request.getfixturevalue("s3").uri(f"meeting/{uuid.uuid4()}"))
        case _:
            made = ZooKeeperMeeting(request.getfixturevalue("zookeeper"), tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _steps_are_closed() -> Iterator[None]:
    """Back ends let go of their files when the test is over."""
    yield
    close_steps()
