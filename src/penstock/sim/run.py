"""One seed, one world: draw it, run it, check it.

safety phase      faults strike; nothing wrong may happen
liveness phase    no faults; the job must come to its end in bounded virtual time
quiet             the job has ended; every process must leave, and no file may be left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.api.connector import Sink
from penstock.api.restoring import Restore
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId, JobId, SlotId
from penstock.core.job.events import JobState
from penstock.core.job.fail_fast import SAME_FAILURES
from penstock.core.job.restart_pause import START_FAILURES_BEFORE_FIRST_RUN
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
from penstock.settings import Mode, NoRestart, Retention
from penstock.sim.aborted_files import AbortedFiles
from penstock.sim.again import Again, Origin, check_both, check_spared, check_untouched, find_origin, take_origin
from penstock.sim.background import Pace, SimBackground
from penstock.sim.checkers import CommitChecker, Ledger, MessageChecker, check_files
from penstock.sim.clock import SimClock
from penstock.sim.comparison import Standard, check_order, check_output, check_parts, shown_by
from penstock.sim.disk import Disk, is_below
from penstock.sim.driver_checks import GroupChecker, SplitChecker
from penstock.sim.expected import Stage, expected_of_stages, next_stage, read_before
from penstock.sim.external import ExternalSystem, enter, leave
from penstock.sim.faults import Injector
from penstock.sim.jobs import Shape, SimSink, make_inputs
from penstock.sim.logs import watch_logs, watch_messages
from penstock.sim.marking_hook import NAME as HOOK
from penstock.sim.marking_hook import HookChecker, SimHook
from penstock.sim.masters import MASTER, MasterHost, TakenOver
from penstock.sim.network import ADDRESS_PREFIX, Network
from penstock.sim.on_driver import make_driver_sink
from penstock.sim.programs import NAME, NAMES, Program, StartedOver
from penstock.sim.rules import Rule, Violation
from penstock.sim.scenario import Scenario, draw_scenario
from penstock.sim.shapes import make_plan
from penstock.sim.sharing import SharingBackend
from penstock.sim.slots import SlotHost
from penstock.sim.undisturbed import RegionChecker
from penstock.sim.user import Moment, User, Wish
from penstock.sim.waiting import WaitChecker
from penstock.sim.world import Actor, World, seeded
from penstock.storage.metadata import decode_metadata
from penstock.storage.records import FileRecords

JOB = JobId(f"{NAME}-1")
JOB_AGAIN = JobId(f"{NAME}-2")
"""The second job of a world, unless the program goes on with the first job."""

QUIET_US = 60_000_000
"""How long processes may take to leave when the job has ended."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a world went."""

    seed: int
    violations: tuple[Violation, ...]
    outcome: JobState | None
    crashes: int
    takeovers: int
    """How many drivers died."""
    checkpoints: int
    """How many checkpoints became durable."""
    attempts: int
    restores: int
    """How many attempts began from a checkpoint."""
    repairs: int
    """How many attempts were of some tasks only, while other tasks went on."""
    replaced: int
    """How many of these attempts replaced a slot."""
    granted: tuple[Wish, ...]
    """The wishes of the user that were granted."""
    refused: tuple[Wish, ...]
    """The wishes of the user that were not granted."""
    virtual_ms: int
    digest: str
    """The digest of all events, in order. The same seed gives the same digest."""
    header: tuple[str, ...]
    log: tuple[str, ...]
    jobs: int = 1
    """How many jobs, or runs of a program, there were, one after the other."""

    @property
    def reproduce(self) -> str:
        """The command that runs this world again."""
        return f"penstock sim --seeds 1 --first-seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that a world is made of. A test puts in a part that is wrong on purpose, to see a checker find it."""

    disk: Callable[[World], Disk] = Disk
    sink: Callable[[int, str], Sink] = SimSink
    driver_sink: Callable[..., Sink] = make_driver_sink


SOUND = Parts()
"""The parts of a world in which nothing goes wrong except its faults."""


def run_seed(seed: int, *, keep_log: bool = False) -> Result:
    """Run the world of a seed to its end."""
    return run_scenario(scenario_of(seed), keep_log=keep_log)


def scenario_of(seed: int) -> Scenario:
    """Everything that a seed decides before its world begins."""
    return draw_scenario(seed, seeded(seed))


