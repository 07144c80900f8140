"""Rows that are found by key, against a dict: whatever is replaced, dropped, merged and restored, at any time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId
from penstock.core.messages import StateFile
from penstock.runtime.task.operators.keyed_rows import KeyedRows
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.settings import StateSettings
from penstock.state.run_places import make_place
from penstock.state.runs import RunFiles

SCHEMA = pa.schema({"k": pa.string(), "t": pa.timestamp("us", "UTC"), "v": pa.int64()})
TINY = RunLimits(
    run_rows=4, block_rows=2, part_blocks=1, loop_rows=6, turn_rows=4, section_rows=3, file_bytes=1, fanout=2
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "take", "merge", "half", "freeze"]),
        st.lists(st.integers(0, 40), min_size=1, max_size=12),
        st.integers(0, 60),
    ),
    max_size=25,
)


def table_of(rows):
    """Rows of key, time and value."""
    keys, times, values = ([row[n] for row in rows] for n in range(3))
    columns = [pa.array(keys, pa.string()), pa.array(times, pa.int64()).cast(SCHEMA.field("t").type), pa.array(values)]
    return pa.table(columns, schema=SCHEMA)


def told(table):
    times = table.column("t").cast(pa.int64()).to_pylist()
    return Counter(zip(table.column("k").to_pylist(), times, table.column("v").to_pylist(), strict=True))


def all_of(frozen):
    found = Counter()
    for part in frozen.parts:
        found += told(part)
    return found


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_rows_are_those_of_a_dict(tmp_path_factory, queued_background, backend, actions):
    background, failures, model, frozen = queued_background(), [], {}, []
    rows = KeyedRows(SCHEMA, ["k"], "t")
    place = make_place(
        StateSettings(backend=backend, local_directory=str(tmp_path_factory.mktemp("runs"))), file_bytes=1
    )
    rows.keep_at(place, TINY)
    rows.merge_in(background, failures.append)
    for number, (action, keys, time) in enumerate(actions):
        if action == "put":
            given_keys = sorted({f"key {key}" for key in keys})
            found = rows.find(table_of([(key, 0, 0) for key in given_keys]))
            gone = np.isin(found.rows.column("k").to_numpy(zero_copy_only=False), given_keys)
            there = told(found.rows.filter(pa.array(gone)))
            assert there == Counter((key, *model[key]) for key in given_keys if key in model)
            rows.remove(found, gone)
            rows.append(table_of([(key, time + place, number) for place, key in enumerate(given_keys)]))
            model |= {key: (time + place, number) for place, key in enumerate(given_keys)}
        elif action in ("drop", "take"):
            due = Counter((key, *row) for key, row in model.items() if row[0] <= time)
            if action == "drop":
                rows.drop(time)
            else:
                taken = Counter()
                while (part := rows.take_due(time)) is not None:
                    taken += told(part)
                assert taken == due
            model = {key: row for key, row in model.items() if row[0] > time}
        elif action == "half":
            background.run()
        elif action == "merge":
            background.run()
            background.collect()
        else:
            frozen.append((rows.freeze(), Counter((key, *row) for key, row in model.items())))
        assert rows.rows == len(model)
        later = sum((told(part()) for part in rows.between(time, time + 9)), Counter())
        assert later == Counter((key, *row) for key, row in model.items() if time < row[0] <= time + 9)
    # What a snapshot refers to does not change.
    for kept, expected in frozen:
        assert all_of(kept) == expected
    assert failures == []
    rows.close()


class Files:
    def __init__(self):
        self.bytes = 0

    def put(self, data):
        self.bytes += memoryview(data).nbytes
        return StateFile(path="own", size=memoryview(data).nbytes, checksum=xxhash.xxh3_64_intdigest(memoryview(data)))

    def put_shared(self, data, key):
        self.bytes += memoryview(data).nbytes
        return StateFile(path=key, size=memoryview(data).nbytes, checksum=0, shared_key=key)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_checkpoint_writes_little_more_than_what_changed(tmp_path, queued_background, backend):
    count, changed, rounds = 60_000, 600, 60
    chance = np.random.default_rng(1)
    rows, background = KeyedRows(SCHEMA, ["k"], "t"), queued_background()
    files = RunFiles("x", groups=8, own_groups=(0, 7))
    limits = RunLimits(loop_rows=4_096, section_rows=4_096, block_rows=1_024)
    rows.keep_at(make_place(StateSettings(backend=backend, local_directory=str(tmp_path)), file_bytes=1_024), limits)
    rows.merge_in(background, pytest.fail)

    def put(numbers):
        given_rows = table_of([(f"key {number}", int(number), int(number)) for number in numbers])
        found = rows.find(given_rows)
        rows.remove(found, np.isin(found.rows.column("v").to_numpy(), numbers))
        rows.append(given_rows)
        while background._queue:
            background.run()
            background.collect()

    def taken(number):
        store = Files()
        saved, rest = rows.freeze().split(files, rows.section_rows)
        write = files.snapshot(CheckpointId(number), saved, CheckpointOptions())
        sections = [part.to_batches()[0].serialize() for part in rest.parts if part.num_rows]
        write(store, sections)
        files.completed(CheckpointId(number))
        return store.bytes

    for first in range(0, count, 6_000):
        put(np.arange(first, first + 6_000))
    full = taken(1)
    written = []
    for number in range(2, rounds + 2):
        put(chance.choice(count, changed, replace=False))
        written.append(taken(number))
    assert rows.rows == count
    assert sum(written) / rounds < 0.06 * full
    rows.close()


def test_rows_of_other_keys_with_the_same_hash_stay():
    """What `find` gives may have rows of other keys: the caller says which rows are gone."""
    rows = KeyedRows(SCHEMA, ["k"], "t")
    rows.append(table_of([("Aa", 1, 1), ("BB", 2, 2)]))
    found = rows.find(table_of([("Aa", 0, 0)]))
    assert told(found.rows) == Counter({("Aa", 1, 1): 1, ("BB", 2, 2): 1})
    rows.remove(found, np.array([key == "Aa" for key in found.rows.column("k").to_pylist()]))
    assert all_of(rows.freeze()) == Counter({("BB", 2, 2): 1})
