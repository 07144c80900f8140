"""A driver that takes a job over finds what the one before it recorded, or is told what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind
from penstock.core.recovery.tenure import Outcome
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.files import FileStore
from penstock.storage.tenure import record_outcome, take_over

JOB = layout.job_folder(JobId("job"))
OUTCOME = Outcome(state=JobState.FAILED, cause="boom", retained=(CheckpointId(4), CheckpointId(7)))


def completed(checkpoint: int) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(1),
        completed=Instant(2),
        kind=SnapshotKind.CHECKPOINT,
        location=f"job/chk-{checkpoint}",
        path=f"job/chk-{checkpoint}/_metadata",
        size=3,
    )


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_every_driver_has_a_term_of_its_own(store: FileStore):
    assert [take_over(store, JOB).term for _ in range(3)] == [0, 1, 2]
    assert take_over(store, layout.job_folder(JobId("other"))).term == 0


def test_a_driver_finds_records_ids_and_outcome_of_the_one_before(store: FileStore):
    assert take_over(store, JOB).completed == ()
    for checkpoint in (4, 7):
        FileCompletedStore(store, JOB).record(CheckpointId(checkpoint), msgspec.msgpack.encode(completed(checkpoint)))
    checkpoint_ids(store, JOB).advance(9)
    record_outcome(store, JOB, OUTCOME)
    found = take_over(store, JOB)
    assert (found.completed, found.next_id, found.outcome) == ((completed(4), completed(7)), 9, OUTCOME)


def test_a_record_that_is_no_record_is_refused(store: FileStore):
    FileCompletedStore(store, JOB).record(CheckpointId(4), b"\x93\x01")
    with pytest.raises(CorruptFile, match="checkpoint 4"):
        take_over(store, JOB)


@pytest.mark.parametrize("change", ["cut", "flip", "foreign", "newer", "garbage"])
def test_an_outcome_that_was_damaged_is_refused_by_name(store: FileStore, change: str):
    record_outcome(store, JOB, OUTCOME)
    path = layout.outcome_file(JOB)
    content = store.read(path)
    damaged = {
        "cut": content[:-3],
        "flip": content[:-1] + bytes([content[-1] ^ 1]),
        "foreign": b"PMET" + content[4:],
        "newer": content[:4] + b"\x00\x63" + content[6:],
        "garbage": b"",
    }[change]
    store.write(path, damaged)
    with pytest.raises(CorruptFile, match="job/outcome/_outcome"):
        take_over(store, JOB)
