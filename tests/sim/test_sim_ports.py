"""The simulated ports keep their contracts, and break what a fault tells them to break."""

from __future__ import annotations

import pytest

from penstock.core.errors import StorageError
from penstock.core.ids import Instant, SlotId, SlotIndex
from penstock.ports import SlotEnded, WorkResult
from penstock.sim.background import Pace, SimBackground
from penstock.sim.disk import Disk
from penstock.sim.network import Network, SimTransport
from penstock.sim.slots import Notice, SlotHost
from penstock.sim.world import Actor, Crash, Fuse, World

FOREVER_US = 10**9


def settle(world: World) -> None:
    world.run(lambda: False, until_us=world.now_us + FOREVER_US)


# --- network -----------------------------------------------------------------------


def pair(world: World, network: Network) -> tuple[SimTransport, SimTransport]:
    a, b = network.transport(Actor(world, "a")), network.transport(Actor(world, "b"))
    a.connect("b", "sim:b")
    return a, b


def numbers(transport: SimTransport) -> list[int]:
    return [int(frames[0]) for _, frames in transport.receive()]


def test_messages_keep_their_order_whatever_their_delays():
    world = World(5)
    a, b = pair(world, Network(world, latency_us=(1, 50_000), spike_share=0.3))
    for i in range(200):
        a.send("b", [str(i).encode()])
    settle(world)
    assert numbers(b) == list(range(200))


def test_a_process_that_was_called_can_answer():
    world = World(5)
    a, b = pair(world, Network(world, latency_us=(1, 10)))
    b.send("a", [b"0"])
    a.send("b", [b"1"])
    settle(world)
    b.send("a", [b"2"])
    settle(world)
    assert numbers(a) == [2]


def test_frames_are_copied_when_they_are_sent():
    world = World(5)
    a, b = pair(world, Network(world, latency_us=(1, 10)))
    frame = bytearray(b"7")
    a.send("b", [memoryview(frame)])
    frame[:] = b"8"
    settle(world)
    assert numbers(b) == [7]


@pytest.mark.parametrize(("holds_back", "arrives"), [(False, [3]), (True, [2, 3])])
def test_a_cut_loses_what_is_on_its_way_and_what_follows_or_holds_it_back(holds_back: bool, arrives: list[int]):
    world = World(5)
    network = Network(world, latency_us=(100, 100))
    a, b = pair(world, network)
    a.send("b", [b"1"])
    network.cut("a", "b", for_us=10_000, holds_back=holds_back)
    world.at(5_000, lambda: a.send("b", [b"2"]))
    world.at(20_000, lambda: a.send("b", [b"3"]))
    settle(world)
    assert numbers(b) == arrives


def test_the_dead_receive_nothing_and_lose_only_the_end_of_what_they_sent():
    world = World(5)
    network = Network(world, latency_us=(100, 1_000))
    a, b = pair(world, network)
    for i in range(20):
        a.send("b", [str(i).encode()])
    network.died("a")
    settle(world)
    arrived = numbers(b)
    assert arrived == list(range(len(arrived)))
    b.send("a", [b"1"])
    settle(world)
    assert a.receive() == []


def test_what_is_sent_after_a_disconnect_goes_nowhere():
    world = World(5)
    a, b = pair(world, Network(world, latency_us=(1, 10)))
    a.disconnect("b")
    a.send("b", [b"1"])
    settle(world)
    assert b.receive() == []


# --- disk -----------------------------------------------------------------------


def test_a_failing_write_did_nothing_or_everything():
    world = World(5)
    disk = Disk(world)
    store = disk.store(Actor(world, "a"))
    for after, left in ((False, {}), (True, {"x": b"1"})):
        disk.fail(for_us=1_000, share=1.0, after=after)
        with pytest.raises(StorageError):
            store.write("x", b"1")
        assert disk.files == left


def test_a_process_can_die_before_and_after_its_write():
    world = World(5)
    disk = Disk(world)
    for name, call, left in (("a", "write", {}), ("b", "write-done", {"x": b"1"})):
        actor = Actor(world, name)
        actor.fuse = Fuse(call, 1)
        with pytest.raises(Crash):
            disk.store(actor).write("x", b"1")
        assert disk.files == left


def test_storage_faults_end_with_their_time():
    world = World(5)
    disk = Disk(world)
    disk.fail(for_us=1_000, share=1.0, after=False)
    world.now_us = 1_000
    disk.store(Actor(world, "a")).write("x", b"1")
    assert disk.files == {"x": b"1"}


# --- background -----------------------------------------------------------------------


def background(world: World, actor: Actor) -> SimBackground:
    return SimBackground(actor, Pace(world, work_us=(10, 5_000)))


def test_work_runs_in_order_and_is_told_of_by_collect():
    world = World(5)
    actor = Actor(world, "a")
    work = background(world, actor)
    ran: list[int] = []
    told: list[WorkResult] = []
    for i in range(20):
        work.submit(lambda i=i: ran.append(i), told.append)
    assert ran == []
    settle(world)
    assert (ran, told) == (list(range(20)), [])
    work.collect()
    assert told == [WorkResult()] * 20


