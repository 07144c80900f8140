"""One job in a world: its processes, its user and its checkers, from the beginning to the end.

safety phase      faults strike; nothing wrong may happen
liveness phase    no faults; the job must come to its end in bounded virtual time
quiet             the job has ended; every process must leave, and no file may be left

`penstock.sim.verdict` says what must hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.api.connector import Sink
from penstock.api.restoring import Restore
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, JobId, SlotId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import Claim, CompletedCheckpoint, MatchingRules, SnapshotKind
from penstock.core.recovery.tenure import Tenure
from penstock.plan.graph import Plan
from penstock.runtime.addresses import SlotAddress
from penstock.runtime.master.driver import MasterDriver, MasterPorts
from penstock.runtime.master.starting import StartingPoint, record_start, starting_point
from penstock.runtime.slot.driver import SlotDriver
from penstock.runtime.slot.ports import SlotPorts
from penstock.runtime.views import JobView
from penstock.settings import Retention
from penstock.sim.aborted_files import AbortedFiles
from penstock.sim.again import Again, Origin, find_origin, take_origin
from penstock.sim.background import Pace, SimBackground
from penstock.sim.calls import SimCalls
from penstock.sim.checkers import CommitChecker, Ledger, MessageChecker
from penstock.sim.clock import SimClock
from penstock.sim.disk import Disk
from penstock.sim.drift import DriftChecker
from penstock.sim.driver_checks import GroupChecker, SplitChecker
from penstock.sim.expected import Stage, next_stage
from penstock.sim.external import ExternalSystem
from penstock.sim.faults import Injector
from penstock.sim.inputs import make_inputs
from penstock.sim.kept_runs import run_options
from penstock.sim.logs import watch_messages
from penstock.sim.marking_hook import NAME as HOOK
from penstock.sim.marking_hook import HookChecker, SimHook
from penstock.sim.masters import MASTER, MasterHost, TakenOver
from penstock.sim.network import ADDRESS_PREFIX, Network
from penstock.sim.on_driver import make_driver_sink
from penstock.sim.outputs import SimSink
from penstock.sim.programs import NAME, Program, StartedOver
from penstock.sim.replaying import ReplaySink
from penstock.sim.rules import Rule
from penstock.sim.scenario import Scenario
from penstock.sim.shapes import make_plan
from penstock.sim.sharing import SharingBackend
from penstock.sim.slots import SlotHost
from penstock.sim.undisturbed import RegionChecker
from penstock.sim.user import Moment, User
from penstock.sim.waiting import WaitChecker
from penstock.sim.world import Actor, World
from penstock.storage.metadata import decode_metadata
from penstock.storage.records import FileRecords

JOB = JobId(f"{NAME}-1")
JOB_AGAIN = JobId(f"{NAME}-2")
"""The second job of a world, unless the program goes on with the first job."""

QUIET_US = 60_000_000
"""How long processes may take to leave when the job has ended."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that a world is made of. A test puts in a part that is wrong on purpose, to see a checker find it."""

    disk: Callable[[World], Disk] = Disk
    sink: Callable[[int, str], Sink] = SimSink
    driver_sink: Callable[..., Sink] = make_driver_sink
    replay_sink: Callable[[int, str], Sink] = ReplaySink


SOUND = Parts()
"""The parts of a world in which nothing goes wrong except its faults."""


