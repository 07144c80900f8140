"""Jobs that run for as long as somebody looks, in simulated time, and a count of everything that their processes hold.

The count follows every reference from the driver of a process to containers and objects of ours. What the simulator
itself holds (the world, its disk, its network) is left out: a real process does not have it.
"""

from __future__ import annotations

import functools
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa

import penstock as ps
from penstock.api.connector import (
    Committer,
    Found,
    Pause,
    Polled,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SplitEnumerator,
    WriterContext,
)
from penstock.api.hooks import CheckpointHook
from penstock.api.program import Program
from penstock.api.steps import ReadStep
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import JobId, SlotId
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import OperatorPlan, Plan
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.master.driver import MasterDriver, MasterPorts, SnapshotRequest
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.master_link import MASTER
from penstock.runtime.slot.ports import SlotPorts
from penstock.settings import JobSettings
from penstock.sim.background import Pace, SimBackground
from penstock.sim.clock import SimClock
from penstock.sim.disk import Disk
from penstock.sim.network import ADDRESS_PREFIX, Network
from penstock.sim.slots import Notice, SlotHost
from penstock.sim.world import Actor, World

JOB = JobId("soak")
KEYS = 6
SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
EVERY_MS = 12
PATIENCE_US = 600_000_000
"""Simulated: more than a soak needs for the next thing that it waits for."""


# --- the job ---------------------------------------------------------------------------------------------------------


def _rows(now_ms: int) -> pa.RecordBatch:
    times = [now_ms * 1_000] * KEYS
    return pa.record_batch([list(range(KEYS)), pa.array(times, SCHEMA.field("ts").type)], schema=SCHEMA)


