"""A program that is run again on a real Spark: it goes on, and is refused while it runs."""

from __future__ import annotations

import logging

import pytest
from bid_jobs import files_of_jobs
from gated import EVERYTHING, ROWS, Gate, Numbers

import penstock as ps
from penstock.core.job.events import JobState

pytestmark = pytest.mark.slow


def program(spark, tmp_path, gate, *, frame=None, checkpointing=True, parallelism=2):
    chosen = ps.Checkpointing(interval="100ms", directory=tmp_path / "ckpt") if checkpointing else None
    env = ps.Environment(spark, parallelism=parallelism, checkpointing=chosen, restart=ps.no_restart())
    stream = env.read(Numbers(gate), name="numbers") if frame is None else env.from_dataframe(frame)
    stream.write(ps.parquet(tmp_path / "out"))
    return env


def shown(spark, tmp_path):
    rows = spark.read.parquet(str(tmp_path / "out")).select("split", "row").collect()
    return sorted((row.split, row.row) for row in rows)


def completed(job, number):
    while job.view().checkpoints.counts.completed < number:
        assert not job.is_over, job.view().failures
        with pytest.raises(TimeoutError):
            job.wait(0.05)


def test_a_cancelled_job_goes_on_with_another_parallelism_and_a_finished_one_does_nothing(spark, tmp_path, caplog):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS // 2)
    job = program(spark, tmp_path, gate).start("numbers")
    completed(job, 2)
    with pytest.raises(ps.UsageError, match="job 'numbers' is running already"):
        program(spark, tmp_path, gate).start("numbers")
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)
    gate.open_to(ROWS)
    with caplog.at_level(logging.WARNING):
        view = program(spark, tmp_path, gate, parallelism=3).run("numbers")
    assert view.restored_checkpoint is not None
    assert f"job 'numbers' goes on from checkpoint {view.restored_checkpoint} of " in caplog.text
    assert shown(spark, tmp_path) == EVERYTHING
    assert files_of_jobs(tmp_path / "ckpt") == []
    with caplog.at_level(logging.WARNING):
        assert program(spark, tmp_path, gate).run("numbers").state is JobState.FINISHED
    assert "job 'numbers' has finished before" in caplog.text
    assert shown(spark, tmp_path) == EVERYTHING
    program(spark, tmp_path, gate).run("numbers", fresh=True)
    assert shown(spark, tmp_path) == sorted(EVERYTHING * 2)


def test_a_dataframe_is_landed_once_and_the_same_rows_are_read_on(spark, tmp_path):
    rows = spark.range(200_000).selectExpr("0L as split", "id as row")
    job = program(spark, tmp_path, None, frame=rows).start("frame")
    completed(job, 1)
    job.cancel()
    job.finish()
    folders = list((tmp_path / "ckpt").glob("*/inputs/*/*"))
    view = program(spark, tmp_path, None, frame=rows).run("frame")
    assert view.state is JobState.FINISHED
    assert len(folders) <= 1
    assert shown(spark, tmp_path) == [(0, number) for number in range(200_000)]


def test_a_job_that_was_stopped_goes_on_from_its_savepoint(spark, tmp_path):
    gate = Gate(tmp_path / "gate")
    gate.open_to(ROWS // 2)
    job = program(spark, tmp_path, gate).start("numbers")
    completed(job, 1)
    job.stop()
    gate.open_to(ROWS)
    program(spark, tmp_path, gate).run("numbers")
    assert shown(spark, tmp_path) == EVERYTHING


def test_without_a_checkpoint_directory_a_savepoint_needs_a_folder_and_the_job_goes_on(spark, tmp_path):
    gate = Gate(tmp_path / "gate")
    job = program(spark, tmp_path, gate, checkpointing=False).start("numbers")
    for ask in (job.savepoint, job.stop):
        with pytest.raises(ps.UsageError, match="has no checkpoint directory"):
            ask()
    gate.open_to(ROWS)
    assert job.wait(120).state is JobState.FINISHED
    assert shown(spark, tmp_path) == EVERYTHING


def test_a_checkpoint_directory_that_cannot_be_written_is_refused_at_start(spark, tmp_path):
    (tmp_path / "ckpt").write_text("in the way")
    with pytest.raises(ps.StorageError, match="a file is in the way"):
        program(spark, tmp_path, Gate(tmp_path / "gate")).start("numbers")
