"""A driver that takes a job over finds what the one before it recorded, or is told what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from completed_records import completed, encoded

from penstock.core.errors import CorruptFile, JobTakenOver, StorageError
from penstock.core.ids import CheckpointId, JobId, OperatorId, Term
from penstock.core.job.events import JobState
from penstock.core.recovery import layout
from penstock.core.recovery.tenure import Inheritance, JobOutcome, Start
from penstock.ports import Frame
from penstock.storage.completed import FileCompletedStore
from penstock.storage.files import FileStore
from penstock.storage.records import FileRecords
from penstock.storage.tenure import End, end_of, inheritance_format, take_over

JOB = layout.job_folder(JobId("job"))
START = Start(splits={OperatorId("read"): (b"one", b"two")}, max_parallelism=128)
OUTCOME = JobOutcome(state=JobState.FAILED, cause="boom", retained=(CheckpointId(4), CheckpointId(7)))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_every_driver_has_a_term_of_its_own(store: FileStore):
    assert [take_over(store, JOB).term for _ in range(3)] == [0, 1, 2]
    assert take_over(store, layout.job_folder(JobId("other"))).term == 0


def test_a_driver_finds_records_ids_and_outcome_of_the_one_before(store: FileStore):
    assert take_over(store, JOB).completed == ()
    records = FileRecords(store, JOB, term=Term(0))
    for checkpoint in (4, 7):
        records.record(CheckpointId(checkpoint), encoded(checkpoint))
    records.take_ids(CheckpointId(9))
    records.record_start(START, None)
    records.record_outcome(OUTCOME)
    found = take_over(store, JOB)
    assert (found.completed, found.next_id, found.outcome) == ((completed(4), completed(7)), 9, OUTCOME)
    assert found.start == START
    assert take_over(store, JOB) == msgspec.structs.replace(found, term=Term(2)), "whoever comes later finds the same"


def test_a_record_that_is_no_record_is_refused(store: FileStore):
    FileCompletedStore(store, JOB).record(CheckpointId(4), b"\x93\x01")
    with pytest.raises(CorruptFile, match="checkpoint 4"):
        take_over(store, JOB)


@pytest.mark.parametrize("change", ["cut", "flip", "foreign", "newer", "garbage"])
def test_an_outcome_that_was_damaged_is_refused_by_name(store: FileStore, change: str):
    take_over(store, JOB)
    FileRecords(store, JOB, term=Term(0)).record_outcome(OUTCOME)
    path = layout.outcome_file(JOB, Term(0))
    content = store.read(path)
    damaged = {
        "cut": content[:-3],
        "flip": content[:-1] + bytes([content[-1] ^ 1]),
        "foreign": b"PMET" + content[4:],
        "newer": content[:4] + b"\x00\x63" + content[6:],
        "garbage": b"",
    }[change]
    store.write(path, damaged)
    with pytest.raises(CorruptFile, match="job/outcome/0000000000000000000"):
        take_over(store, JOB)


# --- two drivers at once ---------------------------------------------------------------------------------------------


def test_a_driver_that_was_overtaken_while_it_took_the_job_over_does_not_have_it(store: FileStore):
    """1. One driver has claimed its term and looks around. 2. Another takes the job over. 3. The first goes on."""

    class Overtaking(FileStore):
        waiting = True

        def write(self, path: str, data: Frame) -> None:
            if self.waiting and "/tenures/" in path:
                self.waiting = False
                take_over(FileStore(self.root), JOB)
            super().write(path, data)

    FileRecords(store, JOB, term=take_over(store, JOB).term).record(CheckpointId(4), encoded(4))
    with pytest.raises(JobTakenOver):
        take_over(Overtaking(store.root), JOB)
    assert take_over(store, JOB).completed == (completed(4),)


def test_of_two_that_take_a_job_over_at_once_one_has_it(store: FileStore):
    class Simultaneous(FileStore):
        waiting = True

        def create(self, path: str, data: Frame) -> bool:
            if self.waiting:
                self.waiting = False
                take_over(FileStore(self.root), JOB)
            return super().create(path, data)

    with pytest.raises(JobTakenOver):
        take_over(Simultaneous(store.root), JOB)


# --- the end of a job ------------------------------------------------------------------------------------------------


def ended(store: FileStore) -> End:
    FileRecords(store, JOB, term=take_over(store, JOB).term).record_outcome(OUTCOME)
    end = end_of(store, JOB)
    assert end is not None
    return end


def test_the_end_of_a_job_stays_the_same_until_it_has_begun_once_more(store: FileStore):
    assert end_of(store, JOB) is None
    first = ended(store)
    assert take_over(store, JOB).outcome == OUTCOME
    assert end_of(store, JOB) == first
    assert take_over(store, JOB, after=first).outcome is None
    assert end_of(store, JOB) is None
    assert ended(store) != first
    assert take_over(store, JOB, after=first).outcome == OUTCOME


def test_an_end_that_was_written_down_without_a_term_is_one(store: FileStore):
    take_over(store, JOB)
    store.write(layout.tenure_file(JOB, Term(0)), inheritance_format.encode(Inheritance(outcome=OUTCOME)))
    end = end_of(store, JOB)
    assert end == End(None)
    assert take_over(store, JOB).outcome == OUTCOME
    assert take_over(store, JOB, after=end).outcome is None


@pytest.mark.parametrize("folder", ["tenures", "outcome"])
def test_the_end_of_a_job_is_found_while_another_driver_takes_it_over(store: FileStore, folder: str):
    """1. A driver looks for how the job ended. 2. Another takes the job over, and removes what the first is about to
    read. 3. The first looks again."""

    class Tidied(FileStore):
        waiting = True

        def read(self, path: str, *, limit: int | None = None) -> bytes:
            if self.waiting and f"/{folder}/" in path:
                self.waiting = False
                take_over(FileStore(self.root), JOB)
            return super().read(path, limit=limit)

    end = ended(store)
    watched = Tidied(store.root)
    assert end_of(watched, JOB) == end
    assert not watched.waiting


def test_storage_that_is_out_of_order_does_not_hide_the_end_of_a_job(store: FileStore):
    class Broken(FileStore):
        def read(self, path: str, *, limit: int | None = None) -> bytes:
            raise StorageError(f"reading {path} failed")

    ended(store)
    with pytest.raises(StorageError, match="tenures"):
        end_of(Broken(store.root), JOB)
