"""Any order of acknowledgements, declines, time-outs, duplicates, storage failures and failovers keeps the promises.

A small world performs the coordinator's effects: it has files, folders, records and tasks, and answers storage work
whenever the drawn script says so. Files are written when a task acknowledges and vanish when a deletion is performed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.coordinator.coordinator import CheckpointCoordinator
from penstock.core.coordinator.effects import (
    AnswerRequest,
    CheckpointCompleted,
    CheckpointStarted,
    CoordinatorEffect,
    CreateLocation,
    DeleteFiles,
    ForgetPointers,
    RequestFailure,
    SendOperatorEvent,
    SendToTask,
    SnapshotOperatorCoordinator,
    StorePointer,
    TriggerHook,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    Acknowledged,
    AttemptStarted,
    BarrierPassed,
    CheckpointRequested,
    CoordinatorEvent,
    Declined,
    FailedOver,
    FilesDeleted,
    HookFailed,
    HookTriggered,
    JobEnd,
    LocationCreated,
    LocationFailed,
    MetadataFailed,
    MetadataWritten,
    OperatorCoordinatorFailed,
    OperatorCoordinatorSnapshotted,
    OperatorEventDelivered,
    OperatorEventLost,
    OperatorEventSubmitted,
    PointerFailed,
    PointerStored,
    RequestKind,
    ScheduleAllowed,
    ScheduleForbidden,
    ShutDown,
    TaskDataEnded,
    TaskEnded,
    TaskFailing,
    TaskRunning,
)
from penstock.core.effects import Ticked
from penstock.core.errors import InvariantError
from penstock.core.graph import CheckpointEdge, CheckpointGraph, CheckpointVertex
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.messages import Acknowledge, Decline, NotifyComplete, OperatorState, StateFile, SubtaskState
from penstock.core.reasons import CheckpointFailure
from penstock.settings import CheckpointSettings, Retention

JOB = JobId("job")
OPERATOR = OperatorId("enumerator")
GRAPH = CheckpointGraph(
    vertices=(
        CheckpointVertex(
            vertex=VertexId("s"), parallelism=2, operators=(OPERATOR,), is_source=True, coordinators=(OPERATOR,)
        ),
        CheckpointVertex(vertex=VertexId("t"), parallelism=1, operators=(OperatorId("sum"),)),
    ),
    edges=(CheckpointEdge(upstream=VertexId("s"), downstream=VertexId("t")),),
    hooks=("hook",),
)
REASONS = (CheckpointFailure.DECLINED, CheckpointFailure.DECLINED_TASK_NOT_READY, CheckpointFailure.IO)
WORK = (CreateLocation, WriteMetadata, StorePointer, DeleteFiles, SnapshotOperatorCoordinator, TriggerHook)


class World:
    """Files, records, tasks, and promises that are checked on the way."""

    def __init__(self, job_settings: CheckpointSettings) -> None:
        self.settings = job_settings
        self.coordinator = CheckpointCoordinator(JOB, job_settings, GRAPH, CheckpointId(1))
        self.now = 0
        self.epoch = 0
        self.files: set[str] = set()
        self.contents: dict[int, set[str]] = {}
        """Checkpoint -> every file its metadata names, and its folder's metadata file."""
        self.of_user: set[int] = set()
        self.stored: set[int] = set()
        self.work: list[CoordinatorEffect] = []
        self.acks: list[Acknowledge] = []
        self.events_sent: list[int] = []
        self.begun: list[int] = []
        self.begun_in: dict[int, int] = {}
        """Checkpoint -> the attempt whose tasks take it."""
        self.savepoints: set[int] = set()
        self.completed: list[int] = []
        self.asked = 0
        self.answered: list[int] = []
        self.down = True
        self.restart()

    # --- performing ---------------------------------------------------------------------------------------------------

    def feed(self, event: CoordinatorEvent) -> None:
        effects = self.coordinator.handle(event, Instant(self.now))
        self.coordinator.validate()
        if isinstance(event, Ticked):
            deadline = self.coordinator.next_deadline()
            assert deadline is None or deadline > self.now
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case CheckpointStarted():
                assert not self.begun or effect.checkpoint > self.begun[-1]
                self.begun.append(effect.checkpoint)
                self.begun_in[effect.checkpoint] = self.epoch
                if effect.kind.is_savepoint:
                    self.savepoints.add(effect.checkpoint)
            case CheckpointCompleted():
                self.complete(effect)
            case AnswerRequest():
                assert effect.request not in self.answered
                self.answered.append(effect.request)
                if isinstance(effect.result, RequestFailure) and effect.result.savepoint is not None:
                    self.of_user.add(int(effect.result.savepoint.split("chk-")[1].split("/")[0]))
            case SendToTask():
                if isinstance(effect.message, NotifyComplete):
                    assert effect.message.checkpoint in self.stored, "told before it was durable"
            case SendOperatorEvent():
                self.events_sent.append(effect.number)
            case ForgetPointers():
                self.stored -= set(effect.checkpoints)
            case _:
                pass
        if isinstance(effect, DeleteFiles):
            self.check_deletion(effect)
        if isinstance(effect, WORK):
            self.work.append(effect)

    def complete(self, effect: CheckpointCompleted) -> None:
        kind, checkpoint = effect.completed.kind, effect.completed.checkpoint
        if kind.is_savepoint:
            self.of_user.add(checkpoint)
        if not kind.is_savepoint or kind.is_synchronous:
            assert not self.completed or checkpoint > self.completed[-1], "completed out of order"
            self.completed.append(checkpoint)
        assert self.contents[checkpoint] <= self.files, "completed without one of its files"

    def check_deletion(self, effect: DeleteFiles) -> None:
        """Nothing that somebody may restore from is deleted."""
        safe = {c.checkpoint for c in self.coordinator.retained} | self.of_user
        for checkpoint in safe:
            doomed = {f for f in self.contents[checkpoint] if f in effect.paths or self.is_in(f, effect.folder)}
            assert not doomed, f"files of checkpoint {checkpoint} are deleted"

    @staticmethod
    def is_in(path: str, folder: str | None) -> bool:
        return folder is not None and path.startswith(f"{folder}/")

    # --- the script's moves -------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A new attempt, if it is certain what to restore."""
        if not self.coordinator.is_settled:
            return
        self.epoch += 1
        self.feed(AttemptStarted(epoch=Epoch(self.epoch), restored=self.coordinator.latest))
        for task in GRAPH.tasks:
            self.feed(TaskRunning(task=task, epoch=Epoch(self.epoch)))
        self.feed(ScheduleAllowed(draw=0.3))
        self.down = False

    def fail_over(self, number: int) -> None:
        tasks = (None, (GRAPH.tasks[number % 3],))[number % 2]
        self.feed(FailedOver(tasks=tasks))
        self.down = True

    def request(self, number: int) -> None:
        self.asked += 1
        kind = {0: RequestKind.SAVEPOINT, 1: RequestKind.STOP}.get(number % 6, RequestKind.CHECKPOINT)
        target = None if kind is RequestKind.CHECKPOINT else "saves"
        self.feed(CheckpointRequested(request=RequestId(self.asked), kind=kind, target=target, drain=number % 35 == 0))

    def tick(self, number: int) -> None:
        self.now += number % 40
        self.feed(Ticked())

    def acknowledge(self, number: int) -> None:
        """A task that has not yet done so acknowledges one of the last checkpoints, which may have ended, perhaps with
        its attempt."""
        done = {(a.checkpoint, a.task) for a in self.acks}
        missing = [(c, t) for c in self.begun[-3:] for t in GRAPH.tasks if (c, t) not in done]
        if not missing:
            return
        checkpoint, task = missing[number % len(missing)]
        epoch = self.begun_in[checkpoint]
        if number % 23 == 0 and checkpoint not in self.savepoints:
            epoch -= 1
        message = Acknowledge(
            job=JOB,
            epoch=Epoch(epoch),
            task=task,
            checkpoint=CheckpointId(checkpoint),
            state=self.write_state(task, checkpoint, epoch, number),
        )
        self.acks.append(message)
        self.feed(Acknowledged(message=message))

    def write_state(self, task: TaskId, checkpoint: int, epoch: int, number: int) -> SubtaskState | None:
        if number % 7 == 0:
            return None
        key = f"k{number % 4}"
        private = StateFile(path=f"ckpt/chk-{checkpoint}/{task}@{epoch}", size=1, checksum=1)
        folder = f"ckpt/chk-{checkpoint}" if checkpoint in self.savepoints else "shared"
        shared = StateFile(path=f"{folder}/{key}-{checkpoint}-{task}@{epoch}", size=1, checksum=2, shared_key=key)
        latest = self.coordinator.latest
        known = latest is not None and any(f.file.shared_key == key for f in latest.shared_files)
        if (known and number % 2) or number % 41 == 0:
            shared = StateFile(path=None, size=1, checksum=2, shared_key=key, placeholder=True)
        files = (private,) if number % 3 == 0 else (private, shared)
        self.files |= {f.path for f in files if f.path is not None}
        operator = OPERATOR if task.vertex == "s" else OperatorId("sum")
        return SubtaskState(operators=(OperatorState(operator=operator, keyed=files),), finished=number % 13 == 0)

    def repeat(self, number: int) -> None:
        if self.acks:
            self.feed(Acknowledged(message=self.acks[number % len(self.acks)]))

    def decline(self, number: int) -> None:
        if self.begun:
            message = Decline(
                job=JOB,
                epoch=Epoch(self.epoch - (number % 3 == 0)),
                task=GRAPH.tasks[number % 3],
                checkpoint=CheckpointId(self.begun[-1 - number % min(2, len(self.begun))]),
                reason=REASONS[number % 3],
            )
            self.feed(Declined(message=message))

    def task_changes(self, number: int) -> None:
        kind = (TaskFailing, TaskDataEnded, TaskEnded, TaskDataEnded)[number % 4]
        self.feed(kind(task=GRAPH.tasks[number % 3], epoch=Epoch(self.epoch)))

    def schedule_changes(self, number: int) -> None:
        self.feed(ScheduleForbidden() if number % 4 == 0 else ScheduleAllowed(draw=0.5))

    def operator_event(self, number: int) -> None:
        if number % 3 == 0:
            self.feed(OperatorEventSubmitted(operator=OPERATOR, subtask=number % 2, event=b"e"))
        elif self.events_sent and number % 3 == 1:
            settled = self.events_sent.pop(number % len(self.events_sent))
            self.feed(OperatorEventLost(number=settled) if number % 5 == 0 else OperatorEventDelivered(number=settled))
        elif self.begun:
            checkpoint, task = CheckpointId(self.begun[-1]), GRAPH.tasks[number % 2]
            self.feed(BarrierPassed(task=task, epoch=Epoch(self.epoch), checkpoint=checkpoint))

    def work_answers(self, number: int) -> None:
        if self.work:
            self.answer(self.work.pop(number % len(self.work)), number)

    # --- storage ------------------------------------------------------------------------------------------------------

    def answer(self, effect: CoordinatorEffect, number: int = 1) -> None:
        fails = number % 16 == 0
        match effect:
            case CreateLocation():
                self.feed(
                    LocationFailed(checkpoint=effect.checkpoint)
                    if fails
                    else LocationCreated(checkpoint=effect.checkpoint, location=f"ckpt/chk-{effect.checkpoint}")
                )
            case WriteMetadata():
                self.write_metadata(effect, fails=fails)
            case StorePointer():
                self.store_pointer(effect, fails=fails, inconsistent=number % 4 == 0)
            case DeleteFiles():
                if not fails:
                    self.files = {f for f in self.files if f not in effect.paths and not self.is_in(f, effect.folder)}
                    self.feed(FilesDeleted(cleaning=effect.cleaning))
                else:
                    # It is tried again until it succeeds: this world wants to see what is left in the end.
                    self.work.append(effect)
            case SnapshotOperatorCoordinator():
                operator, checkpoint = effect.operator, effect.checkpoint
                self.feed(
                    OperatorCoordinatorFailed(operator=operator, checkpoint=checkpoint)
                    if fails
                    else OperatorCoordinatorSnapshotted(operator=operator, checkpoint=checkpoint, state=b"state")
                )
            case TriggerHook():
                hook, checkpoint = effect.hook, effect.checkpoint
                self.feed(
                    HookFailed(hook=hook, checkpoint=checkpoint)
                    if fails
                    else HookTriggered(hook=hook, checkpoint=checkpoint, state=b"hook")
                )
            case _:
                raise AssertionError(effect)

    def write_metadata(self, effect: WriteMetadata, *, fails: bool) -> None:
        path = f"{effect.location}/_metadata"
        self.files.add(path)
        named = {f.path for f in effect.metadata.files if f.path is not None}
        assert all(not f.placeholder for f in effect.metadata.files)
        self.contents[effect.checkpoint] = named | {path}
        if fails:
            self.feed(MetadataFailed(checkpoint=effect.checkpoint))
        else:
            self.feed(MetadataWritten(checkpoint=effect.checkpoint, path=path, size=1))

    def store_pointer(self, effect: StorePointer, *, fails: bool, inconsistent: bool) -> None:
        checkpoint = effect.completed.checkpoint
        if fails:
            if inconsistent:
                self.stored.add(checkpoint)
            self.feed(PointerFailed(checkpoint=checkpoint, inconsistent=inconsistent))
            return
        self.stored.add(checkpoint)
        self.stored -= set(effect.forget)
        self.feed(PointerStored(checkpoint=checkpoint))

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, status: JobEnd) -> None:
        self.feed(ScheduleForbidden())
        self.feed(ShutDown(status=status))
        while self.work:
            self.answer(self.work.pop(0))
        assert self.coordinator.is_settled
        assert self.coordinator.next_deadline() is None
        assert sorted(self.answered) == list(range(1, self.asked + 1)), "a request was not answered"
        kept = {c.checkpoint for c in self.coordinator.retained} | self.of_user
        owned = {path for checkpoint in kept for path in self.contents[checkpoint]}
        assert owned <= self.files, "a file that is kept is missing"
        if status.is_final:
            assert self.files <= owned, "files are left that nobody owns"


