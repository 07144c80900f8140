"""Lifelines: connections on which nothing is sent. The end of a lifeline shows that the process at the other end is
gone.

When a process dies, its host closes the connections of the process, so that the processes at the other ends learn of
the death at once, on this host and on other hosts. A lifeline also ends when the network gives the connection up: then
the process cannot be reached, which is the same as dead for its peers. A lifeline that was never established shows
nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from penstock.net.access import call, has_input
from penstock.net.dumps import Dumps
from penstock.net.keys import JobKeys

_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_NEVER = -1
"""ZeroMQ does not connect a lifeline again: the end of the connection is the news, and a new connection would hide the
news."""


@dataclass(slots=True)
class _Lifeline:
    connection: zmq.Socket[bytes]
    news: zmq.Socket[bytes]
    is_up: bool = False

    def has_ended(self) -> bool:
        """Whether the connection was established and has ended."""
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
    """The lifelines that this process holds to other processes. Only the thread that polls may use this object."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], poller: zmq.Poller, keys: JobKeys, *, encrypt: bool
    ) -> None:
        self._context = context
        self._poller = poller
        self._keys = keys
        self._encrypt = encrypt
        self._lines: dict[str, _Lifeline] = {}
        self._peers: dict[object, str] = {}
        """The peer of each lifeline, by the socket that is polled for the lifeline."""
        self._stirred: dict[str, None] = {}
        self._opened = 0
        self.dumps = Dumps()
        """The signs of life of peers that cannot run Python."""

    def follow(self, peer: str, address: str) -> None:
        """Hold a lifeline to the process that listens at this address. Following the same peer again changes
        nothing."""
        if peer in self._lines:
            return
        try:
            line = self._open(address)
        except zmq.ZMQError:
            # This process has too many files open. Without a lifeline, missing heartbeats show the death later.
            return
        self._lines[peer] = line
        self._peers[line.news] = peer
        self._poller.register(line.news, zmq.POLLIN)

    def _open(self, address: str) -> _Lifeline:
        """Open a lifeline. Raises `zmq.ZMQError`, and leaves nothing open, if not all sockets can be opened."""
        # The socket for events gets a name of this class: ZeroMQ's own names are used again, perhaps while the socket
        # that had the name before is still open.
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
        """Close the lifeline to that process: the end of the process is not reported any more."""
        self.dumps.forget(peer)
        line = self._lines.pop(peer, None)
        if line is not None:
            self._poller.unregister(line.news)
            del self._peers[line.news]
            self._stirred.pop(peer, None)
            line.close()

    def stir(self, ready: object) -> None:
        """A polled socket is ready. If the socket belongs to a lifeline, `gone` looks at the lifeline."""
        peer = self._peers.get(ready)
        if peer is not None:
            self._stirred[peer] = None

    def gone(self) -> list[str]:
        """The peers whose lifelines have ended since the last call. These peers are not followed any more."""
        stirred, self._stirred = self._stirred, {}
        found = [peer for peer in stirred if self._lines[peer].has_ended()]
        for peer in found:
            self.let_go(peer)
        return found

    def close(self) -> None:
        """Close all lifelines."""
        for peer in list(self._lines):
            self.let_go(peer)
