"""Beside a loop: keepalives that it owes, and a report of where it is, while it does not turn."""

from __future__ import annotations

import threading

import pytest
from master_rig import Followed

from penstock.core.ids import Epoch, Instant, OperatorId, TaskId, VertexId
from penstock.runtime.links import Links
from penstock.runtime.pulse import Pulse, Whereabouts
from penstock.runtime.task.operators.base import Operator
from penstock.runtime.whereabouts import of_thread
from penstock.wire.frames import Kind, unpack

STUCK_AFTER_MS = 5_000


class Wire(Followed):
    def __init__(self):
        super().__init__()
        self.kinds = []

    def connect(self, peer, address):
        pass

    def send(self, peer, frames):
        self.kinds += [(packet.header.kind, packet.header.sequence) for packet in unpack([bytes(f) for f in frames])]


class Rig:
    """A pulse with a link to a peer, and a loop that is where the test says."""

    def __init__(self):
        self.wire, self.reports, self.at = Wire(), [], Whereabouts(operator="a", subtask=0, call=1)
        self.links = Links(self.wire, on_packet=lambda *_: None, on_broken=lambda *_: None)
        self.links.connect("peer", "address")
        self.pulse = Pulse(
            self.links, stuck_after_ms=STUCK_AFTER_MS, whereabouts=lambda: self.at, report=self.reports.append
        )

    def turn(self, now):
        self.pulse.turned(Instant(now))
        self.links.keep_alive(Instant(now))

    def let_pass(self, since, until):
        for now in range(since, until, 250):
            self.pulse.beat(Instant(now))


@pytest.fixture
def rig():
    return Rig()


def test_nothing_is_said_before_the_first_turn_nor_beside_a_loop_that_turns(rig):
    rig.pulse.beat(Instant(60_000))
    for now in range(0, 60_000, 500):
        rig.pulse.turned(Instant(now))
        rig.pulse.beat(Instant(now + 400))
    assert (rig.wire.kinds, rig.reports) == ([], [])


def test_a_keepalive_goes_out_every_second_while_the_loop_does_not_turn(rig):
    rig.turn(1_000)
    rig.wire.kinds.clear()
    rig.let_pass(1_250, 6_000)
    assert rig.wire.kinds == [(Kind.KEEPALIVE, 0)] * 4


def test_what_the_loop_sends_next_continues_the_numbers(rig):
    rig.turn(1_000)
    rig.links.send("peer", Kind.CONTROL, b"", epoch=Epoch(0))
    rig.let_pass(1_250, 3_000)
    rig.links.send("peer", Kind.CONTROL, b"", epoch=Epoch(0))
    numbers = [number for _, number in rig.wire.kinds]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 1


def test_the_loop_is_reported_every_second_from_the_limit_on_until_it_turns(rig):
    rig.turn(0)
    rig.let_pass(0, 8_001)
    assert [report.stuck_ms for report in rig.reports] == [5_000, 6_000, 7_000, 8_000]
    rig.turn(8_100)
    rig.let_pass(8_100, 13_000)
    assert len(rig.reports) == 4


def test_the_time_in_a_step_counts_from_the_call_and_not_from_the_turn(rig):
    rig.turn(0)
    rig.let_pass(0, 4_000)
    rig.at = Whereabouts(operator="b", subtask=1, call=2)
    rig.let_pass(4_000, 6_000)
    assert (rig.reports[0].stuck_ms, rig.reports[0].step_ms, rig.reports[0].at.operator) == (5_000, 1_000, "b")


# --- where a thread is --------------------------------------------------------------------------------------------


class Named:
    name = "slow step"
    task = TaskId(VertexId("v"), 3)
    operator = OperatorId("slow")


class Slow(Operator):
    """A step whose function waits until it is told to come back."""

    def __init__(self, function, behind=None):
        self.context = Named()
        self._function = function
        self._behind = behind

    def process(self, batch):
        if self._behind is not None:
            self._behind.process(batch)
        else:
            self._function()


def looked_at(run):
    """Where a thread is that runs this, once it is inside."""
    inside, back = threading.Event(), threading.Event()

    def user_function():
        inside.set()
        back.wait()

    thread = threading.Thread(target=run, args=(user_function,), name="a loop")
    thread.start()
    try:
        inside.wait()
        return of_thread("a loop")(), of_thread("a loop")()
    finally:
        back.set()
        thread.join()


def test_the_innermost_step_is_named_with_the_stack_of_the_users_code():
    outer = Named()
    outer.name = "outer"

    def run(function):
        step = Slow(None, behind=Slow(function))
        step.context = outer
        step.process(None)

    first, second = looked_at(run)
    assert (first.operator, first.subtask) == ("slow step", 3)
    assert "in user_function" in first.stack
    assert "back.wait()" in first.stack
    assert "in run" not in first.stack
    assert first.call == second.call


def test_outside_of_any_step_the_whole_stack_is_shown():
    at, _ = looked_at(lambda function: function())
    assert at.operator is None
    assert "in user_function" in at.stack


def test_a_thread_that_is_not_there_is_nowhere():
    assert of_thread("nobody")() == Whereabouts()
