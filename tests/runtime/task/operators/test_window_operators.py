from __future__ import annotations

import copy
import math
from collections import Counter
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from key_group_owners import owner_of

from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import CorruptFile, UsageError
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.window_table import decode
from penstock.runtime.task.partitioning import key_groups, partition

GROUPS = 128
SIZE = 10
OFFSET = 3
UTC_TIME = pa.timestamp("us", "UTC")

AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="known", kind="count", column="v"),
    Aggregate(name="total", kind="sum", column="v"),
    Aggregate(name="low", kind="min", column="v"),
    Aggregate(name="high", kind="max", column="v"),
    Aggregate(name="average", kind="mean", column="v"),
)


def steps(schema, *, keys=("k",), aggregates=AGGREGATES, size=SIZE, offset=OFFSET):
    shape = {"keys": keys, "aggregates": aggregates}
    window = TumblingWindow(size_us=size, offset_us=offset)
    partial = partial_schema(schema, time_column="ts", **shape)
    result = result_schema(schema, time_column="ts", **shape)
    return (
        CombineStep(time_column="ts", window=window, schema=partial, **shape),
        WindowStep(window=window, schema=result, **shape),
    )


def records(rows, *, key=None, value=None, time=UTC_TIME):
    """Records from (key, value, time in microseconds)."""
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return pa.record_batch(
        {
            "k": pa.array(columns[0], key or pa.int64()),
            "v": pa.array(columns[1], value or pa.int64()),
            "ts": pa.array(columns[2], pa.int64()).cast(time),
        }
    )


def hand_on(front, batch):
    """Have partial aggregates made of a batch, and all that are held back handed on."""
    front.operator.process(batch)
    front.operator.before_barrier()


def micros(moment):
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


# --- partial aggregates that are held back ---------------------------------------------------------------------------


def held_back(rig, *batches):
    combine, _ = steps(records([]).schema, offset=0)
    front = rig(combine)
    for batch in batches:
        front.operator.process(batch)
    return front


@pytest.mark.parametrize("how", ["before_barrier", "finish"])
def test_partials_between_two_watermarks_are_merged_and_handed_on_before_a_barrier_and_at_the_end(rig, how):
    front = held_back(rig, records([(1, 5, 1), (2, 1, 2)]), records([(1, 7, 3)]), records([(1, 1, 14)]))
    assert front.output.items == []
    getattr(front.operator, how)()
    (partials,) = front.output.items
    found = {(row["k"], micros(row["window_start"])): (row["n"], row["total"]) for row in partials.to_pylist()}
    assert found == {(1, 0): (2, 12), (2, 0): (1, 1), (1, 10): (1, 1)}
    getattr(front.operator, how)()
    assert len(front.output.items) == 1


def test_what_is_held_back_comes_before_the_next_watermark(rig):
    front = held_back(rig, records([(1, 5, 1)]))
    front.operator.watermark(7, idle=True)
    assert [row["n"] for row in front.output.items[0].to_pylist()] == [1]
    assert front.output.watermarks == [(7, True)]


def test_partials_that_are_many_are_not_held_back(rig):
    many = records([(number, 1, 1) for number in range(3_000)])
    front = held_back(rig, many, many)
    assert [part.num_rows for part in front.output.items] == [3_000]


# --- a job of several subtasks, and what it should do, record by record ----------------------------------------------


