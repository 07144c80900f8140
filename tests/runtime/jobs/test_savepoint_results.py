"""Results that only a savepoint promises: the job goes on from it, and ends before its next checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from documented_sources import Sqlite, noted, rows_of_sqlite
from gated import EVERYTHING, ROWS, SCHEMA, SPLITS, Gate, Numbers
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.restoring import restore
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.master.starting import starting_point
from penstock.settings import CheckpointSettings, Retention
from penstock.storage.files import FileStore
from penstock.storage.tenure import take_over

SETTINGS = settings(checkpoint=CheckpointSettings(interval_ms=None, retention=Retention.DELETE))
FOLDER = layout.job_folder("job-1")


class Parquet:
    """Files that slots commit."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"

    def sink(self, job):
        return ps.parquet(str(self._out))

    def shown(self):
        tables = [pq.read_table(file) for file in sorted(self._out.glob("part-*.parquet"))]
        return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist()) if tables else []

    def left(self):
        """Files that are prepared."""
        return sorted(self._out.glob("_*/*/*.parquet"))


class Database:
    """A data sink, which the driver commits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = folder / "notes"
        self._notes.mkdir()

    def sink(self, job):
        given = ps.data_sink(Sqlite, options={"path": self._folder / "table", "notes": self._notes})
        return given.fitted(SCHEMA).placed(str(self._folder / "checkpoints"), f"results/{job}/sink")

    def shown(self):
        return sorted((int(split), int(row)) for split, row in rows_of_sqlite(self._folder / "table"))

    def left(self):
        return noted(self._notes, "aborts")


class Story:
    """What a test does with a job, one thing after another: each is done as soon as the one before has come true."""

    def __init__(self, target: Path) -> None:
        self.steps = []
        self.answers = []
        self._asked = 0
        self._target = target
        self._waits_for = None

    def then(self, do, until):
        self.steps.append((do, until))

    def ask(self, kind):
        def do(running):
            target = str(self._target) if kind is RequestKind.SAVEPOINT else None
            running.driver.request(SnapshotRequest(kind=kind, target=target), self.answers.append)

        self._asked += 1
        asked = self._asked
        self.then(do, lambda _: len(self.answers) >= asked)

    def __call__(self, running):
        if self._waits_for is not None and not self._waits_for(running.driver.view()):
            return
        if self.steps:
            do, self._waits_for = self.steps.pop(0)
            do(running)


@pytest.fixture(params=[Parquet, Database])
def results(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def jobs(threaded_job, tmp_path, results):
    return Jobs(threaded_job, tmp_path, results)


class Jobs:
    """A first job that takes a savepoint, and a second one that starts from it."""

    def __init__(self, threaded_job, folder, results) -> None:
        self._make = threaded_job
        self.folder = folder
        self.results = results
        self.gate = Gate(folder / "gate")
        self.story = Story(folder / "saved")

    def plan(self, job):
        steps = [
            ("numbers", ReadStep(source=Numbers(self.gate)), ()),
            (
                "sink",
                WriteStep(sink=self.results.sink(job), schema=SCHEMA),
                (Input(node=0, partitioning=Partitioning.HASH, keys=("row",)),),
            ),
        ]
        nodes = tuple(
            Node(number=n, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=n == 0)
            for n, (name, step, inputs) in enumerate(steps)
        )
        return with_splits(build_plan(nodes, parallelism=2, max_parallelism=None))

    def flow_to(self, rows):
        """Let records flow, in the attempt that runs."""
        arrived = SPLITS * rows
        self.story.then(
            lambda _: self.gate.open_to(rows),
            lambda view: view.state is JobState.RUNNING and view.rows_out >= arrived - self._before(view),
        )

    def _before(self, view):
        """What the attempt need not read."""
        return 0 if view.restored_checkpoint is None else SPLITS * self.checkpointed

    checkpointed = 0

    def checkpoint(self, rows):
        self.story.ask(RequestKind.CHECKPOINT)
        self.story.then(lambda _: setattr(self, "checkpointed", rows), lambda _: True)

    def savepoint(self):
        self.story.ask(RequestKind.SAVEPOINT)

    def save_behind_a_checkpoint(self):
        """A checkpoint has the first 500 rows of every split, and a savepoint the first 1,000."""
        self.flow_to(500)
        self.checkpoint(500)
        self.flow_to(1_000)
        self.savepoint()

    def lose_a_slot(self):
        self.story.then(
            lambda running: running.slots.kill(1), lambda view: view.restarts == 1 and view.state is JobState.RUNNING
        )

    def cancel(self):
        self.story.then(lambda running: running.driver.cancel(), lambda _: True)

    def run_first(self, **options):
        job = self._make(self.plan("job-1"), SETTINGS, **options)
        assert job.run(self.story) is JobState.CANCELLED, job.driver.view().failures
        return job

    def saved(self):
        (savepoint,) = [a for a in self.story.answers if isinstance(a, CompletedCheckpoint) and a.kind.is_savepoint]
        return savepoint.location

    def run_second(self):
        self.gate.open_to(ROWS)
        path = self.saved()
        point = starting_point(FileStore(path), restore(path), self.plan("job-2"), SETTINGS)
        job = self._make(point.plan, SETTINGS, job="job-2", started_from=point.record)
        assert job.run() is JobState.FINISHED, job.driver.view().failures


def test_a_job_that_starts_from_a_savepoint_shows_what_the_first_job_did_not_come_to(jobs, results):
    jobs.save_behind_a_checkpoint()
    jobs.flow_to(1_500)
    jobs.cancel()
    jobs.run_first()
    assert len(results.shown()) == SPLITS * 500
    jobs.run_second()
    assert results.shown() == EVERYTHING


def test_also_if_there_was_no_checkpoint_before_it(jobs, results):
    jobs.flow_to(500)
    jobs.savepoint()
    jobs.cancel()
    jobs.run_first()
    jobs.run_second()
    assert results.shown() == EVERYTHING


def test_also_if_the_first_job_had_gone_back_behind_the_savepoint(jobs, results):
    """1. A savepoint is taken. 2. A slot is lost: the job goes back to the checkpoint before. 3. It is cancelled before
    its next one. What it had prepared for the savepoint is nobody's in the second attempt, and must not be removed."""
    jobs.save_behind_a_checkpoint()
    jobs.lose_a_slot()
    jobs.flow_to(1_500)
    jobs.cancel()
    jobs.run_first()
    assert len(results.shown()) == SPLITS * 500
    jobs.run_second()
    assert results.shown() == EVERYTHING


