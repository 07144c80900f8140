"""What every `ports.Transport` promises."""

from __future__ import annotations

import pyarrow as pa


def text(messages):
    """Messages with their frames as bytes, to compare."""
    return [(peer, [bytes(frame) for frame in frames]) for peer, frames in messages]


def test_nothing_arrives_before_something_is_sent(network):
    assert network.join("b").receive() == []


def test_a_message_arrives_under_the_name_of_its_sender(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b"hello", b"there"])
    assert text(network.arrived("b", 1)) == [("a", [b"hello", b"there"])]


def test_frames_of_any_size_and_kind_arrive_as_they_were(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    sizes = (0, 1, 33, 65_535, 65_536, 1_000_000)
    frames = [bytes([size % 251]) * size for size in sizes]
    a.send("b", [pa.py_buffer(frame) if i % 2 else memoryview(frame) for i, frame in enumerate(frames)])
    assert text(network.arrived("b", 1)) == [("a", frames)]


def test_a_single_empty_frame_is_a_message(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b""])
    assert text(network.arrived("b", 1)) == [("a", [b""])]


def test_messages_of_one_direction_keep_their_order(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    sent = [[str(i).encode(), b"x" * (i * 977 % 100_000)] for i in range(500)]
    for frames in sent:
        a.send("b", frames)
    assert text(network.arrived("b", 500)) == [("a", frames) for frames in sent]


def test_received_frames_stay_as_they_are_while_others_arrive(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    kept = []
    for i in range(50):
        a.send("b", [bytes([i]) * 100, bytes([i]) * 100_000])
        kept += network.arrived("b", 1)
    assert text(kept) == [("a", [bytes([i]) * 100, bytes([i]) * 100_000]) for i in range(50)]


def test_who_was_called_can_answer_without_calling_back(network):
    a, b = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b"question"])
    network.arrived("b", 1)
    b.send("a", [b"answer", b"x" * 100_000])
    b.send("a", [b"more"])
    assert text(network.arrived("a", 2)) == [("b", [b"answer", b"x" * 100_000]), ("b", [b"more"])]


def test_nothing_is_lost_however_much_is_sent_before_it_is_taken(network):
    a, b = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    numbers = [[str(i).encode()] for i in range(5_000)]
    for frames in numbers:
        a.send("b", frames)
    assert text(network.arrived("b", 5_000)) == [("a", frames) for frames in numbers]
    for frames in numbers:
        b.send("a", frames)
    assert text(network.arrived("a", 5_000)) == [("b", frames) for frames in numbers]


def test_two_processes_may_call_each_other(network):
    a, b = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    b.connect("a", network.address("a"))
    a.send("b", [b"from a"])
    b.send("a", [b"from b"])
    assert text(network.arrived("b", 1)) == [("a", [b"from a"])]
    assert text(network.arrived("a", 1)) == [("b", [b"from b"])]


def test_every_caller_is_known_by_its_own_name(network):
    network.join("master")
    names = ["slot-0.0.0", "slot-1.0.0", "slot-2.5.1"]
    for name in names:
        slot = network.join(name)
        slot.connect("master", network.address("master"))
        slot.send("master", [b"I am", name.encode()])
    assert sorted(text(network.arrived("master", 3))) == [(name, [b"I am", name.encode()]) for name in names]


def test_an_answer_goes_to_the_one_it_is_for(network):
    master = network.join("master")
    for slot in (network.join("one"), network.join("other")):
        slot.connect("master", network.address("master"))
        slot.send("master", [b"here"])
    network.arrived("master", 2)
    master.send("other", [b"for other"])
    master.send("one", [b"for one"])
    assert text(network.arrived("one", 1)) == [("master", [b"for one"])]
    assert text(network.arrived("other", 1)) == [("master", [b"for other"])]


def test_a_peer_that_nobody_knows_gets_nothing_and_nobody_is_told(network):
    a, _ = network.join("a"), network.join("b")
    a.send("b", [b"lost"])
    a.send("nobody", [b"lost"])
    a.connect("b", network.address("b"))
    a.send("b", [b"found"])
    assert text(network.arrived("b", 1)) == [("a", [b"found"])]


def test_connecting_again_changes_nothing(network):
    a, _ = network.join("a"), network.join("b")
    for i in range(3):
        a.connect("b", network.address("b"))
        a.send("b", [str(i).encode()])
    assert text(network.arrived("b", 3)) == [("a", [b"0"]), ("a", [b"1"]), ("a", [b"2"])]


def test_a_disconnected_peer_gets_nothing_until_it_is_connected_again(network):
    a, _ = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b"before"])
    assert text(network.arrived("b", 1)) == [("a", [b"before"])]
    a.disconnect("b")
    a.send("b", [b"meanwhile"])
    a.connect("b", network.address("b"))
    a.send("b", [b"after"])
    assert text(network.arrived("b", 1)) == [("a", [b"after"])]


def test_a_caller_that_was_disconnected_is_answered_only_after_it_called_again(network):
    a, b = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b"one"])
    network.arrived("b", 1)
    b.disconnect("a")
    b.send("a", [b"lost"])
    a.send("b", [b"two"])
    network.arrived("b", 1)
    b.send("a", [b"answer"])
    assert text(network.arrived("a", 1)) == [("b", [b"answer"])]


def test_disconnecting_a_stranger_does_nothing(network):
    network.join("a").disconnect("nobody")


def test_a_process_that_came_back_takes_the_place_of_the_lost_one(network):
    b = network.join("b")
    for life in (b"first", b"second"):
        a = network.join("a")
        a.connect("b", network.address("b"))
        a.send("b", [life])
        assert text(network.arrived("b", 1)) == [("a", [life])]
        b.send("a", [b"welcome", life])
        assert text(network.arrived("a", 1)) == [("b", [b"welcome", life])]
        network.leave("a")


def test_sending_to_a_process_that_went_away_is_silent(network):
    a, b = network.join("a"), network.join("b")
    a.connect("b", network.address("b"))
    a.send("b", [b"here"])
    network.arrived("b", 1)
    network.leave("a")
    for _ in range(100):
        b.send("a", [b"x" * 10_000])
    assert b.receive() == []
