from __future__ import annotations

import io
import pickle
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.api.connector import WriterContext
from penstock.connectors import file_writing as connector
from penstock.connectors.parquet import ParquetFormat, parquet, repeating_columns
from penstock.core.errors import StorageError, UsageError

SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def batch(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "ts": pa.array([MOMENT] * len(numbers))}, schema=SCHEMA)


def context(*, job="job", subtask=0, parallelism=1, epoch=1):
    return WriterContext(job=job, subtask=subtask, parallelism=parallelism, epoch=epoch)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(folder):
    made = parquet(folder)
    made.start("job")
    return made


def visible(folder):
    """Rows of the files that a reader of the folder sees, by file."""
    return {f.name: pq.read_table(f).column("n").to_pylist() for f in sorted(folder.glob("*.parquet"))}


def staged(folder):
    return sorted(f.name for f in (folder / "_penstock").rglob("*.parquet"))


def test_records_are_visible_only_after_the_commit(sink, folder):
    writer = sink.writer(context(subtask=3))
    writer.write(batch(1, 2))
    work = writer.prepare(7)
    writer.write(batch(3))
    committables = work()
    assert visible(folder) == {}
    sink.commit(committables)
    assert visible(folder) == {"part-job-3-7-0.parquet": [1, 2]}
    sink.commit(writer.prepare(8)())
    assert visible(folder) == {"part-job-3-7-0.parquet": [1, 2], "part-job-3-8-0.parquet": [3]}
    assert staged(folder) == []


def test_a_commit_that_is_repeated_does_nothing(sink, folder):
    writer = sink.writer(context())
    writer.write(batch(1))
    committables = writer.prepare(1)()
    sink.commit(committables)
    sink.commit(committables)
    assert visible(folder) == {"part-job-0-1-0.parquet": [1]}


def test_a_commit_of_files_that_are_gone_says_so(sink, folder):
    writer = sink.writer(context())
    writer.write(batch(1))
    committables = writer.prepare(1)()
    (folder / "_penstock" / "job" / staged(folder)[0]).unlink()
    with pytest.raises(StorageError, match=r"results are missing: neither .*_penstock.* nor .*part-job-0-1-0"):
        sink.commit(committables)


def test_a_file_of_the_same_name_is_never_replaced(sink, folder):
    """1. A file is prepared. 2. Something else takes its final name. 3. The commit refuses."""
    writer = sink.writer(context())
    writer.write(batch(1))
    committables = writer.prepare(1)()
    pq.write_table(pa.table({"n": [99]}), folder / "part-job-0-1-0.parquet")
    with pytest.raises(StorageError, match="exists already"):
        sink.commit(committables)
    assert visible(folder) == {"part-job-0-1-0.parquet": [99]}


def test_a_job_that_counts_checkpoints_again_adds_files(sink, folder):
    for number in (1, 2):
        writer = sink.writer(context(epoch=number))
        writer.write(batch(number))
        sink.commit(writer.prepare(5)())
    assert visible(folder) == {"part-job-0-5-0.parquet": [1], "part-job-0-5-1.parquet": [2]}


def test_a_checkpoint_without_records_makes_no_file(sink, folder):
    writer = sink.writer(context())
    assert writer.prepare(1)() == []
    sink.commit([])
    assert visible(folder) == {}
    assert staged(folder) == []


def test_work_that_failed_can_be_done_again(sink, folder):
    """The staging folder is in the way for a while: the records are still there when it is not."""
    writer = sink.writer(context())
    writer.write(batch(1, 2))
    work = writer.prepare(1)
    staging = folder / "_penstock" / "job"
    staging.rmdir()
    staging.touch()
    with pytest.raises(StorageError, match="could not be written"):
        work()
    staging.unlink()
    sink.commit(work())
    assert visible(folder) == {"part-job-0-1-0.parquet": [1, 2]}


def test_more_than_memory_should_hold_is_written_early(sink, folder, monkeypatch):
    monkeypatch.setattr(connector, "BUFFER_BYTES", 1_000)
    writer = sink.writer(context())
    for number in range(20):
        writer.write(batch(*[number] * 30))
        assert writer._bytes < 1_000
    assert staged(folder) != []
    committables = writer.prepare(1)()
    assert len(committables) > 5
    sink.commit(committables)
    assert sorted(n for rows in visible(folder).values() for n in rows) == sorted(list(range(20)) * 30)
    writer.close()


