"""What is left of a job when it has ended, and what becomes of storage and sinks that fail just then."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from held_work import HeldWork

from penstock.api.connector import Sink
from penstock.api.hold import Hold
from penstock.api.steps import ReadStep, WriteStep
from penstock.connectors.parquet_files import ParquetFiles
from penstock.core.errors import ExternalError, Retry, StorageError
from penstock.core.ids import CheckpointId, Instant, JobId, OperatorId, Term, VertexId
from penstock.core.job.ending import CleanedUp
from penstock.core.messages import OperatorState, StateFile
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CheckpointMetadata, OperatorSnapshot, SnapshotKind
from penstock.runtime.master.ending import TRIES
from penstock.runtime.master.ending import Ending as JobEnding
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.landed_inputs import LandedInputs
from penstock.runtime.master.saved_results import SavedResults
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.records import FileRecords
from penstock.storage.tenure import terms_of

JOB = JobId("job")
FOLDER = layout.job_folder(JOB)


class FailingStore(FileStore):
    """Refuses so many calls that change something."""

    failures = 0
    retry = Retry.LATER

    def _fail(self):
        if self.failures:
            self.failures -= 1
            raise StorageError("out of order", retry=self.retry)

    def delete(self, path):
        self._fail()
        super().delete(path)

    def delete_tree(self, prefix):
        self._fail()
        super().delete_tree(prefix)


class FailingSink(Sink):
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    @property
    def name(self):
        return "failing"

    def writer(self, context):
        raise NotImplementedError

    def commit(self, committables):
        raise NotImplementedError

    def end(self, job):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


class Ending:
    """The clean-up of one job with one sink, and the time."""

    def __init__(self, folder):
        self.store = FailingStore(folder / "checkpoints")
        self.landing = FailingStore(folder / "landing")
        self.sink = FailingSink()
        self.now = 1_000
        for path in ("job/chk-1/x", "job/chk-2/x", "job/chk-2/_metadata", "job/counter/3", "job/inputs/s/a", "other/x"):
            self.store.write(path, b"")
        self.store.write("job/completed/0000000000000000001", b"")
        self.store.write("job/completed/0000000000000000002", b"")
        (self.store.root / "job" / "chk-1" / ".writing-1").write_bytes(b"half")
        self.landing.write("job/inputs/s/a", b"")

    def write_metadata(self, checkpoint: int, *shared: str) -> None:
        """A checkpoint refers to these shared files."""
        files = tuple(StateFile(path=path, size=0, checksum=0, shared_key=path) for path in shared)
        state = OperatorState(operator=OperatorId("o"), keyed=files)
        metadata = CheckpointMetadata(
            job=JOB,
            checkpoint=CheckpointId(checkpoint),
            timestamp=Instant(0),
            kind=SnapshotKind.CHECKPOINT,
            operators={
                OperatorId("o"): OperatorSnapshot(
                    operator=OperatorId("o"),
                    vertex=VertexId("v"),
                    parallelism=1,
                    max_parallelism=1,
                    subtasks={0: state},
                )
            },
        )
        self.store.write(f"job/chk-{checkpoint}/_metadata", encode_metadata(metadata))

    def run(self, *retained: int, term: Term | None = None, lands_there: bool = True, saved=None, spared=()) -> None:
        background = HeldWork()
        operator = SimpleNamespace(step=WriteStep(sink=self.sink, schema=pa.schema([])))
        source = ParquetFiles(files=(), columns=pa.schema([]))
        read = SimpleNamespace(operator=OperatorId("s"), step=ReadStep(source=source))
        plan = SimpleNamespace(vertices=(SimpleNamespace(operators=(read, operator)),))
        records = FileRecords(self.store, FOLDER, term=term)
        landing = self.landing if lands_there else None
        results = SavedResults(FOLDER, self.store, taken_over=False)
        ending = JobEnding(
            storage=JobStorage(job=JOB, store=self.store, records=records, background=background, guard=Guard()),
            cleaning=Guard(Hold(records.check)),
            plan=plan,
            landing=landing,
            inputs=LandedInputs(FOLDER, plan, landing or self.store),
            saved=results,
        )
        if saved is not None:
            results.begin(saved)
            results.write(saved)
            results.complete(saved.checkpoint)
        ending.spare(tuple(f"{self.store.location}/{path}" for path in spared))
        ending.clean_up(tuple(CheckpointId(n) for n in retained), (), Instant(self.now))
        background.collect()
        while not (ended := ending.turn(Instant(self.now))):
            background.collect()
            if (deadline := ending.next_deadline()) is not None:
                assert deadline > self.now
                self.now = deadline
        assert ended == [CleanedUp()]

    @property
    def left(self) -> list[str]:
        return [path for path in self.store.list_files("") if path.startswith("job/")]


@pytest.fixture
def ending(tmp_path):
    return Ending(tmp_path)


def test_of_a_job_that_keeps_nothing_nothing_is_left(ending):
    ending.run()
    assert ending.left == ending.landing.list_files("") == []
    assert ending.store.list_files("") == ["other/x"]
    assert ending.sink.calls == 1


def test_files_in_the_jobs_folder_that_no_job_makes_stay(ending):
    ending.store.write("job/savepoint-other-2/_metadata", b"")
    ending.store.write("job/notes", b"")
    ending.run(spared=("job/chk-1",))
    assert ending.left == ["job/chk-1/x", "job/notes", "job/savepoint-other-2/_metadata"]


def test_a_job_that_keeps_a_checkpoint_keeps_what_a_start_from_it_needs_and_nothing_else(ending):
    ending.run(2)
    assert ending.left == ["job/chk-2/_metadata", "job/chk-2/x", "job/counter/3", "job/inputs/s/a"]
    assert ending.store.list_temporary("") == [], "a half-written file went with its folder"
    assert ending.landing.list_files("") == ["job/inputs/s/a"]
    assert ending.sink.calls == 0, "results that the checkpoint has prepared are not thrown away"


def test_shared_files_that_no_retained_checkpoint_has_go(ending):
    """A slot died while it wrote them, or an acknowledgement was lost: nobody knows of them."""
    ending.write_metadata(1, "job/shared/a")
    ending.write_metadata(2, "job/shared/b", f"{ending.store.location}/job/shared/c", "/elsewhere/d")
    for name in ("a", "b", "c", "spared", "never-told"):
        ending.store.write(f"job/shared/{name}", b"")
    ending.run(2, spared=("job/shared/spared",))
    left = [path for path in ending.left if "/shared/" in path]
    assert left == ["job/shared/b", "job/shared/c", "job/shared/spared"]


def test_if_a_retained_checkpoint_cannot_be_read_no_shared_file_goes(ending, caplog):
    ending.store.write("job/shared/a", b"")
    ending.run(2)
    assert "job/shared/a" in ending.left
    assert "not clean" in caplog.text


@pytest.mark.parametrize("lands_there", [True, False])
def test_of_a_job_with_savepoints_the_dataframes_are_left_that_a_start_from_one_needs(ending, lands_there):
    landed = ending.landing if lands_there else ending.store
    for path in ("job/inputs/s/_savepoint", "job/inputs/initial/a"):
        landed.write(path, b"")
    ending.run(lands_there=lands_there)
    assert [path for path in landed.list_files("") if path != "other/x"] == [
        "job/inputs/s/_savepoint",
        "job/inputs/s/a",
    ]
    assert not lands_there or ending.left == []
    assert ending.sink.calls == 1


@pytest.mark.parametrize("retained", [(), (2,)])
def test_storage_that_fails_is_asked_again_until_it_is_well(ending, retained, caplog):
    ending.store.failures = 3
    ending.run(*retained)
    assert "job/chk-1/x" not in ending.left
    assert ending.now > 1_000
    assert caplog.records == []


def test_storage_that_stays_out_of_order_is_given_up_with_the_command_that_shows_what_is_left(ending, caplog):
    ending.store.failures = 1_000
    ending.run()
    assert "job/chk-1/x" in ending.left
    assert ending.landing.list_files("") == [], "one place does not keep the others"
    assert ending.now == 1_000 + 1_000 + 2_000 + 4_000 + 8_000
    assert ending.store.failures == 1_000 - TRIES
    (record,) = caplog.records
    assert (record.levelname, record.step) == ("WARNING", "checkpoint directory")
    assert record.getMessage().startswith("the end of job job was not clean (checkpoint directory: ")
    assert "penstock verify" in record.message


def test_storage_that_will_never_do_it_is_not_asked_again(ending, caplog):
    ending.store.failures = 1_000
    ending.store.retry = Retry.NEVER
    ending.run()
    assert ending.now == 1_000
    assert len(caplog.records) == 1


def test_a_sink_is_told_again_only_if_that_may_help(ending, caplog):
    ending.sink.errors = [ExternalError("busy", retry=Retry.LATER), OSError("the target is gone")]
    ending.run()
    assert ending.sink.calls == 2
    assert ending.left == []
    assert [record.step for record in caplog.records] == ["sink failing"]


@pytest.mark.parametrize("retained", [(), (2,)])
def test_what_another_driver_has_begun_anew_is_not_cleaned_up(ending, retained, caplog):
    """1. A driver records how the job ended, and sleeps. 2. Another one begins the job anew. 3. The first wakes up."""
    for _ in range(2):
        terms_of(ending.store, layout.job_folder(JOB)).claim()
    before, landed = ending.left, ending.landing.list_files("")
    ending.run(*retained, term=Term(0))
    assert (ending.left, ending.landing.list_files("")) == (before, landed)
    assert ending.sink.calls == 0
    assert caplog.records == []


def test_what_sinks_prepared_for_a_savepoint_that_nothing_followed_is_not_thrown_away(ending):
    state = OperatorState(operator=OperatorId("sink"), split_lists={"committables": (b"a",)})
    snapshot = OperatorSnapshot(
        operator=OperatorId("sink"), vertex=VertexId("v"), parallelism=1, max_parallelism=1, subtasks={0: state}
    )
    saved = CheckpointMetadata(
        job=JOB,
        checkpoint=CheckpointId(3),
        timestamp=Instant(0),
        kind=SnapshotKind.SAVEPOINT,
        operators={OperatorId("sink"): snapshot},
    )
    ending.run(saved=saved)
    assert ending.sink.calls == 0
    assert ending.left == []


# --- what the job was started from, in its own folder ----------------------------------------------------------------


@pytest.mark.parametrize("term", [None, Term(0)])
@pytest.mark.parametrize("retained", [(), (2,)])
def test_a_snapshot_that_the_job_was_started_from_stays_though_it_lies_in_the_jobs_folder(ending, term, retained):
    if term is not None:
        ending.store.write("job/drivers/0000000000000000001", b"")
    ending.store.write("job/shared/S", b"")
    ending.run(*retained, term=term, spared=("job/chk-1", "job/shared/S"))
    assert {"job/chk-1/x", "job/shared/S"} <= set(ending.left)
    assert ("job/chk-2/x" in ending.left) == bool(retained)
