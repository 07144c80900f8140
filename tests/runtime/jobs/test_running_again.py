"""Whole jobs whose program is run again: they go on, show every row once, and leave nothing that grows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gated import EVERYTHING, ROWS, Gate, Numbers
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.program import Program
from penstock.connectors.parquet import ParquetSink
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.master.earlier_jobs import delete_job
from penstock.runtime.master.landed_inputs import MARK
from penstock.settings import CheckpointSettings, Retention
from penstock.storage.files import FileStore
from penstock.storage.tenure import take_over

FOLDER = layout.job_folder(JobId("job-1"))
SETTINGS = settings(checkpoint=CheckpointSettings(interval_ms=20, retention=Retention.KEEP))


class Count(ps.KeyedFunction):
    """The rows of a split are numbered: a state that was lost, or a row that was done twice, shows."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        return {"split": row["split"], "row": row["row"], "n": self.seen.get()}


def plan_of(out: Path, gate: Gate, job_settings=SETTINGS):
    program = Program(job_settings)
    counted = program.read(Numbers(gate), name="rows").key_by("split")
    counted.process(Count(), schema="split bigint, row bigint, n bigint", name="counts").write(ps.parquet(str(out)))
    return with_splits(program.plan())


def shown(out: Path) -> list[tuple[int, int]]:
    rows = [row for file in out.glob("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    assert all(row["n"] == row["row"] + 1 for row in rows)
    return sorted((row["split"], row["row"]) for row in rows)


@pytest.fixture
def run_again(threaded_job, tmp_path):
    """One run of the program, which goes on with what the runs before it left."""

    def make(gate: Gate, *, job_settings=SETTINGS, **options):
        found = take_over(FileStore(tmp_path / "checkpoints"), FOLDER, goes_on=True)
        plan = plan_of(tmp_path / "out", gate, job_settings)
        return threaded_job(plan, job_settings, tenure=found, is_run=True, **options)

    return make


def cancel_after(checkpoints: int):
    def each_turn(running):
        if running.driver.view().checkpoints.counts.completed >= checkpoints:
            running.driver.cancel()

    return each_turn


def test_a_job_that_was_cancelled_goes_on_and_shows_every_row_once(run_again, tmp_path):
    gate, kept = Gate(tmp_path / "gate"), []
    for number in range(1, 4):
        gate.open_to(ROWS * number // 4)
        job = run_again(gate)
        assert job.run(cancel_after(3)) is JobState.CANCELLED
        kept.append([path for path in job.store.list_files(FOLDER) if path.endswith(layout.METADATA_NAME)])
        job.close()
    # One checkpoint is kept, of the newest run, and its number is above those of the runs before.
    assert [len(files) for files in kept] == [1, 1, 1]
    numbers = [layout.checkpoint_number(files[0].split("/")[1]) for files in kept]
    assert numbers == sorted(set(numbers))
    gate.open_to(ROWS)
    last = run_again(gate)
    assert last.run() is JobState.FINISHED, last.driver.view().failures
    assert last.driver.view().restored_checkpoint == numbers[-1]
    assert shown(tmp_path / "out") == EVERYTHING


def test_a_job_that_has_finished_does_nothing_when_it_is_run_again(run_again, tmp_path):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS)
    job = run_again(gate)
    assert job.run() is JobState.FINISHED
    job.close()
    again = run_again(gate)
    assert again.run() is JobState.FINISHED
    assert again.slots.started == []
    assert shown(tmp_path / "out") == EVERYTHING
    left = {path.split("/")[1] for path in again.store.list_files(FOLDER)}
    assert left <= {"counter", "drivers", "tenures", "outcome", "leases"}


def test_a_job_that_has_finished_stays_finished_when_its_next_run_is_cancelled(run_again, tmp_path):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS)
    job = run_again(gate)
    assert job.run() is JobState.FINISHED
    job.close()
    again = run_again(gate)
    assert again.run(lambda running: running.driver.cancel()) is JobState.FINISHED


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_was_stopped_goes_on_from_its_savepoint(run_again, tmp_path, drain):
    gate, answers = Gate(tmp_path / "gate"), []
    gate.open_to(ROWS // 2)
    request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved"), drain=drain)

    def stop(running):
        if not answers and running.driver.view().checkpoints.counts.completed >= 2:
            answers.append(None)
            running.driver.request(request, answers.append)

    job = run_again(gate)
    assert job.run(stop) is JobState.FINISHED
    job.close()
    saved = answers[-1]
    assert isinstance(saved, CompletedCheckpoint), saved
    gate.open_to(ROWS)
    again = run_again(gate)
    assert again.run() is JobState.FINISHED, again.driver.view().failures
    assert again.driver.view().restored_checkpoint == saved.checkpoint
    assert shown(tmp_path / "out") == EVERYTHING
    assert Path(saved.path).exists()


def test_a_job_whose_checkpoints_are_deleted_with_it_begins_at_its_beginning(run_again, tmp_path):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS // 2)
    deleting = settings(checkpoint=CheckpointSettings(interval_ms=20, retention=Retention.DELETE))
    job = run_again(gate, job_settings=deleting)
    assert job.run(cancel_after(2)) is JobState.CANCELLED
    job.close()
    used = job.driver.view().checkpoints.latest_completed.checkpoint
    again = run_again(gate, job_settings=deleting)
    assert again.run(cancel_after(1)) is JobState.CANCELLED
    assert again.driver.view().restored_checkpoint is None
    # A table that remembers the newest id would skip what has an id that it knows.
    assert again.driver.view().checkpoints.latest_completed.checkpoint > used


def test_what_is_left_of_earlier_jobs_goes_with_the_first_checkpoint_and_not_before(run_again, tmp_path):
    gate, seen = Gate(tmp_path / "gate"), []
    gate.open_to(ROWS)
    jobs = []
    job = run_again(gate, when_safe=lambda: seen.append(jobs[0].driver.view().checkpoints.counts.completed))
    jobs.append(job)
    assert job.run() is JobState.FINISHED
    assert len(seen) == 1
    assert seen[0] >= 1


# --- what is left of a job that nobody goes on with -------------------------------------------------------------------


def leave(store: FileStore, *paths: str) -> None:
    for path in paths:
        store.write(path, b"")


def test_all_of_a_job_goes_but_what_savepoints_need(tmp_path):
    store, gate = FileStore(tmp_path / "checkpoints"), Gate(tmp_path / "gate")
    plan = plan_of(tmp_path / "out", gate)
    staged = tmp_path / "out" / "_penstock" / "job-1" / "s0-p2-e1-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.touch()
    gone = [f"{FOLDER}/chk-3/_metadata", f"{FOLDER}/inputs/other/part", "results/job-1/write/file"]
    kept = [f"{FOLDER}/inputs/rows/{MARK}", f"{FOLDER}/inputs/rows/0-a/part", "job-2/chk-1/_metadata"]
    leave(store, *gone, *kept)
    delete_job(JobId("job-1"), [store], plan)
    assert store.list_files("") == sorted(kept)
    assert not staged.exists()
    delete_job(JobId("job-1"), [store], plan)


class OnDriver(ParquetSink):
    """Results that the driver commits, with files that show what is left."""

    @property
    def commits_on_driver(self) -> bool:
        return True


def test_what_sinks_of_the_driver_prepared_goes_with_the_job(tmp_path):
    staged = tmp_path / "out" / "_penstock" / "job-1" / "s0-p2-e1-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.touch()
    program = Program(SETTINGS)
    program.read(Numbers(Gate(tmp_path / "gate")), name="rows").write(OnDriver(path=str(tmp_path / "out")))
    delete_job(JobId("job-1"), [FileStore(tmp_path / "checkpoints")], with_splits(program.plan()))
    assert not staged.exists()


def test_what_sinks_prepared_for_a_savepoint_stays(tmp_path):
    store, gate = FileStore(tmp_path / "checkpoints"), Gate(tmp_path / "gate")
    staged = tmp_path / "out" / "_penstock" / "job-1" / "s0-p2-e1-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.touch()
    leave(store, f"{layout.promised_folder(FOLDER)}/{7:019d}", "results/job-1/write/file")
    delete_job(JobId("job-1"), [store], plan_of(tmp_path / "out", gate))
    assert store.list_files("") == ["results/job-1/write/file"]
    assert staged.exists()
