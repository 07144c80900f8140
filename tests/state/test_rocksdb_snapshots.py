"""What a checkpoint of RocksDB uploads, what it refers to, and what can be read back."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import state_rig
from state_rig import EVENT_TIME, Files, Step, close_steps

import penstock as ps
from penstock.core.errors import CorruptFile, HostError, UsageError
from penstock.state.rocksdb.backend import Limits, RocksBackend
from penstock.state.rocksdb.database import Database


class Plain:
    count = ps.value_state("count", "bigint", default=0)
    words = ps.list_state("words", "string")


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_steps()


@pytest.fixture
def step():
    made = Step("rocksdb", Plain)
    write(made, range(100))
    return made


def write(step, keys, value=1):
    for key in keys:
        step.at(key)["count"].set(value)
        step.at(key)["words"].add("w")


def shared(files):
    return {file.shared_key: file.placeholder for file in files if file.shared_key is not None}


def counts(files, store, keys, **options):
    restored = Step("rocksdb", Plain, store=store, restored=[files], **options)
    return [restored.at(key)["count"].get() for key in keys]


# --- what is uploaded ------------------------------------------------------------------------------------------------


def test_a_checkpoint_refers_to_the_table_files_of_the_completed_one_before(step):
    (first,) = step.save()
    write(step, [3], value=2)
    (second,) = step.save()
    old = shared(first)
    assert old
    assert not any(old.values())
    assert {key: placeholder for key, placeholder in shared(second).items() if placeholder} == dict.fromkeys(old, True)
    new = [key for key, placeholder in shared(second).items() if not placeholder]
    assert len(new) == 1
    resolved = [
        next(f for f in first if f.shared_key == file.shared_key) if file.placeholder else file for file in second
    ]
    assert counts(resolved, step.store, [2, 3]) == [1, 2]


def test_files_of_a_checkpoint_that_did_not_complete_are_uploaded_again_under_another_key(step):
    (first,) = step.save()
    write(step, [3])
    taken = step.snapshot()
    taken.run(step.store)
    step.backends[0].aborted(taken.checkpoint)
    (third,) = step.save()
    lost = shared(taken.files[0]).keys() - shared(first).keys()
    assert lost
    assert not lost & shared(third).keys()
    assert sum(shared(third).values()) == len(shared(first))


def test_a_checkpoint_that_was_not_completed_yet_is_not_referred_to(step):
    """1. Checkpoint 1 is written. 2. Checkpoint 2 is taken and written. 3. Both complete."""
    first, second = step.snapshot(), step.snapshot()
    first.run(step.store)
    second.run(step.store)
    assert not any(shared(second.files[0]).values())


@pytest.mark.parametrize("options", [{"full": True}, {"savepoint": True}])
def test_a_full_checkpoint_and_a_savepoint_refer_to_nothing(step, options):
    step.save()
    (files,) = step.save(**options)
    assert shared(files)
    assert not any(shared(files).values())


def test_after_a_full_checkpoint_the_next_one_builds_on_it(step):
    step.save()
    (full,) = step.save(full=True)
    (following,) = step.save()
    assert shared(following) == dict.fromkeys(shared(full), True)


def test_a_native_savepoint_is_not_built_upon(step):
    (before,) = step.save()
    (savepoint,) = step.save(savepoint=True)
    (after,) = step.save()
    assert shared(after) == dict.fromkeys(shared(before), True)
    assert not shared(after).keys() & shared(savepoint).keys()


def test_a_restored_job_builds_on_the_checkpoint_it_came_from(step):
    (files,) = step.save()
    restored = Step("rocksdb", Plain, store=step.store, restored=[files])
    write(restored, [5], value=9)
    (following,) = restored.save()
    found = shared(following)
    assert {key for key, placeholder in found.items() if placeholder} == shared(files).keys()
    assert len(found) == len(shared(files)) + 1


def test_what_was_restored_from_private_files_is_uploaded(step):
    class Private(Files):
        def put_shared(self, data, key):
            return self.put(data)

    private = Private()
    taken = step.snapshot(savepoint=True)
    taken.run(private)
    restored = Step("rocksdb", Plain, store=private, restored=taken.files)
    restored.store = Files()
    (files,) = restored.save()
    assert shared(files)
    assert not any(shared(files).values())


def test_two_subtasks_never_use_the_same_key(step):
    (files,) = step.save()
    both = Step("rocksdb", Plain, parallelism=2, store=step.store, restored=[files])
    write(both, range(20), value=7)
    one, other = both.save()
    new = [{key for key, placeholder in shared(found).items() if not placeholder} for found in (one, other)]
    assert all(new)
    assert not new[0] & new[1]


# --- the two parts of a snapshot -------------------------------------------------------------------------------------


def test_the_work_may_run_on_another_thread_while_the_loop_goes_on(step):
    """1. Two snapshots are taken. 2. The loop writes on. 3. Another thread writes them, the later one first."""
    first = step.snapshot()
    write(step, range(50), value=2)
    second = step.snapshot(canonical=True, savepoint=True)
    write(step, range(50), value=3)
    failures = []

    def run(taken):
        try:
            taken.run(step.store)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    for taken in (second, first):
        thread = threading.Thread(target=run, args=(taken,))
        thread.start()
        write(step, range(50, 60), value=4)
        thread.join()
    assert failures == []
    assert counts(first.files[0], step.store, [0, 49, 50]) == [1, 1, 1]
    assert counts(second.files[0], step.store, [0, 49, 50]) == [2, 2, 1]
    assert step.at(0)["count"].get() == 3


def test_changes_beyond_measure_have_the_loop_make_the_files_itself(monkeypatch):
    """1. A snapshot is taken, its work does not run. 2. More is written than may be in memory. 3. The work runs."""
    monkeypatch.setitem(state_rig.BACKENDS, "tiny", partial(RocksBackend, limits=Limits(changes_bytes=4_000)))
    linked = []
    plain = Database.link_files
    monkeypatch.setattr(Database, "link_files", lambda db, folder: (linked.append(folder), plain(db, folder)))
    step = Step("tiny", Plain)
    write(step, range(5))
    taken = step.snapshot()
    write(step, range(5), value=2)
    assert linked == []
    write(step, range(200), value=3)
    assert len(linked) == 1
    taken.run(step.store)
    assert len(linked) == 1
    restored = Step("rocksdb", Plain, store=step.store, restored=taken.files)
    assert [restored.at(key)["count"].get() for key in range(6)] == [1, 1, 1, 1, 1, 0]
    assert restored.at(0)["words"].get() == ["w"]
    assert step.at(0)["count"].get() == 3


def test_a_snapshot_that_was_given_up_no_longer_keeps_changes_in_memory(monkeypatch):
    monkeypatch.setitem(state_rig.BACKENDS, "tiny", partial(RocksBackend, limits=Limits(changes_bytes=4_000)))
    step = Step("tiny", Plain)
    write(step, range(5))
    taken = step.snapshot()
    step.backends[0].aborted(taken.checkpoint)
    monkeypatch.setattr(Database, "link_files", lambda db, folder: pytest.fail("files were made"))
    write(step, range(200), value=3)
    assert step.at(0)["count"].get() == 3
    taken.run(step.store)
    assert taken.files == [()]


def test_work_that_comes_after_the_end_fails_by_name(step):
    taken = step.snapshot()
    step.close()
    with pytest.raises(HostError, match="closed before its snapshot"):
        taken.run(step.store)


def test_a_checkpoint_of_nothing_has_no_files():
    step = Step("rocksdb", Plain)
    assert step.save() == [()]
    assert step.save() == [()]


def test_what_was_linked_for_a_snapshot_is_removed(step):
    folder = step.backends[0]._folder.path
    step.save()
    aborted = step.snapshot()
    step.backends[0].aborted(aborted.checkpoint)
    step.save(savepoint=True)
    assert [path.name for path in folder.iterdir()] == ["db"]


# --- canonical -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["memory", "rocksdb"])
def test_a_large_canonical_snapshot_comes_in_several_files(monkeypatch, reader):
    monkeypatch.setitem(state_rig.BACKENDS, "tiny", partial(RocksBackend, limits=Limits(piece_rows=10)))
    step = Step("tiny", Plain)
    for _ in range(3):
        write(step, range(30))
    for key in range(30):
        step.timers(key).add(EVENT_TIME, key)
    (files,) = step.save(savepoint=True, canonical=True)
    assert len(files) > 5
    restored = Step(reader, Plain, parallelism=3, store=step.store, restored=[files])
    assert [restored.at(key)["count"].get() for key in range(30)] == [1] * 30
    assert all(restored.at(key)["words"].get() == ["w"] * 3 for key in range(30))
    assert sorted(restored.fire(EVENT_TIME, 100)) == [(key, key) for key in range(30)]


def test_memory_does_not_read_the_own_format_of_rocksdb(step):
    with pytest.raises(UsageError, match="saved by another back end in its own format"):
        Step("memory", Plain, store=step.store, restored=step.save())


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(store, files, damage):
    class Damaged(Files):
        def get(self, file):
            data = store.get(file)
            return damage(data) if file is files[0] else data

    return Damaged()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d[:6], "is cut"),
        (lambda d: d[:40], "has a header that cannot be read"),
        (lambda d: d[:-5], "bytes instead of"),
        (lambda d: d.replace(b'"CURRENT"', b'"../ENT" ', 1), "names a file"),
        (lambda d: d[:4] + b"\xff\xff" + d[6:], "format version 65535"),
        (lambda d: b"ELSE" + d[4:], "is not keyed state"),
    ],
)
def test_a_damaged_index_is_refused_by_name(step, damage, said):
    (files,) = step.save()
    with pytest.raises(CorruptFile, match=f"{files[0].path} .*{said}"):
        Step("rocksdb", Plain, store=damaged(step.store, files, damage), restored=[files])


def test_a_snapshot_that_misses_a_table_file_is_refused(step):
    (files,) = step.save()
    with pytest.raises(CorruptFile, match="names 1 table files, but the checkpoint has 0"):
        Step("rocksdb", Plain, store=step.store, restored=[files[:1]])
