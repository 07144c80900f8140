"""Which callers may call a process over TCP: only the members of the job, which prove that they have the job's keys.

For every new connection ZeroMQ asks a question over a socket inside the process (ZeroMQ's authentication protocol, ZAP
1.0) and lets nothing through before the answer. The thread of `penstock.net.door` answers the question at once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

import zmq
from zmq.utils import z85

from penstock.net.keys import JobKeys
from penstock.net.pieces import LARGEST_FRAME_BYTES

HANDSHAKE_WITHIN_MS = 10_000
"""A connection whose caller has not shown the keys after this time is closed. If a busy host kept a member from showing
the keys in time, the member calls again."""

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_USER = b"member"
_DOMAIN = b"penstock"
_ADDRESS_FIELD = 3
_FIELDS_BEFORE_CREDENTIALS = 6


class Doorkeeper:
    """Answers, for one ZeroMQ context, whether a caller is a member of the job. `on_member` gets the address of each
    member."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: JobKeys, *, on_member: Callable[[str], None]
    ) -> None:
        self._keys = keys
        self._on_member = on_member
        self._public = z85.decode(keys.public)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ADDRESS)

    def guard(self, server: zmq.Socket[bytes], *, encrypt: bool) -> None:
        """Every address that `server` is bound to from now on lets only members of the job in."""
        server.zap_domain = _DOMAIN
        # Without an answer of the doorkeeper no caller comes in.
        server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if encrypt:
            server.curve_secretkey = self._keys.secret
            server.curve_publickey = self._keys.public
            server.curve_server = 1
        else:
            server.plain_server = 1

    def answer(self) -> None:
        """Answer every question that ZeroMQ has asked. Never blocks."""
        while has_input(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            is_member = self._is_member(request)
            if is_member:
                self._on_member(request[_ADDRESS_FIELD].decode("utf-8", "replace"))
            status = (b"200", b"OK") if is_member else (b"400", b"not a member of the job")
            request_id = request[1] if len(request) > 1 else b""
            self.socket.send_multipart([_VERSION, request_id, *status, b"", b""], zmq.NOBLOCK)

    def _is_member(self, request: list[bytes]) -> bool:
        if len(request) < _FIELDS_BEFORE_CREDENTIALS or request[0] != _VERSION:
            return False
        match request[5], request[_FIELDS_BEFORE_CREDENTIALS:]:
            case b"CURVE", [key]:
                return hmac.compare_digest(key, self._public)
            case b"PLAIN", [user, password]:
                return user == _USER and hmac.compare_digest(password, self._keys.password)
            case _:
                return False


def call(client: zmq.Socket[bytes], address: str, keys: JobKeys, *, encrypt: bool) -> None:
    """Connect `client` to an address (`ipc://…` or `tcp://host:port`). Over TCP the client shows the job's keys. Raises
    `zmq.ZMQError` if the address is not usable."""
    limit(client)
    client.ipv6 = address.startswith("tcp://[")
    if address.startswith("tcp://"):
        _introduce(client, keys, encrypt=encrypt)
    client.connect(address)


def limit(opened: zmq.Socket[bytes]) -> None:
    """Limit what the process at the other end can cost before that process has shown the keys."""
    opened.setsockopt(zmq.MAXMSGSIZE, LARGEST_FRAME_BYTES)
    opened.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_WITHIN_MS)


def _introduce(client: zmq.Socket[bytes], keys: JobKeys, *, encrypt: bool) -> None:
    if encrypt:
        client.curve_secretkey = keys.secret
        client.curve_publickey = keys.public
        client.curve_serverkey = keys.public
    else:
        client.plain_username = _USER
        client.plain_password = keys.password


def has_input(source: zmq.Socket[bytes]) -> bool:
    """Whether a message can be received at once."""
    return bool(int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
