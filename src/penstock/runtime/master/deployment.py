"""Deploys an attempt of a job: finds the checkpoint that the tasks start from, tells the slots, and has the tasks run.

    DeployTasks ──► no storage work of checkpoints is under way ──► the newest checkpoint is read
                ──► all hooks have gone back to that checkpoint ──► Deploy to every slot
    RunTasks    ──► Run to every slot

The attempt may fail, or the job may be cancelled, at any of these steps. Then the later steps are left out.
"""

from __future__ import annotations

import logging
from functools import partial

import cloudpickle

from penstock.core.coordinator.events import AttemptStarted, ScheduleAllowed, TaskRunning
from penstock.core.errors import JobTakenOver, fault_of
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Epoch, OperatorId
from penstock.core.job.events import AttemptRescaled, DeployTasks, FailureCause, JobState, RunTasks
from penstock.core.messages import Run
from penstock.core.recovery.assign import NOTHING_RESTORED, Assignment
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.tenure import Tenure, attempt_of
from penstock.plan.checkpoint_graph import checkpoint_graph
from penstock.plan.graph import Plan
from penstock.ports import WorkResult
from penstock.runtime.master.decisions import Decisions
from penstock.runtime.master.driver_parts import DriverParts
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.orders import Orders, deployments
from penstock.runtime.master.progress import JobProgress
from penstock.runtime.master.slot_links import NO_EPOCH, SlotLinks
from penstock.runtime.master.starting import restore_newest

log = logging.getLogger(__name__)


