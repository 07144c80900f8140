"""What is in a snapshot, and its states as tables."""

from __future__ import annotations

import pickle
import shutil
import uuid

import golden_content as content
import msgspec
import pyarrow as pa
import pytest
from golden_content import KEYS, expected
from golden_snapshots import CHECKPOINT_FOLDER, JOB_FOLDER, SAVEPOINT
from state_rig import GROUPS

from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import Instant, OperatorId
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.savepoints.catalog import Piece, SnapshotData, read_piece
from penstock.savepoints.tables import column_names
from penstock.savepoints.writing import Draft
from penstock.storage.files import FileStore
from penstock.storage.locations import open_store
from penstock.storage.metadata import decode_metadata, encode_metadata


@pytest.fixture(
    params=[SAVEPOINT, CHECKPOINT_FOLDER, JOB_FOLDER, CHECKPOINT_FOLDER / "_metadata"], ids=lambda p: p.name
)
def data(request):
    return SnapshotData(request.param)


def rows_of(data, operator, name):
    return [row for table in data.tables(operator, name) for row in table.to_pylist()]


def test_operators_are_listed_with_what_is_known_of_them(data):
    found = {info.id: info for info in data.operators()}
    assert list(found) == ["every", "pairs", "windows", "lists", "source"]
    every = found["every"]
    assert (every.name, every.kind, every.parallelism, every.max_parallelism) == ("Every", "process", 2, GROUPS)
    assert every.size_bytes > 1_000
    assert (every.finished, found["source"].finished_subtasks) == (False, (1,))


def test_states_are_listed_with_kind_type_and_keys(data):
    states = {info.name: info for info in data.states("every")}
    assert len(states) == 24
    assert (states["big"].kind, states["big"].type, states["big"].rows) == ("value", "value<int64>", len(KEYS))
    assert states["scores"].type == "map<string, double>"
    assert (states["scores"].ttl_ms, states["big"].ttl_ms) == (2 * 3_600_000, None)
    assert states["scores"].columns == (
        "key_group: int32",
        "k: int64",
        "map_key: string",
        "value: double",
        "written_ms: int64",
    )
    assert states["thing"].type == "value<object>"
    assert (states["timers"].kind, states["timers"].rows) == ("timers", 2 * len(KEYS))
    assert data.state("pairs", "count").key_columns == ("name", "at")
    assert [(info.name, info.kind, info.rows) for info in data.states("lists")] == [
        ("split", "split-list", 3),
        ("union", "union-list", 1),
        ("rules", "broadcast", 2),
    ]
    assert [(info.name, info.kind) for info in data.states("source")] == [("splits", "split-list")]


@pytest.mark.parametrize("name", ["big", "text", "moment", "price", "tags", "place"])
def test_values_are_rows_by_key(data, name):
    assert {row["k"]: row["value"] for row in rows_of(data, "every", name)} == {k: expected(k)[name] for k in KEYS}


def test_lists_have_a_row_per_element_and_maps_one_per_entry(data):
    events: dict = {}
    for row in rows_of(data, "every", "events"):
        events.setdefault(row["k"], []).append(row["value"])
    assert events == {key: expected(key)["events"] for key in KEYS}
    scores = {(row["k"], row["map_key"]): (row["value"], row["written_ms"]) for row in rows_of(data, "every", "scores")}
    assert scores == {(k, inner): (v, 1_000_000) for k in KEYS for inner, v in expected(k)["scores"].items()}


def test_objects_stay_pickled(data):
    things = {row["k"]: pickle.loads(row["value"]) for row in rows_of(data, "every", "thing")}
    assert things == {key: expected(key)["thing"] for key in KEYS}


def test_timers_are_rows(data):
    rows = rows_of(data, "every", "timers")
    assert {row["timer"] for row in rows} == {"event-time", "processing-time"}
    assert {row["time_us"] for row in rows if row["k"] == 3} == {1_003, 2**61}


def test_windows_are_rows_of_partial_aggregates(data):
    rows = rows_of(data, "windows", "windows")
    assert sorted(row["k"] for row in rows) == list(range(1, 10))
    assert list(rows[0])[:3] == ["key_group", "k", "window_start"]
    assert data.state("windows", "windows").key_columns == ("k",)


def test_state_of_subtasks_is_rows_of_parts(data):
    rows = rows_of(data, "lists", "split")
    assert [(row["subtask"], row["part"], pickle.loads(row["value"])) for row in rows] == [
        (0, 0, "a"),
        (0, 1, "b"),
        (1, 0, "c"),
    ]
    assert rows_of(data, "source", "splits") == [{"subtask": 0, "part": 0, "value": b"\x00position"}]


def test_only_rows_and_files_of_a_range_of_key_groups_are_read(data, monkeypatch):
    everything = rows_of(data, "every", "big")
    some = [row for table in data.tables("every", "big", (2, 5)) for row in table.to_pylist()]
    assert some == [row for row in everything if 2 <= row["key_group"] <= 5]
    read = []
    monkeypatch.setattr("penstock.savepoints.catalog.read_files", lambda files, *_, **__: read.append(files))
    with pytest.raises(AttributeError):
        list(data.tables("every", "big", (GROUPS - 1, GROUPS - 1)))
    assert read == [data.pieces("every", "big")[1].files]


