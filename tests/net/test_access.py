"""Only members of the job get a message through over TCP."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from penstock.net.access import Doorkeeper
from penstock.net.keys import JobKeys, make_job_keys
from penstock.net.zeromq import ZmqTransport

TURNS = 6_000
TURN_MS = 20
REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)
SHUT_OUT = (*REFUSED, zmq.EVENT_DISCONNECTED)


@contextmanager
def caller(configure: Callable[[zmq.Socket], None]) -> Iterator[zmq.Socket]:
    """A socket that calls itself `member`, with keys as configured."""
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.routing_id = b"member"
        configure(dealer)
        yield dealer
    finally:
        context.destroy(linger=0)


def events_while_calling(dealer: zmq.Socket, server: ZmqTransport) -> set[int]:
    """What becomes of a call, seen from the caller, up to its end by one side or the other."""
    monitor = dealer.get_monitor_socket()
    dealer.connect(server.tcp_address)
    dealer.send_multipart([b"let me in"])
    seen: set[int] = set()
    for _ in range(TURNS):
        server.wait(TURN_MS)
        assert server.receive() == []
        while monitor.poll(0):
            seen.add(parse_monitor_message(monitor.recv_multipart())["event"])
        if seen & {*SHUT_OUT, zmq.EVENT_HANDSHAKE_SUCCEEDED}:
            return seen
    raise AssertionError(f"nothing came of the call: {seen}")


def curve(dealer: zmq.Socket, *, server: bytes, own: JobKeys) -> None:
    dealer.curve_serverkey = server
    dealer.curve_publickey = own.public
    dealer.curve_secretkey = own.secret


def plain(dealer: zmq.Socket, user: bytes, password: bytes) -> None:
    dealer.plain_username = user
    dealer.plain_password = password


STRANGER = make_job_keys()
ENCRYPTED_INTRUDERS = {
    "knows the server key, has another of its own": lambda s, k: curve(s, server=k.public, own=STRANGER),
    "has another pair": lambda s, k: curve(s, server=STRANGER.public, own=STRANGER),
    "has the right pair, expects another server": lambda s, k: curve(s, server=STRANGER.public, own=k),
    "shows the public key without the secret": lambda s, k: curve(
        s, server=k.public, own=JobKeys(public=k.public, secret=STRANGER.secret)
    ),
    "has no key": lambda s, k: None,
    "has the password": lambda s, k: plain(s, b"member", k.password),
}
PLAIN_INTRUDERS = {
    "has another password": lambda s, k: plain(s, b"member", STRANGER.password),
    "guesses": lambda s, k: plain(s, b"member", b"x"),
    "has another user": lambda s, k: plain(s, b"root", k.password),
    "shows nothing": lambda s, k: None,
    "has the keys": lambda s, k: curve(s, server=k.public, own=k),
}


@pytest.mark.parametrize(
    ("encrypt", "configure"),
    [
        *(pytest.param(True, f, id=f"encrypted: {name}") for name, f in ENCRYPTED_INTRUDERS.items()),
        *(pytest.param(False, f, id=f"plain: {name}") for name, f in PLAIN_INTRUDERS.items()),
    ],
)
def test_who_is_no_member_gets_nothing_through(open_transport, arrived, keys, encrypt, configure):
    server = open_transport("server", host="127.0.0.1", encrypt=encrypt)
    with caller(lambda dealer: configure(dealer, keys)) as intruder:
        seen = events_while_calling(intruder, server)
        assert zmq.EVENT_CONNECTED in seen
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
        # The server goes on as if nothing had happened, and the name is not taken.
        member = open_transport("member", encrypt=encrypt)
        member.connect("server", server.tcp_address)
        member.send("server", [b"really me"])
        assert arrived(server, 1) == [("member", [b"really me"])]
        server.send("member", [b"for the member"])
        assert arrived(member, 1) == [("server", [b"for the member"])]
        assert not intruder.poll(0)


@pytest.mark.parametrize(
    ("encrypt", "configure"),
    [(True, lambda s, k: curve(s, server=k.public, own=k)), (False, lambda s, k: plain(s, b"member", k.password))],
    ids=["encrypted", "plain"],
)
def test_a_member_by_any_other_program_gets_through(open_transport, arrived, keys, encrypt, configure):
    """Shows that the intruders above fail for their keys and for no other reason."""
    server = open_transport("server", host="127.0.0.1", encrypt=encrypt)
    with caller(lambda dealer: configure(dealer, keys)) as dealer:
        dealer.connect(server.tcp_address)
        dealer.send_multipart([b"let me in"])
        assert arrived(server, 1) == [("member", [b"let me in"])]


@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
def test_a_transport_of_another_job_is_shut_out_and_does_not_block(open_transport, arrived, keys, encrypt):
    server = open_transport("server", host="127.0.0.1", encrypt=encrypt)
    other_keys = JobKeys(public=keys.public, secret=STRANGER.secret)
    foreign = open_transport("member", keys=other_keys, encrypt=encrypt)
    foreign.connect("server", server.tcp_address)
    member = open_transport("member", encrypt=encrypt)
    member.connect("server", server.tcp_address)
    for i in range(50):
        foreign.send("server", [b"intruder"])
        member.send("server", [b"member", str(i).encode()])
        assert arrived(server, 1) == [("member", [b"member", str(i).encode()])]
        server.send("member", [b"answer"])
        assert arrived(member, 1) == [("server", [b"answer"])]
    assert foreign.receive() == []


PUBLIC = z85.decode(make_job_keys().public)


@pytest.mark.parametrize(
    ("request_frames", "status"),
    [
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"CURVE", z85.decode(k.public)], b"200"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"PLAIN", b"member", k.password], b"200"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"CURVE", PUBLIC], b"400"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"CURVE"], b"400"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"CURVE", z85.decode(k.public), b"more"], b"400"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"PLAIN", b"member"], b"400"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"NULL"], b"400"),
        (lambda k: [b"1.0", b"9", b"d", b"addr", b"id", b"GSSAPI", b"principal"], b"400"),
        (lambda k: [b"2.0", b"9", b"d", b"addr", b"id", b"CURVE", z85.decode(k.public)], b"400"),
        (lambda k: [b"1.0", b"9"], b"400"),
    ],
    ids=["key", "password", "other key", "no key", "two keys", "no password", "null", "gssapi", "version", "cut"],
)
def test_the_doorkeeper_answers_every_question_and_lets_members_in(keys, request_frames, status):
    context = zmq.Context()
    try:
        members: list[str] = []
        doorkeeper = Doorkeeper(context, keys, on_member=members.append)
        asking = context.socket(zmq.REQ)
        asking.connect("inproc://zeromq.zap.01")
        asking.send_multipart(request_frames(keys))
        doorkeeper.answer()
        assert asking.recv_multipart(zmq.NOBLOCK)[:3] == [b"1.0", b"9", status]
        assert members == (["addr"] if status == b"200" else [])
    finally:
        context.destroy(linger=0)


def test_an_encrypted_connection_does_not_show_its_content(open_transport, arrived):
    """The bytes are taken off the wire by a forwarder in between."""
    a, b = open_transport("a"), open_transport("b", host="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        a.connect("b", f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        a.send("b", [b"the secret word is swordfish"])
        near, _ = listener.accept()
        with near, socket.create_connection(("127.0.0.1", int(b.tcp_address.rpartition(":")[2]))) as far:
            near.settimeout(0)
            far.settimeout(0)
            on_the_wire = b""
            messages: list = []
            for _ in range(TURNS):
                for source, target in ((near, far), (far, near)):
                    try:
                        piece = source.recv(65_536)
                    except BlockingIOError:
                        continue
                    on_the_wire += piece
                    target.sendall(piece)
                b.wait(TURN_MS)
                messages += b.receive()
                if messages:
                    break
    assert messages == [("a", [b"the secret word is swordfish"])]
    assert b"CURVE" in on_the_wire
    assert b"swordfish" not in on_the_wire


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(256)) * 20,
        GREETING + b"\x06" + struct.pack(">Q", 2**62),
        GREETING + b"\x02" + struct.pack(">Q", 2**63 + 5),
        GREETING + b"\x04\xff\x05HELLO" + bytes(300),
        GREETING + b"\x00\x05hello",
    ],
    ids=["http", "noise", "endless command", "endless frame", "empty hello", "data before keys"],
)
def test_garbage_on_the_port_does_no_harm(open_transport, arrived, garbage):
    server = open_transport("server", host="127.0.0.1")
    with socket.create_connection(("127.0.0.1", int(server.tcp_address.rpartition(":")[2]))) as stranger:
        stranger.settimeout(120)
        stranger.sendall(garbage)
        # The server hangs up; being reset is the same.
        try:
            while stranger.recv(65_536):
                pass
        except ConnectionResetError:
            pass
    member = open_transport("member")
    member.connect("server", server.tcp_address)
    member.send("server", [os.urandom(10)])
    assert len(arrived(server, 1)) == 1
