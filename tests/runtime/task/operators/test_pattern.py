"""Patterns over keyed records on both back ends: against the definition of a match, restored at any parallelism."""

from __future__ import annotations

import random
from datetime import UTC

import pyarrow as pa
import pytest
from pattern_oracle import Oracle
from state_rig import LOCAL_DIRECTORY

import penstock as ps
from penstock.api.pattern_steps import TIMED_OUT
from penstock.api.steps import LATE, LateRecords
from penstock.api.streams.matching import pattern_step
from penstock.core.elements import MAX_WATERMARK
from penstock.core.errors import UserCodeError
from penstock.runtime.task.operators import pattern as pattern_module
from penstock.runtime.task.partitioning import key_groups
from penstock.runtime.task.slices import Slice
from penstock.settings import StateSettings

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us"))])
SETTINGS = {
    "memory": StateSettings(),
    "rocksdb": StateSettings(backend="rocksdb", local_directory=LOCAL_DIRECTORY),
}
both = pytest.mark.parametrize("backend", SETTINGS)
WITHIN = "30us"


def step(pattern, *, offset_us=0):
    return pattern_step(pattern, ("k",), LateRecords(time_column="ts", schema=SCHEMA, time_offset_us=offset_us))


def batch(rows):
    """Rows of a key, a value, a number and a time."""
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def done(work):
    while work is not None and work.go_on():
        pass


def microseconds(time):
    return round(time.replace(tzinfo=UTC).timestamp() * 1e6)


def shown(rows, names):
    """Each match as its key, the numbers of the records of each name, and the time at which it was certain."""
    found = []
    for row in rows:
        parts = []
        for name in names:
            taken = row[name]
            records = taken if isinstance(taken, list) else [] if taken is None else [taken]
            parts.append(tuple(record["n"] for record in records))
        found.append((row["k"], *parts, microseconds(row["match_time"])))
    return found


def value(rows, prefix, name):
    return [rows[record][1] for _, taken, record in prefix if taken == name]


# Patterns, and their conditions in Python: of a record with a value, the records before, and the value.
PATTERNS = {
    "rising": (
        ps.pattern("a", where="v < 4").followed_by("b", where="v > a.v AND v > 1").within(WITHIN),
        [lambda v, before: v < 4, lambda v, before: v > before(0)[-1] and v > 1],
    ),
    "sums": (
        ps.pattern("a", where="v < 6")
        .times(1, 3)
        .followed_by_any("b", where="v >= sum(a.v) AND v > first(a.v) AND count(a) < 3")
        .within(WITHIN)
        .skip_to_next(),
        [
            lambda v, before: v < 6,
            lambda v, before: v >= sum(before(0)) and v > before(0)[0] and len(before(0)) < 3,
        ],
    ),
    "strict": (
        ps.pattern("a", where="v > 2")
        .next("b", where="v > 2")
        .one_or_more()
        .consecutive()
        .greedy()
        .until("v = 9")
        .not_next("x", where="v = 0")
        .followed_by("c", where="v < a.v OR v = max(b.v)")
        .within(WITHIN),
        [
            lambda v, before: v > 2,
            lambda v, before: v > 2,
            lambda v, before: v == 9,
            lambda v, before: v == 0,
            lambda v, before: v < before(0)[-1] or v == max(before(1)),
        ],
    ),
    "unpaid": (
        ps.pattern("a", where="v > 6").optional().followed_by("b").not_followed_by("x", where="v = b.v").within(WITHIN),
        [lambda v, before: v > 6, lambda v, before: True, lambda v, before: v == before(1)[-1]],
    ),
    "either": (
        ps.pattern("a", where="v > 3")
        .followed_by(ps.any_of(b="v > a.v", c="v < 2"), within="9us")
        .within(WITHIN)
        .skip_past_last(),
        [lambda v, before: v > 3, lambda v, before: v > before(0)[-1], lambda v, before: v < 2],
    ),
}


def expected(pattern, conditions, rows, *, timed_out=False):
    """The matches of one key, whose rows are in the order of their times."""
    made = step(pattern)

    def holds(condition, prefix, record):
        return conditions[condition](rows[record][1], lambda name: value(rows, prefix, name))

    oracle = Oracle(made.shape, [row[3] for row in rows], holds)
    return [
        tuple(tuple(rows[record][2] for _, name, record in prefix if name == n) for n in range(len(made.names)))
        for prefix in (oracle.timed_out() if timed_out else oracle.matches())
    ]


