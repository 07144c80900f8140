"""Whole jobs with checkpoint hooks, and sources whose data says where a checkpoint begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marked_logs import SCHEMA, Logs, MarkedSource, Marks
from threaded_jobs import CHECKPOINTS, kill_slots, settings, with_splits

from penstock.api.steps import ReadStep, WriteStep
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.task.operators.source import SPLITS
from penstock.settings import CheckpointSettings, NoRestart, SlotSettings
from penstock.spark.background import Workers
from penstock.storage.metadata import decode_metadata

PARTITIONS = 3


@pytest.fixture
def make_job(threaded_job, tmp_path):
    made = []

    def make(**options):
        made.append(Job(threaded_job, tmp_path, **options))
        return made[-1]

    yield make
    for job in made:
        job.close()


class Job:
    """A job that reads marked logs into Parquet files, behind an exchange."""

    def __init__(self, threaded_job, folder, *, hook=Marks, **options) -> None:
        self.out = folder / "out"
        self.logs = Logs(folder / "logs", PARTITIONS)
        self.hook = hook(self.logs)
        self.source = MarkedSource(self.logs, self.hook)
        self._written = 0
        self.workers = Workers(lambda: None, prefix="test-")
        self.threaded = threaded_job(
            with_splits(self._plan()),
            settings(**options),
            hooks={self.hook.name: self.hook},
            workers=self.workers.make,
        )
        self.driver = self.threaded.driver

    def close(self) -> None:
        for worker in self.workers.made:
            worker.close()

    def _plan(self):
        spread = Input(node=0, partitioning=Partitioning.HASH, keys=("number",))
        steps = [
            ("numbers", ReadStep(source=self.source), ()),
            ("sink", WriteStep(sink=parquet(self.out), schema=SCHEMA), (spread,)),
        ]
        nodes = tuple(
            Node(number=n, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=n == 0)
            for n, (name, step, inputs) in enumerate(steps)
        )
        return build_plan(nodes, parallelism=2, max_parallelism=None).with_hooks((self.hook.name,))

    def grow(self) -> None:
        """There is always something new."""
        self.logs.extend(range(self._written, self._written + 5))
        self._written += 5

    def grow_until(self, is_enough):
        """For each turn: there is something new until a view says that it is enough; then the data ends."""
        ended = []

        def each_turn(running):
            if not ended and is_enough(running.driver.view()):
                ended.append(True)
                self.logs.end()
            elif not ended:
                self.grow()

        return each_turn

    def shown(self) -> list[tuple[int, int]]:
        tables = [pq.read_table(file) for file in sorted(self.out.glob("part-*.parquet"))]
        return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist())

    def positions(self, checkpoint: CheckpointId) -> dict[str, int]:
        """By partition, where its readers were."""
        folder = layout.checkpoint_folder(layout.job_folder(self.threaded.id), checkpoint)
        path = f"{folder}/{layout.METADATA_NAME}"
        metadata = decode_metadata(path, self.threaded.store.read(path))
        states = metadata.operators[OperatorId("numbers")].subtasks.values()
        return {str(p): n for s in states for p, n in (json.loads(x) for x in s.split_lists.get(SPLITS, ()))}


@CHECKPOINTS
def test_every_checkpoint_begins_where_its_mark_is_and_goes_back_there(make_job, tmp_path, checkpoint):
    """Slots are killed on the way. What a reader has in every checkpoint is the line behind the mark; the hook is put
    back to what it said then; and every number is shown once."""
    job = make_job(checkpoint=replace(checkpoint, num_retained=50))
    gate, looked = tmp_path / "killed", {}
    kill = kill_slots(gate, times=3)
    grow = job.grow_until(lambda _: gate.exists() and len(looked) >= 8)

    def each_turn(running):
        kill(running)
        latest = running.driver.view().checkpoints.latest_completed
        if latest is not None and latest.checkpoint not in looked and not latest.kind.is_savepoint:
            looked[latest.checkpoint] = job.positions(latest.checkpoint)
        grow(running)

    assert job.threaded.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert job.shown() == job.logs.rows()
    for taken, positions in list(looked.items())[:8]:
        assert positions == {p: line + 1 for p, line in job.hook.placed[taken].items()}, taken
    assert job.hook.story[0] == ("reset",)
    assert job.hook.story[-1] == ("close",)
    restores = [call for call in job.hook.story if call[0] == "restore"]
    assert len(restores) == 3
    for _, restored, state in restores:
        assert state == job.hook.placed[restored]


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_is_stopped_has_shown_what_is_before_the_mark_and_nothing_else(make_job, tmp_path, drain):
    job = make_job(checkpoint=CheckpointSettings(interval_ms=None))
    answers = []

    def each_turn(running):
        job.grow()
        if not answers and running.driver.view().rows_read > 100:
            answers.append(None)
            request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saves"), drain=drain)
            running.driver.request(request, answers.append)

    assert job.threaded.run(each_turn) is JobState.FINISHED
    savepoint = answers[1]
    assert isinstance(savepoint, CompletedCheckpoint), savepoint
    marks = job.hook.placed[savepoint.checkpoint]
    assert job.shown() == job.logs.rows(until=marks)
    assert len(job.shown()) < len(job.logs.rows())
    metadata = decode_metadata(savepoint.path, Path(savepoint.path).read_bytes())
    assert json.loads(metadata.hooks["marks"]) == marks


class Late(Marks):
    """Puts its marks right, and is then not heard of until the checkpoint has been given up."""

    def __init__(self, logs) -> None:
        super().__init__(logs)
        self.failures = 3

    def trigger(self, checkpoint, timestamp_ms):
        super().trigger(checkpoint, timestamp_ms)
        if self.failures:
            self.failures -= 1
            raise ValueError("the outside system did not answer")


def test_a_source_does_not_wait_at_marks_of_checkpoints_that_were_aborted(make_job, tmp_path):
    """Readers may come to such a mark before they hear of the abort, or after; they are never triggered."""
    checkpoint = CheckpointSettings(interval_ms=20, tolerable_failures=None)
    job = make_job(hook=Late, checkpoint=checkpoint, restart=NoRestart())
    each_turn = job.grow_until(
        lambda view: view.checkpoints.counts.failed >= 3 and view.checkpoints.counts.completed >= 2
    )
    assert job.threaded.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert job.shown() == job.logs.rows()
    assert job.driver.view().checkpoints.counts.failed >= 3


class Unmarked(Marks):
    """Puts no marks, since the outside system has lost them."""

    def trigger(self, checkpoint, timestamp_ms):
        return b"{}"


def test_a_checkpoint_whose_mark_does_not_come_is_given_up_in_time_and_begins_at_the_end_of_the_data(make_job):
    checkpoint = CheckpointSettings(interval_ms=20, timeout_ms=100, tolerable_failures=None)
    job = make_job(hook=Unmarked, checkpoint=checkpoint, restart=NoRestart())
    each_turn = job.grow_until(lambda view: view.checkpoints.counts.failed >= 2)
    assert job.threaded.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert job.shown() == job.logs.rows()


class Stubborn(Marks):
    """Cannot be put back, the first times."""

    def __init__(self, logs) -> None:
        super().__init__(logs)
        self.refusals = 2

    def restore(self, checkpoint, state):
        super().restore(checkpoint, state)
        if self.refusals:
            self.refusals -= 1
            raise ValueError("still down")


def test_a_hook_that_cannot_be_put_back_fails_the_attempt_before_a_task_runs(make_job, tmp_path):
    job = make_job(hook=Stubborn)
    kill, gate = kill_slots(tmp_path / "killed", times=1), tmp_path / "killed"
    grow = job.grow_until(lambda v: gate.exists() and v.restarts >= 3 and v.state is JobState.RUNNING)

    def each_turn(running):
        kill(running)
        grow(running)

    assert job.threaded.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert job.shown() == job.logs.rows()
    texts = [failure.text for failure in job.driver.view().failures]
    assert texts[1:3] == ["ValueError: still down"] * 2
    assert [call[0] for call in job.hook.story] == ["reset", "restore", "restore", "restore", "close"]


class Hanging(Marks):
    """Does not return from its restore, the first time, until it is let go."""

    def __init__(self, logs) -> None:
        super().__init__(logs)
        self.gate = logs.folder / "gate"
        self.hangs = True

    def reset(self):
        super().reset()
        while self.hangs and not self.gate.exists():
            pass


def test_a_hook_that_hangs_is_named_when_its_time_is_over(make_job, tmp_path):
    checkpoint = CheckpointSettings(interval_ms=20, hook_timeout_ms=300)
    slot = SlotSettings(deploy_timeout_ms=30_000)
    job = make_job(hook=Hanging, checkpoint=checkpoint, restart=NoRestart(), slot=slot)
    try:
        assert job.threaded.run() is JobState.FAILED
    finally:
        job.hook.hangs = False
    assert job.driver.cause.text == "after 300 ms these hooks were not restored: 'marks'"