class Windows:
    """Combine and window operators at some parallelism, without a task around them."""

    def __init__(self, rig, schema, parallelism, files, restored=None):
        self._rig, self._schema, self._files, self.parallelism = rig, schema, files, parallelism
        combine, window = steps(schema)
        self._combine = rig(combine)
        self.rigs = [
            rig(window, subtask=i, parallelism=parallelism, files=files, restored=restored) for i in range(parallelism)
        ]

    def records(self, batch):
        self._combine.output.clear()
        hand_on(self._combine, batch)
        for partials in self._combine.output.items:
            parts = partition(partials, ["k"], parallelism=self.parallelism, groups=GROUPS)
            for part, subtask in zip(parts, self.rigs, strict=True):
                if part is not None:
                    subtask.operator.process(part)

    def watermark(self, subtask, time_us):
        self.rigs[subtask].operator.watermark(time_us)

    def freeze(self):
        return [subtask.freeze() for subtask in self.rigs]

    def restore(self, frozen, parallelism):
        states = [work() for work in frozen]
        return Windows(self._rig, self._schema, parallelism, self._files, restored=states)

    def take_results(self):
        """What came out since the last call, by subtask, checked to be in order of windows."""
        found = []
        for subtask in self.rigs:
            rows = subtask.output.rows
            subtask.output.clear()
            assert [r["window_start"] for r in rows] == sorted(r["window_start"] for r in rows)
            found += rows
        return found

    @property
    def late_dropped(self):
        return sum(subtask.operator.late_dropped for subtask in self.rigs)


class Model:
    """The same by the definition: values per (window, key), and how far each key group has fired."""

    def __init__(self, group_of):
        self._group_of = group_of
        self.held = {}
        self.fired = [None] * GROUPS
        self.late = 0

    def records(self, rows):
        late = set()
        for key, value, time in rows:
            if time is None:
                continue
            start = (time - OFFSET) // SIZE * SIZE + OFFSET
            fired = self.fired[self._group_of(key)]
            if fired is not None and start + SIZE <= fired + 1:
                late.add((start, key))
            else:
                self.held.setdefault((start, key), []).append(value)
        self.late += len(late)

    def watermark(self, subtask, parallelism, time_us):
        """Returns the results of the windows that are due."""
        own = {g for g in range(GROUPS) if owner_of(g, parallelism=parallelism, groups=GROUPS) == subtask}
        due = [w for w in self.held if w[0] + SIZE <= time_us + 1 and self._group_of(w[1]) in own]
        for group in own:
            self.fired[group] = time_us if self.fired[group] is None else max(self.fired[group], time_us)
        return [self._result(*window, self.held.pop(window)) for window in due]

    @staticmethod
    def _result(start, key, values):
        known = [v for v in values if v is not None]
        return (
            key,
            start,
            start + SIZE,
            len(values),
            len(known),
            sum(known) if known else None,
            min(known, default=None),
            max(known, default=None),
            sum(known) / len(known) if known else None,
        )


def flat(row):
    return (row["k"], micros(row["window_start"]), micros(row["window_end"]), *(row[a.name] for a in AGGREGATES))


KEYS = {
    "dense integers": (pa.int64(), st.integers(0, 6)),
    "sparse integers": (pa.int64(), st.none() | st.sampled_from([-(2**63), -5, 0, 2**40, 2**63 - 1])),
    "strings": (pa.string(), st.none() | st.sampled_from(["", "a", "b", "ünïcode", "long " * 10])),
    "floats": (pa.float64(), st.sampled_from([0.0, 1.5, -2.25, 1e300])),
}
VALUES = {
    "integers": (pa.int64(), st.integers(-1000, 1000)),
    "integers with nulls": (pa.int64(), st.none() | st.integers(-1000, 1000)),
    "small unsigned": (pa.uint32(), st.integers(0, 2**32 - 1)),
    # Halves add up exactly, in any order.
    "floats with nulls": (pa.float64(), st.none() | st.integers(-100, 100).map(lambda n: n / 2)),
}
# Few windows, and watermarks around their ends, so that histories meet the boundaries.
TIMES = st.sampled_from([None, -8, -7, 2, 3, 12, 13, 17, 22, 23, 32])
WATERMARKS = st.sampled_from([-50, 1, 2, 3, 11, 12, 13, 21, 22, 23, 32, 40])


