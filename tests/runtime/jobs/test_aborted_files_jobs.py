"""Whole jobs with state in RocksDB and a checkpoint that fails while its files are written: none of them is left, while
the job still runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from json_splits import SplitReader, SplitSource
from state_rig import LOCAL_DIRECTORY
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.errors import StorageError
from penstock.core.job.events import JobState
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, Retention, StateSettings
from penstock.storage.files import FileStore
from penstock.storage.metadata import decode_metadata

SCHEMA = pa.schema([("key", pa.int64())])
PATIENCE_S = 30.0
"""How long files that are to go may take."""


class Reader(SplitReader):
    """Gives a few rows, and ends when the gate opens."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        if self._gate.exists():
            self._splits.clear()
            return End()
        if self._splits[0] == "read":
            return Pause(1)
        self._splits[0] = "read"
        return pa.record_batch({"key": [0, 1, 2]}, schema=SCHEMA)


class Count(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        return row


class OddStore(FileStore):
    """Calls `written` with the path of whatever a slot has written."""

    def __init__(self, root: Path, written) -> None:
        super().__init__(root)
        self._written = written

    def write(self, path, data):
        super().write(path, data)
        self._written(path)


def job_of(threaded_job, folder: Path, written, **checkpointing):
    chosen = settings(
        parallelism=1,
        checkpoint=CheckpointSettings(
            interval_ms=None,
            inline_threshold_bytes=0,
            tolerable_failures=None,
            retention=Retention.KEEP,
            **checkpointing,
        ),
        state=StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
    )
    program = Program(chosen)
    source = SplitSource(SCHEMA, ["fresh"], Reader, folder / "gate")
    rows = program.read(source).key_by("key").process(Count(), schema="key bigint", name="counts")
    rows.write(parquet(str(folder / "shown")))
    return threaded_job(
        with_splits(program.plan()), chosen, store_of=lambda slot: OddStore(folder / "checkpoints", written)
    )


class Script:
    """Asks for a checkpoint that fails, looks at what is left of it, and asks for one that completes."""

    def __init__(self, folder: Path, failed) -> None:
        self._folder = folder
        self._failed = failed
        self._asked = 0
        self._until: float | None = None
        self.left: list[str] | None = None
        """Shared files some time after the first checkpoint has failed."""
        self.kept: list[str] | None = None
        """Shared files after the second one has completed."""
        self.referred: list[str] | None = None

    @property
    def _shared(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("checkpoints/*/shared/*"))

    def __call__(self, running) -> None:
        view = running.driver.view()
        counts = view.checkpoints.counts
        if view.state is not JobState.RUNNING:
            return
        if self._asked == 0:
            self._ask(running)
        elif self.left is None and counts.failed:
            self._failed()
            self._until = self._until or time.monotonic() + PATIENCE_S
            if not self._shared or time.monotonic() > self._until:
                self.left = self._shared
                self._ask(running)
        elif self.left is not None and self.kept is None and counts.completed:
            self.kept = self._shared
            (metadata,) = self._folder.glob("checkpoints/*/chk-2/_metadata")
            files = decode_metadata("_metadata", metadata.read_bytes()).files
            self.referred = sorted(Path(f.path).name for f in files if f.shared_key is not None and f.path is not None)
            (self._folder / "gate").touch()

    def _ask(self, running) -> None:
        self._asked += 1
        running.driver.request(SnapshotRequest(kind=RequestKind.CHECKPOINT), lambda _: None)


def test_a_checkpoint_that_expires_while_its_shared_files_are_written_leaves_none(threaded_job, tmp_path: Path):
    goes_on, seen = threading.Event(), []

    def written(path: str) -> None:
        if "/shared/" in path:
            seen.append(path)
            goes_on.wait(PATIENCE_S)

    script = Script(tmp_path, goes_on.set)
    job = job_of(threaded_job, tmp_path, written, timeout_ms=300)
    try:
        assert job.run(script) is JobState.FINISHED
    finally:
        goes_on.set()
    assert seen
    assert script.left == []
    assert script.kept
    assert script.kept == script.referred


@pytest.mark.parametrize("where", ["/chk-1/", "/shared/"])
def test_a_checkpoint_whose_write_fails_half_way_leaves_no_shared_file(threaded_job, tmp_path: Path, where: str):
    failures = []

    def written(path: str) -> None:
        if where in path and not failures:
            failures.append(path)
            raise StorageError("disk full")

    script = Script(tmp_path, lambda: None)
    assert job_of(threaded_job, tmp_path, written).run(script) is JobState.FINISHED
    assert failures
    assert script.left == []
    assert script.kept
    assert script.kept == script.referred
