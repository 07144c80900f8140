"""The parts of the recovery benchmark that need no Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.api.connector import WriterContext
from penstock.bench.latency import SCHEMA
from penstock.bench.recovery import Recoveries, _well_epoch, summary
from penstock.bench.recovery_job import Fuse, NotingSink, committed_batches
from penstock.core.errors import UserCodeError
from penstock.core.job.events import JobState

BATCH = pa.RecordBatch.from_pylist([{"key": 1, "created_us": 2}], schema=SCHEMA)


def test_the_fuse_blows_once_each_time_it_is_lit_and_notes_when(tmp_path):
    fuse = Fuse(str(tmp_path / "fuse"))
    assert fuse(BATCH) is BATCH
    assert fuse.blown_ns() is None
    fuse.light()
    with pytest.raises(UserCodeError):
        fuse(BATCH)
    first = fuse.blown_ns()
    assert first is not None
    assert fuse(BATCH) is BATCH
    fuse.light()
    assert fuse.blown_ns() is None


def test_the_sink_notes_the_first_result_of_each_attempt_when_it_comes_and_when_it_is_committed(tmp_path):
    sink = NotingSink(str(tmp_path / "notes"))
    sink.start("job")
    writer = sink.writer(WriterContext(job="job", subtask=1, parallelism=2, epoch=3))
    assert writer.prepare(1)() == []
    writer.write(BATCH)
    emitted = sink.first_ns("emitted", after_epoch=2)
    assert emitted is not None
    assert sink.first_ns("emitted", after_epoch=3) is None
    committables = writer.prepare(2)()
    assert sink.first_ns("committed", after_epoch=2) is None
    sink.commit(committables)
    committed = sink.first_ns("committed", after_epoch=2)
    assert committed is not None
    sink.commit(committables)
    assert sink.first_ns("committed", after_epoch=2) == committed
    assert writer.prepare(3)() == []


def test_an_attempt_that_a_view_does_not_show_yet_is_not_the_one_to_fail(tmp_path):
    """The view of a job is made now and then; what the sink noted is newer."""
    sink = NotingSink(str(tmp_path / "notes"))
    sink.start("job")
    job = ViewedJob(epoch=1)
    assert _well_epoch(job, sink, 0) is None
    sink.commit([b"committed-1-0"])
    assert _well_epoch(job, sink, 0) == 1
    sink.commit([b"committed-2-1"])
    assert _well_epoch(job, sink, 0) is None
    job.epoch = 2
    assert _well_epoch(job, sink, 0) == 2
    assert _well_epoch(job, sink, 1) is None


class ViewedJob:
    """A job whose view says that its attempt `epoch` runs."""

    is_over = False

    def __init__(self, epoch):
        self.epoch = epoch

    def view(self):
        return SimpleNamespace(state=JobState.RUNNING, epoch=self.epoch, spares=())


def test_batches_are_found_by_their_commits(tmp_path):
    assert committed_batches(tmp_path) == {}
    (tmp_path / "commits").mkdir()
    for name in ("0", "1", ".1.crc", ".2.tmp"):
        (tmp_path / "commits" / name).touch()
    assert sorted(committed_batches(tmp_path)) == [0, 1]


def test_medians_are_printed():
    found = Recoveries(in_place=[0.3, 0.1, 0.2], replacement=[1.0], spare=[0.5], spark_restart=[3.0, 4.0])
    assert summary(found) == {
        "in_place_seconds": 0.2,
        "replacement_seconds": 1.0,
        "spare_seconds": 0.5,
        "spark_restart_seconds": 3.5,
    }
