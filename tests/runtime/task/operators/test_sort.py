"""Records in the order of their event time, driven as a task does."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.steps import LATE, LateRecords, SortStep
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.ids import CheckpointId
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings

TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("ts", TIME), pa.field("x", pa.float64())])
SHORT = RunLimits(
    run_rows=6, block_rows=3, part_blocks=1, loop_rows=12, section_rows=2, file_bytes=1, first_fanout=2, fanout=2
)


@pytest.fixture(params=["memory", "rocksdb"])
def settings(request, tmp_path):
    return StateSettings(backend=request.param, local_directory=str(tmp_path))


def step_of(keys=("k",), order=(), offset=0, schema=SCHEMA):
    late = LateRecords(time_column="ts", schema=schema, time_offset_us=offset)
    return SortStep(keys=keys, late=late, order=order, schema=schema)


def batch(*rows):
    keys, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(keys, pa.string()), pa.array(times, TIME), pa.array(values, pa.float64())]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def shown(recorder):
    found = []
    for item in recorder.items:
        if not isinstance(item, tuple):
            columns = (
                item.column(0).to_pylist(),
                item.column(1).cast(pa.int64()).to_pylist(),
                item.column(2).to_pylist(),
            )
            found += zip(*columns, strict=True)
    return found


def work_of(found, work):
    while work is not None and work.go_on():
        """Until nothing is left."""


def run_to(found, time_us):
    work_of(found, found.operator.watermark(time_us))


def test_records_leave_when_the_watermark_has_come_to_their_time(rig):
    found = rig(step_of())
    found.operator.process(batch(("a", 7, 1.0), ("b", 3, 2.0), ("a", 5, 3.0)))
    found.operator.process(batch(("a", 4, 4.0), ("b", 9, 5.0)))
    assert shown(found.output) == []
    run_to(found, 6)
    assert shown(found.output) == [("b", 3, 2.0), ("a", 4, 4.0), ("a", 5, 3.0)]
    assert found.output.items[-1] == (6, False)
    assert found.operator.metrics()["rows_kept"] == 2
    run_to(found, MAX_WATERMARK)
    assert shown(found.output)[3:] == [("a", 7, 1.0), ("b", 9, 5.0)]
    assert found.operator.metrics()["rows_kept"] == 0


def test_records_of_the_same_time_are_ordered_by_further_columns_and_then_by_all_others(rig):
    rows = [("b", 1, 2.0), ("a", 1, math.nan), ("a", 1, None), ("a", 1, 2.0), ("a", 1, -1.0), ("c", 0, 9.0)]
    found = rig(step_of(keys=(), order=(("x", True),)))
    for row in reversed(rows):
        found.operator.process(batch(row))
    run_to(found, 1)
    # As Spark orders them: NaN is greater than every number, and null comes last in descending order.
    wanted = [("c", 0, 9.0), ("a", 1, "nan"), ("a", 1, 2.0), ("b", 1, 2.0), ("a", 1, -1.0), ("a", 1, None)]
    assert [(k, t, "nan" if x is not None and x != x else x) for k, t, x in shown(found.output)] == wanted


def test_late_records_and_records_without_a_time_do_not_break_the_order(rig):
    found = rig(step_of())
    run_to(found, 10)
    found.operator.process(batch(("a", 10, 1.0), ("a", 11, 2.0), ("a", None, 3.0)))
    run_to(found, 20)
    assert shown(found.output) == [("a", 11, 2.0)]
    metrics = found.operator.metrics()
    assert (metrics["late_dropped"], metrics["timeless_dropped"]) == (1, 1)


def test_late_records_that_are_read_are_not_dropped(rig):
    found = rig(step_of(), sides=(LATE,))
    run_to(found, 10)
    found.operator.process(batch(("a", 10, 1.0), ("a", 11, 2.0)))
    assert shown(found.sides[LATE]) == [("a", 10, 1.0)]
    assert found.operator.metrics()["late_dropped"] == 0


def test_the_event_time_may_be_beside_the_time_in_the_column(rig):
    """The event time of a window is the last microsecond before its end."""
    found = rig(step_of(offset=-1))
    found.operator.process(batch(("a", 10, 1.0), ("a", 11, 2.0)))
    run_to(found, 9)
    assert shown(found.output) == [("a", 10, 1.0)]
    run_to(found, -(2**63) + 1)
    assert shown(found.output) == [("a", 10, 1.0)]


def own_rows(rows, subtask, parallelism):
    first, last = range_of(subtask, parallelism=parallelism, groups=128)
    groups = key_groups(batch(*rows), ("k",), 128)
    return [row for row, group in zip(rows, groups, strict=True) if first <= group <= last]


def random_rows(seed, count, times):
    random = np.random.default_rng(seed)
    keys, at = random.integers(0, 9, count), random.integers(0, times, count)
    return [(f"k{k}", int(t), float(n)) for n, (k, t) in enumerate(zip(keys, at, strict=True))]


@given(st.integers(0, 10_000), st.integers(1, 30), st.booleans())
def test_all_records_leave_once_and_in_order_however_they_come(rig, seed, size, keyed):
    rows = random_rows(seed, 120, 40)
    found = rig(step_of(keys=("k",) if keyed else ()), limits=SHORT)
    found.operator.slice.run_by(lambda: 0.0, 4)
    given, shown_until = [], -1
    for start in range(0, len(rows), size):
        part = [row for row in rows[start : start + size] if row[1] > shown_until]
        given += part
        work_of(found, found.operator.process(batch(*part)))
        if start % 3 == 0:
            shown_until += seed % 5
            run_to(found, shown_until)
    run_to(found, MAX_WATERMARK)
    found_rows = shown(found.output)
    assert sorted(found_rows) == sorted(given)
    assert [row[1] for row in found_rows] == sorted(row[1] for row in given)
    if not keyed:
        assert found_rows == sorted(given, key=lambda row: (row[1], row[0], row[2]))
    for key in {row[0] for row in given}:
        of_key = [row for row in found_rows if row[0] == key]
        assert of_key == sorted(of_key, key=lambda row: (row[1], row[2]))


@pytest.mark.parametrize("savepoint", [False, True])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_records_that_wait_come_back_at_any_parallelism(rig, settings, parallelism, savepoint):
    rows = random_rows(5, 200, 100)
    saved, files = [], None
    for subtask in range(2):
        found = rig(step_of(), subtask=subtask, parallelism=2, files=files, state=settings, limits=SHORT)
        files = found.files
        own = own_rows(rows, subtask, 2)
        for start in range(0, len(own), 7):
            found.operator.process(batch(*own[start : start + 7]))
        run_to(found, 29)
        saved.append(found.snapshot(savepoint=savepoint))
        found.operator.close()
    left = [row for row in rows if row[1] > 29]
    shown_rows = []
    for subtask in range(parallelism):
        again = rig(
            step_of(),
            subtask=subtask,
            parallelism=parallelism,
            restored=saved,
            files=files,
            state=settings,
            limits=SHORT,
            sides=(LATE,),
        )
        # A record before the records that have left is late, although event time begins anew.
        key = own_rows(rows, subtask, parallelism)[0][0]
        again.operator.process(batch((key, 29, -1.0), (key, 30, -1.0)))
        assert shown(again.sides[LATE]) == [(key, 29, -1.0)]
        left.append((key, 30, -1.0))
        run_to(again, MAX_WATERMARK)
        part = shown(again.output)
        assert [row[1] for row in part] == sorted(row[1] for row in part)
        shown_rows += part
        again.operator.close()
    assert sorted(shown_rows) == sorted(left)


def test_a_snapshot_between_two_slices_has_the_records_that_have_not_left(rig, settings):
    found = rig(step_of(), state=settings, limits=SHORT)
    rows = random_rows(3, 60, 20)
    found.operator.process(batch(*rows))
    found.operator.slice.run_by(lambda: 0.0, 4)
    found.operator.slice.begin(4)
    work = found.operator.watermark(MAX_WATERMARK)
    for _ in range(3):
        assert work is not None
        assert work.may_snapshot
        work.go_on()
        found.operator.slice.begin(4)
    before, saved = shown(found.output), found.snapshot()
    assert 0 < len(before) < 60
    again = rig(step_of(), restored=[saved], files=found.files, state=settings, limits=SHORT)
    run_to(again, MAX_WATERMARK)
    behind = shown(again.output)
    assert sorted(before + behind) == sorted(rows)
    assert [row[1] for row in before + behind] == sorted(row[1] for row in rows)
    found.operator.close()
    again.operator.close()


def test_a_checkpoint_writes_what_has_changed(rig, settings):
    found = rig(step_of(), state=settings, limits=RunLimits(run_rows=500, block_rows=100, section_rows=10))
    for seed in range(20):
        found.operator.process(batch(*((k, t + 1_000 * seed, x) for k, t, x in random_rows(seed, 500, 1_000))))
    first = found.snapshot(1)
    found.operator.completed(CheckpointId(1))
    before = set(found.files.files)
    found.operator.process(batch(("k1", 50_000, 0.0)))
    run_to(found, 700)
    second = found.snapshot(2)
    written = sum(len(data) for path, data in found.files.files.items() if path not in before)
    assert written < sum(file.size for file in first.keyed) / 20
    again = rig(step_of(), restored=[second], files=found.files, state=settings)
    run_to(again, MAX_WATERMARK)
    assert len(shown(again.output)) == 20 * 500 + 1 - len(shown(found.output))
    found.operator.close()
    again.operator.close()


def test_a_snapshot_is_what_was_there_when_it_was_taken(rig, settings):
    found = rig(step_of(), state=settings, limits=SHORT)
    found.operator.process(batch(*random_rows(1, 30, 10)))
    write = found.freeze()
    found.operator.process(batch(("a", 3, 0.0)))
    run_to(found, MAX_WATERMARK)
    again = rig(step_of(), restored=[write()], files=found.files, state=settings, limits=SHORT)
    run_to(again, MAX_WATERMARK)
    assert sorted(shown(again.output)) == sorted(random_rows(1, 30, 10))
    found.operator.close()
    again.operator.close()


def test_after_a_drain_no_record_is_late(rig):
    found = rig(step_of())
    run_to(found, 5)
    run_to(found, MAX_WATERMARK)
    again = rig(step_of(), restored=[found.snapshot(savepoint=True)], files=found.files)
    again.operator.process(batch(("a", 5, 1.0), ("a", 6, 2.0)))
    run_to(again, 6)
    assert shown(again.output) == [("a", 6, 2.0)]


def test_other_columns_are_refused_and_another_order_is_not(rig):
    found = rig(step_of())
    found.operator.process(batch(("a", 5, 1.0), ("a", 5, 2.0)))
    saved = found.snapshot()
    other = pa.schema([*SCHEMA, pa.field("y", pa.int64())])
    with pytest.raises(UsageError, match=r"is of records of each k sorted by ts, columns k: string"):
        rig(step_of(schema=other), restored=[saved], files=found.files)
    again = rig(step_of(order=(("x", True),)), restored=[saved], files=found.files)
    run_to(again, MAX_WATERMARK)
    assert shown(again.output) == [("a", 5, 2.0), ("a", 5, 1.0)]


def test_a_file_whose_records_have_no_times_is_refused(rig):
    found = rig(step_of())
    found.operator._table._appended.append(pa.Table.from_batches([batch(("a", None, 1.0))]))
    saved = found.snapshot()
    with pytest.raises(CorruptFile, match="are not timestamps"):
        rig(step_of(), restored=[saved], files=found.files)


def test_batches_whose_columns_may_and_may_not_be_null_are_sorted_together(rig):
    found = rig(step_of(), limits=SHORT)
    strict = pa.schema([pa.field(field.name, field.type, nullable=False) for field in SCHEMA])
    for n in range(12):
        given = batch(("a", 20 - n, 1.0))
        found.operator.process(given if n % 2 else pa.RecordBatch.from_arrays(given.columns, schema=strict))
    run_to(found, MAX_WATERMARK)
    assert [row[1] for row in shown(found.output)] == list(range(9, 21))
    assert all(item.schema == SCHEMA for item in found.output.items if not isinstance(item, tuple))
