"""The tasks of a plan, all in this process, one after another and without checkpoints: for a look at some results.

The tasks, their channels and their operators are those of a job. There is no master, no slot and no network, nothing is
snapshotted, and no sink commits: whoever looks takes the records from the sink's writer. Splits that are found while a
source is read are found here, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import cloudpickle
import pyarrow as pa

from penstock.api.connector import Sink, SinkWriter, SplitEnumerator, WriterContext
from penstock.api.steps import ReadStep, WatermarkStep, WriteStep
from penstock.core.errors import InvariantError, JobFailed
from penstock.core.full_steps import EndSource
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId
from penstock.core.messages import StateFile, StepFull, TaskRestore
from penstock.plan.graph import OperatorPlan, Plan
from penstock.ports import AsyncCalls, Background, Clock, WorkResult
from penstock.runtime.full_steps import UnneededSources
from penstock.runtime.slot.deployment import Deployment, build_task
from penstock.runtime.task.chain import describe_failure
from penstock.runtime.task.channels import ChannelKey, Item
from penstock.runtime.task.operators.events import NoMoreSplits, SplitsAdded, encode_event
from penstock.runtime.task.subtask import Task
from penstock.settings import JobSettings, StateSettings

SLICE_ROWS = 65_536
POLLED_ROWS = 1_000
"""A source is asked for few rows at a time: most looks want a few."""
EPOCH = Epoch(1)
LONGEST_WAIT_MS = 100
"""Ctrl-C gets through, and the time limit is looked at, at least so often."""


class SeenRows(Sink):
    """The sink of a look: keeps what is written to it, until there is enough."""

    def __init__(self, rows: int) -> None:
        self._left = rows
        self.batches: list[pa.RecordBatch] = []

    @property
    def name(self) -> str:
        """The name of the step in messages."""
        return "look"

    @property
    def is_full(self) -> bool:
        """Whether there are as many rows as were asked for."""
        return self._left <= 0

    def writer(self, context: WriterContext) -> SinkWriter:  # noqa: ARG002  # there is one subtask
        """A writer that keeps rows here."""
        return _Keeping(self)

    def take(self, batch: pa.RecordBatch) -> None:
        """Keep as many rows as are missing."""
        if self._left > 0:
            self.batches.append(batch.slice(0, self._left))
            self._left -= batch.num_rows


class _Keeping(SinkWriter):
    def __init__(self, rows: SeenRows) -> None:
        self._rows = rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows.take(batch)

    def prepare(self, checkpoint: int) -> NoReturn:
        raise _no_checkpoints(f"checkpoint {checkpoint}")


def look(
    plan: Plan,
    settings: JobSettings,
    *,
    rows: int,
    timeout_ms: int | None,
    clock: Clock,
    wait: Callable[[float], Any],
    calls: AsyncCalls | None = None,
) -> list[pa.RecordBatch]:
    """The first rows that come to the sink of a plan of parallelism 1, whose sources are prepared. Fewer if all data
    has been seen, or the time is over. `wait` lets so many seconds pass, or fewer if a call of `calls` has ended.

    Raises:
        JobFailed: a function of the program, or a source, raised.

    """
    seen = SeenRows(rows)
    here = _Here(_own(plan, seen), settings, clock, _enumerators(plan), calls)
    deadline = None if timeout_ms is None else Instant(clock.now() + timeout_ms)
    try:
        here.start()
        while not seen.is_full and not here.is_over and (deadline is None or clock.now() < deadline):
            if not here.turn():
                wait(here.pause_ms(deadline) / 1_000)
    finally:
        here.close()
    return seen.batches


def _own(plan: Plan, seen: SeenRows) -> Plan:
    """A copy of the plan, as a slot has one: functions of the program must not be changed by a look. Its sink is
    `seen`."""
    copied: Plan = cloudpickle.loads(cloudpickle.dumps(plan))

    def with_sink(operator: OperatorPlan) -> OperatorPlan:
        step = operator.step
        if isinstance(step, WatermarkStep) and step.align is not None:
            # A look ends after some rows: sources have no time to run away from each other.
            return replace(operator, step=replace(step, align=None))
        return replace(operator, step=replace(step, sink=seen)) if isinstance(step, WriteStep) else operator

    vertices = tuple(replace(v, operators=tuple(with_sink(o) for o in v.operators)) for v in copied.vertices)
    return replace(copied, vertices=vertices)


def _enumerators(plan: Plan) -> dict[OperatorId, SplitEnumerator]:
    """Made by the sources of the plan itself, as for a job: what a slot has of a source may have no enumerator."""
    reads = [o for vertex in plan.vertices for o in vertex.operators if isinstance(o.step, ReadStep)]
    return {read.operator: read.step.source.enumerator() for read in reads if read.step.source.discovers}


class _Found:
    """The splits of one source that are found while the source is read."""

    def __init__(self, task: Task, operator: OperatorId, enumerator: SplitEnumerator) -> None:
        self.operator = operator
        self.read = 0
        """How many splits the reader has read to their ends."""
        self.looks_at = Instant(0)
        self._task = task
        self._enumerator = enumerator
        self._position: bytes | None = None
        self._given = 0
        self._ended = False

    def start(self) -> None:
        self._enumerator.start(None)

    def look(self, now: Instant) -> bool:
        """Look for splits if it is time to; whether some were found, or there will be no more."""
        limit = self._enumerator.unread
        if self._ended or now < self.looks_at or (limit is not None and self._given - self.read >= limit):
            return False
        found = self._enumerator.discover(self._position)
        self._position, self._ended = found.position, found.ended
        self.looks_at = Instant(now + found.wait_ms)
        if found.splits:
            self._given += len(found.splits)
            self._task.handle_event(self.operator, encode_event(SplitsAdded(splits=tuple(found.splits))))
        if found.ended:
            self._task.handle_event(self.operator, encode_event(NoMoreSplits()))
        return bool(found.splits) or found.ended

    def close(self) -> None:
        self._enumerator.close()


class _Here:
    """All tasks of a plan, and the host that they ask."""

    def __init__(
        self,
        plan: Plan,
        settings: JobSettings,
        clock: Clock,
        enumerators: Mapping[OperatorId, SplitEnumerator],
        calls: AsyncCalls | None,
    ) -> None:
        self.calls = calls
        self.background: Background = _AtOnce()
        self.slice_rows = SLICE_ROWS
        self._clock = clock
        self._ended: dict[TaskId, None] = {}
        self._names = {vertex.vertex: vertex.name for vertex in plan.vertices}
        self._plan = plan
        deployment = Deployment(
            job=JobId("look"),
            epoch=EPOCH,
            plan=plan,
            settings=replace(settings, state=StateSettings()),
            restored=None,
            first_checkpoint=CheckpointId(1),
            saved={},
            host=self,
            reader=_NoState(),
            deliver=self._deliver,
            grant=self._grant,
            data_taken=lambda key: self._writers[key].outputs.data_taken(key),
        )
        self._unneeded = UnneededSources(self._end_source)
        self._unneeded.start(plan, EPOCH, None)
        self._tasks = [build_task(task, TaskRestore(), deployment) for task in plan.tasks]
        self._readers = {channel.key: task for task in self._tasks for channel in task.gate.channels}
        self._writers = {key: task for task in self._tasks for key in task.outputs.channels}
        self._found = [
            _Found(task, operator.operator, enumerators[operator.operator])
            for task in self._tasks
            for operator in plan.vertex(task.task.vertex).operators
            if operator.operator in enumerators
        ]

    # --- turns -------------------------------------------------------------------------------

    def start(self) -> None:
        """Load, open and begin all tasks."""
        for call in (lambda t: t.chain.load(), lambda t: t.open(), lambda t: t.run(self.now())):
            for task in self._tasks:
                self._guard(task, call, task)
        for found in self._found:
            found.start()

    @property
    def is_over(self) -> bool:
        """Whether every task has seen all its data."""
        return len(self._ended) == len(self._tasks)

    def turn(self) -> bool:
        """Let every task do something; whether one did."""
        now = self.now()
        did = sum(found.look(now) for found in self._found) > 0
        for task in self._tasks:
            if (due := task.next_deadline()) is not None and due <= now:
                self._guard(task, task.tick, now)
            did = bool(self._guard(task, task.step, now, POLLED_ROWS)) or did
            self.background.collect()
        if self.calls is not None:
            self.calls.collect()
        return did

    def pause_ms(self, deadline: Instant | None) -> int:
        """How long nothing can be done."""
        times = [deadline, *(task.next_deadline() for task in self._tasks), *(found.looks_at for found in self._found)]
        next_at = min((time for time in times if time is not None), default=None)
        left = LONGEST_WAIT_MS if next_at is None else next_at - self.now()
        return max(1, min(LONGEST_WAIT_MS, left))

    def close(self) -> None:
        """Let go of everything."""
        for task in self._tasks:
            task.stop(self.now())
        for found in self._found:
            found.close()

    def _guard(self, task: Task, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failure(task.task, error) from error

    def _failure(self, task: TaskId, error: BaseException) -> JobFailed:
        operator, line, trace, _ = describe_failure(error, vertex=self._names[task.vertex])
        text = f"the look at the stream failed in {operator!r}: {line}"
        return JobFailed(f"{text}\n{trace.rstrip()}" if trace else text, cause_text=line)

    # --- channels ----------------------------------------------------------------------------

    def _deliver(self, key: ChannelKey, item: Item, cost: int) -> None:
        self._readers[key].gate.push(key, item, cost)

    def _grant(self, key: ChannelKey, bytes_granted: int) -> None:
        outputs = self._writers[key].outputs
        outputs.grant(key, bytes_granted)
        outputs.flush_channel(key)

    # --- what tasks ask ----------------------------------------------------------------------

    def now(self) -> Instant:
        """The time."""
        return self._clock.now()

    def precise_ms(self) -> float:
        """A clock for durations."""
        return self._clock.precise_ms()

    def data_ended(self, task: TaskId) -> None:
        """A task has seen all its data."""
        self._ended[task] = None

    def wants_to_end(self, task: TaskId) -> None:
        """Nobody waits for the end of a task: it is stopped when all have seen their data."""

    def finished(self, task: TaskId) -> None:
        """Never: no task is allowed to end."""
        raise InvariantError(f"{task} ended by itself")

    def failed(self, task: TaskId, error: BaseException) -> None:
        """Something that a task had done in the background went wrong."""
        raise self._failure(task, error) from error

    def splits_read(self, task: TaskId, operator: OperatorId, count: int) -> None:  # noqa: ARG002
        """A reader has come further."""
        for found in self._found:
            if found.operator == operator:
                found.read = count

    def event_time_reached(self, task: TaskId, time_us: int | None) -> None:
        """Never: no source is aligned here."""

    def step_full(self, task: TaskId, operator: OperatorId) -> None:
        """A step takes no more records."""
        self._unneeded.heard(StepFull(epoch=EPOCH, task=task, operator=operator))

    def _end_source(self, effect: EndSource) -> None:
        """Nothing needs the records of a source any more."""
        for task in self._tasks:
            if task.task.vertex in {ended.vertex for ended, _ in effect.tasks}:
                task.end_data()

    def catching_up(self, task: TaskId, operator: OperatorId, is_behind: bool) -> None:  # noqa: FBT001
        """It makes no difference here."""

    def barrier_taken(self, task: TaskId, checkpoint: CheckpointId) -> None:  # noqa: ARG002
        """Never: there are no checkpoints."""
        raise _no_checkpoints(task)

    def acknowledge(self, task: TaskId, effect: object) -> None:  # noqa: ARG002
        """Never: there are no checkpoints."""
        raise _no_checkpoints(task)

    def decline(self, task: TaskId, effect: object) -> None:  # noqa: ARG002
        """Never: there are no checkpoints."""
        raise _no_checkpoints(task)

    def snapshot_files(self, task: TaskId, barrier: object) -> NoReturn:  # noqa: ARG002
        """Never: there are no checkpoints."""
        raise _no_checkpoints(task)

    def save_channels(self, task: TaskId, collected: object, saved: object) -> None:  # noqa: ARG002
        """Never: there are no checkpoints."""
        raise _no_checkpoints(task)

    def save_no_channels(self, task: TaskId, checkpoint: CheckpointId) -> None:
        """There is nothing to give up."""

    def discard(self, state: object, target: str | None = None) -> None:
        """There is nothing to discard."""


class _AtOnce:
    """Background work that is done where it is asked for, and told of in the next turn."""

    def __init__(self) -> None:
        self._done: deque[tuple[Callable[[WorkResult], None], WorkResult]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[WorkResult], None]) -> None:
        try:
            result = WorkResult(value=work())
        except Exception as error:  # noqa: BLE001  # whoever asked decides what an error means
            result = WorkResult(error=error)
        self._done.append((done, result))

    def collect(self) -> None:
        while self._done:
            done, result = self._done.popleft()
            done(result)


class _NoState:
    def get(self, file: StateFile) -> NoReturn:
        raise InvariantError(f"a look restores nothing, and {file} was asked for")

    def pieces(self, file: StateFile) -> NoReturn:
        self.get(file)


def _no_checkpoints(what: object) -> InvariantError:
    return InvariantError(f"{what}: there are no checkpoints in a look at a stream")
