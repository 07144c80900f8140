"""Deletions that fail are tried again: later, one at a time, not for ever, and without holding up checkpoints."""

from __future__ import annotations

import pytest

from penstock.core.coordinator import cleaner as module
from penstock.core.coordinator.cleaner import TRIES_AT_THE_END, Cleaner
from penstock.core.coordinator.effects import CleaningGivenUp, DeleteFiles
from penstock.core.coordinator.events import FilesDeleted, JobEnd, ShutDown
from penstock.core.ids import Instant


def used(*paths: str):
    return lambda path: path in paths


def at(ms: int) -> Instant:
    return Instant(ms)


def fail(cleaner: Cleaner, number: int, now: int) -> list[CleaningGivenUp]:
    return cleaner.ended(number, "no", at(now))


@pytest.fixture
def cleaner() -> Cleaner:
    return Cleaner(tries=4, retry_ms=100)


# --- the machine -----------------------------------------------------------------------------------------------------


def test_what_was_deleted_is_not_tried_again(cleaner):
    (deletion,) = cleaner.clean_checkpoint(["a", "b", "a"], "chk-1")
    assert deletion == DeleteFiles(cleaning=1, paths=("a", "b"), folder="chk-1")
    assert not cleaner.is_idle
    assert cleaner.ended(1, None, at(0)) == []
    assert cleaner.is_idle
    assert cleaner.next_deadline() is None


def test_nothing_to_delete_is_no_deletion(cleaner):
    assert cleaner.clean_checkpoint([], None) == cleaner.clean_leftovers([]) == []


def test_a_failed_deletion_is_tried_again_after_a_pause_that_doubles(cleaner):
    cleaner.clean_checkpoint(["a"], "chk-1")
    now = 0
    for pause in (100, 200, 400):
        assert fail(cleaner, 1, now) == []
        assert cleaner.next_deadline() == now + pause
        assert cleaner.retry(used(), at(now + pause - 1)) == []
        now += pause
        assert cleaner.retry(used(), at(now)) == [DeleteFiles(cleaning=1, paths=("a",), folder="chk-1")]
        assert cleaner.next_deadline() is None
    assert cleaner.ended(1, None, at(now)) == []
    assert cleaner.is_idle


def test_no_pause_is_longer_than_five_minutes():
    cleaner = Cleaner(tries=1_000, retry_ms=100)
    cleaner.clean_leftovers(["a"])
    for _ in range(100):
        fail(cleaner, 1, 0)
        deadline = cleaner.next_deadline()
        assert deadline is not None
        cleaner.retry(used(), deadline)
    assert deadline == module.MAX_PAUSE_MS


def test_a_deletion_that_fails_too_often_is_given_up_and_told_of(cleaner):
    cleaner.clean_checkpoint(["a"], "chk-1")
    now = 0
    for _ in range(3):
        assert fail(cleaner, 1, now) == []
        now = cleaner.next_deadline()
        cleaner.retry(used(), at(now))
    assert fail(cleaner, 1, now) == [CleaningGivenUp(paths=("a",), folder="chk-1", error="no")]
    assert cleaner.is_idle


def test_of_those_that_failed_one_is_under_way_at_a_time(cleaner):
    for name in "abc":
        cleaner.clean_leftovers([name])
    for number, now in ((1, 0), (2, 10), (3, 20)):
        fail(cleaner, number, now)
    assert cleaner.retry(used(), at(500)) == [DeleteFiles(cleaning=1, paths=("a",))]
    assert cleaner.retry(used(), at(501)) == []
    cleaner.ended(1, None, at(502))
    assert cleaner.next_deadline() == 502
    assert cleaner.retry(used(), at(502)) == [DeleteFiles(cleaning=2, paths=("b",))]


