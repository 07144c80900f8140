"""Whole jobs that read and write Python Data Sources, without a Spark: slots are threads."""

# Names and parameters are those of PySpark's classes.
# ruff: noqa: N802, N803

from __future__ import annotations

from pathlib import Path

import documented_sources as documented
import pytest
from documented_sources import (
    Counter,
    Files,
    Lines,
    Sqlite,
    Squares,
    append_lines,
    noted,
    rows_of_files,
    rows_of_sqlite,
)
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from threaded_jobs import CHECKPOINTS, kill_slots, settings

import penstock as ps
from penstock.api.steps import ReadStep, WriteStep
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.task.operators.sink import decode_committables
from penstock.settings import CheckpointSettings, NoRestart, Retention
from penstock.storage.metadata import decode_metadata

TOTAL = 400
EVERYTHING = [(number, f"n{number}") for number in range(TOTAL)]


def plan_of(source, sink, folder, *, parallelism=2):
    fitted = sink.fitted(source.schema).placed(str(folder / "checkpoints"), "results/job/sink")
    key = source.schema.names[0]
    steps = [
        ("source", ReadStep(source=source, splits=tuple(source.splits(parallelism))), ()),
        (
            "sink",
            WriteStep(sink=fitted, schema=source.schema),
            (Input(node=0, partitioning=Partitioning.HASH, keys=(key,)),),
        ),
    ]
    nodes = tuple(
        Node(number=n, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=n == 0)
        for n, (name, step, inputs) in enumerate(steps)
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=None)


class Folders:
    """Where a test's source and sink leave their notes, and what they are given."""

    def __init__(self, tmp_path) -> None:
        self.gate = tmp_path / "gate"
        self.source, self.sink, self.table = tmp_path / "source", tmp_path / "sink", tmp_path / "table"
        self.source.mkdir()
        self.sink.mkdir()

    def counter(self, mode="available-now", **options):
        given = {"total": TOTAL, "gate": self.gate, "notes": self.source, **options}
        return ps.data_source(Counter, options=given, mode=mode)

    def sqlite(self, **options):
        return ps.data_sink(Sqlite, options={"path": self.table, "notes": self.sink, **options})

    def files(self, **options):
        return ps.data_sink(Files, options={"path": self.table, "notes": self.sink, **options})


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path)


@CHECKPOINTS
def test_killed_slots_lose_no_row_of_a_partition_and_repeat_none(threaded_job, tmp_path, folders, checkpoint):
    job = threaded_job(plan_of(folders.counter(), folders.sqlite(), tmp_path), settings(checkpoint=checkpoint))
    assert job.run(kill_slots(folders.gate, times=4)) is JobState.FINISHED, job.driver.view().failures
    assert rows_of_sqlite(folders.table) == EVERYTHING
    commits = noted(folders.sink, "commits")
    assert commits == sorted(set(commits))
    committed = noted(folders.source, "committed")
    assert committed == sorted(set(committed))
    assert noted(folders.source, "stopped") == [True]
    assert noted(folders.source, "prepared") == [True]
    assert job.store.list_files("") == []


