"""Savepoints made of others and of tables: whole, in order, and what was asked for."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import golden_content as content
import golden_runs
import msgspec
import pyarrow as pa
import pytest
from golden_content import KEYS, expected
from golden_snapshots import CHECKPOINT_FOLDER, SAVEPOINT
from state_rig import EVENT_TIME, GROUPS, Step
from table_rows import TableRows

import penstock as ps
from penstock.api.state import StateKind
from penstock.core.errors import UsageError
from penstock.core.ids import Instant, OperatorId
from penstock.core.recovery.metadata import OperatorLabel, SnapshotKind
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.comparison import compare
from penstock.savepoints.rows import GivenState, check_columns
from penstock.savepoints.writing import Draft, operator_id, window_rows
from penstock.storage.files import FileStore
from penstock.storage.metadata import decode_metadata, encode_metadata
from penstock.storage.places import Anywhere
from penstock.storage.snapshots import SnapshotReader
from penstock.storage.verification import verify_savepoint

NOW = Instant(5_000_000)
BY_NUMBER = pa.schema([pa.field("k", pa.int64())])


def draft(path=SAVEPOINT) -> Draft:
    return Draft(base=SnapshotData(path), max_parallelism=GROUPS, parallelism=2)


def written(made: Draft, tmp_path) -> SnapshotData:
    path = made.write(tmp_path / "new", now=NOW)
    report = verify_savepoint(FileStore(path), "new")
    assert report.is_fine, report.all_problems
    assert not report.leftovers
    return SnapshotData(path)


def given(spec, rows, keys=BY_NUMBER, groups=GROUPS) -> GivenState:
    state = GivenState(spec=spec, keys=keys, rows=None)
    table = pa.Table.from_pylist(rows)
    check_columns(table.schema.names, state)
    return GivenState(spec=spec, keys=keys, rows=TableRows(table, keys, groups))


def values(data, operator, name):
    return {row["k"]: row["value"] for table in data.tables(operator, name) for row in table.to_pylist()}


def restored(data, declares, operator="every", **more):
    files = [state.keyed for state in data.metadata.operators[OperatorId(operator)].subtasks.values() if state.keyed]
    reader = SnapshotReader(Anywhere(FileStore(data.location)))
    return Step("memory", declares, restored=files, store=reader, **more)


@pytest.mark.parametrize("path", [SAVEPOINT, CHECKPOINT_FOLDER], ids=["savepoint", "checkpoint"])
def test_a_copy_holds_the_same_and_stands_alone(path, tmp_path):
    data = written(draft(path), tmp_path)
    assert not any(state.differs for state in compare(SnapshotData(path), data))
    assert data.metadata.kind is SnapshotKind.SAVEPOINT
    assert all(file.path.startswith(data.location) for file in data.metadata.files)
    assert (data.metadata.coordinators, data.metadata.hooks) == ({"source": b"\x01"}, {"hook": b"\x02"})
    assert data.edges() == SnapshotData(path).edges()


def test_one_state_is_changed_and_all_others_stay(tmp_path):
    changes = [{"k": 1, "value": 1_000}, {"k": 2, "value": 2}, {"k": 77, "value": 7}]
    made = draft().with_keyed(OperatorId("every"), given(content.Every.big.spec, changes))
    data = written(made, tmp_path)
    assert values(data, "every", "big") == {1: 1_000, 2: 2, 77: 7}
    differing = [state for state in compare(SnapshotData(SAVEPOINT), data) if state.differs]
    assert [(s.state, s.added, s.removed, s.changed) for s in differing] == [("big", 1, len(KEYS) - 2, 1)]
    step = restored(data, content.Every, parallelism=3)
    assert (step.at(77)["big"].get(), step.at(3)["big"].get()) == (7, None)
    assert step.at(3)["events"].get() == expected(3)["events"]
    assert step.at(3)["thing"].get() == expected(3)["thing"]
    assert step.timers(3).of_key(EVENT_TIME) == [1_003]
    step.close()


def test_entries_of_a_state_with_a_ttl_live_from_now_on_unless_it_is_said_since_when(tmp_path):
    spec = content.Every.seen.spec
    made = draft().with_keyed(OperatorId("every"), given(spec, [{"k": 1, "value": 1}]))
    (row,) = next(iter(written(made, tmp_path).tables("every", "seen"))).to_pylist()
    assert row["written_ms"] == NOW
    made = draft().with_keyed(OperatorId("every"), given(spec, [{"k": 1, "value": 1, "written_ms": 9}]))
    data = SnapshotData(made.write(tmp_path / "other", now=NOW))
    assert next(iter(data.tables("every", "seen"))).to_pylist()[0]["written_ms"] == 9


def test_an_operator_is_removed_and_another_gets_another_id(tmp_path):
    made = draft().without(OperatorId("pairs")).with_id(OperatorId("every"), OperatorId("each"))
    data = written(made, tmp_path)
    assert [info.id for info in data.operators()] == ["each", "windows", "lists", "source"]
    assert values(data, "each", "big") == {key: expected(key)["big"] for key in KEYS}
    assert {s.operator for s in data.metadata.operators[OperatorId("each")].subtasks.values()} == {"each"}
    assert data.metadata.edges[0].downstream == "each"


def test_what_was_in_flight_goes_with_it_and_keeps_its_operators(tmp_path):
    made = draft(CHECKPOINT_FOLDER).with_id(OperatorId("every"), OperatorId("each"))
    data = written(made, tmp_path)
    (edge,) = data.edges()
    assert (edge.downstream, edge.batches) == ("each", 2)
    assert sum(table.num_rows for table in data.in_flight(0, content.IN_FLIGHT)) == 3
    with pytest.raises(UsageError, match="cannot be removed: data was in flight"):
        draft(CHECKPOINT_FOLDER).without(OperatorId("every"))


def test_rows_of_windows_are_changed_and_what_has_fired_stays(tmp_path):
    base = SnapshotData(SAVEPOINT)
    (table,) = base.tables("windows", "windows")
    rows = window_rows(table.filter(pa.array([row["k"] != 4 for row in table.to_pylist()])), table.schema)

    class Rows:
        def of_groups(self, first, last):
            return rows

    data = written(draft().with_windows(OperatorId("windows"), Rows()), tmp_path)
    (state,) = [state for state in compare(base, data) if state.differs]
    assert (state.operator, state.removed, state.added, state.changed) == ("windows", 1, 0, 0)
    with pytest.raises(UsageError, match="windows are given with the columns"):
        window_rows(table.drop_columns(["k"]), table.schema)


def test_parts_of_a_list_are_changed(tmp_path):
    parts = ((0, (pickle.dumps("z"),)),)
    data = written(draft().with_parts(OperatorId("lists"), StateKind.SPLIT_LIST, "split", parts), tmp_path)
    assert [pickle.loads(row["value"]) for row in data.parts("lists", "split").to_pylist()] == ["z"]
    assert data.state("lists", "rules").rows == 2


class Fresh:
    seen = ps.value_state("seen", "bigint")
    tags = ps.list_state("tags", "string")
    best = ps.map_state("best", key="string", value="double", ttl=ps.ttl("1h"))


def test_state_is_made_for_operators_that_never_ran(tmp_path):
    made = Draft(max_parallelism=GROUPS, parallelism=3)
    owner = operator_id("counts")
    seen = [{"k": key, "value": key * 10} for key in range(50)]
    tags = [{"k": 4, "value": text} for text in ("b", "a", "c")]
    best = [{"k": 4, "map_key": "x", "value": 0.5}, {"k": 4, "map_key": "y", "value": 1}]
    timers = [{"k": 4, "timer": "event-time", "time_us": 99}]
    for spec, rows in ((Fresh.seen.spec, seen), (Fresh.tags.spec, tags), (Fresh.best.spec, best), (None, timers)):
        made = made.with_keyed(owner, given(spec, rows))
    parts = ((0, (pickle.dumps({"a": 1}),)),)
    made = made.with_parts(owner, StateKind.BROADCAST, "rules", parts)
    data = written(made, tmp_path)
    (info,) = data.operators()
    assert (info.id, info.parallelism, info.max_parallelism) == ("counts", 3, GROUPS)
    step = restored(data, Fresh, operator="counts", parallelism=2)
    assert [step.at(key)["seen"].get() for key in range(50)] == [key * 10 for key in range(50)]
    assert step.at(4)["tags"].get() == ["b", "a", "c"]
    step.clock.now = NOW
    assert dict(step.at(4)["best"].items()) == {"x": 0.5, "y": 1.0}
    assert step.timers(4).of_key(EVENT_TIME) == [99]
    step.close()


def test_an_operator_is_named_as_its_step_or_by_its_id():
    assert operator_id("bids.window-auction") == "bids.window-auction"
    assert operator_id("My Counts").startswith("my-counts-")
    with pytest.raises(UsageError):
        operator_id(" ")


@pytest.mark.parametrize(
    ("spec", "rows", "text"),
    [
        (Fresh.seen.spec, [{"k": 1, "value": 1}, {"k": 1, "value": 2}], "2 values for k=1"),
        (Fresh.best.spec, [{"k": 1, "map_key": "x", "value": 1.0}] * 2, "2 values for k=1, map_key='x'"),
        (Fresh.seen.spec, [{"k": 1, "value": None}], "without a value"),
        (Fresh.seen.spec, [{"k": 1, "value": "text"}], "is of type int64"),
        (Fresh.seen.spec, [{"k": "x", "value": 1}], "key column 'k' is of type int64"),
        (Fresh.seen.spec, [{"k": 1}], "no column 'value'"),
        (Fresh.seen.spec, [{"k": 1, "value": 1, "more": 1}], "a column 'more'"),
        (None, [{"k": 1, "timer": "egg-time", "time_us": 1}], "no timer of kind 'egg-time'"),
        (Fresh.best.spec, [{"k": 1, "map_key": "x", "value": 1.0, "written_ms": None}], "without its time"),
    ],
)
def test_rows_that_cannot_be_the_states_are_refused_and_leave_nothing(spec, rows, text, tmp_path):
    with pytest.raises(UsageError, match=text):
        Draft(max_parallelism=GROUPS, parallelism=1).with_keyed(OperatorId("a"), given(spec, rows)).write(
            tmp_path / "new", now=NOW
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_written_before_a_row_was_refused_is_removed(tmp_path):
    good = [{"k": key, "value": key} for key in range(20)]
    made = Draft(max_parallelism=GROUPS, parallelism=2).with_keyed(OperatorId("a"), given(Fresh.seen.spec, good))
    made = made.with_keyed(OperatorId("b"), given(Fresh.seen.spec, [*good, {"k": 1, "value": 2}]))
    with pytest.raises(UsageError, match="2 values for k=1"):
        made.write(tmp_path / "new", now=NOW)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_keys_of_an_operator_are_the_same_for_all_its_states():
    text_key = pa.schema([pa.field("k", pa.string())])
    made = draft()
    with pytest.raises(UsageError, match="is keyed by k: int64"):
        made.with_keyed(OperatorId("every"), given(Fresh.seen.spec, [{"k": "a", "value": 1}], keys=text_key))


def test_an_id_that_is_taken_is_refused():
    with pytest.raises(UsageError, match="there is an operator pairs already"):
        draft().with_id(OperatorId("every"), OperatorId("pairs"))
    made = draft().without(OperatorId("pairs")).with_id(OperatorId("every"), OperatorId("pairs"))
    assert made.renamed == {"every": "pairs"}


def test_nothing_is_written_over_what_is_there(tmp_path):
    path = draft().write(tmp_path / "new", now=NOW)
    with pytest.raises(UsageError, match="is not empty"):
        draft().write(path, now=NOW)


def test_what_is_known_of_operators_stays(tmp_path):
    data = written(draft(), tmp_path)
    base = SnapshotData(SAVEPOINT)
    for name, snapshot in base.metadata.operators.items():
        other = data.metadata.operators[name]
        assert msgspec.structs.replace(snapshot, subtasks={}) == msgspec.structs.replace(other, subtasks={})


def with_leaving_windows(folder):
    """The savepoint with the state of cumulative windows, some of which were being handed on."""
    shutil.copytree(SAVEPOINT, folder)
    path = folder / "_metadata"
    metadata = decode_metadata(str(path), path.read_bytes())
    windows = Path(__file__).parents[1] / "golden" / "windows-v1" / "cumulative"
    files = tuple(content.handle((windows / name).read_bytes(), None) for name in ("0-0", "0-1"))
    operator = metadata.operators[OperatorId("windows")]
    state = msgspec.structs.replace(operator.subtasks[0], keyed=files)
    changed = msgspec.structs.replace(operator, subtasks={0: state}, label=OperatorLabel(name="Windows", kind="window"))
    operators = {**metadata.operators, OperatorId("windows"): changed}
    path.write_bytes(encode_metadata(msgspec.structs.replace(metadata, operators=operators)))
    (folder / "windows-0-0").unlink()
    return folder


def with_runs(folder):
    """The savepoint with the state of windows in runs, as a checkpoint has it."""
    shutil.copytree(SAVEPOINT, folder)
    path = folder / "_metadata"
    metadata = decode_metadata(str(path), path.read_bytes())
    kept = golden_runs.store_of(Path(__file__).parents[1] / "golden" / "runs-v1" / "tumbling")
    (state, _) = golden_runs.states_in(Path(__file__).parents[1] / "golden" / "runs-v1" / "tumbling")
    files = tuple(content.handle(kept.get(file), None) for file in state.keyed)
    operator = metadata.operators[OperatorId("windows")]
    state = msgspec.structs.replace(state, keyed=files)
    changed = msgspec.structs.replace(
        operator,
        subtasks={0: state},
        max_parallelism=golden_runs.GROUPS,
        label=OperatorLabel(name="Windows", kind="window"),
    )
    operators = {**metadata.operators, OperatorId("windows"): changed}
    path.write_bytes(encode_metadata(msgspec.structs.replace(metadata, operators=operators)))
    (folder / "windows-0-0").unlink()
    return folder


def test_windows_in_runs_are_copied_as_they_are_and_written_in_one_file_when_they_are_changed(tmp_path):
    base = SnapshotData(with_runs(tmp_path / "base"))
    rows = pa.concat_tables(base.tables("windows", "windows"))
    assert rows.num_rows == base.state("windows", "windows").rows > 10

    class Rows:
        def of_groups(self, first, last):
            return window_rows(rows.slice(1), rows.schema)

    copied = written(draft(base.location), tmp_path)
    assert pa.concat_tables(copied.tables("windows", "windows")).equals(rows)
    changed = written(draft(base.location).with_windows(OperatorId("windows"), Rows()), tmp_path / "again")
    assert changed.state("windows", "windows").rows == rows.num_rows - 1
    assert len(changed.metadata.operators[OperatorId("windows")].subtasks[0].keyed) == 1


def test_windows_that_were_being_handed_on_are_a_table_of_their_own_and_stay_when_panes_are_changed(tmp_path):
    base = SnapshotData(with_leaving_windows(tmp_path / "base"))
    assert [info.name for info in base.states("windows")] == ["windows", "leaving-windows"]
    (panes,), (leaving,) = (list(base.tables("windows", name)) for name in ("windows", "leaving-windows"))
    assert "window_end" in leaving.schema.names
    assert leaving.num_rows

    class Rows:
        def of_groups(self, first, last):
            return window_rows(panes.slice(1), panes.schema)

    data = written(draft(base.location).with_windows(OperatorId("windows"), Rows()), tmp_path)
    (state,) = [state for state in compare(base, data) if state.differs]
    assert (state.operator, state.removed, state.added, state.changed) == ("windows", 1, 0, 0)
    assert list(data.tables("windows", "leaving-windows")) == [leaving]