def test_after_one_that_failed_again_the_others_wait_too(cleaner):
    for name in "ab":
        cleaner.clean_leftovers([name])
    fail(cleaner, 1, 0)
    fail(cleaner, 2, 0)
    cleaner.retry(used(), at(100))
    fail(cleaner, 1, 110)
    assert cleaner.next_deadline() == 210
    assert cleaner.retry(used(), at(209)) == []
    assert cleaner.retry(used(), at(210)) == [DeleteFiles(cleaning=2, paths=("b",))]
    fail(cleaner, 2, 220)
    assert cleaner.next_deadline() == 420, "the second in a row"
    cleaner.retry(used(), at(420))
    cleaner.ended(1, None, at(430))
    assert cleaner.next_deadline() == 430, "the storage is well again"


def test_a_deletion_that_is_made_meanwhile_does_not_disturb_the_pauses(cleaner):
    cleaner.clean_leftovers(["a"])
    fail(cleaner, 1, 0)
    cleaner.clean_leftovers(["b"])
    cleaner.ended(2, None, at(50))
    assert cleaner.next_deadline() == 100


def test_a_name_that_was_given_to_another_file_is_left_out(cleaner):
    cleaner.clean_leftovers(["shared/a", "shared/b"])
    cleaner.clean_leftovers(["shared/c"])
    cleaner.clean_checkpoint(["shared/c"], "chk-1")
    for number in (1, 2, 3):
        fail(cleaner, number, 0)
    found = used("shared/a", "shared/c")
    assert cleaner.retry(found, at(100)) == [DeleteFiles(cleaning=1, paths=("shared/b",))]
    cleaner.ended(1, None, at(100))
    assert cleaner.retry(found, at(100)) == [DeleteFiles(cleaning=3, folder="chk-1")]
    cleaner.ended(3, None, at(100))
    assert cleaner.is_idle


def test_only_checkpoints_that_are_being_deleted_count(cleaner):
    cleaner.clean_checkpoint(["a"], "chk-1")
    cleaner.clean_leftovers(["b"])
    assert cleaner.num_checkpoints == 1
    fail(cleaner, 1, 0)
    assert cleaner.num_checkpoints == 0
    cleaner.retry(used(), at(100))
    assert cleaner.num_checkpoints == 1


def test_an_answer_that_comes_twice_does_no_harm(cleaner):
    cleaner.clean_leftovers(["a"])
    fail(cleaner, 1, 0)
    assert cleaner.ended(1, None, at(1)) == []
    assert cleaner.next_deadline() == 100