def test_an_early_write_that_failed_is_made_good_by_the_checkpoint(sink, folder, monkeypatch):
    monkeypatch.setattr(connector, "BUFFER_BYTES", 100)
    writer = sink.writer(context())
    staging = folder / "_penstock" / "job"
    staging.rmdir()
    staging.touch()
    writer.write(batch(*range(50)))
    assert isinstance(writer._early.exception(), StorageError)
    work = writer.prepare(1)
    staging.unlink()
    sink.commit(work())
    assert visible(folder) == {"part-job-0-1-0.parquet": list(range(50))}
    writer.close()


# --- cleaning up -----------------------------------------------------------------------------------------------------


def leave(sink, **who):
    """Prepare a file and go away."""
    writer = sink.writer(context(**who))
    writer.write(batch(1))
    return writer.prepare(1)()


def test_a_new_attempt_removes_what_the_same_subtask_left(sink, folder):
    leave(sink, subtask=0, parallelism=2, epoch=1)
    leave(sink, subtask=0, parallelism=2, epoch=2)
    leave(sink, subtask=1, parallelism=2, epoch=1)
    leave(sink, subtask=0, parallelism=2, epoch=3)
    sink.clean(context(subtask=0, parallelism=2, epoch=3), [])
    assert staged(folder) == ["s0-p2-e3-0.parquet", "s1-p2-e1-0.parquet"]


def test_at_another_parallelism_files_are_left_to_whom_they_were_dealt(sink, folder):
    """1. Subtask 0 of 2 prepares a file. 2. At parallelism 4 the file is dealt to subtask 1. 3. Subtask 0 of 4 cleans
    up first. 4. Subtask 1 can still commit."""
    committables = leave(sink, subtask=0, parallelism=2, epoch=1)
    sink.clean(context(subtask=0, parallelism=4, epoch=2), [])
    sink.commit(committables)
    assert visible(folder) == {"part-job-0-1-0.parquet": [1]}


def test_what_is_kept_is_kept(sink, folder):
    committables = leave(sink, epoch=1)
    sink.clean(context(epoch=2), committables)
    sink.commit(committables)
    assert visible(folder) == {"part-job-0-1-0.parquet": [1]}


def test_the_end_of_a_job_removes_its_folder_and_leaves_that_of_others(sink, folder):
    sink.start("other")
    leave(sink)
    leave(sink, job="other")
    sink.end("job")
    assert sorted(f.name for f in (folder / "_penstock").iterdir()) == ["other"]
    sink.end("other")
    assert list(folder.iterdir()) == []
    sink.end("other")


# --- start -----------------------------------------------------------------------------------------------------------


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, and a folder is needed"):
        parquet(tmp_path / "file").start("job")


def test_a_path_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        parquet(tmp_path / "file" / "below").start("job")


def test_the_folder_is_made_and_what_is_there_stays(tmp_path):
    parquet(tmp_path / "a" / "b").start("job")
    (tmp_path / "a" / "b" / "mine.txt").touch()
    parquet(tmp_path / "a" / "b").start("job")
    assert sorted(f.name for f in (tmp_path / "a" / "b").iterdir()) == ["_penstock", "mine.txt"]


def test_other_file_systems_are_refused_by_name():
    with pytest.raises(UsageError, match="'s3://bucket/x' is not a local path"):
        parquet("s3://bucket/x")
    assert parquet("file:///data/x") == parquet("/data/x")


@pytest.mark.parametrize("job", ["../../escape", "a/b", ".hidden", "name with blanks", "naïve"])
def test_the_name_of_a_job_stays_inside_the_folder(folder, job):
    made = parquet(folder)
    made.start(job)
    made.commit(leave(made, job=job))
    (file,) = visible(folder)
    assert file.startswith("part-")
    assert len(list((folder / "_penstock").iterdir())) == 1
    assert sorted(f.name for f in folder.parent.iterdir()) == ["out"]


