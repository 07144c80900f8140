"""The driver of the job master: the loop, and what the master consists of.

The master lives on the Spark driver, on a thread of its own; slots call the master over the transport. Work that blocks
(writing files, reading a checkpoint) runs in the background, and its result comes back as an event.

    slots ◄──► slot_links ──► hearing ──► decisions: the lifecycle of the job      ──► job_effects ──► deployment
                                                     and the checkpoint coordinator ──► effects
    users ───► requests ────────────────►                                                    │
                                          driver_parts: operator coordinators and hooks ◄────┤
                                          closing: the end of the job ◄──────────────────────┘

All work that stores, commits or deletes goes through a guard (`guard.py`). The guard lets the work run only while this
driver has the job.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.api.hold import Hold
from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.options import CoordinatorOptions
from penstock.core.full_steps import EndSource
from penstock.core.ids import Epoch, Instant, JobId, TaskId
from penstock.core.job.events import (
    AttemptFailed,
    CancelRequested,
    FailureCause,
    JobStarted,
    JobState,
    LeadershipLost,
    SlotGone,
)
from penstock.core.messages import EndData
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Tenure
from penstock.core.views import CheckpointDetails
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import Store
from penstock.runtime.facts import JobFacts
from penstock.runtime.full_steps import UnneededSources
from penstock.runtime.master.alignment import GroupTimes
from penstock.runtime.master.closing import Closing
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.master.deployment import Deployment
from penstock.runtime.master.driver_parts import DriverParts
from penstock.runtime.master.effects import Answers, CheckpointEffects
from penstock.runtime.master.ending import Ending
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.hearing import Hearing
from penstock.runtime.master.hook_calls import MasterHooks
from penstock.runtime.master.job_effects import JobEffects
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.landed_inputs import LandedInputs
from penstock.runtime.master.operator_coordinators.making import Calls, make_coordinators
from penstock.runtime.master.ports import MasterPorts as MasterPorts
from penstock.runtime.master.progress import JobProgress, MasterStuck
from penstock.runtime.master.readings import Reading
from penstock.runtime.master.requests import (
    Answer,
    RescaleAnswer,
    RescaleRequests,
    SnapshotRequests,
    refusal_to_rescale,
)
from penstock.runtime.master.requests import SnapshotRequest as SnapshotRequest
from penstock.runtime.master.saved_results import SavedResults
from penstock.runtime.master.slot_links import SlotLinks
from penstock.runtime.master.starting import make_lifecycle
from penstock.runtime.pulse import Pulse
from penstock.runtime.views import JobView, slot_view
from penstock.settings import JobSettings
from penstock.storage.records import FileRecords

log = logging.getLogger(__name__)


class MasterDriver:
    """Takes one job from its start to its end, until nothing is left to do for the job."""

    def __init__(
        self,
        *,
        job: JobId,
        plan: Plan,
        settings: JobSettings,
        ports: MasterPorts,
        draws: tuple[float, ...],
        tenure: Tenure | None = None,
        started_from: CompletedCheckpoint | None = None,
    ) -> None:
        """`tenure` is what the driver found when it took the job over; None for a job that ends with its driver and
        cannot go on. `started_from` is the snapshot that a new job begins with; a job that was taken over has this
        snapshot on record."""
        found = tenure if tenure is not None else Tenure()
        self._job = job
        self._ports = ports
        self._tenure = tenure
        self._decisions = _make_decisions(job, plan, settings, found, started_from, draws)
        self._links = SlotLinks(ports.transport, ports.slots, self._decisions)
        self._storage = self._make_storage()
        # Connectors and hooks cannot tell which driver has the job, so this guard looks before each piece of their
        # work.
        self._guard = Guard(Hold(self._storage.records.check), self._taken_over)
        self._parts = self._make_parts(plan, settings, found)
        self._progress = JobProgress(job, plan, stuck_after_ms=settings.slot.stuck_after_ms, lines=ports.lines)
        self._deployment = Deployment(
            plan,
            found,
            storage=self._storage,
            decisions=self._decisions,
            links=self._links,
            parts=self._parts,
            progress=self._progress,
        )
        self._requests = SnapshotRequests(self._decisions.feed_coordinator)
        self._rescales = RescaleRequests(feed=self._decisions.feed_job, request=self.request)
        self._closing = self._join(LandedInputs(self._storage.folder, plan, ports.landing or ports.store))
        self._pulse = Pulse(
            self._links.links,
            stuck_after_ms=settings.slot.stuck_after_ms,
            whereabouts=ports.whereabouts,
            report=MasterStuck(job).tell,
        )

    # --- what the master consists of -----------------------------------------------------

    def _make_storage(self) -> JobStorage:
        ports, term = self._ports, self._tenure.term if self._tenure is not None else None
        return JobStorage(
            job=self._job,
            store=ports.store,
            records=ports.records or FileRecords(ports.store, layout.job_folder(self._job), term=term),
            background=ports.background,
            guard=Guard(Hold(), self._taken_over),
        )

    def _make_parts(self, plan: Plan, settings: JobSettings, found: Tenure) -> DriverParts:
        decisions, ports = self._decisions, self._ports
        workers = ports.workers or (lambda _: ports.background)
        calls = Calls(decisions.feed_coordinator, self._links.send_to_task, decisions.fail_with, self._guard)
        return DriverParts(
            coordinators=make_coordinators(self._job, plan, found, workers, calls),
            hooks=MasterHooks(
                {name: ports.hooks[name] for name in plan.hooks},
                timeout_ms=settings.checkpoint.hook_timeout_ms,
                guard=self._guard,
                background=workers,
                feed=decisions.feed_coordinator,
                fail=decisions.fail_with,
            ),
            saved=SavedResults(self._storage.folder, ports.store, taken_over=found.term > 0),
            groups=GroupTimes(self._links.send_to_task),
            unneeded=UnneededSources(self._end_source),
        )

    def _end_source(self, effect: EndSource) -> None:
        """Nothing needs the records of a source any more: no more splits are looked for, and its tasks end."""
        self._parts.coordinators.not_needed(effect.operator)
        for task, epoch in effect.tasks:
            self._links.send_to_task(task, EndData(epoch=epoch, task=task))

    def _join(self, inputs: LandedInputs) -> Closing:
        """Join the parts: set who performs the effects of the machines and who hears the messages of slots. Returns the
        part that ends the job."""
        decisions, links, parts = self._decisions, self._links, self._parts
        closing = Closing(
            Ending(
                storage=self._storage,
                cleaning=self._guard,
                plan=self._deployment.plan,
                landing=self._ports.landing,
                inputs=inputs,
                saved=parts.saved,
            ),
            tenure=self._tenure,
            is_run=self._ports.is_run,
            decisions=decisions,
            parts=parts,
            guard=self._guard,
            requests=self._requests,
        )
        hearing = Hearing(
            decisions,
            deployment=self._deployment,
            coordinators=parts.coordinators,
            groups=parts.groups,
            unneeded=parts.unneeded,
            progress=self._progress,
            closing=closing,
        )
        job_effects = JobEffects(
            decisions,
            links=links,
            deployment=self._deployment,
            parts=parts,
            closing=closing,
            rescales=self._rescales,
            progress=self._progress,
        )
        checkpoint_effects = CheckpointEffects(
            storage=self._storage,
            master=Answers(
                feed=decisions.feed_coordinator,
                fail=self._fail_attempt,
                fail_job=decisions.fail_with,
                answer=closing.answer,
                send=links.send_to_task,
            ),
            coordinators=parts.coordinators,
            hooks=parts.hooks,
            inputs=inputs,
            saved=parts.saved,
            when_safe=self._ports.when_safe,
        )
        self._readings = checkpoint_effects.readings
        links.hear_with(hearing.hear, hearing.hear_dump)
        decisions.perform_with(job_effects.perform, checkpoint_effects.perform)
        return closing

    # --- the driver's contract -----------------------------------------------------------

    def start(self, now: Instant) -> None:
        """Begin: ask for slots; or only clean up, if the outcome of the job is on record."""
        self._decisions.now = now
        if self._tenure is not None and self._tenure.outcome is not None:
            self._closing.end_again(self._tenure.outcome)
        else:
            self._decisions.feed_job(JobStarted())

    def cancel(self) -> None:
        """End the job as soon as possible. Must be called on the loop's thread."""
        if self._closing.has_no_slot:
            # The job has ended, perhaps with an earlier driver, and this driver only cleans up: the outcome stays as it
            # is.
            return
        self._decisions.now = self._ports.clock.now()
        self._decisions.feed_job(CancelRequested())

    def lose(self, why: str = "another driver has taken the job over") -> None:
        """Another driver has the job, or must take the job over: let the slots go; store, commit and delete nothing
        more. `why` is for the log. Must be called on the loop's thread."""
        # If the outcome is on record, the job has ended with this driver.
        if not self._closing.is_shut_down:
            log.warning("job %s: %s", self._job, why, extra={"job": self._job})
            self._let_go()
            self._decisions.feed_job(LeadershipLost())

    def request(self, request: SnapshotRequest, answer: Answer) -> None:
        """Take a checkpoint or savepoint, or stop with a savepoint; `answer` is called once, from a turn. Must be
        called on the loop's thread."""
        if self._closing.has_no_slot:
            answer(RequestFailure(reason=CheckpointFailure.COORDINATOR_SHUTDOWN, text="the job has ended"))
            return
        self._decisions.now = self._ports.clock.now()
        self._requests.ask(request, answer)

    def rescale(self, parallelism: int, answer: RescaleAnswer) -> None:
        """Change the parallelism of the running job; `answer` is called once, from a turn. Must be called on the loop's
        thread."""
        plan = self._deployment.plan
        if self._closing.has_no_slot:
            refusal: str | None = "the job has ended"
        else:
            refusal = refusal_to_rescale(parallelism, plan, self._decisions.coordinator)
        if refusal is not None:
            answer(refusal)
            return
        self._progress.chronicle.rescale_asked(plan.parallelism, parallelism, self._ports.clock.now())
        self._rescales.ask(plan.rescaled(parallelism), answer)

    def hold_newest(self) -> Reading | None:
        """Keep the files of the newest completed checkpoint until `let_go`. None if there is no completed checkpoint,
        or if the job ends. Must be called on the loop's thread."""
        retained = self._decisions.coordinator.retained
        return self._readings.hold(retained[-1], self._ports.clock.now()) if retained else None

    def let_go(self, reading: Reading) -> None:
        """The checkpoint has been read. Must be called on the loop's thread."""
        self._readings.let_go(reading.number)

    def turn(self, now: Instant) -> Instant | None:
        """Handle what has arrived and do what follows; returns when `turn` must be called again at the latest."""
        self._decisions.now = now
        self._pulse.turned(now)
        self._links.receive(now)
        self._ports.background.collect()
        self._take_ended_slots()
        self._decisions.tick()
        self._parts.turn(now)
        self._deployment.turn()
        if self._closing.is_shut_down:
            self._readings.end()
        self._readings.turn(now)
        self._closing.turn(now)
        self._progress.chronicle.is_in(self.outcome or self._decisions.lifecycle.state, now)
        if self.outcome is not None:
            return None
        waiting = (self._decisions, self._closing, self._parts, self._readings)
        times = [self._links.keep_alive(now), *(part.next_deadline() for part in waiting)]
        return min((t for t in times if t is not None), default=None)

    def beat(self, now: Instant) -> None:
        """Tell the slots that the driver lives, if the loop has not turned for a while. To be called several times a
        second, from a thread beside the loop."""
        self._pulse.beat(now)

    def validate(self) -> None:
        """Raise `InvariantError` if a machine's state contradicts itself."""
        self._decisions.validate()
        self._closing.validate()

    # --- what users see ------------------------------------------------------------------

    @property
    def outcome(self) -> JobState | None:
        """How the job ended; None as long as anything is left to do."""
        return self._closing.outcome

    @property
    def cause(self) -> FailureCause | None:
        """Why the job failed; None if the job has not failed."""
        return self._closing.cause

    @property
    def is_run(self) -> bool:
        """Whether the job ends with its driver, and goes on when its program is run again."""
        return self._ports.is_run

    @property
    def goes_on_from(self) -> CompletedCheckpoint | None:
        """The snapshot that the ended job goes on from when its program is run again; None if the job does not go
        on."""
        return self._closing.goes_on_from

    @property
    def stage(self) -> tuple[JobState, Epoch, int]:
        """The state, the epoch and the number of restarts. A view that shows other values is out of date."""
        lifecycle = self._decisions.lifecycle
        return lifecycle.state, lifecycle.epoch, self._progress.restarts

    def view(self) -> JobView:
        """The job as it is now, frozen. Must be called on the loop's thread."""
        lifecycle, registered = self._decisions.lifecycle, self._links.registered
        return JobView(
            job=self._job,
            state=self.outcome or lifecycle.state,
            epoch=lifecycle.epoch,
            restarts=self._progress.restarts,
            slots=tuple(slot_view(slot, registered.get(slot)) for slot in lifecycle.slots),
            restored_checkpoint=self._deployment.restored_id,
            checkpoints=self._decisions.coordinator.view(),
            failures=tuple(self._progress.failures),
            spares=tuple(slot_view(slot, registered.get(slot)) for slot in lifecycle.spares),
            stuck=self._progress.stuck_of((*lifecycle.slots, *lifecycle.spares)),
            finished_tasks=lifecycle.finished_tasks,
            **vars(self._progress.totals()),
        )

    @property
    def store(self) -> Store:
        """Where the checkpoints are kept."""
        return self._ports.store

    @property
    def plan(self) -> Plan:
        """The plan of the attempt that was deployed last, or is being deployed. May be asked for on any thread."""
        return self._deployment.plan

    def checkpoints(self) -> tuple[CheckpointDetails, ...]:
        """The checkpoints that the coordinator remembers, newest first, with the part of each subtask. Belongs to the
        loop's thread."""
        return self._decisions.coordinator.details()

    def facts(self) -> JobFacts:
        """Everything that is known about the job, frozen. Belongs to the loop's thread."""
        lifecycle, registered, progress = self._decisions.lifecycle, self._links.registered, self._progress
        slots = progress.slot_facts(lifecycle.slots, registered, spare=False)
        slots += progress.slot_facts(lifecycle.spares, registered, spare=True)
        return JobFacts(
            now=self._ports.clock.now(),
            view=self.view(),
            plan=self._deployment.plan,
            checkpoints=self.checkpoints(),
            entered=dict(progress.chronicle.entered),
            attempts=tuple(progress.chronicle.attempts),
            tasks=dict(progress.chronicle.tasks),
            rescales=tuple(progress.chronicle.rescales),
            slots=tuple(slots),
        )

    # --- what goes wrong -----------------------------------------------------------------

    def _take_ended_slots(self) -> None:
        for ended in self._ports.slots.ended():
            self._links.has_ended(ended.slot)
            may_be_left = self._tenure is not None and not self._ports.is_run and not self._closing.is_decided
            if ended.host_gone and may_be_left:
                self.lose(f"this driver cannot go on with the job, and leaves the job to another driver: {ended.error}")
            self._decisions.feed_job(SlotGone(slot=ended.slot, error=ended.error, host_gone=ended.host_gone))

    def _fail_attempt(self, text: str, task: TaskId | None) -> None:
        """The checkpoint coordinator says that the region of `task` must restart; if `task` is None, the whole attempt
        has failed."""
        if task is None:
            self._decisions.fail_with(FailureCause(text=text))
            return
        operator = self._deployment.plan.vertex(task.vertex).name
        cause = FailureCause(text=text, operator=operator, subtask=task.subtask)
        epoch = self._decisions.lifecycle.epoch_of(task)
        self._decisions.feed_job(AttemptFailed(epoch=epoch, cause=cause, task=task))

    def _taken_over(self) -> None:
        """A guard has found out that another driver has the job."""
        self._let_go()
        self.lose()

    def _let_go(self) -> None:
        """From here on nothing is stored, committed or deleted, even if other parts still ask for such work."""
        self._guard.hold.let_go()
        self._storage.guard.hold.let_go()


def _make_decisions(
    job: JobId,
    plan: Plan,
    settings: JobSettings,
    found: Tenure,
    started_from: CompletedCheckpoint | None,
    draws: tuple[float, ...],
) -> Decisions:
    completed = found.completed or (() if started_from is None else (started_from,))
    # All settings of the job are written into each checkpoint.
    options = CoordinatorOptions(job_settings=msgspec.to_builtins(settings))
    coordinator = CheckpointCoordinator(
        job, settings.checkpoint, checkpoint_graph(plan), found.next_id, completed, options
    )
    return Decisions(make_lifecycle(plan, settings, found, draws), coordinator, draws=draws, now=Instant(0))
