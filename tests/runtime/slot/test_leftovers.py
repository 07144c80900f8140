"""What a slot wrote for snapshots that nobody will use is deleted: shared files too, and never those of others."""

from __future__ import annotations

import pytest
from held_work import HeldWork
from slot_rig import Stage, plan

from penstock.core.elements import Barrier
from penstock.core.errors import StorageError
from penstock.core.ids import CheckpointId, Epoch, Instant, OperatorId
from penstock.core.messages import NotifyComplete, OperatorState, SubtaskState
from penstock.runtime.slot.leftovers import TRIES, Leftovers, SnapshotPlace
from penstock.state.backend import reused


class MemoryStore:
    """Files in memory; while it is `sick`, nothing can be deleted."""

    def __init__(self):
        self.files = {}
        self.sick = False
        self.full_after = None

    def write(self, path, data):
        self.files[path] = bytes(data)
        if self.full_after is not None and len(self.files) > self.full_after:
            raise StorageError("disk full, perhaps")

    def delete(self, path):
        if self.sick:
            raise StorageError(f"cannot delete {path}")
        self.files.pop(path, None)


class Rig:
    def __init__(self):
        self.store, self.background = MemoryStore(), HeldWork()
        self.leftovers = Leftovers(self.background)

    def place(self):
        return SnapshotPlace(self.store, "job/chk-3", "task", 0, leftovers=self.leftovers, shared_folder="job/shared")


@pytest.fixture
def rig():
    return Rig()


def test_a_place_takes_back_everything_that_was_written_there(rig):
    earlier = rig.place().put_shared(b"of checkpoint 2", "2-a")
    place = rig.place()
    place.put(b"private")
    place.put_shared(b"shared", "3-a")
    place.discard()
    assert list(rig.store.files) == [earlier.path]


def test_a_file_whose_write_raised_may_be_there_all_the_same_and_is_taken_back(rig):
    place, rig.store.full_after = rig.place(), 1
    place.put_shared(b"first", "3-a")
    with pytest.raises(StorageError):
        place.put_shared(b"second", "3-b")
    assert len(rig.store.files) == 2
    place.discard()
    assert rig.store.files == {}


def test_what_cannot_be_deleted_is_tried_again(rig):
    place = rig.place()
    place.put(b"one")
    place.put(b"two")
    rig.store.sick = True
    place.discard()
    rig.leftovers.try_again()
    rig.background.collect()
    assert len(rig.store.files) == 2
    rig.store.sick = False
    rig.leftovers.try_again()
    rig.background.collect()
    assert rig.store.files == {}


def test_what_can_never_be_deleted_is_told_once(rig, caplog):
    place, rig.store.sick = rig.place(), True
    place.put(b"one")
    place.discard()
    for _ in range(2 * TRIES):
        rig.leftovers.try_again()
        rig.background.collect()
    assert [record.path for record in caplog.records] == ["job/chk-3/task-0"]


class Slot(Stage):
    """A slot that runs, with a store that the test looks at."""

    def __init__(self):
        self.store = MemoryStore()
        super().__init__(store=self.store)
        self.run()

    def written(self, checkpoint):
        """What a task wrote for a checkpoint: a file of its own, one that is shared, and a reference to an earlier
        one."""
        barrier = Barrier(checkpoint=CheckpointId(checkpoint), timestamp=Instant(0))
        place = self.driver._host.snapshot_files(plan().tasks_of_slot(0)[0], barrier)
        earlier = place.put_shared(b"of an earlier checkpoint", f"{checkpoint - 1}-a")
        place.take_written()
        files = (place.put(b"x" * 100_000), place.put_shared(b"new", f"{checkpoint}-a"), reused(earlier))
        return earlier, SubtaskState(operators=(OperatorState(operator=OperatorId("o"), keyed=files),))


@pytest.fixture
def slot():
    made = Slot()
    yield made
    made.driver.close()


def test_a_snapshot_that_is_discarded_takes_its_shared_files_with_it_but_none_of_an_earlier_checkpoint(slot):
    earlier, state = slot.written(3)
    assert len(slot.store.files) == 3
    slot.driver._host.discard(state)
    slot.turn()
    assert list(slot.store.files) == [earlier.path]


def test_a_completed_checkpoint_has_the_slot_delete_what_it_could_not_delete_before(slot):
    earlier, state = slot.written(3)
    slot.store.sick = True
    slot.driver._host.discard(state)
    slot.turn()
    assert len(slot.store.files) == 3
    slot.store.sick = False
    task = plan().tasks_of_slot(0)[0]
    slot.order(NotifyComplete(epoch=Epoch(1), task=task, checkpoint=CheckpointId(4)))
    assert list(slot.store.files) == [earlier.path]
