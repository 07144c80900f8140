"""Streams that become one, and records that go to every subtask."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.api.aggregates import count
from penstock.api.naming import operator_ids
from penstock.api.program import Program
from penstock.api.steps import UnionStep, WhereStep, WriteStep
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning


@pytest.fixture
def asks(program, make_source):
    return program.read(make_source("asks"))


def windowed(stream):
    return stream.key_by("auction").window(tumbling("10s")).aggregate(n=count())


# --- union -----------------------------------------------------------------------------------------------------------


def test_a_union_has_all_streams_as_its_inputs_each_as_it_was_distributed(program, bids, asks, make_sink):
    bids.union(asks.rebalance(), bids.broadcast().where("price > 1")).write(make_sink())
    plan = program.plan()
    union = next(vertex for vertex in plan.vertices if isinstance(vertex.operators[0].step, UnionStep))
    assert [type(operator.step) for operator in union.operators] == [UnionStep, WriteStep]
    assert [(edge.upstream, edge.partitioning) for edge in plan.inputs_of(union.vertex)] == [
        ("bids", Partitioning.FORWARD),
        ("asks", Partitioning.REBALANCE),
        ("bids.where", Partitioning.FORWARD),
    ]


def test_a_union_is_shown_below_each_of_its_streams(program, bids, asks, make_sink):
    bids.union(asks).write(make_sink(), name="all")
    assert program.explain() == (
        "parallelism 2 of at most 128\n"
        "\n"
        "[1] bids  (source, 2 subtasks)\n"
        " │   bids  bids\n"
        " └─ forward ─► [3] union → all  (2 subtasks)\n"
        "         union  asks-and-bids.union\n"
        "         all    all\n"
        "\n"
        "[2] asks  (source, 2 subtasks)\n"
        " │   asks  asks\n"
        " └─ forward ─► [3] union → all  (see above)"
    )


def test_the_order_of_the_streams_changes_no_id(make_source, make_sink):
    def ids(swapped):
        program = Program()
        bids, asks = program.read(make_source()).watermark("ts"), program.read(make_source("asks")).watermark("ts")
        windowed(asks.union(bids) if swapped else bids.union(asks)).write(make_sink())
        found = operator_ids(program._ledger.steps)
        return sorted(found[step.number] for step in program._ledger.steps if step.has_state)

    assert ids(swapped=True) == ids(swapped=False)
    assert "asks-and-bids.window-auction" in ids(swapped=True)


def test_a_stream_can_be_united_with_a_part_of_itself(program, bids, make_sink):
    bids.union(bids, bids.where("price > 1")).write(make_sink())
    assert [edge.upstream for edge in program.plan().edges] == ["bids", "bids", "bids", "bids.where"]
    assert "bids.to-picky" in program.explain()


@pytest.mark.parametrize(
    ("columns", "difference"),
    [
        ("auction bigint, bidder bigint, ts timestamp", "it has no column 'price'"),
        ("auction bigint, bidder bigint, price bigint, ts timestamp, x int", "it also has a column 'x'"),
        (
            "auction bigint, bidder string, price double, ts timestamp",
            "column 'bidder' is string instead of int64; column 'price' is double instead of int64",
        ),
        (
            "bidder bigint, auction bigint, price bigint, ts timestamp",
            "its columns come in the order bidder, auction, price, ts instead of auction, bidder, price, ts",
        ),
    ],
)
def test_streams_with_other_columns_are_refused_and_the_difference_is_named(
    program, bids, asks, make_source, columns, difference
):
    other = program.read(make_source("other", columns))
    with pytest.raises(UsageError) as caught:
        bids.union(asks, other)
    expected = f"union needs streams with the same columns; stream 3 differs from the first: {difference}"
    assert caught.value.message == expected


def test_a_column_may_be_null_if_it_may_be_in_one_of_the_streams(program, make_source):
    def schema(*nullable):
        return pa.schema([pa.field(name, pa.int64(), nullable=name in nullable) for name in ("a", "b", "c")])

    one, other = (program.read(make_source(n, schema(*names))) for n, names in (("one", "a"), ("other", "b")))
    assert one.union(other).schema == schema("a", "b")


@pytest.mark.parametrize(
    ("others", "fact"),
    [
        (lambda bids: (), "union needs at least one other stream"),
        (lambda bids: (7,), "union takes streams, not 7"),
        (lambda bids: (bids.key_by("auction"),), "union takes streams, not <KeyedStream by auction of 'bids'"),
    ],
)
def test_only_streams_can_be_united(bids, others, fact):
    with pytest.raises(UsageError) as caught:
        bids.union(*others(bids))
    assert caught.value.message.startswith(fact)


def test_a_stream_of_another_environment_is_refused(bids, make_source):
    foreign = Program().read(make_source())
    with pytest.raises(
        UsageError, match="union takes streams of one environment, and one of these streams is of another environment"
    ):
        bids.union(foreign)


def test_event_time_is_kept_if_all_have_it_in_the_same_column(bids, asks):
    windowed(bids.watermark("ts").union(asks.watermark("ts", delay="5s")))


@pytest.mark.parametrize(
    ("second", "places"),
    [
        (lambda asks: asks, "in 'ts' and nowhere"),
        (lambda asks: asks.with_columns(ts="ts", at="ts").watermark("at"), "in 'ts' and in 'at'"),
    ],
)
def test_event_time_in_different_columns_is_lost_and_the_error_says_where(bids, asks, second, places):
    first = bids.with_columns(at="ts") if "at" in second(asks).schema.names else bids
    with pytest.raises(UsageError) as caught:
        windowed(first.watermark("ts").union(second(asks), name="both"))
    assert "the streams of 'both' (union) made at test_unions.py:" in caught.value.message
    assert caught.value.message.endswith(f"have event time {places}")


def test_without_any_event_time_the_error_says_what_was_lost_before(bids, asks):
    lost = bids.watermark("ts").drop("ts")
    with pytest.raises(UsageError, match="the event time in 'ts' was lost in 'drop' made at"):
        windowed(lost.union(asks.drop("ts")))


# --- broadcast -------------------------------------------------------------------------------------------------------


def test_a_broadcast_ends_a_chain_and_changes_no_column(program, bids, make_sink):
    shared = bids.watermark("ts").broadcast()
    assert shared.schema == bids.schema
    assert "; event time in ts" in repr(shared)
    shared.where("price > 1").write(make_sink())
    (edge,) = program.plan().edges
    assert edge.partitioning is Partitioning.BROADCAST
    assert isinstance(program.plan().vertex(edge.downstream).operators[0].step, WhereStep)
