"""The real transport: messages between the processes of a job, over ZeroMQ.

Every process listens on one ROUTER socket, by a unix socket in a private folder (`ipc://`, for callers on this host)
and/or by TCP. A process calls each peer from a DEALER socket of its own. The routing id of all sockets of a process is
the process's name, so a process that was called can answer the caller by name without calling back.

    send(peer)      over the DEALER if `peer` is connected; over the ROUTER if `peer` has called; otherwise not at all
    receive()       from the ROUTER (callers) and all DEALERs (answers)

Rules of this file:
* Nothing blocks but `wait`. ZeroMQ queues without limit here; the credits of the links above bound the traffic.
* A caller that has not shown the keys of the job can make this process hold one small frame, for a short time, and no
  more. Larger frames of members are sent in pieces.
* Sending copies the frames: they may be reused at once. Large received frames are views of ZeroMQ's own memory, which
  lives as long as the view, also after `close`.
* A ZeroMQ context is made with the transport and ends with the transport: nothing is left in a process that forks or is
  used again.
* Not handled here: lost messages, silent peers, old epochs. A connection that breaks loses the messages on their way,
  and is then made again; a connection that was refused because of its keys is not made again. The links above the
  transport count messages and look at the clock.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import zmq

from penstock.core.errors import HostError, Retry, UsageError
from penstock.net.access import call, has_input, limit
from penstock.net.door import Door
from penstock.net.folders import SocketFolder
from penstock.net.keys import JobKeys
from penstock.net.lifelines import Lifelines
from penstock.net.pieces import in_pieces, whole
from penstock.ports import Frame

_LONGEST_NAME = 255
_SHARED_BYTES = 65_536
"""Received frames of this size or larger are not copied out of ZeroMQ's memory. A smaller frame is copied, because it
may share its memory with other frames, which a view would keep alive, and may begin at an odd address."""
_MOST_SOCKETS = 16_384
_FIRST_RECONNECT_MS = 10
_LONGEST_RECONNECT_MS = 1_000
# The numbers of two choices in glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_KEPT_BYTES = 64 * 1024 * 1024
_LARGEST_KEPT_BLOCK_BYTES = 32 * 1024 * 1024


P = ParamSpec("P")
R = TypeVar("R")


def _one_at_a_time(
    call: Callable[Concatenate[ZmqTransport, P], R],
) -> Callable[Concatenate[ZmqTransport, P], R]:
    """Makes calls of a method wait for each other: with ZeroMQ several threads may use a socket, but not at once."""

    def alone(self: ZmqTransport, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._in_use:
            return call(self, *args, **kwargs)

    alone.__doc__ = call.__doc__
    return alone


class ZmqTransport:
    """Carries messages between this process, called `name`, and others of the same job. Implements `ports.Transport`.

    With `ipc_dir` the process listens on a unix socket in a private folder inside `ipc_dir`; with `host`, an address of
    this machine, on TCP (`port` 0: any free port). With neither, the process can only call other processes. Over TCP
    both sides prove that they have the job's `keys`. Without `encrypt` (for trusted networks) both sides show a
    password, and all other data is sent in plain.

    `send` may be called from any thread, and waits while another thread is in any other call. `wake` may be called from
    any thread, and never waits. All other calls must come from one thread. Raises `UsageError` or `HostError` if the
    process cannot listen at the given addresses.
    """

    def __init__(
        self,
        name: str,
        *,
        keys: JobKeys,
        ipc_dir: str | os.PathLike[str] | None = None,
        host: str | None = None,
        port: int = 0,
        encrypt: bool = True,
    ) -> None:
        self.name = name
        self._routing_id = _routing_id(name)
        self._keys = keys
        self._encrypt = encrypt
        self._to_self: list[list[Frame]] = []
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._callers: set[str] = set()
        self._folder: SocketFolder | None = None
        self._tcp_address: str | None = None
        self._closed = False
        self._wake_lock = threading.Lock()
        self._in_use = threading.Lock()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.settimeout(0)
        self._wake_sender.settimeout(0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._lifelines = Lifelines(self._context, self._poller, keys, encrypt=encrypt)
        self._release_door, self._release_folder = ExitStack(), ExitStack()
        # Also for a transport that nobody closes: a context with open sockets would wait for them for ever.
        self._release = weakref.finalize(
            self, _release, self._context, self._release_door, self._release_folder, os.getpid()
        )
        try:
            self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
            self._router = self._open(zmq.ROUTER)
            limit(self._router)
            self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
            # Socket options hold only for addresses that are bound later. The unix socket is bound first, because its
            # folder guards it; TCP is bound behind the door, because the keys guard it.
            if ipc_dir is not None:
                self._folder = SocketFolder(name, ipc_dir)
                self._release_folder.callback(self._folder.remove)
                self._bind(self._folder.address)
            if host is not None:
                door = Door(self._context, self._router, keys, encrypt=encrypt, name=name)
                self._release_door.callback(door.close)
                self._tcp_address = self._bind_tcp(host, port)
        except BaseException:
            self.close()
            raise
        self._poller.register(self._wake_receiver, zmq.POLLIN)
        self._poller.register(self._router, zmq.POLLIN)

    @property
    def ipc_address(self) -> str | None:
        """The address for processes of the same user on this host; None without `ipc_dir`."""
        return self._folder.address if self._folder else None

    @property
    def tcp_address(self) -> str | None:
        """The address for processes on other hosts; None without `host`."""
        return self._tcp_address

    @_one_at_a_time
    def connect(self, peer: str, address: str) -> None:
        """Make `peer` reachable at `address` (`ipc://…` or `tcp://host:port`). Connecting the same peer again does
        nothing, nor does connecting this process itself. The peer need not listen yet: messages wait until it does.

        A peer that has called must be connected before the first message to that peer: messages over the peer's own
        connection and messages over the new connection have no common order.
        """
        self._check_open()
        if peer in self._dealers or peer == self.name:
            return
        if not address.startswith(("ipc://", "tcp://")):
            raise UsageError(
                f"address {address!r} of {peer} is neither ipc:// nor tcp://", hint="use ipc://… or tcp://host:port"
            )
        dealer = self._open(zmq.DEALER)
        try:
            dealer.routing_id = self._routing_id
            dealer.reconnect_ivl = _FIRST_RECONNECT_MS
            dealer.reconnect_ivl_max = _LONGEST_RECONNECT_MS
            call(dealer, address, self._keys, encrypt=self._encrypt)
        except zmq.ZMQError as error:
            dealer.close()
            raise UsageError(
                f"address {address!r} of {peer} cannot be called: {error.strerror}",
                hint="use ipc://… or tcp://host:port",
            ) from error
        self._dealers[peer] = dealer
        self._poller.register(dealer, zmq.POLLIN)

    @_one_at_a_time
    def disconnect(self, peer: str) -> None:
        """Forget `peer`. Messages that were not sent yet are dropped. If `peer` calls again, `peer` can be answered."""
        self._check_open()
        self._callers.discard(peer)
        self._lifelines.let_go(peer)
        dealer = self._dealers.pop(peer, None)
        if dealer is not None:
            self._poller.unregister(dealer)
            dealer.close()

    @_one_at_a_time
    def send(self, peer: str, frames: Sequence[Frame]) -> None:
        """Queue one message of one frame or more. If the peer is not connected and has not called, or has refused this
        process's keys, the message is dropped without an error. A message to this process itself arrives with the next
        `receive`."""
        self._check_open()
        if not frames:
            raise UsageError(f"a message to {peer} has no frames")
        if peer == self.name:
            self._to_self.append([bytes(frame) for frame in frames])
            return
        dealer = self._dealers.get(peer)
        try:
            if dealer is not None:
                dealer.send_multipart(in_pieces(frames), zmq.NOBLOCK)
            elif peer in self._callers:
                self._router.send_multipart([_routing_id(peer), *in_pieces(frames)], zmq.NOBLOCK)
        except zmq.Again:
            # Queues have no limit, so this error means that ZeroMQ gave the connection up because the peer refused it.
            return

    @_one_at_a_time
    def receive(self) -> list[tuple[str, list[Frame]]]:
        """Every message that has arrived, as (peer, frames). Messages of one peer are in the order in which they were
        sent. Messages of callers come before answers. Frames are bytes; large frames are read-only views."""
        self._check_open()
        arrived = [(self.name, frames) for frames in self._to_self]
        self._to_self.clear()
        for routing_id, *frames in _drain(self._router):
            if frames and not self._lifelines.dumps.take(routing_id, frames):
                peer = routing_id.decode("utf-8", "surrogateescape")
                self._callers.add(peer)
                arrived.append((peer, whole(frames)))
        for peer, dealer in self._dealers.items():
            arrived += [(peer, whole(frames)) for frames in _drain(dealer)]
        return arrived

    @_one_at_a_time
    def wait(self, timeout_ms: int | None = None) -> None:
        """Block until a message has arrived, `wake` was called since the last wait, a followed peer is gone, or the
        time is over (None: no time limit). May return early, with nothing to receive."""
        self._check_open()
        if self._to_self:
            return
        for ready, _ in self._poller.poll(timeout_ms):
            if ready == self._wake_receiver.fileno():
                _discard(self._wake_receiver)
            else:
                self._lifelines.stir(ready)

    @_one_at_a_time
    def follow(self, peer: str, address: str) -> None:
        """From now on `gone` names `peer` when the process that listens at `address` has died or cannot be reached any
        more."""
        self._check_open()
        self._lifelines.follow(peer, address)

    @_one_at_a_time
    def let_go(self, peer: str) -> None:
        """Follow `peer` no more, because `peer` is about to leave."""
        self._lifelines.let_go(peer)

    @_one_at_a_time
    def gone(self) -> list[str]:
        """The followed peers that have died or become unreachable since the last call."""
        return self._lifelines.gone()

    @_one_at_a_time
    def dumped(self) -> list[tuple[str, str]]:
        """The peers whose relays have sent bytes of a dump, as far as `receive` has taken them since the last call, and
        the text of each peer's newest whole dump."""
        return self._lifelines.dumps.heard()

    def wake(self) -> None:
        """End the current or the next `wait`. May be called from any thread, at any time, also after `close`."""
        with self._wake_lock:
            if self._closed:
                return
            try:
                self._wake_sender.send(b"\0")
            except BlockingIOError:
                # The buffer is full of earlier calls, so the next `wait` ends at once anyway.
                return

    def close(self) -> None:
        """Drop the messages that were not sent yet, and let go of all sockets, threads and files. Closing again does
        nothing."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            self._wake_sender.close()
            self._wake_receiver.close()
        self._dealers.clear()
        self._lifelines.close()
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the transport of {self.name} is closed")

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        try:
            opened = self._context.socket(kind)
        except zmq.ZMQError as error:
            raise HostError(
                f"{self.name} could not open another socket: {error.strerror}",
                hint="raise the limit on open files (ulimit -n)",
                retry=Retry.LATER,
            ) from error
        opened.linger = 0
        opened.sndhwm = 0
        opened.rcvhwm = 0
        return opened

    def _bind(self, address: str) -> str:
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise _cannot_listen(self.name, address, error) from error
        return str(self._router.getsockopt_string(zmq.LAST_ENDPOINT))

    def _bind_tcp(self, host: str, port: int) -> str:
        found = _numeric(host)
        if found.is_unspecified:
            raise UsageError(
                f"{self.name} cannot listen at {host}: peers cannot call that address",
                hint="give the address at which other hosts reach this host",
            )
        if not 0 <= port <= 65_535:
            raise UsageError(f"port {port} does not exist", hint="use 0 for any free port")
        self._router.ipv6 = found.version == 6
        return self._bind(f"tcp://{f'[{found}]' if found.version == 6 else found}:{port or '*'}")


def keep_message_memory() -> bool:
    """Make this process keep up to 64 MiB of freed memory for the next messages. This cannot be undone: the C library
    does not tell its former limits, and does not adapt its limits any more once they are set. To be called in a process
    that does little else than exchange batches. Returns False if the C library has no such option.

    ZeroMQ takes memory for every message it sends or receives. By default the C library gives freed blocks of that size
    back to the system, and each message then pays for fresh pages: about a third of the cost of sending 1 MB.
    """
    try:
        choose = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(choose(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(choose(_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK_BYTES))


def _release(context: zmq.Context[zmq.Socket[bytes]], door: ExitStack, folder: ExitStack, pid: int) -> None:
    # A forked child owns neither the threads nor the files of its parent.
    if os.getpid() == pid:
        door.close()
        # Closes all sockets, then waits for the threads of the context, which end at once without sockets.
        context.destroy(linger=0)
        folder.close()


def _routing_id(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogateescape")
    if not 1 <= len(encoded) <= _LONGEST_NAME or encoded[0] == 0:
        raise UsageError(f"process name {name!r} is not usable", hint=f"use 1 to {_LONGEST_NAME} bytes of text")
    return encoded


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"host {host!r} has no address: {error}", hint="give an address of this host") from error
    return ipaddress.ip_address(found[0][4][0])


def _cannot_listen(name: str, address: str, error: zmq.ZMQError) -> UsageError | HostError:
    text = f"{name} cannot listen at {address}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        return HostError(
            text, hint="another process has that port; use another port, or 0 for any free port", retry=Retry.LATER
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV, errno.EINVAL):
        return UsageError(text, hint="give an address of this host")
    return HostError(text, hint="check whether this user may listen at that address")


def _drain(source: zmq.Socket[bytes]) -> list[list[Frame]]:
    messages: list[list[Frame]] = []
    if not has_input(source):
        return messages
    try:
        # Asking before each message whether there is a message would cost more than one exception at the end.
        while True:
            frame = source.recv(zmq.NOBLOCK, copy=False)
            frames: list[Frame] = [_content(frame)]
            while frame.more:
                frame = source.recv(zmq.NOBLOCK, copy=False)
                frames.append(_content(frame))
            messages.append(frames)
    except zmq.Again:
        return messages


def _content(frame: zmq.Frame) -> Frame:
    return frame.bytes if len(frame) < _SHARED_BYTES else frame.buffer.toreadonly()


def _discard(receiver: socket.socket) -> None:
    try:
        while receiver.recv(4096):
            pass
    except BlockingIOError:
        return