def test_rows_that_the_driver_read_are_read_between_their_offsets_after_a_failure(threaded_job, tmp_path, folders):
    path = tmp_path / "lines.txt"
    written = [f"line {number}" for number in range(TOTAL)]
    append_lines(path, written[: TOTAL // 2])
    given = {"PATH": path, "notes": folders.source, "linesPerRead": 7}
    source = ps.data_source(Lines, options=given, poll="5ms")
    job = threaded_job(plan_of(source, folders.sqlite(), tmp_path), settings())
    kill = kill_slots(folders.gate, times=3)
    missing = written[TOTAL // 2 :]

    def each_turn(running):
        kill(running)
        if folders.gate.exists() and missing:
            append_lines(path, missing)
            missing.clear()
        elif len(rows_of_sqlite(folders.table)) == TOTAL:
            running.driver.cancel()

    assert job.run(each_turn) is JobState.CANCELLED, job.driver.view().failures
    assert rows_of_sqlite(folders.table) == [(number, line) for number, line in enumerate(written)]
    assert noted(folders.source, "committed")


@CHECKPOINTS
def test_what_a_failed_attempt_wrote_is_aborted_and_what_is_committed_appears_once(
    threaded_job, tmp_path, folders, checkpoint
):
    job = threaded_job(plan_of(folders.counter(), folders.files(), tmp_path), settings(checkpoint=checkpoint))
    assert job.run(kill_slots(folders.gate, times=4)) is JobState.FINISHED, job.driver.view().failures
    assert rows_of_files(folders.table) == EVERYTHING
    commits, aborts = noted(folders.sink, "commits"), noted(folders.sink, "aborts")
    assert commits == sorted(set(commits))
    assert not set(commits) & set(aborts)
    assert job.store.list_files("") == []


def test_a_commit_that_raised_comes_again_with_the_same_id_and_no_other_does(threaded_job, tmp_path, folders):
    folders.gate.touch()
    job = threaded_job(plan_of(folders.counter(), folders.sqlite(failsOn=1), tmp_path), settings())
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    (failure,) = job.driver.view().failures
    assert failure.text == "commit of data source 'sqlite' raised OSError: the database is locked"
    assert failure.operator == "sink"
    assert failure.user_code
    first, again, *others = noted(folders.sink, "commits")
    assert first == again
    assert others == sorted(set(others) - {first})
    assert rows_of_sqlite(folders.table) == EVERYTHING


def test_a_job_that_starts_from_a_savepoint_goes_on_and_commits_nothing_again(threaded_job, tmp_path, folders):
    """The first job commits what the savepoint promises when it has been taken; the second finds it promised."""
    first = threaded_job(plan_of(folders.counter(), folders.sqlite(), tmp_path), settings())
    answers: list = []

    def stop_once(running):
        if not answers and rows_of_sqlite(folders.table):
            answers.append("asked")
            request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved"))
            running.driver.request(request, answers.append)

    assert first.run(stop_once) is JobState.FINISHED
    savepoint = answers[1]
    assert isinstance(savepoint, CompletedCheckpoint)
    metadata = decode_metadata("", (Path(savepoint.location) / "_metadata").read_bytes())
    promised = [piece[0] for part in _parts(metadata, "sink", "committables") for piece in decode_committables(part)]
    assert set(promised) <= set(noted(folders.sink, "commits"))
    assert 0 < len(rows_of_sqlite(folders.table)) < TOTAL

    folders.gate.touch()
    again = plan_of(folders.counter(), folders.sqlite(), tmp_path, parallelism=1)
    second = threaded_job(again, settings(parallelism=1), job="job-2", started_from=savepoint)
    assert second.run() is JobState.FINISHED, second.driver.view().failures
    assert rows_of_sqlite(folders.table) == EVERYTHING
    commits = noted(folders.sink, "commits")
    assert commits == sorted(set(commits))


def _parts(metadata, operator, name):
    states = metadata.operators[OperatorId(operator)].subtasks.values()
    return [part for state in states for part in state.split_lists.get(name, ())]


def test_a_batch_reader_is_read_once_by_all_subtasks(threaded_job, tmp_path, folders):
    source = ps.data_source(Squares, options={"Count": 100}, mode="batch")
    job = threaded_job(plan_of(source, folders.files(), tmp_path), settings(checkpoint=CheckpointSettings()))
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    assert rows_of_files(folders.table) == [(n, n * n) for n in range(100)]


class Endless(DataSource):
    """Always has more, but does not get read; counts how often it is asked."""

    asked = 0

    def schema(self):
        return "id bigint"

    def streamReader(self, schema):
        return EndlessReader(self.options["gate"])


class EndlessReader(DataSourceStreamReader):
    """As they were written for Spark 4.0 and 4.1: asked without a start."""

    def __init__(self, gate) -> None:
        self.gate = gate
        self.current = 0

    def initialOffset(self):
        return {"offset": 0}

    def latestOffset(self):
        Endless.asked += 1
        self.current += 2
        return {"offset": self.current}

    def partitions(self, start, end):
        return [InputPartition(i) for i in range(start["offset"], end["offset"])]

    def read(self, partition):
        documented.wait_for(self.gate)
        yield (partition.value,)


def test_a_reader_that_always_has_more_is_not_asked_while_there_is_enough_to_read(threaded_job, tmp_path, folders):
    Endless.asked = 0
    source = ps.data_source(Endless, options={"gate": folders.gate}, poll="1ms")
    sink = ps.data_sink(Files, options={"path": folders.table})
    checkpoint = CheckpointSettings(interval_ms=20, retention=Retention.DELETE)
    job = threaded_job(plan_of(source, sink, tmp_path), settings(checkpoint=checkpoint))
    held: list[int] = []

    def each_turn(running):
        if not held and Endless.asked >= 2 and running.driver.view().checkpoints.counts.completed >= 5:
            held.append(Endless.asked)
            folders.gate.touch()
        elif held and Endless.asked > 20 and rows_of_files(folders.table):
            running.driver.cancel()

    assert job.run(each_turn) is JobState.CANCELLED, job.driver.view().failures
    assert held == [2]
    shown = [number for (number,) in rows_of_files(folders.table)]
    # One subtask may have been ahead of the other when the last checkpoint was taken.
    assert shown
    assert len(set(shown)) == len(shown)
    assert job.store.list_files("") == []


# --- whose fault -----------------------------------------------------------------------------------------------------


class Faulty(DataSource):
    """Fails where it is told to."""

    def schema(self):
        return "id bigint"

    def streamReader(self, schema):
        return FaultyReader(self.options["where"])

    def streamWriter(self, schema, overwrite):
        return FaultyWriter(self.options["where"])


class FaultyReader(DataSourceStreamReader):
    def __init__(self, where) -> None:
        self.where = where

    def initialOffset(self):
        return {"at": 0}

    def latestOffset(self, start, limit):
        if self.where == "latestOffset":
            raise ValueError("no answer")
        return {"at": {1, 2}} if self.where == "json" else {"at": 5}

    def partitions(self, start, end):
        if self.where == "partitions":
            raise ValueError("no answer")
        return ["not one"] if self.where == "kind" else [InputPartition(end["at"])]

    def read(self, partition):
        if self.where == "list":
            return [(1,)]
        return self._rows()

    def _rows(self):
        yield (1,)
        if self.where == "read":
            raise ValueError("no answer")
        if self.where == "width":
            yield (1, 2)


class FaultyWriter(DataSourceStreamWriter):
    def __init__(self, where) -> None:
        self.where = where

    def write(self, iterator):
        for _ in iterator:
            if self.where == "write":
                raise ValueError("no space")
        return None if self.where == "message" else documented.Rows([])

    def commit(self, messages, batchId):
        if self.where == "commit":
            raise ValueError("no space")

    def abort(self, messages, batchId):
        raise ValueError("not even that")


@pytest.mark.parametrize(
    ("where", "operator", "text"),
    [
        ("latestOffset", "source", "latestOffset of data source 'Faulty' raised ValueError: no answer"),
        ("json", "source", "UsageError: latestOffset of data source 'Faulty' returned the offset {'at': {1, 2}}"),
        ("partitions", "source", "partitions of data source 'Faulty' raised ValueError: no answer"),
        ("kind", "source", "UsageError: partitions of data source 'Faulty' returned 'not one'"),
        ("list", "source", "read of data source 'Faulty' raised TypeError: read must return an iterator"),
        ("read", "source", "read of data source 'Faulty' raised ValueError: no answer"),
        ("width", "source", "read of data source 'Faulty' raised PySparkRuntimeError: "),
        ("write", "sink", "write of data source 'Faulty' raised ValueError: no space"),
        ("message", "sink", "write of data source 'Faulty' raised TypeError: write must return a WriterCommitMessage"),
        ("commit", "sink", "commit of data source 'Faulty' raised ValueError: no space"),
    ],
)
def test_an_error_says_which_method_of_which_data_source_raised_it(threaded_job, tmp_path, where, operator, text):
    given = {"where": where}
    source = ps.data_source(Faulty, options=given, mode="available-now")
    plan = plan_of(source, ps.data_sink(Faulty, options=given), tmp_path)
    job = threaded_job(plan, settings(restart=NoRestart()))
    assert job.run() is JobState.FAILED
    cause = job.driver.cause
    assert cause is not None
    assert cause.operator == operator
    assert cause.text.startswith(text)
    assert cause.user_code
    on_driver = where in ("latestOffset", "json", "partitions", "kind", "commit")
    assert (cause.subtask is None) is on_driver