@st.composite
def histories(draw):
    """A key type, a value type, and a list of what happens."""
    key_type, keys = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    value_type, values = VALUES[draw(st.sampled_from(sorted(VALUES)))]
    rows = st.lists(st.tuples(keys, values, TIMES), min_size=1, max_size=25)
    happening = st.one_of(
        st.tuples(st.just("records"), rows),
        st.tuples(st.just("records"), rows),
        st.tuples(st.just("watermark"), WATERMARKS),
        st.tuples(st.just("watermark of one"), st.integers(0, 7), WATERMARKS),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("restore"), st.integers(1, 5)),
    )
    return key_type, value_type, draw(st.integers(1, 4)), draw(st.lists(happening, max_size=25))


@settings(deadline=None)
@given(histories())
def test_results_are_exact_whatever_is_late_restored_or_rescaled(rig, memory_files, history):
    """Steps of a history run against operators and model alike. `freeze` takes the synchronous part of a snapshot; what
    follows must not leak into it; `restore` writes it (a fresh one if there is none) and goes on from there."""
    key_type, value_type, parallelism, happenings = history

    def group_of(key):
        return int(key_groups(pa.record_batch({"k": pa.array([key], key_type)}), ["k"], GROUPS)[0])

    schema = records([], key=key_type, value=value_type).schema
    job, model = Windows(rig, schema, parallelism, memory_files()), Model(group_of)
    frozen = None
    for happening in [*happenings, ("watermark", MAX_WATERMARK)]:
        expected = []
        match happening:
            case ("records", rows):
                job.records(records(rows, key=key_type, value=value_type))
                model.records(rows)
            case ("watermark", time_us):
                for i in range(job.parallelism):
                    job.watermark(i, time_us)
                    expected += model.watermark(i, job.parallelism, time_us)
            case ("watermark of one", which, time_us):
                job.watermark(which % job.parallelism, time_us)
                expected += model.watermark(which % job.parallelism, job.parallelism, time_us)
            case ("freeze",):
                frozen = (job.freeze(), copy.deepcopy((model.held, model.fired)))
            case ("restore", new_parallelism):
                assert job.late_dropped == model.late
                works, (held, fired) = frozen or (job.freeze(), (model.held, model.fired))
                job = job.restore(works, new_parallelism)
                model = Model(group_of)
                model.held, model.fired = copy.deepcopy((held, fired))
                frozen = None
        assert Counter(map(flat, job.take_results())) == Counter(expected)
    assert job.late_dropped == model.late


# --- single rules ----------------------------------------------------------------------------------------------------


def run_window(rig, batches, *, watermark=MAX_WATERMARK, aggregates=AGGREGATES, size=SIZE, offset=0):
    combine, window = steps(batches[0].schema, aggregates=aggregates, size=size, offset=offset)
    front, back = rig(combine), rig(window)
    for batch in batches:
        hand_on(front, batch)
    for partials in front.output.items:
        back.operator.process(partials)
    back.operator.watermark(watermark)
    return front, back


def test_a_window_fires_when_the_watermark_reaches_its_last_microsecond(rig):
    _, window = steps(records([]).schema, offset=0)
    combine, _ = steps(records([]).schema, offset=0)
    front, back = rig(combine), rig(window)
    hand_on(front, records([(1, 5, 0), (1, 6, 9), (1, 7, 10)]))
    back.operator.process(front.output.items[0])
    back.operator.watermark(8)
    assert back.output.items == [(8, False)]
    back.operator.watermark(9)
    assert [(r["window_start"], r["total"]) for r in back.output.rows] == [(datetime.fromtimestamp(0, UTC), 11)]
    # The results come before the watermark that says they are complete.
    assert back.output.items[-1] == (9, False)


def test_a_partial_is_late_once_the_last_microsecond_of_its_window_is_reached(rig):
    combine, window = steps(records([]).schema, offset=0)
    for watermark, late in ((8, 0), (9, 1), (10, 1)):
        front, back = rig(combine), rig(window)
        back.operator.watermark(watermark)
        hand_on(front, records([(1, 1, 0), (1, 1, 10)]))
        back.operator.process(front.output.items[0])
        assert back.operator.late_dropped == late


