"""Ids outlive changes of the program: state must find its operator again, and never another one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.api.aggregates import count
from penstock.api.naming import id_part, operator_ids
from penstock.api.program import Program
from penstock.api.steps import ReadStep, WindowStep, WriteStep
from penstock.api.windows import tumbling
from penstock.core.errors import UsageError


@pytest.fixture
def build(make_source, make_sink):
    """The ids of the steps with state of a program, by kind, that `write(program, read, sink)` writes."""

    def ids_of(write):
        program = Program()
        write(program, lambda name="bids", **given: program.read(make_source(name), **given).watermark("ts"), make_sink)
        operators = [operator for vertex in program.plan().vertices for operator in vertex.operators]
        return {
            type(operator.step).__name__: operator.operator
            for operator in operators
            if isinstance(operator.step, ReadStep | WindowStep | WriteStep)
        }

    return ids_of


def windowed(stream):
    return stream.key_by("auction").window(tumbling("10s")).aggregate(n=count())


def plain(program, read, sink):
    windowed(read()).write(sink())


PLAIN = {"ReadStep": "bids", "WindowStep": "bids.window-auction", "WriteStep": "bids.to-picky"}


def test_ids_follow_the_steps_with_state(build):
    assert build(plain) == PLAIN


def test_steps_without_state_change_no_id(build):
    def changed(program, read, sink):
        filtered = read().where("price > 1").select("auction", "price", "ts").rebalance().where("price > 2", name="big")
        windowed(filtered).with_columns(m="n + 1").write(sink())

    assert build(changed) == PLAIN


STATELESS = {
    "where": lambda stream: stream.where("auction > 1"),
    "with_columns": lambda stream: stream.with_columns(auction="auction + 1"),
    "map_batches": lambda stream: stream.map_batches(lambda batch: batch),
    "rebalance": lambda stream: stream.rebalance(),
    "branch": lambda stream: stream.where("auction > 2").select("auction").where("auction > 3") and stream,
}


@given(before=st.lists(st.sampled_from(sorted(STATELESS))), behind=st.lists(st.sampled_from(sorted(STATELESS))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_no_combination_of_steps_without_state_changes_an_id(make_source, make_sink, before, behind):
    program = Program()
    stream = program.read(make_source()).watermark("ts")
    for kind in before:
        stream = STATELESS[kind](stream)
    stream = windowed(stream)
    for kind in behind:
        stream = STATELESS[kind](stream)
    stream.write(make_sink())
    ids = operator_ids(program._ledger.steps)
    assert len(set(ids.values())) == len(ids)
    assert [ids[step.number] for step in program._ledger.steps if step.has_state] == list(PLAIN.values())


def test_another_branch_changes_no_id(build):
    def branched(program, read, sink):
        bids = read()
        bids.where("price < 1").write(sink(), name="cheap")
        other = read("auctions")
        other.key_by("bidder").window(tumbling("1s")).aggregate(n=count()).write(sink(), name="other")
        windowed(bids).write(sink())

    found = build(branched)
    assert found["WriteStep"] == PLAIN["WriteStep"]
    assert found["WindowStep"] == PLAIN["WindowStep"]


def test_a_named_step_keeps_its_id_wherever_it_moves(build):
    def moved(program, read, sink):
        filtered = read("other source").where("price > 1")
        filtered.key_by("bidder").window(tumbling("1h")).aggregate(n=count()).name("hot").write(sink(), name="out")

    found = build(moved)
    assert (found["WindowStep"], found["WriteStep"]) == ("hot", "out")


def test_what_follows_a_named_step_builds_on_its_name(build):
    def named(program, read, sink):
        hot = windowed(read(name="all")).name("hot")
        hot.key_by("auction").reduce(lambda a, b: b).write(sink())
        hot.write(sink())

    assert build(named)["WriteStep"] == "hot.picky"


def test_the_id_of_the_only_sink_of_its_kind_does_not_change_with_what_is_put_before_it(build):
    def changed(program, read, sink):
        hot = windowed(read()).name("hot")
        hot.key_by("auction").reduce(lambda a, b: b, name="newest").write(sink())

    assert build(changed)["WriteStep"] == PLAIN["WriteStep"]


def test_sinks_of_one_kind_behind_one_source_are_told_apart_by_the_nearest_steps_with_state(program, bids, make_sink):
    windowed(bids.watermark("ts")).write(make_sink())
    bids.write(make_sink())
    found = operator_ids(program._ledger.steps)
    sinks = [found[step.number] for step in program._ledger.steps if isinstance(step.step, WriteStep)]
    assert sinks == ["bids.window-auction.picky", "bids.picky"]


def test_sinks_behind_other_sources_are_told_apart_by_these(program, make_source, make_sink):
    one, other = program.read(make_source()), program.read(make_source("asks"))
    one.union(other).write(make_sink())
    one.write(make_sink())
    found = operator_ids(program._ledger.steps)
    sinks = [found[step.number] for step in program._ledger.steps if isinstance(step.step, WriteStep)]
    assert sinks == ["asks-and-bids.to-picky", "bids.to-picky"]


def test_another_key_is_another_state(build):
    def other(program, read, sink):
        read().key_by("bidder", "auction").window(tumbling("10s")).aggregate(n=count()).write(sink())

    assert build(other)["WindowStep"] == "bids.window-bidder-auction"


def test_two_steps_with_state_that_cannot_be_told_apart_are_refused(program, bids, make_sink):
    bids.write(make_sink())
    bids.where("price > 1").write(make_sink())
    with pytest.raises(UsageError) as caught:
        program.plan()
    message = caught.value.message
    assert message.count("'picky' made at test_naming.py:") == 2
    assert message.endswith("would both have the id 'bids.picky'")
    assert caught.value.hint == 'give one of them a name of its own, by name="..." or .name("...")'


def test_two_sources_of_one_kind_need_a_name(program, make_source, make_sink):
    program.read(make_source()).write(make_sink(), name="one")
    program.read(make_source(), name="more bids").write(make_sink(), name="two")
    program.plan()
    program.read(make_source()).write(make_sink(), name="three")
    with pytest.raises(UsageError, match="would both have the id 'bids'"):
        program.plan()


def test_one_name_is_for_one_step(bids, make_sink):
    bids.where("price > 1", name="cheap")
    with pytest.raises(UsageError) as caught:
        bids.write(make_sink(), name="cheap")
    assert caught.value.message.startswith("two steps are named 'cheap': 'cheap' (where) made at test_naming.py:")
    assert ", and 'cheap' (picky) made at test_naming.py:" in caught.value.message
    with pytest.raises(UsageError, match="two steps are named 'cheap'"):
        bids.select("price").name("cheap")


def test_a_name_may_not_take_the_id_of_another_step(program, bids, make_sink):
    bids.where("price > 1", name="bids").write(make_sink())
    with pytest.raises(UsageError, match="would both have the id 'bids'"):
        program.plan()


def test_a_step_is_named_once(bids):
    named = bids.where("price > 1", name="cheap")
    with pytest.raises(UsageError, match=r"the step 'cheap' \(where\) made at .* has a name already"):
        named.name("cheaper")


@pytest.mark.parametrize("wrong", ["", "  ", "two\nlines", "x" * 201, 5])
def test_a_name_is_one_line_of_text(bids, wrong):
    with pytest.raises(UsageError, match="cannot be the name of a step"):
        bids.where("price > 1", name=wrong)
    with pytest.raises(UsageError, match="cannot be the name of a step"):
        bids.name(wrong)


def test_steps_without_state_are_numbered_where_they_would_share_an_id(program, bids, make_sink):
    bids.where("price > 1").where("price > 2").write(make_sink(), name="one")
    bids.where("price > 3").write(make_sink(), name="bids.where")
    ids = [operator.operator for vertex in program.plan().vertices for operator in vertex.operators]
    assert ids == ["bids", "bids.where", "bids.where-2", "one", "bids.where-3", id_part("bids.where")]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("bids", "bids"),
        ("hot_auctions-2", "hot_auctions-2"),
        ("Hot Auctions", "hot-auctions-85bacf54"),
        ("hot.auctions", "hot-auctions-a97d42ea"),
        ("größe", "gr-e-d353a267"),
        ("日本", "cf2abf0c"),
        ("x" * 60, "x" * 48 + "-42f2d973"),
    ],
)
def test_an_id_can_name_a_file_and_never_changes(name, part):
    assert id_part(name) == part


@given(st.text(min_size=1, max_size=300))
def test_any_name_gives_a_part_that_can_name_a_file(name):
    part = id_part(name)
    assert set(part) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert 0 < len(part) <= 60


@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_different_names_give_different_parts(one, other):
    assert (one == other) == (id_part(one) == id_part(other))


def test_a_very_long_path_is_cut_and_stays_unique(program, make_source, make_sink):
    stream = program.read(make_source("s" * 60)).watermark("ts")
    for _ in range(8):
        stream = windowed(stream).watermark("window_start").with_columns(ts="window_start").watermark("ts")
    stream.write(make_sink(), name="one")
    stream.where("n > 1").write(make_sink())
    ids = [operator.operator for vertex in program.plan().vertices for operator in vertex.operators]
    assert len(set(ids)) == len(ids)
    assert 160 <= max(len(text) for text in ids) <= 170


def test_two_async_steps_without_names_cannot_be_told_apart(program, bids, make_sink):
    async def ask(row):
        return row

    bids.async_map(ask, schema=bids.schema).write(make_sink(), name="one")
    bids.async_map(ask, schema=bids.schema).write(make_sink(), name="two")
    with pytest.raises(UsageError, match="would both have the id"):
        program.plan()
