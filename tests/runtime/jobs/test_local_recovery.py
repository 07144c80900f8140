"""Slots that survive the death of another one read nothing of their own from the storage: shown by counting reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from json_splits import SplitReader, SplitSource
from state_rig import LOCAL_DIRECTORY
from threaded_jobs import with_splits

import penstock as ps
from penstock.api.connector import End, Pause
from penstock.api.program import Program
from penstock.connectors.parquet import parquet
from penstock.core.coordinator.events import RequestKind
from penstock.core.ids import SlotId
from penstock.core.job.events import JobState
from penstock.core.messages import StateFile
from penstock.core.recovery.metadata import CheckpointMetadata, CompletedCheckpoint
from penstock.ports import Store
from penstock.runtime.master.driver import SnapshotRequest
from penstock.settings import CheckpointSettings, FixedDelay, JobSettings, NetworkSettings, Retention, StateSettings
from penstock.storage import local_copies
from penstock.storage.files import FileStore
from penstock.storage.metadata import decode_metadata

SPLITS = 2
ROWS = 4_000
"""Of each split."""
USERS = 11
SCHEMA = pa.schema([("user", pa.int64()), ("n", pa.int64())])


class Reader(SplitReader):
    """Reads its splits in turn; their last rows are held back until the gate opens."""

    def poll(self, max_rows: int, now_ms: int):
        if not self._splits:
            return End()
        number, at = self._splits.pop(0)
        rows = min(max_rows, 20, (ROWS if self._gate.exists() else ROWS - 1) - at)
        if at + rows < ROWS:
            self._splits.append([number, at + rows])
        if rows == 0:
            return Pause(1)
        found = [number * ROWS + n for n in range(at, at + rows)]
        return pa.record_batch({"user": [n % USERS for n in found], "n": found}, schema=SCHEMA)


def rows(gate: Path) -> SplitSource:
    """Numbers, each of some user."""
    return SplitSource(SCHEMA, [[number, 0] for number in range(SPLITS)], Reader, gate)


class Count(ps.KeyedFunction):
    """Numbers the rows of each user. A `slow` one takes so long that batches wait for it, until the gate opens."""

    seen = ps.value_state("seen", "bigint", default=0)
    rows = ps.list_state("rows", "bigint")

    def __init__(self, gate: Path, *, slow: bool) -> None:
        self._gate = gate
        self._slow = slow

    def on_row(self, row, context):
        if self._slow and not self._gate.exists():
            time.sleep(0.005)
        self.seen.set(self.seen.get() + 1)
        self.rows.add(row["n"])
        return {"user": row["user"], "nth": self.seen.get()}


class CountedReads:
    """Stores of slots that note who reads what."""

    def __init__(self, folder: Path) -> None:
        self.found: list[tuple[SlotId, str]] = []
        self._folder = folder

    def of(self, slot: SlotId) -> Store:
        return _CountingStore(self._folder, slot, self.found)

    def by(self, number: int, incarnation: int) -> list[str]:
        return sorted(path for slot, path in self.found if (slot.number, slot.incarnation) == (number, incarnation))


class _CountingStore(FileStore):
    def __init__(self, root: Path, slot: SlotId, found: list[tuple[SlotId, str]]) -> None:
        super().__init__(root, opener=lambda other: _CountingStore(Path(other), slot, found))
        self._slot = slot
        self._found = found

    def read(self, path: str, *, limit: int | None = None) -> bytes:
        self._found.append((self._slot, path))
        return super().read(path, limit=limit)


def settings(*, backend: str, unaligned: bool, copies_bytes: int) -> JobSettings:
    return JobSettings(
        parallelism=2,
        checkpoint=CheckpointSettings(
            interval_ms=None,
            unaligned=unaligned,
            inline_threshold_bytes=0,
            local_copies_bytes=copies_bytes,
            retention=Retention.KEEP,
            num_retained=1_000,
        ),
        restart=FixedDelay(attempts=2, delay_ms=5),
        state=StateSettings(backend=backend, local_directory=LOCAL_DIRECTORY),
        network=NetworkSettings(channel_bytes=4_000, output_bytes=4_000, batch_bytes=1_000),
    )


def own_files(metadata: CheckpointMetadata, slot: int) -> list[str]:
    """What the tasks of a slot restore from: their keyed state, and what they had in flight."""
    files: list[StateFile] = []
    for operator in metadata.operators.values():
        files += operator.subtasks[slot].keyed if slot in operator.subtasks else ()
    for task in metadata.channels:
        if task.task.subtask == slot:
            files += [channel.file for channel in (*task.inputs, *task.outputs)]
    assert all(file.path is not None for file in files)
    return sorted({file.path for file in files})


class KillInTurn:
    """For each of `victims`: takes checkpoints, one after another, until one has all that is to be restored, then kills
    that slot. Lets the job end when it runs again."""

    def __init__(self, victims: Sequence[int], gate: Path, *, unaligned: bool) -> None:
        self.restored: list[CheckpointMetadata] = []
        """What the job went back to after each of them."""
        self._victims = victims
        self._gate = gate
        self._unaligned = unaligned
        self._asked = 0
        self._answers: list[CompletedCheckpoint] = []

    def __call__(self, running) -> None:
        view = running.driver.view()
        if view.state is not JobState.RUNNING or view.restarts < len(self.restored):
            return
        if view.restarts == len(self._victims):
            self._gate.touch()
        elif len(self._answers) == self._asked:
            self._look_at_the_newest(running)

    def _look_at_the_newest(self, running) -> None:
        if self._answers:
            path = self._answers[-1].path
            metadata = decode_metadata(path, running.store.read(path))
            is_new = metadata.checkpoint not in [before.checkpoint for before in self.restored]
            if is_new and all(self._is_enough(own_files(metadata, slot)) for slot in (0, 1)):
                running.slots.kill(self._victims[len(self.restored)])
                self.restored.append(metadata)
                return
        self._asked += 1
        running.driver.request(SnapshotRequest(kind=RequestKind.CHECKPOINT), self._answers.append)

    def _is_enough(self, files: list[str]) -> bool:
        in_flight = [file for file in files if "/channels-" in file]
        return len(files) > len(in_flight) and bool(in_flight) is self._unaligned


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize(("copies_bytes", "survivors_read"), [(10_000_000, False), (0, True)], ids=["copies", "none"])
def test_who_survives_reads_nothing_of_its_own_from_the_storage_and_who_replaces_reads_it_once(
    threaded_job, tmp_path, monkeypatch, backend, unaligned, copies_bytes, survivors_read
):
    """1. Slot 1 dies; slot 0 survives. 2. Another checkpoint. 3. Slot 0 dies; what replaced slot 1 survives."""
    # Some copies lie in memory, others in files.
    monkeypatch.setattr(local_copies, "IN_MEMORY_BYTES", 1_000)
    gate, out = tmp_path / "gate", tmp_path / "out"
    reads = CountedReads(tmp_path / "checkpoints")
    chosen = settings(backend=backend, unaligned=unaligned, copies_bytes=copies_bytes)
    program = Program(chosen)
    count = Count(gate, slow=unaligned)
    program.read(rows(gate)).key_by("user").process(count, schema="user bigint, nth bigint").write(parquet(str(out)))
    job = threaded_job(with_splits(program.plan()), chosen, store_of=reads.of)
    kills = KillInTurn((1, 0), gate, unaligned=unaligned)

    assert job.run(kills) is JobState.FINISHED, job.driver.view().failures
    first, second = kills.restored
    assert job.driver.view().checkpoints.latest_restored.checkpoint == second.checkpoint
    survivor_reads = [own_files(first, 0), own_files(second, 1)] if survivors_read else [[], []]
    assert reads.by(0, 1) == survivor_reads[0]
    assert reads.by(1, 2) == sorted([*own_files(first, 1), *survivor_reads[1]])
    assert reads.by(0, 2) == own_files(second, 0)
    assert {(slot.number, slot.incarnation) for slot, _ in reads.found} <= {(0, 1), (1, 2), (0, 2)}
    assert_every_row_counted_once(out)


def assert_every_row_counted_once(out: Path) -> None:
    table = pa.concat_tables([pq.read_table(file) for file in sorted(out.glob("part-*.parquet"))])
    of_user = Counter(n % USERS for n in range(SPLITS * ROWS))
    wanted = sorted((user, nth + 1) for user, count in of_user.items() for nth in range(count))
    assert sorted(zip(table["user"].to_pylist(), table["nth"].to_pylist(), strict=True)) == wanted
