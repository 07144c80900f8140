"""Who may call a process over TCP: only those that prove to know the job's keys.

ZeroMQ asks about every new connection over a socket inside the process (its authentication protocol, ZAP 1.0) and lets
nothing through before the answer. The transport answers on its own thread, whenever it waits or receives.
"""

from __future__ import annotations

import hmac

import zmq
from zmq.utils import z85

from penstock.net.keys import JobKeys

_ADDRESS = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_USER = b"member"
_DOMAIN = b"penstock"
_FIELDS_BEFORE_CREDENTIALS = 6


class Doorkeeper:
    """Answers for one context whether a caller may come in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: JobKeys) -> None:
        self._keys = keys
        self._public = z85.decode(keys.public)
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ADDRESS)

    def guard(self, server: zmq.Socket[bytes], *, encrypt: bool) -> None:
        """Whatever `server` is bound to from here on lets only members of the job in."""
        server.zap_domain = _DOMAIN
        # Without an answer nobody comes in.
        server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if encrypt:
            server.curve_secretkey = self._keys.secret
            server.curve_publickey = self._keys.public
            server.curve_server = 1
        else:
            server.plain_server = 1

    def answer(self) -> None:
        """Answer every question that has come up. Never blocks."""
        while has_input(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            status = (b"200", b"OK") if self._is_member(request) else (b"400", b"not a member of the job")
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
    """Connect `client` to an address (`ipc://…` or `tcp://host:port`); over TCP it shows that it belongs to the job.
    Raises `zmq.ZMQError` if that is no address."""
    client.ipv6 = address.startswith("tcp://[")
    if address.startswith("tcp://"):
        _introduce(client, keys, encrypt=encrypt)
    client.connect(address)


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
