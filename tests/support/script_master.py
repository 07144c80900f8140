"""The job master in a script: the real checkpoint coordinator and the real lifecycle of the job.

A slot says that its tasks are restored, or dropped, when the last of its tasks has said so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, assert_never

from script_words import KINDS, RestoreTask, TaskDropped, TaskRestored, answer_words, deletion_words

from penstock.core.coordinator import effects as told
from penstock.core.coordinator import events as asked
from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.graph import CheckpointGraph
from penstock.core.ids import CheckpointId, Instant, JobId, TaskId
from penstock.core.job import events as job_events
from penstock.core.job.lifecycle import JobLifecycle
from penstock.core.job.regions import regions_of
from penstock.core.messages import (
    Acknowledge,
    CancelTasks,
    DataEnded,
    Decline,
    Run,
    TaskFailed,
    TaskFinished,
    WantsToEnd,
)
from penstock.runtime.master.decisions import Decisions
from penstock.settings import CheckpointSettings, FixedDelay, SlotSettings

NEVER_MS = 10**9
PATIENT = SlotSettings(
    heartbeat_timeout_ms=NEVER_MS,
    start_timeout_ms=NEVER_MS,
    cancel_timeout_ms=NEVER_MS,
    deploy_timeout_ms=NEVER_MS,
)
ENDS = {
    job_events.JobState.FINISHED: asked.JobEnd.FINISHED,
    job_events.JobState.FAILED: asked.JobEnd.FAILED,
}


class World(Protocol):
    """What the master needs of the script."""

    def say(self, who: object, text: str, *, loud: bool = False) -> None:
        """Add a line to what happened."""

    def send(self, sender: object, receiver: object, message: Any) -> None:
        """Put a message at the end of a queue."""

    def store(self, name: str, done: Callable[[], None], failed: Callable[[str], None]) -> None:
        """The script can perform this storage work, or have it fail, from here on."""

    def cut_channels(self, tasks: tuple[TaskId, ...]) -> None:
        """What lies in the channels of these tasks is gone."""


class ScriptMaster:
    """Feeds the coordinator and the lifecycle, and does what they say."""

    def __init__(self, world: World, graph: CheckpointGraph, settings: CheckpointSettings, restarts: int) -> None:
        lifecycle = JobLifecycle(
            slots=max(v.parallelism for v in graph.vertices),
            tasks=regions_of(graph),
            settings=PATIENT,
            restart=FixedDelay(attempts=restarts, delay_ms=0),
        )
        coordinator = CheckpointCoordinator(JobId("job"), settings, graph, CheckpointId(1))
        self.decisions = Decisions(lifecycle, coordinator, draws=(0.0,), now=Instant(0))
        self.decisions.perform_with(self._perform_job, self._perform_checkpoints)
        self._world = world
        self._tasks = graph.tasks
        self._deployment: job_events.DeployTasks | None = None
        self._awaited: dict[TaskId, tuple[TaskId, ...]] = {}
        """By task that has to say that it is restored, or dropped: what its slot is asked about."""
        self.decisions.feed_job(job_events.JobStarted())
        for slot in lifecycle.slots:
            self.decisions.feed_job(job_events.SlotRegistered(slot=slot))

    def hear(self, message: Any) -> None:
        """A task says something. `runtime/master/hearing.py` does the same."""
        feed, feed_job = self.decisions.feed_coordinator, self.decisions.feed_job
        match message:
            case Acknowledge():
                feed(asked.Acknowledged(message=message))
            case Decline():
                feed(asked.Declined(message=message))
            case DataEnded(task=task, epoch=epoch):
                feed(asked.TaskDataEnded(task=task, epoch=epoch))
            case WantsToEnd(task=task, epoch=epoch):
                feed(asked.TaskAsksToEnd(task=task, epoch=epoch))
            case TaskFinished(task=task, epoch=epoch):
                feed(asked.TaskEnded(task=task, epoch=epoch))
                feed_job(job_events.TaskDone(task=task, epoch=epoch))
            case TaskFailed(task=task, epoch=epoch, error=error):
                whole = self.decisions.coordinator.is_stopping
                feed(asked.TaskFailing(task=task, epoch=epoch, error=error))
                cause = job_events.FailureCause(text=f"{task} failed: {error}")
                feed_job(job_events.AttemptFailed(epoch=epoch, cause=cause, task=task, whole=whole))
            case TaskRestored() | TaskDropped():
                self._hear_of_slot(message)
            case _:
                raise AssertionError(f"the master does not understand {message}")

    def _hear_of_slot(self, message: TaskRestored | TaskDropped) -> None:
        named = self._awaited.pop(message.task)
        place = message.task.subtask
        if any(task.subtask == place for task in self._awaited):
            return
        slot = self.decisions.lifecycle.slots[place]
        if isinstance(message, TaskRestored):
            self.decisions.feed_job(job_events.SlotReady(slot=slot, epoch=message.epoch))
        else:
            self.decisions.feed_job(job_events.SlotCancelled(slot=slot, epoch=message.epoch, tasks=named))

    def lose(self, place: int) -> None:
        """The process in a place is gone."""
        self._awaited = {task: named for task, named in self._awaited.items() if task.subtask != place}
        slot = self.decisions.lifecycle.slots[place]
        self.decisions.feed_job(job_events.SlotGone(slot=slot, error="its process is gone"))

    def register(self, place: int) -> None:
        """A new process in a place has called in."""
        self.decisions.feed_job(job_events.SlotRegistered(slot=self.decisions.lifecycle.slots[place]))

    # --- what the coordinator wants done ----------------------------------------------------

    def _perform_checkpoints(self, effects: list[told.CoordinatorEffect]) -> None:
        for effect in effects:
            if not self._store(effect):
                self._perform_checkpoint(effect)
        self.decisions.coordinator.validate()

    def _store(self, effect: told.CoordinatorEffect) -> bool:
        """Whether the effect is storage work; if so, it waits for the script."""
        match effect:
            case told.CreateLocation(checkpoint=chk):
                folder = f"{effect.options.target or ''}/chk-{chk}".lstrip("/")
                done: asked.CoordinatorEvent = asked.LocationCreated(checkpoint=chk, location=folder)
                self._wait_for(f"chk-{chk} location", done, partial(_location_failed, chk))
            case told.WriteMetadata(checkpoint=chk):
                done = asked.MetadataWritten(checkpoint=chk, path=f"{effect.location}/_metadata", size=100)
                self._wait_for(f"chk-{chk} metadata", done, partial(_metadata_failed, chk))
            case told.StorePointer():
                chk = effect.completed.checkpoint
                done = asked.PointerStored(checkpoint=chk)
                self._wait_for(f"chk-{chk} pointer", done, partial(_pointer_failed, chk))
            case told.DeleteFiles(cleaning=number):
                done = asked.FilesDeleted(cleaning=number)
                self._wait_for(f"deletion of {deletion_words(effect)}", done, partial(_deletion_failed, number))
            case _:
                return False
        return True

    def _wait_for(
        self, name: str, done: asked.CoordinatorEvent, failed: Callable[[str], asked.CoordinatorEvent]
    ) -> None:
        feed = self.decisions.feed_coordinator
        self._world.say("to be durable", name)
        self._world.store(name, lambda: feed(done), lambda error: feed(failed(error)))

    def _perform_checkpoint(self, effect: told.CoordinatorEffect) -> None:
        match effect:
            case told.SendToTask():
                self._world.send("master", effect.task, effect.message)
            case told.CheckpointStarted():
                self._say(f"begins chk-{effect.checkpoint}{KINDS[effect.kind]}")
            case told.CheckpointCompleted():
                self._say(f"chk-{effect.completed.checkpoint} is complete", loud=True)
            case told.CheckpointAborted():
                more = f" ({effect.text})" if effect.text else ""
                self._say(f"chk-{effect.checkpoint} is aborted: {effect.reason.text}{more}", loud=True)
            case told.AnswerRequest():
                self._say(f"answers request {effect.request}: {answer_words(effect.result)}", loud=True)
            case told.RequestDropped():
                self._say(f"drops a {'periodic ' if effect.periodic else ''}request: {effect.reason.text}")
            case told.AcknowledgeIgnored():
                what = f"the acknowledgement of {effect.task} for chk-{effect.checkpoint}"
                self._say(f"{what} does not count: {effect.verdict.value}")
            case told.ForgetPointers():
                for checkpoint in effect.checkpoints:
                    self._say(f"drops the pointer of chk-{checkpoint}")
            case told.FailJob():
                self._say(f"fails the job: {effect.text}", loud=True)
                self.decisions.fail_with(job_events.FailureCause(text=effect.text, free=effect.free))
            case told.FailTask():
                self._say(f"fails {effect.task}: {effect.text}", loud=True)
                epoch, cause = self.decisions.lifecycle.epoch_of(effect.task), job_events.FailureCause(text=effect.text)
                self.decisions.feed_job(job_events.AttemptFailed(epoch=epoch, cause=cause, task=effect.task))
            case _:
                raise AssertionError(f"scripts do not know the effect {effect}")

    # --- what the lifecycle wants done ------------------------------------------------------

    def _perform_job(self, effect: job_events.JobEffect) -> None:
        feed = self.decisions.feed_coordinator
        match effect:
            case job_events.DeployTasks():
                self._deployment = effect
            case job_events.RunTasks(epoch=epoch):
                tasks = self._tasks if effect.tasks is None else effect.tasks
                self._say(f"runs attempt {epoch} of {_listed(tasks)}", loud=True)
                feed(asked.ScheduleAllowed(draw=0.0))
                for task in tasks:
                    self._world.send("master", task, Run(epoch=epoch))
                    feed(asked.TaskRunning(task=task, epoch=epoch))
            case job_events.TellCancel(slot=slot, epoch=epoch):
                for task in effect.tasks or [t for t in self._tasks if t.subtask == slot.number]:
                    self._awaited[task] = effect.tasks
                    self._world.send("master", task, CancelTasks(epoch=epoch))
            case job_events.AttemptEnded():
                self._say(f"attempt {effect.epoch} is over: {effect.cause.text}", loud=True)
                self._deployment = None
                feed(asked.FailedOver())
            case job_events.RegionEnded():
                self._say(f"restarts the region {_listed(effect.tasks)}: {effect.cause.text}", loud=True)
                feed(asked.FailedOver(tasks=effect.tasks))
            case job_events.JobEnding():
                feed(asked.ScheduleForbidden())
            case job_events.TellLeave(slot=slot):
                self.decisions.feed_job(job_events.SlotGone(slot=slot, error=None))
            case job_events.JobEnded():
                self._say(f"the job is {effect.outcome.value}", loud=True)
                feed(asked.ShutDown(status=ENDS[effect.outcome]))
            case job_events.StartSlot() | job_events.StopSlot() | job_events.TellPeerGone():
                pass
            case (
                job_events.ReportStuck()
                | job_events.ReportLoading()
                | job_events.ReportTurning()
                | job_events.TellPeerAlive()
                | job_events.RescalePrepared()
                | job_events.RescaleGivenUp()
                | job_events.AttemptRescaled()
            ):
                raise AssertionError(f"scripts do not know the effect {effect}")
            case _:
                assert_never(effect)

    def turn(self) -> None:
        """Deploy what waits to be deployed, if it is known which checkpoint is the latest."""
        effect, coordinator = self._deployment, self.decisions.coordinator
        if effect is None or not coordinator.is_settled:
            return
        self._deployment = None
        latest = coordinator.latest
        tasks = self._tasks if effect.tasks is None else effect.tasks
        started = asked.AttemptStarted(epoch=effect.epoch, tasks=effect.tasks, restored=latest)
        self.decisions.feed_coordinator(started)
        self._world.cut_channels(tasks)
        for task in tasks:
            self._awaited[task] = ()
            restored = None if latest is None else latest.checkpoint
            self._world.send("master", task, RestoreTask(effect.epoch, restored))

    def _say(self, text: str, *, loud: bool = False) -> None:
        self._world.say("master", text, loud=loud)


def _listed(tasks: tuple[TaskId, ...]) -> str:
    return ", ".join(map(str, tasks))


def _location_failed(checkpoint: CheckpointId, error: str) -> asked.LocationFailed:
    return asked.LocationFailed(checkpoint=checkpoint, error=error)


def _metadata_failed(checkpoint: CheckpointId, error: str) -> asked.MetadataFailed:
    return asked.MetadataFailed(checkpoint=checkpoint, error=error)


def _pointer_failed(checkpoint: CheckpointId, error: str) -> asked.PointerFailed:
    return asked.PointerFailed(checkpoint=checkpoint, error=error)


def _deletion_failed(cleaning: int, error: str) -> asked.FilesDeleted:
    return asked.FilesDeleted(cleaning=cleaning, error=error)
