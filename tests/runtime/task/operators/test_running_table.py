"""The table of running aggregates against a dict, and its frozen segments as a snapshot."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.runtime.task.operators import row_segments, running_table
from penstock.runtime.task.operators.running_table import GONE, WRITTEN, RunningTable

VALUES = [("i", pa.int64()), ("f", pa.float32()), ("b", pa.bool_()), ("t", pa.timestamp("us")), ("d", pa.date32())]
SCHEMAS = {
    "int": pa.schema([("k", pa.int64()), *VALUES, ("s", pa.string()), ("l", pa.list_(pa.int64()))]),
    "text": pa.schema([("k", pa.string()), *VALUES, ("s", pa.string()), ("l", pa.list_(pa.int64()))]),
    "two": pa.schema([("k", pa.int32()), ("k2", pa.bool_()), *VALUES, ("s", pa.string()), ("l", pa.list_(pa.int64()))]),
}


@pytest.fixture
def small(monkeypatch):
    """Segments of few rows, so that a test has many of them."""
    for module in (row_segments, running_table):
        monkeypatch.setattr(module, "SEGMENT_ROWS", 64)
    monkeypatch.setattr(row_segments, "_FIRST_ROWS", 4)
    monkeypatch.setattr(running_table, "_LEAST_ROWS", 32)
    monkeypatch.setattr(running_table, "_MOST_SMALL", 3)


def some_row(chance):
    value = chance.randrange(-5, 2**40)
    row = {
        "i": value,
        "f": float(value % 7) / 2,
        "b": value % 3 == 0,
        "t": np.datetime64(value, "us").item(),
        "d": np.datetime64(value % 10_000, "D").item(),
        "s": "x" * (value % 20),
        "l": list(range(value % 4)),
    }
    return {name: None if chance.random() < 0.1 else v for name, v in row.items()}


def some_key(chance, kind, keys):
    key = chance.randrange(keys)
    if chance.random() < 0.02:
        return (None, None) if kind == "two" else (None,)
    return {"int": (key,), "text": (f"key {key}",), "two": (key // 2, key % 2 == 0)}[kind]


def columns_of(rows, schema):
    return [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]


def whole(table, model, schema, keys, *, expired=None):
    """Check that the table has the rows of the model."""
    if not model:
        return
    found = table.find(
        columns_of([(*key, *row.values()) for key, row in model.items()], schema)[:keys], expired=expired
    )
    assert found.there.all()
    got = pa.table(table.rows_of(found), names=schema.names[keys:]).to_pylist()
    assert got == list(model.values())


def restored(segments, schema, keys, *, expired=-1):
    """What a reader of the segments takes the table for."""
    rows = {}
    for segment in segments:
        assert segment.frozen
        for row in segment.table().to_pylist():
            key = tuple(row[name] for name in schema.names[:keys])
            rows.pop(key, None)
            if not row[GONE] and row[WRITTEN] > expired:
                rows[key] = {name: row[name] for name in schema.names[keys:]}
    return rows


@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("keys", [30, 5_000])
def test_the_table_is_a_dict_and_frozen_segments_are_the_dict_at_that_moment(small, kind, keys):
    schema, chance = SCHEMAS[kind], random.Random(keys)
    width = 2 if kind == "two" else 1
    table, model, snapshots = RunningTable(schema, width), {}, []
    for step in range(250):
        batch = dict.fromkeys(some_key(chance, kind, keys) for _ in range(chance.choice((1, 3, 40))))
        rows = [(*key, *some_row(chance).values()) for key in batch]
        columns = columns_of(rows, schema)
        found = table.find(columns[:width])
        assert found.there.tolist() == [key in model for key in batch]
        gone = np.array([chance.random() < 0.3 for _ in rows])
        table.put(found, columns, gone=gone, written=step)
        for key, row, is_gone in zip(batch, rows, gone, strict=True):
            model.pop(key, None)
            if not is_gone:
                model[key] = dict(zip(schema.names[width:], row[width:], strict=True))
        if chance.random() < 0.1:
            snapshots.append((table.freeze(), dict(model)))
    whole(table, model, schema, width)
    assert len(snapshots) > 5
    for segments, expected in snapshots:
        assert restored(segments, schema, width) == expected


def test_segments_that_nobody_needs_are_given_up(small):
    schema, chance = SCHEMAS["int"], random.Random(5)
    table = RunningTable(schema, 1)
    for step in range(300):
        keys = [(chance.randrange(200),) for _ in range(30)]
        rows = [(*key, *some_row(chance).values()) for key in dict.fromkeys(keys)]
        columns = columns_of(rows, schema)
        table.put(table.find(columns[:1]), columns, gone=np.zeros(len(rows), np.bool_), written=step)
        segments = table.freeze()
    assert table.rows < 3 * 200 + 200
    assert len(segments) < 30


def test_marks_of_keys_that_are_gone_do_not_stay(small):
    schema, chance = SCHEMAS["int"], random.Random(5)
    table = RunningTable(schema, 1)
    for step in range(300):
        columns = columns_of([(key, *some_row(chance).values()) for key in range(step * 10, step * 10 + 10)], schema)
        for gone in (False, True):
            table.put(table.find(columns[:1]), columns, gone=np.full(10, gone), written=step)
            if step % 3:
                table.freeze()
    assert len(table) < 300
    assert table.rows < 600


def test_a_snapshot_has_only_the_changed_rows_in_segments_that_the_snapshot_before_does_not_have():
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    table = RunningTable(schema, 1)

    def put(keys):
        columns = [pa.array(keys), pa.array(keys)]
        table.put(table.find(columns[:1]), columns, gone=np.zeros(len(keys), np.bool_), written=0)

    put(np.arange(300_000))
    before = {segment.number for segment in table.freeze()}
    chance, written = np.random.default_rng(3), []
    for _ in range(60):
        put(np.sort(chance.choice(300_000, 3_000, replace=False)))
        segments = table.freeze()
        written.append(sum(segment.rows for segment in segments if segment.number not in before))
        before = {segment.number for segment in segments}
    # 1 % changes in each round. Emptied segments are written again.
    assert min(written) == 3_000
    assert sum(written) / 60 < 0.05 * 300_000


def test_rows_that_have_expired_are_not_found_and_are_forgotten(small):
    schema, chance = SCHEMAS["text"], random.Random(1)
    table, model = RunningTable(schema, 1), {}
    for step in range(100):
        rows = [(f"key {key}", *some_row(chance).values()) for key in range(step, step + 5)]
        columns = columns_of(rows, schema)
        table.put(table.find(columns[:1]), columns, gone=np.zeros(5, np.bool_), written=step)
        model.update({(row[0],): (step, dict(zip(schema.names[1:], row[1:], strict=True))) for row in rows})
        if step % 7 == 0:
            table.freeze()
    left = {key: row for key, (written, row) in model.items() if written > 60}
    whole(table, left, schema, 1, expired=60)
    old = columns_of([(*key, *row.values()) for key, (written, row) in model.items() if written <= 60], schema)
    assert not table.find(old[:1], expired=60).there.any()
    number = 0
    for _ in range(40):
        number = table.remove_expired(number, 60) or 0
    assert len(table) == len(left)
    whole(table, left, schema, 1)
    assert restored(table.freeze(), schema, 1, expired=60) == left
