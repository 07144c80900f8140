"""`penstock bench state`: what keyed state costs.

    incremental_share        one key in a hundred in RocksDB changes between two checkpoints: the bytes that the second
                             checkpoint uploads, divided by the size of the whole state
    sync_growth              how long a snapshot of state in memory blocks the loop: the time with many keys, divided by
                             the time with few keys
    snapshot_pause_ms        the longest time for which the loop was blocked while the asynchronous part of a snapshot
                             of state in memory, with many keys, ran on another thread
    resident_share           with --room-mb: state is put into RocksDB, saved, and read at random; how much the memory
                             of the process grew, divided by the size of the state
    restore_mb_per_second    how fast state is restored, by the slower of the two back ends: RocksDB from its own files,
                             memory from a canonical file
    rows_ratio_to_spark      a function counts rows by key, with one call per row: its rows per second, divided by the
                             rows per second of Structured Streaming's transformWithState in the same Spark
                             (`penstock.bench.state_rows`)

All but the last need no Spark: the benchmark calls a back end as an operator would, with checkpoints in a folder.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

from penstock.bench.state_keys import CHUNK, Keyspace, keyspace
from penstock.bench.state_pressure import Pauses, Room, measure_pauses, measure_room
from penstock.settings import StateSettings
from penstock.terminal.failures import reported_failures

DEFAULT_KEYS = 10_000_000
CHANGED_SHARE = 0.01
SYNC_KEYS = 1_000_000
SYNC_FEW_KEYS = 10_000
SYNC_CHANGES = 500
"""How many keys change between two snapshots, with many keys and with few keys."""
DEFAULT_RESTORE_MB = 1_000
RESTORED_VALUE_BYTES = 1_000
DEFAULT_ROWS = 3_000_000

_SETTLE_TIMEOUT_S = 120.0
_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class StateBenchOptions:
    """The options of the command line."""

    keys: int
    sync_keys: int
    restore_mb: int
    rows: int
    parallelism: int
    rounds: int
    room_mb: int
    cache_mb: int
    seed: int
    directory: Path | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class Increment:
    """The size of the whole state in RocksDB, and the bytes that the second of two checkpoints uploaded."""

    full_bytes: int
    new_bytes: int

    @property
    def share(self) -> float:
        """The share of the state that the second checkpoint uploaded."""
        return self.new_bytes / self.full_bytes


@dataclass(frozen=True, kw_only=True)
class SyncPart:
    """How long a snapshot blocks the loop, in seconds: with many keys, and with few keys."""

    many: float
    few: float

    @property
    def growth(self) -> float:
        """The time with many keys, divided by the time with few keys."""
        return self.many / self.few


@dataclass(kw_only=True)
class StateCosts:
    """The results of all measurements."""

    increment: Increment
    sync: SyncPart
    pauses: Pauses
    room: Room | None = None
    restore_mb_per_second: dict[str, float] = field(default_factory=dict)
    """By back end."""
    rows_per_second: float = 0.0
    spark_rows_per_second: float = 0.0


# --- measurements ----------------------------------------------------------------------------------------------------


def measure_increment(work: Path, *, keys: int, seed: int) -> Increment:
    """Fill RocksDB, wait for its compactions, take a checkpoint, change one key in a hundred at random, and take
    another checkpoint."""
    import numpy as np
    import pyarrow as pa

    from penstock.state.rocksdb.backend import RocksBackend

    draw = np.random.default_rng(seed)
    with keyspace("rocksdb", work, pa.int64()) as space:
        for first in range(0, keys, CHUNK):
            some = np.arange(first, min(first + CHUNK, keys))
            space.put(some, [1] * len(some))
        # The first checkpoint writes all keys to the database, and compactions follow. They come from loading all keys
        # at once, and do not count.
        space.checkpoint()
        assert isinstance(space.backend, RocksBackend)
        _settle(space.backend)
        files, _ = space.checkpoint()
        changed = draw.choice(keys, max(1, int(keys * CHANGED_SHARE)), replace=False)
        space.put(changed, [2] * len(changed))
        _, new_bytes = space.checkpoint()
        return Increment(full_bytes=sum(file.size for file in files), new_bytes=new_bytes)


def _settle(backend: Any) -> None:
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    while backend.is_compacting() and time.monotonic() < deadline:
        time.sleep(0.1)


def measure_sync_part(work: Path, *, many: int, few: int, rounds: int) -> SyncPart:
    """Take snapshots of state in memory, with many and with few keys in turn, and give each up at once. Returns the
    medians."""
    import numpy as np
    import pyarrow as pa

    with keyspace("memory", work, pa.int64()) as large, keyspace("memory", work, pa.int64()) as small:
        took: dict[int, list[float]] = {many: [], few: []}
        for space, keys in ((large, many), (small, few)):
            space.put(np.arange(keys), [1] * keys)
        for number in range(1, rounds + 2):
            for space, keys in ((large, many), (small, few)):
                seconds = _sync_seconds(space, number)
                # The first snapshot of each size finds cold caches, and does not count.
                if number > 1:
                    took[keys].append(seconds)
                space.put(np.arange(SYNC_CHANGES), [number] * SYNC_CHANGES)
        return SyncPart(many=statistics.median(took[many]), few=statistics.median(took[few]))


def _sync_seconds(space: Keyspace, number: int) -> float:
    from penstock.core.elements import CheckpointOptions
    from penstock.core.ids import CheckpointId

    started = time.perf_counter()
    space.backend.snapshot(CheckpointId(number), CheckpointOptions())
    took = time.perf_counter() - started
    space.backend.aborted(CheckpointId(number))
    while space.backend.maintain(10_000):
        pass
    return took


def measure_restore(kind: str, work: Path, *, megabytes: int, seed: int) -> float:
    """Megabytes per second of a restore, measured in bytes of the checkpoint's files. The values are long and
    random."""
    import numpy as np
    import pyarrow as pa

    draw = np.random.default_rng(seed)
    with keyspace(kind, work, pa.binary()) as space:
        keys = max(1, int(megabytes * _MB) // RESTORED_VALUE_BYTES)
        for first in range(0, keys, CHUNK):
            some = np.arange(first, min(first + CHUNK, keys))
            space.put(some, [draw.bytes(RESTORED_VALUE_BYTES) for _ in some])
        files, _ = space.checkpoint()
    with keyspace(kind, work, pa.binary()) as space:
        started = time.perf_counter()
        space.restore(files)
        return sum(file.size for file in files) / _MB / (time.perf_counter() - started)


# --- the command -----------------------------------------------------------------------------------------------------


@click.command("state")
@click.option(
    "--keys",
    type=click.IntRange(min=1_000),
    default=DEFAULT_KEYS,
    show_default=True,
    help="Keys in RocksDB, for the share of a checkpoint that is uploaded.",
)
@click.option(
    "--sync-keys",
    type=click.IntRange(min=SYNC_FEW_KEYS),
    default=SYNC_KEYS,
    show_default=True,
    help=f"Keys in memory, for the part of a snapshot that blocks the loop; compared with {SYNC_FEW_KEYS:,} keys.",
)
@click.option(
    "--restore-mb",
    type=click.IntRange(min=1),
    default=DEFAULT_RESTORE_MB,
    show_default=True,
    help="Megabytes of state to restore.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=DEFAULT_ROWS,
    show_default=True,
    help="Rows to count by key, against Structured Streaming; 0 leaves this out, and needs no Spark.",
)
@click.option("--parallelism", type=click.IntRange(min=1), default=2, show_default=True, help="Slots, and partitions.")
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Snapshots of each size.")
@click.option(
    "--room-mb",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Megabytes of state to put into RocksDB while memory is measured; 0 leaves this out.",
)
@click.option(
    "--cache-mb",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="With --room-mb: megabytes of the block cache, and of the write buffers.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Which keys change.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where to work. Default: a temporary directory. The files of the runs are removed in any case.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON to standard output, all else to standard error."
)
def state(**values: Any) -> None:
    """Incremental checkpoints, snapshots, restores, and a function that counts by key against Structured Streaming."""
    with reported_failures():
        run_state_bench(StateBenchOptions(**values))


def run_state_bench(options: StateBenchOptions) -> None:
    """Run the benchmark."""
    from penstock.terminal.session import work_directory

    screen = sys.stderr if options.as_json else sys.stdout
    with work_directory(options.directory, keep=False, prefix="penstock-bench-") as work:
        costs = _measure(options, work, screen)
    if options.as_json:
        click.echo(json.dumps(summary(costs)))


def _measure(options: StateBenchOptions, work: Path, screen: IO[str]) -> StateCosts:
    sync = measure_sync_part(work, many=options.sync_keys, few=SYNC_FEW_KEYS, rounds=options.rounds)
    _say(
        screen,
        f"a snapshot in memory blocks the loop for {sync.many * 1e6:.0f} us with {options.sync_keys:,} keys, "
        f"{sync.few * 1e6:.0f} us with {SYNC_FEW_KEYS:,}: {sync.growth:.2f} times",
    )
    pauses = measure_pauses(work, keys=options.sync_keys)
    _say(
        screen,
        f"while {options.sync_keys:,} keys are written, in {pauses.writing:.1f} s, the loop is blocked for at most "
        f"{pauses.longest * 1e3:.1f} ms, and 99 of 100 times for less than {pauses.usual * 1e3:.1f} ms",
    )
    room = _measure_room(options, work, screen) if options.room_mb else None
    with _folder(work / "increment") as place:
        increment = measure_increment(place, keys=options.keys, seed=options.seed)
    _say(
        screen,
        f"{CHANGED_SHARE:.0%} of {options.keys:,} keys in RocksDB changed: {increment.new_bytes / _MB:.1f} of "
        f"{increment.full_bytes / _MB:.1f} MB uploaded, {increment.share:.1%}",
    )
    costs = StateCosts(increment=increment, sync=sync, pauses=pauses, room=room)
    for kind in ("rocksdb", "memory"):
        with _folder(work / kind) as place:
            found = measure_restore(kind, place, megabytes=options.restore_mb, seed=options.seed)
        costs.restore_mb_per_second[kind] = found
        _say(screen, f"restore of {options.restore_mb:,} MB, {kind}: {found:,.0f} MB/s")
    if options.rows:
        from penstock.bench.state_rows import measure_rows

        costs.rows_per_second, costs.spark_rows_per_second = measure_rows(
            work, rows=options.rows, parallelism=options.parallelism, screen=screen
        )
        _say(screen, f"ratio to transformWithState: {costs.rows_per_second / costs.spark_rows_per_second:.1f}")
    return costs


def _measure_room(options: StateBenchOptions, work: Path, screen: IO[str]) -> Room:
    each = options.cache_mb * 1024 * 1024
    with _folder(work / "room") as place:
        settings = StateSettings(block_cache_bytes=each, write_buffer_bytes=each)
        room = measure_room(place, megabytes=options.room_mb, seed=options.seed, settings=settings)
    _say(
        screen,
        f"{room.state / _MB:,.0f} MB in RocksDB, which may hold {room.allowed / _MB:,.0f} MB in memory: "
        f"the process grew by {room.resident / _MB:,.0f} MB at most",
    )
    return room


def summary(costs: StateCosts) -> dict[str, float | None]:
    """The result as it is printed for programs."""
    spark = costs.spark_rows_per_second
    return {
        "incremental_share": round(costs.increment.share, 4),
        "sync_growth": round(costs.sync.growth, 3),
        "restore_mb_per_second": round(min(costs.restore_mb_per_second.values()), 1),
        "rows_ratio_to_spark": round(costs.rows_per_second / spark, 3) if spark else None,
        "snapshot_pause_ms": round(costs.pauses.longest * 1e3, 1),
        "resident_share": round(costs.room.resident / costs.room.state, 3) if costs.room is not None else None,
        "restore_mb_per_second_rocksdb": round(costs.restore_mb_per_second["rocksdb"], 1),
        "restore_mb_per_second_memory": round(costs.restore_mb_per_second["memory"], 1),
        "rows_per_second": round(costs.rows_per_second) if spark else None,
        "spark_rows_per_second": round(spark) if spark else None,
    }


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    import shutil

    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _say(screen: IO[str], text: str) -> None:
    click.echo(text, file=screen)
