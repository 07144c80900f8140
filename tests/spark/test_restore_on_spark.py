"""Savepoints and retained checkpoints on a real Spark: started from again with another parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest
from bid_jobs import GatedBids, Held, committed, files_of_jobs
from waiting import wait_until

import penstock as ps
from penstock.core.errors import CorruptFile
from penstock.storage.locations import open_store
from penstock.storage.restoring import find_snapshot
from penstock.storage.verification import verify_directory

EVENTS, SEED = 300_000, 5


def hot_auctions(spark, tmp_path: Path, parallelism: int, *, hold: Path | None = None, **options) -> ps.Environment:
    """With `hold`, rows flow only while that file exists, and there is a step that lets them pile up meanwhile."""
    checkpointing = ps.Checkpointing(interval="200ms", directory=tmp_path / "checkpoints", **options)
    env = ps.Environment(spark, parallelism=parallelism, checkpointing=checkpointing)
    source = GatedBids(tmp_path / "gate", events=EVENTS, seed=SEED, flow=hold)
    bids = env.read(source, name="bids").watermark("ts", delay="4s")
    if hold is not None:
        bids = bids.rebalance().map(Held(hold), schema=bids.schema, name="held")
    (
        bids.key_by("auction")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(tmp_path / "out")))
    )
    return env


def test_a_job_that_was_stopped_goes_on_from_its_moved_savepoint_with_another_parallelism(spark, tmp_path):
    job = hot_auctions(spark, tmp_path, parallelism=2).start("first")
    wait_until(job, lambda view: view.checkpoints.counts.completed >= 2)
    saved = Path(job.stop(savepoint=tmp_path / "saved"))
    moved = tmp_path / "elsewhere" / "before-the-upgrade"
    moved.parent.mkdir()
    saved.rename(moved)

    env = hot_auctions(spark, tmp_path, parallelism=3)
    plan = env.restore_plan(moved)
    assert "2 -> 3" in str(plan)
    with pytest.raises(ps.UsageError, match="there is nothing at"):
        env.start("wrong", restore=saved)
    (tmp_path / "gate").touch()
    view = env.run("second", restore=ps.restore(moved, claim="claim"))
    assert view.restored_checkpoint == plan.checkpoint
    assert not moved.exists()

    assert committed(spark, tmp_path / "out") == expected(spark)


def expected(spark) -> list[tuple]:
    spark.sql(ps.nexmark.bids_sql(events=EVENTS, seed=SEED)).createOrReplaceTempView("bids_to_restore")
    rows = spark.sql(
        "SELECT auction, window.start AS s, count(*) AS n, max(price) AS top FROM bids_to_restore "
        "GROUP BY auction, window(ts, '10 seconds')"
    ).collect()
    return sorted(tuple(row) for row in rows)


def test_a_running_job_is_rescaled_in_place_and_slots_that_stay_keep_their_processes(spark, tmp_path):
    job = hot_auctions(spark, tmp_path, parallelism=2, unaligned=True).start("rescaled")
    with pytest.raises(ps.UsageError, match="Spark has 4 cores"):
        job.rescale(5)
    wait_until(job, lambda view: view.state is ps.JobState.RUNNING)
    pids: list[int | None] = []
    for parallelism in (3, 1, 4):
        job.rescale(parallelism, timeout=120)
        there = wait_until(job, lambda view, n=parallelism: [s.pid is not None for s in view.slots] == [True] * n)
        pids.append(there.slots[0].pid)
    with pytest.raises(ps.RescaleFailed, match="has 4 slots already"):
        job.rescale(4)
    (tmp_path / "gate").touch()
    view = job.wait()
    assert view.restarts == 0
    assert len(set(pids)) == 1
    assert committed(spark, tmp_path / "out") == expected(spark)
    with pytest.raises(ps.RescaleFailed, match="has ended"):
        job.rescale(2)


def test_a_job_goes_on_from_retained_unaligned_checkpoints_with_2_3_1_and_4_slots(spark, tmp_path):
    options = {"unaligned": True, "keep": "keep", "hold": tmp_path / "hold"}
    directory = tmp_path / "checkpoints"
    restore, in_flight = None, []
    for parallelism in (2, 3, 1):
        job = hot_auctions(spark, tmp_path, parallelism, **options).start(f"on-{parallelism}", restore=restore)
        wait_until(job, lambda view: view.checkpoints.counts.completed >= 1)
        options["hold"].touch()
        wait_until(job, lambda view: view.checkpoints.latest_completed.totals.persisted_bytes > 0)
        job.cancel()
        with pytest.raises(ps.JobCancelled):
            job.wait(120)
        options["hold"].unlink()
        store = open_store(directory)
        report = verify_directory(store, temporary=store.list_temporary(""))
        assert report.is_fine
        assert report.leftovers == ()
        # What the job before kept was claimed, and is gone.
        (kept,) = report.snapshots
        restore = ps.restore(directory / kept.location, claim="claim")
        in_flight.append(bytes_in_flight(directory / kept.location))
    (tmp_path / "gate").touch()
    view = hot_auctions(spark, tmp_path, 4, **options).run("on-4", restore=restore)
    assert view.restored_checkpoint is not None
    assert all(in_flight), in_flight
    assert committed(spark, tmp_path / "out") == expected(spark)
    # Of jobs that kept a checkpoint it stays known which ids are taken, and how they ended.
    assert files_of_jobs(directory) == []


def bytes_in_flight(folder: Path) -> int:
    """How much a checkpoint has saved of what was between its tasks."""
    metadata = find_snapshot(open_store(folder), str(folder)).metadata
    channels = [channel for task in metadata.channels for channel in (*task.inputs, *task.outputs)]
    return sum(length for channel in channels for _, length in channel.ranges)


def test_a_job_with_a_key_goes_on_from_a_sealed_savepoint_and_from_no_other(spark, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"a key that nobody else has")
    key.chmod(0o600)
    job = hot_auctions(spark, tmp_path, parallelism=2, seal=key).start("first")
    wait_until(job, lambda view: view.checkpoints.counts.completed >= 2)
    saved = Path(job.stop(savepoint=tmp_path / "saved"))
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o600}
    with pytest.raises(CorruptFile, match="does not fit"):
        hot_auctions(spark, tmp_path, 3, seal=b"the key of somebody else").restore_plan(saved)
    (tmp_path / "gate").touch()
    env = hot_auctions(spark, tmp_path, parallelism=3, seal=key)
    env.run("second", restore=ps.restore(saved, unpickle=False, claim="claim"))
    assert not saved.exists()
    assert committed(spark, tmp_path / "out") == expected(spark)
