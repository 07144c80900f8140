"""Checkpoint hooks, and a source whose data says where checkpoints begin, on a real Spark."""

from __future__ import annotations

import os
import signal

import pytest
from marked_logs import Logs, MarkedSource, Marks
from waiting import wait_until

import penstock as ps
from penstock.core.job.events import JobState


class Positions(ps.CheckpointHook):
    """Keeps a number with every checkpoint."""

    name = "positions"

    def __init__(self) -> None:
        self.story: list[tuple] = []
        self.kept: dict[int, bytes] = {}

    def trigger(self, checkpoint, timestamp_ms):
        self.kept[checkpoint] = b"%d" % len(self.kept)
        return self.kept[checkpoint]

    def restore(self, checkpoint, state):
        self.story.append(("restore", checkpoint, state))

    def reset(self):
        self.story.append(("reset",))

    def close(self):
        self.story.append(("close",))


def environment(spark, tmp_path, **options):
    checkpointing = ps.Checkpointing(directory=tmp_path / "ckpt", **{"interval": "100ms", **options})
    return ps.Environment(
        spark, parallelism=2, checkpointing=checkpointing, restart=ps.fixed_delay(attempts=5, delay="50ms")
    )


def shown(spark, folder):
    return sorted(map(tuple, spark.read.parquet(str(folder)).collect()))


def test_every_row_is_shown_once_and_hooks_go_back_with_the_job_when_a_worker_is_killed(spark, tmp_path):
    """Each checkpoint begins behind the marks that the source's hook has put into the logs. The job is stopped with a
    savepoint, and another one goes on from it, with the hooks' state."""
    logs, positions = Logs(tmp_path / "logs", 2), Positions()
    marks = Marks(logs)
    env = environment(spark, tmp_path)
    env.read(MarkedSource(logs, marks)).repartition("number").write(ps.parquet(tmp_path / "out"))
    env.add_checkpoint_hook(positions)
    job = env.start("marked")
    logs.extend(range(1_000))
    before = wait_until(job, lambda v: v.rows_read == 1_000 and v.checkpoints.counts.completed >= 3)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    after = wait_until(job, lambda v: v.restarts == 1 and v.state is JobState.RUNNING)
    logs.extend(range(1_000, 2_000))
    restored = after.restored_checkpoint
    assert positions.story == [("reset",), ("restore", restored, positions.kept[restored])]
    assert marks.story == [("reset",), ("restore", restored, marks.placed[restored])]
    savepoint = job.stop(savepoint=tmp_path / "saved")
    stopped_at = max(marks.placed)
    assert shown(spark, tmp_path / "out") == logs.rows(until=marks.placed[stopped_at])
    assert positions.story[-1] == marks.story[-1] == ("close",)

    again, marks_again, positions_again = environment(spark, tmp_path), Marks(logs), Positions()
    again.read(MarkedSource(logs, marks_again)).repartition("number").write(ps.parquet(tmp_path / "out"))
    again.add_checkpoint_hook(positions_again)
    logs.extend(range(2_000, 3_000))
    logs.end()
    again.run("marked again", restore=savepoint)
    assert shown(spark, tmp_path / "out") == logs.rows()
    assert positions_again.story[0] == ("restore", stopped_at, positions.kept[stopped_at])
    assert marks_again.story[0] == ("restore", stopped_at, marks.placed[stopped_at])


class Broken(Positions):
    def trigger(self, checkpoint, timestamp_ms):
        raise ConnectionError("the broker is away")


def test_a_hook_that_fails_fails_the_checkpoint_and_says_so_and_the_job_goes_on(spark, tmp_path):
    logs = Logs(tmp_path / "logs", 2)
    env = environment(spark, tmp_path, interval=None, tolerable_failures=None)
    source = MarkedSource(logs)
    source.induces_checkpoints = False
    env.read(source).write(ps.parquet(tmp_path / "out"))
    env.add_checkpoint_hook(Broken())
    job = env.start("broken")
    wait_until(job, lambda v: v.state is JobState.RUNNING)
    with pytest.raises(ps.SnapshotFailed, match="hook positions: ConnectionError: the broker is away"):
        job.checkpoint()
    assert job.view().state is JobState.RUNNING
    job.cancel()
    job.finish()


def test_state_of_a_hook_that_the_program_no_longer_has_is_refused_when_the_job_is_started(spark, tmp_path):
    logs = Logs(tmp_path / "logs", 2)
    env = environment(spark, tmp_path, interval=None)
    env.read(MarkedSource(logs, Marks(logs))).write(ps.parquet(tmp_path / "out"))
    job = env.start("hooked")
    logs.extend(range(10))
    wait_until(job, lambda v: v.rows_read == 10)
    savepoint = job.stop(savepoint=tmp_path / "saved")
    again = environment(spark, tmp_path)
    again.read(MarkedSource(logs)).write(ps.parquet(tmp_path / "out"))
    with pytest.raises(ps.UsageError, match="has state of hooks that the program does not have: marks"):
        again.start("unhooked", restore=savepoint)
