"""The sink over a stream writer, piece by piece: what a subtask prepares, what the driver commits and aborts."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802

from __future__ import annotations

import threading
from pathlib import Path

import documented_sources as documented
import msgspec
import pyarrow as pa
import pytest
from commits_rig import hold_that
from documented_sources import Files, Rows, noted, rows_of_files
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter

import penstock as ps
from penstock.api.connector import UserCodeRaised, WriterContext
from penstock.api.hold import HoldUnknown
from penstock.core.errors import CorruptFile, JobTakenOver
from penstock.storage.files import FileStore

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.large_string())])


def batch(*numbers) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int64()), pa.array([f"n{number}" for number in numbers], pa.large_string())],
        schema=SCHEMA,
    )


def rows(*numbers) -> list[tuple]:
    return [(number, f"n{number}") for number in numbers]


class Rig:
    """A sink of files, its committer and writers of it."""

    def __init__(self, root: Path, kind=Files, **options) -> None:
        self.out, self.notes = root / "out", root / "notes"
        self.notes.mkdir(exist_ok=True)
        self.store = FileStore(root / "ckpt")
        sink = ps.data_sink(kind, options={"path": self.out, "notes": self.notes, **options})
        sink.check(SCHEMA)
        self.sink = sink.fitted(SCHEMA).placed(str(root / "ckpt"), "results/job/sink")
        self.sink.start("job")
        self.committer = self.sink.committer()

    def writer(self, subtask=0, *, epoch=1):
        return self.sink.writer(WriterContext(job="job", subtask=subtask, parallelism=2, epoch=epoch))

    def prepared(self, checkpoint, *numbers, subtask=0, epoch=1) -> list[bytes]:
        writer = self.writer(subtask, epoch=epoch)
        for number in numbers:
            writer.write(batch(number))
        found = writer.prepare(checkpoint)()
        writer.close()
        return found

    def noted(self, what):
        return noted(self.notes, what)

    @property
    def shown(self):
        return rows_of_files(self.out)

    @property
    def kept(self):
        return self.store.list_files("")


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_nothing_is_shown_before_it_is_committed_and_then_all_of_a_barrier(rig):
    parts = [*rig.prepared(7, 1, 2), *rig.prepared(7, 3, subtask=1)]
    assert len(parts) == 2
    assert rig.shown == []
    rig.committer.commit(7, parts)
    assert rig.shown == rows(1, 2, 3)
    assert rig.noted("commits") == [7]
    assert rig.kept == []


def test_a_subtask_without_records_has_nothing_to_commit(rig):
    assert rig.prepared(7) == []


def test_a_writer_goes_on_after_a_barrier_with_a_call_of_its_own(rig):
    writer = rig.writer()
    writer.write(batch(1))
    first = writer.prepare(1)
    writer.write(batch(2))
    second = writer.prepare(2)
    rig.committer.commit(1, first())
    assert rig.shown == rows(1)
    rig.committer.commit(2, second())
    assert rig.shown == rows(1, 2)
    writer.close()


def test_a_commit_that_has_returned_is_not_called_again(rig):
    parts = rig.prepared(7, 1)
    for _ in range(2):
        rig.committer.commit(7, parts)
    assert rig.noted("commits") == [7]


def test_a_commit_whose_return_is_on_record_is_not_called_again_even_if_its_messages_are_there(rig):
    """The driver died after it had written the record and before it had removed what it had committed."""
    parts = rig.prepared(7, 1)
    rig.store.write("results/job/sink/returned-7", b"")
    rig.committer.commit(7, parts)
    assert rig.noted("commits") == []
    assert rig.kept == []


def test_messages_that_somebody_deleted_are_missed(rig):
    parts = [*rig.prepared(7, 1), *rig.prepared(7, 2, subtask=1)]
    rig.store.delete(rig.kept[0])
    with pytest.raises(ps.StorageError, match=r"1 of 2 commit messages of checkpoint 7 are missing"):
        rig.committer.commit(7, parts)
    assert rig.noted("commits") == []


def test_what_is_not_promised_is_aborted_by_barrier_and_what_is_newer_stays(rig):
    promised = rig.prepared(5, 1)
    rig.prepared(6, 2)
    rig.prepared(6, 3, subtask=1)
    rig.prepared(7, 4)
    newer = rig.prepared(8, 5, epoch=2)
    rig.committer.abandon(7, promised)
    assert rig.noted("aborts") == [6, 7]
    assert len(list((rig.out / "_staged").iterdir())) == 2
    rig.committer.commit(5, promised)
    rig.committer.commit(8, newer)
    assert rig.shown == rows(1, 5)
    assert rig.kept == []


def test_an_abort_that_raises_is_told_and_not_tried_again(rig, caplog):
    rig.prepared(6, 2)
    for file in (rig.out / "_staged").iterdir():
        file.unlink()
    rig.committer.abandon(7, [])
    assert "could not abort the records up to checkpoint 6, which will not be committed: FileNotFound" in caplog.text
    assert rig.kept == []


def test_what_an_earlier_job_did_not_commit_is_aborted_when_the_user_starts_over(rig, tmp_path):
    """1. The earlier job prepares the barriers 5 and 6. 2. Barrier 5 is committed, and the driver dies before the
    message is deleted. 3. The user starts over, and the sink of the next job hears that the earlier job will not go
    on."""
    committed, _ = rig.prepared(5, 1), rig.prepared(6, 2)
    rig.committer.hold = hold_that(None, AWAY, AWAY)
    with pytest.raises(HoldUnknown):
        rig.committer.commit(5, committed)
    following = rig.sink.placed(str(tmp_path / "ckpt"), "results/job-2/sink")
    following.end("job-2")
    assert (rig.noted("aborts"), len([path for path in rig.kept if "returned" not in path])) == ([], 2)
    following.end("job")
    assert (rig.noted("commits"), rig.noted("aborts"), rig.shown) == ([5], [6], rows(1))
    assert [path for path in rig.kept if "returned" not in path] == []


def test_a_folder_goes_with_the_job_unless_something_in_it_is_owed(rig, tmp_path):
    parts = rig.prepared(5, 1)
    rig.committer.close(owes=True)
    assert len(rig.kept) == 1
    rig.committer.commit(5, parts)
    rig.committer.close(owes=False)
    assert not (tmp_path / "ckpt" / "results").exists()


LOST, AWAY = JobTakenOver("another driver has it"), ps.StorageError("the records are away")


def test_a_driver_that_has_lost_the_job_commits_and_aborts_nothing(rig):
    parts = rig.prepared(7, 1)
    rig.committer.hold = hold_that(LOST)
    with pytest.raises(JobTakenOver):
        rig.committer.commit(7, parts)
    with pytest.raises(JobTakenOver):
        rig.committer.abandon(7, [])
    assert (rig.noted("commits"), rig.noted("aborts"), len(rig.kept)) == ([], [], 1)


def test_a_commit_that_returned_in_doubt_is_not_called_again(rig):
    parts = rig.prepared(7, 1)
    rig.committer.hold = hold_that(None, AWAY, AWAY)
    with pytest.raises(HoldUnknown):
        rig.committer.commit(7, parts)
    rig.committer.commit(7, parts)
    assert (rig.noted("commits"), rig.kept) == ([7], [])


def test_a_record_of_a_commit_that_another_driver_left_too_late_goes_with_the_folder(rig, tmp_path):
    rig.store.write("results/job/sink/returned-7", b"")
    rig.committer.close(owes=False)
    assert not (tmp_path / "ckpt" / "results").exists()


class Calls(DataSource):
    """Does as a test says, and notes how it went."""

    def streamWriter(self, schema, overwrite):
        assert not overwrite
        return CallsWriter(self.options["notes"], self.options["does"])


class CallsWriter(DataSourceStreamWriter):
    def __init__(self, notes, does) -> None:
        self.notes = notes
        self.does = does

    def write(self, iterator):
        if self.does == "takes one":
            return Rows([tuple(next(iterator))])
        if self.does == "raises":
            next(iterator)
            raise ValueError("no space")
        try:
            for _ in iterator:
                documented.note(self.notes, "taken", 1)
        except BaseException as error:
            documented.note(self.notes, "broken off", type(error).__name__)
            raise
        return Rows([])


def test_a_write_need_not_take_everything(tmp_path):
    rig = Rig(tmp_path, Calls, does="takes one")
    assert len(rig.prepared(1, *range(5))) == 1


def test_a_write_that_raised_fails_the_snapshot_and_whatever_follows(tmp_path):
    writer = Rig(tmp_path, Calls, does="raises").writer()
    writer.write(batch(1))
    work = writer.prepare(1)
    for call in (work, work, lambda: writer.write(batch(2)), lambda: writer.prepare(2)):
        with pytest.raises(UserCodeRaised, match="write of data source 'Calls'"):
            call()
    writer.close()


def test_a_write_is_broken_off_when_its_attempt_is_over(tmp_path):
    rig = Rig(tmp_path, Calls, does="all")
    writer = rig.writer()
    writer.write(batch(1))
    while not rig.noted("taken"):
        threading.Event().wait(0.001)
    writer.close()
    while not rig.noted("broken off"):
        threading.Event().wait(0.001)
    assert rig.kept == []


def test_a_column_that_spark_has_no_type_for_is_refused():
    with pytest.raises(ps.UsageError, match="Spark cannot have rows with the columns n: month_day_nano_interval"):
        ps.data_sink(Files).check(pa.schema([("n", pa.month_day_nano_interval())]))


def test_without_a_place_for_messages_a_sink_does_not_start():
    with pytest.raises(ps.UsageError, match="a data sink needs Spark"):
        ps.data_sink(Files, options={"path": "x"}).fitted(SCHEMA).start("job")


# --- snapshots of somebody else --------------------------------------------------------------------------------------

MESSAGE = f"{7:020d}-s0-p2-e1"


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("ROOT", "private/victim"),
        ("ROOT", f"private/{MESSAGE}"),
        ("ROOT", "results/job/sink/victim"),
        ("ROOT", f"results/job/sink/a/b/{MESSAGE}"),
        ("ROOT", f"results/../../private/{MESSAGE}"),
        ("ROOT", f"/results/job/sink/{MESSAGE}"),
        ("ROOT/ckpt/..", f"results/job/sink/{MESSAGE}"),
        ("ckpt", f"results/job/sink/{MESSAGE}"),
        ("ROOT/other", f"results/job/sink/{MESSAGE}"),
        ("ROOT/ckpt", f"results/job/other/{MESSAGE}"),
    ],
)
def test_a_commit_message_elsewhere_is_neither_unpickled_nor_deleted(tmp_path, root, path):
    """That the commit has returned may be said by a file that somebody has put there: then nothing is even read."""
    rig = Rig(tmp_path)
    parts = rig.prepared(7, 1)
    for place in ("private", "results/job/sink", "other/results/job/sink", "ckpt/results/job/other"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name in ("victim", MESSAGE, "returned-7"):
            (tmp_path / place / name).touch()
    before = sorted(tmp_path.rglob("*"))
    crafted = msgspec.msgpack.encode((root.replace("ROOT", str(tmp_path)), path))
    with pytest.raises(CorruptFile, match=r"snapshot (names|has)"):
        rig.committer.commit(7, [*parts, crafted])
    assert sorted(tmp_path.rglob("*")) == before


def test_messages_of_another_job_in_another_place_are_committed(rig, tmp_path):
    now = rig.sink.placed(str(tmp_path / "now"), "results/other/sink").committer()
    now.commit(7, rig.prepared(7, 1))
    assert (rig.shown, rig.kept) == (rows(1), [])
