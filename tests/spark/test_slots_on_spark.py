"""Slots as Spark tasks: what Spark shows of them, what they leave behind, and what happens when they die or hang."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pytest
from bid_jobs import GatedBids, checkpointing, committed, hot_auctions, reference
from waiting import wait_for_it, wait_until

import penstock as ps
from penstock.core.job.events import JobState
from penstock.spark.preflight import busy_slots, host_facts, task_slots
from penstock.spark.slots import job_group

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NO_PAUSE = ps.fixed_delay(attempts=10, delay="0s")


def spark_jobs(spark, job: ps.Job) -> list[int]:
    """The ids of all Spark jobs that were slots of a job."""
    return sorted(spark.sparkContext.statusTracker().getJobIdsForGroup(job_group(job.id)))


def end(job: ps.Job) -> None:
    job.cancel()
    with pytest.raises(ps.JobCancelled):
        job.wait(120)


# --- what Spark shows ------------------------------------------------------------------------------------------------


def test_spark_shows_which_slot_of_which_job_a_spark_job_is(spark, tmp_path):
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=NO_PAUSE)
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    job = env.start("Hot auctions")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    wait_for_it(lambda: len(spark_jobs(spark, job)) == 3, "Spark shows three jobs")
    ids = spark_jobs(spark, job)
    store = spark.sparkContext._jsc.sc().statusStore()
    shown = {store.job(number).description().get(): store.job(number) for number in ids}
    assert sorted(shown) == [
        "Hot auctions: slot 0, start 1",
        "Hot auctions: slot 1, start 1",
        "Hot auctions: slot 1, start 2",
    ]
    last = shown["Hot auctions: slot 1, start 2"]
    assert last.name() == "penstock: Hot auctions, slot 1"
    assert last.jobGroup().get() == job_group(job.id)
    tags = last.jobTags().mkString(" ").split()
    assert {job_group(job.id), f"{job_group(job.id)}-slot-1.2"} <= {tag.rpartition("tag-")[2] for tag in tags} | set(
        tags
    )
    end(job)


def test_a_session_that_cannot_host_a_job_says_all_that_is_wrong_at_once(spark, tmp_path, monkeypatch):
    facts = host_facts(spark)
    assert facts.master == "local[4]"
    assert task_slots(spark) == 4
    assert facts.conf["spark.app.name"] == "penstock-tests"
    env = ps.Environment(spark, parallelism=3, spare_slots=2, checkpointing=checkpointing(tmp_path))
    hot_auctions(env, ps.nexmark.bids(events=10), tmp_path / "out")
    with pytest.raises(
        ps.UsageError, match=r"needs 5 slots \(2 of them spare\), Spark \(local\[4\]\) has 4 cores, \d of"
    ):
        env.start("too-wide")


def test_slots_of_a_running_job_count_as_busy_and_a_job_that_gets_no_room_says_so(spark, tmp_path):
    env = ps.Environment(spark, parallelism=3, checkpointing=checkpointing(tmp_path))
    hot_auctions(env, GatedBids(tmp_path / "gate"), tmp_path / "out")
    first = env.start("first")
    wait_until(first, lambda v: v.state is JobState.RUNNING)
    # What Spark shows lags behind what it does, also of the slots of other tests.
    wait_for_it(lambda: busy_slots(spark) == 3, "three slots are busy")
    narrow = ps.Environment(spark, parallelism=2, slots=ps.SlotSettings(start_timeout_ms=2_000))
    hot_auctions(narrow, GatedBids(tmp_path / "gate"), tmp_path / "out2")
    with pytest.raises(ps.JobFailed, match=r"only \d of 2 slots came up") as raised:
        narrow.run("second")
    # The slot that had come up is gone, which Spark may not show yet.
    assert re.search("runs 4 tasks at once, and has room for [01] more tasks now", str(raised.value.hint))
    end(first)


# --- failures --------------------------------------------------------------------------------------------------------


class Fuse:
    """Raises once, when a file appears."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._path.exists():
            try:
                self._path.unlink()
            except FileNotFoundError:
                # Another subtask was faster, and fails for both.
                return batch
            raise RuntimeError("the fuse has blown")
        return batch


def test_a_failed_task_restarts_in_place_and_no_spark_job_is_touched(spark, tmp_path):
    gate, fuse = tmp_path / "gate", tmp_path / "fuse"
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=NO_PAUSE)
    (
        env.read(GatedBids(gate))
        .map_batches(Fuse(fuse))
        .watermark("ts", delay="4s")
        .where("price > 100")
        .key_by("auction")
        .window(ps.tumbling("10s"))
        .aggregate(n=ps.count(), top=ps.max("price"))
        .write(ps.parquet(str(tmp_path / "out")))
    )
    job = env.start("fuse")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    hosting = spark_jobs(spark, job)
    fuse.touch()
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert [slot.pid for slot in after.slots] == [slot.pid for slot in before.slots]
    assert "the fuse has blown" in after.failures[-1].text
    assert spark_jobs(spark, job) == hosting
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    assert committed(spark, tmp_path / "out") == reference(spark)


