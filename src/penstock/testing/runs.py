"""Runs of a program in a simulated cluster.

A run is a world of the simulator with the user's job in it. The sources are read in small steps. Time passes between
two steps, so that checkpoints and crashes fall between them. A process that is to die is killed shortly after a batch
was read, or when a reader comes to its end; the seed decides where. If a crash is left when the last reader comes to
its end, the process of that reader dies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.api.connector import (
    End,
    Pause,
    Polled,
    Source,
    SourceReader,
    SplitEnumerator,
    SplitProgress,
)
from penstock.api.grouped import GroupedFunction, HostedProcessor
from penstock.api.hooks import CheckpointHook
from penstock.api.program import Program
from penstock.api.running import Runner, StreamPath
from penstock.api.steps import ReadStep, WriteStep
from penstock.api.travelling import check_functions_travel
from penstock.connectors.collect_sink import LIMIT, CollectSink
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import InvariantError, JobFailed, UsageError, UserCodeError
from penstock.core.ids import JobId, SlotId
from penstock.core.job.events import JobState
from penstock.plan.graph import OperatorPlan, Plan
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.master.driver import MasterDriver, MasterPorts
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.master_link import MASTER
from penstock.runtime.slot.ports import SlotPorts
from penstock.runtime.views import FailureView
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, SlotSettings
from penstock.sim.background import Pace, SimBackground
from penstock.sim.calls import SimCalls
from penstock.sim.clock import SimClock
from penstock.sim.disk import Disk
from penstock.sim.logs import watch_logs
from penstock.sim.network import ADDRESS_PREFIX, Network
from penstock.sim.slots import Notice, SlotHost
from penstock.sim.world import Actor, World
from penstock.testing.scripts import Mark, Scripted, ScriptReader

JOB_PREFIX = "penstock-testing-run-"

LIMIT_MS = 120_000
"""A run that has not ended after this time, and the time for its pauses and crashes, fails."""

CRASH_MS = 5_000
"""Longer than the delay that one crash can cause."""

QUIET_US = 60_000_000
"""How long processes may take to leave when the job has ended."""

STRIKE_SHARE = 0.3
"""The probability that a process dies after a batch, while crashes are left."""

LOOK_EVERY_MS = 50
"""How often a run looks for failures that no crash can have caused."""

Row = dict[str, Any]

_numbers = itertools.count(1)
"""The numbers that tell runs apart, also in sources that were pickled into a simulated process."""


# --- runs ------------------------------------------------------------------------------------------------------------


def run(
    build: Callable[[Program], Any],
    *,
    parallelism: int = 2,
    seed: int = 0,
    crashes: int = 0,
    checkpoint_interval: Duration | None = "50ms",
    linger: Duration = "2s",
) -> list[Row]:
    """Run a program in a simulated cluster, and return the records that its `collect` sinks have committed.

    `build` is called with an environment and builds the program in that environment. `crashes` is the number of
    processes that die at moments that the seed decides; the crashes of the scripts come on top. A job with a source
    that is `scripted(..., end=False)` is ended when no record has come for `linger` and two checkpoint intervals of
    simulated time. With several `collect` sinks, the records of the sinks follow each other in the order of the
    program; `Collected.rows` has the records of one sink.

    Raises:
        JobFailed: a function of the program, a source or a sink raised (a run does not try again after such an error);
            or the job did not come to its end.

    """
    if crashes < 0:
        raise UsageError(f"crashes is {crashes}; the number of crashes cannot be negative")
    world = World(seed)
    interval_ms = (
        None if checkpoint_interval is None else duration_ms(checkpoint_interval, argument="checkpoint_interval")
    )
    linger_ms = duration_ms(linger, argument="linger") + 2 * (interval_ms or 0)
    settings = _settings(world, parallelism, interval_ms)
    program = Program(settings, processor_host=_host_processor, runner=_KitRunner(settings, seed, linger_ms))
    build(program)
    plan = program.plan()
    check_functions_travel(plan)
    watch = RunWatch(world, crashes=crashes, linger_ms=linger_ms)
    sinks = [sink for sink in _sinks(plan) if isinstance(sink, CollectSink)]
    _run_plan(world, watch, settings, plan, program.checkpoint_hooks)
    return [row for sink in sinks for row in sink.rows]


class _KitRunner(Runner):
    """Runs the path to a stream in a simulated cluster of its own, without crashes."""

    def __init__(self, settings: JobSettings, seed: int, linger_ms: int) -> None:
        self._settings = settings
        self._seed = seed
        self._linger_ms = linger_ms

    def collected(self, path: StreamPath, *, limit: int) -> pa.Table:
        """All results of a run."""
        sink = CollectSink(limit)
        world = World(self._seed)
        watch = RunWatch(world, crashes=0, linger_ms=self._linger_ms)
        _run_plan(world, watch, self._settings, path.into(sink), {})
        return sink.to_arrow()

    def sampled(self, path: StreamPath, *, rows: int, timeout_ms: int | None) -> pa.Table:  # noqa: ARG002
        """The first results of a run, which takes no time here."""
        return self.collected(path, limit=LIMIT).slice(0, rows)


def _run_plan(
    world: World, watch: RunWatch, settings: JobSettings, plan: Plan, hooks: Mapping[str, CheckpointHook]
) -> None:
    number = next(_numbers)
    _watches[number] = watch
    try:
        with watch_logs(world):
            job = JobId(f"{JOB_PREFIX}{number}")
            prepared = _prepared(plan, watch, job, number)
            _Cluster(world, watch, settings, job=job, plan=prepared, hooks=hooks).run()
    finally:
        watch.close_left()
        del _watches[number]


def _host_processor(given: HostedProcessor) -> GroupedFunction:
    # Imported here: only programs that have processors of Spark's pay for the import.
    from penstock.spark.processors import host_processor

    return host_processor(given)


def _settings(world: World, parallelism: int, interval_ms: int | None) -> JobSettings:
    channel_bytes = world.random.choice((500, 5_000, 1 << 20))
    return JobSettings(
        parallelism=parallelism,
        checkpoint=CheckpointSettings(interval_ms=interval_ms),
        restart=FixedDelay(attempts=1_000_000, delay_ms=10),
        network=NetworkSettings(channel_bytes=channel_bytes, output_bytes=channel_bytes, batch_bytes=channel_bytes),
        slot=SlotSettings(heartbeat_interval_ms=100, heartbeat_timeout_ms=5_000),
    )


def _sinks(plan: Plan) -> list[Any]:
    steps = [operator.step for vertex in plan.vertices for operator in vertex.operators]
    return [step.sink for step in steps if isinstance(step, WriteStep)]


def _prepared(plan: Plan, watch: RunWatch, job: JobId, number: int) -> Plan:
    """The plan with the splits of its sources, with its sinks started, and with its sources watched."""

    def prepared(operator: OperatorPlan) -> OperatorPlan:
        step = operator.step
        if isinstance(step, WriteStep):
            step.sink.start(job)
        if not isinstance(step, ReadStep):
            return operator
        if isinstance(step.source, Scripted):
            watch.expect(step.source)
        splits = tuple(step.source.splits(plan.parallelism))
        return replace(operator, step=replace(step, source=_Watched(step.source, number), splits=splits))

    vertices = tuple(replace(v, operators=tuple(prepared(o) for o in v.operators)) for v in plan.vertices)
    return replace(plan, vertices=vertices)


class RunWatch:
    """What all processes of a run share: how far the run has come, and how many processes are still to die."""

    def __init__(self, world: World, *, crashes: int, linger_ms: int) -> None:
        self.strike: Callable[[], bool] = lambda: False
        """Kills the process of a slot; returns False if no slot lives."""
        self.longest_ms = LIMIT_MS + linger_ms + CRASH_MS * crashes
        self._world = world
        self._crashes_left = crashes
        self._linger_ms = linger_ms
        self._rows = 0
        self._unending: dict[tuple[int, int], None] = {}
        self._silent: dict[tuple[int, int], None] = {}
        self._crashed: dict[tuple[int, int, int], None] = {}
        self._last_ms = 0
        """When a reader began, a batch was read or a process died for the last time."""
        self._begun = False
        """Whether any batch was read."""
        self._reading: dict[int, None] = {}
        """The readers of this attempt that are not at their end."""
        self._readers = 0
        self._strike_is_due = False
        self._open: dict[int, SourceReader] = {}
        """The readers that nobody has closed."""

    def expect(self, source: Scripted) -> None:
        """Count the records, the pauses and the crashes of a source of the program."""
        for script, items in enumerate(source.scripts):
            marks = [item for item in items if isinstance(item, Mark)]
            self._rows += sum(item.num_rows for item in items if isinstance(item, pa.RecordBatch))
            self.longest_ms += sum(CRASH_MS if mark.pause_ms is None else mark.pause_ms for mark in marks)
            if not source.ends:
                self._unending[source.number, script] = None

    def draw_batch_rows(self) -> int:
        """How many records a reader gives at a time: so few that checkpoints and crashes fall between two batches."""
        return max(1, self._rows // self._world.random.choice((4, 15, 60))) if self._rows else 1_000

    # --- what readers tell -----------------------------------------------------------------------

    def opened(self, reader: SourceReader) -> int:
        """A reader has begun, perhaps with records that another reader has already read. Returns the number of the
        reader."""
        self._readers += 1
        self._open[self._readers] = reader
        self._reading[self._readers] = None
        self._something_happened()
        return self._readers

    def closed(self, reader: int) -> None:
        """A reader was closed."""
        self._open.pop(reader, None)

    def close_left(self) -> None:
        """The run is over: close the readers of simulated processes that died. A real process takes its threads and
        connections with it."""
        for reader in self._open.values():
            with suppress(Exception):
                reader.close()
        self._open.clear()

    def reopened(self, reader: int) -> None:
        """A reader has been given more splits."""
        self._reading[reader] = None
        self._something_happened()

    def batch_read(self) -> int:
        """A reader has read a batch. Returns how many milliseconds the reader waits before its next batch."""
        world = self._world
        self._begun = True
        self._something_happened()
        if self._crashes_left and not self._strike_is_due and world.random.random() < STRIKE_SHARE:
            self._strike_is_due = True
            world.after(world.between(0, 3_000), self._strike_if_due)
        return world.between(0, 5)

    def ended(self, reader: int) -> None:
        """A reader is at its end. Raises `Crash` if the reader's process dies here. If a process is still to die and a
        batch has been read, the process of the last reader always dies: the job ends soon, and no later moment for the
        crash is certain."""
        self._reading.pop(reader, None)
        is_last = not self._reading
        if self._crashes_left and self._begun and (is_last or self._world.random.random() < STRIKE_SHARE):
            self._spend_crash()
            self._world.crash_acting()

    def crash_once(self, place: tuple[int, int, int]) -> None:
        """A reader has come to a crash mark. Raises `Crash` the first time."""
        if place not in self._crashed:
            self._crashed[place] = None
            self._died()
            self._world.crash_acting()

    def silent(self, script: tuple[int, int]) -> None:
        """A script that does not end has been read to the point where it falls silent."""
        self._silent[script] = None

    # --- silence and crashes -----------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Whether every script that does not end is silent, and nothing has happened for long enough. If a crash is
        left then, a process dies first."""
        if not self._unending or len(self._silent) < len(self._unending):
            return False
        if self._world.now_ms < self._last_ms + self._linger_ms:
            return False
        if self._crashes_left and self.strike():
            self._spend_crash()
            return False
        return True

    def _something_happened(self) -> None:
        self._last_ms = self._world.now_ms
        self._silent.clear()

    def _strike_if_due(self) -> None:
        if self._strike_is_due and self.strike():
            self._spend_crash()

    def _spend_crash(self) -> None:
        self._crashes_left -= 1
        self._strike_is_due = False
        self._died()

    def _died(self) -> None:
        # The attempt is over: its other readers are closed soon, and do not count, even if they still read until then.
        self._reading.clear()
        self._something_happened()


