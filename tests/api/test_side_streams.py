"""Splits and side outputs: which record is in which stream, what the streams know, and what is refused."""

from __future__ import annotations

import copy
from collections import Counter
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning
from penstock.testing import pause, run, scripted

ROWS = [{"n": n, "level": "ERROR" if n % 5 == 0 else None if n % 7 == 0 else "INFO"} for n in range(60)]


def parts_of(split, rows=ROWS, *, schema="n bigint, level string", **how):
    """The numbers in each part that `split` makes of a stream of `rows`, by the name of the part."""
    sinks = {}

    def program(env):
        for name, part in split(env.from_iterable(rows, schema=schema)).items():
            sinks[name] = ps.collect()
            part.write(sinks[name])

    run(program, **how)
    return {name: sorted(row["n"] for row in sink.rows) for name, sink in sinks.items()}


# --- split -----------------------------------------------------------------------------------------------------------


def test_a_record_goes_to_the_first_condition_that_is_true_and_otherwise_to_the_rest():
    found = parts_of(lambda stream: stream.split(errors="level = 'ERROR'", early="n < 20"))
    assert found == {
        "errors": list(range(0, 60, 5)),
        "early": [n for n in range(20) if n % 5],
        "rest": [n for n in range(20, 60) if n % 5],
    }


def test_a_condition_that_is_null_is_not_true():
    found = parts_of(lambda stream: stream.split(other="level <> 'ERROR'"))
    nulls = [n for n in range(60) if n % 7 == 0 and n % 5]
    assert sorted(set(found["rest"]) - set(range(0, 60, 5))) == nulls
    assert found["other"] == [n for n in range(60) if n % 5 and n % 7]


def test_conditions_may_be_polars_expressions():
    assert parts_of(lambda stream: stream.split(few=pl.col("n") < 3))["few"] == [0, 1, 2]


@settings(max_examples=10, deadline=None)
@given(numbers=st.lists(st.integers(-5, 5), max_size=30), bounds=st.lists(st.integers(-6, 6), min_size=1, max_size=4))
def test_every_record_is_in_exactly_one_part(numbers, bounds):
    rows = [{"n": n, "level": "x"} for n in numbers]
    found = parts_of(lambda stream: stream.split(**{f"p{i}": f"n < {bound}" for i, bound in enumerate(bounds)}), rows)
    assert sorted(n for part in found.values() for n in part) == sorted(numbers)
    for i, bound in enumerate(bounds):
        assert found[f"p{i}"] == sorted(n for n in numbers if n < bound and all(n >= b for b in bounds[:i]))


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_in_one_part_once_whatever_dies(seed):
    found = parts_of(lambda stream: stream.split(errors="level = 'ERROR'", early="n < 20"), seed=seed, crashes=3)
    assert sorted(n for part in found.values() for n in part) == list(range(60))


def test_a_part_is_a_stream_like_any_other():
    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(even="n % 2 = 0", fives="n % 5 = 0")
        both = parts.even.rebalance().select("n", kind="'even'").union(parts.fives.select("n", kind="'five'"))
        both.key_by("kind").reduce(lambda a, b: {**b, "n": a["n"] + b["n"]}).write(ps.collect())

    last = {row["kind"]: row["n"] for row in run(program)}
    assert last == {"even": sum(range(0, 60, 2)), "five": sum(n for n in range(0, 60, 5) if n % 2)}


def test_parts_that_nothing_reads_are_left_out():
    found = parts_of(lambda stream: {"errors": stream.split(errors="level = 'ERROR'", early="n < 20").errors})
    assert found == {"errors": list(range(0, 60, 5))}


def test_a_part_can_be_looked_at():
    seen = []

    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(few="n < 3")
        seen.append(sorted(row["n"] for row in parts.few.collect()))
        parts.rest.write(ps.collect())

    run(program)
    assert seen == [[0, 1, 2]]


def test_a_part_may_be_the_broadcast_side_of_a_connection():
    class Known(ps.KeyedBroadcastFunction):
        rules = ps.broadcast_state("rules", key="bigint", value="bigint")

        def on_broadcast(self, row, context):
            self.rules.set(row["n"], 1)

        def on_row(self, row, context):
            return {"n": row["n"], "known": len(list(self.rules.items()))}

    def program(env):
        parts = env.from_iterable(ROWS, schema="n bigint, level string").split(rules="n < 10")
        joined = parts.rest.key_by("n").connect(parts.rules, wait="end")
        joined.process(Known(), schema="n bigint, known bigint").write(ps.collect())

    assert sorted((row["n"], row["known"]) for row in run(program)) == [(n, 10) for n in range(10, 60)]


