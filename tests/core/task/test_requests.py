"""Which records an async function is asked about, and in which order its results leave."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.core.ids import Instant
from penstock.core.task.requests import LONGEST_PAUSE_MS, Asked, Leaving, Refused, RequestPolicy, Requests


def requests(**changes: Any) -> Requests:
    return Requests(RequestPolicy(**{"concurrency": 3, "timeout_ms": 100, **changes}))


def at(time: int) -> Instant:
    return Instant(time)


def answer(line: Requests, *calls: int) -> None:
    """These calls come back, and no call is over."""
    for call in calls:
        number = line.returned(call)
        assert number is not None
        line.answered([number])


def left(line: Requests) -> list[object]:
    """What leaves, with the watermarks as their times."""
    out: list[object] = []
    for numbers, watermark in line.leave():
        out += numbers
        out += [] if watermark is None else [f"w{watermark[0]}"]
    return out


# --- bounds --------------------------------------------------------------------------------


def test_no_more_records_are_asked_about_than_the_concurrency_allows():
    line = requests()
    assert line.add(5) == 0
    assert line.begin(at(0)) == [Asked(0, 0), Asked(1, 1), Asked(2, 2)]
    assert line.begin(at(0)) == []
    assert (line.waiting, line.room) == (2, 0)


def test_a_result_that_has_not_left_takes_up_room():
    line = requests()
    line.add(5)
    line.begin(at(0))
    assert line.returned(1) == 1
    line.answered([1])
    assert not line.can_leave
    assert line.begin(at(0)) == []
    line.answered([0])
    assert left(line) == [0, 1]
    assert line.begin(at(0)) == [Asked(3, 3), Asked(4, 4)]


def test_room_is_what_is_asked_about_at_once():
    line = requests()
    assert line.room == 3
    line.add(2)
    assert line.room == 1
    line.begin(at(0))
    assert line.room == 1


# --- order ---------------------------------------------------------------------------------


def test_ordered_results_leave_in_the_order_of_the_records():
    line = requests()
    line.add(3)
    line.begin(at(0))
    line.answered([2])
    line.answered([0])
    assert left(line) == [0]
    line.answered([1])
    assert left(line) == [1, 2]
    assert line.is_empty


def test_unordered_results_leave_as_they_come():
    line = requests(ordered=False)
    line.add(3)
    line.begin(at(0))
    line.answered([2])
    assert left(line) == [2]
    line.answered([1, 0])
    assert left(line) == [1, 0]
    assert line.is_empty


@pytest.mark.parametrize("ordered", [True, False])
def test_no_result_leaves_across_a_watermark(ordered: bool):
    line = requests(ordered=ordered)
    line.add(2)
    line.add_watermark(10, idle=False)
    line.add(1)
    line.begin(at(0))
    line.answered([2])
    assert not line.can_leave
    assert line.leave() == []
    line.answered([0])
    assert left(line) == [0]
    line.answered([1])
    assert left(line) == [1, "w10", 2]


def test_a_watermark_behind_no_record_leaves_at_once():
    line = requests()
    line.add_watermark(10, idle=True)
    assert not line.is_empty
    assert line.leave() == [Leaving([], (10, True))]
    assert line.is_empty


def test_watermarks_without_a_record_between_them_become_one_watermark():
    line = requests()
    line.add(1)
    line.add_watermark(10, idle=False)
    line.add_watermark(7, idle=True)
    line.begin(at(0))
    line.answered([0])
    assert line.leave() == [Leaving([0], (10, True))]
    line.add_watermark(11, idle=False)
    assert left(line) == ["w11"]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_record_leaves_once_whatever_the_order_of_the_answers(ordered: bool, seed: int):
    draw = random.Random(seed)
    line, came = requests(ordered=ordered, concurrency=4), 0
    out: list[object] = []
    under_way: list[int] = []
    marks: dict[str, int] = {}
    for _ in range(300):
        under_way += [asked.call for asked in line.begin(at(0))]
        match draw.randrange(3):
            case 0:
                came += draw.randrange(3)
                line.add(came - len(line.unfinished()) - sum(isinstance(x, int) for x in out))
            case 1:
                marks[f"w{len(marks)}"] = came
                line.add_watermark(len(marks) - 1, idle=False)
            case _ if under_way:
                answer(line, under_way.pop(draw.randrange(len(under_way))))
        out += left(line)
    while not line.is_empty:
        under_way += [asked.call for asked in line.begin(at(0))]
        answer(line, *under_way)
        under_way = []
        out += left(line)
    numbers = [each for each in out if isinstance(each, int)]
    assert sorted(numbers) == list(range(came))
    assert not ordered or numbers == sorted(numbers)
    for name, before in marks.items():
        if name in out:
            seen = [each for each in out[: out.index(name)] if isinstance(each, int)]
            assert sorted(seen) == list(range(before))


# --- tries ---------------------------------------------------------------------------------


def test_a_call_whose_time_is_up_is_over_and_its_late_answer_changes_nothing():
    line = requests()
    line.add(1)
    line.begin(at(0))
    assert line.next_deadline() == 100
    assert line.expired(at(99)) == []
    assert line.expired(at(100)) == [Refused(0, 0, 1, is_final=True)]
    assert line.returned(0) is None
    assert line.refused(0, at(101)) is None
    assert line.next_deadline() is None


def test_a_refused_record_is_tried_again_after_pauses_that_double():
    line = requests(retries=2, pause_ms=10)
    line.add(1)
    line.begin(at(0))
    assert line.refused(0, at(5)) == Refused(0, 0, 1, is_final=False)
    assert line.next_deadline() == 15
    assert line.begin(at(14)) == []
    assert line.begin(at(15)) == [Asked(1, 0)]
    assert line.refused(1, at(16)) == Refused(1, 0, 2, is_final=False)
    assert line.next_deadline() == 36
    assert line.begin(at(36)) == [Asked(2, 0)]
    assert line.refused(2, at(37)) == Refused(2, 0, 3, is_final=True)


def test_the_time_of_every_try_begins_anew():
    line = requests(retries=1, pause_ms=10)
    line.add(1)
    line.begin(at(0))
    line.expired(at(100))
    line.begin(at(110))
    assert line.next_deadline() == 210
    assert line.expired(at(209)) == []
    assert [refused.is_final for refused in line.expired(at(210))] == [True]


def test_the_pause_does_not_grow_for_ever():
    line = requests(retries=40, pause_ms=100)
    line.add(1)
    now = at(0)
    for _ in range(30):
        call = line.begin(now)[-1].call
        line.refused(call, now)
        due = line.next_deadline()
        assert due is not None
        pause, now = due - now, due
    assert pause == LONGEST_PAUSE_MS


def test_a_paused_record_keeps_its_place_and_its_room():
    line = requests(retries=1, concurrency=2)
    line.add(3)
    line.begin(at(0))
    line.refused(0, at(1))
    answer(line, 1)
    assert not line.can_leave
    assert line.begin(at(1)) == []
    assert [asked.number for asked in line.begin(at(200))] == [0]


def test_a_record_that_came_through_begins_with_no_tries():
    line = requests(retries=1)
    line.add(1)
    line.begin(at(0))
    line.refused(0, at(0))
    line.begin(at(100))
    answer(line, 1)
    assert left(line) == [0]
    assert line.next_deadline() is None
    assert line.expired(at(10_000)) == []


def test_answered_calls_do_not_hold_a_deadline():
    line = requests()
    line.add(2)
    line.begin(at(0))
    answer(line, 0)
    line.add(1)
    assert line.next_deadline() == 100
    answer(line, 1)
    assert line.next_deadline() is None


# --- the snapshot --------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_the_snapshot_has_every_record_whose_result_has_not_left(ordered: bool):
    line = requests(ordered=ordered)
    line.add(5)
    line.begin(at(0))
    line.answered([1])
    assert line.unfinished() == [0, 1, 2, 3, 4]
    line.leave()
    assert line.unfinished() == ([0, 1, 2, 3, 4] if ordered else [0, 2, 3, 4])


def test_calls_under_way_are_counted_and_answered_calls_do_not_expire():
    line = requests()
    line.add(2)
    line.begin(at(0))
    assert line.in_flight == 2
    answer(line, 0)
    assert line.in_flight == 1
    assert [refused.number for refused in line.expired(at(100))] == [1]
    assert line.in_flight == 0