_watches: dict[int, RunWatch] = {}
"""The runs under way, by number: a reader that was pickled into a simulated process finds its run here."""


class _Watched(Source):
    """Wraps a source of the program: the source is read in small steps, and its run is told of every step."""

    def __init__(self, source: Source, number: int) -> None:
        self._source = source
        self._number = number

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def discovers(self) -> bool:
        return self._source.discovers

    def splits(self, parallelism: int) -> list[bytes]:
        return self._source.splits(parallelism)

    def enumerator(self) -> SplitEnumerator:
        return self._source.enumerator()

    @property
    def induces_checkpoints(self) -> bool:
        return self._source.induces_checkpoints

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        watch, reader = _watches[self._number], self._source.open(splits)
        if isinstance(reader, ScriptReader):
            reader.watch = watch
        return _WatchedReader(reader, watch)


class _WatchedReader(SourceReader):
    """Wraps a reader of the program: time passes after each batch, so that checkpoints and crashes fall between
    batches."""

    def __init__(self, reader: SourceReader, watch: RunWatch) -> None:
        self._reader = reader
        self._watch = watch
        self._number = watch.opened(reader)
        self._batch_rows = watch.draw_batch_rows()
        self._resumes_ms = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        if now_ms < self._resumes_ms:
            return Pause(self._resumes_ms - now_ms)
        polled = self._reader.poll(min(max_rows, self._batch_rows), now_ms)
        if isinstance(polled, End):
            self._watch.ended(self._number)
        elif not isinstance(polled, Pause):
            self._resumes_ms = now_ms + self._watch.batch_read()
        return polled

    def snapshot(self) -> list[bytes]:
        return self._reader.snapshot()

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self._reader.add_splits(splits)
        self._watch.reopened(self._number)

    @property
    def splits_read(self) -> int:
        return self._reader.splits_read

    @property
    def catching_up(self) -> bool:
        return self._reader.catching_up

    def progress(self) -> SplitProgress | None:
        return self._reader.progress()

    def metrics(self) -> dict[str, float]:
        return self._reader.metrics()

    @property
    def holds_splits(self) -> bool:
        return self._reader.holds_splits

    def hold(self, splits: Collection[Hashable]) -> None:
        self._reader.hold(splits)

    def induced_checkpoint(self) -> int | None:
        return self._reader.induced_checkpoint()

    def checkpoint_completed(self, checkpoint: int) -> None:
        self._reader.checkpoint_completed(checkpoint)

    def close(self) -> None:
        self._watch.closed(self._number)
        self._reader.close()