def test_jobs_of_similar_names_do_not_share_a_folder(folder):
    made = parquet(folder)
    for job in ("a/b", "a_b", "a b"):
        made.start(job)
    assert len(list((folder / "_penstock").iterdir())) == 3


def test_columns_that_spark_cannot_read_are_refused_early():
    made = parquet("out")
    made.check(SCHEMA)
    with pytest.raises(UsageError, match=r"column 'ts' is of type timestamp\[ns\]"):
        made.check(pa.schema([("ts", pa.timestamp("ns"))]))
    with pytest.raises(UsageError, match="column 'x' has no type"):
        made.check(pa.schema([("x", pa.null())]))


def test_the_sink_can_be_pickled():
    assert pickle.loads(pickle.dumps(parquet("out"))) == parquet("out")


# --- a sink that has another folder than its snapshot -----------------------------------------------------------------


def prepared(sink, *numbers):
    writer = sink.writer(context())
    writer.write(batch(*numbers))
    return writer.prepare(1)()


def test_what_was_prepared_for_another_folder_is_committed_there(sink, folder, tmp_path):
    committables = prepared(sink, 1, 2)
    other = parquet(tmp_path / "other")
    other.start("job-2")
    other.commit(committables)
    other.commit(committables)
    assert visible(folder) == {"part-job-0-1-0.parquet": [1, 2]}
    assert visible(tmp_path / "other") == {}


def test_what_was_moved_with_all_that_was_prepared_is_committed_where_it_is(sink, folder, tmp_path):
    committables = prepared(sink, 1, 2)
    folder.rename(tmp_path / "moved")
    parquet(tmp_path / "moved").commit(committables)
    assert visible(tmp_path / "moved") == {"part-job-0-1-0.parquet": [1, 2]}


def test_what_is_missing_is_told_with_all_the_folders_where_it_could_be(sink, folder, tmp_path):
    committables = prepared(sink, 1)
    sink.end("job")
    with pytest.raises(StorageError, match=rf"is in {folder} or {tmp_path}/other"):
        parquet(tmp_path / "other").commit(committables)


def test_snapshots_of_before_the_folder_was_written_down_are_of_the_folder_that_the_sink_has(sink, folder):
    (committable,) = prepared(sink, 1)
    without = msgspec.msgpack.encode(msgspec.msgpack.decode(committable)[:2])
    sink.commit([without])
    assert visible(folder) == {"part-job-0-1-0.parquet": [1]}


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "_penstock/../../secret"])
def test_names_that_leave_the_folder_are_refused(sink, tmp_path, name):
    (tmp_path / "secret").touch()
    for parts in ([name, "part-x.parquet"], ["_penstock/x", name]):
        with pytest.raises(StorageError, match="no sink has prepared such a file"):
            sink.commit([msgspec.msgpack.encode([*parts, sink.path])])
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("count", [0, 1, 10, 50_000])
def test_only_columns_whose_values_repeat_have_a_dictionary(count):
    columns = {
        "number": pa.array(range(count), pa.int64()),
        "few": pa.array([n % 7 for n in range(count)], pa.int64()),
        "text": pa.array([f"text {n}" for n in range(count)], pa.string()),
        "word": pa.array([f"word {n % 3}" for n in range(count)], pa.string()),
        "none": pa.array([None] * count, pa.float64()),
        "price": pa.array([Decimal(n) for n in range(count)], pa.decimal128(10, 2)),
    }
    rows = pa.table(columns)
    content = io.BytesIO()
    ParquetFormat().write(rows, content)
    file = pq.ParquetFile(content)
    assert file.read().equals(rows)
    if count == 50_000:
        group = file.metadata.row_group(0)
        kept = {group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(len(columns))}
        assert kept == {"number": False, "few": True, "text": False, "word": True, "none": True, "price": False}


def test_columns_that_have_parts_are_written_with_dictionaries():
    rows = pa.table({"list": pa.array([[n, n % 3] for n in range(9_000)]), "n": list(range(9_000))})
    content = io.BytesIO()
    ParquetFormat().write(rows, content)
    assert pq.ParquetFile(content).read().equals(rows)
    assert repeating_columns(rows) is True