def test_parts_keep_the_event_time(bids):
    parts = bids.watermark("ts").split(high="price > 100")
    for part in (parts.high, parts.rest):
        assert part.schema == bids.schema
        part.key_by("auction").window(ps.tumbling("1s"))


def test_parts_of_the_results_of_windows_keep_the_event_time_of_the_windows(bids):
    results = bids.watermark("ts").key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count())
    parts = results.split(many="n > 5")
    assert all("event time in window_end -1 us" in repr(part) for part in parts.values())


def test_parts_of_a_step_with_few_subtasks_have_all_records_once_whatever_dies():
    def split(stream):
        parts = stream.map(lambda row: row, schema="n bigint, level string").split(few="n < 20", some="n < 40")
        parts.rest.with_parallelism(1)
        return {"few": parts.few.global_().where("true"), "some": parts.some.where("true").with_parallelism(2)}

    found = parts_of(split, parallelism=3, crashes=2, seed=2)
    assert found == {"few": list(range(20)), "some": list(range(20, 40))}


def test_a_step_behind_a_part_has_an_id_with_the_name_of_the_part(program, bids, make_sink):
    parts = bids.watermark("ts").split(high="price > 100", low="price < 10")
    for name, part in parts.items():
        counts = part.key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count())
        counts.write(make_sink(), name=f"to {name}")
    ids = {operator.operator for vertex in program.plan().vertices for operator in vertex.operators}
    assert {"bids.window-auction", "bids.high.window-auction", "bids.low.window-auction"} <= ids


def test_parts_say_what_they_are(bids):
    parts = bids.split(high="price > 100")
    assert (list(parts), len(parts), "high" in parts, "low" in parts) == (["high", "rest"], 2, True, False)
    assert repr(parts) == "<Parts high, rest>"
    assert dir(parts) == ["high", "rest"]
    assert repr(parts.high).startswith("<Stream 'high' of 'split': auction")
    assert parts["high"] is parts.high
    assert list(copy.copy(parts)) == ["high", "rest"]


def test_python_asks_parts_as_it_asks_every_mapping_and_every_object(bids):
    parts = bids.split(high="price > 100")
    assert parts.get("low") is None
    assert getattr(parts, "low", 7) == 7
    assert not hasattr(parts, "low")


@pytest.mark.parametrize("look", [lambda parts: parts.hihg, lambda parts: parts["hihg"]])
def test_a_part_that_does_not_exist_is_refused_with_the_likely_name(bids, look):
    with pytest.raises(UsageError, match="there is no part 'hihg'; there are high, low, rest") as caught:
        look(bids.split(high="price > 100", low="price < 10"))
    assert caught.value.hint == "did you mean 'high'?"


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({}, "at least one condition"),
        ({"rest": "price > 1"}, "rest is the part with the records that are in no other part"),
        ({"_x": "price > 1"}, "'_x' cannot be the name"),
        ({"items": "price > 1"}, "the parts have a method 'items'"),
        ({"high": "price"}, "condition 'high' 'price' is of type int64, and a condition must be boolean"),
        ({"high": "prise > 1"}, "prise"),
    ],
)
def test_a_split_that_cannot_work_is_refused_where_it_is_written(bids, conditions, text):
    with pytest.raises(UsageError, match=text):
        bids.split(**conditions)


def test_a_split_of_which_no_part_is_used_is_refused(program, bids):
    bids.split(high="price > 100")
    with pytest.raises(UsageError, match="nothing is done with the results of 'split'"):
        program.plan()


# --- side outputs of functions ---------------------------------------------------------------------------------------


class Alerting(ps.KeyedFunction):
    """Counts the rows of a key, and emits from rows, timers and the end."""

    seen = ps.value_state("seen", "bigint", default=0)

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        if self.seen.get() % 4 == 0:
            context.emit("alerts", {"k": context.key, "what": f"row {row['n']}"})
        context.timers.at_event_time(row["ts"])
        return {"k": context.key, "n": row["n"]}

    def on_timer(self, timer, context):
        context.emit("timers", {"k": context.key, "ts": timer.time})


ALERTS = {"alerts": "k bigint, what string", "timers": "k bigint, ts timestamp"}
TIMED = [{"k": n % 3, "n": n, "ts": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)} for n in range(60)]


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_every_output_of_a_function_come_once_whatever_dies(seed):
    main, alerts, timers = ps.collect(), ps.collect(), ps.collect()

    def program(env):
        rows = env.read(scripted(TIMED, schema="k bigint, n bigint, ts timestamp")).watermark("ts", delay="3s")
        made = rows.key_by("k").process(Alerting(), schema="k bigint, n bigint", sides=ALERTS)
        made.write(main, name="main")
        made.side("alerts").rebalance().write(alerts, name="alerts")
        made.side("timers").key_by("k").reduce(lambda a, b: b).write(timers, name="timers")

    run(program, seed=seed, crashes=3)
    assert sorted(row["n"] for row in main.rows) == list(range(60))
    assert sorted(row["what"] for row in alerts.rows) == sorted(
        f"row {rows[i]['n']}" for k in range(3) for rows in [[r for r in TIMED if r["k"] == k]] for i in range(3, 20, 4)
    )
    assert sorted((row["k"], row["ts"]) for row in timers.rows) == sorted((row["k"], row["ts"]) for row in TIMED)