class Counted(ps.Source):
    """Another source, with a line in a file for each time that it is opened."""

    def __init__(self, source: ps.Source, opened: Path) -> None:
        self._source = source
        self._opened = opened

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    def splits(self, parallelism: int) -> list[bytes]:
        return self._source.splits(parallelism)

    def open(self, splits) -> ps.SourceReader:
        with self._opened.open("a") as lines:
            lines.write("opened\n")
        return self._source.open(splits)


def test_a_failed_task_restarts_its_own_pipeline_and_no_other(spark, tmp_path):
    gate, fuse = tmp_path / "gate", tmp_path / "fuse"
    opened = [tmp_path / "opened-0", tmp_path / "opened-1"]
    env = ps.Environment(spark, parallelism=2, checkpointing=checkpointing(tmp_path), restart=NO_PAUSE)
    for number, lines in enumerate(opened):
        (
            env.read(Counted(GatedBids(gate), lines), name=f"bids {number}")
            .map_batches(Fuse(fuse if number == 0 else tmp_path / "never"))
            .watermark("ts", delay="4s")
            .where("price > 100")
            .key_by("auction")
            .window(ps.tumbling("10s"))
            .aggregate(n=ps.count(), top=ps.max("price"))
            .write(ps.parquet(str(tmp_path / f"out-{number}")))
        )
    job = env.start("pipelines")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1)
    fuse.touch()
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert "the fuse has blown" in after.failures[-1].text
    wait_until(job, lambda v: v.checkpoints.counts.completed > after.checkpoints.counts.completed)
    gate.touch()
    last = job.wait(120)
    assert (last.state, last.restarts, last.epoch) == (JobState.FINISHED, 1, 2)
    assert [slot.pid for slot in last.slots] == [slot.pid for slot in before.slots]
    assert [len(lines.read_text().splitlines()) for lines in opened] == [4, 2]
    right = reference(spark)
    assert [committed(spark, tmp_path / f"out-{number}") == right for number in range(2)] == [True, True]


def test_a_spare_slot_takes_the_place_of_a_killed_one_and_is_replaced_itself(spark, tmp_path):
    gate = tmp_path / "gate"
    env = ps.Environment(spark, parallelism=2, spare_slots=1, checkpointing=checkpointing(tmp_path), restart=NO_PAUSE)
    hot_auctions(env, GatedBids(gate), tmp_path / "out")
    job = env.start("spare")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 1 and v.spares)
    os.kill(before.slots[0].pid, signal.SIGKILL)
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 2)
    assert [slot.pid for slot in after.slots] == [before.spares[0].pid, before.slots[1].pid]
    again = wait_until(job, lambda v: v.spares)
    assert again.spares[0].pid not in {slot.pid for slot in (*before.slots, *before.spares)}
    # The job goes on with its slots in other places than their numbers say.
    wait_until(job, lambda v: v.checkpoints.counts.completed > after.checkpoints.counts.completed)
    os.kill(again.slots[1].pid, signal.SIGKILL)
    wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch == 3)
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    assert committed(spark, tmp_path / "out") == reference(spark)


def test_a_hung_slot_is_found_by_its_silence_and_fenced_when_it_wakes(spark, tmp_path):
    gate = tmp_path / "gate"
    env = ps.Environment(
        spark,
        parallelism=2,
        checkpointing=checkpointing(tmp_path),
        restart=NO_PAUSE,
        # Long enough for the slot that does not hang to be heard of on a busy machine.
        slots=ps.SlotSettings(heartbeat_interval_ms=300, heartbeat_timeout_ms=10_000),
    )
    hot_auctions(env, GatedBids(gate), tmp_path / "out")
    job = env.start("hung")
    before = wait_until(job, lambda v: v.checkpoints.counts.completed >= 2)
    hung = before.slots[1].pid
    os.kill(hung, signal.SIGSTOP)
    try:
        lost = wait_until(job, lambda v: v.failures)
    finally:
        os.kill(hung, signal.SIGCONT)
    assert "slot 1 was lost: not heard of for" in lost.failures[0].text
    after = wait_until(job, lambda v: v.state is JobState.RUNNING and v.epoch >= 2)
    assert after.slots[0].pid == before.slots[0].pid
    assert after.slots[1].pid != hung
    gate.touch()
    assert job.wait(120).state is JobState.FINISHED
    assert committed(spark, tmp_path / "out") == reference(spark)
    wait_for_it(lambda: not Path(f"/proc/{hung}").exists(), "the process of the fenced slot is gone")
