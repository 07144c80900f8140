"""Sessions, against their definition: records of a key that are at most a gap apart, whatever the order in which they
come."""

from __future__ import annotations

import random
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.api.steps import Aggregate, CombineStep, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import SessionWindow
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UsageError
from penstock.core.ids import CheckpointId
from penstock.runtime.task.operators import session_windows
from penstock.runtime.task.operators.sorted_runs import RunLimits
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice
from penstock.state.runs import RunSnapshot

GAP = 5
GROUPS = 128
TIME = pa.timestamp("us", "UTC")
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="first", kind="min", column="v"),
    Aggregate(name="usual", kind="mean", column="v"),
)
KEYS = {
    "integers": (pa.int64(), [0, 1, 2**62, None]),
    "strings": (pa.string(), ["", "a", "ü", None]),
    "floats": (pa.float64(), [0.0, 1.5, float("inf"), None]),
}


def schema_of(kind):
    return pa.schema({"k": kind, "b": pa.bool_(), "v": pa.int64(), "ts": TIME})


def steps(kind=None, keys=("k",), gap=GAP):
    schema, window = schema_of(kind or pa.int64()), SessionWindow(gap_us=gap)
    shape = {"keys": keys, "aggregates": AGGREGATES}
    partial = partial_schema(schema, time_column="ts", window=window, **shape)
    return (
        CombineStep(time_column="ts", window=window, schema=partial, **shape),
        WindowStep(window=window, schema=result_schema(schema, time_column="ts", **shape), **shape),
    )


def records(rows, kind=None):
    """Of (key, time)."""
    keys, times = zip(*rows, strict=True)
    flags = [time % 2 == 0 for time in times]
    columns = [pa.array(keys, kind or pa.int64()), pa.array(flags), pa.array(times), pa.array(times).cast(TIME)]
    return pa.record_batch(columns, schema_of(kind or pa.int64()))


def give(front, backs, batch, keys=("k",)):
    front.output.clear()
    front.operator.process(batch)
    front.operator.before_barrier()
    for partials in front.output.items:
        for back, part in zip(backs, partition(partials, keys, parallelism=len(backs), groups=GROUPS), strict=True):
            if part is not None:
                back.operator.process(part)


def results(back, keys=("k",)):
    found = []
    for item in back.output.items:
        if not isinstance(item, tuple):
            columns = [
                item.column(name).cast(pa.int64()) if name.startswith("window") else item.column(name)
                for name in (*keys, "window_start", "window_end", "n", "first", "usual")
            ]
            found += zip(*(column.to_pylist() for column in columns), strict=True)
    back.output.clear()
    return found


def joined(spans):
    """Spans (start, end, times) of one key, where spans that touch are one."""
    merged = []
    for span in sorted(spans, key=lambda span: span[:2]):
        if merged and span[0] <= merged[-1][1]:
            start, end, times = merged.pop()
            merged.append((start, max(end, span[1]), [*times, *span[2]]))
        else:
            merged.append(span)
    return merged


class Model:
    """Open sessions by key."""

    def __init__(self):
        self._open = defaultdict(list)
        self._fired = None
        self.late = 0

    def records(self, rows):
        by_key = defaultdict(list)
        for key, time in rows:
            by_key[key].append((time, time + GAP, [time]))
        for key, spans in by_key.items():
            partials, kept = joined(spans), []
            for span in joined([*self._open[key], *partials]):
                if self._fired is not None and span[1] <= self._fired:
                    self.late += sum(span[0] <= partial[0] <= span[1] for partial in partials)
                else:
                    kept.append(span)
            self._open[key] = kept

    def fire(self, time):
        if time != MAX_WATERMARK:
            self._fired = time if self._fired is None else max(self._fired, time)
        due = [(key, *span) for key, spans in self._open.items() for span in spans if span[1] <= time]
        self._open = defaultdict(
            list, {key: [span for span in spans if span[1] > time] for key, spans in self._open.items()}
        )
        return [(key, start, end, len(ts), min(ts), sum(ts) / len(ts)) for key, start, end, ts in due]


