"""Batches of a streaming query as they are landed and followed, without Spark."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.api.hold import Hold
from penstock.connectors.parquet_files import OPEN_SPLITS, file_of_split
from penstock.core.errors import CorruptFile
from penstock.spark.connect import BINDING, check_queries
from penstock.spark.slots import short_reason
from penstock.spark.streams import BATCHES_AT_ONCE, LandedStream, Landing, StreamEnumerator
from penstock.storage.seals import StoreOptions


class Frame:
    """What a query hands over, as far as it is looked at: it writes itself, and may do more meanwhile."""

    def __init__(self, rows: range, meanwhile=lambda: None) -> None:
        self._rows = rows
        self._meanwhile = meanwhile

    @property
    def sparkSession(self):  # noqa: N802  # PySpark's name
        return self

    conf = write = sparkSession

    def set(self, name: str, value: str) -> None:
        pass

    def parquet(self, uri: str) -> None:
        folder = Path(urlparse(uri).path)
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(self._rows)}), folder / "part-0.parquet")
        self._meanwhile()


class Query:
    """A query that runs until it is stopped."""

    isActive = True  # noqa: N815  # PySpark's name

    def stop(self) -> None:
        self.isActive = False


def follower(folder: Path) -> StreamEnumerator:
    made = StreamEnumerator(folder, lambda _, hold: Query())
    made.start(None)
    return made


def rows_of(splits: list[bytes]) -> list[int]:
    return sorted(n for split in splits for n in pq.read_table(file_of_split(split))["id"].to_pylist())


def test_a_batch_that_two_queries_land_at_once_is_given_out_once_and_all_its_files_go(tmp_path):
    """1. A query that was stopped is still at the end of a batch. 2. The next one runs the same batch meanwhile, and is
    done first. 3. Whichever record is found, it names whole files, that nobody writes any more."""
    enumerator = follower(tmp_path)
    late, early = Landing(tmp_path, Hold()), Landing(tmp_path, Hold())
    late(Frame(range(5), lambda: early(Frame(range(5)), 0)), 0)
    found = enumerator.discover(None)
    assert rows_of(found.splits) == [0, 1, 2, 3, 4]
    early(Frame(range(5, 7)), 1)
    more = enumerator.discover(found.position)
    assert rows_of(more.splits) == [5, 6]
    assert enumerator.discover(more.position).splits == []
    enumerator.consumed(more.position, more.splits)
    assert [data.name for data in (tmp_path / "data").iterdir()] == ["1"]
    enumerator.consumed(more.position, [])
    assert not list((tmp_path / "data").iterdir())
    assert not list((tmp_path / "batches").iterdir())


def test_batches_behind_a_link_are_not_deleted(tmp_path):
    """Somebody who can write there has put a link in the place of the folder."""
    private, folder = tmp_path / "private", tmp_path / "landed"
    (private / "0").mkdir(parents=True)
    (private / "0" / "thesis").touch()
    enumerator = follower(folder)
    Landing(folder, Hold())(Frame(range(5)), 0)
    found = enumerator.discover(None)
    (folder / "data").rename(tmp_path / "aside")
    (folder / "data").symlink_to(private)
    enumerator.consumed(found.position, [])
    assert (private / "0" / "thesis").exists()


def test_a_split_of_somebody_elses_file_is_refused_by_name(tmp_path):
    enumerator, elsewhere = follower(tmp_path / "landed"), follower(tmp_path / "other")
    Landing(tmp_path / "other", Hold())(Frame(range(5)), 0)
    with pytest.raises(CorruptFile, match=r"other/data/0/.* is no file of a micro-batch in"):
        enumerator.consumed(None, elsewhere.discover(None).splits)


@pytest.mark.parametrize("travels", [False, True])
def test_a_reader_refuses_a_split_of_a_file_of_another_stream(tmp_path, travels):
    enumerator, elsewhere = follower(tmp_path / "landed"), follower(tmp_path / "other")
    Landing(tmp_path / "other", Hold())(Frame(range(5)), 0)
    splits = elsewhere.discover(None).splits
    source = LandedStream(pa.schema([("id", pa.int64())]), tmp_path / "landed", lambda: enumerator)
    source = pickle.loads(pickle.dumps(source)) if travels else source
    with pytest.raises(CorruptFile, match=f"the source reads only files below {tmp_path}/landed/data"):
        source.open(splits)
    with pytest.raises(CorruptFile, match="other/data/0/"):
        source.open([]).add_splits(splits)


def test_a_job_that_is_behind_its_query_says_so_until_it_has_caught_up(tmp_path):
    """Some batches are given out at a time, and of these some are read at a time: more than that have piled up."""
    enumerator, land = follower(tmp_path), Landing(tmp_path, Hold())
    for batch in range(BATCHES_AT_ONCE + 1):
        land(Frame(range(2)), batch)
    found = enumerator.discover(None)
    assert found.catching_up
    rest = enumerator.discover(found.position)
    assert not rest.catching_up
    schema = pa.schema([("id", pa.int64())])
    reader = LandedStream(schema, tmp_path, lambda: enumerator).open([])
    told = []
    reader.add_splits(found.splits[: OPEN_SPLITS + 1])
    while not isinstance(reader.poll(2, 0), ps.End):
        told.append(reader.catching_up)
    assert told == [True] + [False] * OPEN_SPLITS


def test_a_batch_that_has_its_record_is_not_written_again(tmp_path):
    follower(tmp_path)
    landing = Landing(tmp_path, Hold())
    for _ in range(2):
        landing(Frame(range(3)), 0)
    assert len(list((tmp_path / "data").rglob("*.parquet"))) == 1


def test_a_query_that_nobody_follows_any_more_ends_itself(tmp_path):
    """The follower shows itself when it starts, and again whenever it looks and that is due."""
    follower(tmp_path)
    patient, impatient = Landing(tmp_path, Hold(), 3_600.0), Landing(tmp_path, Hold(), 0.0)
    for landing in (patient, impatient):
        landing(Frame(range(1)), 0)
    patient(Frame(range(1)), 1)
    with pytest.raises(ps.HostError, match="no program follows"):
        impatient(Frame(range(1)), 2)
    # As one that was away for long does.
    StreamEnumerator(tmp_path, lambda _, hold: Query()).discover(None)
    impatient(Frame(range(1)), 2)
    (tmp_path / "followed").unlink()
    with pytest.raises(ps.HostError, match="no program follows"):
        patient(Frame(range(1)), 3)
    assert sorted(int(record.name) for record in (tmp_path / "batches").iterdir()) == [0, 1, 2]


class Session:
    """A session with one setting, as far as it is asked."""

    def __init__(self, bound: str | None) -> None:
        self._bound = bound

    @property
    def conf(self):
        return self

    def get(self, name: str, default: str | None) -> str | None:
        assert name == BINDING
        return default if self._bound is None else self._bound


@pytest.mark.parametrize("bound", [None, "0.0.0.0", "127.0.0.1", "localhost", "[::1]"])
def test_a_server_that_listens_at_localhost_too_can_run_queries_with_python(bound):
    check_queries(Session(bound))


def test_a_server_that_listens_elsewhere_only_is_refused_for_streams():
    with pytest.raises(ps.UsageError, match=r"listens at 10\.0\.0\.7 only .*localhost\n  hint: leave spark"):
        check_queries(Session("10.0.0.7"))


FAILED_QUERY = """(STREAM_FAILED) [USER_RAISED_EXCEPTION] too large SQLSTATE: P0001
=== Streaming Query ===
Identifier: [id = 1, runId = 2]

JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [USER_RAISED_EXCEPTION] too large SQLSTATE: P0001
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:394)
Caused by: org.apache.spark.SparkRuntimeException
"""


def test_of_a_query_that_failed_in_a_server_the_reason_is_told_and_not_where_its_java_was():
    assert short_reason(FAILED_QUERY) == "(STREAM_FAILED) [USER_RAISED_EXCEPTION] too large SQLSTATE: P0001"


def test_a_worker_that_died_is_known_from_the_java_of_a_server():
    text = "job failed\nJVM stacktrace:\norg.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert short_reason(text) == "its Python worker exited unexpectedly (killed, or crashed)"


def test_what_a_slot_says_is_told_and_not_of_which_class_it_was():
    text = (
        "Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):"
        '\n  File "worker.py", line 1, in run\npenstock.core.errors.SlotLost: a folder: it is missing\n\tat java.lang.A'
    )
    assert short_reason(text) == "a folder: it is missing"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            "java.io.IOException: Mkdirs failed to create file:/a",
            "java.io.IOException: Mkdirs failed to create file:/a",
        ),
        ("org.apache.spark.SparkException: Job 5 cancelled because SparkContext was shut down", "was stopped"),
        ("", "An error occurred while calling o337.parquet."),
    ],
)
def test_the_reason_is_what_the_jvm_raised_and_not_which_call_of_py4j_it_was(raised, reason):
    text = "An error occurred while calling o337.parquet.\n" + (
        f": {raised}\n\tat org.apache.A.b(C.scala:1)" if raised else ""
    )
    assert short_reason(text).endswith(reason)


@pytest.mark.parametrize(("readers", "mode"), [("owner", 0o700), ("group", 0o750)])
def test_a_directory_that_all_users_can_enter_has_folders_that_only_readers_of_the_job_can_enter(
    tmp_path, readers, mode
):
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        StreamEnumerator(tmp_path, lambda _, hold: Query(), StoreOptions(readable_by=readers)).start(None)
    finally:
        os.umask(before)
    made = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert {path.name for path in made} == {"batches", "data", "query"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {mode}
