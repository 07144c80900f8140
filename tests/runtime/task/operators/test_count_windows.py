"""Windows of a number of records, and the window with all records, against their definition, whatever is restored."""

from __future__ import annotations

from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.api.changelog import with_row_kind
from penstock.api.other_windows import CountWindow, GlobalWindow
from penstock.api.steps import ROW_COUNT, Aggregate, CombineStep, Updates, WindowStep
from penstock.api.window_schema import partial_schema, result_schema
from penstock.core.elements import MAX_WATERMARK
from penstock.runtime.task.operators import window_table
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice

SCHEMA = pa.schema({"k": pa.string(), "b": pa.int64(), "v": pa.int64()})
AGGREGATES = (
    Aggregate(name="n", kind="count", column=None),
    Aggregate(name="all", kind="collect_list", column="v"),
)
KEYS = {"none": (), "one": ("k",), "two": ("b", "k")}
ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 2), st.integers(0, 99)), max_size=25)
BATCHES = st.lists(st.tuples(ROWS, st.booleans()), max_size=6)


def count_step(size, slide, keys):
    window, counted = (
        CountWindow(size=size, slide=slide),
        (*AGGREGATES, Aggregate(name=ROW_COUNT, kind="count", column=None)),
    )
    shape = {"keys": keys, "time_column": None, "window": window}
    return WindowStep(
        keys=keys,
        window=window,
        aggregates=counted,
        schema=result_schema(SCHEMA, aggregates=AGGREGATES, **shape),
        partials=partial_schema(SCHEMA, aggregates=counted, **shape),
    )


def global_steps(keys, updates=None):
    window, shape = GlobalWindow(), {"keys": keys, "time_column": None, "aggregates": AGGREGATES}
    partial, result = (make(SCHEMA, window=window, **shape) for make in (partial_schema, result_schema))
    combine = CombineStep(window=window, schema=partial, holds=False, **shape)
    return combine, WindowStep(
        keys=keys,
        window=window,
        aggregates=AGGREGATES,
        schema=result if updates is None else with_row_kind(result),
        updates=updates,
        partials=partial,
    )


def records(rows):
    columns = [[row[n] for row in rows] for n in range(3)]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def key_of(row, keys):
    return tuple(row[SCHEMA.names.index(key)] for key in keys)


def shown(output, keys):
    found = [(*(row[key] for key in keys), row["n"], tuple(row["all"])) for row in output.rows]
    output.clear()
    return found


class Model:
    """The values of each key."""

    def __init__(self, size, slide):
        self._size, self._slide = size, slide
        self._values = defaultdict(list)

    def add(self, key, value):
        """The results that one more record gives."""
        values = self._values[key]
        values.append(value)
        if len(values) % self._slide:
            return []
        last = values[-self._size :]
        return [(*key, len(last), tuple(last))]


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize(("size", "slide"), [(1, 1), (3, 3), (6, 4), (5, 2)])
@settings(max_examples=20, deadline=None)
@given(batches=BATCHES, part_rows=st.sampled_from([4, 1_000_000]))
def test_each_window_has_its_number_of_records(rig, keys, size, slide, part_rows, batches):
    step = count_step(size, slide, keys)
    back, model = rig(step), Model(size, slide)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_table, "PART_ROWS", part_rows)
        for rows, restored in batches:
            if rows:
                work = back.operator.process(records(rows))
                assert work is None
            expected = [each for row in rows for each in model.add(key_of(row, keys), row[2])]
            found = shown(back.output, keys)
            assert Counter(found) == Counter(expected)
            for key in {each[: len(keys)] for each in found}:
                mine = [each for each in found if each[: len(keys)] == key]
                assert mine == [each for each in expected if each[: len(keys)] == key]
            if restored:
                back = rig(step, restored=[back.snapshot()], files=back.files)
    back.operator.watermark(MAX_WATERMARK)
    assert back.output.items == [(MAX_WATERMARK, False)]