class Simulation:
    """One job in a world: in a world of its own, or in the world that another job has left."""

    def __init__(
        self,
        scenario: Scenario,
        parts: Parts,
        *,
        keep_log: bool,
        after: Simulation | None = None,
        origin: Origin | None = None,
    ) -> None:
        """`after` is the first job, for a second job. `origin` is the snapshot that the second job starts from; without
        `origin` the program is run again by its name."""
        self.scenario = scenario
        self.after = after
        self.origin = origin
        self._keeps_log = keep_log
        self._is_over = False
        self._point: StartingPoint | None = None
        self._parts = parts
        rerun = scenario.rerun
        self._starts_over = after is not None and rerun is not None and rerun.fresh
        goes_on = after is not None and rerun is not None and not rerun.fresh
        self.job = JOB if after is None or goes_on else JOB_AGAIN
        if after is None:
            self.world = World(scenario.world_seed, keep_log=keep_log)
            self.external = ExternalSystem(self.world)
            self.external.inputs = make_inputs(scenario.workload)
            self.disk = parts.disk(self.world)
        else:
            self.world, self.external, self.disk = after.world, after.external, after.disk
        self.shown_before = tuple(self.external.committed)
        self.ledger = Ledger(self.world, self.disk, self.job)
        if after is not None and goes_on:
            self.ledger = after.ledger
            self.ledger.run_ended(after.kept())
            self.ledger.on_durable = []
        self.durable_before = len(self.ledger.durable)
        self.has_nothing_to_do = after is not None and goes_on and after.has_read_all
        self._make_hosts()
        self._make_checkers()
        if after is not None and goes_on:
            self.messages.go_on_from(after.messages, kept=bool(after.kept()) or after.has_stopped)
        self.stages: tuple[Stage, ...] = ()

    def _make_hosts(self) -> None:
        world, scenario = self.world, self.scenario
        world.loses_unsynced = scenario.loses_unsynced
        self.pace = Pace(world, work_us=scenario.work_us)
        self.network = Network(
            world,
            latency_us=scenario.latency_us,
            spike_share=scenario.spike_share,
            seen_share=scenario.seen_share,
        )
        self.host = SlotHost(
            world,
            build=self._build_slot,
            died=self.network.died,
            start_us=scenario.start_us,
            failing_starts=scenario.failing_starts,
        )
        self.program = None if scenario.rerun is None else self._make_program()
        self.masters = MasterHost(
            world,
            build=self._build_master,
            died=self._master_died,
            set_aside=self._master_set_aside,
            terms=self.program or (TakenOver(self.disk, self.job) if scenario.lasting else None),
        )
        self.user = User(world, disk=self.disk, ledger=self.ledger, masters=self.masters)
        self.user.on_drain = lambda: setattr(self.external, "is_drained", True)

    def _make_checkers(self) -> None:
        world, scenario, after = self.world, self.scenario, self.after
        self.messages = MessageChecker(world, self.ledger, master=MASTER, faults=scenario.faults)
        self.regions = RegionChecker(world, master=MASTER)
        self.aborted = AbortedFiles(world, self.disk, self.job, master=MASTER, faults=scenario.faults)
        self.network.taps += [self.messages, self.regions, self.aborted]
        if self._keeps_log:
            self.network.taps.append(watch_messages(world, master=MASTER))
        CommitChecker(world, self.ledger, self.messages, self.external)
        self.external.on_unwaited = lambda text: world.violate(Rule.WAITS, text)
        self.groups = GroupChecker(world, self.ledger, self.messages, self.external)
        if after is not None:
            self.groups.go_on_from(after.groups)
        self._watch_parts_on_driver()
        self._watch_readers()
        self.given_up: StartedOver | None = None
        if self._starts_over:
            self.given_up = StartedOver(world, self.disk, JOB)
            self.ledger.on_durable.append(self.given_up.checkpoint_durable)
        self.network.taps.append(
            WaitChecker(
                world, calm_from_ms=scenario.calm_from_ms, view=self._view, living=lambda: tuple(self.host.living)
            )
        )
        self.messages.on_attempt = self._attempt_began
        self.messages.on_run = lambda: self.user.happened(Moment.RUN)
        self.messages.on_failure = lambda: self.user.happened(Moment.FAILURE)

    def run(self) -> bool:
        """Run the job through all phases. Returns whether the job has come to its end."""
        world, scenario = self.world, self.scenario
        injector = Injector(
            world,
            host=self.host,
            masters=self.masters,
            network=self.network,
            disk=self.disk,
            external=self.external,
            pace=self.pace,
        )
        injector.schedule(scenario.faults, calm_from_us=scenario.calm_from_ms * 1_000)
        self.ledger.on_durable += [injector.checkpoint_durable, lambda: self.user.happened(Moment.CHECKPOINT)]

        def job_ending() -> None:
            self.aborted.job_ending()
            injector.job_ending()

        self.messages.on_ending = job_ending
        self.user.on_rescale = injector.rescale_asked
        if scenario.cancel_at_ms is not None:
            world.at(scenario.cancel_at_ms * 1_000, self._cancel)
        self.user.schedule(scenario.requests)
        if not self._begin():
            return False
        self.masters.start()
        ended = world.run(lambda: self.masters.has_ended, until_us=scenario.deadline_ms * 1_000)
        if world.stopped:
            return False
        if not ended:
            world.violate(Rule.LIVENESS, f"the job had not ended by {scenario.deadline_ms} ms: {self.state()}")
            return False
        self.masters.leave()
        self._is_over = True
        world.note(MASTER, f"job ended: {self.outcome}")
        if not world.run(lambda: self.host.is_empty, until_us=world.now_us + QUIET_US) and not world.stopped:
            names = ", ".join(str(slot) for slot in self.host.living)
            world.violate(Rule.LIVENESS, f"slots did not leave when the job had ended: {names}")
        return True

    # --- the parts -----------------------------------------------------------------------

    def _watch_readers(self) -> None:
        world, alignment = self.world, self.scenario.workload.align
        if alignment is not None:
            self.external.drift = DriftChecker(
                alignment,
                has_faults=bool(self.scenario.faults),
                now_ms=lambda: world.now_ms,
                violate=lambda text: world.violate(Rule.DRIFT, text),
            )

    def _watch_parts_on_driver(self) -> None:
        world, ledger, external, workload = self.world, self.ledger, self.external, self.scenario.workload
        if workload.on_driver is not None:
            self.network.taps.append(SplitChecker(world, ledger, external, workload, master=MASTER))
        if self.scenario.hook is not None:
            self.network.taps.append(HookChecker(world, ledger, external, master=MASTER))

    def _attempt_began(self, restored: CheckpointId | None, parallelism: int) -> None:
        if self.messages.epoch >= self.masters.first_incarnation:
            # Lower epochs are those of a driver that does not know yet that its job was taken over.
            self.user.deployed(parallelism)
        self.external.begins_at_beginning = restored is None
        metadata = None if restored is None else self.ledger.durable.get(restored, self.ledger.started_from)
        decoded = decode_metadata("_metadata", metadata) if metadata else None
        self.stages = next_stage(self.stages, Stage(parallelism=parallelism, restored=restored, metadata=decoded))

    def _master_died(self, name: str) -> None:
        self.network.died(name)
        self.user.lose_driver()

    def _master_set_aside(self, below: int) -> None:
        """Slots whose incarnation is lower than `below` belong to a driver whose job another driver takes over."""
        self.network.set_aside(MASTER, lambda name: int(name.split(".")[1]) < below)
        self.user.lose_driver()

    def go_on(self) -> Simulation | None:
        """The second job, which goes on from what this job has left; None if the world has no second job, or if this
        job has left nothing to go on from."""
        again, world = self.scenario.again, self.world
        if again is None or world.stopped or world.violations or self.outcome is None:
            return None
        if self.scenario.rerun is not None:
            self._calm_down()
            world.note("user", f"runs the program again, on {again.parallelism} slots: {self.scenario.rerun}")
            scenario = self.scenario.second(again, from_ms=world.now_ms)
            return Simulation(scenario, self._parts, keep_log=self._keeps_log, after=self)
        savepoints = [asked.savepoint for asked in self.user.asked if asked.savepoint is not None]
        found = find_origin(self.disk, layout.job_folder(self.job), kept=self.kept(), savepoints=savepoints)
        # A job that starts from an older snapshot would show again what was committed after that snapshot.
        if found is None or found[0] < max(self.messages.relied_on, default=0):
            return None
        self._calm_down()
        origin = take_origin(self.disk, found[1], again)
        world.note("user", f"starts another job from {origin.folder}, on {again.parallelism} slots")
        scenario = self.scenario.second(again, from_ms=world.now_ms)
        return Simulation(scenario, self._parts, keep_log=self._keeps_log, after=self, origin=origin)

    def _calm_down(self) -> None:
        from_us = max(self.world.now_us, self.scenario.calm_from_ms * 1_000)
        self.world.at(from_us, lambda: None)
        self.world.run(lambda: self.world.now_us >= from_us, until_us=from_us)

    def _begin(self) -> bool:
        """Read the snapshot that the job starts from, if there is an `origin`. Returns whether the job can begin."""
        origin = self.origin
        if origin is None:
            return True
        self.ledger.started_from = origin.metadata
        actor = Actor(self.world, "user")
        store = self.disk.store(actor)
        restore = Restore(path=f"/{origin.folder}", claim=origin.claim, rules=MatchingRules())
        try:
            with self.world.as_actor(actor):
                self._point = starting_point(store, restore, self._make_plan(), self.scenario.settings)
                record_start(FileRecords(store, layout.job_folder(self.job), term=None), self._point)
        except UsageError as error:
            self.world.violate(Rule.RESTORABLE, f"no job can be started from {origin.folder}: {error}")
            return False
        return True

    def _make_plan(self) -> Plan:
        scenario = self.scenario
        plan = make_plan(
            scenario.workload,
            world=scenario.seed,
            parallelism=scenario.settings.parallelism,
            sink=self._make_sink,
        )
        return plan if scenario.hook is None else plan.with_hooks((HOOK,))

    def _make_program(self) -> Program:
        settings = self.scenario.settings
        return Program(self.disk, self.job, fresh=self._starts_over, make_plan=self._make_plan, settings=settings)

    def _workers(self, actor: Actor) -> Callable[[str], SimBackground]:
        on_driver = self.scenario.workload.on_driver
        pace = self.pace if on_driver is None else Pace(self.world, work_us=on_driver.work_us)
        return lambda _operator: SimBackground(actor, pace)

    def _make_sink(self, name: str) -> Sink:
        world, on_driver = self.scenario.seed, self.scenario.workload.on_driver
        if on_driver is None or name not in on_driver.sinks:
            replays = self.scenario.workload.replays
            return self._parts.replay_sink(world, name) if replays else self._parts.sink(world, name)
        return self._parts.driver_sink(world, name, cleans_by_attempt=on_driver.cleans_by_attempt)

    def _build_master(self, actor: Actor, tenure: Tenure | None) -> MasterDriver:
        scenario = self.scenario
        self.messages.ever_ran = tenure is not None and bool(tenure.completed)
        self.user.driver_begins(scenario.settings.parallelism)
        transport = self.network.transport(actor)
        first_incarnation = tenure.first_epoch if tenure is not None else 1
        self.host.has_called = transport.has_heard
        plan = self._make_plan() if self._point is None else self._point.plan
        if self.program is not None:
            plan = self.program.plan
            self._look_at_origin(self.program)
        return MasterDriver(
            job=self.job,
            plan=plan,
            settings=scenario.settings,
            ports=MasterPorts(
                clock=SimClock(actor),
                transport=transport,
                background=SimBackground(actor, self.pace),
                store=self.disk.store(actor),
                slots=self.host.of_driver(first_incarnation, actor.wake),
                workers=self._workers(actor),
                hooks={} if scenario.hook is None else {HOOK: SimHook(scenario.seed, scenario.hook)},
                is_run=self.program is not None,
                when_safe=None if self.program is None else self.program.when_safe(actor),
            ),
            draws=tuple(self.world.random.random() for _ in range(64)),
            tenure=tenure,
            started_from=None if self._point is None else self._point.record,
        )

    def _build_slot(self, slot: SlotId, actor: Actor) -> SlotDriver:
        transport = self.network.transport(actor)
        return SlotDriver(
            slot,
            job=self.job,
            settings=self.scenario.settings,
            ports=SlotPorts(
                clock=SimClock(actor),
                transport=transport,
                background=SimBackground(actor, self.pace),
                calls=SimCalls(actor, self.pace),
                store=self.disk.store(actor),
                slice_rows=self.scenario.slice_rows,
                make_backend=SharingBackend if self.scenario.workload.shares_files else None,
                runs=run_options(self.scenario.workload.runs),
            ),
            address=SlotAddress(
                host="sim", pid=self.world.random.randint(2, 99_999), ipc_address=transport.ipc_address
            ),
            master_address=f"{ADDRESS_PREFIX}{MASTER}",
        )

    # --- the end -----------------------------------------------------------------------

    @property
    def outcome(self) -> JobState | None:
        """How the job has ended; None if the job has not ended."""
        if self.masters.ended_as is not None:
            return self.masters.ended_as
        return self.masters.driver.outcome if self.masters.driver is not None else None

    def _cancel(self) -> None:
        if self._is_over:
            return
        self.world.note("user", "cancels the job")
        self.masters.call(lambda driver: driver.cancel())

    def _view(self) -> JobView | None:
        driver = self.masters.driver if self.masters.actor is not None else None
        return None if driver is None else driver.view()

    def state(self) -> str:
        """Where the job has come to, for the text of a violation."""
        if self.masters.driver is None:
            return "no driver ever came up"
        view = self.masters.driver.view()
        failures = "; ".join(f"epoch {failure.epoch}: {failure.text}" for failure in view.failures[-3:])
        return f"{view.state.value} in epoch {view.epoch}, {len(self.ledger.durable)} checkpoints, {failures}"

    def _look_at_origin(self, program: Program) -> None:
        """Remember the checkpoint that a second run goes on from."""
        found, again = program.found, Again(parallelism=1, claim=Claim.NO_CLAIM, moved=False, safety_ms=0)
        goes_on = found is not None and found.outcome is None and bool(found.completed)
        if self.after is not None and self.origin is None and found is not None and goes_on:
            self.origin = take_origin(self.disk, found.completed[-1].location.strip("/"), again)

    @property
    def newest_record(self) -> CompletedCheckpoint | None:
        """The newest checkpoint, or savepoint that stopped the job."""
        records = self.ledger.records
        return records[max(records)] if records else None

    @property
    def has_stopped(self) -> bool:
        """Whether the job has ended with the savepoint of a stop, be the user told of that or not: after a drain also
        if the job failed before its end, or lost its driver."""
        newest = self.newest_record
        if newest is None or self.outcome is not JobState.FINISHED:
            return False
        metadata = decode_metadata(newest.path, self.ledger.durable[newest.checkpoint])
        return newest.kind.is_synchronous or metadata.is_drained

    @property
    def has_read_all(self) -> bool:
        """Whether the job has finished, and not by a stop: the sources have no more data."""
        return self.outcome is JobState.FINISHED and not self.has_stopped

    @property
    def has_gone_on_drained(self) -> bool:
        """Whether a run of the program went on from a savepoint that had drained the job, with a driver that was not
        the first: a window may come in parts then."""
        newest = self.newest_record
        drained = [r for r in self.ledger.records.values() if r.kind is SnapshotKind.TERMINATE]
        return self.program is not None and any(r is not newest for r in drained)

    def kept(self) -> list[CheckpointId]:
        """The checkpoints that must outlive the job."""
        checkpoint, outcome = self.scenario.settings.checkpoint, self.outcome
        keeps = {
            Retention.DELETE: (),
            Retention.KEEP_ON_FAILURE: (JobState.FAILED,),
            Retention.KEEP: (JobState.FAILED, JobState.CANCELLED),
        }
        if outcome not in keeps[checkpoint.retention]:
            return []
        return self.ledger.retained(checkpoint.num_retained)
