"""Drivers of one job on one Spark: who waits, who goes on, and what becomes of a job that has ended."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import lasting_driver
import pyarrow.parquet as pq
import pytest
from waiting import wait_until
from zookeeper_server import ZooKeeperServer

import penstock as ps
from penstock.api.high_availability import HighAvailability
from penstock.core.errors import JobCancelled, JobTakenOver, SnapshotFailed

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(lasting_driver)

TIMEOUT_S = 240
LEASE = "60s"
"""Nobody waits for it: who lets go of a job says so. Nor is a job taken from a driver that a busy machine holds up."""


def numbers(spark, folder: Path, where: HighAvailability | None = None, **options) -> ps.Environment:
    env = ps.Environment(
        spark,
        parallelism=1,
        checkpointing=ps.Checkpointing(interval="200ms", directory=folder / "checkpoints"),
        high_availability=where or ps.ha_files(folder / "drivers", lease=LEASE),
        **options,
    )
    frame = spark.range(5).selectExpr("'frame' as split", "id as number")
    env.read(lasting_driver.Numbers(folder), name="numbers").union(env.from_dataframe(frame, name="frame")).write(
        ps.parquet(str(folder / "out"))
    )
    return env


def shown(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in (folder / "out").glob("*.parquet"))


def wait_for_checkpoint(job: ps.Job, *, more_than: int = 0) -> None:
    wait_until(job, lambda view: view.checkpoints.counts.completed > more_than)


def have_it_lose(leader: ps.Job) -> None:
    """A driver that has a checkpoint lets go of the job, as one does that lost it."""
    wait_for_checkpoint(leader)
    leader._lose()
    with pytest.raises(JobTakenOver):
        leader.wait(TIMEOUT_S)


ROWS = lasting_driver.ROWS * lasting_driver.SPLITS + 5


def test_a_job_is_known_by_its_name_and_stays_ended(spark, tmp_path, caplog):
    (tmp_path / "gate").touch()
    first = numbers(spark, tmp_path).start("Hot Numbers")
    assert first.id == "hot-numbers"
    first.wait(TIMEOUT_S)
    again = numbers(spark, tmp_path).start("Hot Numbers")
    assert again.wait(TIMEOUT_S).state is ps.JobState.FINISHED
    assert "job 'Hot Numbers' has ended before: it was finished, and is not started again" in caplog.messages
    assert shown(tmp_path) == ROWS
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    anew = ps.ha_files(tmp_path / "drivers", lease=LEASE, restart_finished=True)
    numbers(spark, tmp_path, anew).start("Hot Numbers").wait(TIMEOUT_S)
    assert shown(tmp_path) == 2 * ROWS


def test_a_driver_on_standby_says_so_and_goes_on_when_the_other_is_gone(spark, tmp_path, caplog):
    """1. One driver has the job, two wait; one of them leaves. 2. The first lets go of the job, as one does that lost
    it. 3. The other one goes on from its checkpoint, without asking for splits or landing the DataFrame again."""
    leader = numbers(spark, tmp_path).start("numbers")
    waiting, leaving = (numbers(spark, tmp_path).start("numbers") for _ in range(2))
    assert [job.view().state for job in (waiting, leaving)] == [ps.JobState.STANDBY] * 2
    assert sum("is on standby: another driver has it" in message for message in caplog.messages) == 2
    with pytest.raises(SnapshotFailed, match="on standby"):
        waiting.savepoint()
    leaving.cancel()
    with pytest.raises(JobCancelled, match="left job 'numbers' before it had it"):
        leaving.wait(TIMEOUT_S)
    have_it_lose(leader)
    (tmp_path / "gate").touch()
    assert waiting.wait(TIMEOUT_S).restored_checkpoint is not None
    assert any(
        message.startswith("job 'numbers' was taken over; it goes on from checkpoint") for message in caplog.messages
    )
    assert shown(tmp_path) == ROWS
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_a_program_that_does_not_fit_the_checkpoint_does_not_take_the_job_over(spark, tmp_path):
    leader = numbers(spark, tmp_path).start("numbers")
    have_it_lose(leader)
    other = ps.Environment(
        spark,
        parallelism=1,
        checkpointing=ps.Checkpointing(directory=tmp_path / "checkpoints"),
        high_availability=ps.ha_files(tmp_path / "drivers"),
    )
    other.read(lasting_driver.Numbers(tmp_path), name="others").write(ps.parquet(str(tmp_path / "out")))
    with pytest.raises(ps.UsageError, match="numbers"):
        other.start("numbers")
    (tmp_path / "gate").touch()
    numbers(spark, tmp_path).start("numbers").wait(TIMEOUT_S)
    assert shown(tmp_path) == ROWS


def test_a_zookeeper_that_is_away_for_a_while_holds_checkpoints_up_and_does_no_harm(spark, tmp_path):
    """1. The server dies: the next checkpoint waits for it. 2. It comes up again: checkpoints go on, the driver has its
    job still, and nothing was restarted."""
    server = ZooKeeperServer(tmp_path)
    try:
        job = numbers(spark, tmp_path, ps.zookeeper(server.hosts, session_timeout="60s")).start("numbers")
        wait_for_checkpoint(job)
        server.stop()
        before = job.view().checkpoints.counts.completed
        server.start()
        wait_for_checkpoint(job, more_than=before)
        (tmp_path / "gate").touch()
        view = job.wait(TIMEOUT_S)
    finally:
        server.close()
    assert (view.state, view.restarts) == (ps.JobState.FINISHED, 0)
    assert shown(tmp_path) == ROWS


def test_a_job_without_checkpoints_cannot_outlive_its_driver(spark, tmp_path):
    with pytest.raises(ps.UsageError, match="nothing for another driver to go on from"):
        ps.Environment(spark, high_availability=ps.ha_files(tmp_path))


def test_a_step_with_a_part_on_the_driver_cannot_be_taken_over_yet_and_that_is_said_at_the_start(spark, tmp_path):
    env = numbers(spark, tmp_path)
    env.from_dataframe(spark.range(3)).for_each_checkpoint(lambda frame, checkpoint: None, name="to table")
    with pytest.raises(ps.UsageError, match="step 'to table' has a part on the driver"):
        env.start("numbers")
    assert not (tmp_path / "drivers").exists()