def test_a_key_whose_windows_are_full_has_no_state(rig):
    back = rig(count_step(2, 2, ("k",)))
    back.operator.process(records([("a", 0, 1), ("a", 0, 2), ("b", 0, 3)]))
    assert back.operator._table.rows == 1
    back.operator.process(records([("b", 0, 4)]))
    assert back.operator._table.rows == 0


def test_results_that_were_not_handed_on_are_in_a_snapshot(rig):
    step = count_step(2, 1, ("b",))
    back = rig(step)
    back.operator.slice = Slice()
    back.operator.slice.run_by(lambda: 0.0, 5)
    back.operator.slice.begin()
    work = back.operator.process(records([("a", number % 7, number) for number in range(28)]))
    assert work.may_snapshot
    first = shown(back.output, ("b",))
    assert len(first) == 5
    again = rig(step, restored=[back.snapshot()], files=back.files)
    again.operator.process(records([("a", 0, 99)]))
    model = Model(2, 1)
    expected = [each for number in range(28) for each in model.add((number % 7,), number)]
    expected += model.add((0,), 99)
    assert Counter(first + shown(again.output, ("b",))) == Counter(expected)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_counts_go_on_at_another_parallelism(rig, memory_files, parallelism):
    step, files, model = count_step(5, 2, ("b",)), memory_files(), Model(5, 2)
    rows = [[("a", number * number % 37, number) for number in range(first, first + 200)] for first in (0, 200)]
    expected = [each for some in rows for row in some for each in model.add((row[1],), row[2])]
    found = []

    def give(backs, some):
        for back, part in zip(backs, partition(some, ["b"], parallelism=len(backs), groups=128), strict=True):
            if part is not None:
                back.operator.process(part)
            found.extend(shown(back.output, ("b",)))

    before = [rig(step, subtask=i, parallelism=2, files=files) for i in range(2)]
    give(before, records(rows[0]))
    states = [back.snapshot() for back in before]
    backs = [rig(step, subtask=i, parallelism=parallelism, files=files, restored=states) for i in range(parallelism)]
    give(backs, records(rows[1]))
    assert Counter(found) == Counter(expected)


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@settings(max_examples=25, deadline=None)
@given(batches=BATCHES)
def test_the_window_with_all_records_comes_at_the_end(rig, keys, batches):
    combine, step = global_steps(keys)
    front, back, values = rig(combine), rig(step), defaultdict(list)
    for rows, restored in batches:
        front.operator.process(records(rows))
        for partials in front.output.items:
            back.operator.process(partials)
        front.output.clear()
        for row in rows:
            values[key_of(row, keys)].append(row[2])
        back.operator.watermark(2**60)
        assert shown(back.output, keys) == []
        if restored:
            back = rig(step, restored=[back.snapshot()], files=back.files)
    back.operator.watermark(MAX_WATERMARK)
    assert Counter(shown(back.output, keys)) == Counter((*k, len(v), tuple(v)) for k, v in values.items())


@settings(max_examples=25, deadline=None)
@given(batches=BATCHES)
def test_the_window_with_all_records_shows_updates(rig, batches):
    combine, step = global_steps(("k",), Updates(every_batch=True))
    front, back, values, view = rig(combine), rig(step), defaultdict(list), {}
    for rows, restored in [*batches, ([], False)]:
        front.operator.process(records(rows))
        for partials in front.output.items:
            back.operator.process(partials)
        front.output.clear()
        for row in rows:
            values[row[0]].append(row[2])
        for change in back.output.rows:
            if change["row_kind"] in ("update_before", "delete"):
                assert view.pop(change["k"]) == change["all"]
            else:
                assert change["k"] not in view
                view[change["k"]] = change["all"]
        back.output.clear()
        assert view == values
        if restored:
            # After a drain the results go on.
            back.operator.watermark(MAX_WATERMARK)
            assert back.output.rows == []
            back = rig(step, restored=[back.snapshot()], files=back.files)