class Ticks(Source):
    """A few rows every few milliseconds, for ever."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def splits(self, parallelism: int) -> list[bytes]:
        return [b"0"] * parallelism

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        return _TicksReader([int(split) for split in splits])


class _TicksReader(SourceReader):
    def __init__(self, positions: list[int]) -> None:
        self._positions = positions
        self._next_ms = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        if not self._positions or now_ms < self._next_ms:
            return Pause(max(1, self._next_ms - now_ms))
        self._next_ms = now_ms + EVERY_MS
        self._positions = [position + 1 for position in self._positions]
        return _rows(now_ms)

    def snapshot(self) -> list[bytes]:
        return [str(position).encode() for position in self._positions]


class Findings(Source):
    """A split of a few rows is found every now and then, on the driver."""

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def discovers(self) -> bool:
        return True

    def splits(self, parallelism: int) -> list[bytes]:
        return []

    def enumerator(self) -> SplitEnumerator:
        return _Finder()

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        return _FindingsReader(list(splits))


class _Finder(SplitEnumerator):
    unread = 2

    def discover(self, position: bytes | None) -> Found:
        number = int(position or b"0") + 1
        return Found(position=str(number).encode(), splits=[str(number).encode()], wait_ms=5 * EVERY_MS)


class _FindingsReader(SourceReader):
    def __init__(self, splits: list[bytes]) -> None:
        self._splits = splits
        self._read = 0

    @property
    def splits_read(self) -> int:
        return self._read

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        if not self._splits:
            return Pause(EVERY_MS)
        self._read += 1
        self._splits.pop(0)
        return _rows(now_ms)

    def snapshot(self) -> list[bytes]:
        return list(self._splits)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self._splits += splits


class Nowhere(Sink):
    """Two-phase, and forgets what it was given."""

    def writer(self, context: WriterContext) -> SinkWriter:
        return _NowhereWriter()

    def commit(self, committables: Sequence[bytes]) -> None:
        pass


class NowhereByDriver(Nowhere):
    """The same, committed on the driver."""

    @property
    def commits_on_driver(self) -> bool:
        return True

    def committer(self) -> Committer:
        return _NowhereCommitter()


class _NowhereCommitter(Committer):
    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        pass


class _NowhereWriter(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        return lambda: [str(checkpoint).encode()]


class EveryKind(ps.KeyedFunction):
    """State and timers of all kinds, of which there are as many after an hour as after a minute."""

    seen = ps.value_state("seen", "bigint", default=0)
    parities = ps.map_state("parities", key="bigint", value="bigint")
    last = ps.list_state("last", "timestamp")

    def on_row(self, row: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.seen.set(self.seen.get() + 1)
        self.parities[self.seen.get() % 2] = self.seen.get()
        self.last.set([*self.last.get(), row["ts"]][-2:])
        context.timers.at_event_time(row["ts"] + timedelta(milliseconds=20))
        yield {"key": row["key"], "ts": row["ts"]}

    def on_timer(self, timer: Any, context: Any) -> None:
        pass


class Noting(CheckpointHook):
    """Takes part in every checkpoint."""

    name = "noting"

    def trigger(self, checkpoint: int, timestamp_ms: int) -> bytes:
        return b"here"

    def restore(self, checkpoint: int, state: bytes | None) -> None:
        pass

    def reset(self) -> None:
        pass


def build_checkpointed(program: Program) -> None:
    """All that a job can have of what takes part in checkpoints."""
    ticks = program.read(Ticks(), name="ticks").watermark("ts", delay="10ms")
    ticks.key_by("key").process(EveryKind(), schema="key bigint, ts timestamp", name="state").write(
        Nowhere(), name="out"
    )
    windows = ticks.key_by("key").window(ps.tumbling("50ms")).aggregate(n=ps.count())
    windows.write(NowhereByDriver(), name="windows-out")
    found = program.read(Findings(), name="findings").rebalance()
    found.write(Nowhere(), name="found-out")
    program.add_checkpoint_hook(Noting())


def build_tables(program: Program) -> None:
    """Steps that keep rows of their own: running aggregates, joins, and windows of every kind."""
    ticks = program.read(Ticks(), name="ticks").watermark("ts", delay="10ms")
    others = program.read(Ticks(), name="others").watermark("ts", delay="10ms")
    by_key = ticks.key_by("key")
    by_key.aggregate(n=ps.count(), last=ps.max("ts")).changes().write(Nowhere(), name="running-out")
    windows = {
        "session": ps.session("5ms"),
        "sliding": ps.sliding("50ms", "10ms"),
        "counted": ps.count_window(3, 2),
        "clocked": ps.tumbling("50ms", time="processing"),
    }
    for name, window in windows.items():
        by_key.window(window).aggregate(n=ps.count()).name(name).write(Nowhere(), name=f"{name}-out")
    late = by_key.window(ps.tumbling("50ms"), allowed_lateness="20ms").aggregate(n=ps.count()).name("late")
    late.updates().changes().write(Nowhere(), name="updates-out")
    near = ticks.join(others, on="key", within=("-10ms", "10ms"), suffix="_other").name("near")
    near.select("key", "ts").write(Nowhere(), name="near-out")
    held = ticks.join(others.versioned("key"), on="key", as_of="ts", how="left", suffix="_held").name("held")
    held.select("key", "ts").write(Nowhere(), name="held-out")


def _prepared(plan: Plan) -> Plan:
    def prepared(operator: OperatorPlan) -> OperatorPlan:
        step = operator.step
        if not isinstance(step, ReadStep):
            return operator
        return replace(operator, step=replace(step, splits=tuple(step.source.splits(plan.parallelism))))

    vertices = tuple(replace(v, operators=tuple(prepared(o) for o in v.operators)) for v in plan.vertices)
    return replace(plan, vertices=vertices)


# --- its processes ---------------------------------------------------------------------------------------------------


class Soak:
    """The processes of a job that does not end by itself."""

    def __init__(
        self, settings: JobSettings, *, seed: int = 1, build: Callable[[Program], None] = build_checkpointed
    ) -> None:
        self._settings = settings
        self.world = World(seed)
        self.disk = Disk(self.world)
        self._pace = Pace(self.world, work_us=(50, 1_000))
        self._network = Network(self.world, latency_us=(20, 500))
        self.host = SlotHost(
            self.world, build=self._build_slot, died=self._network.died, start_us=(1_000, 5_000), failing_starts=0
        )
        self._actor = Actor(self.world, MASTER)
        program = Program(settings)
        build(program)
        self.master = self._build_master(_prepared(program.plan()), program.checkpoint_hooks)
        self.master.start(self.world.now())
        self._actor.wake()

    @property
    def completed(self) -> int:
        """How many checkpoints have completed."""
        return self.master.view().checkpoints.counts.completed

    def until(self, true: Callable[[], bool]) -> None:
        """Let things happen until it is true, as seen every millisecond."""
        seen_us = -1

        def look() -> bool:
            nonlocal seen_us
            if self.world.now_us // 1_000 == seen_us:
                return False
            seen_us = self.world.now_us // 1_000
            return true()

        assert self.world.run(look, until_us=self.world.now_us + PATIENCE_US), self.master.view()
        assert not self.world.violations, self.world.violations

    def until_completed(self, count: int) -> None:
        """Let so many checkpoints complete."""
        self.until(lambda: self.completed >= count)

    def ask(self, kind: RequestKind, target: str | None = None) -> list[CompletedCheckpoint | RequestFailure]:
        """Ask for a snapshot; what comes of it will be in the list."""
        answers: list[CompletedCheckpoint | RequestFailure] = []
        with self.world.as_actor(self._actor):
            self.master.request(SnapshotRequest(kind=kind, target=target, canonical=target is not None), answers.append)
        self._actor.wake()
        return answers

    def request(self, kind: RequestKind, target: str | None = None) -> CompletedCheckpoint | RequestFailure:
        """Ask for a snapshot, and wait for it."""
        answers = self.ask(kind, target)
        self.until(lambda: bool(answers))
        return answers[0]

    def close(self) -> None:
        """Let go of what slots have on disk."""
        for actor in self.host.living.values():
            if isinstance(actor.driver, SlotDriver):
                actor.driver.close()

    def crash(self) -> None:
        """Lose a slot, and wait until the job runs again."""
        restarts = self.master.view().restarts
        self.host.crash(min(self.host.living), Notice.TOLD)
        self.until(lambda: self.master.view().restarts > restarts and self.master.view().state.value == "running")

    def sizes(self) -> Counter[str]:
        """What the processes hold, by where it is held."""
        total = _sizes("master", self.master)
        for actor in self.host.living.values():
            total += _sizes("slot", actor.driver)
        return total

    def _build_master(self, plan: Plan, hooks: Mapping[str, CheckpointHook]) -> MasterDriver:
        actor = self._actor
        self.host.wake_master = actor.wake
        driver = MasterDriver(
            job=JOB,
            plan=plan,
            settings=self._settings,
            ports=MasterPorts(
                clock=SimClock(actor),
                transport=self._network.transport(actor),
                background=SimBackground(actor, self._pace),
                store=self.disk.store(actor),
                slots=self.host,
                hooks=hooks,
            ),
            draws=tuple(self.world.random.random() for _ in range(64)),
        )
        actor.driver = driver
        return driver

    def _build_slot(self, slot: SlotId, actor: Actor) -> SlotDriver:
        transport = self._network.transport(actor)
        return SlotDriver(
            slot,
            job=JOB,
            settings=self._settings,
            ports=SlotPorts(
                clock=SimClock(actor),
                transport=transport,
                background=SimBackground(actor, self._pace),
                store=self.disk.store(actor),
            ),
            address=SlotAddress(host="sim", pid=1, ipc_address=transport.ipc_address),
            master_address=f"{ADDRESS_PREFIX}{MASTER}",
        )


# --- what they hold --------------------------------------------------------------------------------------------------

_CONTAINERS = (dict, list, tuple, set, frozenset, deque, types.MappingProxyType)


def _sizes(process: str, root: object) -> Counter[str]:
    """Entries of containers, by the attribute that they hang on, and objects of ours, by their class."""
    counts: Counter[str] = Counter()
    seen: dict[int, object] = {}
    waiting: list[tuple[str, object]] = [(process, root)]
    while waiting:
        label, found = waiting.pop()
        if id(found) in seen or not _counts(found):
            continue
        # Kept, so that no id is used twice.
        seen[id(found)] = found
        if isinstance(found, bytearray):
            counts[f"{process}: bytes of {label}"] += len(found)
        elif isinstance(found, _CONTAINERS):
            counts[f"{process}: {label}"] += _entries(found)
            waiting += [(f"{label}[]", child) for child in _children(found)]
        else:
            counts[f"{process}: {type(found).__qualname__} objects"] += 1
            waiting += _referred(found)
    return counts


def _counts(found: object) -> bool:
    module = type(found).__module__
    if isinstance(found, type | types.ModuleType) or module.startswith("penstock.sim"):
        return False
    kinds = (*_CONTAINERS, bytearray, types.FunctionType, types.MethodType, types.CellType, functools.partial)
    return isinstance(found, kinds) or module.startswith(("penstock", "soak_rig"))


def _entries(container: Any) -> int:
    # What has a limit may fill up to it.
    limit = container.maxlen if isinstance(container, deque) else None
    return len(container) if limit is None else limit


def _children(container: Any) -> Iterator[object]:
    if isinstance(container, Mapping):
        yield from container.keys()
        yield from container.values()
    else:
        yield from container


def _referred(found: Any) -> list[tuple[str, object]]:
    owner = type(found).__qualname__
    if isinstance(found, types.MethodType):
        return [(owner, found.__self__), (owner, found.__func__)]
    if isinstance(found, functools.partial):
        return [("partial", child) for child in (found.func, found.args, found.keywords)]
    if isinstance(found, types.FunctionType):
        cells = zip(found.__code__.co_freevars, found.__closure__ or (), strict=True)
        return [(f"{found.__qualname__}:{name}", cell) for name, cell in cells] + [(owner, found.__defaults__)]
    if isinstance(found, types.CellType):
        return [("cell", found.cell_contents)] if found != types.CellType() else []
    if isinstance(found, msgspec.Struct):
        return [(f"{owner}.{name}", getattr(found, name)) for name in found.__struct_fields__]
    names = [name for kind in type(found).__mro__ for name in getattr(kind, "__slots__", ())]
    values = {name: getattr(found, name, None) for name in names} | getattr(found, "__dict__", {})
    return [(f"{owner}.{name}", value) for name, value in values.items()]