def test_key_groups_that_had_come_to_different_times_stay_apart_after_a_restore(rig, memory_files):
    """1. Of two subtasks one has come to 29, the other to 9 only. 2. One subtask takes over from both. 3. A record for
    the window from 10 to 20 is late for the keys of the first, and only for them. 4. So it is after yet another
    restore. 5. When event time has come to 19 for all, all are late."""
    schema = records([]).schema
    combine, window = steps(schema, offset=0)
    files = memory_files()
    before = [rig(window, subtask=i, parallelism=2, files=files) for i in range(2)]
    before[0].operator.watermark(29)
    before[1].operator.watermark(9)
    merged = rig(window, files=files, restored=[subtask.snapshot() for subtask in before])
    again = rig(window, files=files, restored=[merged.snapshot()])
    front = rig(combine)
    hand_on(front, records([(k, 1, 15) for k in range(50)]))
    (partials,) = front.output.items
    groups = key_groups(partials, ["k"], GROUPS)
    first = sum(owner_of(int(g), parallelism=2, groups=GROUPS) == 0 for g in groups)
    assert 0 < first < 50
    for subtask in (merged, again):
        subtask.operator.process(partials)
        assert subtask.operator.late_dropped == first
        subtask.operator.watermark(19)
        assert len(subtask.output.rows) == 50 - first
        subtask.operator.process(partials)
        assert subtask.operator.late_dropped == first + 50


def test_an_idle_watermark_is_handed_on_as_idle(rig):
    _, back = run_window(rig, [records([(1, 1, 1)])], watermark=4)
    back.operator.watermark(5, idle=True)
    assert back.output.items[-1] == (5, True)


def test_results_are_ordered_by_window_then_key(rig):
    rows = [(k, 1, t) for t in (25, 5, 15) for k in (3, None, 1, 2)]
    for key_type in (pa.int64(), pa.string()):
        typed = [(k if k is None or key_type == pa.int64() else str(k), v, t) for k, v, t in rows]
        _, back = run_window(rig, [records(typed, key=key_type)])
        found = [(r["window_start"].microsecond, r["k"] and int(r["k"])) for r in back.output.rows]
        assert found == [(start, k) for start in (0, 10, 20) for k in (1, 2, 3, None)]


def test_results_have_exactly_the_schema_of_the_step(rig):
    for time in (UTC_TIME, pa.timestamp("us")):
        batch = records([(1, 1, 5)], value=pa.int32(), time=time)
        _, back = run_window(rig, [batch])
        expected = result_schema(batch.schema, keys=["k"], time_column="ts", aggregates=AGGREGATES)
        assert back.output.items[0].schema == expected
        assert expected.field("window_start").type == expected.field("window_end").type == time


def test_partials_have_exactly_their_schema_and_one_row_per_key_and_window(rig):
    batch = records([(1, 1, 5), (1, 2, 6), (1, 3, 15), (2, None, 5)], value=pa.uint16())
    combine, _ = steps(batch.schema, offset=0)
    front = rig(combine)
    hand_on(front, batch)
    (partials,) = front.output.items
    assert partials.schema == partial_schema(batch.schema, keys=["k"], time_column="ts", aggregates=AGGREGATES)
    assert sorted((r["k"], r["n"], r["known"], r["total"]) for r in partials.to_pylist()) == [
        (1, 1, 1, 3),
        (1, 2, 2, 3),
        (2, 1, 0, None),
    ]


def test_records_without_a_time_are_dropped_and_counted(rig):
    front, back = run_window(rig, [records([(1, 1, None), (1, 2, 5), (2, 2, None)])])
    assert front.operator.timeless_dropped == 2
    assert [r["n"] for r in back.output.rows] == [1]