# Each as often as it is to come: what takes a checkpoint forward must outweigh what ends it.
WEIGHTS: dict[Callable[[World, int], None], int] = {
    World.request: 2,
    World.tick: 2,
    World.acknowledge: 18,
    World.work_answers: 22,
    World.operator_event: 2,
    World.repeat: 2,
    World.decline: 1,
    World.task_changes: 1,
    World.schedule_changes: 1,
    World.fail_over: 1,
}
MOVES = tuple(move for move, weight in WEIGHTS.items() for _ in range(weight))

SCRIPTS = st.lists(st.tuples(st.integers(0, len(MOVES) - 1), st.integers(0, 10_000)), min_size=20, max_size=150)
SETTINGS = st.builds(
    CheckpointSettings,
    interval_ms=st.sampled_from([None, 20]),
    timeout_ms=st.sampled_from([60, 10_000]),
    min_pause_ms=st.sampled_from([0, 30]),
    max_concurrent=st.integers(1, 3),
    tolerable_failures=st.sampled_from([None, 0, 2]),
    num_retained=st.integers(1, 2),
    retention=st.sampled_from(Retention),
)


def play(job_settings: CheckpointSettings, script: list[tuple[int, int]], status: JobEnd) -> World:
    """Ids grow, completions are in order and told only when durable, every request is answered once, nothing that can
    be restored is deleted, and in the end no file is left that nobody owns: the world asserts all of it."""
    world = World(job_settings)
    for move, number in script:
        if world.down:
            world.restart()
        MOVES[move](world, number)
    world.end(status)
    return world


