"""Dumps: the stacks of a process that cannot run Python, handed to another process without running Python.

Native code that holds Python's lock stops every Python thread of its process. Two kinds of thread go on, because they
are native: the watchdog of Python's `faulthandler`, which writes the stacks of all threads to a file descriptor, and
the threads of ZeroMQ. A relay joins the two.

    faulthandler ──► socket ──► relay (ZeroMQ's proxy) ──► ROUTER of the other process ──► `Dumps`

A dump is a sign of life, and its text says where the process is. The relay shows the keys of the job, as every caller
does.

Rules of this file:
* Nothing blocks. If the other process does not read, the relay stops reading, and dumps are lost.
* `Dumps` keeps a bounded number of bytes for each peer, however much the peer writes.
* A dump has no end mark. The text of a dump is known to be whole when the next dump begins.
"""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import zmq

from penstock.net.access import call
from penstock.net.keys import JobKeys
from penstock.ports import Frame

KEPT_BYTES = 16_384
"""This many bytes of a dump are kept: the last bytes, since the thread that was started first comes last."""
_SENDER_PREFIX = b"\x02"
"""A relay calls with this prefix and the name of its process, so that its dumps are no messages of the process."""
_BEGIN = b"\nTimeout ("
"""How `faulthandler` begins a dump, after the end of the dump before."""
_MOST_WAITING = 64
_SEEN = "inproc://seen"
_BEGUN_WITHIN_MS = 10_000

log = logging.getLogger(__name__)


class Dumps:
    """The dumps that relays have handed to this process."""

    def __init__(self) -> None:
        self._coming: dict[str, bytes] = {}
        """The bytes of each peer since the beginning of its newest dump."""
        self._whole: dict[str, bytes] = {}
        """The newest dump of each peer that is known to be whole."""
        self._heard: dict[str, None] = {}

    def take(self, sender: bytes, frames: Sequence[Frame]) -> bool:
        """Take a message, if the sender is a relay. Returns whether the sender is a relay."""
        if not sender.startswith(_SENDER_PREFIX):
            return False
        peer = sender.removeprefix(_SENDER_PREFIX).decode("utf-8", "surrogateescape")
        piece = bytes(frames[-1])
        if not piece:
            # The relay tells the end of its input by an empty message, which is no sign of a process that is stuck.
            return True
        *before, coming = (self._coming.get(peer, b"") + piece).split(_BEGIN)
        if before:
            self._whole[peer] = before[-1][-KEPT_BYTES:]
        self._coming[peer] = coming[-KEPT_BYTES:]
        self._heard[peer] = None
        return True

    def heard(self) -> list[tuple[str, str]]:
        """Each peer from which bytes of a dump have come since the last call, and the text of the peer's newest whole
        dump: the thread that was started first comes first. The text is empty if no dump of the peer is known to be
        whole."""
        heard, self._heard = self._heard, {}
        return [(peer, _told(self._whole.get(peer, b""))) for peer in heard]

    def forget(self, peer: str) -> None:
        """Forget the dumps of a peer."""
        for kept in (self._coming, self._whole, self._heard):
            kept.pop(peer, None)


def _told(dump: bytes) -> str:
    # The first line only says that the watchdog has run down, or is the rest of a line that was not kept as a whole.
    threads = dump.decode("utf-8", "replace").partition("\n")[2].strip().split("\n\n")
    return "\n\n".join(reversed(threads))


class DumpRelay:
    """While a block runs, hands on what is written to the descriptor `fd` to the process that listens at `address`, as
    dumps of the process `name`. Entering raises `OSError` if sockets or files cannot be opened."""

    def __init__(self, name: str, address: str, *, keys: JobKeys, encrypt: bool = True) -> None:
        self._name = name
        self._address = address
        self._keys = keys
        self._encrypt = encrypt
        self._opened = ExitStack()
        self.fd = -1

    def __enter__(self) -> Self:
        try:
            self._open()
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        return self

    def _open(self) -> None:
        # A context of its own: its end ends the proxy, and nothing else.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with ExitStack() as undo:
            undo.callback(context.term)
            with ExitStack() as sockets:
                written = sockets.enter_context(context.socket(zmq.STREAM))
                written.linger = 0
                written.rcvhwm = _MOST_WAITING
                onward = sockets.enter_context(context.socket(zmq.DEALER))
                onward.linger = 0
                onward.sndhwm = _MOST_WAITING
                onward.routing_id = _SENDER_PREFIX + self._name.encode("utf-8", "surrogateescape")
                call(onward, self._address, self._keys, encrypt=self._encrypt)
                seen = sockets.enter_context(context.socket(zmq.XPUB))
                seen.linger = 0
                seen.bind(_SEEN)
                begun = undo.enter_context(context.socket(zmq.SUB))
                begun.linger = 0
                begun.rcvtimeo = _BEGUN_WITHIN_MS
                begun.connect(_SEEN)
                begun.subscribe(b"")
                # Only a subscription that has arrived counts.
                seen.recv()
                end = undo.enter_context(_joined(written))
                ends = (written, onward, seen)
                threading.Thread(target=_relay, args=ends, name="penstock-dumps", daemon=True).start()
                sockets.pop_all()
            # ZeroMQ tells of the new connection by a message. When the message has passed the proxy, the thread is in
            # native code, and needs Python's lock no more.
            begun.recv()
            begun.close()
            self.fd = end.fileno()
            self._opened = undo.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


def _joined(written: zmq.Socket[bytes]) -> socket.socket:
    """The other end of a raw ZeroMQ socket. Writing to this end never blocks."""
    # The folder belongs to this user only, and is gone when the two ends are joined: nobody else can write.
    folder = tempfile.mkdtemp(prefix="penstock-")
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        written.bind(f"ipc://{folder}/dumps")
        end.connect(f"{folder}/dumps")
        end.settimeout(0)
    except BaseException:
        end.close()
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return end


def _relay(written: zmq.Socket[bytes], onward: zmq.Socket[bytes], seen: zmq.Socket[bytes]) -> None:
    with written, onward, seen:
        try:
            # The call does not hold Python's lock.
            zmq.proxy(written, onward, seen)
        except zmq.ContextTerminated:
            return
        except zmq.ZMQError:
            log.exception("the relay of dumps failed; code that holds Python's lock for long looks like a dead process")