def test_several_keys_make_one_group_each(rig):
    batch = pa.record_batch(
        {
            "a": pa.array([1, 1, 2, 2], pa.int64()),
            "b": pa.array(["x", "x", "x", None]),
            "ts": pa.array([1, 2, 3, 4]).cast(UTC_TIME),
        }
    )
    shape = {"keys": ("a", "b"), "aggregates": AGGREGATES[:1]}
    window = TumblingWindow(size_us=SIZE)
    front = rig(
        CombineStep(
            time_column="ts", window=window, schema=partial_schema(batch.schema, time_column="ts", **shape), **shape
        )
    )
    back = rig(WindowStep(window=window, schema=result_schema(batch.schema, time_column="ts", **shape), **shape))
    hand_on(front, batch)
    back.operator.process(front.output.items[0])
    back.operator.watermark(MAX_WATERMARK)
    assert [(r["a"], r["b"], r["n"]) for r in back.output.rows] == [(1, "x", 2), (2, "x", 1), (2, None, 1)]


def test_equal_floats_are_one_key(rig):
    nan = float("nan")
    batches = [
        records([(0.0, 1, 1), (nan, 1, 1)], key=pa.float64()),
        records([(-0.0, 1, 1), (-nan, 1, 1)], key=pa.float64()),
    ]
    _, back = run_window(rig, batches)
    zero, other = back.output.rows
    assert (zero["k"], math.copysign(1, zero["k"]), zero["n"]) == (0.0, 1, 2)
    assert math.isnan(other["k"])
    assert other["n"] == 2


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("apart", [False, True])
def test_nan_is_greater_than_every_number_and_there_is_one_zero(rig, kind, apart):
    nan = float("nan")
    rows = [(1, nan, 1), (1, 2.0, 1), (1, nan, 1), (2, -0.0, 1), (2, 0.0, 1), (3, nan, 1), (4, None, 1), (4, 7.0, 1)]
    rows += [(5, float("inf"), 1), (5, nan, 1)]
    batches = [records([row], value=kind) for row in rows] if apart else [records(rows, value=kind)]
    _, back = run_window(rig, batches, aggregates=AGGREGATES[2:])
    first, second, third, fourth, fifth = back.output.rows
    assert first["low"] == 2.0
    assert all(math.isnan(first[name]) for name in ("high", "total", "average"))
    assert math.copysign(1, second["low"]) == math.copysign(1, second["high"]) == 1
    assert math.isnan(third["low"])
    assert math.isnan(third["high"])
    assert (fourth["low"], fourth["high"], fourth["total"]) == (7.0, 7.0, 7.0)
    assert fifth["low"] == float("inf")
    assert math.isnan(fifth["high"])


@pytest.mark.parametrize("offset", [0, 3, -7])
def test_records_at_the_limits_of_time_are_counted_where_their_window_does_not_fit(rig, offset):
    limits = (-(2**63), 2**63 - 1)
    times = [limits[0] + n for n in range(30)] + [limits[1] - n for n in range(30)] + [0]
    front, back = run_window(rig, [records([(1, 1, time) for time in times])], aggregates=AGGREGATES[:1], offset=offset)
    fits = [
        time
        for time in times
        if (time - offset) // SIZE * SIZE + offset >= limits[0]
        and (time - offset) // SIZE * SIZE + offset + SIZE <= limits[1]
    ]
    found = back.output.items[0]
    starts, ends = (found.column(name).cast(pa.int64()).to_pylist() for name in ("window_start", "window_end"))
    assert [end - start for start, end in zip(starts, ends, strict=True)] == [SIZE] * len(starts)
    assert sum(found.column("n").to_pylist()) == len(fits)
    assert front.operator.metrics()["beyond_time_dropped"] == len(times) - len(fits)


def test_nothing_is_late_because_event_time_is_near_its_beginning(rig, memory_files):
    """Key groups that had come to different times, of which one is less than a window behind the first microsecond."""
    _, window = steps(records([]).schema, offset=0)
    combine, _ = steps(records([]).schema, offset=0)
    files, states = memory_files(), []
    for subtask, watermark in ((0, -(2**63) + 3), (1, 5)):
        back = rig(window, subtask=subtask, parallelism=2, files=files)
        back.operator.watermark(watermark)
        states.append(back.snapshot())
    again = rig(window, files=files, restored=states)
    front = rig(combine)
    front.operator.process(records([(key, 1, 100) for key in range(50)]))
    front.operator.before_barrier()
    for partials in front.output.items:
        again.operator.process(partials)
    assert again.operator.late_dropped == 0


