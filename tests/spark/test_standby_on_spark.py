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
    leader._parts.leader.is_lost = True
    leader._lose()
    with pytest.raises(JobTakenOver):
        leader.wait(TIMEOUT_S)


ROWS = lasting_driver.ROWS * lasting_driver.SPLITS + 5


def test_a_job_is_known_by_its_name_and_stays_ended(spark, tmp_path, caplog):
    (tmp_path / "gate").touch()
    first = numbers(spark, tmp_path).start("Hot Numbers")
    assert first.id.startswith("hot-numbers-")
    first.wait(TIMEOUT_S)
    again = numbers(spark, tmp_path).start("Hot Numbers")
    assert again.wait(TIMEOUT_S).state is ps.JobState.FINISHED
    assert "job 'Hot Numbers' has ended before with the outcome finished, and is not started again" in caplog.messages
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
    assert sum("is on standby: another driver has job" in message for message in caplog.messages) == 2
    with pytest.raises(SnapshotFailed, match="on standby"):
        waiting.savepoint()
    leaving.cancel()
    with pytest.raises(JobCancelled, match="has left the standby for job 'numbers'"):
        leaving.wait(TIMEOUT_S)
    have_it_lose(leader)
    (tmp_path / "gate").touch()
    assert waiting.wait(TIMEOUT_S).restored_checkpoint is not None
    assert any(
        message.startswith("this driver has taken job 'numbers' over; the job goes on from checkpoint")
        for message in caplog.messages
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
    with pytest.raises(ps.UsageError, match="another driver would have no checkpoint to go on from"):
        ps.Environment(spark, high_availability=ps.ha_files(tmp_path))


def test_a_streaming_frame_goes_on_being_landed_where_the_driver_before_left_off(spark, tmp_path):
    """1. One driver has landed a batch, and another waits. 2. The first loses the job: its query stops. 3. The other
    one goes on with the same query. 4. When the job is stopped nothing of what was landed is left, and to start it
    again does nothing."""
    (tmp_path / "in").mkdir()
    calls: list[int] = []
    queries = len(spark.streams.active)

    def land(*numbers: int) -> None:
        hidden = tmp_path / f".{numbers[0]}"
        hidden.write_text("\n".join(f'{{"number": {number}}}' for number in numbers))
        hidden.rename(tmp_path / "in" / f"{numbers[0]}.json")

    def landing() -> ps.Job:
        env = ps.Environment(
            spark,
            parallelism=1,
            checkpointing=ps.Checkpointing(interval="200ms", directory=tmp_path / "checkpoints"),
            high_availability=ps.ha_files(tmp_path / "drivers", lease="2s"),
        )
        frame = spark.readStream.schema("number long").json(str(tmp_path / "in"))
        landed = env.from_stream(frame, name="landed")
        landed.write(ps.parquet(str(tmp_path / "out")))
        landed.for_each_checkpoint(lambda _, checkpoint: calls.append(checkpoint), name="calls")
        return env.start("landed")

    leader, waiting = landing(), landing()
    land(0, 1)
    wait_until(leader, lambda _: shown(tmp_path) == 2)
    have_it_lose(leader)
    land(2, 3)
    wait_until(waiting, lambda _: shown(tmp_path) == 4)
    waiting.stop(savepoint=tmp_path / "saved")
    rows = [row["number"] for file in (tmp_path / "out").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted(rows) == [0, 1, 2, 3]
    assert len(calls) == len(set(calls)) == 2
    assert landing().wait(TIMEOUT_S).state is ps.JobState.FINISHED
    assert (len(calls), len(spark.streams.active)) == (2, queries)
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()] == []


def test_a_table_that_is_not_where_the_driver_before_had_it_is_refused(spark, tmp_path):
    def into(folder: Path) -> ps.Environment:
        env = ps.Environment(
            spark,
            parallelism=1,
            checkpointing=ps.Checkpointing(interval="200ms", directory=tmp_path / "checkpoints"),
            high_availability=ps.ha_files(tmp_path / "drivers", lease="2s"),
        )
        env.read(lasting_driver.Numbers(tmp_path), name="numbers").write(ps.table("moved", path=folder), name="table")
        return env

    try:
        have_it_lose(into(tmp_path / "here").start("moved"))
        spark.sql("DROP TABLE moved")
        with pytest.raises(
            ps.UsageError, match=r"table moved are in .*/there for this driver, and in .*/here for the driver"
        ):
            into(tmp_path / "there").start("moved")
    finally:
        spark.sql("DROP TABLE IF EXISTS moved")
