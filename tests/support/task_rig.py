"""A task with a scripted host: no sockets, no threads, and background work that is done when the test says so."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from penstock.api.connector import End, Source, SourceReader
from penstock.api.steps import ReadStep
from penstock.core.barrier.select import make_handler
from penstock.core.elements import (
    Barrier,
)
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.task.checkpoints import TaskCheckpoints
from penstock.plan.graph import Edge, Partitioning, build_plan
from penstock.ports import WorkResult
from penstock.runtime.task.chain import FinishedChain, OperatorChain
from penstock.runtime.task.channels import ChannelKey, InputChannel, InputGate, Subpartition
from penstock.runtime.task.operators.base import Operator, OperatorContext
from penstock.runtime.task.operators.source import SourceOperator
from penstock.runtime.task.outputs import OutputEdge, TaskOutputs
from penstock.runtime.task.subtask import Task
from penstock.settings import CheckpointSettings

TASK = TaskId(VertexId("v"), 0)
SCHEMA = pa.schema([pa.field("n", pa.int64())])
WINDOW = 1_000


def rows(*values):
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


def barrier(number):
    return Barrier(checkpoint=CheckpointId(number), timestamp=Instant(0))


class Summing(Operator):
    """Adds up what it has seen; its state is the sum. Hands everything on and writes down what it hears."""

    def __init__(self, story, row_ms=None, pass_time=None):
        """With `row_ms` its function takes so long for a row."""
        self.story = story
        self.sum = 0
        self.busy = False
        self.tick_at = None
        self.write_error = None
        self.while_writing = lambda: None
        self.tells_inputs = False
        self.row_ms = row_ms
        self.pass_time = pass_time
        self.freeze_ms = self.write_ms = 0

    @property
    def is_row_wise(self):
        return self.row_ms is not None

    def process_input(self, batch, number):
        if not self.tells_inputs:
            super().process_input(batch, number)
            return
        self.story.append(("process", number, *batch.column(0).to_pylist()))

    @property
    def timeless_inputs(self):
        return (1,) if self.tells_inputs else ()

    def process(self, batch):
        if self.row_ms is not None:
            self.pass_time(self.row_ms * batch.num_rows)
        self.sum += sum(batch.column(0).to_pylist())
        self.story.append(("process", *batch.column(0).to_pylist()))
        self.output.emit(batch)

    def watermark(self, time_us, *, idle=False):
        self.story.append(("watermark", time_us))
        super().watermark(time_us, idle=idle)

    def tick(self, now):
        self.story.append(("tick", now))
        return self.tick_at

    def finish(self):
        self.story.append(("finish",))
        self.output.emit(rows(self.sum))

    def snapshot(self, checkpoint, options):
        self.story.append(("snapshot", checkpoint, self.sum))
        self.pass_time(self.freeze_ms)
        frozen = str(self.sum).encode()

        def write(writer):
            if self.write_error is not None:
                raise self.write_error
            self.story.append(("write", checkpoint))
            self.while_writing()
            self.pass_time(self.write_ms)
            return OperatorState(operator=OperatorId("sum"), broadcast={"sum": frozen})

        return write

    def completed(self, checkpoint):
        self.story.append(("completed", checkpoint))

    def aborted(self, checkpoint):
        self.story.append(("aborted", checkpoint))

    @property
    def pending(self):
        return self.busy

    def close(self):
        self.story.append(("close",))


class Later:
    """Background work that is done when the test says so."""

    def __init__(self):
        self.waiting = deque()

    def submit(self, work, done):
        self.waiting.append((work, done))

    def run(self):
        while self.waiting:
            self.work()()

    def work(self):
        """Do the next piece of work; returns what tells of it."""
        work, done = self.waiting.popleft()
        try:
            outcome = WorkResult(value=work())
        except Exception as error:  # noqa: BLE001  # as a real one would
            outcome = WorkResult(error=error)
        return lambda: done(outcome)


class Place:
    """Where a snapshot would be written: nothing is."""

    def __init__(self, story):
        self.story = story

    def discard(self):
        self.story.append(("take back",))


class Host:
    """The task's slot: writes down what it is told."""

    def __init__(self, story):
        self.story = story
        self.background = Later()
        self.slice_rows = 65_536
        self.time = Instant(0)
        self.states = {}
        self.acknowledged = {}
        self.discarded_from = []
        self.barriers_taken = []
        """Of which the coordinators of operators were told."""
        self.collected = {}
        """What was in flight, by checkpoint."""

    def now(self):
        return self.time

    def pass_time(self, ms):
        self.time = Instant(self.time + ms)

    def precise_ms(self):
        return float(self.time)

    def snapshot_files(self, task, barrier):
        return Place(self.story)

    def save_channels(self, task, collected, saved):
        self.collected[collected.checkpoint] = collected

    def save_no_channels(self, task, checkpoint):
        pass

    def discard(self, state, target=None):
        self.story.append(("discard", state.operators[0].broadcast["sum"] if state else None))
        self.discarded_from.append(target)

    def acknowledge(self, task, effect):
        self.states[effect.checkpoint] = effect.state
        self.acknowledged[effect.checkpoint] = effect
        self.story.append(("ack", effect.checkpoint))

    def barrier_taken(self, task, checkpoint):
        self.barriers_taken.append(checkpoint)

    def decline(self, task, effect):
        self.story.append(("decline", effect.checkpoint, effect.reason))

    def data_ended(self, task):
        self.story.append(("data ended",))

    def wants_to_end(self, task):
        self.story.append(("wants to end",))

    def finished(self, task):
        self.story.append(("finished",))

    def splits_read(self, task, operator, count):
        self.story.append(("splits read", operator, count))

    def event_time_reached(self, task, time_us):
        pass

    def step_full(self, task, operator):
        self.story.append(("full", operator))

    def catching_up(self, task, operator, is_behind):
        self.story.append(("catching up", operator, is_behind))

    def failed(self, task, error):
        self.story.append(("failed", str(error)))


