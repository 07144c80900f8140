"""Workers are used again after a job: a closed transport leaves nothing in its process."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest

from penstock.net.zeromq import ZmqTransport

PATIENCE_S = 60

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs the /proc of Linux")


def held():
    """Threads (native ones too) and open files of this process."""
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def exchange(keys, folder, arrived, *, encrypt):
    with (
        ZmqTransport("a", keys=keys, ipc_dir=folder, host="127.0.0.1", encrypt=encrypt) as a,
        ZmqTransport("b", keys=keys, ipc_dir=folder, host="127.0.0.1", encrypt=encrypt) as b,
    ):
        a.connect("b", b.tcp_address)
        b.connect("a", a.ipc_address)
        a.connect("nobody", "tcp://127.0.0.1:9")
        for sender, peer, receiver in ((a, "b", b), (b, "a", a)):
            sender.send(peer, [b"small", b"x" * 500_000])
            arrived(receiver, 1)
        a.send("nobody", [b"x" * 500_000])
        a.send("b", [b"x" * 500_000])
        a.wake()
        during = held()
        a.disconnect("nobody")
    return during


def given_back(before):
    """What is held in the end. A thread that has ended is shown for a moment more."""
    deadline = time.monotonic() + PATIENCE_S
    while (now := held()) != before and time.monotonic() < deadline:
        time.sleep(0.001)
    return now


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
def test_a_closed_transport_leaves_no_thread_no_file_and_no_socket(keys, tmp_path, arrived, encrypt):
    # What earlier tests left to be collected would be closed meanwhile.
    gc.collect()
    before = held()
    for _ in range(10):
        during = exchange(keys, tmp_path / "s", arrived, encrypt=encrypt)
        assert during[0] > before[0]
        assert during[1] > before[1]
        assert given_back(before) == before
    assert list(tmp_path.iterdir()) == []