def test_a_side_output_has_event_time_if_it_has_the_column_of_the_event_time(bids):
    sides = {"timed": "ts timestamp, auction bigint", "plain": "auction bigint"}

    class Nothing(ps.ProcessFunction):
        def on_row(self, row, context):
            return None

    made = bids.watermark("ts").process(Nothing(), schema="auction bigint", sides=sides)
    made.side("timed").key_by("auction").window(ps.tumbling("1s"))
    with pytest.raises(UsageError, match="window needs event time"):
        made.side("plain").key_by("auction").window(ps.tumbling("1s"))


class Plain(ps.ProcessFunction):
    def on_row(self, row, context):
        return row


def test_a_side_output_that_does_not_exist_is_refused_with_the_likely_name(bids):
    made = bids.process(Plain(), schema=bids.schema, sides={"alerts": "n bigint", "others": "n bigint"})
    with pytest.raises(UsageError, match="has no side output 'alert'; there are alerts, others") as caught:
        made.side("alert")
    assert caught.value.hint == "did you mean 'alerts'?"


def test_a_side_output_is_read_right_behind_its_step(bids):
    made = bids.process(Plain(), schema=bids.schema, sides={"alerts": "n bigint"}, name="checked")
    with pytest.raises(UsageError, match=r"the step 'where' made at .* declares no side outputs") as caught:
        made.where("price > 1").side("alerts")
    assert "is declared by 'checked' (process)" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="declares no side outputs") as caught:
        bids.side("alerts")
    assert caught.value.hint == 'declare the side output where the step is made: sides={"alerts": "<columns>"}'


@pytest.mark.parametrize(
    ("sides", "text"),
    [
        ("alerts", "sides is 'alerts'"),
        ({"a b": "n bigint"}, "'a b' cannot be the name of a side output"),
        ({1: "n bigint"}, "1 cannot be the name"),
        ({"alerts": "n nothing"}, r"sides\['alerts'\]"),
    ],
)
def test_side_outputs_that_cannot_work_are_refused_where_they_are_written(bids, sides, text):
    with pytest.raises(UsageError, match=text):
        bids.process(Plain(), schema=bids.schema, sides=sides)


# --- late records ----------------------------------------------------------------------------------------------------

START = datetime(2026, 1, 1, tzinfo=UTC)


def click(key, second, n=0):
    return {"k": key, "n": n, "ts": START + timedelta(seconds=second)}


def disordered(script):
    """Clicks in batches of their own, of which every fifth is a minute behind the others."""
    items = []
    for n in range(script, 60, 3):
        items += [click(n % 4, n if n % 5 else n - 60, n), pause(20)]
    return items


def counted(program_of, **how):
    """The counts of each key and window, and the late rows."""
    results, late = ps.collect(), ps.collect()

    def program(env):
        source = scripted(*map(disordered, range(3)), schema="k bigint, n bigint, ts timestamp")
        made = program_of(env.read(source).watermark("ts", delay="1s"))
        made.write(results, name="results")
        made.late().write(late, name="late")

    run(program, **how)
    return results.rows, late.rows


