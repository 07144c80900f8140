"""The door of a process that listens on TCP: it counts *strangers*, which are callers that have not shown the keys of
the job yet, and limits how many strangers there may be.

A stranger can cost nothing but a connection, for a short time, with room for one frame: ZeroMQ bounds the frame and the
time. ZeroMQ does not bound the number of strangers, so the door does, by address and in all. The door learns from
ZeroMQ's events what becomes of every connection, and from ZeroMQ's questions which callers are members:

    accepted, from an address ──┬─► a question, answered with yes        a member, which is not counted
                                ├─► failed, and disconnected             gone
                                └─► too many: the connection is shut     gone

The door has a thread of its own, so that callers are answered also while the process runs code of the user. ZeroMQ
waits for the reader of its events, so the thread does nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import Counter
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.net.access import Doorkeeper, has_input
from penstock.net.keys import JobKeys

STRANGERS_PER_ADDRESS = 128
"""How many strangers of one address there may be. A member needs a few milliseconds to show the keys. A member that is
shut out calls again."""
STRANGERS = 512
"""How many strangers of all addresses there may be."""

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED
_NEWS = "inproc://penstock.door"


class Strangers:
    """Counts connections whose callers have not shown the keys. Belongs to one thread."""

    def __init__(self, *, per_address: int = STRANGERS_PER_ADDRESS, in_all: int = STRANGERS) -> None:
        self._per_address = per_address
        self._in_all = in_all
        self._addresses: dict[int, str] = {}
        """The address of every connection over TCP, by the descriptor of the connection."""
        self._counts: Counter[str] = Counter()

    def called(self, connection: int, address: str) -> bool:
        """A stranger has called. Returns whether there is room for the stranger."""
        self._addresses[connection] = address
        self._counts[address] += 1
        return self._counts[address] <= self._per_address and self._counts.total() <= self._in_all

    def let_in(self, address: str) -> None:
        """A stranger of that address has shown the keys, and is a member from now on."""
        if self._counts[address] > 1:
            self._counts[address] -= 1
        else:
            del self._counts[address]

    def gone(self, connection: int, *, was_stranger: bool) -> None:
        """A connection has ended."""
        address = self._addresses.pop(connection, None)
        if address is not None and was_stranger:
            self.let_in(address)


@dataclass(slots=True)
class _Failed:
    """Whether the last event was the failure of a stranger. ZeroMQ's next event then names the connection."""

    just_now: bool = False


class Door:
    """Lets members of the job in to one listening socket."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        server: zmq.Socket[bytes],
        keys: JobKeys,
        *,
        encrypt: bool,
        name: str,
    ) -> None:
        """Every address that `server` is bound to from now on is behind the door."""
        self._server = server
        self._strangers = Strangers()
        self._failed = _Failed()
        self._doorkeeper = Doorkeeper(context, keys, on_member=self._strangers.let_in)
        self._doorkeeper.guard(server, encrypt=encrypt)
        self._news = server.get_monitor_socket(_EVENTS, _NEWS)
        self._closing, self._closer = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-door-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching the connections. To be called before the context of ZeroMQ ends."""
        self._closer.close()
        self._thread.join()
        # In this order: if the reader of its events were closed first, ZeroMQ would wait for the reader.
        self._server.disable_monitor()
        self._news.close()
        self._doorkeeper.socket.close()

    def _watch(self) -> None:
        poller = zmq.Poller()
        for source in (self._doorkeeper.socket, self._news, self._closing):
            poller.register(source, zmq.POLLIN)
        with self._closing:
            while self._closing.fileno() not in dict(poller.poll()):
                # Events before questions: the connection of a member must be counted as accepted before the member is
                # let in and taken off the count.
                while has_input(self._news):
                    self._take(self._news.recv_multipart(zmq.NOBLOCK))
                self._doorkeeper.answer()

    def _take(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        kind, connection = int(event["event"]), int(event["value"])
        if kind == zmq.EVENT_ACCEPTED:
            address = _address_of(connection)
            if address is not None and not self._strangers.called(connection, address):
                _shut(connection)
        elif kind == zmq.EVENT_DISCONNECTED:
            self._strangers.gone(connection, was_stranger=self._failed.just_now)
        self._failed.just_now = bool(kind & _FAILED)


def _address_of(connection: int) -> str | None:
    """The address that a connection comes from; None if the connection is not TCP, or has ended."""
    try:
        with _opened(connection) as opened:
            peer = opened.getpeername()
    except OSError:
        return None
    return str(peer[0]) if isinstance(peer, tuple) else None


def _shut(connection: int) -> None:
    """Shut a connection of ZeroMQ down. ZeroMQ notices that and closes the connection."""
    with contextlib.suppress(OSError), _opened(connection) as opened:
        opened.shutdown(socket.SHUT_RDWR)


def _opened(connection: int) -> socket.socket:
    # A copy, because the descriptor belongs to ZeroMQ and must not be closed here.
    return socket.socket(fileno=os.dup(connection))
