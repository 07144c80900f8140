"""Savepoints into folders that cannot be used: the user is told, and the job does not notice."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gated import EVERYTHING, ROWS, Gate, Numbers
from threaded_jobs import settings, with_splits

import penstock as ps
from penstock.api.program import Program
from penstock.core.coordinator.effects import RequestFailure
from penstock.core.coordinator.events import RequestKind
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.runtime.master.driver import SnapshotRequest
from penstock.runtime.master.savepoint_folders import CHOICES, make_savepoint_folder
from penstock.settings import CheckpointSettings, NoRestart
from penstock.storage.files import FileStore

SETTINGS = settings(checkpoint=CheckpointSettings(interval_ms=20, tolerable_failures=0), restart=NoRestart())
"""The first failure ends the job."""


class Count(ps.KeyedFunction):
    """Has more state than metadata would hold."""

    seen = ps.value_state("seen", "string", default="")

    def on_row(self, row, context):
        if not self.seen.get():
            self.seen.set(f"{row['split']} " * 50_000)
        return {"split": row["split"], "row": row["row"]}


def plan_of(out: Path, gate: Gate):
    program = Program(SETTINGS)
    counted = program.read(Numbers(gate), name="rows").key_by("split")
    counted.process(Count(), schema="split bigint, row bigint", name="counts").write(ps.parquet(str(out)))
    return with_splits(program.plan())


def shown(out: Path) -> list[tuple[int, int]]:
    rows = [row for file in out.glob("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    return sorted((row["split"], row["row"]) for row in rows)


class Asking:
    """Asks for a savepoint in the middle of the data, and lets the job go on when it is answered."""

    def __init__(self, gate: Gate, kind: RequestKind, target: Path) -> None:
        self.answer = None
        self._gate = gate
        self._request = SnapshotRequest(kind=kind, target=str(target))
        self._asked = False

    def __call__(self, running) -> None:
        if not self._asked and running.driver.view().checkpoints.counts.completed >= 2:
            self._asked = True
            running.driver.request(self._request, self._heard)

    def _heard(self, answer) -> None:
        self.answer = answer
        self._gate.open_to(ROWS)


def in_the_way(folder: Path) -> Path:
    (folder / "file").write_text("in the way")
    return folder / "file"


def below_a_file(folder: Path) -> Path:
    return in_the_way(folder) / "saved"


def a_name_too_long(folder: Path) -> Path:
    return folder / ("saved" * 100)


def a_loop_of_links(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.STOP])
@pytest.mark.parametrize("folder", [in_the_way, below_a_file, a_name_too_long, a_loop_of_links])
def test_a_folder_that_cannot_be_used_is_an_error_of_the_savepoint_alone(threaded_job, tmp_path, folder, kind):
    gate, out = Gate(tmp_path / "gate"), tmp_path / "out"
    gate.open_to(ROWS // 2)
    target = folder(tmp_path)
    job, asking = threaded_job(plan_of(out, gate), SETTINGS), Asking(gate, kind, target)
    assert job.run(asking) is JobState.FINISHED, job.driver.view().failures
    assert isinstance(asking.answer, RequestFailure)
    assert f"no savepoint can be written to {target}" in asking.answer.text
    assert job.driver.view().restarts == 0
    assert shown(out) == EVERYTHING


@pytest.mark.parametrize("kind", [RequestKind.SAVEPOINT, RequestKind.STOP])
def test_a_folder_that_slots_have_not_is_found_out_before_the_savepoint_is_complete(threaded_job, tmp_path, kind):
    """Each host has a folder of that name of its own. A stop has ended sources by then: the tasks start again."""
    gate, out, saved = Gate(tmp_path / "gate"), tmp_path / "out", tmp_path / "saved"
    gate.open_to(ROWS // 2)

    def elsewhere(slot):
        return FileStore(tmp_path / "checkpoints", opener=lambda root: FileStore(tmp_path / "elsewhere" / root[1:]))

    job = threaded_job(plan_of(out, gate), SETTINGS, store_of=elsewhere)
    asking = Asking(gate, kind, saved)
    assert job.run(asking) is JobState.FINISHED, job.driver.view().failures
    assert isinstance(asking.answer, RequestFailure)
    assert "the driver does not find" in asking.answer.text
    assert job.driver.view().restarts == (1 if kind is RequestKind.STOP else 0)
    assert not list(saved.rglob("_metadata"))
    assert shown(out) == EVERYTHING


def test_a_savepoint_of_another_job_of_the_same_name_is_left_as_it_is(threaded_job, tmp_path):
    gate, out, saved = Gate(tmp_path / "gate"), tmp_path / "out", tmp_path / "saved"
    gate.open_to(ROWS // 2)
    for number in range(200):
        (saved / f"savepoint-job-1-{number}").mkdir(parents=True)
        (saved / f"savepoint-job-1-{number}" / "_metadata").write_text("another's")
    job, asking = threaded_job(plan_of(out, gate), SETTINGS), Asking(gate, RequestKind.SAVEPOINT, saved)
    assert job.run(asking) is JobState.FINISHED, job.driver.view().failures
    assert isinstance(asking.answer, CompletedCheckpoint), asking.answer
    assert Path(asking.answer.location).name == f"savepoint-job-1-{asking.answer.checkpoint}-2"
    assert all((saved / f"savepoint-job-1-{n}" / "_metadata").read_text() == "another's" for n in range(200))


def test_a_folder_that_was_tried_is_empty(tmp_path):
    store = FileStore(tmp_path / "checkpoints")
    location = make_savepoint_folder(store, str(tmp_path / "saved"), JobId("job"), CheckpointId(7))
    assert [path for path in Path(location).rglob("*") if path.is_file()] == []


def test_names_are_not_tried_for_ever(tmp_path):
    for choice in range(1, CHOICES + 1):
        folder = tmp_path / f"savepoint-job-7{'' if choice == 1 else f'-{choice}'}"
        folder.mkdir()
        (folder / "_metadata").touch()
    with pytest.raises(StorageError, match="choose another folder"):
        make_savepoint_folder(FileStore(tmp_path / "checkpoints"), str(tmp_path), JobId("job"), CheckpointId(7))