def test_extremes_keep_the_type_of_their_column(rig):
    kinds = {
        pa.string(): ["b", None, "a"],
        pa.bool_(): [True, None, False],
        UTC_TIME: [2, None, 1],
        pa.date32(): [2, None, 1],
    }
    for kind, values in kinds.items():
        column = pa.array(values, pa.int32() if kind == pa.date32() else None).cast(kind)
        batch = pa.record_batch({"k": pa.array([1] * 3), "v": column, "ts": pa.array([1, 2, 3]).cast(UTC_TIME)})
        _, back = run_window(rig, [batch.slice(0, 2), batch.slice(2)], aggregates=AGGREGATES[3:5])
        (found,) = back.output.items[0].select(["low", "high"]).to_pylist()
        assert found == {"low": column[2].as_py(), "high": column[0].as_py()}


def test_a_record_may_have_columns_with_the_names_of_the_result(rig):
    """A window over the results of another one: its time column is called `window_start`."""
    batch = pa.record_batch(
        {"k": pa.array([1, 1]), "window_start": pa.array([5, 7]).cast(UTC_TIME), "window_end": pa.array([3, 4])}
    )
    aggregates = (
        Aggregate(name="first", kind="min", column="window_start"),
        Aggregate(name="total", kind="sum", column="window_end"),
    )
    shape = {"keys": ("k",), "aggregates": aggregates}
    window = TumblingWindow(size_us=SIZE)
    schema = partial_schema(batch.schema, time_column="window_start", **shape)
    front = rig(CombineStep(time_column="window_start", window=window, schema=schema, **shape))
    hand_on(front, batch)
    (row,) = front.output.rows
    assert (micros(row["window_start"]), micros(row["first"]), row["total"]) == (0, 5, 7)


# --- sums that do not fit --------------------------------------------------------------------------------------------

BIG = 2**63 - 1
SUM = AGGREGATES[2:3]


def test_a_sum_that_fits_is_exact_up_to_the_last_bit(rig):
    rows = [(1, BIG, 1), (1, -BIG, 1), (1, BIG, 1), (2, -(2**63), 1), (3, BIG - 5, 1), (3, 5, 1)]
    _, back = run_window(rig, [records(rows)], aggregates=SUM)
    assert [r["total"] for r in back.output.rows] == [BIG, -(2**63), BIG]


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("values", [(BIG, 1), (-(2**63), -1), (2**62, 2**62)])
def test_a_sum_that_does_not_fit_fails_within_a_batch_and_across_batches(rig, kind, values):
    aggregates = (Aggregate(name="total", kind=kind, column="v"),)
    rows = [(1, value, 1) for value in values]
    with pytest.raises(UsageError, match="sum 'total' of a window does not fit into 64 bits"):
        run_window(rig, [records(rows)], aggregates=aggregates)
    with pytest.raises(UsageError, match="sum 'total' of a window does not fit into 64 bits"):
        run_window(rig, [records([row]) for row in rows], aggregates=aggregates)


# --- state -----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_ordered_by_key_group_and_any_range_can_be_cut_from_it(rig):
    combine, window = steps(records([]).schema)
    front, back = rig(combine), rig(window)
    hand_on(front, records([(k, k, 5) for k in range(100)]))
    back.operator.process(front.output.items[0])
    (file,) = back.snapshot().keyed
    table = pa.ipc.open_stream(back.files.get(file)).read_all()
    groups = table.column(table.num_columns - 1).to_pylist()
    assert table.schema.names[-1] == "__key_group"
    assert groups == sorted(groups)
    assert groups == key_groups(table.combine_chunks().to_batches()[0], ["k"], GROUPS).tolist()
    cut = [decode(back.files.get(file), (first, first + 15))[0] for first in range(0, GROUPS, 16)]
    assert sorted(k for part in cut for k in part.column("k").to_pylist()) == list(range(100))


