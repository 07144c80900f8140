"""Whole jobs with parts on the driver: an enumerator that finds splits over time, a committer for all subtasks."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from threaded_jobs import CHECKPOINTS, kill_slots, settings

from penstock.api.connector import (
    Committer,
    End,
    Found,
    Pause,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SplitEnumerator,
)
from penstock.api.steps import ReadStep, WriteStep
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import OperatorId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.plan.graph import Input, Node, Partitioning, build_plan
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, NoRestart, SlotSettings
from penstock.storage.metadata import decode_metadata

SPLITS = 40
ROWS = 50
SCHEMA = pa.schema([("split", pa.int64()), ("row", pa.int64())])
EVERYTHING = [(split, row) for split in range(SPLITS) for row in range(ROWS)]


class Ranges(SourceReader):
    """Reads a few rows at a time of splits that are (number, position)."""

    def __init__(self, splits) -> None:
        self._splits = [pickle.loads(split) for split in splits]

    def poll(self, max_rows, now_ms):
        if not self._splits:
            return End()
        if now_ms % 2:
            return Pause(1)
        number, position = self._splits[0]
        stop = min(position + 7, ROWS)
        self._splits[0] = (number, stop)
        if stop == ROWS:
            self._splits.pop(0)
        rows = range(position, stop)
        return pa.RecordBatch.from_arrays([pa.array([number] * len(rows)), pa.array(list(rows))], schema=SCHEMA)

    def snapshot(self):
        return [pickle.dumps(split) for split in self._splits]

    def add_splits(self, splits):
        self._splits += [pickle.loads(split) for split in splits]


class Growing(SplitEnumerator):
    """Finds one or two splits whenever it is asked; the last ones only when the gate is open."""

    def __init__(self, source: Discovered) -> None:
        self._source = source

    def start(self, position):
        self._source.started.append(position)

    def discover(self, position):
        begin = int(position or b"0")
        last = SPLITS if self._source.gate.exists() else min(SPLITS - 5, self._source.limit())
        stop = min(begin + 1 + begin % 2, last)
        splits = [pickle.dumps((number, 0)) for number in range(begin, stop)]
        if self._source.breaks_at is not None and stop >= self._source.breaks_at:
            raise ValueError("the catalog is gone")
        return Found(position=b"%d" % stop, splits=splits, ended=stop == SPLITS, wait_ms=12)

    def consumed(self, position, unread):
        self._source.consumed.append((int(position or b"0"), [pickle.loads(split)[0] for split in unread]))

    def close(self):
        self._source.closed.append(True)


class Discovered(Source):
    """A source that knows none of its splits when the job starts."""

    def __init__(self, gate: Path, breaks_at: int | None = None, limit=lambda: SPLITS) -> None:
        self.gate = gate
        self.breaks_at = breaks_at
        self.limit = limit
        self.started, self.consumed, self.closed = [], [], []

    schema = SCHEMA
    discovers = True

    def splits(self, parallelism):
        return []

    def enumerator(self):
        return Growing(self)

    def open(self, splits):
        return Ranges(splits)


class ListWriter(SinkWriter):
    def __init__(self) -> None:
        self._rows = []

    def write(self, batch):
        self._rows += [tuple(row.values()) for row in batch.to_pylist()]

    def prepare(self, checkpoint):
        rows, self._rows = self._rows, []
        return lambda: [pickle.dumps(rows)] if rows else []


class Ledger(Committer):
    def __init__(self, sink: LedgerSink) -> None:
        self._sink = sink

    def commit(self, checkpoint, committables):
        rows = sorted(row for part in committables for row in pickle.loads(part))
        self._sink.calls.append((checkpoint, rows))
        if len(self._sink.calls) in self._sink.breaks_on:
            raise ValueError("the table is locked")

    def close(self, *, owes):
        self._sink.closed.append(owes)


class LedgerSink(Sink):
    """Everything is committed on the driver, into a list."""

    commits_on_driver = True

    def __init__(self, *, breaks_on=()) -> None:
        self.calls, self.closed = [], []
        self.breaks_on = breaks_on

    def writer(self, context):
        return ListWriter()

    def committer(self):
        return Ledger(self)


def plan_of(source, sink, *, parallelism=2, chained=False):
    link = Input(node=0, partitioning=Partitioning.FORWARD)
    link = link if chained else Input(node=0, partitioning=Partitioning.HASH, keys=("row",))
    steps = [
        ("numbers", ReadStep(source=source), ()),
        (
            "sink",
            WriteStep(sink=sink, schema=SCHEMA),
            (link,),
        ),
    ]
    nodes = tuple(
        Node(number=n, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=n == 0)
        for n, (name, step, inputs) in enumerate(steps)
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=None)


def written(out: Path) -> list[tuple]:
    tables = [pq.read_table(file) for file in sorted(out.glob("part-*.parquet"))]
    return sorted(tuple(row.values()) for row in pa.concat_tables(tables).to_pylist())


def by_id(calls) -> list[tuple]:
    """What a table has that takes every id once; the same id must always have had the same rows."""
    seen: dict[int, list] = {}
    for checkpoint, rows in calls:
        assert seen.setdefault(checkpoint, rows) == rows
    assert list(seen) == sorted(seen)
    return sorted(row for rows in seen.values() for row in rows)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_splits_that_are_found_over_time_are_read_by_all_subtasks_once(threaded_job, tmp_path, parallelism):
    gate = tmp_path / "gate"
    gate.touch()
    source, out = Discovered(gate), tmp_path / "out"
    plan = plan_of(source, parquet(out), parallelism=parallelism)
    job = threaded_job(plan, settings(parallelism=parallelism))
    assert job.run() is JobState.FINISHED
    assert written(out) == EVERYTHING
    assert source.started == [None]
    assert source.closed == [True]
    assert job.store.list_files("") == []


@CHECKPOINTS
def test_killed_slots_lose_no_split_and_read_none_twice(threaded_job, tmp_path, checkpoint):
    source, out = Discovered(tmp_path / "gate"), tmp_path / "out"
    job = threaded_job(plan_of(source, parquet(out)), settings(checkpoint=checkpoint))
    assert job.run(kill_slots(source.gate, times=4)) is JobState.FINISHED, job.driver.view().failures
    assert len(source.started) == 5
    assert source.started[-1] is not None
    assert written(out) == EVERYTHING


@CHECKPOINTS
def test_every_id_is_committed_with_the_same_rows_however_often(threaded_job, tmp_path, checkpoint):
    sink = LedgerSink(breaks_on=(3, 4, 8))
    # However much a checkpoint holds, there is more for the next one until all breaks have come.
    source = Discovered(tmp_path / "gate", limit=lambda: 2 + 3 * len(sink.calls))
    job = threaded_job(plan_of(source, sink), settings(checkpoint=checkpoint))
    kill = kill_slots(tmp_path / "killed", times=3)

    def each_turn(running):
        kill(running)
        if (tmp_path / "killed").exists() and len(sink.calls) >= 8:
            source.gate.touch()

    assert job.run(each_turn) is JobState.FINISHED, job.driver.view().failures
    assert by_id(sink.calls) == EVERYTHING
    assert sink.closed == [False]
    locked = [failure for failure in job.driver.view().failures if "the table is locked" in failure.text]
    # One that breaks while a killed slot ends the attempt is not why it ended.
    assert 1 <= len(locked) <= 3
    assert {(f.operator, f.user_code) for f in locked} == {("sink", True)}
    assert "in commit" in locked[0].traceback


class Meeting:
    """What the parts of one job wait for. Slots are threads of this process, and find it by its name."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        """The snapshot of the first checkpoint is being written."""
        self.given = threading.Event()
        """The reader was given a split since."""
        self.was_in_time = False


MEETINGS: dict[str, Meeting] = {}


class Later(SplitEnumerator):
    """Finds its only split when a snapshot is being written."""

    def __init__(self, meeting: str) -> None:
        self._meeting = meeting

    def discover(self, position):
        if position == b"1" or not MEETINGS[self._meeting].writing.is_set():
            return Found(position=position or b"0", wait_ms=2)
        return Found(position=b"1", splits=[pickle.dumps((0, 0))], ended=True)


class Waiting(Ranges):
    def __init__(self, splits, meeting: str) -> None:
        super().__init__(splits)
        self._meeting = meeting

    def add_splits(self, splits):
        super().add_splits(splits)
        MEETINGS[self._meeting].given.set()


class FoundLater(Source):
    schema = SCHEMA
    discovers = True

    def __init__(self, meeting: str) -> None:
        self._meeting = meeting

    def splits(self, parallelism):
        return []

    def enumerator(self):
        return Later(self._meeting)

    def open(self, splits):
        return Waiting(splits, self._meeting)


class SlowWriter(ListWriter):
    """The first snapshot is written only when the reader of the same task was given a split."""

    def __init__(self, meeting: str) -> None:
        super().__init__()
        self._meeting = meeting

    def prepare(self, checkpoint):
        prepare, meeting = super().prepare(checkpoint), MEETINGS[self._meeting]

        def work():
            if not meeting.writing.is_set():
                meeting.writing.set()
                meeting.was_in_time = meeting.given.wait(30)
            return prepare()

        return work


class SlowSink(LedgerSink):
    def __init__(self, meeting: str) -> None:
        super().__init__()
        self._meeting = meeting

    def writer(self, context):
        return SlowWriter(self._meeting)


@CHECKPOINTS
def test_a_coordinator_is_heard_as_soon_as_the_barrier_has_passed_and_not_when_the_snapshot_is_durable(
    threaded_job, request, checkpoint
):
    """1. The task has frozen its snapshot, and writes it. 2. The enumerator finds a split. 3. The reader is given it
    before the snapshot is written: the gateway has opened. 4. The split is not in that checkpoint."""
    meeting = MEETINGS[request.node.name] = Meeting()
    sink = SlowSink(request.node.name)
    plan = plan_of(FoundLater(request.node.name), sink, parallelism=1, chained=True)
    job = threaded_job(plan, settings(parallelism=1, checkpoint=checkpoint))
    assert job.run() is JobState.FINISHED
    assert meeting.was_in_time
    assert by_id(sink.calls) == [(0, row) for row in range(ROWS)]


class Unwritable(Growing):
    """Once, when it has found a few splits, its position is nothing that a checkpoint can hold; and stays so, until the
    job starts again."""

    def discover(self, position):
        if isinstance(position, int):
            return Found(position=position, wait_ms=2)
        found = super().discover(position)
        if int(found.position) < 5 or self._source.spoiled:
            return found
        self._source.spoiled.append(found.position)
        return replace(found, position=int(found.position))


class Spoiled(Discovered):
    def __init__(self, gate: Path) -> None:
        super().__init__(gate)
        self.spoiled = []

    def enumerator(self):
        return Unwritable(self)


def test_an_enumerator_whose_snapshot_raises_fails_the_job_as_a_whole(threaded_job, tmp_path):
    source, sink = Spoiled(tmp_path / "gate"), LedgerSink()
    source.gate.touch()
    tolerant = CheckpointSettings(interval_ms=20, tolerable_failures=None)
    job = threaded_job(plan_of(source, sink), settings(checkpoint=tolerant))
    assert job.run() is JobState.FINISHED, job.driver.view().failures
    failures = [f for f in job.driver.view().failures if "cannot be part of a checkpoint" in f.text]
    assert [(f.operator, f.user_code) for f in failures] == [("numbers", True)]
    assert "in snapshot" in failures[0].traceback
    assert len(source.started) == 2
    assert by_id(sink.calls) == EVERYTHING


def test_an_enumerator_that_returns_nothing_fails_the_job_and_not_its_driver(threaded_job, tmp_path):
    class Silent(SplitEnumerator):
        def discover(self, position):
            return None

    source = Discovered(tmp_path / "gate")
    source.enumerator = Silent
    job = threaded_job(plan_of(source, LedgerSink()), settings(restart=NoRestart()))
    assert job.run() is JobState.FAILED
    assert job.driver.cause.operator == "numbers"
    assert "'NoneType' object has no attribute" in job.driver.cause.text


def test_events_find_the_slot_at_the_place_of_their_subtask_when_a_spare_has_taken_it(threaded_job, tmp_path):
    """1. Slot 0 dies, and a spare with another number takes its place. 2. Splits that are found, and commits that are
    made, from then on still reach subtask 0: else it would never read, and never end."""
    source, sink = Discovered(tmp_path / "gate"), LedgerSink()
    chosen = settings(slot=SlotSettings(spares=1))
    job = threaded_job(plan_of(source, sink), chosen)
    places: list[tuple[int, ...]] = []

    def kill_once(running):
        view = running.driver.view()
        if view.state is not JobState.RUNNING or view.checkpoints.counts.completed < 2:
            return
        if not places and view.spares:
            places.append(tuple(slot.number for slot in view.slots))
            running.slots.kill(0)
        elif places and view.restarts == 1 and len(places) == 1:
            places.append(tuple(slot.number for slot in view.slots))
            source.gate.touch()

    assert job.run(kill_once) is JobState.FINISHED, job.driver.view().failures
    assert places == [(0, 1), (2, 1)]
    assert by_id(sink.calls) == EVERYTHING


def test_the_enumerator_learns_what_has_been_read_to_its_end(threaded_job, tmp_path):
    source = Discovered(tmp_path / "gate")
    job = threaded_job(plan_of(source, LedgerSink()), settings())
    assert job.run(kill_slots(source.gate, times=1)) is JobState.FINISHED
    position, unread = source.consumed[-1]
    assert (position, unread) == (SPLITS, [])
    assert all(number < position for position, unread in source.consumed for number in unread)


def test_an_enumerator_that_raises_fails_the_job_with_its_traceback(threaded_job, tmp_path):
    source = Discovered(tmp_path / "gate", breaks_at=7)
    job = threaded_job(plan_of(source, LedgerSink()), settings(restart=NoRestart()))
    assert job.run() is JobState.FAILED
    assert job.driver.cause is not None
    assert "the catalog is gone" in job.driver.cause.text
    assert "in discover" in job.driver.cause.traceback
    assert source.closed == [True]


def test_a_committer_that_gave_up_knows_that_it_owes_something(threaded_job, tmp_path):
    sink = LedgerSink(breaks_on=(2,))
    job = threaded_job(plan_of(Discovered(tmp_path / "gate"), sink), settings(restart=NoRestart()))
    assert job.run() is JobState.FAILED
    assert len(sink.calls) == 2
    assert sink.closed == [True]


def test_a_rescaled_job_goes_on_finding_splits(threaded_job, tmp_path):
    source, sink = Discovered(tmp_path / "gate"), LedgerSink()
    job = threaded_job(plan_of(source, sink), settings())
    answers: list = []

    def rescale(running):
        if running.driver.view().checkpoints.counts.completed >= 2 and not answers:
            answers.append("asked")
            running.driver.rescale(3, answers.append)
        if len(answers) == 2:
            source.gate.touch()

    assert job.run(rescale) is JobState.FINISHED
    assert answers == ["asked", None]
    assert by_id(sink.calls) == EVERYTHING


def test_a_job_that_is_started_from_a_savepoint_finds_the_splits_that_are_not_in_it(threaded_job, tmp_path):
    source, sink = Discovered(tmp_path / "gate"), LedgerSink()
    first = threaded_job(plan_of(source, sink), settings())
    answers: list = []

    def stop_once(running):
        if running.driver.view().checkpoints.counts.completed >= 3 and not answers:
            answers.append("asked")
            request = SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path / "saved"))
            running.driver.request(request, answers.append)

    assert first.run(stop_once) is JobState.FINISHED
    savepoint = answers[1]
    assert isinstance(savepoint, CompletedCheckpoint)
    metadata = decode_metadata("", (Path(savepoint.location) / "_metadata").read_bytes())
    assert list(metadata.coordinators) == ["numbers", "sink"]
    assert metadata.settings["parallelism"] == 2
    assert metadata.settings["checkpoint"]["interval_ms"] == 20
    assert metadata.settings["checkpoint"]["mode"] == "exactly-once"

    again = Discovered(source.gate)
    again.gate.touch()
    second = threaded_job(plan_of(again, sink), settings(), job="job-2", started_from=savepoint)
    assert second.run() is JobState.FINISHED
    assert by_id(sink.calls) == EVERYTHING
    assert again.started[0] not in (None, b"0")
