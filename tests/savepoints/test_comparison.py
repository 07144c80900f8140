"""How two snapshots differ."""

from __future__ import annotations

import pickle

import golden_content as content
import pyarrow as pa
import pytest
from golden_content import KEYS
from golden_snapshots import CHECKPOINT_FOLDER, SAVEPOINT
from state_rig import GROUPS
from table_rows import TableRows

from penstock.api.state import StateKind
from penstock.core.errors import UsageError
from penstock.core.ids import Instant, OperatorId
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.comparison import compare
from penstock.savepoints.rows import GivenState
from penstock.savepoints.writing import Draft

BY_NUMBER = pa.schema([pa.field("k", pa.int64())])


@pytest.fixture
def old():
    return SnapshotData(SAVEPOINT)


def changed(old, tmp_path, spec, rows, *, groups=GROUPS):
    given = GivenState(spec=spec, keys=BY_NUMBER, rows=TableRows(pa.Table.from_pylist(rows), BY_NUMBER, groups))
    made = Draft(base=old, max_parallelism=groups, parallelism=2).with_keyed(OperatorId("every"), given)
    return SnapshotData(made.write(tmp_path / "new", now=Instant(0)))


def test_a_savepoint_and_a_checkpoint_of_the_same_state_are_the_same(old):
    found = compare(old, SnapshotData(CHECKPOINT_FOLDER))
    assert len(found) == 30
    assert not any(state.differs for state in found)
    assert sum(state.same for state in found) > 300


def test_added_removed_and_changed_keys_are_counted_and_the_first_ones_named(old, tmp_path):
    rows = [{"k": key, "value": -1 if key == 3 else key or 0} for key in KEYS if key != 5]
    new = changed(old, tmp_path, content.Every.big.spec, [*rows, {"k": 99, "value": 9}])
    (state,) = compare(old, new, operator="every", state="big")
    assert (state.added, state.removed, state.changed, state.same) == (1, 1, 1, len(KEYS) - 2)
    assert state.identity == ("k",)
    found = {one.change: (one.key, one.old, one.new) for one in state.first}
    assert found == {"added": ((99,), None, 9), "removed": ((5,), 5, None), "changed": ((3,), 3, -1)}
    (state,) = compare(old, new, operator="every", state="big", shown=1)
    assert (len(state.first), state.added) == (1, 1)
    (back,) = compare(new, old, operator="every", state="big")
    assert (back.added, back.removed, back.changed) == (1, 1, 1)


def test_the_order_of_a_list_counts_and_the_time_of_writing_does_not(old, tmp_path):
    rows = [{"k": 1, "value": "1"}, {"k": 1, "value": "first"}, {"k": 2, "value": "first"}, {"k": 2, "value": "2"}]
    new = changed(old, tmp_path, content.Every.kept.spec, rows)
    (state,) = compare(old, new, operator="every", state="kept")
    assert (state.changed, state.same, state.removed) == (1, 1, len(KEYS) - 2)
    (one,) = [one for one in state.first if one.change == "changed"]
    assert (one.old, one.new) == (["first", "1"], ["1", "first"])


def test_entries_of_maps_are_compared_one_by_one(old, tmp_path):
    rows = [{"k": 1, "map_key": "a", "value": 0.5}, {"k": 1, "map_key": "c", "value": 1.0}]
    new = changed(old, tmp_path, content.Every.scores.spec, rows)
    (state,) = compare(old, new, operator="every", state="scores", shown=1_000)
    assert (state.added, state.same, state.removed) == (1, 1, 2 * len(KEYS) - 1)
    assert state.identity == ("k", "map_key")
    assert [one.key for one in state.first if one.change == "added"] == [(1, "c")]


def test_a_nan_is_the_same_as_a_nan(old, tmp_path):
    rows = [{"k": 1, "value": float("nan")}]
    new = changed(old, tmp_path, content.Every.double.spec, rows)
    (state,) = compare(new, SnapshotData(new.location), operator="every", state="double")
    assert (state.same, state.changed) == (1, 0)


def test_parts_of_lists_are_added_or_removed(old, tmp_path):
    parts = ((0, (pickle.dumps("c", 5), pickle.dumps("c", 5))),)
    made = Draft(base=old, max_parallelism=GROUPS, parallelism=2)
    made = made.with_parts(OperatorId("lists"), StateKind.SPLIT_LIST, "split", parts)
    new = SnapshotData(made.write(tmp_path / "new", now=Instant(0)))
    (state,) = compare(old, new, operator="lists", state="split")
    assert (state.added, state.removed, state.same) == (1, 2, 1)


def test_operators_and_states_of_one_side_only_are_all_added_or_removed(old, tmp_path):
    made = Draft(base=old, max_parallelism=GROUPS, parallelism=2).without(OperatorId("pairs"))
    new = SnapshotData(made.write(tmp_path / "new", now=Instant(0)))
    (state,) = [state for state in compare(old, new) if state.differs]
    assert (state.operator, state.removed) == ("pairs", 4)
    (state,) = compare(new, old, operator="pairs")
    assert state.added == 4


def test_a_state_of_other_columns_is_not_compared_but_told(old, tmp_path):
    made = Draft(base=old, max_parallelism=GROUPS, parallelism=2).without(OperatorId("every"))
    base = SnapshotData(made.write(tmp_path / "base", now=Instant(0)))
    spec = content.Every.whole.spec
    wider = changed(base, tmp_path, type(spec)(name="big", kind=spec.kind, type=pa.int32()), [{"k": 1, "value": 1}])
    (state,) = compare(old, wider, operator="every", state="big")
    assert state.differs
    assert "value: int64 and are" in state.note


def test_what_neither_side_has_is_refused(old):
    with pytest.raises(UsageError, match="no operator 'nobody'"):
        compare(old, old, operator="nobody")
    with pytest.raises(UsageError, match="neither snapshot has state 'none'"):
        compare(old, old, operator="every", state="none")


def test_times_that_python_does_not_have_are_compared_and_named_as_texts(old, tmp_path):
    far = pa.schema([pa.field("k", pa.int64()), pa.field("value", pa.timestamp("us", "UTC"))])
    moments = [(0, 253_402_300_800_000_000), (1, 253_402_300_800_000_000)]
    sides = []
    for name, numbers in (("a", [n for _, n in moments]), ("b", [moments[0][1], moments[1][1] + 1_000_000])):
        table = pa.table([pa.array([k for k, _ in moments]), pa.array(numbers).cast(far.field(1).type)], schema=far)
        given = GivenState(spec=content.Every.moment.spec, keys=BY_NUMBER, rows=TableRows(table, BY_NUMBER, GROUPS))
        draft = Draft(base=old, max_parallelism=GROUPS, parallelism=2).with_keyed(OperatorId("every"), given)
        sides.append(SnapshotData(draft.write(tmp_path / name, now=Instant(0))))
    (state,) = compare(*sides, operator="every", state="moment")
    assert (state.same, state.changed) == (1, 1)
    assert [(one.old, one.new) for one in state.first] == [("+10000-01-01 00:00:00", "+10000-01-01 00:00:01")]