def in_order(rows):
    """By end, start and key, null last."""
    return sorted(rows, key=lambda row: (row[2], row[1], row[0] is None, 0 if row[0] is None else row[0]))


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=12)
SMALL = RunLimits(run_rows=2, block_rows=1, part_blocks=1, section_rows=0, first_fanout=3, fanout=3)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("limits", [SMALL, RunLimits()], ids=["small", "large"])
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.tuples(ROWS, st.integers(-5, 70), st.booleans()), max_size=6))
# The last record is not late: the record before joins the last record to the session of the first record.
@example(batches=[([(0, 6)], 6, False), ([(0, 1)], 5, False), ([(0, 0)], 5, False)])
def test_records_at_most_a_gap_apart_are_one_session(rig, keys, limits, batches):
    kind, values = KEYS[keys]
    combine, step = steps(kind)
    front, back, model = rig(combine), rig(step, limits=limits), Model()
    for checkpoint, (numbers, time, restored) in enumerate([*batches, ([(0, 0)], MAX_WATERMARK, False)]):
        rows = [(values[key], moment) for key, moment in numbers]
        give(front, [back], records(rows, kind))
        model.records(rows)
        state = back.snapshot(checkpoint)
        back.operator.completed(CheckpointId(checkpoint))
        if restored:
            assert back.operator.late_dropped == model.late
            model.late, back = 0, rig(step, restored=[state], files=back.files, limits=limits, epoch=checkpoint + 2)
        back.operator.watermark(time)
        assert results(back) == in_order(model.fire(time))
    assert back.operator.late_dropped == model.late


@settings(max_examples=40, deadline=None)
@given(before=ROWS, times=st.tuples(st.integers(-5, 60), st.integers(-5, 60)), after=ROWS, last=st.integers(-5, 80))
def test_subtasks_that_had_come_to_different_times_go_on_as_one(rig, memory_files, before, times, after, last):
    combine, step = steps()
    front, files, models = rig(combine), memory_files(), [Model(), Model()]
    backs = [rig(step, subtask=i, parallelism=2, files=files) for i in range(2)]
    owner = [
        next(i for i, part in enumerate(partition(records([(k, 0)]), ["k"], parallelism=2, groups=GROUPS)) if part)
        for k in range(4)
    ]
    for i, model in enumerate(models):
        model.records([row for row in before if owner[row[0]] == i])
    give(front, backs, records(before))
    for back, model, time in zip(backs, models, times, strict=True):
        back.operator.watermark(time)
        assert results(back) == in_order(model.fire(time))
    one = rig(step, files=files, restored=[back.snapshot() for back in backs])
    for i, model in enumerate(models):
        model.records([row for row in after if owner[row[0]] == i])
    give(front, [one], records(after))
    for time in (last, MAX_WATERMARK):
        one.operator.watermark(time)
        assert results(one) == in_order(row for model in models for row in model.fire(time))
    assert one.operator.late_dropped == sum(model.late for model in models)


@pytest.mark.parametrize("keys", [("k",), ("k", "b")])
def test_many_sessions_in_several_runs_are_merged_by_key(rig, monkeypatch, keys):
    """Keys come and go, some of them far apart. Places that several keys share, and runs of very different sizes."""
    monkeypatch.setattr(session_windows, "_PLACES", 64)
    chance = random.Random(7)
    combine, step = steps(keys=keys)
    front, back = rig(combine), rig(step, limits=RunLimits(run_rows=16))
    rows, found, runs = [], [], []
    for number in range(60):
        many = 300 if number % 20 == 0 else 5
        batch = [(chance.randrange(400), number * 2 + chance.randrange(9)) for _ in range(many)]
        rows += batch
        give(front, [back], records(batch), keys)
        back.operator.watermark(number * 2 - 2)
        runs.append(len(back.operator._table.freeze()))
        found += results(back, keys)
    back.operator.watermark(MAX_WATERMARK)
    found += results(back, keys)
    by_key = defaultdict(list)
    for key, time in rows:
        by_key[(key, time % 2 == 0)[: len(keys)]].append((time, time + GAP, [time]))
    spans = [(*key, *span) for key, spans in by_key.items() for span in joined(spans)]
    expected = [(*span[:-1], len(span[-1]), min(span[-1]), sum(span[-1]) / len(span[-1])) for span in spans]
    assert sorted(found) == sorted(expected)
    assert back.operator.late_dropped == 0
    assert max(runs) > 2


def test_a_record_between_two_sessions_joins_them(rig):
    combine, step = steps()
    front, back = rig(combine), rig(step)
    for batch in ([(1, 0), (1, 10)], [(1, 5)]):
        give(front, [back], records(batch))
    back.operator.watermark(14)
    assert results(back) == []
    back.operator.watermark(15)
    assert results(back) == [(1, 0, 15, 3, 0, 5.0)]


def test_a_record_behind_the_watermark_counts_if_its_session_is_open_and_is_late_if_not(rig):
    combine, step = steps()
    front, back = rig(combine), rig(step)
    give(front, [back], records([(1, 10), (2, 30)]))
    back.operator.watermark(14)
    give(front, [back], records([(1, 5), (2, 6)]))
    assert back.operator.late_dropped == 1
    back.operator.watermark(15)
    assert results(back) == [(1, 5, 15, 2, 5, 7.5)]
    give(front, [back], records([(1, 10), (1, 9)]))
    assert back.operator.late_dropped == 2