def run_scenario(scenario: Scenario, *, parts: Parts = SOUND, keep_log: bool = False) -> Result:
    """Run the world of a scenario to its end."""
    first = Simulation(scenario, parts, keep_log=keep_log)
    second: Simulation | None = None
    result = None
    enter(scenario.seed, first.external)
    try:
        with watch_logs(first.world):
            first.run()
            result = first.result()
            second = first.go_on()
            if second is not None:
                second.run()
    finally:
        leave(scenario.seed)
    return result if second is None else _together(result, second.result())


def _together(first: Result, second: Result) -> Result:
    return replace(
        second,
        header=first.header,
        crashes=first.crashes + second.crashes,
        takeovers=first.takeovers + second.takeovers,
        checkpoints=first.checkpoints + second.checkpoints,
        attempts=first.attempts + second.attempts,
        restores=first.restores + second.restores,
        repairs=first.repairs + second.repairs,
        replaced=first.replaced + second.replaced,
        granted=first.granted,
        refused=first.refused,
        jobs=2,
    )


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
        self._scenario = scenario
        self._after = after
        self._origin = origin
        self._keeps_log = keep_log
        self._is_over = False
        self._point: StartingPoint | None = None
        self._parts = parts
        rerun = scenario.rerun
        self._starts_over = after is not None and rerun is not None and rerun.fresh
        goes_on = after is not None and rerun is not None and not rerun.fresh
        self._job = JOB if after is None or goes_on else JOB_AGAIN
        if after is None:
            self.world = World(scenario.world_seed, keep_log=keep_log)
            self.external = ExternalSystem(self.world)
            self.external.inputs = make_inputs(scenario.workload)
            self.disk = parts.disk(self.world)
        else:
            self.world, self.external, self.disk = after.world, after.external, after.disk
        self._shown_before = tuple(self.external.committed)
        self.ledger = Ledger(self.world, self.disk, self._job)
        if after is not None and goes_on:
            self.ledger = after.ledger
            self.ledger.run_ended(after.kept())
            self.ledger.on_durable = []
        self._durable_before = len(self.ledger.durable)
        self._has_nothing_to_do = after is not None and goes_on and after.has_read_all
        self._make_hosts()
        self._make_checkers()
        if after is not None and goes_on:
            self.messages.go_on_from(after.messages, kept=bool(after.kept()) or after.has_stopped)
        self.stages: tuple[Stage, ...] = ()

    def _make_hosts(self) -> None:
        world, scenario = self.world, self._scenario
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
            terms=self.program or (TakenOver(self.disk, self._job) if scenario.lasting else None),
        )
        self.user = User(world, disk=self.disk, ledger=self.ledger, masters=self.masters)
        self.user.on_drain = lambda: setattr(self.external, "is_drained", True)

    def _make_checkers(self) -> None:
        world, scenario, after = self.world, self._scenario, self._after
        self.messages = MessageChecker(world, self.ledger, master=MASTER, faults=scenario.faults)
        self.regions = RegionChecker(world, master=MASTER)
        self.aborted = AbortedFiles(world, self.disk, self._job, master=MASTER, faults=scenario.faults)
        self.network.taps += [self.messages, self.regions, self.aborted]
        if self._keeps_log:
            self.network.taps.append(watch_messages(world, master=MASTER))
        CommitChecker(world, self.ledger, self.messages, self.external)
        self.external.on_unwaited = lambda text: world.violate(Rule.WAITS, text)
        self.groups = GroupChecker(world, self.ledger, self.messages, self.external)
        if after is not None:
            self.groups.go_on_from(after.groups)
        self._watch_parts_on_driver()
        self._given_up: StartedOver | None = None
        if self._starts_over:
            self._given_up = StartedOver(world, self.disk, JOB)
            self.ledger.on_durable.append(self._given_up.checkpoint_durable)
        self.network.taps.append(
            WaitChecker(
                world, calm_from_ms=scenario.calm_from_ms, view=self._view, living=lambda: tuple(self.host.living)
            )
        )
        self.messages.on_attempt = self._attempt_began
        self.messages.on_run = lambda: self.user.happened(Moment.RUN)
        self.messages.on_failure = lambda: self.user.happened(Moment.FAILURE)

    def run(self) -> None:
        """Run the job through all phases."""
        world, scenario = self.world, self._scenario
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
            return
        self.masters.start()
        ended = world.run(lambda: self.masters.has_ended, until_us=scenario.deadline_ms * 1_000)
        if world.stopped:
            return
        if not ended:
            world.violate(Rule.LIVENESS, f"the job had not ended by {scenario.deadline_ms} ms: {self._state()}")
            return
        self.masters.leave()
        self._is_over = True
        world.note(MASTER, f"job ended: {self._outcome}")
        if not world.run(lambda: self.host.is_empty, until_us=world.now_us + QUIET_US) and not world.stopped:
            names = ", ".join(str(slot) for slot in self.host.living)
            world.violate(Rule.LIVENESS, f"slots did not leave when the job had ended: {names}")
        self._check_end()

    def result(self) -> Result:
        """How the world went."""
        return Result(
            seed=self._scenario.seed,
            violations=tuple(self.world.violations),
            outcome=self._outcome,
            crashes=self.host.crashes,
            takeovers=self.masters.crashes,
            checkpoints=len(self.ledger.durable) - self._durable_before,
            attempts=self.messages.attempts,
            restores=self.messages.restores,
            repairs=self.messages.repairs,
            replaced=self.regions.replaced,
            granted=tuple(asked.wish for asked in self.user.asked if asked.is_granted),
            refused=tuple(asked.wish for asked in self.user.asked if not asked.is_granted),
            virtual_ms=self.world.now_ms,
            digest=self.world.digest,
            header=tuple(self._scenario.header()),
            log=tuple(self.world.log),
        )

    # --- the parts -----------------------------------------------------------------------

    def _watch_parts_on_driver(self) -> None:
        world, ledger, external, workload = self.world, self.ledger, self.external, self._scenario.workload
        if workload.on_driver is not None:
            self.network.taps.append(SplitChecker(world, ledger, external, workload, master=MASTER))
        if self._scenario.hook is not None:
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
        again, world = self._scenario.again, self.world
        if again is None or world.stopped or world.violations or self._outcome is None:
            return None
        if self._scenario.rerun is not None:
            self._calm_down()
            world.note("user", f"runs the program again, on {again.parallelism} slots: {self._scenario.rerun}")
            scenario = self._scenario.second(again, from_ms=world.now_ms)
            return Simulation(scenario, self._parts, keep_log=self._keeps_log, after=self)
        savepoints = [asked.savepoint for asked in self.user.asked if asked.savepoint is not None]
        found = find_origin(self.disk, layout.job_folder(self._job), kept=self.kept(), savepoints=savepoints)
        # A job that starts from an older snapshot would show again what was committed after that snapshot.
        if found is None or found[0] < max(self.messages.relied_on, default=0):
            return None
        self._calm_down()
        origin = take_origin(self.disk, found[1], again)
        world.note("user", f"starts another job from {origin.folder}, on {again.parallelism} slots")
        scenario = self._scenario.second(again, from_ms=world.now_ms)
        return Simulation(scenario, self._parts, keep_log=self._keeps_log, after=self, origin=origin)

    def _calm_down(self) -> None:
        from_us = max(self.world.now_us, self._scenario.calm_from_ms * 1_000)
        self.world.at(from_us, lambda: None)
        self.world.run(lambda: self.world.now_us >= from_us, until_us=from_us)

    def _begin(self) -> bool:
        """Read the snapshot that the job starts from, if there is an `origin`. Returns whether the job can begin."""
        origin = self._origin
        if origin is None:
            return True
        self.ledger.started_from = origin.metadata
        actor = Actor(self.world, "user")
        store = self.disk.store(actor)
        restore = Restore(path=f"/{origin.folder}", claim=origin.claim, rules=MatchingRules())
        try:
            with self.world.as_actor(actor):
                self._point = starting_point(store, restore, self._make_plan(), self._scenario.settings)
                record_start(FileRecords(store, layout.job_folder(self._job), term=None), self._point)
        except UsageError as error:
            self.world.violate(Rule.RESTORABLE, f"no job can be started from {origin.folder}: {error}")
            return False
        return True

    def _make_plan(self) -> Plan:
        scenario = self._scenario
        plan = make_plan(
            scenario.workload,
            world=scenario.seed,
            parallelism=scenario.settings.parallelism,
            sink=self._make_sink,
        )
        return plan if scenario.hook is None else plan.with_hooks((HOOK,))

    def _make_program(self) -> Program:
        settings = self._scenario.settings
        return Program(self.disk, self._job, fresh=self._starts_over, make_plan=self._make_plan, settings=settings)

    def _workers(self, actor: Actor) -> Callable[[str], SimBackground]:
        on_driver = self._scenario.workload.on_driver
        pace = self.pace if on_driver is None else Pace(self.world, work_us=on_driver.work_us)
        return lambda _operator: SimBackground(actor, pace)

    def _make_sink(self, name: str) -> Sink:
        world, on_driver = self._scenario.seed, self._scenario.workload.on_driver
        if on_driver is None or name not in on_driver.sinks:
            return self._parts.sink(world, name)
        return self._parts.driver_sink(world, name, cleans_by_attempt=on_driver.cleans_by_attempt)

    def _build_master(self, actor: Actor, tenure: Tenure | None) -> MasterDriver:
        scenario = self._scenario
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
            job=self._job,
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
            job=self._job,
            settings=self._scenario.settings,
            ports=SlotPorts(
                clock=SimClock(actor),
                transport=transport,
                background=SimBackground(actor, self.pace),
                store=self.disk.store(actor),
                slice_rows=self._scenario.slice_rows,
                make_backend=SharingBackend if self._scenario.workload.shares_files else None,
            ),
            address=SlotAddress(
                host="sim", pid=self.world.random.randint(2, 99_999), ipc_address=transport.ipc_address
            ),
            master_address=f"{ADDRESS_PREFIX}{MASTER}",
        )

    # --- the end -----------------------------------------------------------------------

    @property
    def _outcome(self) -> JobState | None:
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

    def _state(self) -> str:
        if self.masters.driver is None:
            return "no driver ever came up"
        view = self.masters.driver.view()
        failures = "; ".join(f"epoch {failure.epoch}: {failure.text}" for failure in view.failures[-3:])
        return f"{view.state.value} in epoch {view.epoch}, {len(self.ledger.durable)} checkpoints, {failures}"

    def _check_end(self) -> None:
        world, outcome = self.world, self._outcome
        if not self._is_legal(outcome):
            world.violate(Rule.LIVENESS, f"the job ended as {outcome}: {self._state()}")
        if self._after is not None and self._origin is not None and self.program is None:
            self._check_both(self._after, self._origin)
            return
        if self._after is not None:
            self._check_rerun(self._after)
            return
        self._check_rows()
        self.user.check_end(outcome)
        if self.masters.ended_as is None:
            self._check_files(self.user.given)

    def _check_files(self, given: Sequence[str]) -> None:
        kept, outcome = self.kept(), self._outcome
        # A later run of the job must not use the ids of kept checkpoints again, nor the id of a savepoint that was to
        # stop the job.
        stopped = any(record.kind.is_synchronous for record in self.ledger.records.values())
        keeps_ids = bool(kept) or (stopped and outcome is not JobState.FINISHED) or self._has_terms
        allowed = [*given, *self._strays()]
        if self.program is not None:
            # The records of results that savepoints promise stay: a run that goes on must not drop these results.
            places = (NAMES, layout.promised_folder(layout.job_folder(self._job)))
            allowed += [path for path in self.disk.files if any(is_below(path, place) for place in places)]
        check_files(self.world, self.disk, self._job, kept=kept, allowed=allowed, keeps_ids=keeps_ids)

    @property
    def _has_terms(self) -> bool:
        """Whether the job keeps records of its drivers: such a job may begin again, and uses no id a second time."""
        return self.program is not None or self._scenario.lasting

    def _check_rows(self) -> None:
        scenario, workload = self._scenario, self._scenario.workload
        stop = self.user.stopped
        savepoint = stop.savepoint if stop is not None else None
        inputs, complete, rule = self.external.inputs, self._outcome is JobState.FINISHED, Rule.EXACTLY_ONCE
        newest = self.newest_record
        if (
            newest is not None
            and newest.kind is SnapshotKind.TERMINATE
            and newest.checkpoint in self.messages.relied_on
        ):
            # A job that fails after it was drained restarts from its savepoint, and ends again.
            savepoint = newest
        if savepoint is not None:
            rule = Rule.STOPPED
            holds_back = workload.shape.has_windows or workload.shape is Shape.WAITS
            if holds_back and savepoint.kind is SnapshotKind.SUSPEND:
                # Which windows were still open, and which rows still waited, cannot be seen from outside. So rows may
                # be missing, but no window that was shown may lack a record.
                complete = False
            else:
                content = decode_metadata(savepoint.path, self.disk.files[savepoint.path])
                inputs = read_before(workload, content, inputs)
        elif self.user.may_have_stopped and not self.has_gone_on_drained:
            complete = False
        # Every further attempt reads again the records behind the barriers of the checkpoint that it begins from.
        repeats = scenario.settings.checkpoint.mode is Mode.AT_LEAST_ONCE and self.messages.attempts > 1
        standard = Standard(
            complete=complete,
            repeats=repeats,
            rule=Rule.AT_LEAST_ONCE if repeats and rule is Rule.EXACTLY_ONCE else rule,
        )
        committed = list(self.external.committed.values())
        expected = expected_of_stages(workload, inputs, self.stages)
        if workload.shape.has_windows and self.has_gone_on_drained:
            check_parts(self.world, shown_by(committed), expected, standard)
        else:
            check_output(
                self.world,
                shown_by(committed),
                expected,
                standard,
                windows=workload.shape.has_windows,
                possible=expected_of_stages(workload, self.external.inputs, self.stages),
            )
        check_order(self.world, committed, workload)

    def _check_both(self, first: Simulation, origin: Origin) -> None:
        """Check the rows that both jobs have shown, and the files that they have left."""
        settings, finished = self._scenario.settings, self._outcome is JobState.FINISHED
        repeats = settings.checkpoint.mode is Mode.AT_LEAST_ONCE
        committed = list(self.external.committed.values())
        rule = Rule.AT_LEAST_ONCE if repeats else Rule.EXACTLY_ONCE
        check_both(
            self.world,
            shown_by(committed),
            self._scenario.workload,
            inputs=self.external.inputs,
            stages=(*first.stages, Stage(parallelism=settings.parallelism, metadata=origin.content)),
            standard=Standard(complete=finished, repeats=repeats, rule=rule),
            in_parts=origin.is_drained or first.has_gone_on_drained,
        )
        check_order(self.world, committed, self._scenario.workload)
        if finished:
            untouched = check_untouched(self.world, self.disk, origin)
            allowed = [*untouched, *self._strays(), *first.late_outcomes()]
            check_files(self.world, self.disk, self._job, kept=(), allowed=allowed, keeps_ids=self._has_terms)
        elif not self.ledger.durable:
            check_spared(self.world, self.disk, origin)

    def _look_at_origin(self, program: Program) -> None:
        """Remember the checkpoint that a second run goes on from."""
        found, again = program.found, Again(parallelism=1, claim=Claim.NO_CLAIM, moved=False, safety_ms=0)
        goes_on = found is not None and found.outcome is None and bool(found.completed)
        if self._after is not None and self._origin is None and found is not None and goes_on:
            self._origin = take_origin(self.disk, found.completed[-1].location.strip("/"), again)

    def _check_rerun(self, first: Simulation) -> None:
        """Check the rows that both runs have shown, and the files that they have left."""
        settings, finished = self._scenario.settings, self._outcome is JobState.FINISHED
        new = [shown for token, shown in self.external.committed.items() if token not in self._shown_before]
        repeats = settings.checkpoint.mode is Mode.AT_LEAST_ONCE
        rule = Rule.AT_LEAST_ONCE if repeats else Rule.EXACTLY_ONCE
        standard = Standard(complete=finished, repeats=repeats, rule=rule)
        workload, inputs = self._scenario.workload, self.external.inputs
        origin = self._origin
        last = Stage(parallelism=settings.parallelism, metadata=None if origin is None else origin.content)
        if self._has_nothing_to_do:
            if new or self.host.started:
                self.world.violate(rule, f"a finished job ran again, and committed {len(new)} transactions")
        elif origin is not None:
            committed = list(self.external.committed.values())
            stages = (*first.stages, last)
            check_both(
                self.world,
                shown_by(committed),
                workload,
                inputs=inputs,
                stages=stages,
                standard=standard,
                in_parts=origin.is_drained or self.has_gone_on_drained,
            )
            check_order(self.world, committed, workload)
        else:
            expected = expected_of_stages(workload, inputs, (last,))
            check_output(self.world, shown_by(new), expected, standard, windows=workload.shape.has_windows)
            check_order(self.world, new, workload)
        first.user.check_end(first._outcome)
        if self._given_up is not None:
            self._given_up.check_end(self.ledger.durable)
        if self.masters.ended_as is None:
            left = [] if self._given_up is None else [p for p in self.disk.files if is_below(p, layout.job_folder(JOB))]
            self._check_files([*first.user.given, *first._strays(), *first.late_outcomes(), *left])

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
        if newest is None or self._outcome is not JobState.FINISHED:
            return False
        metadata = decode_metadata(newest.path, self.ledger.durable[newest.checkpoint])
        return newest.kind.is_synchronous or metadata.is_drained

    @property
    def has_read_all(self) -> bool:
        """Whether the job has finished, and not by a stop: the sources have no more data."""
        return self._outcome is JobState.FINISHED and not self.has_stopped

    @property
    def has_gone_on_drained(self) -> bool:
        """Whether a run of the program went on from a savepoint that had drained the job, with a driver that was not
        the first: a window may come in parts then."""
        newest = self.newest_record
        drained = [r for r in self.ledger.records.values() if r.kind is SnapshotKind.TERMINATE]
        return self.program is not None and any(r is not newest for r in drained)

    def late_outcomes(self) -> list[str]:
        """The outcomes that drivers recorded which had slept past the end of the job, after their job was taken over.
        Such a driver records an outcome before it looks whether it has the job. The outcome lies in a place of its own
        term, which no driver reads."""
        outcomes = layout.outcome_folder(layout.job_folder(self._job))
        aside = [actor.name for actor in self.masters.aside]
        return [path for path, writer in self.disk.writers.items() if is_below(path, outcomes) and writer in aside]

    def _strays(self) -> list[str]:
        """The files that may be left although no checkpoint refers to them. Slots of earlier drivers, and drivers whose
        job was taken over, may write files after the end of the job was recorded: no driver can tell these processes to
        stop. The files that these processes wrote before the end was recorded must be cleaned up. Also, a driver may
        have begun a savepoint and died before the driver had answered the user."""
        old = [str(slot) for slot in self.host.started if slot.incarnation < self.masters.first_incarnation]
        old += [actor.name for actor in self.masters.aside]
        outcomes = f"{layout.outcome_folder(layout.job_folder(self._job))}/"
        since_us = min((at for path, at in self.disk.written_us.items() if path.startswith(outcomes)), default=0)
        late = [path for path, at_us in self.disk.written_us.items() if at_us >= since_us]
        written = [path for path in late if self.disk.writers[path] in old]
        return written + [path for path in self.disk.files if self.user.may_have_begun(path)]

    def _is_legal(self, outcome: JobState | None) -> bool:
        if outcome is JobState.CANCELLED:
            wishes = [request.wish for request in self._scenario.requests]
            return self._scenario.cancel_at_ms is not None or Wish.CANCEL in wishes
        if outcome is JobState.FAILED and isinstance(self._scenario.settings.restart, NoRestart):
            return True
        if outcome is JobState.FAILED:
            # A job whose slots keep dying before the job has run at all gives up: its environment is taken to be wrong.
            lost = self.host.losses + self.network.cuts
            never_came_up = not self.messages.ever_ran and lost >= START_FAILURES_BEFORE_FIRST_RUN
            return never_came_up or self._fails_fast
        return outcome is JobState.FINISHED

    @property
    def _fails_fast(self) -> bool:
        """Whether errors of the program may have ended the job. They do so only if the user has chosen no restart
        strategy."""
        errors = self.messages.program_errors
        return self._scenario.settings.restart is None and (0 in errors or len(errors) >= SAME_FAILURES)

    def kept(self) -> list[CheckpointId]:
        """The checkpoints that must outlive the job."""
        checkpoint, outcome = self._scenario.settings.checkpoint, self._outcome
        keeps = {
            Retention.DELETE: (),
            Retention.KEEP_ON_FAILURE: (JobState.FAILED,),
            Retention.KEEP: (JobState.FAILED, JobState.CANCELLED),
        }
        if outcome not in keeps[checkpoint.retention]:
            return []
        return self.ledger.retained(checkpoint.num_retained)