def test_work_that_raises_is_an_outcome():
    world = World(5)
    work = background(world, Actor(world, "a"))
    told: list[WorkResult] = []
    work.submit(lambda: {}["x"], told.append)
    settle(world)
    work.collect()
    assert isinstance(told[0].error, KeyError)


def test_work_may_have_run_without_anybody_hearing_of_it():
    """1. The work runs.  2. The process dies before the work's end is told.  3. `done` is never called."""
    world = World(5)
    actor = Actor(world, "a")
    work = background(world, actor)
    ran: list[int] = []
    told: list[WorkResult] = []
    work.submit(lambda: ran.append(1), told.append)
    work.submit(lambda: ran.append(2), told.append)
    world.run(lambda: bool(ran), until_us=FOREVER_US)
    actor.die()
    settle(world)
    work.collect()
    assert (ran, told) == ([1], [])


def test_the_work_of_a_paused_process_waits():
    world = World(5)
    actor = Actor(world, "a")
    work = background(world, actor)
    ran: list[int] = []
    work.submit(lambda: ran.append(world.now_us), lambda _: None)
    actor.pause(1_000_000)
    settle(world)
    assert ran == [1_000_000]


# --- slots -----------------------------------------------------------------------


class Sleeper:
    """A slot that waits to be told to leave."""

    def __init__(self) -> None:
        self.left = False
        self.error: str | None = None
        self.closed = False

    def turn(self, now: Instant) -> Instant | None:
        return None

    def close(self) -> None:
        self.closed = True


def slot_host(world: World, built: dict[SlotId, Sleeper], failing_starts: int = 0) -> SlotHost:
    def build(slot: SlotId, actor: Actor) -> Sleeper:
        built[slot] = Sleeper()
        return built[slot]

    return SlotHost(world, build=build, died=lambda _: None, start_us=(1, 1_000), failing_starts=failing_starts)


FIRST = SlotId(SlotIndex(0), 1)
SECOND = SlotId(SlotIndex(0), 2)


def test_a_slot_comes_up_leaves_and_is_told_of():
    world = World(5)
    built: dict[SlotId, Sleeper] = {}
    host = slot_host(world, built)
    host.start(FIRST)
    settle(world)
    assert host.current(0) == FIRST
    built[FIRST].left = True
    host.living[FIRST].wake()
    settle(world)
    assert built[FIRST].closed
    assert host.is_empty
    assert host.ended() == [SlotEnded(FIRST, None)]
    assert host.ended() == []


@pytest.mark.parametrize(
    ("notice", "news", "living"),
    [
        (Notice.TOLD, [SlotEnded(FIRST, "its process was killed")], []),
        (Notice.SILENT, [], []),
        (Notice.AGAIN, [], [FIRST._replace(attempt=1)]),
    ],
)
def test_a_crash_is_made_known_as_the_fault_says(notice: Notice, news: list[SlotEnded], living: list[SlotId]):
    world = World(5)
    built: dict[SlotId, Sleeper] = {}
    host = slot_host(world, built)
    host.start(FIRST)
    settle(world)
    host.crash(FIRST, notice)
    assert not built[FIRST].closed
    settle(world)
    assert host.ended() == news
    assert list(host.living) == living
    assert host.crashes == 1


def test_the_cluster_tells_of_a_slot_that_never_called():
    world = World(5)
    host = slot_host(world, {})
    host.has_called = lambda name: False
    host.start(FIRST)
    settle(world)
    host.crash(FIRST, Notice.SILENT)
    settle(world)
    assert host.ended() == [SlotEnded(FIRST, "its process was killed")]


def test_a_stopped_slot_dies_and_does_not_come_up_any_more():
    world = World(5)
    built: dict[SlotId, Sleeper] = {}
    host = slot_host(world, built)
    host.start(FIRST)
    settle(world)
    host.stop(FIRST)
    settle(world)
    assert host.is_empty
    assert host.ended() == [SlotEnded(FIRST, "it was stopped")]


def test_a_slot_that_was_started_again_is_told_of_and_stopped_by_the_name_it_was_asked_for():
    world = World(5)
    host = slot_host(world, {})
    host.start(FIRST)
    settle(world)
    host.crash(FIRST, Notice.AGAIN)
    settle(world)
    host.stop(FIRST)
    settle(world)
    assert host.is_empty
    assert host.ended() == [SlotEnded(FIRST, "it was stopped")]


def test_a_replaced_slot_may_not_come_up():
    world = World(5)
    built: dict[SlotId, Sleeper] = {}
    host = slot_host(world, built, failing_starts=1)
    host.start(SECOND)
    settle(world)
    assert host.ended() == [SlotEnded(SECOND, "its process could not be started")]
    host.start(SECOND)
    settle(world)
    assert host.current(0) == SECOND
