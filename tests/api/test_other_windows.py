"""Windows that no event time cuts, and functions over the records of a window: what becomes of them in a plan, and what
they refuse."""

from __future__ import annotations

import datetime
from collections import Counter

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.other_windows import CountWindow, GlobalWindow
from penstock.api.steps import ApplyStep, CombineStep, WindowStep
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning
from penstock.testing import collect, pause, run, scripted

NOON = datetime.datetime(2026, 1, 1, 12)  # noqa: DTZ001  # a column without a time zone
CLICKS = [
    {"user": user, "n": n, "ts": NOON + datetime.timedelta(seconds=s)}
    for n, (user, s) in enumerate([("ann", 1), ("bob", 2), ("ann", 3), ("ann", 14), ("bob", 15)])
]


def clicks(env, rows=CLICKS):
    return env.read(scripted(rows, schema="user string, n bigint, ts timestamp_ntz"))


def steps_of(program, kind):
    return [o.step for v in program.plan().vertices for o in v.operators if isinstance(o.step, kind)]


# --- windows of a number of records, and of all records --------------------------------------------------------------


def test_records_are_counted_behind_the_exchange(program, bids, make_sink):
    counted = bids.key_by("auction").window(ps.count_window(3)).aggregate(n=ps.count())
    assert counted.schema.names == ["auction", "n"]
    counted.write(make_sink())
    assert steps_of(program, CombineStep) == []
    (window,) = steps_of(program, WindowStep)
    assert window.window == CountWindow(size=3, slide=3)
    assert {edge.partitioning for edge in program.plan().edges} == {Partitioning.HASH}


def test_all_records_are_combined_before_the_exchange(program, bids, make_sink):
    total = bids.window(ps.global_window()).aggregate(top=ps.max("price"))
    assert total.schema.names == ["top"]
    total.write(make_sink())
    (combine,) = steps_of(program, CombineStep)
    assert (combine.window, combine.time_column) == (GlobalWindow(), None)


@pytest.mark.parametrize(
    ("n", "slide", "message"),
    [
        (0, None, "n is 0"),
        (True, None, "n is True"),
        ("3", None, "n is '3'"),
        (3, 0, "slide is 0"),
        (3, 4, "slide is 4, which is more than the 3 records"),
    ],
)
def test_a_number_of_records_is_a_whole_number_above_0(n, slide, message):
    with pytest.raises(UsageError, match=message):
        ps.count_window(n, slide)


def test_windows_are_told_in_a_few_words():
    assert [str(w) for w in (ps.count_window(3), ps.count_window(3, 2), ps.global_window())] == [
        "3 records",
        "3 records every 2 records",
        "all records",
    ]


@pytest.mark.parametrize(
    "window", [ps.count_window(3), ps.global_window(), ps.tumbling("1s", time="processing")], ids=str
)
def test_windows_without_event_time_allow_no_lateness_and_give_no_event_time(bids, window):
    with pytest.raises(UsageError, match="there is no allowed lateness"):
        bids.window(window, allowed_lateness="1s")
    result = bids.window(window).aggregate(n=ps.count())
    with pytest.raises(UsageError, match="no event time belongs to the windows"):
        result.window(ps.tumbling("1s"))
    with pytest.raises(UsageError, match="does not know which records are late"):
        result.late()


def test_only_all_records_show_updates(bids):
    with pytest.raises(UsageError, match="has its result when it is full"):
        bids.window(ps.count_window(3)).aggregate(n=ps.count()).updates(every=1)
    with pytest.raises(UsageError, match="have no early results"):
        bids.window(ps.tumbling("1s", time="processing")).aggregate(n=ps.count()).updates()
    with pytest.raises(UsageError, match="has no updates before"):
        bids.window(ps.global_window()).aggregate(n=ps.count()).updates()
    updates = bids.key_by("auction").window(ps.global_window()).aggregate(n=ps.count()).updates(every="1s")
    assert updates._state.changelog.keys == ("auction",)


@pytest.mark.parametrize(
    "make",
    [lambda **t: ps.tumbling("1s", **t), lambda **t: ps.sliding("2s", "1s", **t), lambda **t: ps.session("1s", **t)],
)
def test_time_is_of_events_or_of_processing(bids, make):
    assert make() == make(time="event")
    assert not make().by_clock
    assert make(time="processing").by_clock
    assert make(time="processing").described() == f"{make().described()}, processing time"
    assert make(time="processing").saved() == {"window": make(time="processing").described()}
    with pytest.raises(UsageError, match="time is 'clock'"):
        make(time="clock")
    result = bids.key_by("auction").window(make(time="processing")).aggregate(n=ps.count())
    assert str(result.schema.field("window_end").type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "window",
    [ps.tumbling("50ms", time="processing"), ps.session("20ms", time="processing"), ps.global_window()],
    ids=str,
)
def test_every_record_counts_once_though_processes_die(window, seed):
    rows = [{"user": "ann", "n": n, "ts": NOON} for n in range(60)]

    def program(env):
        slow = clicks(env, [each for row in rows for each in (row, pause(10))])
        slow.key_by("user").window(window).aggregate(total=ps.sum("n"), n=ps.count()).write(collect())

    found = run(program, crashes=2, seed=seed)
    assert sum(row["n"] for row in found) == 60
    assert sum(row["total"] for row in found) == sum(range(60))


