"""Two keyed streams that are connected: what is refused, and whole jobs of such functions whose processes die."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

import penstock as ps
from penstock.core.errors import UsageError
from penstock.testing import collect, crash, pause, run, scripted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ORDERS = "id string, ts timestamp, price bigint"
PAYMENTS = "order string, paid timestamp, amount bigint"


class Rest(ps.KeyedCoFunction):
    """What is left to be paid a minute after the order."""

    rest = ps.value_state("rest", "bigint", default=0)

    def on_left(self, row, context):
        self.rest.set(self.rest.get() + row["price"])
        context.timers.at_event_time(row["ts"] + timedelta(minutes=1))

    def on_right(self, row, context):
        self.rest.set(self.rest.get() - row["amount"])

    def on_timer(self, timer, context):
        context.emit("seen", {"id": context.key})
        return {"id": context.key, "rest": self.rest.get()} if self.rest.get() else None


def streams(env, orders=ORDERS, payments=PAYMENTS):
    return (
        env.read(scripted([], schema=orders), name="orders").watermark("ts"),
        env.read(scripted([], schema=payments), name="payments").watermark("paid"),
    )


def refused(build, match):
    with pytest.raises(UsageError, match=match):
        run(build)


def test_keys_of_other_types_are_refused_with_both_types():
    def build(env):
        orders, payments = streams(env)
        orders.key_by("id").connect(payments.key_by("amount"))

    refused(build, r"this stream are by id string, .* other stream are by amount int64")


def test_another_number_of_key_columns_is_refused():
    def build(env):
        orders, payments = streams(env)
        orders.key_by("id", "price").connect(payments.key_by("order"))

    refused(build, r"by id string, price int64, .* by order string")


def test_a_keyed_stream_is_not_waited_for():
    def build(env):
        orders, payments = streams(env)
        orders.key_by("id").connect(payments.key_by("order"), wait="end")

    refused(build, "only a broadcast stream is waited for")


def test_a_function_over_two_streams_needs_two_streams():
    refused(
        lambda env: streams(env)[0].key_by("id").process(Rest(), schema="id string, rest bigint"),
        "Rest needs two keyed streams",
    )


def test_a_function_over_one_stream_is_refused():
    class One(ps.KeyedFunction):
        def on_row(self, row, context):
            return None

    def build(env):
        orders, payments = streams(env)
        orders.key_by("id").connect(payments.key_by("order")).process(One(), schema="id string")

    refused(build, "function of class KeyedCoFunction")


def test_both_methods_must_be_written():
    class Half(ps.KeyedCoFunction):
        def on_left(self, row, context):
            return None

    def build(env):
        orders, payments = streams(env)
        orders.key_by("id").connect(payments.key_by("order")).process(Half(), schema="id string")

    refused(build, "Half has no on_right")


def test_a_changelog_is_refused():
    def build(env):
        orders, payments = streams(env)
        counts = orders.key_by("id").aggregate(n=ps.count())
        counts.key_by("id").connect(payments.key_by("order")).process(Rest(), schema="id string, rest bigint")

    refused(build, "changelog")


def test_a_stream_may_be_connected_with_itself():
    rows = [{"id": "a", "ts": NOON, "price": 5}, {"id": "b", "ts": NOON, "price": 7}]

    class Counts(ps.KeyedCoFunction):
        seen = ps.list_state("seen", "string")

        def on_left(self, row, context):
            return self.add("left")

        def on_right(self, row, context):
            return self.add("right")

        def add(self, side):
            self.seen.add(side)
            return {"sides": ",".join(sorted(self.seen.get()))} if len(self.seen.get()) == 2 else None

    def build(env):
        orders = env.from_iterable(rows, schema=ORDERS).key_by("id")
        orders.connect(orders).process(Counts(), schema="sides string").write(collect())

    assert run(build) == [{"sides": "left,right"}] * 2


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_record_of_both_streams_counts_once_whatever_dies(seed, parallelism):
    """Payments come long after their orders in real time, and before the timers of their orders in event time."""
    users = [f"u{n}" for n in range(12)]
    orders = [{"id": user, "ts": n * 1_000_000, "price": 10 + n} for n, user in enumerate(users)]
    paid = [{"order": user, "paid": n * 1_000_000, "amount": 10} for n, user in enumerate(users)]

    def build(env):
        left = env.read(scripted(orders[:6], orders[6:], schema=ORDERS), name="orders").watermark("ts")
        script = [pause(200), *paid[:5], crash(), *paid[5:]]
        right = env.read(scripted(script, schema=PAYMENTS), name="payments").watermark("paid", delay="20s")
        both = left.key_by("id").connect(right.key_by("order"))
        rest = both.process(Rest(), schema="id string, rest bigint", sides={"seen": "id string"}, name="rest")
        told = rest.side("seen").with_columns(rest="CAST(-1 AS bigint)")
        rest.union(told).write(collect())

    rows = run(build, seed=seed, parallelism=parallelism, crashes=2, checkpoint_interval="30ms")
    found = Counter((row["id"], row["rest"]) for row in rows)
    wanted = {(user, n) for n, user in enumerate(users) if n} | {(user, -1) for user in users}
    assert found == Counter(wanted)


def test_late_records_of_the_right_stream_are_read():
    later = {"order": "b", "paid": NOON + timedelta(hours=1), "amount": 1}

    def build(env):
        orders = scripted([{"id": "a", "ts": NOON + timedelta(hours=2), "price": 5}], schema=ORDERS)
        left = env.read(orders, name="orders").watermark("ts")
        script = scripted([later, pause(300), {"order": "a", "paid": NOON, "amount": 1}], schema=PAYMENTS)
        right = env.read(script, name="payments").watermark("paid")
        both = left.key_by("id").connect(right.key_by("order"))
        rest = both.process(Rest(), schema="id string, rest bigint", sides={"seen": "id string"}, name="rest")
        rest.late(of="right").select("order").write(collect())

    assert run(build) == [{"order": "a"}]


def test_without_a_watermark_the_other_stream_does_not_hold_event_time_back():
    order = {"id": "a", "ts": NOON, "price": 5}
    much_later = {"id": "b", "ts": NOON + timedelta(hours=1), "price": 0}

    def build(env):
        left = env.read(scripted([order, much_later, pause(500)], schema=ORDERS), name="orders").watermark("ts")
        script = [pause(300), {"order": "a", "paid": NOON, "amount": 5}]
        right = env.read(scripted(script, schema=PAYMENTS), name="payments")
        both = left.key_by("id").connect(right.key_by("order"))
        both.process(Rest(), schema="id string, rest bigint", sides={"seen": "id string"}, name="rest").write(collect())

    # The timer of the order has fired before the payment came.
    assert run(build) == [{"id": "a", "rest": 5}]
