"""Whole jobs whose checkpoints fail more often than is tolerated, and whose stop is given up: who restarts, and why."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_splits import SplitReader, SplitSource
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.errors import StorageError
from penstock.core.job.events import JobState
from penstock.core.reasons import CheckpointFailure
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, NoRestart, Restart
from penstock.storage.files import FileStore

SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64())])
PIPELINES = ("sick", "sound")
OPENED: Counter[str] = Counter()
"""How often the source of each pipeline was opened. Slots are threads of this process."""
ENDS: dict[str, int] = {}
"""How many records the source of each pipeline had."""


class Reader(SplitReader):
    """Counts on, in its only split, until the gate opens."""

    def __init__(self, splits: list[Any], gate: Path) -> None:
        super().__init__(splits, gate)
        OPENED.update(name for name, _ in splits)

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        name, at = self._splits[0]
        if self._gate.exists():
            ENDS[name] = at
            self._splits.clear()
            return End()
        if now_ms % 3:
            return Pause(1)
        self._splits[0] = [name, at + 5]
        return pa.record_batch({"key": [0] * 5, "n": list(range(at, at + 5))}, schema=SCHEMA)


class Remember(ps.KeyedFunction):
    """Has state, so that a snapshot has a file."""

    last = ps.value_state("last", "bigint", default=0)

    def on_row(self, row, context):
        self.last.set(row["n"])
        return {"n": row["n"]}


def plan(folder: Path, chosen):
    """Two pipelines that nothing joins."""
    program = Program(chosen)
    for name in PIPELINES:
        source = SplitSource(SCHEMA, [[name, 0]], Reader, folder / "gate")
        kept = (
            program.read(source, name=name).key_by("key").process(Remember(), schema="n bigint", name=f"{name}-keeps")
        )
        kept.write(parquet(str(folder / name)))
    return with_splits(program.plan())


class SickStore(FileStore):
    """Does with the state of the sick pipeline what `write_sick` does before it is written."""

    def __init__(self, root: Path, write_sick) -> None:
        super().__init__(root)
        self._write_sick = write_sick

    def at(self, root):
        return SickStore(Path(root), self._write_sick)

    def write(self, path, data):
        if "sick-keeps" in path:
            self._write_sick()
        super().write(path, data)


def job_of(threaded_job, folder: Path, write_sick, *, restart: Restart | None = None, **checkpointing):
    checkpoint = CheckpointSettings(interval_ms=20, inline_threshold_bytes=0, **checkpointing)
    chosen = settings(checkpoint=checkpoint, **({} if restart is None else {"restart": restart}))
    root = folder / "checkpoints"
    return threaded_job(plan(folder, chosen), chosen, store_of=lambda slot: SickStore(root, write_sick))


def shown(folder: Path) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in folder.glob("*.parquet"):
        rows.update(pq.read_table(file).column("n").to_pylist())
    return rows


def assert_every_record_shows_once(folder: Path) -> None:
    for name in PIPELINES:
        assert shown(folder / name) == Counter(range(ENDS[name]))


@pytest.fixture(autouse=True)
def _fresh():
    OPENED.clear()
    ENDS.clear()


def test_a_task_that_declines_more_checkpoints_than_are_tolerated_restarts_with_its_region_alone(
    threaded_job, tmp_path: Path
):
    tries: list[int] = []

    def write_sick():
        tries.append(1)
        if len(tries) <= 2:
            raise StorageError("disk full")

    def each_turn(running):
        view = running.driver.view()
        if view.restarts and view.state is JobState.RUNNING and view.checkpoints.counts.completed >= 2:
            (tmp_path / "gate").touch()

    job = job_of(threaded_job, tmp_path, write_sick, tolerable_failures=1)
    assert job.run(each_turn) is JobState.FINISHED
    view = job.driver.view()
    assert view.restarts == 1
    (failure,) = view.failures
    assert failure.text.startswith("more than 1 checkpoints failed in a row")
    assert "disk full" in failure.text
    assert failure.operator is not None
    assert "sick-keeps" in failure.operator
    assert OPENED == {"sick": 2, "sound": 1}
    assert_every_record_shows_once(tmp_path)


def test_more_expired_checkpoints_than_are_tolerated_restart_the_job(threaded_job, tmp_path: Path):
    goes_on = threading.Event()

    def each_turn(running):
        view = running.driver.view()
        if view.restarts:
            goes_on.set()
            if view.state is JobState.RUNNING and view.checkpoints.counts.completed >= 2:
                (tmp_path / "gate").touch()

    job = job_of(threaded_job, tmp_path, goes_on.wait, tolerable_failures=1, timeout_ms=500)
    try:
        assert job.run(each_turn) is JobState.FINISHED
    finally:
        goes_on.set()
    view = job.driver.view()
    assert view.restarts >= 1
    assert view.failures[0].text.startswith("more than 1 checkpoints failed in a row, the last because")
    assert (view.failures[0].operator, view.failures[0].subtask) == (None, None)
    # A slow machine may let more checkpoints expire, and the next restart begin before all sources are open again.
    assert min(OPENED[name] for name in PIPELINES) >= 2, "all of the job was restarted"
    assert_every_record_shows_once(tmp_path)


def test_a_stop_whose_savepoint_expires_restarts_the_tasks_and_is_called_no_bug(threaded_job, tmp_path: Path):
    is_stuck, goes_on, asked, answers = threading.Event(), threading.Event(), [], []

    def write_sick():
        is_stuck.set()
        goes_on.wait()

    def each_turn(running):
        view = running.driver.view()
        if is_stuck.is_set() and not asked:
            asked.append(view.epoch)
            running.driver.request(SnapshotRequest(kind=RequestKind.STOP, target=str(tmp_path)), answers.append)
        if view.restarts:
            goes_on.set()
            if view.state is JobState.RUNNING and view.checkpoints.counts.completed >= 2:
                (tmp_path / "gate").touch()

    job = job_of(threaded_job, tmp_path, write_sick, restart=NoRestart(), tolerable_failures=None, timeout_ms=100)
    try:
        assert job.run(each_turn) is JobState.FINISHED
    finally:
        goes_on.set()
    (answer,) = answers
    assert isinstance(answer, RequestFailure)
    assert answer.reason is CheckpointFailure.EXPIRED
    view = job.driver.view()
    # The sources had ended for the stop, so that all tasks begin again.
    assert view.restarts >= 1
    assert min(OPENED[name] for name in PIPELINES) >= 2
    texts = [failure.text for failure in view.failures]
    assert texts
    for text in texts:
        assert "bug" not in text
        assert "Invariant" not in text
        assert "the savepoint that was to stop the job failed" in text or "SnapshotFailed: savepoint" in text
    assert_every_record_shows_once(tmp_path)