def test_too_many_that_wait_are_not_remembered(cleaner, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    for name in "abc":
        cleaner.clean_leftovers([name])
    assert fail(cleaner, 1, 0) == fail(cleaner, 2, 0) == []
    assert fail(cleaner, 3, 0) == [CleaningGivenUp(paths=("a",), error="no")]


def test_at_the_end_what_waits_is_due_at_once_and_tried_a_few_times(cleaner):
    cleaner.clean_leftovers(["a"])
    fail(cleaner, 1, 0)
    now = 10
    cleaner.shut_down(at(now))
    tries = 0
    told: list[CleaningGivenUp] = []
    while (deadline := cleaner.next_deadline()) is not None:
        now = deadline
        (deletion,) = cleaner.retry(used(), at(now))
        tries += 1
        told += fail(cleaner, deletion.cleaning, now)
    assert tries == TRIES_AT_THE_END
    assert told == [CleaningGivenUp(paths=("a",), error="no")]
    assert now == 10 + 100 + 200 + 400 + 800
    assert cleaner.is_idle


def test_at_the_end_a_storage_that_deletes_nothing_is_given_up_for_all(cleaner):
    for name in "abcdefgh":
        cleaner.clean_leftovers([name])
    for number in range(1, 9):
        fail(cleaner, number, 0)
    cleaner.shut_down(at(0))
    told: list[CleaningGivenUp] = []
    tries = 0
    while (deadline := cleaner.next_deadline()) is not None:
        (deletion,) = cleaner.retry(used(), deadline)
        tries += 1
        told += fail(cleaner, deletion.cleaning, deadline)
    assert tries == TRIES_AT_THE_END
    assert sorted(path for effect in told for path in effect.paths) == list("abcdefgh")
    assert cleaner.is_idle


def test_at_the_end_one_that_cannot_be_deleted_does_not_keep_the_others(cleaner):
    for name in "abc":
        cleaner.clean_leftovers([name])
    for number in (1, 2, 3):
        fail(cleaner, number, 0)
    cleaner.shut_down(at(0))
    deleted: list[str] = []
    told: list[CleaningGivenUp] = []
    while (deadline := cleaner.next_deadline()) is not None:
        (deletion,) = cleaner.retry(used(), deadline)
        if deletion.paths == ("b",):
            told += fail(cleaner, deletion.cleaning, deadline)
        else:
            deleted += deletion.paths
            cleaner.ended(deletion.cleaning, None, deadline)
    assert deleted == ["a", "c"]
    assert told == [CleaningGivenUp(paths=("b",), error="no")]


# --- in the coordinator ----------------------------------------------------------------------------------------------


def break_deletes(r, pick, effects, error: str = "out of order"):
    return [e for d in pick.of(effects, DeleteFiles) for e in r.feed(FilesDeleted(cleaning=d.cleaning, error=error))]


def test_a_checkpoint_that_could_not_be_deleted_is_deleted_later_and_does_not_hold_back_the_next(store, make, pick):
    r = store(delete_retry_ms=100)
    r.hold = {DeleteFiles}
    r.take(1, make.file("1/x"))
    break_deletes(r, pick, r.take(2, make.file("2/x")))
    assert r.coordinator.next_deadline() == r.now + 100
    assert pick.begun(r.request()) == [3]
    (deletion,) = pick.of(r.tick(100), DeleteFiles)
    assert deletion.folder == "ckpt/chk-1"
    r.feed(FilesDeleted(cleaning=deletion.cleaning))
    r.ack_all(3)
    r.hold.clear()
    assert r.coordinator.latest.checkpoint == 3


def test_a_shared_file_that_is_registered_again_is_not_deleted_by_an_old_deletion(store, make, pick):
    """1. Checkpoint 2 does without a file of 1, whose deletion fails. 2. Checkpoint 3 writes one of the same name.
    3. The old deletion is tried again."""
    r = store(delete_retry_ms=100)
    r.hold = {DeleteFiles}
    r.take(1, make.file("shared/S", "S"))
    break_deletes(r, pick, r.take(2))
    for deletion in pick.of(r.take(3, make.file("shared/S", "S")), DeleteFiles):
        r.feed(FilesDeleted(cleaning=deletion.cleaning))
    r.deleted.clear()
    r.hold.clear()
    r.until(r.now + 10_000)
    assert r.deleted == ["ckpt/chk-1"]


def test_the_end_waits_for_deletions_that_are_tried_again_and_then_gives_up(store, make, pick):
    r = store(delete_retry_ms=100)
    r.hold = {DeleteFiles}
    r.take(1, make.file("1/x"))
    break_deletes(r, pick, r.take(2))
    told = break_deletes(r, pick, r.feed(ShutDown(status=JobEnd.FAILED)))
    while not r.coordinator.is_settled:
        effects = r.tick(r.coordinator.next_deadline() - r.now)
        told += break_deletes(r, pick, effects)
    folders = sorted(e.folder for e in pick.of(told, CleaningGivenUp))
    assert folders == ["ckpt/chk-1", "ckpt/chk-2"]
    assert {e.error for e in pick.of(told, CleaningGivenUp)} == {"out of order"}
    assert r.coordinator.next_deadline() is None


def test_the_end_is_settled_when_a_second_try_has_deleted_everything(store, make, pick):
    r = store(delete_retry_ms=100)
    r.hold = {DeleteFiles}
    r.take(1, make.file("1/x"))
    break_deletes(r, pick, r.feed(ShutDown(status=JobEnd.FINISHED)))
    assert not r.coordinator.is_settled
    r.hold.clear()
    r.until(r.now + 1_000)
    assert r.coordinator.is_settled


def test_files_of_a_savepoint_are_tried_again_whatever_is_used_elsewhere(cleaner):
    """Their paths begin in the savepoint's own folder, and may be spelled like those of a shared file."""
    (deletion,) = cleaner.clean_leftovers(["a"], root="/save/savepoint-1")
    fail(cleaner, deletion.cleaning, 0)
    assert cleaner.retry(used("a"), at(100)) == [deletion]
