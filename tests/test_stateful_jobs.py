"""Whole jobs of functions with state, in a simulated cluster whose processes die."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest

import penstock as ps
from penstock.core.errors import JobFailed
from penstock.testing import collect, crash, pause, run, scripted

SEEDS = range(4)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(seconds):
    return EPOCH + timedelta(seconds=seconds)


def clicks(count=60, users=5):
    return [{"user": f"u{n % users}", "page": f"p{n % 3}", "ts": n * 1_000_000} for n in range(count)]


def source(*scripts, **changes):
    return scripted(*scripts, schema="user string, page string, ts timestamp", **changes)


class Count(ps.KeyedFunction):
    seen = ps.value_state("seen", "bigint", default=0)
    pages = ps.map_state("pages", key="string", value="bigint")
    last = ps.list_state("last", "timestamp")

    def on_row(self, row, context):
        n = self.seen.get() + 1
        self.seen.set(n)
        self.pages[row["page"]] = self.pages.get(row["page"], 0) + 1
        self.last.set([*self.last.get(), row["ts"]][-2:])
        assert context.key == row["user"]
        yield {"user": row["user"], "n": n, "pages": sum(self.pages.values()), "last": len(self.last.get())}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_row_changes_state_once_whatever_dies(seed, parallelism):
    def build(env):
        read = env.read(source(clicks()))
        counted = read.key_by("user").process(Count(), schema="user string, n bigint, pages bigint, last int")
        counted.write(collect())

    rows = run(build, seed=seed, parallelism=parallelism, crashes=2)
    by_user = defaultdict(list)
    for row in rows:
        by_user[row["user"]].append((row["n"], row["pages"], row["last"]))
    assert {user: sorted(found) for user, found in by_user.items()} == {
        f"u{user}": [(n, n, min(n, 2)) for n in range(1, 13)] for user in range(5)
    }


class Sessions(ps.KeyedFunction):
    """The number of clicks until nothing came for ten seconds of event time."""

    clicks = ps.value_state("clicks", "bigint", default=0)
    ends = ps.value_state("ends", "timestamp")

    def on_row(self, row, context):
        ends = self.ends.get()
        if ends is not None:
            context.timers.delete_event_time(ends)
            # How far the watermark has come when a row is handled is a matter of luck; what a row says is not.
            if row["ts"] >= ends:
                yield self.close_session(context)
        self.clicks.set(self.clicks.get() + 1)
        self.ends.set(row["ts"] + timedelta(seconds=10))
        context.timers.at_event_time(self.ends.get())

    def on_timer(self, timer, context):
        assert timer.kind == "event-time"
        assert timer.time == self.ends.get()
        assert context.timers.event_times() == []
        return self.close_session(context)

    def close_session(self, context):
        result = {"user": context.key, "n": self.clicks.get(), "ends": self.ends.get()}
        self.clicks.clear()
        self.ends.clear()
        return result


@pytest.mark.parametrize("seed", SEEDS)
def test_event_time_timers_fire_once_whatever_dies(seed):
    times = {"a": [0, 5, 14, 40, 41], "b": [3, 20, 29, 38], "c": [50]}
    rows = [{"user": u, "page": "p", "ts": t * 1_000_000} for u, found in times.items() for t in found]
    rows.sort(key=lambda row: row["ts"])
    sessions = source([*rows[:4], crash(), *rows[4:]])

    def build(env):
        read = env.read(sessions).watermark("ts", delay="1s")
        read.key_by("user").process(Sessions(), schema="user string, n bigint, ends timestamp").write(collect())

    found = run(build, seed=seed, parallelism=2, crashes=1)
    assert sorted((row["user"], row["ends"], row["n"]) for row in found) == [
        ("a", at(24), 3),
        ("a", at(51), 2),
        ("b", at(13), 1),
        ("b", at(48), 3),
        ("c", at(60), 1),
    ]


class Alarm(ps.KeyedFunction):
    """Says so when nothing has come for 50 ms of processing time."""

    last = ps.value_state("last", "timestamp")

    def on_row(self, row, context):
        due = context.processing_time + timedelta(milliseconds=50)
        if (before := self.last.get()) is not None:
            context.timers.delete_processing_time(before)
        self.last.set(due)
        context.timers.at_processing_time(due)

    def on_timer(self, timer, context):
        assert timer.kind == "processing-time"
        assert context.processing_time >= timer.time
        self.last.clear()
        return {"user": context.key}


@pytest.mark.parametrize("seed", SEEDS)
def test_processing_time_timers_fire_by_the_clock_and_not_at_the_end(seed):
    silence = [{"user": "a", "page": "p", "ts": 0}, pause(5_000), {"user": "b", "page": "p", "ts": 1}]

    def build(env):
        env.read(source(silence)).key_by("user").process(Alarm(), schema="user string").write(collect())

    assert run(build, seed=seed, parallelism=2) == [{"user": "a"}]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_running_reduce_sees_every_row_once(seed):
    def longest(before, row):
        return {**row, "page": max(before["page"], row["page"]), "ts": max(before["ts"], row["ts"])}

    def build(env):
        env.read(source(clicks(30, 3))).key_by("user").reduce(longest).write(collect())

    rows = run(build, seed=seed, parallelism=2, crashes=1)
    assert len(rows) == 30
    assert {user: max(r["ts"] for r in rows if r["user"] == user) for user in ("u0", "u1", "u2")} == {
        "u0": at(27),
        "u1": at(28),
        "u2": at(29),
    }


class Rules(ps.KeyedBroadcastFunction):
    """Marks clicks by rules that came before them, and counts them by key."""

    rules = ps.broadcast_state("rules", key="string", value="bigint")
    seen = ps.value_state("seen", "bigint", default=0)

    def on_broadcast(self, row, context):
        assert context.key is None
        self.rules[row["page"]] = row["weight"]

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + self.rules.get(row["page"], 0))
        context.timers.at_event_time(at(1_000))

    def on_timer(self, timer, context):
        return {"user": context.key, "n": self.seen.get(), "rules": sorted(self.rules)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("timed", [False, True])
def test_broadcast_rows_reach_every_subtask_and_outlive_a_crash(seed, timed):
    def build(env):
        rules = [{"page": f"p{n}", "weight": 10**n, "ts": 1} for n in range(3)]
        told = env.read(scripted(rules, schema="page string, weight bigint, ts timestamp"), name="rules")
        if timed:
            told = told.watermark("ts")
        # The rules are all there before the first click.
        read = env.read(source([pause(3_000), *clicks(30)])).watermark("ts")
        joined = read.key_by("user").connect(told)
        joined.process(Rules(), schema="user string, n bigint, rules array<string>").write(collect())

    rows = run(build, seed=seed, parallelism=2, crashes=2)
    expected = Counter()
    for row in clicks(30):
        expected[row["user"]] += 10 ** int(row["page"][1:])
    assert {row["user"]: row["n"] for row in rows} == expected
    assert all(row["rules"] == ["p0", "p1", "p2"] for row in rows)
    assert len(rows) == 5


class Buffered(ps.ProcessFunction):
    """Hands rows on in threes; what waits is a split list."""

    waiting = ps.split_list_state("waiting", object)
    total = ps.union_list_state("total", "bigint")

    def on_row(self, row, context):
        self.waiting.add(row)
        if len(self.waiting.get()) == 3:
            yield from self.waiting.get()
            self.waiting.clear()

    def on_end(self, context):
        return self.waiting.get()


@pytest.mark.parametrize("seed", SEEDS)
def test_operator_state_of_a_stream_without_key_loses_nothing(seed):
    def build(env):
        read = env.read(source(clicks(20), clicks(13)))
        read.process(Buffered(), schema=read.schema).write(collect())

    rows = run(build, seed=seed, parallelism=2, crashes=2)
    assert Counter(row["ts"] for row in rows) == Counter(
        at(row["ts"] // 1_000_000) for script in (clicks(20), clicks(13)) for row in script
    )


class ByBatch(ps.ProcessFunction):
    seen = ps.split_list_state("seen", "bigint")

    def on_batch(self, batch, context):
        self.seen.add(batch.num_rows)
        return batch.select(["user"])

    def on_end(self, context):
        yield {"user": f"total {sum(self.seen.get())}"}


def test_a_function_over_batches_has_state_too():
    def build(env):
        env.read(source(clicks(20))).process(ByBatch(), schema="user string").write(collect())

    rows = run(build, seed=1, parallelism=1, crashes=1)
    assert rows[-1] == {"user": "total 20"}
    assert len(rows) == 21


@pytest.mark.parametrize("seed", SEEDS)
def test_records_of_one_key_meet_in_one_subtask_after_repartition(seed):
    def build(env):
        read = env.read(source(clicks(30), clicks(30))).repartition("user")
        read.process(Where(), schema="user string, subtask int").write(collect())

    rows = run(build, seed=seed, parallelism=3)
    assert len(rows) == 60
    subtasks = {(row["user"], row["subtask"]) for row in rows}
    assert len(subtasks) == 5


class Where(ps.ProcessFunction):
    def on_row(self, row, context):
        assert 0 <= context.subtask < context.parallelism == 3
        return {"user": row["user"], "subtask": context.subtask}


class Failing(ps.KeyedFunction):
    def on_row(self, row, context):
        raise ValueError("not this one")


def test_what_a_function_raises_names_the_step():
    def build(env):
        env.read(source(clicks(3))).key_by("user").process(Failing(), schema="n int", name="broken").write(collect())

    with pytest.raises(JobFailed, match=r"broken.*|not this one"):
        run(build, seed=1)


def test_an_event_time_timer_without_a_watermark_is_refused_with_what_to_add():
    def build(env):
        read = env.read(source(clicks(3)))
        read.key_by("user").process(Sessions(), schema="user string, n bigint, ends timestamp").write(collect())

    with pytest.raises(JobFailed, match="at_event_time needs event time, and no step before this step has a watermark"):
        run(build)


class Pages(ps.KeyedFunction):
    pages = ps.list_state("pages", "string")

    def on_row(self, row, context):
        known = row["page"] in self.pages
        self.pages.add(row["page"])
        yield {"n": len(self.pages), "known": known, "all": "".join(self.pages)}


def test_a_list_is_iterated_counted_and_looked_into_like_a_list():
    def build(env):
        read = env.read(source(clicks(4, 1)))
        read.key_by("user").process(Pages(), schema="n int, known boolean, all string").write(collect())

    assert run(build) == [
        {"n": 1, "known": False, "all": "p0"},
        {"n": 2, "known": False, "all": "p0p1"},
        {"n": 3, "known": False, "all": "p0p1p2"},
        {"n": 4, "known": True, "all": "p0p1p2p0"},
    ]
