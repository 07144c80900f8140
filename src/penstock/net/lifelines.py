"""Connections that carry nothing, and whose end says that the process at the other end is gone.

When a process dies its host closes its connections, so that whoever holds one learns of it at once, on this host and on
any other. A connection also ends when the network between them gives up on it: then the process cannot be reached, and
to its peers that is the same. One that never came about says nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.net.access import call, has_input
from penstock.net.keys import JobKeys

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_NEVER = -1
"""A connection that has ended is news; another one would hide it."""


@dataclass(slots=True)
class _Lifeline:
    connection: zmq.Socket[bytes]
    news: zmq.Socket[bytes]
    is_up: bool = False

    def has_ended(self) -> bool:
        """Whether the connection was there and has ended."""
        while has_input(self.news):
            event = parse_monitor_message(self.news.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.is_up = True
            elif self.is_up and event == zmq.EVENT_DISCONNECTED:
                return True
        return False

    def close(self) -> None:
        """Let go of both sockets."""
        self.connection.disable_monitor()
        self.news.close()
        self.connection.close()


class Lifelines:
    """Those that one process holds to others. Belongs to the thread that polls."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, keys: JobKeys, *, encrypt: bool
    ) -> None:
        self._context = context
        self._poller = poller
        self._keys = keys
        self._encrypt = encrypt
        self._lines: dict[str, _Lifeline] = {}
        self._peers: dict[object, str] = {}
        """By what is polled for each."""
        self._stirred: dict[str, None] = {}
        self._opened = 0

    def follow(self, peer: str, address: str) -> None:
        """Hold a connection to a process that listens at this address. Following it again changes nothing."""
        if peer in self._lines:
            return
        try:
            line = self._open(address)
        except zmq.ZMQError:
            # The process has too many files open. Without a lifeline, others tell later.
            return
        self._lines[peer] = line
        self._peers[line.news] = peer
        self._poller.register(line.news, zmq.POLLIN)

    def _open(self, address: str) -> _Lifeline:
        """Raises `zmq.ZMQError`, and leaves nothing open, if there is no room for all that it takes."""
        # Named by us: ZeroMQ's own names come again, maybe before the one that had it before is gone.
        self._opened += 1
        with ExitStack() as undo:
            connection = undo.enter_context(self._context.socket(zmq.DEALER))
            connection.linger = 0
            connection.reconnect_ivl = _NEVER
            news = undo.enter_context(connection.get_monitor_socket(_EVENTS, f"inproc://lifeline-{self._opened}"))
            call(connection, address, self._keys, encrypt=self._encrypt)
            undo.pop_all()
        return _Lifeline(connection, news)

    def let_go(self, peer: str) -> None:
        """Whatever becomes of that process is no news any more."""
        line = self._lines.pop(peer, None)
        if line is not None:
            self._poller.unregister(line.news)
            del self._peers[line.news]
            self._stirred.pop(peer, None)
            line.close()

    def stir(self, ready: object) -> None:
        """Something that was polled is ready, and it may be one of ours."""
        peer = self._peers.get(ready)
        if peer is not None:
            self._stirred[peer] = None

    def gone(self) -> list[str]:
        """Those whose connections have ended since the last call; they are followed no more."""
        stirred, self._stirred = self._stirred, {}
        found = [peer for peer in stirred if self._lines[peer].has_ended()]
        for peer in found:
            self.let_go(peer)
        return found

    def close(self) -> None:
        """Follow nobody any more."""
        for peer in list(self._lines):
            self.let_go(peer)