def test_an_empty_window_still_remembers_how_far_it_fired(rig):
    combine, window = steps(records([]).schema, offset=0)
    back = rig(window)
    back.operator.watermark(100)
    again = rig(window, files=back.files, restored=[back.snapshot()])
    front = rig(combine)
    hand_on(front, records([(1, 1, 50), (1, 1, 105)]))
    for partials in front.output.items:
        again.operator.process(partials)
    again.operator.watermark(99)
    assert again.output.rows == []
    assert again.operator.late_dropped == 1
    again.operator.watermark(109)
    assert [r["n"] for r in again.output.rows] == [1]


def test_after_a_drain_records_that_follow_are_not_late_for_it(rig):
    """Event time was driven to its end, and a job that is started from that savepoint goes on with its data. Windows
    that had closed before are closed."""
    combine, window = steps(records([]).schema, offset=0)
    back = rig(window)
    back.operator.watermark(29)
    back.operator.watermark(MAX_WATERMARK)
    again = rig(window, files=back.files, restored=[back.snapshot()])
    front = rig(combine)
    hand_on(front, records([(1, 1, 15), (1, 1, 35)]))
    for partials in front.output.items:
        again.operator.process(partials)
    again.operator.watermark(39)
    assert again.operator.late_dropped == 1
    assert [r["n"] for r in again.output.rows] == [1]


def test_many_small_batches_are_merged_into_few_tables(rig):
    """However many batches come between two snapshots, freezing takes references to a bounded number of tables."""
    combine, window = steps(records([]).schema)
    front, back = rig(combine), rig(window)
    hand_on(front, records([(k, k, 5) for k in range(7)]))
    (partials,) = front.output.items
    table = back.operator._table
    for _ in range(1_000):
        back.operator.process(partials)
        assert len(table.freeze()) <= 70
    assert table.rows < 1_000
    back.operator.watermark(MAX_WATERMARK)
    assert [r["n"] for r in back.output.rows] == [1_000] * 7
    assert table.rows == 0


def test_state_of_another_window_is_refused(rig):
    schema = records([]).schema
    _, window = steps(schema)
    state = (before := rig(window)).snapshot()
    others = [
        steps(schema, size=SIZE * 2)[1],
        steps(schema, offset=0)[1],
        steps(schema, aggregates=AGGREGATES[:3])[1],
        steps(schema, aggregates=(*AGGREGATES[:3], Aggregate(name="low", kind="max", column="v"), *AGGREGATES[4:]))[1],
        steps(records([], key=pa.string()).schema)[1],
    ]
    for other in others:
        with pytest.raises(UsageError, match="the state of 'the step' is of windows of 10 us"):
            rig(other, files=before.files, restored=[state])


def test_a_snapshot_that_is_cut_foreign_or_newer_is_refused(rig, memory_files):
    _, window = steps(records([]).schema)
    back = rig(window)
    data = back.files.get(back.snapshot().keyed[0])
    foreign = pa.BufferOutputStream()
    with pa.ipc.new_stream(foreign, pa.schema([("x", pa.int32())])):
        pass
    newer = data.replace(b'"format":1', b'"format":2')
    assert newer != data
    for bad in (data[:40], b"not arrow at all", foreign.getvalue().to_pybytes(), newer):
        files = memory_files()
        state = OperatorState(operator="operator-id", keyed=(files.put(bad),), key_groups=(0, GROUPS - 1))
        with pytest.raises(CorruptFile):
            rig(window, files=files, restored=[state])


def test_a_file_of_a_window_that_is_named_twice_is_refused(rig):
    """A small savepoint could otherwise stand for any number of rows."""
    _, window = steps(records([]).schema)
    back = rig(window)
    state = back.snapshot()
    with pytest.raises(CorruptFile, match=r"the state of the window names the file .* twice"):
        rig(window, files=back.files, restored=[state, state])


def test_a_state_handle_can_be_sent(rig):
    _, window = steps(records([]).schema)
    state = rig(window).snapshot()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=OperatorState) == state
