"""Connected streams whose keyed records wait for the broadcast ones, in a simulated cluster whose processes die."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.settings import CheckpointSettings, Mode
from penstock.testing import collect, crash, pause, run, runs, scripted

SEEDS = range(6)
KEYS = 7
ROWS = 60


class Priced(ps.KeyedBroadcastFunction):
    """What a row costs, by the rules that there are; and how many rows of its key came before."""

    prices = ps.broadcast_state("prices", key="string", value="bigint")
    seen = ps.value_state("seen", "bigint", default=0)

    def on_broadcast(self, row, context):
        self.prices[row["item"]] = row["price"]

    def on_row(self, row, context):
        self.seen.set(self.seen.get() + 1)
        yield {"user": row["user"], "n": self.seen.get(), "price": self.prices.get("tea", -1)}


def rules(*script, at=0):
    return scripted([*script, {"item": "tea", "price": 3, "at": at}], schema="item string, price bigint, at timestamp")


def orders(count=ROWS):
    return scripted(
        [{"user": f"u{n % KEYS}", "at": n * 1_000_000} for n in range(count)], schema="user string, at timestamp"
    )


def build(rule_source, order_source, wait):
    def write(env):
        rule_stream = env.read(rule_source, name="rules").watermark("at")
        order_stream = env.read(order_source, name="orders").watermark("at", delay="1s")
        connected = order_stream.key_by("user").connect(rule_stream, wait=wait)
        connected.process(Priced(), schema="user string, n bigint, price bigint", name="priced").write(collect())

    return write


def expected(price=3):
    per_user = {f"u{u}": len(range(u, ROWS, KEYS)) for u in range(KEYS)}
    return sorted((user, n, price) for user, count in per_user.items() for n in range(1, count + 1))


def found(rows):
    return sorted((row["user"], row["n"], row["price"]) for row in rows)


def test_without_waiting_records_may_come_before_any_rule():
    rows = run(build(rules(pause(500)), orders(), None))
    assert {row["price"] for row in rows} >= {-1}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_comes_before_the_rules_have_ended_and_none_is_lost_or_repeated(seed, parallelism):
    """Checkpoints are taken while the records wait, and processes die: what was read for a checkpoint is in it."""
    rows = run(build(rules(pause(500)), orders(), "end"), seed=seed, parallelism=parallelism, crashes=2)
    assert found(rows) == expected()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_process_that_dies_while_records_wait_loses_none(seed):
    slow = rules(pause(200), {"item": "tea", "price": 1, "at": 0}, pause(200), crash(), pause(200))
    rows = run(build(slow, orders(), "end"), seed=seed, crashes=1, checkpoint_interval="20ms")
    assert found(rows) == expected()


@pytest.mark.parametrize("seed", range(4))
def test_barriers_that_overtake_the_records_that_wait_lose_none(seed, monkeypatch):
    unaligned = partial(CheckpointSettings, unaligned=True)
    monkeypatch.setattr(runs, "CheckpointSettings", unaligned)
    slow = rules(pause(300), crash(), pause(300))
    rows = run(build(slow, orders(), "end"), seed=seed, crashes=2, checkpoint_interval="20ms")
    assert found(rows) == expected()


@pytest.mark.parametrize("seed", range(3))
def test_without_alignment_no_record_comes_before_the_rules_either(seed, monkeypatch):
    repeating = partial(CheckpointSettings, mode=Mode.AT_LEAST_ONCE)
    monkeypatch.setattr(runs, "CheckpointSettings", repeating)
    rows = run(build(rules(pause(300)), orders(), "end"), seed=seed, checkpoint_interval="20ms")
    assert found(rows) == expected()


@pytest.mark.parametrize("seed", SEEDS)
def test_event_time_of_the_rules_can_be_waited_for(seed):
    later = 100_000_000
    script = rules(pause(300), {"item": "tea", "price": 3, "at": 50_000_000}, pause(300), at=later)
    when = datetime.fromtimestamp(later / 1_000_000, UTC)
    rows = run(build(script, orders(), when), seed=seed, crashes=1)
    assert found(rows) == expected()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_time_can_be_waited_for(seed):
    late = rules(pause(100), {"item": "tea", "price": 3, "at": 0}, pause(10_000))
    rows = run(build(late, orders(), timedelta(seconds=5)), seed=seed)
    assert found(rows) == expected()


def test_what_cannot_be_waited_for_is_refused():
    def timeless(env):
        plain = env.read(rules(), name="rules")
        env.read(orders(), name="orders").key_by("user").connect(plain, wait=datetime(2026, 1, 1, tzinfo=UTC))

    with pytest.raises(UsageError, match="a point of event time, and the broadcast stream has no event time"):
        run(timeless)
    with pytest.raises(UsageError, match="wait is 'soon'"):
        run(build(rules(), orders(), "soon"))
