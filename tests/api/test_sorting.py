"""Records in the order of their event time: what is refused, and whole jobs whose processes die."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.testing import collect, crash, pause, run, scripted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "user string, n bigint, ts timestamp"


def event(user, n, second):
    return {"user": user, "n": n, "ts": NOON + timedelta(seconds=second)}


def events(env, *scripts, delay="10s"):
    return env.read(scripted(*scripts, schema=SCHEMA), name="events").watermark("ts", delay=delay)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda stream: stream.sort("n"), "event time first, which is in 'ts', and by begins with n"),
        (lambda stream: stream.sort("ts", descending=True), "by begins with ts descending"),
        (lambda stream: stream.sort(["ts", "n"], descending=[True, False]), "by begins with ts descending"),
        (lambda stream: stream.sort(["ts", "m"]), "m"),
        (lambda stream: stream.sort(["ts", "n"], descending=[False]), "a direction for each"),
        (lambda stream: stream.sort([]), "a direction for each"),
        (lambda stream: stream.key_by("user").aggregate(n=ps.count()).sort(), "sort takes records that stay"),
        (lambda stream: stream.select("user").sort(), "sort needs event time, and this stream has none"),
        (lambda stream: stream.with_columns(a="array(n)").sort(["ts", "a"]), "cannot be ordered by column 'a'"),
    ],
)
def test_an_order_that_cannot_be_made_is_refused(build, match):
    with pytest.raises(UsageError, match=match):
        run(lambda env: build(events(env, [event("a", 1, 0)])).write(collect()))


def test_one_direction_is_that_of_the_further_columns():
    rows = [event("a", n, second) for second in (2, 1) for n in (1, 3, 2)]
    found = run(lambda env: events(env, rows).sort(["ts", "n"], descending=True).write(collect()))
    assert [(row["ts"].second, row["n"]) for row in found] == [(1, 3), (1, 2), (1, 1), (2, 3), (2, 2), (2, 1)]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_all_records_are_in_order_in_a_single_subtask_whatever_dies(seed, parallelism):
    rows = [event(f"u{n % 4}", n, n * 37 % 50) for n in range(50)]
    scripts = [[*rows[:10], pause(50), crash(), *rows[10:25]], [*rows[25:40], pause(30), *rows[40:]]]
    found = run(
        lambda env: events(env, *scripts, delay="60s").sort().write(collect()),
        seed=seed,
        parallelism=parallelism,
        crashes=2,
        checkpoint_interval="30ms",
    )
    assert [row["ts"] for row in found] == sorted(row["ts"] for row in rows)


@pytest.mark.parametrize("seed", range(3))
def test_the_records_of_each_key_are_in_order_for_another_step_by_the_key(seed):
    class Last(ps.KeyedFunction):
        seen = ps.value_state("seen", "timestamp")

        def on_row(self, row, context):
            before = self.seen.get()
            self.seen.set(row["ts"])
            return {"n": row["n"], "in_order": before is None or before <= row["ts"]}

    rows = [event(f"u{n % 4}", n, n * 37 % 50) for n in range(50)]
    scripts = [rows[::2], [*rows[1::4], pause(50), *rows[3::4]]]

    def build(env):
        ordered = events(env, *scripts, delay="60s").key_by("user").sort()
        ordered.key_by("user").process(Last(), schema="n bigint, in_order boolean").write(collect())

    found = run(build, seed=seed, parallelism=3, crashes=2)
    assert sorted(row["n"] for row in found) == list(range(50))
    assert all(row["in_order"] for row in found)


def test_windows_follow_a_sort_and_late_records_are_read():
    rows = [event("a", 1, 5), event("a", 2, 3), event("a", 3, 30), pause(200), event("a", 4, 1)]
    late, counts = collect(), collect()

    def build(env):
        ordered = events(env, rows).sort()
        ordered.late().write(late)
        ordered.key_by("user").window(ps.tumbling("10s")).aggregate(n=ps.count()).write(counts)

    run(build, parallelism=1)
    assert [row["n"] for row in late.rows] == [4]
    assert sorted(row["n"] for row in counts.rows) == [1, 2]


def test_results_of_windows_can_be_sorted():
    rows = [event(f"u{n}", n, n * 7 % 40) for n in range(30)]

    def build(env):
        counts = events(env, rows, delay="60s").key_by("user").window(ps.tumbling("10s")).aggregate(n=ps.count())
        counts.sort(["window_end", "user"]).select("user", "window_end").write(collect())

    found = run(build, parallelism=3, crashes=1)
    assert len(found) == 30
    assert found == sorted(found, key=lambda row: (row["window_end"], row["user"]))
