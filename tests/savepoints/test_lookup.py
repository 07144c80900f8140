"""The state of one key is what the whole table says of the key."""

from __future__ import annotations

import pytest
from golden_content import KEYS, expected
from golden_snapshots import CHECKPOINT_FOLDER, SAVEPOINT

from penstock.core.errors import UsageError
from penstock.savepoints.catalog import SnapshotData
from penstock.savepoints.lookup import value_of_key


@pytest.fixture(params=[SAVEPOINT, CHECKPOINT_FOLDER], ids=lambda p: p.name)
def data(request):
    return SnapshotData(request.param)


@pytest.mark.parametrize("name", ["big", "text", "moment", "price", "tags", "place", "thing"])
def test_a_value_is_found_by_its_key(data, name):
    assert {k: value_of_key(data, "every", name, k) for k in KEYS} == {k: expected(k)[name] for k in KEYS}


def test_a_list_is_a_list_and_a_map_is_a_dict(data):
    key = KEYS[0]
    assert value_of_key(data, "every", "events", key) == expected(key)["events"]
    assert value_of_key(data, "every", "scores", key) == expected(key)["scores"]


def test_a_key_without_state_has_the_default(data):
    assert value_of_key(data, "every", "big", 10**9) is None
    assert value_of_key(data, "every", "big", 10**9, default=-1) == -1


def test_windows_and_timers_are_rows(data):
    (row,) = value_of_key(data, "windows", "windows", 3)
    assert "window_start" in row
    assert "k" not in row
    assert {row["time_us"] for row in value_of_key(data, "every", "timers", 3)} == {1_003, 2**61}


def test_a_key_of_several_columns_is_a_tuple_or_a_dict(data):
    keys = data.key_schema("pairs", "count").names
    row = next(row for table in data.tables("pairs", "count") for row in table.to_pylist())
    as_tuple = tuple(row[name] for name in keys)
    assert value_of_key(data, "pairs", "count", as_tuple) == row["value"]
    assert value_of_key(data, "pairs", "count", dict(zip(keys, as_tuple, strict=True))) == row["value"]


@pytest.mark.parametrize("key", ["text", ("a", "b"), {"other": 1}])
def test_a_key_that_does_not_fit_is_refused(data, key):
    with pytest.raises(UsageError, match="does not fit the key columns"):
        value_of_key(data, "every", "big", key)


def test_state_that_is_not_by_key_is_refused(data):
    with pytest.raises(UsageError, match="not kept by key"):
        value_of_key(data, "lists", "split", 1)