class _Cluster:
    """The simulated processes of a run."""

    def __init__(
        self,
        world: World,
        watch: RunWatch,
        settings: JobSettings,
        *,
        job: JobId,
        plan: Plan,
        hooks: Mapping[str, CheckpointHook],
    ) -> None:
        self._job = job
        self._hooks = hooks
        self._world = world
        self._watch = watch
        self._settings = settings
        self._disk = Disk(world)
        self._pace = Pace(world, work_us=(50, 2_000))
        self._network = Network(world, latency_us=(20, 1_000))
        self._host = SlotHost(
            world, build=self._build_slot, died=self._network.died, start_us=(1_000, 20_000), failing_starts=0
        )
        self._master_actor = Actor(world, MASTER)
        self._master = self._build_master(plan)
        self._failure: FailureView | None = None
        self._look_again_ms = 0

    def run(self) -> None:
        """Run the job until the job has ended and all processes have left. Raises `JobFailed` if the job failed, or did
        not end in time."""
        world, master = self._world, self._master
        self._watch.strike = self._strike
        master.start(world.now())
        self._master_actor.wake()
        until_us = self._watch.longest_ms * 1_000
        world.run(lambda: self._is_over() or self._watch.is_quiet(), until_us=until_us)
        was_quiet = not self._is_over() and self._watch.is_quiet()
        if was_quiet:
            master.cancel()
            self._master_actor.wake()
            world.run(self._is_over, until_us=world.now_us + QUIET_US)
        self._check(expected=JobState.CANCELLED if was_quiet else JobState.FINISHED)
        self._master_actor.die()
        world.run(lambda: self._host.is_empty, until_us=world.now_us + QUIET_US)
        self._check_world()

    def _is_over(self) -> bool:
        return self._master.outcome is not None or self._failure is not None

    def _check(self, *, expected: JobState) -> None:
        self._check_world()
        self._look_for_failure()
        if self._failure is not None:
            raise _job_failed(self._failure)
        if self._master.outcome is not expected:
            view = self._master.view()
            raise JobFailed(
                f"the job is {view.state.value} after {self._world.now_ms / 1_000:.0f} s of simulated time, "
                f"{view.restarts} restarts and {view.rows_read} records read",
                hint="every source must end, unless it is scripted(..., end=False)",
            )

    def _check_world(self) -> None:
        if self._world.violations:
            raise InvariantError("; ".join(str(violation) for violation in self._world.violations))

    def _strike(self) -> bool:
        living = sorted(self._host.living)
        if not living:
            return False
        notice = self._world.random.choice((Notice.TOLD, Notice.TOLD, Notice.AGAIN))
        self._host.crash(self._world.random.choice(living), notice)
        return True

    def _look_now_and_then(self) -> None:
        if self._world.now_ms >= self._look_again_ms:
            self._look_again_ms = self._world.now_ms + LOOK_EVERY_MS
            self._look_for_failure()

    def _look_for_failure(self) -> None:
        """Each crash ends one attempt at most. If more attempts have ended than processes crashed, the program is at
        fault."""
        view = self._master.view()
        failed = [failure for failure in view.failures if failure.user_code]
        if view.restarts > self._host.crashes:
            failed.append(view.failures[-1])
        if view.state is JobState.FAILED and view.failures:
            # The failure that ended the job is the failure that the user has to mend.
            failed.insert(0, view.failures[-1])
        if failed:
            self._failure = failed[0]

    # --- the processes -----------------------------------------------------------------------

    def _build_master(self, plan: Plan) -> MasterDriver:
        actor = self._master_actor
        self._host.wake_master = actor.wake
        actor.after_turn = self._look_now_and_then
        driver = MasterDriver(
            job=self._job,
            plan=plan,
            settings=self._settings,
            ports=MasterPorts(
                clock=SimClock(actor),
                transport=self._network.transport(actor),
                background=SimBackground(actor, self._pace),
                store=self._disk.store(actor),
                slots=self._host,
                hooks=self._hooks,
            ),
            draws=tuple(self._world.random.random() for _ in range(64)),
        )
        actor.driver = driver
        return driver

    def _build_slot(self, slot: SlotId, actor: Actor) -> SlotDriver:
        transport = self._network.transport(actor)
        return SlotDriver(
            slot,
            job=self._job,
            settings=self._settings,
            ports=SlotPorts(
                clock=SimClock(actor),
                transport=transport,
                background=SimBackground(actor, self._pace),
                calls=SimCalls(actor, self._pace),
                store=self._disk.store(actor),
            ),
            address=SlotAddress(host="sim", pid=1, ipc_address=transport.ipc_address),
            master_address=f"{ADDRESS_PREFIX}{MASTER}",
        )


def _job_failed(cause: FailureView) -> JobFailed:
    where = f" in {cause.operator!r}, subtask {cause.subtask}" if cause.operator is not None else ""
    text = f"the job failed{where}: {cause.text}"
    failure = JobFailed(f"{text}\n{cause.traceback.rstrip()}" if cause.traceback else text, cause_text=cause.text)
    if cause.user_code:
        failure.__cause__ = UserCodeError(
            operator=cause.operator or "?", subtask=cause.subtask or 0, traceback_text=cause.traceback
        )
    return failure
