"""What the driver does with the files of a table. No Spark: a session only counts."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from commits_rig import hold_that
from pyspark.errors import PySparkException

from penstock.api.connector import WriterContext
from penstock.core.errors import HostError, JobTakenOver, UsageError
from penstock.spark.tables import CatalogTable, check_same_folder

CONTEXT = WriterContext(job="job", subtask=0, parallelism=1, epoch=1)


class Session:
    """Says which tables were refreshed, and how many files there were then."""

    def __init__(self, folder) -> None:
        self.refreshed: list[tuple[str, int]] = []
        self.is_gone = False
        self._folder = folder
        self.recovered: list[str] = []
        self.catalog = SimpleNamespace(refreshTable=self._refresh, recoverPartitions=self.recovered.append)

    def _refresh(self, table: str) -> None:
        if self.is_gone:
            raise ValueError("[TABLE_OR_VIEW_NOT_FOUND] no such table")
        self.refreshed.append((table, len(list(self._folder.glob("*.parquet")))))


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path)


@pytest.fixture
def table(tmp_path, session):
    made = CatalogTable(str(tmp_path), session, "results")
    made.start("job")
    return made


@pytest.fixture
def prepared(table):
    """What a slot, which has the table pickled, prepared."""
    writer = pickle.loads(pickle.dumps(table)).writer(CONTEXT)
    writer.write(pa.record_batch({"x": [1, 2]}))
    return writer.prepare(4)()


def test_files_are_there_before_spark_is_told_to_look_again(table, session, prepared):
    table.committer().commit(4, prepared)
    assert session.refreshed == [("results", 1)]


def test_what_earlier_attempts_left_goes_but_for_what_will_be_committed(table, prepared, tmp_path):
    writer = table.writer(WriterContext(job="job", subtask=1, parallelism=2, epoch=1))
    writer.write(pa.record_batch({"x": [3]}))
    writer.prepare(5)()
    committer = table.committer()
    committer.clean_up("job", 2, prepared)
    assert len(list(tmp_path.glob("_penstock/job/*.parquet"))) == 1
    committer.commit(4, prepared)
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_commit_that_is_made_again_does_no_harm(table, session, prepared, tmp_path):
    """The first one renamed, and then Spark could not be told."""
    session.is_gone = True
    with pytest.raises(HostError, match=r"table results could not be refreshed.*no such table"):
        table.committer().commit(4, prepared)
    session.is_gone = False
    table.committer().commit(4, prepared)
    assert session.refreshed == [("results", 1)]
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_driver_that_loses_the_job_between_two_files_shows_no_more_of_them(table, session, prepared, tmp_path):
    writer = table.writer(WriterContext(job="job", subtask=1, parallelism=2, epoch=1))
    writer.write(pa.record_batch({"x": [3]}))
    committer = table.committer()
    committer.hold = hold_that(None, JobTakenOver("another driver has it"))
    with pytest.raises(JobTakenOver):
        committer.commit(4, [*prepared, *writer.prepare(4)()])
    assert (len(list(tmp_path.glob("*.parquet"))), session.refreshed) == (1, [])


def test_what_is_owed_outlives_the_job_and_nothing_else_does(table, prepared, tmp_path):
    committer = table.committer()
    committer.close(owes=True)
    table.end("job")
    assert [file.suffix for file in tmp_path.rglob("*") if file.is_file()] == [".parquet"]
    committer.close(owes=False)
    table.end("job")
    assert list(tmp_path.iterdir()) == []


def test_in_a_slot_there_is_only_the_part_that_writes_files(table):
    part = pickle.loads(pickle.dumps(table))
    assert part.commits_on_driver
    assert not hasattr(part, "publish")


class Reader:
    """Reads files as a Spark does that has another folder mounted where this host has the table's."""

    def __init__(self, here: Path, there: Path) -> None:
        self._here, self._there = here, there
        self.read = SimpleNamespace(format=lambda _: self)

    def load(self, uri: str) -> Reader:
        found = self._there / Path(urlparse(uri).path).relative_to(self._here)
        if not found.exists():
            raise PySparkException("[PATH_NOT_FOUND] no such file")
        return self

    def count(self) -> int:
        return 1


def test_a_table_whose_folder_is_another_one_where_spark_runs_is_refused(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    with pytest.raises(UsageError, match="this program and Spark do not share this folder"):
        check_same_folder("results", Reader(here, there), here)
    for folder in (here, there):
        folder.mkdir()
    with pytest.raises(UsageError, match="this program and Spark do not share this folder"):
        check_same_folder("results", Reader(here, there), here)
    check_same_folder("results", Reader(here, here), here)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("in_catalog", [True, False])
def test_new_partitions_are_told_to_a_catalog_that_keeps_them_once(session, tmp_path, in_catalog):
    table = CatalogTable(str(tmp_path), session, "results", ("k",), in_catalog=in_catalog)
    table.start("job")
    writer = pickle.loads(pickle.dumps(table)).writer(CONTEXT)
    told = []
    for checkpoint, values in enumerate([["a", "b"], ["a"], ["b", "c"]], 1):
        writer.write(pa.record_batch({"x": list(range(len(values))), "k": values}))
        table.committer().commit(checkpoint, writer.prepare(checkpoint)())
        told.append(len(session.recovered))
    assert told == ([1, 1, 2] if in_catalog else [0, 0, 0])
    assert len(session.refreshed) == 3
    assert sorted(place.name for place in tmp_path.glob("k=*")) == ["k=a", "k=b", "k=c"]
