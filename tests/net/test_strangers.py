"""Callers that have not shown the keys of the job cost little, however many they are and whatever they send."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.net import access, door
from penstock.net.door import Strangers
from penstock.net.zeromq import ZmqTransport

LOCAL = "127.0.0.1"
TOO_LARGE = 2_000_000_000
MOST_TAKEN = 32 * 1024 * 1024
"""What the buffers of the system may hold besides one frame."""
PATIENCE_S = 60


def port_of(server: ZmqTransport) -> int:
    return int(server.tcp_address.rpartition(":")[2])


def greeting(mechanism: bytes) -> bytes:
    """How a caller of the current protocol begins."""
    signature = b"\xff" + bytes(8) + b"\x7f"
    return signature + b"\x03\x01" + mechanism.ljust(20, b"\0") + b"\0" + bytes(31)


LONG_COMMAND, LONG_MESSAGE, LONG_WITH_MORE = b"\x06", b"\x02", b"\x03"
BEGINNINGS = {
    "a command": greeting(b"CURVE") + LONG_COMMAND + struct.pack(">Q", TOO_LARGE),
    "a message": greeting(b"CURVE") + LONG_MESSAGE + struct.pack(">Q", TOO_LARGE),
    "the first of several frames": greeting(b"CURVE") + LONG_WITH_MORE + struct.pack(">Q", TOO_LARGE),
    "the other mechanism": greeting(b"PLAIN") + LONG_COMMAND + struct.pack(">Q", TOO_LARGE),
    "no mechanism": greeting(b"NULL") + LONG_COMMAND + struct.pack(">Q", TOO_LARGE),
    "the first protocol": b"\xff" + struct.pack(">Q", TOO_LARGE) + b"\x00",
    "nonsense": b"GET / HTTP/1.1\r\n",
}


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_stranger_cannot_have_a_large_frame_held(open_transport, arrived, beginning, encrypt):
    server = open_transport("server", host=LOCAL, encrypt=encrypt)
    taken = 0
    with socket.create_connection((LOCAL, port_of(server))) as stranger:
        try:
            stranger.sendall(beginning)
            for _ in range(200):
                stranger.sendall(bytes(1_000_000))
                taken += 1_000_000
        except OSError:
            assert taken < MOST_TAKEN
        else:
            pytest.fail("200 MB were taken of a stranger")
    member = open_transport("member", encrypt=encrypt)
    member.connect("server", server.tcp_address)
    member.send("server", [b"hello"])
    assert arrived(server, 1) == [("member", [b"hello"])]


@contextlib.contextmanager
def strangers(server: ZmqTransport, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((LOCAL, port_of(server)), source_address=(LOCAL, 0)))
            for _ in range(count)
        ]


def is_hung_up_on(stranger: socket.socket) -> bool:
    """Waits until the other side hangs up; whatever it says before is read."""
    stranger.settimeout(PATIENCE_S)
    try:
        while stranger.recv(1_000):
            pass
    except ConnectionResetError:
        pass
    return True


def test_of_many_strangers_the_surplus_is_hung_up_on_and_members_talk_on(open_transport, arrived, monkeypatch):
    # None of the strangers is hung up on because it has been silent for long.
    monkeypatch.setattr(access, "HANDSHAKE_WITHIN_MS", 3_600_000)
    server = open_transport("server", host=LOCAL)
    old = open_transport("old")
    old.connect("server", server.tcp_address)
    old.send("server", [b"before"])
    assert arrived(server, 1) == [("old", [b"before"])]
    with strangers(server, door.STRANGERS_PER_ADDRESS + 40) as calling:
        for stranger in calling[door.STRANGERS_PER_ADDRESS :]:
            assert is_hung_up_on(stranger)
        old.send("server", [b"during"])
        other = open_transport("other")
        other.connect("server", f"tcp://127.0.0.2:0;{server.tcp_address.removeprefix('tcp://')}")
        other.send("server", [b"from another address"])
        assert sorted(arrived(server, 2)) == [("old", [b"during"]), ("other", [b"from another address"])]
    new = open_transport("new")
    new.connect("server", server.tcp_address)
    new.send("server", [b"after"])
    assert arrived(server, 1) == [("new", [b"after"])]


def test_members_that_come_and_go_take_no_room(open_transport, arrived, monkeypatch):
    monkeypatch.setattr(door.Strangers.__init__, "__kwdefaults__", {"per_address": 2, "in_all": 2})
    server = open_transport("server", host=LOCAL)
    for number in range(10):
        with ZmqTransport(f"m{number}", keys=server._keys) as member:
            member.connect("server", server.tcp_address)
            member.send("server", [b"hello"])
            assert arrived(server, 1) == [(f"m{number}", [b"hello"])]


def test_a_caller_is_let_in_while_the_process_is_busy(open_transport, keys):
    """Nobody waits or receives here but the caller."""
    server = open_transport("server", host=LOCAL)
    context = zmq.Context()
    try:
        caller = context.socket(zmq.DEALER)
        caller.curve_serverkey = caller.curve_publickey = keys.public
        caller.curve_secretkey = keys.secret
        news = caller.get_monitor_socket()
        caller.connect(server.tcp_address)
        while parse_monitor_message(news.recv_multipart())["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            pass
    finally:
        caller.disable_monitor()
        context.destroy(linger=0)


def test_strangers_are_counted_by_address_and_in_all():
    counted = Strangers(per_address=2, in_all=3)
    assert [counted.called(n, "a") for n in (1, 2, 3)] == [True, True, False]
    counted.gone(3, was_stranger=True)
    assert [counted.called(4, "b"), counted.called(5, "b")] == [True, False]
    counted.gone(5, was_stranger=True)
    counted.let_in("a")
    assert counted.called(6, "b")
    # A member has left; how many strangers there are is the same.
    counted.gone(1, was_stranger=False)
    assert not counted.called(7, "c")
    counted.gone(99, was_stranger=True)
    counted.let_in("nobody")


def test_a_stranger_that_is_silent_is_hung_up_on(open_transport, monkeypatch):
    monkeypatch.setattr(access, "HANDSHAKE_WITHIN_MS", 50)
    server = open_transport("server", host=LOCAL)
    with strangers(server, 2) as (silent, greeted):
        greeted.sendall(greeting(b"CURVE"))
        assert is_hung_up_on(silent)
        assert is_hung_up_on(greeted)
