"""Deduplication within a time: which records go on, what is kept, and what a restore finds, on both back ends."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC

import pyarrow as pa
import pytest
from state_rig import LOCAL_DIRECTORY

from penstock.api.changelog import with_row_kind
from penstock.api.join_steps import moved
from penstock.api.steps import LATE, DeduplicateStep, LateRecords
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import CorruptFile
from penstock.runtime.task.operators import deduplicate
from penstock.runtime.task.operators.passed_times import PASSED
from penstock.runtime.task.partitioning import key_groups
from penstock.settings import StateSettings

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("v", pa.list_(pa.int64())), ("ts", pa.timestamp("us"))])
SETTINGS = {
    "memory": StateSettings(),
    "rocksdb": StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
}
WITHIN = 100
both = pytest.mark.parametrize("backend", SETTINGS)


def step(*, keeps_last=False, keys=("k",), within_us=WITHIN, offset_us=0):
    late = LateRecords(time_column="ts", schema=SCHEMA, time_offset_us=offset_us)
    schema = with_row_kind(SCHEMA) if keeps_last else SCHEMA
    return DeduplicateStep(keys=keys, within_us=within_us, late=late, schema=schema, keeps_last=keeps_last)


def batch(rows):
    """Rows of a key and a time. The other columns say which row it is."""
    return pa.RecordBatch.from_pylist(
        [{"k": key, "x": float(number), "v": [number], "ts": time} for number, (key, time) in enumerate(rows)], SCHEMA
    )


def feed(made, given):
    made.output.clear()
    work = made.operator.process(given)
    while work is not None and work.go_on():
        pass
    return made.output.rows


def passed(rows):
    return [(row["k"], microseconds(row)) for row in rows]


def row_of(row):
    return row["k"], microseconds(row), row["x"]


def microseconds(row):
    return round(row["ts"].replace(tzinfo=UTC).timestamp() * 1e6)


class Model:
    """The same, a record at a time."""

    def __init__(self, within_us=WITHIN):
        self.within_us = within_us
        self.groups = {}

    def take(self, key, time, row):
        group = self.groups.get(key)
        if group is None or time >= group[0] + self.within_us:
            self.groups[key] = [time, time, row]
            return True
        # Of two records of the same time that record is the last whose other columns are smaller.
        if (time, -row) > (group[1], -group[2]):
            group[1:] = time, row
        return False


@both
def test_the_first_record_of_a_group_goes_on_at_once(rig, backend):
    made = rig(step(), state=SETTINGS[backend])
    rows = [("a", 1_000), ("b", 1_001), ("a", 1_099), ("a", 1_100), ("a", 950), ("b", 5_000), ("a", 1_199)]
    assert [row["x"] for row in feed(made, batch(rows))] == [0.0, 1.0, 3.0, 5.0]
    assert (
        feed(made, batch([("a", 1_150), ("a", 1_200), ("a", 1_300)]))
        == batch(
            [
                ("", 0),
                ("a", 1_200),
                ("a", 1_300),
            ]
        ).to_pylist()[1:]
    )
    made.operator.close()


@both
@pytest.mark.parametrize("keeps_last", [False, True])
def test_groups_are_those_of_a_dict_at_any_parallelism(rig, backend, keeps_last, monkeypatch):
    monkeypatch.setattr(deduplicate, "_ROWS_AT_ONCE", 7)
    chance = random.Random(5)
    model, shown, table = Model(), [], Counter()
    files, parallelism, watermark = None, 1, 0
    rigs = [rig(step(keeps_last=keeps_last), state=SETTINGS[backend])]
    files = rigs[0].files
    expected = {}
    for round_ in range(40):
        rows = [
            (chance.choice(("a", "b", None, *(f"k{n}" for n in range(20)))), watermark + chance.randrange(1, 250))
            for _ in range(chance.choice((1, 10, 60)))
        ]
        given = batch(rows)
        for (key, time), row in zip(rows, given.to_pylist(), strict=True):
            if model.take(key, time, row["x"]):
                shown.append((key, time))
            expected[key, model.groups[key][0]] = (key, *model.groups[key][1:])
        for made in rigs:
            first, last = made.context.key_groups
            groups = key_groups(given, ["k"], made.context.max_parallelism)
            found = feed(made, given.filter(pa.array((groups >= first) & (groups <= last))))
            if not keeps_last:
                for each in passed(found):
                    shown.remove(each)
                continue
            for row in found:
                table[row_of(row)] += 1 if row["row_kind"] in ("insert", "update_after") else -1
        assert shown == [] or keeps_last
        if chance.random() < 0.4:
            watermark += chance.randrange(200)
            for made in rigs:
                made.operator.watermark(watermark)
        if round_ % 4 == 3:
            states = [made.snapshot(round_) for made in rigs]
            for made in rigs:
                made.operator.close()
            parallelism = chance.choice((1, 2, 3))
            rigs = [
                rig(
                    step(keeps_last=keeps_last),
                    subtask=n,
                    parallelism=parallelism,
                    restored=states,
                    files=files,
                    state=SETTINGS[backend],
                )
                for n in range(parallelism)
            ]
    if keeps_last:
        assert +table == Counter(expected.values())
    for made in rigs:
        made.operator.close()


@both
def test_a_group_is_forgotten_when_no_record_on_time_can_belong_to_the_group(rig, backend):
    made = rig(step(within_us=1_000_000), state=SETTINGS[backend])
    feed(made, batch([(f"k{n}", 10_000_000 + n) for n in range(100)]))
    before = len(made.snapshot(1).keyed)
    made.operator.watermark(10_999_999)
    assert feed(made, batch([("k99", 11_000_000), ("k5", 11_000_004)])) == []
    assert before
    made.operator.watermark(12_000_000)
    store = made.operator._store
    for _ in range(200):
        made.time += 1_000
        store.maintain()
    if backend == "memory":
        assert len(store._table) == 0
    else:
        assert not any(store.read([pa.array([f"k{n}" for n in range(100)])])[0])
    assert len(feed(made, batch([("k5", 12_000_001)]))) == 1
    made.operator.close()


@both
def test_late_records_are_late_after_a_restore_too(rig, backend):
    made = rig(step(), state=SETTINGS[backend], sides=[LATE])
    feed(made, batch([("a", 1_000)]))
    made.operator.watermark(2_000)
    assert feed(made, batch([("a", 2_000), ("a", 2_001)])) == batch([("", 0), ("a", 2_001)]).to_pylist()[1:]
    assert passed(made.sides[LATE].rows) == [("a", 2_000)]
    state = made.snapshot(1)
    made.operator.close()
    for subtask in range(2):
        again = rig(step(), subtask=subtask, parallelism=2, restored=[state], files=made.files, state=SETTINGS[backend])
        given = batch([(f"k{n}", 1_990 + n) for n in range(20)])
        groups = key_groups(given, ["k"], 128)
        first, last = again.context.key_groups
        own = given.filter(pa.array((groups >= first) & (groups <= last)))
        on_time = [each for each in passed(own.to_pylist()) if each[1] > 2_000]
        assert passed(feed(again, own)) == on_time
        assert again.operator.metrics()["late_dropped"] == own.num_rows - len(on_time) > 0
        again.operator.close()


def test_records_without_a_time_are_dropped_and_counted(rig):
    made = rig(step())
    assert feed(made, batch([("a", None), ("a", 5), ("b", None)])) == batch([("", 0), ("a", 5)]).to_pylist()[1:]
    assert made.operator.metrics() == {"late_dropped": 0, "timeless_dropped": 2}


def test_the_end_of_the_data_forgets_nothing_because_data_may_go_on_after_a_stop(rig):
    made = rig(step())
    feed(made, batch([("a", 5)]))
    made.operator.watermark(MAX_WATERMARK)
    again = rig(step(), restored=[made.snapshot(1)], files=made.files)
    assert feed(again, batch([("a", 6)])) == []


def test_keys_of_several_columns_equal_each_other_as_in_spark(rig):
    made = rig(step(keys=("k", "x")))
    nan = float("nan")
    rows = [(None, nan), (None, nan), ("a", 0.0), ("a", -0.0), ("a", None), ("a", None)]
    given = pa.RecordBatch.from_pylist([{"k": key, "x": x, "v": [1], "ts": 5} for key, x in rows], SCHEMA)
    assert [str(row["x"]) for row in feed(made, given)] == ["nan", "0.0", "None"]
    assert feed(made, given) == []


def test_times_near_the_limits_do_not_wrap(rig):
    made = rig(step(within_us=2**62, offset_us=-1))
    rows = [("a", 2**63 - 10), ("a", 2**63 - 1), ("b", -(2**63) + 5), ("b", 0)]
    assert [row["ts"] for row in made_rows(made, rows)] == [rows[0][1], rows[2][1], rows[3][1]]


def made_rows(made, rows):
    given = batch([(key, 0) for key, _ in rows])
    times = pa.array([time for _, time in rows]).view(pa.timestamp("us"))
    made.output.clear()
    made.operator.process(given.set_column(3, SCHEMA.field("ts"), times))
    found = [item.column("ts").view(pa.int64()).to_pylist() for item in made.output.items]
    return [{"ts": time} for part in found for time in part]


def test_a_checkpoint_of_few_changes_refers_to_the_files_of_the_last(rig):
    made = rig(step(within_us=10**9))
    feed(made, batch([(f"k{n}", n) for n in range(5_000)]))
    whole = made.snapshot(1)
    made.operator.completed(1)
    feed(made, batch([(f"k{n}", n) for n in range(4_990, 5_010)]))
    more = made.snapshot(2)
    written = [file for file in more.keyed if file.path not in {old.path for old in whole.keyed}]
    assert sum(file.size for file in written) < sum(file.size for file in whole.keyed) / 20


def test_how_far_event_time_had_come_must_be_readable(rig):
    made = rig(step())
    state = made.snapshot(1)
    with pytest.raises(CorruptFile, match="how far the event time of 'the step' had come"):
        rig(step(), restored=[type(state)(operator=state.operator, union_lists={PASSED: (b"x",)})])


@pytest.mark.parametrize("keeps_last", [False, True])
def test_a_key_with_as_many_groups_as_records_takes_few_turns(rig, monkeypatch, keeps_last):
    """Each turn looks at all records that are left: a turn for each group would take the square of the records."""
    turns = []
    monkeypatch.setattr(deduplicate, "moved", lambda times, by: turns.append(by) or moved(times, by))
    made = rig(step(keeps_last=keeps_last, within_us=1))
    found = feed(made, batch([("a", 10 * number) for number in range(2_000)]))
    assert len({microseconds(row) for row in found}) == 2_000
    assert len(turns) < 100


@pytest.mark.parametrize("seed", range(20))
def test_keys_with_many_groups_have_the_groups_of_the_model(rig, seed):
    chance, model = random.Random(seed), Model(within_us=3)
    made = rig(step(within_us=3))
    for _ in range(3):
        rows = [(chance.choice("abc"), chance.randrange(1_000)) for _ in range(400)]
        given = batch(rows)
        begins = [model.take(key, time, number) for number, (key, time) in enumerate(rows)]
        assert passed(feed(made, given)) == [row for row, is_first in zip(rows, begins, strict=True) if is_first]


def test_records_that_are_slow_to_look_up_are_looked_up_a_few_at_a_time(rig, monkeypatch):
    now_ms = [0.0]
    made = rig(step())
    made.operator.slice.run_by(lambda: now_ms[0], 65_536)
    look_up, sizes = made.operator._look_up, []

    def slow(store, part):
        sizes.append(part.num_rows)
        now_ms[0] += part.num_rows
        look_up(store, part)

    monkeypatch.setattr(made.operator, "_look_up", slow)
    feed(made, batch([(str(number), number) for number in range(5_000)]))
    assert sum(sizes) == 5_000
    assert max(sizes[-10:]) <= 20


@pytest.mark.parametrize("before", [0, 50])
def test_groups_at_the_end_of_64_bits_end_nowhere(rig, before):
    """The last group of a key never ends if its end does not fit into 64 bits, however many groups come before."""
    last = 2**63 - 1
    made = rig(step(within_us=10))
    times = [*range(0, 20 * before, 20), last - 5, last - 1, last]
    given = pa.RecordBatch.from_arrays(
        [
            pa.array(["a"] * len(times)),
            pa.array([0.0] * len(times)),
            pa.array([[1]] * len(times), pa.list_(pa.int64())),
            pa.array(times).view(pa.timestamp("us")),
        ],
        schema=SCHEMA,
    )
    made.output.clear()
    work = made.operator.process(given)
    while work is not None and work.go_on():
        pass
    found = [time for item in made.output.items for time in item.column("ts").cast(pa.int64()).to_pylist()]
    assert found == [*range(0, 20 * before, 20), last - 5]
