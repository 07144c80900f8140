"""What is remembered of savepoints that have ended, and what becomes of acknowledgements that come when it is not."""

from __future__ import annotations

from penstock.core.coordinator.effects import CreateLocation, DeleteFiles
from penstock.core.coordinator.events import LocationCreated, RequestKind
from penstock.core.coordinator.savepoints import COMPLETED_REMEMBERED, FAILED_REMEMBERED
from penstock.core.ids import CheckpointId


def test_a_repeated_acknowledgement_harms_no_savepoint_however_old(store, make, pick):
    r = store()
    for number in range(1, COMPLETED_REMEMBERED + 2):
        r.take(number, make.file("T", "T"), kind=RequestKind.SAVEPOINT)
    for number in range(1, COMPLETED_REMEMBERED + 2):
        again = r.ack("t1", number, make.state("t1", make.file("T", "T")))
        assert pick.of(again, DeleteFiles) == []
        assert not r.coordinator.failed_savepoints


def test_what_comes_late_for_an_old_checkpoint_is_deleted_if_it_lies_in_its_folder(store, make, pick):
    """A savepoint may have had that id: nothing else can be told to be the job's."""
    r = store()
    r.request()
    r.decline("t2", 1)
    for number in range(2, COMPLETED_REMEMBERED + 3):
        r.take(number, make.file("T"), kind=RequestKind.SAVEPOINT)
    files = (make.file("job/chk-1/a"), make.file("b"), make.file("job/shared/c", "C"), make.file("job/chk-2/d"))
    (late,) = pick.of(r.ack("t1", 1, make.state("t1", *files)), DeleteFiles)
    assert (late.paths, late.root) == (("job/chk-1/a",), None)


def test_the_folders_of_the_last_failed_savepoints_are_known(store):
    r = store()
    for number in range(1, FAILED_REMEMBERED + 3):
        r.request(RequestKind.SAVEPOINT)
        r.decline("t1", number)
    wanted = [f"savepoints/chk-{number}" for number in range(3, FAILED_REMEMBERED + 3)]
    assert list(r.coordinator.failed_savepoints) == wanted


def test_a_folder_that_is_made_when_its_savepoint_has_expired_is_deleted_and_known(store, pick):
    r = store()
    r.hold.add(CreateLocation)
    r.request(RequestKind.SAVEPOINT)
    assert pick.aborted(r.tick(r.settings.timeout_ms))
    assert r.coordinator.failed_savepoints == ()
    made = r.feed(LocationCreated(checkpoint=CheckpointId(1), location="savepoints/late"))
    assert [effect.folder for effect in pick.of(made, DeleteFiles)] == ["savepoints/late"]
    assert r.coordinator.failed_savepoints == ("savepoints/late",)