def test_a_piece_can_be_read_in_another_process(data):
    pieces = data.pieces("every", "big")
    assert len(pieces) == 2
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(piece), type=Piece) for piece in pieces]
    assert sum(table.num_rows for piece in sent for table in read_piece(piece, data.location)) == len(KEYS)


def test_what_was_in_flight_can_be_read_with_its_schema():
    data = SnapshotData(CHECKPOINT_FOLDER)
    (edge,) = data.edges()
    assert (edge.upstream, edge.downstream, edge.partitioning, edge.batches) == ("source", "every", "hash", 2)
    rows = [row for table in data.in_flight(0, content.IN_FLIGHT) for row in table.to_pylist()]
    assert [(row["side"], row["upstream"], row["downstream"], row["k"], row["text"]) for row in rows] == [
        ("input", 0, 1, 1, "eins"),
        ("input", 0, 1, 2, None),
        ("output", 1, 0, 3, "drei"),
    ]
    with pytest.raises(UsageError, match="cannot be read with this schema"):
        list(data.in_flight(0, pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string())])))
    assert SnapshotData(SAVEPOINT).edges() == ()


def test_an_operator_goes_by_its_id_or_its_name(data):
    assert data.states("Every") == data.states("every")
    with pytest.raises(UsageError, match="no operator 'nobody'") as caught:
        data.states("nobody")
    assert "every, pairs" in caught.value.hint


def test_a_state_that_is_not_there_is_named_with_those_that_are(data):
    with pytest.raises(UsageError, match="has no state 'bog'") as caught:
        data.state("every", "bog")
    assert "big" in caught.value.hint


def test_states_of_one_name_are_told_apart_by_kind(tmp_path):
    shutil.copytree(SAVEPOINT, tmp_path / "it")
    path = tmp_path / "it" / "_metadata"
    metadata = decode_metadata(str(path), path.read_bytes())
    lists = metadata.operators[OperatorId("lists")]
    subtasks = {n: msgspec.structs.replace(s, union_lists={"split": (b"u",)}) for n, s in lists.subtasks.items()}
    changed = {**metadata.operators, OperatorId("lists"): msgspec.structs.replace(lists, subtasks=subtasks)}
    path.write_bytes(encode_metadata(msgspec.structs.replace(metadata, operators=changed)))
    data = SnapshotData(tmp_path / "it")
    with pytest.raises(UsageError, match="2 states named 'split'") as caught:
        data.state("lists", "split")
    assert caught.value.hint == "give one of split-list:split, union-list:split"
    assert data.state("lists", "union-list:split").rows == 2


def test_a_file_that_was_changed_is_refused_by_name(tmp_path):
    shutil.copytree(SAVEPOINT, tmp_path / "it")
    file = tmp_path / "it" / "every-0-0"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    data = SnapshotData(tmp_path / "it")
    with pytest.raises(CorruptFile, match="every-0-0"):
        data.states("every")
    assert data.states("pairs")


def test_state_in_a_format_of_a_back_ends_own_is_refused_with_what_to_do(tmp_path):
    shutil.copytree(SAVEPOINT, tmp_path / "it")
    store = FileStore(tmp_path / "it")
    metadata = decode_metadata("_metadata", store.read("_metadata"))
    alien = content.handle(b"ALIEN state", "alien")
    store.write("alien", b"ALIEN state")
    store.write("_metadata", encode_metadata(with_keyed(metadata, "pairs", alien)))
    with pytest.raises(UsageError, match="in its own format") as caught:
        SnapshotData(tmp_path / "it").states("pairs")
    assert "canonical savepoint" in caught.value.hint


def with_keyed(metadata: CheckpointMetadata, operator: str, file) -> CheckpointMetadata:
    found = metadata.operators[OperatorId(operator)]
    subtasks = {n: msgspec.structs.replace(s, keyed=(file,)) for n, s in found.subtasks.items()}
    changed = {**metadata.operators, OperatorId(operator): msgspec.structs.replace(found, subtasks=subtasks)}
    return msgspec.structs.replace(metadata, operators=changed)


def test_a_key_column_keeps_its_name_and_ours_gets_out_of_the_way():
    columns = ["__key_group", "value", "__value"]
    assert column_names(columns, ["value"]) == ["key_group", "value", "_value"]
    assert column_names(columns[::2], ["k"]) == ["key_group", "value"]


def test_a_snapshot_is_read_and_written_where_a_uri_leads(s3):
    source, target = s3.uri(f"state/{uuid.uuid4()}"), s3.uri(f"state/{uuid.uuid4()}")
    store = open_store(source)
    for file in SAVEPOINT.iterdir():
        store.write(file.name, file.read_bytes())
    data = SnapshotData(source)
    assert {row["k"]: row["value"] for row in rows_of(data, "every", "big")} == {k: expected(k)["big"] for k in KEYS}
    copy = Draft(base=data, max_parallelism=GROUPS, parallelism=2).write(target, now=Instant(0))
    assert sorted(open_store(target).list_files("")) == sorted(file.name for file in SAVEPOINT.iterdir())
    assert rows_of(SnapshotData(copy), "pairs", "count") == rows_of(data, "pairs", "count")
