"""Checkpoints in RocksDB's own format that were written once must be restorable for ever."""

from __future__ import annotations

from pathlib import Path

import golden_content as content
import golden_native as native
import msgspec
import pytest
from golden_content import JOB, KEYS
from state_rig import EVENT_TIME, PROCESSING_TIME, Step, close_steps

from penstock.core.ids import OperatorId
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import CompletedCheckpoint
from penstock.core.recovery.operator_state import deal
from penstock.runtime.task.operators.sink import COMMITTABLES, decode_committables
from penstock.state.rocksdb import native as native_format
from penstock.storage.completed import FileCompletedStore
from penstock.storage.files import FileStore
from penstock.storage.metadata import encode_metadata
from penstock.storage.places import Anywhere
from penstock.storage.restoring import find_snapshot
from penstock.storage.snapshots import SnapshotReader
from penstock.storage.verification import verify_job

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("native-v*"))
FOLDER = layout.job_folder(JOB)


@pytest.fixture(params=VERSIONS)
def directory(request) -> Path:
    return HERE / request.param / content.DIRECTORY


@pytest.fixture
def snapshot(directory):
    return find_snapshot(FileStore(directory), str(directory / JOB)).metadata


@pytest.fixture
def step_of(directory, snapshot):
    """Restores the step with every kind of state."""
    reader = SnapshotReader(Anywhere(FileStore(directory)))
    files = [state.keyed for state in snapshot.operators[OperatorId("every")].subtasks.values()]
    yield lambda parallelism=1: Step("rocksdb", content.Every, parallelism=parallelism, restored=files, store=reader)
    close_steps()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_kind_of_keyed_state_comes_back_at_any_parallelism(step_of, parallelism):
    step = step_of(parallelism)
    content.check_every_key(step)
    for key in (1_000, *native.GONE):
        assert not any(handle.exists() for handle in step.at(key).values())


def test_timers_come_back_and_fire_in_order(step_of):
    step = step_of()
    due = sorted((1_000 if key is None else 1_000 + key % 7) for key in KEYS)
    assert [time for time, _ in step.fire(EVENT_TIME, 10_000)] == due
    assert len(step.fire(PROCESSING_TIME, 2**62)) == len(KEYS)


def test_what_has_a_time_to_live_goes_on_ageing(step_of):
    step = step_of()
    step.clock.now += 30 * 60_000
    assert (step.at(5)["seen"].get(), step.at(5)["kept"].get()) == (None, ["first", "5"])
    step.clock.now += 30 * 60_000
    assert (step.at(5)["kept"].get(), step.at(5)["big"].get()) == ([], 5)


def test_the_checkpoint_builds_on_one_before_it(directory, snapshot):
    """Otherwise nothing is shown about incremental ones."""
    shared = [file for file in snapshot.files if file.shared_key is not None]
    assert {int(file.shared_key.split("-")[-2]) for file in shared} == {1, 2}
    (entry,) = FileCompletedStore(FileStore(directory), FOLDER).load()
    record = msgspec.msgpack.decode(entry.data, type=CompletedCheckpoint)
    assert sorted(f.file.shared_key for f in record.shared_files) == sorted(file.shared_key for file in shared)


def test_what_a_sink_had_prepared_comes_back_in_its_order(snapshot):
    for parallelism in (1, 2):
        shares = deal(snapshot.operators[OperatorId("sink")], parallelism)
        parts = [part for states in shares for state in states for part in state.split_lists[COMMITTABLES]]
        assert [piece for part in parts for piece in decode_committables(part)] == [
            (1, b"one"),
            (2, b"two"),
            (2, b"three"),
        ]


def test_it_is_in_order_as_verify_sees_it_and_its_metadata_would_be_written_so_today(directory):
    report = verify_job(FileStore(directory), FOLDER)
    assert report.is_fine
    assert not report.leftovers
    path = directory / JOB / f"chk-{native.NATIVE_CHECKPOINT}" / "_metadata"
    assert encode_metadata(native.decode(path)) == path.read_bytes()


def test_today_the_same_kinds_of_files_are_written_with_the_version_of_the_golden_ones():
    """RocksDB lays out its own bytes; what is around them is ours. A raised version needs golden files of its own."""
    today = native.files()
    newest = HERE / VERSIONS[-1]
    written = {str(path.relative_to(newest)): path.read_bytes() for path in newest.rglob("*") if path.is_file()}
    assert kinds(today) == kinds(written)
    for files in (today, written):
        (index,) = [data for path, data in files.items() if path.endswith("every-0-0")]
        assert native_format.is_native(index)
        assert int.from_bytes(index[4:6], "big") == native_format.VERSION


def kinds(files):
    return sorted("shared" if "/shared/" in path else path for path in files)
