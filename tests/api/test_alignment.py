"""Which sources can be aligned is known when the program is built."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import penstock as ps
from penstock.api.program import Program
from penstock.core.errors import UsageError
from penstock.testing import collect

TOGETHER = ps.alignment("shop", max_drift="1 min", update_interval=timedelta(seconds=2))
ROWS = [{"n": 1, "ts": 0}]


def clicks(env: Program, name: str = "clicks"):
    return env.from_iterable(ROWS, schema="n bigint, ts timestamp", name=name)


def test_durations_are_as_everywhere():
    assert (TOGETHER.group, TOGETHER.drift_us, TOGETHER.interval_ms) == ("shop", 60_000_000, 2_000)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"group": " ", "max_drift": "1s"}, "group is ' '"),
        ({"group": 7, "max_drift": "1s"}, "group is 7"),
        ({"group": "a", "max_drift": 5}, "max_drift"),
        ({"group": "a", "max_drift": "1s", "update_interval": "0s"}, "update_interval is '0s'"),
    ],
)
def test_mistakes_are_told(given, text):
    with pytest.raises(UsageError, match=text):
        ps.alignment(given.pop("group"), **given)


def test_a_name_is_no_alignment(program):
    with pytest.raises(UsageError, match="align is 'shop'") as raised:
        clicks(program).watermark("ts", align="shop")
    assert "ps.alignment(" in str(raised.value.hint)


def test_a_source_is_aligned_through_the_steps_of_its_task(program):
    clicks(program).where("n > 0").watermark("ts", align=TOGETHER).write(collect())
    program.plan()


@pytest.mark.parametrize("moved", ["rebalance", "union", "fork"])
def test_only_a_source_can_be_aligned(program, moved):
    stream = clicks(program)
    if moved == "rebalance":
        stream = stream.rebalance()
    elif moved == "union":
        stream = stream.union(clicks(program, "more"))
    else:
        stream.where("n > 0").write(collect())
    stream.watermark("ts", align=TOGETHER, name="timed").write(collect(), name="out")
    with pytest.raises(UsageError, match="'timed' is aligned, and is not in the task of a source"):
        program.plan()


def test_a_source_has_one_aligned_watermark(program):
    stream = clicks(program).watermark("ts", align=TOGETHER)
    stream.watermark("ts", align=TOGETHER).write(collect())
    with pytest.raises(UsageError, match="source 'clicks' has 2 aligned watermarks"):
        program.plan()


class Rules(ps.KeyedBroadcastFunction):
    def on_row(self, row, context):
        return row

    def on_broadcast(self, row, context):
        return None


def waits(program, wait, *, of_clicks=TOGETHER, of_rules=TOGETHER):
    """Clicks that wait for a stream of rules, behind further steps of either."""
    rows = clicks(program).watermark("ts", align=of_clicks).where("n > 0")
    rules = clicks(program, "rules").watermark("ts", align=of_rules).rebalance().where("n > 1")
    both = rows.key_by("n").connect(rules, wait=wait)
    both.process(Rules(), schema="n bigint, ts timestamp").write(collect())
    return program.plan()


def test_records_do_not_wait_for_the_end_of_a_stream_that_they_hold_back(program):
    with pytest.raises(UsageError, match="each would wait for the other") as raised:
        waits(program, "end")
    assert "'clicks' wait for source 'rules'" in str(raised.value)
    assert "'shop'" in str(raised.value)


@pytest.mark.parametrize("wait", [None, "30s", datetime(2026, 1, 1, tzinfo=UTC)])
def test_records_of_one_group_may_wait_for_a_time_or_not_at_all(program, wait):
    assert waits(program, wait).vertices


@pytest.mark.parametrize("other", [None, ps.alignment("other", max_drift="1s")])
@pytest.mark.parametrize("side", ["of_clicks", "of_rules"])
def test_records_may_wait_for_a_stream_that_is_not_aligned_with_them(program, side, other):
    assert waits(program, "end", **{side: other}).vertices
