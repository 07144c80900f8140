"""What the time of tasks goes to."""

from __future__ import annotations

import pytest

from penstock.runtime.task.meter import LoopMeter, TaskCounters


class Played:
    def __init__(self):
        self.counters = TaskCounters()
        self.has_room = True
        self.wants_step = False


@pytest.fixture
def time():
    return [0.0]


@pytest.fixture
def meter(time):
    return LoopMeter(lambda: time[0])


def shares(task):
    counters = task.counters
    return counters.busy_ms, counters.waiting_ms, counters.blocked_ms, counters.idle_ms


def turn(meter, time, tasks, *, steps=(), pause=0):
    """A turn of the loop in which some tasks are at work, for a while each, and then a pause."""
    meter.begin()
    for task, lasts in steps:
        time[0] += lasts
        meter.spent(task)
    meter.look(tasks)
    time[0] += pause


def test_the_parts_of_the_time_of_a_task_add_up_to_the_time_that_has_passed(meter, time):
    one, other = Played(), Played()
    other.wants_step = True
    for _ in range(50):
        turn(meter, time, (one, other), steps=((one, 12), (other, 3)), pause=10)
    turn(meter, time, (one, other))
    passed = time[0] - 15  # from the first look on
    for task in (one, other):
        assert sum(shares(task)) - task.counters.busy_ms + 49 * {one: 12, other: 3}[task] == pytest.approx(passed)
    assert shares(one)[1:3] == (0, 0)
    assert shares(other)[3] == 0
    assert one.counters.idle_ms == pytest.approx(50 * 25 - 15 - 49 * 12)


def test_a_task_without_room_is_blocked_even_if_it_has_something_to_do(meter, time):
    task = Played()
    task.has_room, task.wants_step = False, True
    turn(meter, time, (task,), pause=100)
    turn(meter, time, (task,))
    assert shares(task) == (0, 0, 100, 0)


def test_looks_are_rare(meter, time):
    task, looks = Played(), []

    class Counted(Played):
        @property
        def has_room(self):
            looks.append(time[0])
            return True

        @has_room.setter
        def has_room(self, value):
            pass

    task = Counted()
    for _ in range(1_000):
        turn(meter, time, (task,), pause=1)
    assert len(looks) == 100


def test_the_clock_is_read_once_for_each_step(time):
    reads = []

    def clock():
        reads.append(1)
        return time[0]

    meter, task = LoopMeter(clock), Played()
    turn(meter, time, (task,), steps=((task, 1),) * 10)
    assert len(reads) == 11
