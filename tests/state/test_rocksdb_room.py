"""Room that state takes with RocksDB: in memory no more than the settings say, on the disk no more than is alive."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from state_rig import Step, close_steps

import penstock as ps

KEYS = 6_000
PATIENCE_S = 120

FILLS_MORE_THAN_IT_MAY_HOLD = """
import json, random, sys, threading
from pathlib import Path
import state_rig
import penstock as ps
from penstock.settings import StateSettings

MB = 1024 * 1024
VALUES, SIZE = 20_000, 8 * 1024

class Large:
    value = ps.value_state("value", "binary")

class Disk(state_rig.Files):
    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.written = 0
    def _put(self, data, key):
        file = super()._put(data, key)
        self.written += file.size
        (self.folder / file.path).write_bytes(self.contents[file.path])
        self.contents[file.path] = b""
        return file
    def get(self, file):
        return (self.folder / file.path).read_bytes()

def value(key):
    return random.Random(key).randbytes(SIZE)

def peak():
    # Not what getrusage says: there the memory of the process that started this one counts too.
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024

state_rig.StateSettings = lambda local_directory: StateSettings(
    local_directory=sys.argv[1], block_cache_bytes=8 * MB, write_buffer_bytes=8 * MB
)
small = state_rig.Step(sys.argv[2], Large, store=Disk(sys.argv[1] + "/store"))
small.at(0)["value"].set(value(0))
small.save()
small.close()
before = peak()
step = state_rig.Step(sys.argv[2], Large, store=Disk(sys.argv[1] + "/store"))
for key in range(VALUES):
    step.at(key)["value"].set(value(key))
filled = peak() - before
saved = step.save()
# RocksDB may have rewritten files since, or be about to: these are saved anew, and are not what a small change costs.
(backend,), pause = step.backends, threading.Event()
while backend.is_compacting():
    pause.wait(0.01)
step.save()
step.at(5)["value"].set(b"changed")
written = step.store.written
again = step.save()
read = random.Random(1).sample(range(VALUES), 2_000)
assert all(step.at(key)["value"].get() == (b"changed" if key == 5 else value(key)) for key in read)
step.close()
restored = state_rig.Step(sys.argv[2], Large, store=step.store, restored=saved)
assert all(restored.at(key)["value"].get() == value(key) for key in read[:500])
restored.close()
grown = peak() - before
print(json.dumps({"state": VALUES * SIZE, "filled": filled, "grown": grown, "more": step.store.written - written}))
"""


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_steps()


@pytest.mark.slow
def test_state_may_be_many_times_what_the_process_may_hold_in_memory(tmp_path):
    """While it is filled memory grows by what the two settings say (16 MB here), and while it is saved, read at random
    and restored by a table file or two besides (32 MB each), whatever the size of the state is."""
    support = Path(__file__).parent.parent / "support"
    done = subprocess.run(
        [sys.executable, "-c", FILLS_MORE_THAN_IT_MAY_HOLD, str(tmp_path), "rocksdb"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["filled"] < found["state"] / 4, found
    assert found["grown"] < found["state"] * 3 / 4, found
    assert found["more"] < found["state"] / 20, found


class Mortal:
    value = ps.value_state("value", "string", ttl=ps.ttl("10s"))
    entries = ps.map_state("entries", key="bigint", value="string", ttl=ps.ttl("10s"))


def test_what_has_expired_gives_its_room_back_without_a_full_snapshot():
    """1. Entries are written, and saved with a checkpoint. 2. They expire, and are removed a few at a time. 3. The next
    checkpoint, which builds on the first, brings what was removed to the disk, and RocksDB rewrites its files."""
    step = Step("rocksdb", Mortal)
    (backend,) = step.backends
    chance = random.Random(1)
    for key in range(KEYS):
        handles = step.at(key)
        handles["value"].set(chance.randbytes(100).hex())
        handles["entries"].set(1, chance.randbytes(50).hex())
    step.save()
    full = room_of(backend)
    step.clock.now += 10_000
    while backend.maintain(1_000):
        pass
    step.at(0)["value"].set("alive")
    step.save()
    wait, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    # Files that are not needed any more go a moment after those that replace them have come.
    while backend.is_compacting() or room_of(backend) >= full / 20:
        assert time.monotonic() < deadline, (room_of(backend), full)
        wait.wait(0.01)
    assert step.at(0)["value"].get() == "alive"


def room_of(backend):
    room = 0
    for path in (backend._folder.path / "db").glob("*.sst"):
        with contextlib.suppress(FileNotFoundError):
            room += path.stat().st_size
    return room