@pytest.mark.parametrize("seed", range(5))
def test_every_record_counts_in_its_window_or_is_late_once_whatever_dies(seed):
    def windows(stream):
        return stream.key_by("k").window(ps.tumbling("5s")).aggregate(n=ps.count(), top=ps.max("n"))

    results, late = counted(windows, seed=seed, crashes=2, parallelism=3)
    found = Counter({(row["k"], row["window_start"]): row["n"] for row in results})
    assert len(found) == len(results)
    found.update((row["k"], row["ts"].replace(second=row["ts"].second // 5 * 5)) for row in late)
    rows = [item for script in range(3) for item in disordered(script) if isinstance(item, dict)]
    assert found == Counter((row["k"], row["ts"].replace(second=row["ts"].second // 5 * 5)) for row in rows)
    assert {(row["k"], row["n"], row["ts"]) for row in late} <= {(row["k"], row["n"], row["ts"]) for row in rows}
    assert len(late) >= 3


@pytest.mark.parametrize("keys", [("k",), ()], ids=["by key", "over all records"])
@pytest.mark.parametrize(
    ("window", "length"),
    [(ps.tumbling("5s"), 5), (ps.cumulative("6s", "2s"), 6), (ps.session("500 ms"), None)],
    ids=["tumbling", "cumulative", "session"],
)
def test_every_record_counts_in_its_longest_window_or_is_late_once_whatever_dies(window, length, keys):
    def windows(stream):
        return (stream.key_by(*keys) if keys else stream).window(window).aggregate(n=ps.count())

    results, late = counted(windows, seed=1, crashes=2, parallelism=3)
    longest = [row["n"] for row in results if length in (None, (row["window_end"] - row["window_start"]).seconds)]
    assert sum(longest) + len(late) == 60
    assert len({row["n"] for row in late}) == len(late) >= 3


@pytest.mark.parametrize("seed", range(3))
def test_every_record_goes_to_the_function_or_is_late_once_whatever_dies(seed):
    class Same(ps.KeyedFunction):
        def on_row(self, row, context):
            assert context.watermark is None or row["ts"] > context.watermark
            return row

    def functions(stream):
        return stream.key_by("k").process(Same(), schema="k bigint, n bigint, ts timestamp")

    results, late = counted(functions, seed=seed, crashes=2)
    assert sorted(row["n"] for row in (*results, *late)) == list(range(60))
    assert len(late) >= 3


def test_results_are_the_same_whether_late_records_are_read_or_not():
    clicks = [click(1, 1), click(1, 20), pause(100), click(1, 2), click(1, 21), pause(100), click(2, 60)]

    def results(*, reads_late):
        def program(env):
            timed = env.read(scripted(clicks, schema="k bigint, n bigint, ts timestamp")).watermark("ts")
            made = timed.key_by("k").window(ps.tumbling("5s")).aggregate(n=ps.count())
            made.write(kept)
            if reads_late:
                made.late().print()

        kept = ps.collect()
        run(program)
        return sorted((row["k"], row["window_start"], row["n"]) for row in kept.rows)

    assert results(reads_late=True) == results(reads_late=False)
    assert [n for _, _, n in results(reads_late=True)] == [1, 2, 1]


def test_late_records_travel_uncombined_only_if_they_are_read(program, bids, make_sink):
    counts = bids.watermark("ts").key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count())
    late = counts.late()
    counts.write(make_sink(), name="out")
    before = [[o.name for o in v.operators] for v in program.plan().vertices]
    assert before == [["bids", "watermark", "combine"], ["window", "out"]]
    assert late.schema == bids.schema
    late.write(make_sink(), name="late")
    after = program.plan()
    assert [[o.name for o in v.operators] for v in after.vertices] == [
        ["bids", "watermark"],
        ["window", "out"],
        ["late"],
    ]
    assert after.edges[0].keys == ("auction",)
    assert "'late()' of bids.window-auction, forward" in program.explain()


@pytest.mark.parametrize("place", [lambda s: s.global_(), lambda s: s.partition(max), lambda s: s.rebalance()])
def test_records_go_to_windows_with_late_records_by_key_however_they_were_placed_before(
    program, bids, make_sink, place
):
    placed = place(bids.watermark("ts")).key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count())
    placed.late().write(make_sink())
    into_window = program.plan().edges[0]
    assert (into_window.partitioning, into_window.keys) == (Partitioning.HASH, ("auction",))
    assert (into_window.partitioner, program.plan().vertex(into_window.downstream).at_most) == (None, None)


def test_late_records_need_a_watermark_of_their_own_before_a_window(bids):
    late = bids.watermark("ts").key_by("auction").window(ps.tumbling("1s")).aggregate(n=ps.count()).late()
    with pytest.raises(UsageError, match="are behind the watermark, and need a watermark of their own"):
        late.key_by("auction").window(ps.tumbling("1s"))
    late.watermark("ts", delay="1h").key_by("auction").window(ps.tumbling("1s"))


def test_windows_of_late_records_count_them():
    clicks = [click(1, 1), click(1, 20), pause(100), click(1, 2), click(1, 3)]

    def program(env):
        timed = env.read(scripted(clicks, schema="k bigint, n bigint, ts timestamp")).watermark("ts")
        late = timed.key_by("k").window(ps.tumbling("5s")).aggregate(n=ps.count()).late()
        again = late.watermark("ts").key_by("k").window(ps.tumbling("5s")).aggregate(n=ps.count())
        again.write(ps.collect())

    assert [row["n"] for row in run(program)] == [2]


@pytest.mark.parametrize("make", [lambda s: s.where("price > 1"), lambda s: s.process(Plain(), schema=s.schema)])
def test_a_step_that_does_not_know_event_time_has_no_late_records(bids, make):
    with pytest.raises(UsageError, match="does not know which records are late") as caught:
        make(bids).late()
    assert "behind a watermark" in (caught.value.hint or "")
