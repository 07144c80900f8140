"""When runs are merged, and when rows are grouped: not in vain where keys differ, and often enough where keys come
again."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import WINDOW_START, partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators.run_merging import Merge
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.operators.window_table import WindowTable
from penstock.state.run_places import MemoryPlace

RECORDS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="top", kind="max", column="v"),
)
WINDOW = TumblingWindow(size_us=10)
LIMITS = RunLimits(run_rows=512, block_rows=64, loop_rows=1_024, once_fanout=64)


def step_of():
    result = result_schema(RECORDS, keys=("k",), time_column="ts", aggregates=AGGREGATES)
    return WindowStep(keys=("k",), window=WINDOW, aggregates=AGGREGATES, schema=result)


def partials(keys, time=5):
    schema = partial_schema(RECORDS, keys=("k",), time_column="ts", aggregates=AGGREGATES, window=WINDOW)
    keys = np.asarray(keys, np.int64)
    starts = WINDOW.panes.assign(np.full(keys.size, time))
    columns = {
        "k": pa.array(keys),
        WINDOW_START: pa.array(starts).view(schema.field(WINDOW_START).type),
        "n": pa.array(np.ones(keys.size, np.int64)),
        "top": pa.array(keys * 3),
    }
    return pa.record_batch([columns[field.name] for field in schema], schema=schema)


@pytest.fixture
def merged(monkeypatch):
    """The numbers of rows of all merges."""
    found, honest = [], Merge.__init__

    def counted(self, runs, *args, **options):
        honest(self, runs, *args, **options)
        found.append(self.rows)

    monkeypatch.setattr(Merge, "__init__", counted)
    return found


def filled(keys):
    """A table to which rows with these keys were appended, and the most rows that it had."""
    table, most = WindowTable(step_of()), 0
    table.keep_at(MemoryPlace(), LIMITS)
    for part in np.array_split(keys, len(keys) // 128):
        table.append(pa.Table.from_batches([partials(part)]))
        most = max(most, table.rows)
    return table, most


def test_runs_of_different_keys_are_merged_only_when_there_are_many_runs(merged):
    filled(np.random.default_rng(1).permutation(64 * 512 - 1))
    assert sum(merged) <= 4 * LIMITS.loop_rows
    filled(np.random.default_rng(1).permutation(80 * 512))
    assert max(merged) >= 60 * 512


def test_runs_of_the_same_keys_have_at_most_about_three_times_as_many_rows_as_there_are_keys(merged):
    chance = np.random.default_rng(1)
    _, most = filled(np.concatenate([chance.permutation(4_096) for _ in range(20)]))
    assert most <= 3.5 * 4_096
    assert sum(merged) <= 40 * 4_096


@pytest.mark.parametrize("repeated", [0, 20])
def test_a_key_that_comes_again_in_a_run_of_different_keys_has_one_result(rig, repeated):
    each = rig(step_of(), limits=LIMITS)
    for time in (5, 15):
        keys = np.arange(512 - repeated)
        each.operator.process(partials(np.concatenate([keys, keys[:repeated]]), time))
        each.operator.watermark(time - 6)
    work = each.operator.watermark(MAX_WATERMARK)
    assert work is None or not work.go_on()
    found = Counter(row["n"] for row in each.output.rows if row["window_start"].microsecond == 10)
    assert found == Counter({1: 512 - 2 * repeated, 2: repeated} if repeated else {1: 512})


def test_records_are_not_grouped_before_the_exchange_while_their_keys_differ(rig):
    schema = partial_schema(RECORDS, keys=("k",), time_column="ts", aggregates=AGGREGATES, window=WINDOW)
    each = rig(CombineStep(keys=("k",), time_column="ts", window=WINDOW, aggregates=AGGREGATES, schema=schema))
    different, alike = np.arange(5_000) * 7, np.arange(5_000) % 10
    expected = Counter()
    for number, keys in enumerate([different, alike, *[alike] * 15]):
        times = pa.array(np.where(keys % 2, 5, 15 if number else 5)).view(RECORDS.field("ts").type)
        values = pa.array(keys + number)
        before = len(each.output.rows)
        each.operator.process(pa.record_batch([pa.array(keys), values, times], schema=RECORDS))
        each.operator.before_barrier()
        made = each.output.rows[before:]
        expected.update(keys.tolist())
        # The batch behind different keys is not grouped. Some batches later it is tried again.
        assert len(made) == (5_000 if number < 16 else 10)
        assert max(row["top"] for row in made) == int(keys.max()) + number
    found = Counter()
    for row in each.output.rows:
        found[row["k"]] += row["n"]
    assert found == expected