class Deployment:
    """The plan of a job, and the attempt in which the plan was deployed last."""

    def __init__(
        self,
        plan: Plan,
        found: Tenure,
        *,
        storage: JobStorage,
        decisions: Decisions,
        links: SlotLinks,
        parts: DriverParts,
        progress: JobProgress,
    ) -> None:
        """`found` is what the driver found when its term began."""
        self.plan = plan
        self.pickled_plan: bytes = cloudpickle.dumps(plan)
        self.attempt = NO_EPOCH
        """The epoch in which all tasks were deployed last. Tasks of a restarted region have a later epoch."""
        self._found = found
        self._storage = storage
        self._decisions = decisions
        self._links = links
        self._parts = parts
        self._progress = progress
        self._graph = checkpoint_graph(plan)
        self._rescaled_graph: CheckpointGraph | None = None
        """The graph after a rescale, until the checkpoint coordinator has been told; None: the coordinator knows the
        graph."""
        self._waiting: DeployTasks | None = None
        self._restored: CompletedCheckpoint | None = None

    @property
    def restored_id(self) -> CheckpointId | None:
        """The checkpoint that the attempt started from; None: the attempt started from the beginning of the job."""
        return self._restored.checkpoint if self._restored is not None else None

    # --- what the lifecycle says -------------------------------------------------------------

    def ask(self, effect: DeployTasks) -> None:
        """Have tasks deployed, by the next `turn` that can deploy them."""
        self._waiting = effect

    def give_up(self) -> None:
        """The attempt is over: its tasks are not deployed any more."""
        self._waiting = None

    def rescaled(self, effect: AttemptRescaled) -> None:
        """The next attempt has another parallelism."""
        self.plan = self.plan.rescaled(effect.slots)
        self.pickled_plan = cloudpickle.dumps(self.plan)
        self._graph = self._rescaled_graph = checkpoint_graph(self.plan)

    def run(self, effect: RunTasks) -> None:
        """All slots are ready: have the tasks run."""
        for slot in effect.slots:
            self._links.send(slot, Run(epoch=effect.epoch))
        # The schedule is allowed first: it begins with the last task that runs, and needs the draw of this attempt by
        # then.
        self._decisions.feed_coordinator(ScheduleAllowed(draw=self._decisions.draw_of(effect.epoch)))
        for task in self.plan.tasks if effect.tasks is None else effect.tasks:
            self._decisions.feed_coordinator(TaskRunning(task=task, epoch=effect.epoch))
        self._parts.coordinators.run()
        restored = "its beginning" if self._restored is None else self._restored.title
        job = self._storage.job
        known = {"job": job, "epoch": effect.epoch}
        log.info("job %s runs, attempt %d, from %s", job, attempt_of(effect.epoch), restored, extra=known)

    # --- deploying ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Deploy as soon as it is certain which checkpoint is the newest."""
        effect, coordinator = self._waiting, self._decisions.coordinator
        if effect is None or not coordinator.is_settled:
            return
        self._waiting = None
        if not self._is_deploying(effect.epoch):
            return
        self._restored = coordinator.latest
        if self._restored is None and not coordinator.doubtful and not self._parts.saved.is_unread:
            self._go_back(effect, NOTHING_RESTORED)
        else:
            self._read_newest(effect, self._restored, coordinator.doubtful)

    def _read_newest(
        self, effect: DeployTasks, latest: CompletedCheckpoint | None, doubtful: tuple[CheckpointId, ...]
    ) -> None:
        def read() -> Assignment:
            self._parts.saved.read()
            storage = self._storage
            return restore_newest(storage.store, storage.records, latest, doubtful, self._graph, self._found)

        def done(outcome: WorkResult) -> None:
            # A driver that has lost the job deploys nothing. The guard has told the master of the loss.
            if not self._is_deploying(effect.epoch) or isinstance(outcome.error, JobTakenOver):
                return
            if outcome.error is not None:
                what = f"{latest.title} could not be restored" if latest else "the job's records could not be read"
                cause = FailureCause(text=f"{what}: {outcome.error}", fault=fault_of(outcome.error))
                self._decisions.fail_with(cause)
            elif effect.tasks is not None and outcome.value.finished:
                text = "a region cannot restart alone: steps had ended in the checkpoint"
                self._decisions.fail_with(FailureCause(text=text))
            else:
                self._go_back(effect, outcome.value)

        self._storage.submit(read, done)

    def _is_deploying(self, epoch: Epoch) -> bool:
        """Whether the attempt of that epoch still waits to be deployed. The attempt may have failed meanwhile, or the
        job may have been cancelled."""
        lifecycle = self._decisions.lifecycle
        return lifecycle.epoch == epoch and lifecycle.state in (JobState.DEPLOYING, JobState.REPAIRING)

    def _go_back(self, effect: DeployTasks, assignment: Assignment) -> None:
        """Have all hooks go back to the checkpoint, and then deploy."""
        deploy = partial(self._deploy, effect, assignment)
        self._parts.hooks.restore(self.restored_id, assignment.hooks, effect.epoch, then=deploy)

    def _deploy(self, effect: DeployTasks, assignment: Assignment) -> None:
        if not self._is_deploying(effect.epoch):
            return
        self._decisions.feed_coordinator(
            AttemptStarted(
                epoch=effect.epoch,
                tasks=effect.tasks,
                restored=self._restored,
                finished_vertices=assignment.finished,
                graph=self._rescaled_graph,
                drained=assignment.drained,
                is_last=assignment.is_last,
            )
        )
        self._rescaled_graph = None
        saved = self._parts.saved.owed
        self._parts.coordinators.start(assignment, effect.epoch, saved, parallelism=_subtasks_of(self.plan))
        self._parts.groups.start(self.plan, effect.epoch, effect.tasks, ended=assignment.finished)
        self._parts.unneeded.start(self.plan, effect.epoch, effect.tasks)
        self.attempt = effect.epoch if effect.tasks is None else self.attempt
        self._progress.begins(self.plan, effect.tasks)
        self._progress.chronicle.deployed(self.plan, effect.epoch, effect.tasks, self._decisions.now)
        orders = Orders(
            job=self._storage.job,
            plan=self.plan,
            pickled_plan=self.pickled_plan,
            restored=self.restored_id,
            first_checkpoint=self._decisions.coordinator.next_id,
            attempt=self.attempt,
            saved=saved,
        )
        for slot, message in deployments(effect, assignment, self._links.registered, orders):
            self._links.send(slot, message)


def _subtasks_of(plan: Plan) -> dict[OperatorId, int]:
    """How many subtasks each operator has."""
    return {operator.operator: vertex.parallelism for vertex in plan.vertices for operator in vertex.operators}
