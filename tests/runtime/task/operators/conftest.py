"""A rig that drives one operator as a task does, and remembers what it did."""

from __future__ import annotations

import msgspec
import pytest
import xxhash

from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, TaskId, VertexId
from penstock.core.messages import StateFile
from penstock.plan.key_groups import range_of
from penstock.ports import WorkResult
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions
from penstock.runtime.task.slices import Slice
from penstock.settings import StateSettings

GROUPS = 128


class Recorder:
    """An output that keeps what it is given, in order: batches and (time, idle)."""

    def __init__(self):
        self.items = []

    def emit(self, batch):
        self.items.append(batch)

    def watermark(self, time_us, *, idle=False):
        self.items.append((time_us, idle))

    @property
    def rows(self):
        return [row for item in self.items if not isinstance(item, tuple) for row in item.to_pylist()]

    @property
    def watermarks(self):
        return [item for item in self.items if isinstance(item, tuple)]

    def clear(self):
        self.items.clear()


class MemoryFiles:
    """A state writer and reader that checks what it gives back."""

    def __init__(self):
        self.files = {}

    def put(self, data):
        data = bytes(memoryview(data))
        path = f"file-{len(self.files)}"
        self.files[path] = data
        return StateFile(path=path, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))

    def put_shared(self, data, key):
        return msgspec.structs.replace(self.put(data), shared_key=key)

    def get(self, file):
        data = self.files[file.path]
        assert xxhash.xxh3_64_intdigest(data) == file.checksum
        return data

    def pieces(self, file):
        yield self.get(file)


class QueuedBackground:
    """Background work that runs when the test says so."""

    def __init__(self):
        self._queue = []
        self._done = []

    def submit(self, work, done):
        self._queue.append((work, done))

    def run(self):
        """Run everything that waits; outcomes are handed over by `collect`."""
        for work, done in self._queue:
            try:
                self._done.append((done, WorkResult(value=work())))
            except Exception as error:  # noqa: BLE001
                self._done.append((done, WorkResult(error=error)))
        self._queue = []

    def collect(self):
        done, self._done = self._done, []
        for call, outcome in done:
            call(outcome)


class Rig:
    """One subtask's operator, open, with everything around it in memory."""

    def __init__(
        self,
        step,
        *,
        subtask=0,
        parallelism=1,
        restored=None,
        files=None,
        epoch=1,
        now=1_000,
        state=None,
        sides=(),
        calls=None,
        limits=None,
    ):
        self.output = Recorder()
        self.sides = {name: Recorder() for name in sides}
        self.files = files if files is not None else MemoryFiles()
        self.background = QueuedBackground()
        self.failures = []
        self.full = 0
        """How often the operator has told that it is full."""
        self.time = Instant(now)
        self.context = OperatorContext(
            job=JobId("job"),
            epoch=Epoch(epoch),
            task=TaskId(VertexId("vertex"), subtask),
            operator="operator-id",
            name="the step",
            parallelism=parallelism,
            max_parallelism=GROUPS,
            key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
            now=lambda: self.time,
            background=self.background,
            restored=tuple(restored or ()),
            fresh=restored is None,
            reader=self.files,
            fail=self.failures.append,
            is_full=self._count_full,
            state=state or StateSettings(),
            calls=calls,
            runs=RunOptions(limits=limits or RunLimits()),
        )
        self.operator = build_operator(step)
        # Tests give slices a clock, and operators that are in no chain share one slice.
        self.operator.slice = Slice()
        self.operator.load(self.context)
        self.operator.sides = self.sides
        self.operator.open(self.context, self.output)

    def _count_full(self):
        self.full += 1

    def tick(self, now):
        """Processing time has come to `now`."""
        self.operator.fire(now)
        return self.operator.tick(now)

    def freeze(self, checkpoint=1, **options):
        """The synchronous part of a snapshot; the returned call is the asynchronous one."""
        work = self.operator.snapshot(CheckpointId(checkpoint), CheckpointOptions(**options))
        return lambda: work(self.files)

    def snapshot(self, checkpoint=1, **options):
        return self.freeze(checkpoint, **options)()


@pytest.fixture(scope="session")
def rig():
    """Makes rigs: `rig(step, subtask=…, parallelism=…, restored=[OperatorState, …], files=…, sides=[…])`."""
    return Rig


@pytest.fixture(scope="session")
def memory_files():
    """Makes a place for state that several rigs can share."""
    return MemoryFiles


@pytest.fixture(scope="session")
def queued_background():
    """Makes background work that runs when the test says so."""
    return QueuedBackground
