"""A process that cannot run Python is heard of by its dumps, which are bounded and block nobody."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.net.dumps import KEPT_BYTES, DumpRelay, Dumps
from penstock.net.keys import make_job_keys

LOCAL = "127.0.0.1"
WAYS = {"a folder": {}, "tcp": {"host": LOCAL}, "plain tcp": {"host": LOCAL, "encrypt": False}}
HOLDER = """
import ctypes, faulthandler, pickle, sys
from penstock.net.dumps import DumpRelay


def holds_the_lock():
    ctypes.PyDLL(None).pause()


with DumpRelay("slot", **pickle.load(sys.stdin.buffer)) as relay:
    faulthandler.dump_traceback_later(0.05, repeat=True, file=relay.fd)
    holds_the_lock()
"""
RELAY = b"\x02slot"


def dump(*threads: str) -> bytes:
    return b"Timeout (0:00:01)!\n" + "\n".join(f"Thread 0x1 (most recent call first):\n{t}\n" for t in threads).encode()


@pytest.mark.parametrize("way", WAYS)
def test_a_process_whose_lock_is_held_is_heard_of_with_its_stacks_and_sends_no_message(
    open_transport, keys, tmp_path, way
):
    master = open_transport("master", **(WAYS[way] or {"ipc_dir": tmp_path / "ours"}))
    options = {
        "address": master.tcp_address or master.ipc_address,
        "keys": keys,
        "encrypt": WAYS[way].get("encrypt", True),
    }
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(penstock.__file__).parents[1])},
    )
    try:
        holder.stdin.write(pickle.dumps(options))
        holder.stdin.close()
        # Without the dumps the test would never end.
        heard = []
        while not (heard and heard[-1][1]):
            master.wait(None)
            assert master.receive() == []
            heard += master.dumped()
    finally:
        holder.kill()
        holder.wait()
    assert {peer for peer, _ in heard} == {"slot"}
    assert heard[-1][1].splitlines()[1].endswith("in holds_the_lock")


def test_a_dump_is_told_when_the_next_dump_shows_that_it_is_whole_wherever_its_bytes_are_cut():
    written = dump("  File of the relay", "  File of the loop") + dump("  File of the next")
    told = "Thread 0x1 (most recent call first):\n  File of the loop"
    for cut in range(1, len(written)):
        dumps = Dumps()
        assert dumps.take(RELAY, [b"id", written[:cut]])
        assert dumps.heard()[0][0] == "slot"
        assert dumps.take(RELAY, [b"id", written[cut:]])
        [(peer, text)] = dumps.heard()
        assert (peer, text[: len(told)]) == ("slot", told)
        assert "next" not in text
        assert dumps.heard() == []


def test_the_first_dump_counts_as_a_sign_of_life_before_its_text_is_known():
    dumps = Dumps()
    dumps.take(RELAY, [b"id", dump("  File of the loop")])
    assert dumps.heard() == [("slot", "")]


def test_a_peer_that_writes_without_end_costs_a_bounded_number_of_bytes():
    dumps = Dumps()
    for _ in range(100):
        dumps.take(RELAY, [b"id", b"x" * KEPT_BYTES])
    dumps.take(RELAY, [b"id", b"\n  the last line\n" + dump("next")])
    [(_, text)] = dumps.heard()
    assert text == "  the last line".strip()
    assert max(len(kept) for part in (dumps._coming, dumps._whole) for kept in part.values()) <= KEPT_BYTES


def test_the_end_of_a_relay_is_no_sign_of_life_and_a_message_of_a_process_is_no_dump():
    dumps = Dumps()
    assert dumps.take(RELAY, [b"id", b""])
    assert not dumps.take(b"slot", [b"Timeout (0:00:01)!\n"])
    assert dumps.heard() == []


def test_a_peer_that_is_forgotten_leaves_nothing():
    dumps = Dumps()
    dumps.take(RELAY, [b"id", dump("old") + dump("new")])
    dumps.forget("slot")
    assert dumps.heard() == []
    dumps.take(RELAY, [b"id", b"more"])
    assert dumps.heard() == [("slot", "")]


def test_writing_never_blocks_when_nobody_reads(tmp_path):
    def write_for_ever(fd: int) -> None:
        while True:
            os.write(fd, b"x" * KEPT_BYTES)

    with DumpRelay("slot", f"ipc://{tmp_path}/nobody", keys=make_job_keys()) as relay, pytest.raises(BlockingIOError):
        write_for_ever(relay.fd)


def test_a_relay_leaves_no_thread_and_no_file_open(open_transport, keys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    master = open_transport("master", ipc_dir=tmp_path / "ours")

    def left() -> tuple[int, int, list[Path]]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), list(tmp_path.iterdir())

    before = left()
    for _ in range(3):
        with DumpRelay("slot", master.ipc_address, keys=keys) as relay:
            os.write(relay.fd, dump("loop"))
            while not master.dumped():
                master.wait(None)
                master.receive()
    # ZeroMQ closes the master's ends of the connections on a thread of its own.
    while left()[0] != before[0]:
        pass
    assert left() == before


def test_where_the_relay_has_no_folder_it_says_so_and_leaves_nothing_open(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    before = threading.active_count()
    with pytest.raises(FileNotFoundError):
        DumpRelay("slot", f"ipc://{tmp_path}/nobody", keys=make_job_keys()).__enter__()
    with pytest.raises(OSError, match="Invalid argument"):
        DumpRelay("slot", "no address", keys=make_job_keys()).__enter__()
    assert threading.active_count() == before
