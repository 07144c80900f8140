"""The first records of all, and the first record of each key, whatever is restored."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from penstock.api.first_rows import FirstOfKey, FirstOfSubtask, FirstRows
from penstock.api.state import ttl
from penstock.api.steps import KeyedProcessStep, ProcessStep
from penstock.core.ids import CheckpointId, Instant
from penstock.settings import StateSettings

SCHEMA = pa.schema([("k", pa.float64()), ("s", pa.string()), ("n", pa.int64())])


def rows(*keys, first=0):
    """Records with these keys, numbered from `first`."""
    numbers = range(first, first + len(keys))
    return pa.RecordBatch.from_pylist([{"k": k, "s": "", "n": n} for k, n in zip(keys, numbers, strict=True)], SCHEMA)


def numbers(made):
    return [row["n"] for row in made.output.rows]


# --- limit -----------------------------------------------------------------------------------------------------------


def first(most):
    return ProcessStep(function=FirstRows(most), schema=SCHEMA)


def test_a_batch_is_cut_where_the_limit_is_reached(rig):
    made = rig(first(4))
    for start in (0, 3, 6):
        made.operator.process(rows(1, 1, 1, first=start))
    assert numbers(made) == [0, 1, 2, 3]
    assert [item.num_rows for item in made.output.items] == [3, 1]


def test_the_count_goes_on_after_a_restore(rig):
    made = rig(first(4))
    made.operator.process(rows(1, 1, 1))
    state = made.snapshot()
    made.operator.process(rows(1, 1, first=3))
    again = rig(first(4), restored=[state])
    again.operator.process(rows(1, 1, first=3))
    again.operator.process(rows(1, first=5))
    assert numbers(again) == [3]


@pytest.mark.parametrize(("most", "more"), [(2, []), (5, [3, 4])])
def test_another_limit_counts_the_records_that_went_on_before(rig, most, more):
    made = rig(first(3))
    made.operator.process(rows(1, 1, 1))
    again = rig(first(most), restored=[made.snapshot()])
    again.operator.process(rows(1, 1, 1, first=3))
    assert numbers(again) == more


def test_each_subtask_hands_on_no_more_than_the_limit_and_has_no_state(rig):
    made = rig(ProcessStep(function=FirstOfSubtask(4), schema=SCHEMA))
    for start in (0, 3, 6):
        made.operator.process(rows(1, 1, 1, first=start))
    assert numbers(made) == [0, 1, 2, 3]
    assert made.operator.snapshot(CheckpointId(1), None) is None


def test_a_full_limit_says_so_once(rig):
    made = rig(first(4))
    told = []
    for start in (0, 3, 6):
        made.operator.process(rows(1, 1, 1, first=start))
        told.append(made.full)
    assert told == [0, 1, 1]


def test_a_limit_that_was_full_in_the_restored_checkpoint_says_so_again(rig):
    made = rig(first(3))
    made.operator.process(rows(1, 1, 1))
    assert rig(first(3), restored=[made.snapshot()]).full == 1
    assert rig(first(4), restored=[made.snapshot(2)]).full == 0


@pytest.mark.parametrize("end", ["completed", "aborted"])
def test_a_limit_says_nothing_while_a_checkpoint_may_complete_in_which_it_is_not_full(rig, end):
    """The barriers of the checkpoint overtake: the source may take its snapshot later than the limit. 1. The limit
    takes its snapshot. 2. It gets full, and would have the source end. 3. The source would take its snapshot, with its
    data at the end, and a restore would find a limit that waits for records that never come."""
    made = rig(first(3))
    made.operator.process(rows(1))
    made.snapshot(1, unaligned=True)
    made.operator.process(rows(1, 1, first=1))
    made.snapshot(2, unaligned=True)
    assert made.full == 0
    getattr(made.operator, end)(CheckpointId(1))
    assert made.full == 1


def test_a_later_checkpoint_that_completes_decides_about_the_earlier_ones(rig):
    made = rig(first(3))
    made.snapshot(1)
    made.snapshot(2)
    made.operator.process(rows(1, 1, 1))
    made.operator.aborted(CheckpointId(1))
    assert made.full == 0
    made.operator.completed(CheckpointId(3))
    assert made.full == 1


def test_a_savepoint_is_aligned_and_nothing_waits_for_it(rig):
    made = rig(first(3))
    made.snapshot(1, savepoint=True)
    made.operator.process(rows(1, 1, 1))
    assert made.full == 1


# --- distinct --------------------------------------------------------------------------------------------------------


def distinct(*keys, lives=None):
    key_schema = pa.schema([SCHEMA.field(key) for key in keys])
    return KeyedProcessStep(function=FirstOfKey(lives), keys=keys, key_schema=key_schema, schema=SCHEMA)


@pytest.fixture(params=["memory", "rocksdb"])
def state(request, tmp_path):
    return StateSettings(backend=request.param, local_directory=str(tmp_path))


def test_the_first_record_of_each_key_goes_on(rig, state):
    made = rig(distinct("k"), state=state)
    made.operator.process(rows(3, 1, 3, 2, 1))
    made.operator.process(rows(2, 4, 3, first=5))
    made.operator.process(rows(2, 4, first=8))
    assert numbers(made) == [0, 1, 3, 6]
    assert len(made.output.items) == 2


def test_a_batch_of_new_keys_is_not_copied(rig):
    made = rig(distinct("k"))
    given = rows(1, 2, 3)
    made.operator.process(given)
    assert made.output.items[0] is given


def test_keys_are_equal_as_in_spark(rig, state):
    made = rig(distinct("k", "s"), state=state)
    made.operator.process(rows(None, math.nan, 0.0, None))
    made.operator.process(rows(-0.0, -math.nan, None, first=4))
    made.operator.process(rows(1.0).slice(0, 0))
    assert numbers(made) == [0, 1, 2]


def test_seen_keys_are_state(rig, state):
    made = rig(distinct("k"), state=state)
    made.operator.process(rows(1, 2))
    saved = made.snapshot()
    again = rig(distinct("k"), state=state, restored=[saved], files=made.files)
    again.operator.process(rows(2, 3, 1, first=2))
    assert numbers(again) == [3]


def test_seen_keys_are_dealt_out_with_their_key_groups(rig, state):
    made = rig(distinct("k"), state=state)
    made.operator.process(rows(*range(100)))
    saved = made.snapshot()
    found = []
    for subtask in range(3):
        again = rig(distinct("k"), state=state, restored=[saved], files=made.files, subtask=subtask, parallelism=3)
        first_group, last_group = again.context.key_groups
        own = [key for key in range(120) if first_group <= group_of(key) <= last_group]
        again.operator.process(rows(*own))
        found += [row["k"] for row in again.output.rows]
    assert sorted(found) == list(range(100, 120))


def group_of(key):
    from penstock.runtime.task.partitioning import key_groups

    return key_groups(rows(key), ["k"], 128)[0]


def test_a_key_is_forgotten_a_time_after_its_record_went_on(rig, state):
    made = rig(distinct("k", lives=ttl("1s")), state=state)
    for now, number in ((1_000, 0), (1_600, 1), (1_999, 2), (2_000, 3), (2_500, 4), (3_000, 5)):
        made.time = Instant(now)
        made.operator.process(rows(7, first=number))
    assert numbers(made) == [0, 3, 5]