class Subtasks:
    """All subtasks of a step, which may be restored at another parallelism."""

    def __init__(self, rig, made, backend):
        self.rig, self.step, self.state = rig, made, SETTINGS[backend]
        self.found, self.given_up, self.late = [], [], []
        self.watermark = -100
        self.rigs = [self.begin()]

    def begin(self, **how):
        return self.rig(self.step, state=self.state, sides=[TIMED_OUT, LATE], **how)

    def take(self, rows):
        given = batch(rows)
        groups = key_groups(given, ["k"], 128)
        for made in self.rigs:
            first, last = made.context.key_groups
            done(made.operator.process(given.filter(pa.array((groups >= first) & (groups <= last)))))

    def to(self, time):
        self.watermark = time
        for made in self.rigs:
            done(made.operator.watermark(time))
            self.found += shown(made.output.rows, self.step.names)
            self.given_up += shown(made.sides[TIMED_OUT].rows, self.step.names)
            self.late += [row["n"] for row in made.sides[LATE].rows]
            for output in (made.output, made.sides[TIMED_OUT], made.sides[LATE]):
                output.clear()

    def restore(self, checkpoint, parallelism):
        states, files = [made.snapshot(checkpoint) for made in self.rigs], self.rigs[0].files
        self.close()
        how = {"restored": states, "files": files, "parallelism": parallelism}
        self.rigs = [self.begin(subtask=number, **how) for number in range(parallelism)]

    def close(self):
        for made in self.rigs:
            made.operator.close()