def test_the_watermark_is_handed_on_one_microsecond_behind_so_that_results_are_never_late(rig):
    combine, step = steps()
    front, back = rig(combine), rig(step)
    give(front, [back], records([(1, 10)]))
    for time in (14, 15, MAX_WATERMARK, -(2**63)):
        back.operator.watermark(time)
    assert back.output.watermarks == [(13, False), (14, False), (MAX_WATERMARK, False), (-(2**63), False)]


def test_a_snapshot_between_any_two_results_has_the_others(rig):
    combine, step = steps()
    rows = [(time % 3, time) for time in range(0, 60, 4)]
    model, after, more = Model(), 0, True
    model.records(rows)
    expected = in_order(model.fire(45)) + in_order(model.fire(100))
    while more:
        front, first = rig(combine), rig(step)
        give(front, [first], records(rows))
        first.operator.slice = Slice()
        first.operator.slice.run_by(lambda: 0.0, 1)
        first.operator.slice.begin()
        work = first.operator.watermark(45)
        for _ in range(after):
            first.operator.slice.begin()
            more = work.go_on()
        assert not more or work.may_snapshot
        again = rig(step, files=first.files, restored=[first.snapshot()])
        for time in (45, 100):
            again.operator.watermark(time)
        assert results(first) + results(again) == expected
        after += 1
    assert after > 3


@pytest.mark.parametrize("keys", [("k", "b"), ()])
def test_a_key_may_have_several_columns_or_none(rig, keys):
    combine, step = steps(keys=keys)
    front, back = rig(combine), rig(step)
    rows = [(time % 2, time) for time in range(0, 40, 3)]
    give(front, [back], records(rows[:7]), keys)
    give(front, [back], records(rows[7:]), keys)
    back.operator.watermark(MAX_WATERMARK)
    by_key = defaultdict(list)
    for key, time in rows:
        by_key[(key, time % 2 == 0) if keys else ()].append((time, time + GAP, [time]))
    spans = [(*key, *span) for key, found in by_key.items() for span in joined(found)]
    expected = [(*span[:-1], len(span[-1]), min(span[-1]), sum(span[-1]) / len(span[-1])) for span in spans]
    assert sorted(results(back, keys)) == sorted(expected)


def test_records_whose_session_would_end_beyond_all_times_are_dropped_and_counted(rig):
    combine, step = steps()
    front, back = rig(combine), rig(step)
    last = 2**63 - 1 - GAP
    give(front, [back], records([(1, last), (1, last + 1), (1, -(2**63))]))
    assert front.operator.metrics()["beyond_time_dropped"] == 1
    back.operator.watermark(MAX_WATERMARK)
    assert [row[:4] for row in results(back)] == [(1, -(2**63), GAP - 2**63, 1), (1, last, last + GAP, 1)]


def test_state_of_another_gap_is_refused(rig):
    back = rig(steps()[1])
    with pytest.raises(UsageError, match="is of windows of session, gap 5 us"):
        rig(steps(gap=6)[1], restored=[back.snapshot()], files=back.files)


def test_a_checkpoint_of_sessions_writes_only_what_has_changed(rig):
    """Sessions that grew are gone from the runs that have them, and come back once, at any parallelism."""
    combine, step = steps()
    limits = RunLimits(run_rows=20, block_rows=8, section_rows=0)
    front, back = rig(combine), rig(step, limits=limits)
    give(front, [back], records([(key, 10) for key in range(400)]))
    back.operator._table._flush()
    first = back.snapshot(1)
    back.operator.completed(CheckpointId(1))
    give(front, [back], records([(key, 12) for key in range(0, 400, 80)]))
    back.operator._table._flush()
    before = sum(map(len, back.files.files.values()))
    second = back.snapshot(2)
    assert {file.path for file in second.keyed[1:]} & {file.path for file in first.keyed[1:]}
    assert sum(map(len, back.files.files.values())) - before < before / 4
    gone = RunSnapshot(back.files.get(second.keyed[0]), second.keyed, what="it").gone
    assert any(rows is not None and rows.sum() == 5 for rows in gone)
    found = []
    for subtask in range(2):
        again = rig(step, subtask=subtask, parallelism=2, files=back.files, restored=[second], limits=limits)
        again.operator.watermark(MAX_WATERMARK)
        found += results(again)
    grown = set(range(0, 400, 80))
    expected = sorted((key, 10, 12 + GAP, 2) if key in grown else (key, 10, 10 + GAP, 1) for key in range(400))
    assert sorted(row[:4] for row in found) == expected
