"""What the coordinator wants done is done off the loop, in order, and each answer says what is true of the store."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest
from commits_rig import Later
from completed_records import completed
from held_work import HeldWork
from hooks_rig import Noting, make_hooks, triggered

from penstock.api.steps import ReadStep
from penstock.connectors.parquet_files import ParquetFiles
from penstock.core.coordinator.effects import (
    AnswerRequest,
    CheckpointAborted,
    CheckpointStarted,
    CleaningGivenUp,
    CreateLocation,
    DeleteFiles,
    FailJob,
    FailTask,
    ForgetPointers,
    SendToTask,
    StorePointer,
    WriteMetadata,
)
from penstock.core.coordinator.events import (
    FilesDeleted,
    HookTriggered,
    LocationCreated,
    LocationFailed,
    MetadataFailed,
    MetadataWritten,
    OperatorEventDelivered,
    OperatorEventLost,
    PointerFailed,
    PointerStored,
)
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, RequestId, TaskId, VertexId
from penstock.core.job.events import FailureCause
from penstock.core.messages import NotifyComplete, OperatorEventTaken
from penstock.core.reasons import CheckpointFailure
from penstock.core.recovery.layout import job_folder
from penstock.core.recovery.metadata import CheckpointMetadata, SnapshotKind
from penstock.runtime.master.effects import Answers, CheckpointEffects
from penstock.runtime.master.guard import Guard
from penstock.runtime.master.job_storage import JobStorage
from penstock.runtime.master.landed_inputs import LandedInputs
from penstock.runtime.master.operator_coordinators.of_job import OperatorCoordinators
from penstock.runtime.master.saved_results import SavedResults
from penstock.storage.completed import FileCompletedStore, checkpoint_ids
from penstock.storage.metadata import decode_metadata
from penstock.storage.records import FileRecords

JOB = JobId("job")
FOLDER = job_folder(JOB)
TASK = TaskId(VertexId("v"), 1)


class Following:
    """A source with a part on the driver."""

    discovers = True


SOURCES = {"frame": ParquetFiles(files=(), columns=pa.schema([])), "stream": Following()}
PLAN = SimpleNamespace(
    vertices=[
        SimpleNamespace(operators=[SimpleNamespace(operator=OperatorId(name), step=ReadStep(source=source))])
        for name, source in SOURCES.items()
    ]
)


class MemoryStore:
    """Files in memory. A call on a path with one of the words of `failing[call]` raises, before or after it acts."""

    def __init__(self):
        self.files = {}
        self.calls = []
        self.failing = {}
        self.acts_first = False

    def _perform(self, call, path, act):
        self.calls.append((call, path))
        fails = any(word in path for word in self.failing.get(call, ()))
        if not fails or self.acts_first:
            act()
        if fails:
            raise StorageError(f"cannot {call} {path}")

    def at(self, root):
        return StoreAt(self, root)

    def names(self, place):
        return None

    def write(self, path, data):
        self._perform("write", path, lambda: self.files.update({path: bytes(data)}))

    def read(self, path, *, limit=None):
        self._perform("read", path, lambda: None)
        return self.files[path]

    def list_files(self, prefix):
        self._perform("list", prefix, lambda: None)
        return sorted(path for path in self.files if path.startswith(f"{prefix}/"))

    def delete(self, path):
        self._perform("delete", path, lambda: self.files.pop(path, None))

    def delete_tree(self, prefix):
        def act():
            self.files = {path: data for path, data in self.files.items() if not path.startswith(f"{prefix}/")}

        self._perform("delete_tree", prefix, act)

    def delete_empty(self, prefix):
        self._perform("delete_empty", prefix, lambda: None)


class StoreAt:
    """The same store, seen from another root."""

    def __init__(self, store, root):
        self._store = store
        self._root = root.rstrip("/")

    def write(self, path, data):
        self._store.write(f"{self._root}/{path}", data)

    def read(self, path):
        return self._store.read(f"{self._root}/{path}")

    def list_files(self, prefix):
        found = self._store.list_files(f"{self._root}/{prefix}".rstrip("/"))
        return [path.removeprefix(f"{self._root}/") for path in found]

    def delete(self, path):
        self._store.delete(f"{self._root}/{path}")

    def delete_tree(self, prefix):
        self._store.delete_tree(f"{self._root}/{prefix}")

    def delete_empty(self, prefix):
        self._store.delete_empty(f"{self._root}/{prefix}")


class Rig:
    """The effects with everything around them in memory, and what came of them."""

    def __init__(self):
        self.store = MemoryStore()
        self.background = HeldWork()
        self.events = []
        self.sent = []
        self.failures = []
        self.answers = []
        self.losses = []
        self.calls = []
        self.hook_work = Later()
        self.effects = CheckpointEffects(
            storage=JobStorage(
                job=JOB,
                store=self.store,
                records=FileRecords(self.store, FOLDER, term=None),
                background=self.background,
                guard=Guard(None, lambda: self.losses.append("taken over")),
            ),
            master=Answers(
                feed=self.events.append,
                fail=lambda text, task: self.failures.append((text, task)),
                fail_job=self.failures.append,
                answer=self.answers.append,
                send=lambda task, message: self.sent.append((task, message)),
            ),
            coordinators=OperatorCoordinators(feed=self.events.append, send=lambda task, message: None),
            hooks=make_hooks(
                {"outside": Noting("outside", self.calls)},
                background=lambda _: self.hook_work,
                feed=self.events.append,
            ),
            inputs=LandedInputs(FOLDER, PLAN, self.store),
            saved=SavedResults(FOLDER, self.store, taken_over=False),
        )

    def perform(self, *effects):
        """What the coordinator is told in the end."""
        self.effects.perform(list(effects))
        self.background.collect()
        events, self.events[:] = list(self.events), []
        return events

    @property
    def pointers(self):
        return {entry.checkpoint: entry.data for entry in FileCompletedStore(self.store, FOLDER).load()}


@pytest.fixture
def rig():
    return Rig()


def metadata(number, **changes):
    return CheckpointMetadata(
        job=JOB, checkpoint=CheckpointId(number), timestamp=Instant(1), kind=SnapshotKind.CHECKPOINT, **changes
    )


def create(number):
    return CreateLocation(checkpoint=CheckpointId(number), kind=SnapshotKind.CHECKPOINT, options=CheckpointOptions())


def store_pointer(number, *forget):
    return StorePointer(completed=completed(number), forget=tuple(CheckpointId(old) for old in forget))


# --- locations -------------------------------------------------------------------------------------------------------


def test_a_location_is_answered_when_the_id_is_durably_taken(rig):
    assert rig.perform(create(7)) == [LocationCreated(checkpoint=CheckpointId(7), location="job/chk-7")]
    assert checkpoint_ids(rig.store, FOLDER).next() > 7


def test_ids_are_taken_in_blocks_so_that_most_locations_wait_for_nothing(rig):
    rig.perform(create(7))
    taken = checkpoint_ids(rig.store, FOLDER).next()
    rig.store.failing = {"write": ["counter"]}
    rig.effects.perform([create(8), create(taken - 1)])
    assert [event.checkpoint for event in rig.events] == [8, taken - 1]
    assert isinstance(rig.perform(create(taken))[-1], LocationFailed)


def test_an_id_that_cannot_be_taken_fails_the_location(rig):
    rig.store.failing = {"write": ["counter"]}
    (event,) = rig.perform(create(7))
    assert isinstance(event, LocationFailed)
    assert "cannot write" in event.error


def test_nothing_is_answered_before_the_work_is_done(rig):
    rig.effects.perform([create(1)])
    assert rig.events == []
    assert rig.store.calls == []


# --- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_is_answered_with_where_it_lies_and_how_large_it_is(rig):
    effect = WriteMetadata(checkpoint=CheckpointId(3), location="job/chk-3", metadata=metadata(3))
    (event,) = rig.perform(effect)
    content = rig.store.files["job/chk-3/_metadata"]
    assert event == MetadataWritten(checkpoint=CheckpointId(3), path="job/chk-3/_metadata", size=len(content))
    assert decode_metadata("x", content) == metadata(3)


def test_metadata_that_could_not_be_written_is_said_to_have_failed(rig):
    rig.store.failing = {"write": ["_metadata"]}
    effect = WriteMetadata(checkpoint=CheckpointId(3), location="job/chk-3", metadata=metadata(3))
    (event,) = rig.perform(effect)
    assert event == MetadataFailed(checkpoint=CheckpointId(3), error="cannot write job/chk-3/_metadata")


def test_metadata_that_cannot_be_encoded_is_said_to_have_failed(rig):
    unencodable = metadata(3, settings={"restart": object()})
    effect = WriteMetadata(checkpoint=CheckpointId(3), location="job/chk-3", metadata=unencodable)
    assert [type(event) for event in rig.perform(effect)] == [MetadataFailed]


def test_a_savepoint_lies_where_the_user_said_in_a_folder_of_its_own(rig):
    options = CheckpointOptions(savepoint=True, target="/save/")
    created = rig.perform(CreateLocation(checkpoint=CheckpointId(3), kind=SnapshotKind.SAVEPOINT, options=options))
    location = "/save/savepoint-job-3"
    assert created == [LocationCreated(checkpoint=CheckpointId(3), location=location)]
    saved = msgspec.structs.replace(metadata(3), kind=SnapshotKind.SAVEPOINT)
    (event,) = rig.perform(WriteMetadata(checkpoint=CheckpointId(3), location=location, metadata=saved))
    assert event.path == f"{location}/_metadata"
    assert decode_metadata("x", rig.store.files[event.path]) == saved
    fill(rig, "/save/other", f"{location}/part")
    rig.perform(DeleteFiles(cleaning=1, folder=location, root=location))
    assert [path for path in rig.store.files if path.startswith("/save")] == ["/save/other"]


def test_before_a_savepoint_is_complete_it_is_on_record_that_landed_dataframes_outlive_the_job(rig):
    fill(rig, "job/inputs/frame/part.parquet", "job/inputs/stream/batch")
    rig.perform(WriteMetadata(checkpoint=CheckpointId(2), location="job/chk-2", metadata=metadata(2)))
    assert not any("_savepoint" in path for path in rig.store.files), "a checkpoint goes with its job"
    saved = msgspec.structs.replace(metadata(3), kind=SnapshotKind.SAVEPOINT)
    rig.perform(WriteMetadata(checkpoint=CheckpointId(3), location="/save/savepoint-job-3", metadata=saved))
    written = [path for call, path in rig.store.calls if call == "write"]
    assert written[-2:] == ["job/inputs/frame/_savepoint", "/save/savepoint-job-3/_metadata"]


# --- pointers --------------------------------------------------------------------------------------------------------


def test_a_stored_pointer_carries_the_record_and_only_then_the_old_ones_go(rig):
    rig.perform(store_pointer(1), store_pointer(2))
    rig.store.calls.clear()
    assert rig.perform(store_pointer(3, 1, 2)) == [PointerStored(checkpoint=CheckpointId(3))]
    assert rig.pointers == {3: msgspec.msgpack.encode(completed(3))}
    assert [call for call, _ in rig.store.calls if call != "list"][:3] == ["write", "delete", "delete"]


def test_an_old_pointer_that_could_not_be_dropped_is_dropped_with_the_next(rig):
    rig.perform(store_pointer(1), store_pointer(2))
    rig.store.failing = {"delete": ["completed"]}
    assert rig.perform(store_pointer(3, 1)) == [PointerStored(checkpoint=CheckpointId(3))]
    assert list(rig.pointers) == [1, 2, 3]
    rig.store.failing = {}
    rig.perform(store_pointer(4, 2))
    assert list(rig.pointers) == [3, 4]
    rig.store.calls.clear()
    rig.perform(store_pointer(5))
    assert "delete" not in [call for call, _ in rig.store.calls], "once is enough"


def test_a_pointer_that_was_not_written_failed_and_the_old_ones_stay(rig):
    rig.perform(store_pointer(1))
    rig.store.failing = {"write": ["completed"]}
    (event,) = rig.perform(store_pointer(2, 1))
    assert event == PointerFailed(checkpoint=CheckpointId(2), error="the pointer could not be written")
    assert not event.inconsistent
    assert rig.pointers.keys() == {1}


def test_a_pointer_that_was_written_although_the_write_raised_is_stored_and_the_old_ones_go(rig):
    rig.perform(store_pointer(1))
    rig.store.failing, rig.store.acts_first = {"write": ["completed"]}, True
    assert rig.perform(store_pointer(2, 1)) == [PointerStored(checkpoint=CheckpointId(2))]
    assert rig.pointers.keys() == {2}


def test_an_old_pointer_that_cannot_be_removed_does_not_undo_the_new_one(rig):
    rig.perform(store_pointer(1))
    rig.store.failing = {"delete": ["completed"]}
    assert rig.perform(store_pointer(2, 1)) == [PointerStored(checkpoint=CheckpointId(2))]


@pytest.mark.parametrize("second_look", ["list", "read"])
def test_when_even_a_second_look_fails_nobody_knows(rig, second_look):
    rig.store.failing = {"write": ["completed"], second_look: ["completed"]}
    rig.store.acts_first = True
    (event,) = rig.perform(store_pointer(2))
    assert isinstance(event, PointerFailed)
    assert event.inconsistent
    assert "cannot" in event.error


def test_forgotten_pointers_go_and_one_that_stays_does_not_keep_the_others(rig):
    rig.perform(store_pointer(1), store_pointer(2), store_pointer(3))
    rig.store.failing = {"delete": ["0000000001"]}
    assert rig.perform(ForgetPointers(checkpoints=(CheckpointId(1), CheckpointId(2)))) == []
    assert rig.pointers.keys() == {1, 3}


# --- deletes ---------------------------------------------------------------------------------------------------------


def fill(rig, *paths):
    rig.store.files.update(dict.fromkeys(paths, b""))


def test_files_and_folder_are_deleted(rig):
    fill(rig, "job/shared/a", "job/shared/b", "job/chk-1/x", "job/chk-1/_metadata", "job/chk-10/x")
    effect = DeleteFiles(cleaning=4, paths=("job/shared/a",), folder="job/chk-1")
    assert rig.perform(effect) == [FilesDeleted(cleaning=4)]
    assert rig.store.files.keys() == {"job/shared/b", "job/chk-10/x"}


def test_files_of_a_savepoint_are_deleted_in_its_own_folder(rig):
    fill(rig, "window-0-0", "save/1/window-0-0", "save/1/window-1-0")
    assert rig.perform(DeleteFiles(cleaning=4, paths=("window-0-0",), root="save/1")) == [FilesDeleted(cleaning=4)]
    assert rig.store.files.keys() == {"window-0-0", "save/1/window-1-0"}


def test_deleting_goes_on_after_an_error_and_tells_of_it(rig):
    fill(rig, "job/shared/a", "job/shared/b", "job/chk-1/x")
    rig.store.failing = {"delete": ["shared/a"]}
    effect = DeleteFiles(cleaning=4, paths=("job/shared/a", "job/shared/b"), folder="job/chk-1")
    assert rig.perform(effect) == [FilesDeleted(cleaning=4, error="cannot delete job/shared/a")]
    assert rig.store.files.keys() == {"job/shared/a"}


def test_a_folder_that_cannot_be_deleted_is_told_of(rig):
    rig.store.failing = {"delete_tree": ["chk-1"]}
    effect = DeleteFiles(cleaning=4, folder="job/chk-1")
    assert rig.perform(effect) == [FilesDeleted(cleaning=4, error="cannot delete_tree job/chk-1")]


def test_what_is_taken_apart_loses_its_metadata_first(rig):
    fill(rig, "job/chk-1/x", "job/chk-1/_metadata", "job/shared/a")
    effect = DeleteFiles(cleaning=4, paths=("job/chk-1/x", "job/shared/a"), folder="job/chk-1")
    rig.store.failing = {"delete": ["_metadata"]}
    assert rig.perform(effect) == [FilesDeleted(cleaning=4, error="cannot delete job/chk-1/_metadata")]
    assert len(rig.store.files) == 3, "whoever finds the metadata finds the rest"
    rig.store.failing = {}
    rig.store.calls.clear()
    assert rig.perform(effect) == [FilesDeleted(cleaning=4)]
    assert rig.store.calls == [
        ("delete", "job/chk-1/_metadata"),
        ("delete", "job/shared/a"),
        ("delete_tree", "job/chk-1"),
    ]


def test_files_of_a_savepoint_go_with_its_folder_and_not_from_the_checkpoint_directory(rig):
    location = "/save/savepoint-job-3"
    fill(rig, f"{location}/_metadata", f"{location}/v-0-0", "v-0-0")
    effect = DeleteFiles(cleaning=1, paths=("v-0-0",), folder=location, root=location)
    assert rig.perform(effect) == [FilesDeleted(cleaning=1)]
    assert rig.store.files.keys() == {"v-0-0"}


def test_of_a_claimed_snapshot_its_files_go_and_whatever_else_lies_there_stays(rig):
    location = "/user/saved"
    fill(rig, f"{location}/_metadata", f"{location}/v-0-0", f"{location}/notes", "/user/other")
    effect = DeleteFiles(cleaning=1, paths=(f"{location}/v-0-0", "/user/other"), folder=location)
    rig.store.failing = {"delete": ["v-0-0"]}
    assert rig.perform(effect) == [FilesDeleted(cleaning=1, error=f"cannot delete {location}/v-0-0")]
    rig.store.failing = {}
    assert rig.perform(effect) == [FilesDeleted(cleaning=1)]
    assert rig.store.files.keys() == {f"{location}/notes", "/user/other"}
    assert rig.store.calls[-1] == ("delete_empty", location)


@pytest.mark.parametrize(("queued_ms", "level"), [(999, "DEBUG"), (1_000, "INFO")])
def test_a_checkpoint_that_waited_long_for_its_turn_is_told(rig, caplog, queued_ms, level):
    caplog.set_level("DEBUG")
    rig.perform(CheckpointStarted(checkpoint=CheckpointId(7), kind=SnapshotKind.CHECKPOINT, queued_ms=queued_ms))
    (record,) = caplog.records
    assert (record.levelname, record.checkpoint, record.queued_ms) == (level, 7, queued_ms)
    assert record.getMessage().startswith("checkpoint 7 of job job started")
    assert f"waited {queued_ms} ms" in record.getMessage()


def test_what_is_given_up_is_told_with_the_command_that_shows_it(rig, caplog):
    rig.perform(CleaningGivenUp(paths=("job/shared/a",), error="no"))
    (record,) = caplog.records
    assert (record.levelname, record.paths, record.error) == ("WARNING", ("job/shared/a",), "no")
    assert "penstock verify" in record.message


# --- the rest --------------------------------------------------------------------------------------------------------


def test_storage_is_asked_in_the_order_of_the_effects(rig):
    rig.perform(
        create(1),
        WriteMetadata(checkpoint=CheckpointId(1), location="job/chk-1", metadata=metadata(1)),
        store_pointer(1),
        DeleteFiles(cleaning=1, folder="job/chk-0"),
    )
    order = [path.split("/")[1] for call, path in rig.store.calls if call != "list"]
    assert order == ["counter", "chk-1", "completed", "chk-0", "chk-0"]


def test_messages_go_to_their_tasks_in_order(rig):
    told = [NotifyComplete(epoch=Epoch(1), task=TASK, checkpoint=CheckpointId(n)) for n in (1, 2)]
    rig.perform(*[SendToTask(task=TASK, message=message) for message in told])
    assert rig.sent == [(TASK, told[0]), (TASK, told[1])]


def test_requests_are_answered(rig):
    answer = AnswerRequest(request=RequestId(5), result=completed(1))
    rig.perform(answer)
    assert rig.answers == [answer]


def test_failures_reach_the_job_with_the_task_that_is_to_blame(rig):
    reason = CheckpointFailure.EXPIRED
    raised = FailJob(reason=reason, text="ValueError: no", operator="orders", traceback="Traceback: no")
    one_too_many = FailJob(reason=reason, text="too many")
    rig.perform(one_too_many, FailTask(task=TASK, reason=reason, text="this one"), raised)
    assert rig.failures == [
        FailureCause(text="too many"),
        ("this one", TASK),
        FailureCause(text="ValueError: no", operator="orders", traceback="Traceback: no", user_code=True),
    ]


def test_a_hook_is_called_for_a_checkpoint_unless_that_was_aborted_before(rig):
    given_up = CheckpointAborted(checkpoint=CheckpointId(1), reason=CheckpointFailure.EXPIRED, text="")
    rig.effects.perform([triggered("outside", 1), given_up, triggered("outside", 2)])
    rig.hook_work.perform()
    assert rig.calls == [("outside", "trigger", 2, 77)]
    assert rig.events[-1] == HookTriggered(hook="outside", checkpoint=CheckpointId(2))


@pytest.mark.parametrize(
    ("delivered", "event"),
    [
        (True, OperatorEventDelivered(number=7)),
        (False, OperatorEventLost(number=7, task_not_running=True)),
    ],
)
def test_an_operator_event_that_no_task_took_is_lost(delivered, event):
    events = []
    coordinators = OperatorCoordinators(feed=events.append, send=lambda *_: None)
    coordinators.taken(OperatorEventTaken(epoch=Epoch(1), task=TASK, number=7, delivered=delivered))
    assert events == [event]
