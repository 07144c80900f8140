"""Measurements of `penstock bench state` with large states: how long the loop is blocked while a large state is
written, and how much memory the process takes while a state grows."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench.state_keys import CHUNK, Keyspace, keyspace

ROWS_BETWEEN_LOOKS = 20
"""The rows of one turn: about as many as a loop handles in a tenth of a millisecond."""
VALUE_BYTES = 1_000
_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """How long the loop was blocked while the asynchronous part of a snapshot ran on another thread, in seconds."""

    longest: float
    usual: float
    """Only one of a hundred turns of the loop takes longer."""
    writing: float
    """How long the asynchronous part took."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The size of a state in RocksDB, and the memory of the process, in bytes."""

    state: int
    resident: int
    """By how much the resident memory of the process grew, at most."""
    allowed: int
    """The memory that the settings allow: the block cache and the write buffers."""


def measure_pauses(work: Path, *, keys: int) -> Pauses:
    """Save many keys of the memory back end on another thread, and go on changing a few of the keys on this thread."""
    import numpy as np
    import pyarrow as pa

    from penstock.spark.collector import out_of_sight

    # Python's garbage collector is set up as in a slot.
    with out_of_sight(), keyspace("memory", work, pa.int64()) as space:
        for first in range(0, keys, CHUNK):
            some = np.arange(first, min(first + CHUNK, keys))
            space.put(some, [1] * len(some))
        return _pauses(space)


def _pauses(space: Keyspace) -> Pauses:
    import numpy as np

    begun = threading.Event()
    took: list[float] = []
    write = space.begin_checkpoint()

    def work() -> None:
        begun.set()
        started = time.perf_counter()
        write()
        took.append(time.perf_counter() - started)

    some = np.arange(ROWS_BETWEEN_LOOKS)
    turns: list[float] = []
    writer = threading.Thread(target=work)
    writer.start()
    begun.wait()
    while writer.is_alive():
        started = time.perf_counter()
        space.put(some, [2] * len(some))
        turns.append(time.perf_counter() - started)
    writer.join()
    turns.sort()
    return Pauses(longest=turns[-1], usual=turns[len(turns) * 99 // 100], writing=took[0])


def measure_room(work: Path, *, megabytes: int, seed: int, settings: Any) -> Room:
    """Fill RocksDB with long random values, take a checkpoint, and read some values at random. The memory of the
    process is measured all the time."""
    import numpy as np
    import pyarrow as pa

    draw = np.random.default_rng(seed)
    keys = max(1, int(megabytes * _MB) // VALUE_BYTES)
    with keyspace("rocksdb", work, pa.binary(), settings=settings) as space:
        before = most = _resident_bytes()
        step = CHUNK // 20
        for first in range(0, keys, step):
            some = np.arange(first, min(first + step, keys))
            space.put(some, [draw.bytes(VALUE_BYTES) for _ in some])
            most = max(most, _resident_bytes())
        space.checkpoint()
        most = max(most, _resident_bytes())
        for _ in range(20):
            space.read(draw.integers(0, keys, CHUNK // 100))
            most = max(most, _resident_bytes())
    allowed = settings.block_cache_bytes + settings.write_buffer_bytes
    return Room(state=keys * VALUE_BYTES, resident=most - before, allowed=allowed)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
