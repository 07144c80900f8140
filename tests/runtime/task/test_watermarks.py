"""Event time over several channels: the least of those that are not idle, never back, never ahead of what may come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import MAX_WATERMARK, Watermark
from penstock.runtime.task.watermarks import BEFORE_TIME, WatermarkValve


def at(time_us, *, idle=False):
    return Watermark(time_us=time_us, idle=idle)


def valve_at(*times):
    """A valve whose channels have come that far."""
    valve = WatermarkValve(len(times))
    for channel, time_us in enumerate(times):
        valve.advance(channel, at(time_us))
    return valve


def test_event_time_begins_when_every_channel_has_spoken():
    valve = WatermarkValve(3)
    assert valve.advance(0, at(10)) is None
    assert valve.advance(2, at(30)) is None
    assert valve.advance(1, at(20)) == at(10)


def test_the_slowest_channel_decides():
    valve = valve_at(10, 20)
    assert valve.advance(1, at(50)) is None
    assert valve.advance(0, at(40)) == at(40)
    assert valve.advance(0, at(60)) == at(50)


def test_nothing_is_said_twice():
    valve = valve_at(10, 20)
    assert valve.advance(0, at(10)) is None
    assert valve.advance(1, at(20)) is None


def test_a_watermark_that_goes_back_changes_nothing():
    valve = valve_at(10, 20)
    assert valve.advance(1, at(5)) is None
    assert valve.advance(0, at(15)) == at(15)


def test_an_idle_channel_holds_nobody_back():
    valve = valve_at(10, 20)
    assert valve.advance(0, at(10, idle=True)) == at(20)
    assert valve.advance(1, at(30)) == at(30)


def test_a_channel_that_comes_back_from_idle_cannot_take_time_back():
    valve = valve_at(10, 20)
    valve.advance(0, at(10, idle=True))
    assert valve.advance(0, at(11)) is None
    assert valve.advance(1, at(90)) is None
    assert valve.advance(0, at(25)) == at(25)


def test_when_all_are_idle_time_goes_to_the_furthest_and_the_task_is_idle():
    valve = valve_at(10, 20)
    assert valve.advance(1, at(20, idle=True)) is None
    assert valve.advance(0, at(10, idle=True)) == at(20, idle=True)


def test_the_first_channel_that_comes_back_ends_idleness():
    valve = valve_at(10, 20)
    valve.advance(1, at(20, idle=True))
    valve.advance(0, at(10, idle=True))
    assert valve.advance(0, at(12)) == at(20)
    assert valve.advance(0, at(70)) == at(70)


def test_a_single_channel_that_is_idle_from_the_beginning_makes_the_task_idle():
    assert WatermarkValve(1).advance(0, at(BEFORE_TIME, idle=True)) == at(BEFORE_TIME, idle=True)


def test_a_channel_that_has_ended_holds_nobody_back():
    valve = valve_at(10, 20)
    assert valve.end(0) == at(20)
    assert valve.advance(1, at(30)) == at(30)


def test_the_end_of_time_comes_when_all_channels_are_there():
    valve = valve_at(10, 20)
    assert valve.advance(1, at(MAX_WATERMARK)) is None
    assert valve.end(1) is None
    assert valve.advance(0, at(MAX_WATERMARK)) is None
    assert valve.end(0) == at(MAX_WATERMARK)


def test_an_ended_channel_does_not_drag_an_idle_one_to_the_end_of_time():
    """1. One channel reads its last record and says that its event time is over. 2. The other is only silent for a
    while. 3. It speaks again: its records must not be late."""
    valve = valve_at(10, 20)
    assert valve.advance(0, at(10, idle=True)) == at(20)
    assert valve.advance(1, at(MAX_WATERMARK)) is None
    assert valve.end(1) == at(20, idle=True)
    assert valve.advance(0, at(25)) == at(25)


def test_a_channel_that_was_stopped_with_drain_holds_event_time_where_it_was_until_all_have_ended():
    """1. A stop with drain takes one channel to the end of event time; the other, which is ahead, is stopped a moment
    later. 2. Windows up to the time of the second must not count as shown: after a restore from the savepoint the
    records of the first go on below that."""
    valve = valve_at(10, 20)
    assert valve.advance(0, at(MAX_WATERMARK)) is None
    assert valve.end(0, stopped=True) is None
    assert valve.advance(1, at(30)) is None
    valve.advance(1, at(MAX_WATERMARK))
    assert valve.end(1, stopped=True) == at(MAX_WATERMARK)


def test_a_channel_that_was_idle_when_it_was_stopped_holds_nobody_back():
    valve = valve_at(10, 20)
    assert valve.advance(0, at(10, idle=True)) == at(20)
    assert valve.end(0, stopped=True) is None
    assert valve.advance(1, at(30)) == at(30)


def test_all_channels_ended_without_the_end_of_time_leave_it_at_the_furthest():
    valve = valve_at(10, 20)
    valve.end(0)
    assert valve.end(1) is None
    assert valve_at(30, 20).end(1) == at(30)


# --- against a model -------------------------------------------------------------------------------------------------

CHANNELS = 3
says = st.tuples(
    st.integers(0, CHANNELS - 1),
    st.one_of(
        st.builds(at, st.integers(0, 9), idle=st.booleans()),
        st.just(at(MAX_WATERMARK)),
        st.just("end"),
        st.just("stopped"),
    ),
)


class Model:
    """The rule, computed from scratch from everything that was said."""

    def __init__(self):
        self.said = []
        self.time, self.idle = BEFORE_TIME, False

    def take(self, channel, what):
        self.said.append((channel, what))
        times, idle, over, stopped = {}, {}, {}, {}
        for number in range(CHANNELS):
            own = [word for who, word in self.said if who == number]
            ends = [word for word in own if word in ("end", "stopped")]
            marks = [word for word in own if word not in ("end", "stopped", at(MAX_WATERMARK))]
            times[number] = max((mark.time_us for mark in marks), default=BEFORE_TIME)
            idle[number] = bool(marks) and marks[-1].idle
            over[number], stopped[number] = bool(ends), ends[-1:] == ["stopped"]
        active = [times[n] for n in times if not idle[n] and (stopped[n] or not over[n])]
        silent = [times[n] for n in times if idle[n] and not over[n]]
        if all(over.values()):
            at_end = any(word == at(MAX_WATERMARK) for _, word in self.said)
            reached = MAX_WATERMARK if at_end else max(times.values())
        else:
            reached = min(active) if active else max(silent)
        before = (self.time, self.idle)
        self.time, self.idle = max(self.time, reached), not all(over.values()) and not active
        return None if (self.time, self.idle) == before else at(self.time, idle=self.idle)


@given(st.lists(says, max_size=40))
def test_whatever_channels_say_the_valve_follows_the_rule_and_never_goes_back(words):
    valve, model = WatermarkValve(CHANNELS), Model()
    furthest = BEFORE_TIME
    for channel, word in words:
        if word in ("end", "stopped"):
            told = valve.end(channel, stopped=word == "stopped")
        elif word == at(MAX_WATERMARK) and any((channel, end) in model.said for end in ("end", "stopped")):
            continue
        else:
            told = valve.advance(channel, word)
        assert told == model.take(channel, word)
        if told is not None:
            assert told.time_us >= furthest
            furthest = told.time_us
