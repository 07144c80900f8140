"""Who follows a process learns of its death at once, and of nothing else."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.net.keys import JobKeys, make_job_keys
from penstock.net.zeromq import ZmqTransport

LOCAL = "127.0.0.1"
PROCESS = """
import pickle, sys
from penstock.net.zeromq import ZmqTransport

listening = ZmqTransport("slot", **pickle.load(sys.stdin.buffer))
print(listening.tcp_address or listening.ipc_address, flush=True)
while True:
    listening.wait(None)
    listening.receive()
"""
WAYS = {"a folder": {}, "tcp": {"host": LOCAL}, "plain tcp": {"host": LOCAL, "encrypt": False}}


class Process:
    """Another process that listens until it is killed."""

    def __init__(self, **options: object) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        )
        self._child.stdin.write(pickle.dumps(options))
        self._child.stdin.close()
        self.address = self._child.stdout.readline().decode().strip()

    def send(self, number: int) -> None:
        self._child.send_signal(number)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._child.stdout.close()


@pytest.fixture
def process(keys: JobKeys, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(**options: object) -> Process:
        options = options if "host" in options else options | {"ipc_dir": str(tmp_path / "theirs")}
        made.append(Process(**{"keys": keys, **options}))
        return made[-1]

    yield start
    for one in made:
        one.kill()


def wait_until_up(transport: ZmqTransport, peer: str) -> None:
    while not transport._lifelines._lines[peer].is_up:
        transport.wait(None)
        assert transport.gone() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_death_ends_the_wait_and_is_told_once(open_transport, process, way):
    master, slot = open_transport("master", encrypt=WAYS[way].get("encrypt", True)), process(**WAYS[way])
    master.follow("slot", slot.address)
    master.follow("slot", slot.address)
    wait_until_up(master, "slot")
    killer = threading.Thread(target=slot.kill)
    killer.start()
    # Without the death the test would never end.
    while not (gone := master.gone()):
        master.wait(None)
    killer.join()
    assert gone == ["slot"]
    master.wait(0)
    assert master.gone() == []


def test_a_process_that_stands_still_is_not_gone(open_transport, process):
    master, slot = open_transport("master"), process()
    master.follow("slot", slot.address)
    wait_until_up(master, "slot")
    slot.send(signal.SIGSTOP)
    master.wait(50)
    assert master.gone() == []


def test_the_next_process_of_that_name_can_be_followed(open_transport, process):
    master = open_transport("master")
    for _ in range(2):
        slot = process()
        master.follow("slot", slot.address)
        wait_until_up(master, "slot")
        slot.kill()
        while not (gone := master.gone()):
            master.wait(None)
        assert gone == ["slot"]


@pytest.mark.parametrize("how", ["let go", "disconnected"])
def test_who_is_followed_no_more_may_die(open_transport, process, how):
    master, slot, other = open_transport("master"), process(), process(host=LOCAL)
    master.follow("slot", slot.address)
    master.follow("other", other.address)
    wait_until_up(master, "slot")
    wait_until_up(master, "other")
    if how == "let go":
        master.let_go("slot")
        master.let_go("slot")
    else:
        master.disconnect("slot")
    slot.kill()
    other.kill()
    while not (gone := master.gone()):
        master.wait(None)
    assert gone == ["other"]


def test_a_connection_that_never_came_about_says_nothing(open_transport, process):
    """A port that nobody reaches, keys that are refused: then others tell, later."""
    strangers = open_transport("master", keys=make_job_keys())
    guarded = process(host=LOCAL)
    closed = open_transport("closed", host=LOCAL)
    nowhere = closed.tcp_address
    closed.close()
    strangers.follow("guarded", guarded.address)
    strangers.follow("nobody", nowhere)
    strangers.wait(50)
    guarded.kill()
    strangers.wait(50)
    assert strangers.gone() == []


def test_following_leaves_nothing_open(open_transport, process):
    slot = process()
    with ZmqTransport("warm", keys=make_job_keys()) as warm:
        warm.follow("slot", slot.address)
        wait_until_up(warm, "slot")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ZmqTransport("master", keys=make_job_keys()) as master:
        for number in range(3):
            master.follow(f"slot-{number}", slot.address)
            wait_until_up(master, f"slot-{number}")
        master.let_go("slot-0")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


LIMITED = """
import json, pickle, resource, sys
from pathlib import Path
from penstock.net.zeromq import ZmqTransport

def open_files():
    return sorted(int(file.name) for file in Path("/proc/self/fd").iterdir())

master = ZmqTransport("master", **pickle.load(sys.stdin.buffer))
slot = ZmqTransport("slot", keys=master._keys, ipc_dir=sys.argv[1])
most, followed, more = resource.getrlimit(resource.RLIMIT_NOFILE)[1], [], 0
before = open_files()
while not (followed and followed[-1]):
    name = f"slot-{more}"
    # So many more may be opened; the last of those before was opened to look at them, and is not open any more.
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[-1] + more, most))
    master.follow(name, slot.ipc_address)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    followed.append(name in master._lifelines._lines)
    # Without a lifeline nothing of it is kept; ZeroMQ closes it on a thread of its own.
    while not followed[-1] and open_files() != before:
        pass
    more += 1
# The others can be followed as soon as there is room again.
master.follow("slot-0", slot.ipc_address)
while not master._lifelines._lines["slot-0"].is_up:
    master.wait(None)
    assert master.gone() == []
print(json.dumps(followed))
"""


def test_where_no_more_files_can_be_opened_nobody_is_followed_and_nothing_else_happens(keys: JobKeys, tmp_path: Path):
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        input=pickle.dumps({"keys": keys, "ipc_dir": str(tmp_path)}),
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(Path(penstock.__file__).parents[1])},
        check=False,
    )
    assert child.stderr.decode() == ""
    *without, last = json.loads(child.stdout)
    # There are several files to a lifeline, and each of them may be the one too many.
    assert (len(without) >= 3, any(without), last) == (True, False, True)
