"""A keyed step of several subtasks on a back end, without a job: its state, its snapshots and its clock.

A back end that is to be held to the contract is added to `BACKENDS`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import xxhash
from key_group_owners import owner_of

from penstock.api.state_declarations import declared_states
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Instant
from penstock.core.messages import StateFile
from penstock.plan.key_groups import range_of
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings
from penstock.state.backend import StateContext, TimerKind
from penstock.state.handles import keyed_handle
from penstock.state.keys import key_columns
from penstock.state.memory import MemoryBackend
from penstock.state.rocksdb.backend import Limits, RocksBackend
from penstock.state.rocksdb.timers import TimerLimits

GROUPS = 16
# As little in memory as possible, so that everything is read from disk again.
SMALL = Limits(changes_bytes=2_000, timers=TimerLimits(most_in_memory=4, read_at_once=2))
BACKENDS = {
    "memory": MemoryBackend,
    "rocksdb": RocksBackend,
    "rocksdb-small": partial(RocksBackend, limits=SMALL),
}
# Databases make sure that what they write is on the disk; tests need not wait for that.
LOCAL_DIRECTORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
BY_NUMBER = pa.schema([pa.field("k", pa.int64())])


class Files:
    """A store of state files in memory. Implements `StateWriter` and `StateReader`."""

    def __init__(self):
        self.contents = {}
        self.fails = None

    def put(self, data):
        return self._put(data, None)

    def put_shared(self, data, key):
        return self._put(data, key)

    def get(self, file):
        data = self.contents[file.path]
        if xxhash.xxh3_64_intdigest(data) != file.checksum:
            raise CorruptFile(f"{file.path} was changed")
        return data

    def pieces(self, file):
        yield self.get(file)

    def _put(self, data, key):
        if self.fails is not None:
            raise self.fails
        content = bytes(memoryview(data))
        path = f"file-{len(self.contents)}" if key is None else f"shared-{key}"
        self.contents[path] = content
        return StateFile(
            path=path, size=len(content), checksum=xxhash.xxh3_64_intdigest(content), shared_key=key, placeholder=False
        )


class Clock:
    """Time stands still until a test moves it."""

    def __init__(self):
        self.now = Instant(1_000_000)

    def __call__(self):
        return self.now


@dataclass
class Taken:
    """A snapshot of all subtasks: work to be run, then files."""

    checkpoint: CheckpointId
    work: list
    files: list | None = None

    def run(self, store):
        self.files = [work(store) for work in self.work]


class Step:
    """All subtasks of a keyed step. States are those that the class `declares` declares."""

    def __init__(
        self, kind, declares, *, parallelism=1, clock=None, keys=BY_NUMBER, store=None, restored=(), dropped=()
    ):
        self.clock = clock or Clock()
        self.store = store or Files()
        self.keys = keys
        self.parallelism = parallelism
        self.dropped = dropped
        states = declared_states(declares)
        self.backends, self.handles = [], []
        _steps.append(self)
        self._checkpoints = 0
        for subtask in range(parallelism):
            backend = BACKENDS[kind](self._context(subtask, [s.spec for s in states.values()]))
            self.backends.append(backend)
            if restored:
                backend.restore(restored, self.store)
            self.handles.append({name: keyed_handle(s, backend, self.clock) for name, s in states.items()})

    def _context(self, subtask, specs):
        return StateContext(
            operator="step",
            name="a step",
            subtask=subtask,
            keys=self.keys,
            groups=GROUPS,
            own_groups=range_of(subtask, parallelism=self.parallelism, groups=GROUPS),
            groups_of=self.groups_of,
            specs=tuple({spec.name: spec for spec in specs}.values()),
            now=self.clock,
            settings=StateSettings(local_directory=LOCAL_DIRECTORY),
            dropped=self.dropped,
        )

    def groups_of(self, batch):
        return key_groups(batch, self.keys.names, GROUPS)

    def group_of(self, key):
        batch = pa.RecordBatch.from_arrays(key_columns([key], self.keys), schema=self.keys)
        return int(self.groups_of(batch)[0])

    def at(self, key):
        """The handles of the subtask that owns `key`, with `key` current."""
        subtask = self._enter(key)
        return self.handles[subtask]

    def timers(self, key):
        return self.backends[self._enter(key)].timers

    def _enter(self, key):
        group = self.group_of(key)
        subtask = owner_of(group, parallelism=self.parallelism, groups=GROUPS)
        self.backends[subtask].set_key(key, group)
        return subtask

    def fire(self, kind, until_us):
        """Every timer that is due, by subtask, as (time, key)."""
        fired = []
        for backend in self.backends:
            while (due := backend.timers.pop_due(kind, until_us)) is not None:
                time_us, key, group = due
                assert group == self.group_of(key)
                fired.append((time_us, key))
        return fired

    def snapshot(self, **options):
        """Freeze every subtask."""
        self._checkpoints += 1
        checkpoint = CheckpointId(self._checkpoints)
        frozen = [backend.snapshot(checkpoint, CheckpointOptions(**options)) for backend in self.backends]
        return Taken(checkpoint, frozen)

    def save(self, **options):
        """A snapshot that is written at once; the files of each subtask."""
        taken = self.snapshot(**options)
        taken.run(self.store)
        for backend in self.backends:
            backend.completed(taken.checkpoint)
        return taken.files

    def close(self):
        for backend in self.backends:
            backend.close()
        self.backends = []


_steps = []


def close_steps():
    """Close what tests have left open."""
    while _steps:
        _steps.pop().close()


EVENT_TIME, PROCESSING_TIME = TimerKind.EVENT_TIME, TimerKind.PROCESSING_TIME