@pytest.mark.parametrize("results", [Parquet], indirect=True)  # the database refuses ids that it has seen
def test_nothing_is_lost_if_the_first_job_went_another_way_since(jobs, results):
    """Like the one before, but the second attempt completes a checkpoint: records between are then shown by both jobs,
    as those behind a savepoint are that another job starts from."""
    jobs.save_behind_a_checkpoint()
    jobs.lose_a_slot()
    jobs.flow_to(1_500)
    jobs.checkpoint(1_500)
    jobs.cancel()
    jobs.run_first()
    jobs.run_second()
    assert set(results.shown()) == set(EVERYTHING)


def test_a_checkpoint_that_follows_commits_it_and_nothing_is_left_for_others(jobs, results):
    jobs.flow_to(500)
    jobs.savepoint()
    jobs.flow_to(1_000)
    jobs.checkpoint(1_000)
    jobs.flow_to(1_500)
    jobs.cancel()
    job = jobs.run_first()
    assert len(results.shown()) == SPLITS * 1_000
    assert job.store.list_files("") == []
    assert results.left() == []


def test_another_driver_that_cancels_the_job_keeps_it_too(jobs, results):
    """1. A savepoint is taken. 2. The driver dies. 3. Another one takes the job over, goes back to the checkpoint
    before, and is told to cancel it."""
    jobs.save_behind_a_checkpoint()
    store = FileStore(jobs.folder / "checkpoints")
    first = jobs._make(jobs.plan("job-1"), SETTINGS, tenure=take_over(store, FOLDER))
    first.driver.start(first.clock.now())
    while jobs.story.steps or not jobs.story.answers[1:]:
        first.driver.turn(first.clock.now())
        jobs.story(first)
        first.transport.wait(10)
    first.close()
    jobs.story.then(lambda _: None, lambda view: view.state is JobState.RUNNING)
    jobs.cancel()
    jobs.run_first(tenure=take_over(store, FOLDER))
    assert len(results.shown()) == SPLITS * 500
    jobs.run_second()
    assert results.shown() == EVERYTHING