@settings(max_examples=50)
@given(job_settings=SETTINGS, script=SCRIPTS, status=st.sampled_from(JobEnd))
def test_any_script_keeps_the_promises(job_settings, script, status):
    play(job_settings, script, status)


def play_seed(seed: int) -> World:
    chance = random.Random(seed)
    job_settings = CheckpointSettings(
        interval_ms=chance.choice([None, 20]),
        timeout_ms=chance.choice([60, 10_000]),
        min_pause_ms=chance.choice([0, 30]),
        max_concurrent=chance.randint(1, 3),
        tolerable_failures=chance.choice([None, 0, 2]),
        num_retained=chance.randint(1, 2),
        retention=chance.choice(list(Retention)),
    )
    script = [(chance.randrange(len(MOVES)), chance.randrange(10_000)) for _ in range(chance.randint(10, 200))]
    return play(job_settings, script, chance.choice(list(JobEnd)))


def test_seeds_keep_the_promises():
    """Scripts drawn evenly get further than those drawn to be small; a failure names its seed."""
    num_completed = 0
    for seed in range(150):
        try:
            num_completed += len(play_seed(seed).completed)
        except (AssertionError, InvariantError) as error:
            raise AssertionError(f"play_seed({seed}): {error}") from error
    assert num_completed > 20, "the scripts hardly ever complete a checkpoint"


@settings(max_examples=30)
@given(job_settings=SETTINGS, order=st.permutations(GRAPH.tasks), repeats=st.lists(st.integers(0, 2), max_size=4))
def test_any_order_of_acknowledgements_completes_a_checkpoint(job_settings, order, repeats):
    world = World(job_settings)
    world.request(2)
    while world.work:
        world.answer(world.work.pop(0))
    (checkpoint,) = world.begun
    messages = [
        Acknowledge(job=JOB, epoch=Epoch(1), task=task, checkpoint=CheckpointId(checkpoint), state=None)
        for task in order
    ]
    for position, message in enumerate(messages):
        world.feed(Acknowledged(message=message))
        if position in repeats:
            world.feed(Acknowledged(message=message))
    while world.work:
        world.answer(world.work.pop(0))
    assert world.completed == [checkpoint]
