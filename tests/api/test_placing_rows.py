"""Where records go: to one subtask, to the subtasks that a function chooses, and to steps with fewer subtasks."""

from __future__ import annotations

import functools

import pytest

from penstock.api.aggregates import count
from penstock.api.first_rows import FirstOfKey, FirstOfSubtask, FirstRows
from penstock.api.program import Program
from penstock.api.state import ttl
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError
from penstock.plan.graph import Partitioning
from penstock.settings import JobSettings


@pytest.fixture
def program():
    return Program(JobSettings(parallelism=4))


@pytest.fixture
def subtasks(program, make_sink):
    """How many subtasks each step of the finished program has."""

    def find(stream):
        stream.write(make_sink())
        return {o.name: vertex.parallelism for vertex in program.plan().vertices for o in vertex.operators}

    return find


def by_price(batch, subtasks):
    return batch["price"]


def edges_of(program):
    return [(edge.partitioning, edge.partitioner) for edge in program.plan().edges]


# --- to one subtask --------------------------------------------------------------------------------------------------


def test_all_steps_behind_global_have_one_subtask_until_records_are_spread_again(bids, subtasks):
    one = bids.global_().where("price > 1", name="one").drop("ts", name="same")
    assert subtasks(one.rebalance().where("price > 2", name="all")) == {
        "bids": 4,
        "one": 1,
        "same": 1,
        "all": 4,
        "picky": 4,
    }


def test_the_last_word_about_where_records_go_counts(program, bids, make_sink):
    bids.global_().rebalance().partition(by_price).repartition("price").broadcast().global_().write(make_sink())
    assert edges_of(program) == [(Partitioning.REBALANCE, None)]
    assert program.plan().vertices[1].parallelism == 1


def test_global_keeps_columns_and_event_time(bids):
    timed = bids.watermark("ts").global_()
    assert "event time in ts" in repr(timed)
    assert timed.schema == bids.schema


# --- where a function says -------------------------------------------------------------------------------------------


def test_a_function_chooses_the_subtasks_of_the_next_step(program, bids, make_sink):
    bids.partition(by_price).where("price > 1").write(make_sink())
    assert edges_of(program) == [(Partitioning.CUSTOM, by_price)]
    assert "custom ─► [2] where" in program.explain()


async def later(batch, subtasks):
    return []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (later, "partition takes a function that returns its result, and later is async"),
        (functools.partial(later), "is async"),
        ("price", "partition takes a function, not 'price'"),
    ],
)
def test_partition_takes_a_function_that_returns_its_result(bids, function, text):
    with pytest.raises(UsageError, match=text):
        bids.partition(function)


# --- fewer subtasks --------------------------------------------------------------------------------------------------


def test_a_step_has_the_subtasks_that_are_given(bids, subtasks):
    kept = bids.where("price > 1", name="some").with_parallelism(2)
    assert subtasks(kept.drop("ts", name="same").rebalance().where("price > 2", name="all")) == {
        "bids": 4,
        "some": 2,
        "same": 2,
        "all": 4,
        "picky": 4,
    }


def test_a_window_can_have_fewer_subtasks(bids, subtasks):
    windows = bids.watermark("ts").key_by("auction").window(tumbling("1s")).aggregate(n=count()).with_parallelism(3)
    assert subtasks(windows) == {"bids": 4, "watermark": 4, "combine": 4, "window": 3, "picky": 3}


@pytest.mark.parametrize("given", [0, -1, 5, 2.0, "2", True, None])
def test_the_number_of_subtasks_is_from_1_to_the_number_of_slots(bids, given):
    with pytest.raises(UsageError, match=r"with_parallelism\(.*\): the job has 4 slots") as caught:
        bids.where("price > 1").with_parallelism(given)
    assert "from 1 to 4" in caught.value.hint


def test_a_source_has_a_subtask_in_every_slot(bids):
    with pytest.raises(UsageError, match=r"the source 'bids' made at .* has a subtask in every slot"):
        bids.with_parallelism(2)


def test_with_parallelism_is_about_a_step_and_not_about_where_records_go(bids):
    with pytest.raises(UsageError, match="no step stands between it and the rebalance before it"):
        bids.where("price > 1").rebalance().with_parallelism(2)


def test_a_step_that_has_a_single_subtask_keeps_it(bids):
    with pytest.raises(UsageError, match="has a single subtask"):
        bids.global_().where("price > 1").with_parallelism(2)
    with pytest.raises(UsageError, match="has a single subtask"):
        bids.limit(3).with_parallelism(2)


# --- the first records -----------------------------------------------------------------------------------------------


def test_limit_counts_in_a_single_subtask_and_few_records_travel_there(program, bids, subtasks):
    limited = bids.watermark("ts").limit(3)
    assert "event time in ts" in repr(limited)
    assert limited.schema == bids.schema
    assert subtasks(limited) == {"bids": 4, "watermark": 4, "limit-each": 4, "limit": 1, "picky": 1}
    steps = {o.name: o.step for vertex in program.plan().vertices for o in vertex.operators}
    assert isinstance(steps["limit-each"].function, FirstOfSubtask)
    assert isinstance(steps["limit"].function, FirstRows)
    assert {o.name: o.operator for vertex in program.plan().vertices for o in vertex.operators}["limit"] == "bids.limit"


@pytest.mark.parametrize("given", [0, -1, 2.0, "2", True, None])
def test_a_limit_is_a_number_of_records(bids, given):
    with pytest.raises(UsageError, match=r"limit is .*; give a whole number above 0"):
        bids.limit(given)


def test_distinct_is_keyed_by_its_columns_or_by_all(program, bids, make_sink):
    bids.watermark("ts").distinct("auction", "bidder", ttl="1h").distinct(name="all").write(make_sink())
    steps = {str(o.operator): o.step for vertex in program.plan().vertices for o in vertex.operators}
    by_columns, by_all = steps["bids.distinct-auction-bidder"], steps["all"]
    assert (by_columns.keys, by_columns.function.seen.spec.ttl) == (("auction", "bidder"), ttl("1h"))
    assert (by_all.keys, by_all.function.seen.spec.ttl) == (tuple(bids.schema.names), None)
    assert isinstance(by_all.function, FirstOfKey)
    assert by_columns.schema == bids.schema


def test_distinct_keeps_event_time(bids):
    assert "event time in ts" in repr(bids.watermark("ts").distinct("auction", ttl=ttl("1h")))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda s: s.distinct("acution"), "acution"),
        (lambda s: s.distinct("auction", "auction"), "given twice"),
        (lambda s: s.distinct("auction", ttl="soon"), "soon"),
        (lambda s: s.with_columns(xs="array(price)").distinct(), "column 'xs' .* cannot be a key"),
    ],
)
def test_a_distinct_that_cannot_be_is_refused(bids, make, text):
    with pytest.raises(UsageError, match=text):
        make(bids)
