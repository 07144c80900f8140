"""Links: what is lost, repeated, stale or malformed is known, and nothing that a peer sent is raised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from master_rig import Followed

from penstock.core.errors import MalformedMessage
from penstock.core.ids import Epoch, Instant
from penstock.runtime.links import KEEPALIVE_MS, Links
from penstock.wire.frames import Channel, Header, Kind, pack


class Wire(Followed):
    """A transport whose messages the test carries."""

    def __init__(self):
        super().__init__()
        self.sent = []
        self.arriving = []
        self.connected = {}

    def connect(self, peer, address):
        self.connected[peer] = address

    def disconnect(self, peer):
        self.connected.pop(peer, None)

    def send(self, peer, frames):
        self.sent.append((peer, [bytes(frame) for frame in frames]))

    def receive(self):
        arrived, self.arriving = self.arriving, []
        return arrived


class End:
    """One process: its links, and what they reported."""

    def __init__(self, name, refuse=(), silence_ms=None):
        self.name = name
        self.wire = Wire()
        self.got = []
        self.broken = []
        self._refuse = refuse
        self.links = Links(
            self.wire,
            on_packet=self._on_packet,
            on_broken=lambda peer, text: self.broken.append((peer, text)),
            silence_ms=silence_ms,
        )

    def _on_packet(self, peer, packet):
        if bytes(packet.payload) in self._refuse:
            raise MalformedMessage("a credit that cannot be")
        if packet.header.kind is not Kind.KEEPALIVE:
            self.got.append(bytes(packet.payload))

    def say(self, peer, *texts, epoch=1):
        for text in texts:
            self.links.send(peer, Kind.CONTROL, text, epoch=Epoch(epoch))

    def hear(self, *messages, peer="a", now=0):
        """Have messages, each a list of frames, arrive."""
        self.wire.arriving += [(peer, list(frames)) for frames in messages]
        return self.links.receive(Instant(now))

    def packets_to(self, peer):
        return [frames for to, frames in self.wire.sent if to == peer]


@pytest.fixture
def a():
    end = End("a")
    end.links.connect("b", "address of b")
    return end


@pytest.fixture
def b():
    return End("b")


def test_packets_arrive_in_order_and_once(a, b):
    a.say("b", b"1", b"2", b"3")
    assert b.hear(*a.packets_to("b"))
    assert (b.got, b.broken) == ([b"1", b"2", b"3"], [])


def test_receive_says_whether_there_was_anything(b):
    assert not b.hear()


def test_a_packet_carries_its_channel_and_what_it_costs(a):
    a.links.send("b", Kind.BATCH, b"rows", epoch=Epoch(4), channel=Channel(1, 2, 3), cost=77)
    (frames,) = a.packets_to("b")
    assert frames == pack(
        Header(sequence=0, epoch=Epoch(4), kind=Kind.BATCH, channel=Channel(1, 2, 3), cost=77), b"rows"
    )


@pytest.mark.parametrize(
    ("lost", "text"), [([1], "1 packets from a were lost"), ([0, 1], "2 packets from a were lost")]
)
def test_a_gap_breaks_the_link_and_the_packet_behind_it_is_not_handed_on(a, b, lost, text):
    a.say("b", b"1", b"2", b"3")
    b.hear(*[frames for i, frames in enumerate(a.packets_to("b")) if i not in lost])
    assert b.broken == [("a", text)]
    assert b"3" not in b.got


def test_a_repeated_packet_breaks_the_link_and_is_not_handed_on_twice(a, b):
    a.say("b", b"1")
    b.hear(*a.packets_to("b"), *a.packets_to("b"))
    assert b.got == [b"1"]
    assert b.broken == [("a", "a repeated packets")]


def test_a_gap_is_reported_once_and_not_again_for_every_packet_behind_it(a, b):
    a.say("b", b"1", b"2", b"3", b"4")
    b.hear(*a.packets_to("b")[1:])
    assert len(b.broken) == 1


def test_directions_and_peers_are_counted_apart(b):
    first, second = End("a"), End("c")
    first.say("b", b"from a")
    second.say("b", b"from c")
    b.hear(*first.packets_to("b"), peer="a")
    b.hear(*second.packets_to("b"), peer="c")
    assert (b.got, b.broken) == ([b"from a", b"from c"], [])


# --- keepalives ------------------------------------------------------------------------------------------------------


def test_a_quiet_direction_is_kept_alive_and_the_next_time_is_told(a):
    a.links.receive(Instant(5_000))
    a.say("b", b"1")
    due = a.links.keep_alive(Instant(5_000))
    assert due == 5_000 + KEEPALIVE_MS
    assert len(a.wire.sent) == 1
    assert a.links.keep_alive(Instant(due)) == due + KEEPALIVE_MS
    assert len(a.wire.sent) == 2


def test_what_is_sent_makes_a_keepalive_needless(a):
    a.links.keep_alive(Instant(0))
    a.links.receive(Instant(900))
    a.say("b", b"1")
    # The time told before may come too early, never too late: at it nothing is sent, and the right time is told.
    assert a.links.keep_alive(Instant(KEEPALIVE_MS)) == 900 + KEEPALIVE_MS
    assert len(a.wire.sent) == 1


def test_a_peer_that_comes_later_is_kept_alive_in_its_own_time(a):
    a.links.keep_alive(Instant(500))
    a.links.connect("c", "address of c")
    a.links.answer("d", listens_at=None)
    a.links.keep_alive(Instant(500 + KEEPALIVE_MS))
    assert sorted(peer for peer, _ in a.wire.sent) == ["b", "c", "d"]


def test_without_peers_there_is_no_deadline(b):
    assert b.links.keep_alive(Instant(99_999)) is None


def test_a_keepalive_shows_a_loss_at_the_end(a, b):
    a.say("b", b"1", b"2")
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    first, _lost, keepalive = a.packets_to("b")
    b.hear(first, keepalive)
    assert b.got == [b"1"]
    assert b.broken == [("a", "1 packets from a were lost")]


def test_keepalives_take_no_number_however_many_come(a, b):
    a.say("b", b"1")
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    a.links.keep_alive(Instant(2 * KEEPALIVE_MS))
    a.say("b", b"2")
    b.hear(*a.packets_to("b"))
    assert (b.got, b.broken) == ([b"1", b"2"], [])


def test_a_peer_of_which_nothing_comes_breaks_the_link_once_in_an_epoch():
    end = End("a", silence_ms=5_000)
    end.links.connect("b", "address of b")
    end.links.connect("c", "address of c")
    for epoch, start in ((1, 10_000), (2, 20_000)):
        end.broken.clear()
        end.links.receive(Instant(start))
        end.links.begin("b", Epoch(epoch))
        end.links.all_have_begun()
        end.links.keep_alive(Instant(start + 4_999))
        assert end.broken == []
        for late in (6_000, 7_000, 13_000):
            end.links.keep_alive(Instant(start + late))
        assert end.broken == [("b", "nothing came for 6000 ms; check that the two hosts can reach each other")]


def test_silence_of_a_peer_counts_when_it_was_heard_of_or_all_have_begun(a):
    """A peer that is in user code since before it learned of the epoch has no link that it could keep alive."""
    end = End("b", silence_ms=5_000)
    for peer in ("a", "c", "d"):
        end.links.begin(peer, Epoch(1))
    end.links.keep_alive(Instant(60_000))
    assert end.broken == []
    a.say("b", b"1")
    end.hear(*a.packets_to("b"), now=60_000)
    end.links.keep_alive(Instant(65_000))
    assert [peer for peer, _ in end.broken] == ["a"]
    end.links.all_have_begun()
    end.links.keep_alive(Instant(69_999))
    assert len(end.broken) == 1
    end.links.keep_alive(Instant(71_000))
    assert [peer for peer, _ in end.broken] == ["a", "c", "d"]


def test_a_peer_that_others_hear_of_is_not_silent():
    end = End("b", silence_ms=5_000)
    for peer in ("a", "c", "d"):
        end.links.begin(peer, Epoch(1))
    end.links.hear_of("d")
    end.links.hear_of("stranger")
    end.links.all_have_begun()
    end.links.receive(Instant(4_000))
    end.links.hear_of("a")
    end.links.keep_alive(Instant(6_000))
    assert [peer for peer, _ in end.broken] == ["c", "d"]
    end.links.keep_alive(Instant(9_000))
    assert [peer for peer, _ in end.broken] == ["c", "d", "a"]


def test_what_came_while_a_process_did_not_look_is_no_silence(a):
    end = End("b", silence_ms=5_000)
    end.links.begin("a", Epoch(1))
    end.links.all_have_begun()
    a.links.begin("b", Epoch(1))
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    end.hear(*a.packets_to("b"), peer="a", now=60_000)
    end.links.keep_alive(Instant(60_000))
    assert end.broken == []
    end.links.disconnect("a")
    end.links.keep_alive(Instant(90_000))
    assert end.broken == []


def test_a_forgotten_peer_gets_no_keepalive(a):
    a.say("b", b"1")
    a.links.disconnect("b")
    assert a.wire.connected == {}
    a.links.keep_alive(Instant(9 * KEEPALIVE_MS))
    assert len(a.wire.sent) == 1


def test_a_peer_that_has_called_in_and_is_gone_breaks_its_link(a):
    a.links.answer("b", listens_at="address of b")
    a.links.answer("c", listens_at=None)
    assert a.wire.followed == {"b": "address of b"}
    a.wire.lost = ["b"]
    assert not a.links.receive(Instant(0))
    assert a.broken == [("b", "the process at the other end has died, or cannot be reached any more")]


def test_a_peer_that_leaves_is_not_followed(a):
    a.links.answer("b", listens_at="address of b")
    a.links.let_go("b")
    assert a.wire.followed == {}
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    assert len(a.wire.sent) == 1


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_a_new_epoch_counts_from_zero_on_both_sides(a, b):
    a.say("b", b"1", b"2", epoch=1)
    a.say("b", b"3", epoch=2)
    b.hear(*a.packets_to("b"))
    assert (b.got, b.broken) == ([b"1", b"2", b"3"], [])


def test_what_was_lost_before_the_first_packet_of_an_epoch_is_noticed(a, b):
    a.say("b", b"old", epoch=1)
    a.say("b", b"lost", b"3", epoch=2)
    old, _lost, third = a.packets_to("b")
    b.hear(old, third)
    assert b.broken == [("a", "1 packets from a were lost")]


def test_packets_of_an_epoch_that_was_left_behind_are_dropped_without_a_word(a, b):
    a.say("b", b"old 1", b"old 2", epoch=1)
    a.say("b", b"new", epoch=2)
    old_1, old_2, new = a.packets_to("b")
    b.hear(old_1, new, old_2)
    assert (b.got, b.broken) == ([b"old 1", b"new"], [])


def test_what_an_earlier_epoch_lost_matters_no_more_when_a_new_one_has_begun(a, b):
    """1. A packet of epoch 1 is lost. 2. Both enter epoch 2. 3. The sender is quiet, so its keepalive tells."""
    a.say("b", b"lost", epoch=1)
    b.links.begin("a", Epoch(2))
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    a.links.begin("b", Epoch(2))
    a.links.keep_alive(Instant(2 * KEEPALIVE_MS))
    b.hear(*a.packets_to("b")[1:])
    assert b.broken == []
    a.say("b", b"lost too", b"2", epoch=2)
    b.hear(a.packets_to("b")[-1])
    assert b.broken == [("a", "1 packets from a were lost")]


def test_entering_an_epoch_that_the_peer_has_entered_already_forgets_nothing(a, b):
    a.say("b", b"1", epoch=2)
    b.hear(*a.packets_to("b"))
    b.links.begin("a", Epoch(2))
    a.say("b", b"2", epoch=2)
    b.hear(a.packets_to("b")[-1])
    assert (b.got, b.broken) == ([b"1", b"2"], [])


# --- what cannot be read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"one frame"],
        [b"", b""],
        [b"\xc1", b"payload"],
        [pack(Header(sequence=0, epoch=Epoch(1), kind=Kind.CONTROL))[0], b"x", b"y"],
        pack(Header(sequence=0, epoch=Epoch(1), kind=Kind.BATCH), b"without a channel"),
    ],
)
def test_a_malformed_message_breaks_its_link_and_the_others_are_read(a, b, frames):
    a.say("b", b"1")
    b.wire.arriving = [("m", frames)]
    b.hear(*a.packets_to("b"))
    assert [peer for peer, _ in b.broken] == ["m"]
    assert b.got == [b"1"]


def test_a_payload_that_is_refused_as_malformed_breaks_the_link(a):
    b = End("b", refuse=(b"2",))
    a.say("b", b"1", b"2", b"3")
    b.hear(*a.packets_to("b"))
    assert b.broken == [("a", "a credit that cannot be")]
    assert b.got == [b"1", b"3"]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 255)), max_size=4), st.integers(0, 40))
def test_a_changed_or_cut_packet_is_handed_on_or_breaks_the_link_and_is_never_raised(changes, cut):
    header = Header(sequence=0, epoch=Epoch(1), kind=Kind.BATCH, channel=Channel(1, 2, 3), cost=400)
    frame, payload = pack(header, b"rows")
    damaged = bytearray(frame)
    for place, change in changes:
        damaged[place % len(damaged)] ^= change
    b = End("b")
    b.hear([bytes(damaged)[: len(damaged) - cut % len(damaged)], payload])
    assert len(b.got) + len(b.broken) == 1


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_a_loss_is_known_at_the_latest_with_the_next_keepalive(kept):
    a, b = End("a"), End("b")
    a.links.connect("b", "address")
    a.say("b", *[bytes([i]) for i in range(len(kept))])
    a.links.keep_alive(Instant(KEEPALIVE_MS))
    *packets, keepalive = a.packets_to("b")
    b.hear(*[frames for frames, arrives in zip(packets, kept, strict=True) if arrives], keepalive)
    assert bool(b.broken) == (not all(kept))