class ScriptReader(SourceReader):
    def __init__(self, script):
        self._script = script

    def poll(self, max_rows, now_ms):
        assert not self._at_mark, "a mark is passed by without a word"
        return self._script.popleft() if self._script else End()

    @property
    def _at_mark(self):
        return bool(self._script) and isinstance(self._script[0], int)

    def induced_checkpoint(self):
        return self._script.popleft() if self._at_mark else None

    def snapshot(self):
        return [b"position"]


class ScriptSource(Source):
    def __init__(self, script):
        self.script = script

    @property
    def schema(self):
        return SCHEMA

    @property
    def induces_checkpoints(self):
        return any(isinstance(item, int) for item in self.script)

    def splits(self, parallelism):
        return []

    def open(self, splits):
        return ScriptReader(self.script)


class Saved:
    """Stands for the reader of saved channels: gives what the test says was in flight, by upstream subtask."""

    def __init__(self, inputs, dealt):
        self.inputs = inputs
        self.dealt = dealt

    def read(self, states):
        inputs, self.inputs = self.inputs, {}
        return {ChannelKey(0, upstream, 0): batches for upstream, batches in inputs.items()}

    def read_dealt(self, task, dealt):
        return {ChannelKey(0, upstream, 0): batches for upstream, batches in self.dealt.items()}


