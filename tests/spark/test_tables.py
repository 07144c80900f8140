"""What the driver does with the files of a table. No Spark: a session only counts."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pyarrow as pa
import pytest
from commits_rig import hold_that

from penstock.api.connector import WriterContext
from penstock.core.errors import HostError, JobTakenOver
from penstock.spark.tables import CatalogTable

CONTEXT = WriterContext(job="job", subtask=0, parallelism=1, epoch=1)


class Session:
    """Says which tables were refreshed, and how many files there were then."""

    def __init__(self, folder) -> None:
        self.refreshed: list[tuple[str, int]] = []
        self.is_gone = False
        self._folder = folder
        self.catalog = SimpleNamespace(refreshTable=self._refresh)

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