@both
@pytest.mark.parametrize("name", PATTERNS)
def test_matches_are_those_of_the_definition_whatever_is_restored(rig, backend, name, monkeypatch):
    monkeypatch.setattr(pattern_module, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(pattern_module, "_RESULTS_AT_ONCE", 3)
    pattern, conditions = PATTERNS[name]
    chance = random.Random(name)
    every: list[tuple] = []
    made = Subtasks(rig, step(pattern), backend)
    for round_ in range(24):
        rows = [
            (chance.choice(("a", "b", None, "c")), chance.randrange(10), len(every) + n, made.watermark + time)
            for n, time in enumerate(chance.randrange(1, 40) for _ in range(chance.choice((1, 4, 9))))
        ]
        every += rows
        made.take(rows)
        if chance.random() < 0.6:
            made.to(made.watermark + chance.randrange(1, 30))
        if round_ % 3 == 2:
            made.restore(round_, chance.choice((1, 2, 3)))
    made.to(MAX_WATERMARK)
    wanted, out_of_time = [], []
    for key in {row[0] for row in every}:
        # Records of the same time stay in the order in which they came.
        rows = sorted((row for row in every if row[0] == key), key=lambda row: row[3])
        wanted += [(key, *found) for found in expected(pattern, conditions, rows)]
        out_of_time += [(key, *found) for found in expected(pattern, conditions, rows, timed_out=True)]
    assert sorted(map(str, (found[:-1] for found in made.found))) == sorted(map(str, wanted))
    assert len(wanted) > 5
    if "skip" not in str(pattern):
        assert sorted(map(str, (found[:-1] for found in made.given_up))) == sorted(map(str, out_of_time))
    assert made.late == []
    made.restore(99, 1)
    assert all(each.snapshot(100, canonical=True).keyed == () for each in made.rigs), "all time is over"
    made.close()


@both
def test_results_come_in_the_order_of_time_and_key_however_the_watermark_moves(rig, backend):
    pattern, _ = PATTERNS["rising"]
    chance = random.Random(3)
    rows = [(chance.choice("abc"), chance.randrange(10), n, chance.randrange(200)) for n in range(120)]
    at_once, slowly = (Subtasks(rig, step(pattern), backend) for _ in range(2))
    at_once.rigs[0].operator._slices.rows = 1_000
    for made, moves in ((at_once, [500]), (slowly, range(0, 520, 7))):
        made.take(rows)
        for time in moves:
            made.to(time)
        made.close()
    assert at_once.found == slowly.found
    assert at_once.given_up == slowly.given_up
    assert at_once.found
    times = [found[-1] for found in at_once.found]
    assert times == sorted(times)


@both
def test_late_records_are_late_after_a_restore_too(rig, backend):
    made = Subtasks(rig, step(PATTERNS["rising"][0]), backend)
    made.take([("a", 1, 0, 10)])
    made.to(20)
    made.restore(1, 2)
    made.take([("a", 5, 1, 20), ("a", 6, 2, 21)])
    made.to(100)
    assert made.late == [1]
    assert made.found == [("a", (0,), (2,), 21)]
    made.close()


def test_late_and_timeless_records_are_counted_if_nothing_reads_them(rig):
    made = rig(step(PATTERNS["rising"][0]))
    done(made.operator.process(batch([("a", 1, 0, None), ("a", 1, 1, 5)])))
    done(made.operator.watermark(10))
    done(made.operator.process(batch([("a", 1, 2, 10)])))
    counted = made.operator.metrics()
    assert (counted["timeless_dropped"], counted["late_dropped"]) == (1, 1)


def test_event_time_may_be_the_time_of_the_column_and_a_constant(rig):
    made = rig(step(PATTERNS["rising"][0], offset_us=-1))
    done(made.operator.process(batch([("a", 1, 0, 10), ("a", 2, 1, 11)])))
    done(made.operator.watermark(9))
    assert made.output.rows == []
    done(made.operator.watermark(10))
    assert shown(made.output.rows, "ab") == [("a", (0,), (1,), 10)]


def test_records_that_fulfil_no_condition_are_not_kept_unless_they_stand_between_others(rig):
    rows = [("a", 9, number, number) for number in range(100)]
    relaxed = rig(step(ps.pattern("a", where="v < 4").followed_by("b", where="v < 4").within(WITHIN)))
    done(relaxed.operator.process(batch(rows)))
    assert relaxed.snapshot(1).keyed == ()
    strict = rig(step(ps.pattern("a", where="v < 4").next("b", where="v < 4").within(WITHIN)))
    done(strict.operator.process(batch(rows)))
    assert strict.snapshot(1).keyed


def test_a_condition_that_cannot_be_computed_fails_the_job_with_the_name_of_the_step(rig):
    made = rig(step(ps.pattern("a").followed_by("b", where="v / a.v > 1").within(WITHIN)))
    done(made.operator.process(batch([("a", 0, 0, 1), ("a", 5, 1, 2)])))
    with pytest.raises(UserCodeError, match="the step"):
        done(made.operator.watermark(10))


def test_sums_beyond_64_bits_fail_the_job(rig):
    made = rig(step(ps.pattern("a").times(2).followed_by("b", where="v < sum(a.v)").within(WITHIN)))
    done(made.operator.process(batch([("a", 2**62, 0, 1), ("a", 2**62, 1, 2), ("a", 5, 2, 3)])))
    with pytest.raises(UserCodeError):
        done(made.operator.watermark(10))


def test_times_near_the_limits_do_not_wrap(rig):
    pattern = ps.pattern("a", where="v < 4").followed_by("b", where="v > 6").within("100s")
    made = rig(step(pattern, offset_us=2**63 - 100))
    done(made.operator.process(batch([("a", 1, 0, 5), ("a", 9, 1, 10)])))
    done(made.operator.watermark(MAX_WATERMARK))
    assert made.output.items[0].column("match_time").view(pa.int64()).to_pylist() == [2**63 - 90]


def test_a_time_that_python_does_not_have_is_an_error_that_says_so(rig):
    made = rig(step(PATTERNS["rising"][0]))
    times = pa.array([2**63 - 10]).view(pa.timestamp("us"))
    given = batch([("a", 1, 0, 0)]).set_column(3, SCHEMA.field("ts"), times)
    with pytest.raises(ps.UsageError, match="column 'ts'"):
        done(made.operator.process(given))


def test_work_is_cut_into_slices_and_a_snapshot_between_them_has_the_rest(rig):
    pattern, conditions = PATTERNS["rising"]
    rows = [("abc"[n % 3], n * 7 % 10, n, n) for n in range(90)]
    made = rig(step(pattern))
    made.operator.slice = Slice()
    made.operator.slice.run_by(lambda: 0.0, 4)
    made.operator.slice.begin()
    done(made.operator.process(batch(rows)))
    made.operator.slice.begin()
    work = made.operator.watermark(MAX_WATERMARK)
    before, stops = [], 0
    while work is not None:
        if work.may_snapshot:
            stops += 1
        if stops == 3:
            break
        made.operator.slice.begin()
        work = work if work.go_on() else None
    assert stops == 3
    before = shown(made.output.rows, "ab")
    again = rig(step(pattern), restored=[made.snapshot(1)], files=made.files)
    done(again.operator.watermark(MAX_WATERMARK))
    after = shown(again.output.rows, "ab")
    wanted = [
        (key, *found)
        for key in "abc"
        for found in expected(pattern, conditions, [row for row in rows if row[0] == key])
    ]
    assert before
    assert sorted(found[:-1] for found in before + after) == sorted(wanted)