class Rig:
    """A task with `channels` inputs, or with a scripted source, and one output channel. A number in the script is the
    mark of that checkpoint.

    With `row_ms` it takes so long for a row. With `operators` it has these instead of the one that adds up. With
    `restore` it starts from there; `inputs` and `dealt` are what was in flight, by upstream subtask.
    """

    def __init__(
        self,
        *,
        channels=2,
        script=None,
        granted=WINDOW,
        output_bytes=10_000,
        restore=None,
        inputs=None,
        dealt=None,
        input_numbers=None,
        row_ms=None,
        operators=None,
        slice_rows=65_536,
        **checkpointing,
    ):
        self.story = []
        self.out = []
        self.grants = []
        self.taken = []
        """Upstream subtasks that were told that their data has been processed."""
        self.host = Host(self.story)
        self.sum = Summing(self.story, row_ms, self.host.pass_time)
        self.host.slice_rows = slice_rows
        operators = operators or [self.sum]
        self.sum.tells_inputs = input_numbers is not None
        self.script = deque(script or ())
        if script is not None:
            operators.insert(0, SourceOperator(ReadStep(source=ScriptSource(self.script))))
            channels = 0
        plan = build_plan((), parallelism=1, max_parallelism=128)
        edge = Edge(number=9, upstream=TASK.vertex, downstream=VertexId("w"), partitioning=Partitioning.FORWARD)
        out = Subpartition(
            ChannelKey(9, 0, 0),
            deliver=lambda key, item, cost: self.out.append(item),
            batch_bytes=WINDOW,
            window_bytes=WINDOW,
        )
        self.task = Task(
            TASK,
            chain=FinishedChain()
            if restore is not None and restore.finished
            else OperatorChain(operators, [self._context(f"operator {i}") for i in range(len(operators))]),
            gate=self._gate(channels, input_numbers or [0] * channels),
            outputs=TaskOutputs([OutputEdge(edge, plan, [out])], output_bytes=output_bytes),
            handler=make_handler(CheckpointSettings(**checkpointing), channels=channels),
            checkpoints=TaskCheckpoints(restored=None, max_concurrent=1),
            host=self.host,
        )
        if restore is not None:
            self.task.load(restore, Saved(inputs or {}, dealt or {}))
        elif self.sum not in operators:
            self.task.chain.load()
        self.task.open()
        self.story.clear()
        if granted:
            self.grant(granted)

    def _gate(self, channels, input_numbers):
        return InputGate(
            [
                InputChannel(
                    ChannelKey(0, i, 0),
                    window_bytes=WINDOW,
                    grant=self._note_grant,
                    data_taken=lambda key: self.taken.append(key.upstream),
                    input_number=input_numbers[i],
                )
                for i in range(channels)
            ]
        )

    def _context(self, name):
        return OperatorContext(
            job=JobId("job"),
            epoch=Epoch(1),
            task=TASK,
            operator=name,
            name=name,
            parallelism=1,
            max_parallelism=128,
            key_groups=(0, 127),
            now=self.host.now,
            background=self.host.background,
            restored=(),
            fresh=True,
            reader=None,
            fail=self.host.failed,
        )

    def _note_grant(self, key, granted):
        self.grants.append((key.upstream, granted))

    def grant(self, granted=WINDOW):
        key = ChannelKey(9, 0, 0)
        self.task.outputs.grant(key, granted)
        self.task.outputs.flush_channel(key)

    def data_taken(self):
        """The other end of the output has processed all data."""
        self.task.outputs.data_taken(ChannelKey(9, 0, 0))

    def run(self):
        self.task.run(self.host.time)
        return self

    def push(self, channel, *items):
        for item in items:
            cost = item.nbytes if isinstance(item, pa.RecordBatch) else 0
            self.task.gate.push(ChannelKey(0, channel, 0), item, cost)

    def steps(self, limit=100):
        """Let the task do all it can; the story since the last time."""
        did = 0
        while self.task.step(self.host.time, 10):
            did += 1
            self.task.validate()
            assert did < limit, "the task never comes to rest"
        return self.told()

    def told(self):
        story, self.story[:] = list(self.story), []
        return story

    @property
    def sent(self):
        sent, self.out[:] = list(self.out), []
        return [item.column(0).to_pylist() if isinstance(item, pa.RecordBatch) else item for item in sent]
