"""Snapshots that were written once must be readable for ever, and today's code must still write them so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import golden_content as content
import msgspec
import pyarrow as pa
import pytest
from golden_content import CHECKPOINT, JOB, KEYS, PAIRS, expected
from state_rig import EVENT_TIME, GROUPS, PROCESSING_TIME, Step

from penstock.core.ids import OperatorId
from penstock.core.recovery import layout
from penstock.core.recovery.metadata import METADATA_VERSION, CompletedCheckpoint, SnapshotKind
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.window_table import FORMAT, Layout, decode
from penstock.state import format as state_format
from penstock.state.format import CanonicalFile
from penstock.state.operator_state import OperatorStates
from penstock.storage.completed import FileCompletedStore, decode_pointer
from penstock.storage.files import FileStore
from penstock.storage.metadata import decode_metadata, encode_metadata
from penstock.storage.places import Anywhere
from penstock.storage.records import FileRecords
from penstock.storage.restoring import find_snapshot, read_completed
from penstock.storage.snapshots import SnapshotReader
from penstock.storage.tenure import inheritance_format, take_over
from penstock.storage.verification import verify_job, verify_savepoint
from penstock.wire.codec import BatchCodec

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
NEWEST = HERE / VERSIONS[-1]
FOLDER = layout.job_folder(JOB)


@pytest.fixture(params=VERSIONS)
def golden(request) -> Path:
    return HERE / request.param


@pytest.fixture(params=[content.SAVEPOINT_FOLDER, f"{content.DIRECTORY}/{JOB}/chk-{CHECKPOINT}"])
def snapshot(golden, request):
    """The savepoint, and the checkpoint: what holds for one holds for the other."""
    return find_snapshot(FileStore(golden), str(golden / request.param)).metadata


@pytest.fixture
def reader(golden):
    return SnapshotReader(Anywhere(FileStore(golden)))


def keyed_files(snapshot, operator):
    return [state.keyed for state in snapshot.operators[OperatorId(operator)].subtasks.values()]


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_kind_of_keyed_state_comes_back_at_any_parallelism(snapshot, reader, parallelism):
    step = Step("memory", content.Every, parallelism=parallelism, restored=keyed_files(snapshot, "every"), store=reader)
    content.check_every_key(step)
    step.close()


def test_nothing_comes_back_that_was_not_saved(snapshot, reader):
    step = Step("memory", content.Every, restored=keyed_files(snapshot, "every"), store=reader)
    handles = step.at(1_000)
    assert not any(handle.exists() for handle in handles.values())
    step.close()


def test_timers_come_back_and_fire_in_order(snapshot, reader):
    step = Step("memory", content.Every, restored=keyed_files(snapshot, "every"), store=reader)
    due = sorted((1_000 if key is None else 1_000 + key % 7) for key in KEYS)
    assert [time for time, _ in step.fire(EVENT_TIME, 10_000)] == due
    assert len(step.fire(PROCESSING_TIME, 2**62)) == len(KEYS)
    step.close()


def test_what_has_a_time_to_live_goes_on_ageing(snapshot, reader):
    step = Step("memory", content.Every, restored=keyed_files(snapshot, "every"), store=reader)
    written = step.clock.now
    step.clock.now = written + 30 * 60_000
    handles = step.at(5)
    assert (handles["seen"].get(), handles["kept"].get()) == (None, ["first", "5"])
    step.clock.now = written + 60 * 60_000
    handles = step.at(5)
    assert (handles["kept"].get(), dict(handles["scores"].items())) == ([], expected(5)["scores"])
    assert handles["big"].get() == 5
    step.close()


def test_keys_of_several_columns_come_back(snapshot, reader):
    step = Step("memory", content.Pairs, keys=content.BY_PAIR, restored=keyed_files(snapshot, "pairs"), store=reader)
    assert [step.at(pair)["count"].get() for pair in PAIRS] == list(range(len(PAIRS)))
    step.close()


def test_windows_come_back_with_how_far_they_had_fired(snapshot, reader):
    ((file,),) = keyed_files(snapshot, "windows")
    rows, header = decode(reader.get(file), (0, GROUPS - 1))
    assert header.layout == Layout.of(content.WINDOW_STEP)
    assert [(f.first_group, f.last_group, f.fired_us) for f in header.fired] == [(0, 7, 5_000_000), (8, 15, None)]
    assert sorted(rows.column("k").to_pylist()) == list(range(1, content.WINDOW_ROWS + 1))
    halves = [decode(reader.get(file), range_of(i, parallelism=2, groups=GROUPS))[0] for i in range(2)]
    assert sum(half.num_rows for half in halves) == content.WINDOW_ROWS
    assert all(half.num_rows for half in halves)


def test_state_of_subtasks_comes_back(snapshot):
    import penstock as ps

    declared = {
        "split": ps.split_list_state("split", "string"),
        "union": ps.union_list_state("union", object),
        "rules": ps.broadcast_state("rules", key="string", value="bigint"),
    }
    states = OperatorStates(declared, name="lists", subtask=0, check_write=lambda: None)
    states.restore([snapshot.operators[OperatorId("lists")].subtasks[0]])
    assert states.handles["split"].get() == ["a", "b"]
    assert states.handles["union"].get() == [[1]]
    assert dict(states.handles["rules"].items()) == {"x": 1}


def test_what_was_in_flight_comes_back(golden, reader):
    found = find_snapshot(FileStore(golden), str(golden / content.DIRECTORY / JOB))
    codec, batches = BatchCodec(content.IN_FLIGHT), []
    for task in found.metadata.channels:
        for state in (*task.inputs, *task.outputs):
            data = reader.get(state.file)
            batches += [codec.decode(data[start : start + length]) for start, length in state.ranges]
    assert batches == content.FLYING


def test_a_driver_takes_the_job_over(golden, tmp_path):
    shutil.copytree(golden / content.DIRECTORY, tmp_path / "job")
    store = FileStore(tmp_path / "job")
    tenure = take_over(store, FOLDER)
    assert (tenure.term, tenure.next_id, tenure.outcome) == (1, CHECKPOINT + 1, content.OUTCOME)
    assert tenure.start == (None if golden.name == "v1" else content.INHERITANCE.start)
    (completed,) = tenure.completed
    assert (completed.job, completed.checkpoint, completed.kind) == (JOB, CHECKPOINT, SnapshotKind.CHECKPOINT)
    metadata = read_completed(store, completed)
    assert metadata.size == completed.size
    assert list(metadata.operators) == ["every", "pairs", "windows", "lists", "source"]
    assert metadata.operators[OperatorId("source")].finished_subtasks == (1,)
    assert (metadata.coordinators, metadata.hooks) == ({"source": b"\x01"}, {"hook": b"\x02"})
    assert metadata.edges[0].keys == ("k",)


def test_they_are_in_order(golden, tmp_path):
    """As `penstock verify` sees it."""
    saved = FileStore(golden / content.SAVEPOINT_FOLDER)
    assert verify_savepoint(saved, "it").is_fine
    report = verify_job(FileStore(golden / content.DIRECTORY), FOLDER)
    assert report.is_fine
    assert not report.leftovers


# --- writing ---------------------------------------------------------------------------------------------------------


def test_today_the_same_metadata_pointers_and_outcomes_give_the_same_bytes(tmp_path):
    """If this fails, older programs may not read what this one writes: raise the version of the format, and write the
    next golden snapshots."""
    folder = NEWEST / content.DIRECTORY / JOB
    for path in (NEWEST / "savepoint/_metadata", folder / f"chk-{CHECKPOINT}/_metadata"):
        assert encode_metadata(decode_metadata(str(path), path.read_bytes())) == path.read_bytes()
    store = FileStore(tmp_path)
    pointer = layout.completed_file(FOLDER, CHECKPOINT)
    content_of_pointer = (NEWEST / content.DIRECTORY / pointer).read_bytes()
    record = msgspec.msgpack.decode(decode_pointer(pointer, CHECKPOINT, content_of_pointer), type=CompletedCheckpoint)
    FileCompletedStore(store, FOLDER).record(CHECKPOINT, msgspec.msgpack.encode(record))
    assert store.read(pointer) == content_of_pointer
    term = take_over(store, FOLDER).term
    FileRecords(store, FOLDER, term=term).record_outcome(content.OUTCOME)
    outcome = layout.outcome_file(FOLDER, term)
    assert store.read(outcome) == (NEWEST / content.DIRECTORY / outcome).read_bytes()
    tenure = layout.tenure_file(FOLDER, term)
    assert inheritance_format.encode(content.INHERITANCE) == (NEWEST / content.DIRECTORY / tenure).read_bytes()


def test_today_the_same_files_are_written_with_the_same_names_and_structure():
    """Arrow may lay out its own bytes otherwise from one release to the next; what they say is ours."""
    today = content.files()
    written = {str(path.relative_to(NEWEST)): path.read_bytes() for path in NEWEST.rglob("*") if path.is_file()}
    assert sorted(today) == sorted(written)
    for path in (p for p in today if p.endswith("-0-0") and "windows" not in p):
        assert described(today[path]) == described(written[path])
    window = f"{content.SAVEPOINT_FOLDER}/windows-0-0"
    old, new = (pa.ipc.open_stream(files[window]).read_all() for files in (written, today))
    assert old.equals(new)
    assert old.schema.equals(new.schema, check_metadata=True)


def described(data):
    file = CanonicalFile(data, what="it")
    header = json.loads(data[10 : 10 + int.from_bytes(data[6:10], "big")])
    for table in header["tables"]:
        del table["offset"], table["length"]
    tables = [file.table(entry, (0, GROUPS - 1)) for entry in file.header.tables]
    return data[:6], header, tables, [table.schema for table in tables]


def test_there_are_golden_files_of_the_versions_of_today():
    """A format with a raised version needs golden files of its own."""
    data = (NEWEST / "savepoint/every-0-0").read_bytes()
    assert int.from_bytes(data[4:6], "big") == state_format.VERSION
    assert int.from_bytes((NEWEST / "savepoint/_metadata").read_bytes()[4:6], "big") == METADATA_VERSION
    assert f'"format":{FORMAT}'.encode() in (NEWEST / "savepoint/windows-0-0").read_bytes()
