"""What the real transport promises beyond `ports.Transport`: waiting, closing, listening, and clear refusals."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ports import own_port

from penstock.core.errors import HostError, Retry, UsageError
from penstock.net.zeromq import ZmqTransport

LOCAL = "127.0.0.1"


# --- sending ---------------------------------------------------------------------------------------------------------


def test_a_message_to_oneself_arrives_with_the_next_receive(open_transport):
    a = open_transport("a")
    a.send("a", [b"one", memoryview(b"two")])
    a.wait(None)
    assert a.receive() == [("a", [b"one", b"two"])]
    assert a.receive() == []


def test_connecting_oneself_does_nothing(open_transport):
    a = open_transport("a", host=LOCAL)
    a.connect("a", a.tcp_address)
    a.send("a", [b"x"])
    assert a.receive() == [("a", [b"x"])]


@pytest.mark.parametrize("size", [10, 200_000])
def test_frames_may_be_reused_as_soon_as_they_are_sent(open_transport, arrived, tmp_path, size):
    a, b = open_transport("a"), open_transport("b", ipc_dir=tmp_path / "s")
    a.connect("b", b.ipc_address)
    for target, receiver in (("b", b), ("a", a)):
        frame = bytearray(b"x" * size)
        a.send(target, [frame])
        frame[:] = b"y" * size
        assert [bytes(f) for _, [f] in arrived(receiver, 1)] == [b"x" * size]


def test_large_frames_arrive_as_views_that_cannot_be_changed_and_outlive_the_transport(open_transport, arrived):
    a, b = open_transport("a"), open_transport("b", host=LOCAL)
    a.connect("b", b.tcp_address)
    a.send("b", [b"small", b"x" * 1_000_000])
    [(_, [small, large])] = arrived(b, 1)
    a.close()
    b.close()
    assert (type(small), type(large), large.readonly) == (bytes, memoryview, True)
    assert large == b"x" * 1_000_000


def test_what_is_sent_before_the_peer_listens_waits_for_it(open_transport, arrived):
    port = own_port()
    a = open_transport("a")
    a.connect("b", f"tcp://{LOCAL}:{port}")
    a.send("b", [b"early"])
    b = open_transport("b", host=LOCAL, port=port)
    assert arrived(b, 1) == [("a", [b"early"])]


def test_a_message_without_frames_is_refused(open_transport):
    with pytest.raises(UsageError, match="no frames"):
        open_transport("a").send("b", [])


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_wait_ends_when_its_time_is_over(open_transport):
    a = open_transport("a")
    a.wait(0)
    a.wait(1)
    assert a.receive() == []


def test_any_number_of_wakes_ends_the_next_wait_and_only_that(open_transport):
    a = open_transport("a")
    for _ in range(10_000):
        a.wake()
    a.wait(None)
    assert a._poller.poll(0) == []


def test_any_thread_may_wake_a_waiting_one(open_transport):
    a = open_transport("a", host=LOCAL)
    woken = []

    def wait_for_it():
        a.wait(60_000)
        woken.append(True)

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    callers = [threading.Thread(target=a.wake) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in (*callers, thread):
        caller.join(120)
    assert woken == [True]


def test_a_message_ends_a_wait(open_transport):
    a, b = open_transport("a"), open_transport("b", host=LOCAL)
    a.connect("b", b.tcp_address)
    a.send("b", [b"x"])
    # The first waits end early for the handshake; without an end they would hang here.
    while not b.receive():
        b.wait(None)


def test_an_answer_ends_a_wait(open_transport, arrived, tmp_path):
    a, b = open_transport("a"), open_transport("b", ipc_dir=tmp_path / "s")
    a.connect("b", b.ipc_address)
    a.send("b", [b"x"])
    arrived(b, 1)
    b.send("a", [b"y"])
    a.wait(None)
    assert a.receive() == [("b", [b"y"])]


# --- closing ---------------------------------------------------------------------------------------------------------


def test_closing_does_not_wait_for_what_nobody_took(open_transport):
    a = open_transport("a")
    a.connect("b", f"tcp://{LOCAL}:9")
    a.send("b", [b"x" * 10_000_000])
    a.close()


def test_a_closed_transport_refuses_everything_but_wake_and_close(open_transport):
    a = open_transport("a", host=LOCAL)
    a.close()
    a.close()
    a.wake()
    for call in (a.receive, a.wait, lambda: a.send("b", [b""]), lambda: a.connect("b", ""), lambda: a.disconnect("b")):
        with pytest.raises(UsageError, match="the transport of a is closed"):
            call()


def test_a_forgotten_transport_lets_go_of_its_threads_and_files(keys, tmp_path):
    a = ZmqTransport("a", keys=keys, ipc_dir=tmp_path / "s")
    a.connect("b", f"tcp://{LOCAL}:9")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del a
    assert list(tmp_path.iterdir()) == []


def test_importing_makes_no_context_and_no_thread():
    check = (
        "import os, penstock.net.zeromq, zmq; "
        "assert zmq.Context._instance is None; assert len(os.listdir('/proc/self/task')) == 1"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


# --- listening -------------------------------------------------------------------------------------------------------


def test_it_listens_only_as_told(open_transport, tmp_path):
    both = open_transport("both", ipc_dir=tmp_path / "s", host=LOCAL)
    assert both.ipc_address.startswith(f"ipc://{tmp_path}/s/both-")
    assert both.tcp_address.startswith(f"tcp://{LOCAL}:")
    neither = open_transport("neither")
    assert (neither.ipc_address, neither.tcp_address) == (None, None)


def test_one_process_can_be_called_by_both_ways(open_transport, arrived, tmp_path):
    b = open_transport("b", ipc_dir=tmp_path / "s", host=LOCAL)
    for name, address in (("near", b.ipc_address), ("far", b.tcp_address)):
        caller = open_transport(name)
        caller.connect("b", address)
        caller.send("b", [b"hello"])
        assert arrived(b, 1) == [(name, [b"hello"])]
        b.send(name, [b"hello too"])
        assert arrived(caller, 1) == [("b", [b"hello too"])]


def test_a_host_may_be_given_by_name(open_transport):
    assert open_transport("a", host="localhost").tcp_address.startswith(("tcp://127.0.0.1:", "tcp://[::1]:"))


def test_it_listens_on_the_newer_internet_too(open_transport, arrived):
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    a, b = open_transport("a"), open_transport("b", host="::1")
    assert b.tcp_address.startswith("tcp://[::1]:")
    a.connect("b", b.tcp_address)
    a.send("b", [b"x"])
    assert arrived(b, 1) == [("a", [b"x"])]


def test_a_port_that_is_taken_is_an_error_of_the_host(open_transport):
    taken = open_transport("a", host=LOCAL)
    port = int(taken.tcp_address.rpartition(":")[2])
    with pytest.raises(HostError, match=f"b cannot listen at tcp://{LOCAL}:{port}") as caught:
        open_transport("b", host=LOCAL, port=port)
    assert caught.value.retry is Retry.LATER
    assert "use another port" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"host": "192.0.2.1"}, "cannot listen at tcp://192.0.2.1"),
        ({"host": "0.0.0.0"}, "peers cannot call that address"),
        ({"host": "::"}, "peers cannot call that address"),
        ({"host": "no such host"}, "has no address"),
        ({"host": "a..b"}, "has no address"),
        ({"host": LOCAL, "port": 65_536}, "port 65536 does not exist"),
        ({"host": LOCAL, "port": -1}, "port -1 does not exist"),
    ],
)
def test_what_cannot_be_listened_at_is_refused(open_transport, options, why):
    with pytest.raises(UsageError, match=why) as caught:
        open_transport("a", **options)
    assert caught.value.hint


def test_a_transport_that_could_not_be_made_leaves_nothing(open_transport, tmp_path):
    # What earlier tests left to be collected would be closed meanwhile.
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UsageError):
        open_transport("a", ipc_dir=tmp_path / "s", host="0.0.0.0")
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["", "x" * 256, "\0hidden"], ids=["empty", "long", "zero"])
def test_a_name_that_zeromq_cannot_carry_is_refused(open_transport, name):
    with pytest.raises(UsageError, match="is not usable"):
        open_transport(name)


@pytest.mark.parametrize(
    "address", ["", "inproc://x", "udp://127.0.0.1:1", "127.0.0.1:5", "tcp://", "tcp://host", "ipc:///" + "x" * 200]
)
def test_an_address_that_cannot_be_called_is_refused(open_transport, address):
    a = open_transport("a")
    with pytest.raises(UsageError, match="of b"):
        a.connect("b", address)
    a.send("b", [b"goes nowhere"])
