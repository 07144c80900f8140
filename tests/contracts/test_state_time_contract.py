"""What every back end for keyed state promises about time: what expires, and timers."""

from __future__ import annotations

import pytest
from state_rig import BACKENDS, EVENT_TIME, PROCESSING_TIME, Step

import penstock as ps


class Plain:
    count = ps.value_state("count", "bigint", default=0)


@pytest.fixture(params=sorted(BACKENDS))
def kind(request):
    return request.param


@pytest.fixture
def step(kind):
    made = Step(kind, Plain)
    yield made
    made.close()


# --- time to live ----------------------------------------------------------------------------------------------------


class Mortal:
    value = ps.value_state("value", "bigint", default=-1, ttl=ps.ttl("10s"))
    read = ps.value_state("read", "bigint", ttl=ps.ttl("10s", on="read-and-write"))
    items = ps.list_state("items", "string", ttl=ps.ttl("10s"))
    entries = ps.map_state("entries", key="string", value="bigint", ttl=ps.ttl("10s"))
    read_entries = ps.map_state("read_entries", key="string", value="bigint", ttl=ps.ttl("10s", on="read-and-write"))
    read_items = ps.list_state("read_items", "string", ttl=ps.ttl("10s", on="read-and-write"))


@pytest.fixture
def mortal(kind):
    return Step(kind, Mortal)


def test_what_has_expired_is_not_seen(mortal):
    handles = mortal.at(1)
    handles["value"].set(1)
    handles["items"].add("old")
    handles["entries"].set("old", 1)
    mortal.clock.now += 5_000
    handles["items"].add("young")
    handles["entries"].set("young", 2)
    mortal.clock.now += 4_999
    assert handles["value"].get() == 1
    assert handles["items"].get() == ["old", "young"]
    mortal.clock.now += 1
    assert handles["value"].get() == -1
    assert not handles["value"].exists()
    assert handles["items"].get() == ["young"]
    assert dict(handles["entries"].items()) == {"young": 2}
    assert handles["entries"].get("old") is None
    assert "old" not in handles["entries"]
    mortal.clock.now += 5_000
    assert not handles["items"].exists()
    assert not handles["entries"].exists()


def test_a_write_renews(mortal):
    handles = mortal.at(1)
    for _ in range(3):
        handles["value"].set(1)
        handles["entries"].set("a", 1)
        mortal.clock.now += 9_000
    assert handles["value"].get() == 1
    assert handles["entries"].get("a") == 1


def test_a_read_renews_only_where_it_is_asked_for(mortal):
    handles = mortal.at(1)
    handles["value"].set(1)
    handles["read"].set(1)
    handles["read_entries"].set("a", 1)
    handles["read_entries"].set("b", 1)
    handles["read_items"].add("a")
    for _ in range(3):
        mortal.clock.now += 9_000
        assert handles["read"].get() == 1
        assert handles["read_entries"].get("a") == 1
        assert handles["read_items"].get() == ["a"]
        handles["value"].get()
    assert not handles["value"].exists()
    assert dict(handles["read_entries"].items()) == {"a": 1}


def test_what_has_expired_is_in_no_snapshot_and_times_outlive_a_restore(kind, mortal):
    handles = mortal.at(1)
    for name in ("value", "read"):
        handles[name].set(1)
    handles["items"].add("old")
    handles["entries"].set("old", 1)
    mortal.clock.now += 6_000
    handles["items"].add("young")
    handles["entries"].set("young", 1)
    restored = Step(kind, Mortal, store=mortal.store, restored=mortal.save(), clock=mortal.clock).at(1)
    assert restored["value"].get() == 1
    mortal.clock.now += 4_000
    assert not restored["value"].exists()
    assert restored["items"].get() == ["young"]
    again = Step(kind, Mortal, store=mortal.store, restored=mortal.save(canonical=True, savepoint=True))
    again.clock.now = mortal.clock.now - 6_000
    assert again.at(1)["items"].get() == ["young"]
    assert not again.at(1)["value"].exists()
    mortal.clock.now += 100_000
    assert mortal.save(canonical=True, savepoint=True) == [()]


def test_what_has_expired_is_removed_in_the_background_in_small_pieces(kind, mortal):
    for key in range(100):
        handles = mortal.at(key)
        handles["value"].set(key)
        handles["items"].add("a")
        handles["entries"].set("a", key)
    mortal.clock.now += 5_000
    mortal.at(3)["value"].set(3)
    mortal.clock.now += 5_000
    backend = mortal.backends[0]
    pieces = 1
    while backend.maintain(20):
        pieces += 1
    assert pieces > 3
    # Nothing is left of it, not even for somebody whose clock is behind.
    mortal.clock.now -= 5_000
    assert [key for key in range(100) if mortal.at(key)["value"].exists()] == [3]
    assert not any(mortal.at(key)["items"].exists() or mortal.at(key)["entries"].exists() for key in range(100))


def test_a_ttl_may_come_and_go_with_the_program(kind):
    class Without:
        value = ps.value_state("value", "bigint")

    class With:
        value = ps.value_state("value", "bigint", ttl=ps.ttl("10s"))

    step = Step(kind, Without)
    step.at(1)["value"].set(1)
    step.clock.now += 60_000
    mortal = Step(kind, With, store=step.store, restored=step.save(), clock=step.clock)
    assert mortal.at(1)["value"].get() == 1
    step.clock.now += 9_999
    assert mortal.at(1)["value"].get() == 1
    immortal = Step(kind, Without, store=step.store, restored=mortal.save(), clock=step.clock)
    step.clock.now += 1
    assert not mortal.at(1)["value"].exists()
    assert immortal.at(1)["value"].get() == 1


# --- timers ----------------------------------------------------------------------------------------------------------


def test_timers_come_in_order_of_time_then_key(step):
    for key, time_us in ((3, 50), (1, 70), (2, 50), (1, 50), (4, 10), (2, 90)):
        step.timers(key).add(EVENT_TIME, time_us)
    timers = step.backends[0].timers
    assert timers.first(EVENT_TIME) == 10
    assert timers.first(PROCESSING_TIME) is None
    assert step.fire(EVENT_TIME, 70) == [(10, 4), (50, 1), (50, 2), (50, 3), (70, 1)]
    assert timers.first(EVENT_TIME) == 90


def test_a_timer_is_set_once_and_can_be_taken_back(step):
    timers = step.timers(1)
    for _ in range(3):
        timers.add(EVENT_TIME, 50)
    timers.add(PROCESSING_TIME, 50)
    timers.add(EVENT_TIME, -5)
    assert timers.of_key(EVENT_TIME) == [-5, 50]
    timers.remove(EVENT_TIME, 50)
    timers.remove(EVENT_TIME, 51)
    assert timers.of_key(EVENT_TIME) == [-5]
    assert step.fire(EVENT_TIME, 100) == [(-5, 1)]
    timers.add(EVENT_TIME, 50)
    assert step.fire(EVENT_TIME, 100) == [(50, 1)]
    assert step.fire(EVENT_TIME, 100) == []
    assert step.fire(PROCESSING_TIME, 100) == [(50, 1)]


def test_timers_that_are_moved_all_the_time_take_no_room(step):
    for time_us in range(10_000):
        step.timers(1).add(EVENT_TIME, time_us)
        step.timers(1).remove(EVENT_TIME, time_us - 1)
    assert step.fire(EVENT_TIME, 20_000) == [(9_999, 1)]