# --- functions over the records of a window --------------------------------------------------------------------------


def by_arrow(rows: pa.Table) -> pa.Table:
    return pa.table({"ns": [rows.column("n").to_pylist()]})


def by_batch(rows: pa.RecordBatch):
    return pa.RecordBatch.from_pydict({"ns": [rows.column("n").to_pylist()]})


def by_polars(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(ns=pl.col("n").implode())


def by_pandas(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"ns": [rows["n"].tolist()]})


@pytest.mark.parametrize("function", [by_arrow, by_batch, by_polars, by_pandas])
def test_a_function_gets_the_records_of_a_window_in_its_form(function):
    def program(env):
        timed = clicks(env).watermark("ts", delay="1 min")
        timed.key_by("user").window(ps.tumbling("10s")).apply(function, schema="ns array<bigint>").write(collect())

    found = {(row["user"], row["window_start"].second): row["ns"] for row in run(program, parallelism=1)}
    assert found == {("ann", 0): [0, 2], ("bob", 0): [1], ("ann", 10): [3], ("bob", 10): [4]}


WINDOWS = [
    ps.tumbling("10s"),
    ps.sliding("10s", "5s"),
    ps.cumulative("10s", "5s"),
    ps.session("5s"),
    ps.global_window(),
]


@pytest.mark.parametrize("keys", [["user"], []], ids=["by key", "over all records"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_records_are_those_that_an_aggregate_has(window, keys):
    def program(env, finish):
        timed = clicks(env).watermark("ts", delay="1 min")
        finish((timed.key_by(*keys) if keys else timed).window(window)).write(collect())

    def total(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(n=pl.len().cast(pl.Int64), total=pl.col("n").sum())

    applied = run(lambda env: program(env, lambda w: w.apply(total, schema="n bigint, total bigint")), crashes=1)
    aggregated = run(lambda env: program(env, lambda w: w.aggregate(n=ps.count(), total=ps.sum("n"))))
    assert Counter(tuple(row.items()) for row in applied) == Counter(tuple(row.items()) for row in aggregated)


def test_a_second_parameter_gets_the_key_and_the_bounds():
    def told(rows: pl.DataFrame, window):
        return pl.DataFrame({"text": [f"{window['user']} {window['window_end'].second} {rows.height}"]})

    def program(env):
        timed = clicks(env).watermark("ts", delay="1 min")
        timed.key_by("user").window(ps.tumbling("10s")).apply(told, schema="text string").select("text").write(
            collect()
        )

    assert sorted(row["text"] for row in run(program)) == ["ann 10 2", "ann 20 1", "bob 10 1", "bob 20 1"]


def test_a_function_may_return_several_frames_or_none():
    def some(rows: pl.DataFrame):
        for n in rows.get_column("n"):
            if n % 2:
                yield pl.DataFrame({"odd": [n, n]})

    def program(env):
        timed = clicks(env).watermark("ts", delay="1 min")
        timed.window(ps.tumbling("1 min")).apply(some, schema="odd bigint").select("odd").write(collect())

    assert sorted(row["odd"] for row in run(program)) == [1, 1, 3, 3]


def test_the_results_of_a_function_have_the_event_time_of_their_window():
    def program(env):
        timed = clicks(env).watermark("ts", delay="1 min")
        counted = timed.key_by("user").window(ps.tumbling("10s")).apply(by_arrow, schema="ns array<bigint>")
        counted.window(ps.tumbling("1 min")).aggregate(n=ps.count()).select("n").write(collect())

    assert run(program) == [{"n": 4}]


def test_late_records_of_a_function_over_windows_come_out_as_they_were():
    late = {"user": "bob", "n": 9, "ts": NOON}
    out = ps.collect()

    def program(env):
        timed = clicks(env, [*CLICKS, pause(100), late]).watermark("ts")
        applied = timed.window(ps.tumbling("10s")).apply(by_arrow, schema="ns array<bigint>")
        applied.select("ns").write(collect())
        applied.late().write(out)

    run(program, parallelism=1)
    assert out.rows == [late]


def test_the_window_has_the_given_name_and_the_records(program, bids, make_sink):
    timed = bids.watermark("ts")
    timed.window(ps.tumbling("1s")).apply(by_arrow, schema="ns array<bigint>", name="kept").write(make_sink())
    named = [o.name for v in program.plan().vertices for o in v.operators if isinstance(o.step, WindowStep)]
    assert named == ["kept"]
    (step,) = steps_of(program, ApplyStep)
    assert step.rows == timed.schema


def test_a_result_that_does_not_fit_is_an_error():
    def wrong(rows: pl.DataFrame) -> pl.DataFrame:
        return rows

    def program(env):
        clicks(env).watermark("ts").window(ps.tumbling("10s")).apply(wrong, schema="n string").write(collect())

    with pytest.raises(Exception, match="expected columns"):
        run(program)


def test_a_column_of_the_key_cannot_be_made_again(bids):
    windowed = bids.watermark("ts").key_by("auction").window(ps.tumbling("1s"))
    with pytest.raises(UsageError, match="the result has a column 'auction' anyway"):
        windowed.apply(by_arrow, schema="auction bigint")
    with pytest.raises(UsageError, match="apply"):
        windowed.apply(7, schema="n bigint")
