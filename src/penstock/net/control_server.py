"""Answers the calls of other processes to a running job. `penstock.net.control` defines what goes over the socket.

One thread holds all connections and waits for no single caller. A caller that sends nothing, sends slowly, sends
without end or does not read its answer costs one connection until the caller's time is over, and nothing else. A
request that has been read gets a thread of its own, because the work may take long.

    reading ── whole line ──► at work ── done ──► answering ── all of it taken ──► closed
       │                         │                    │
       └ too late, gone ► closed └ caller gone ► closed └ too late, gone ► closed

Rules of this file:
* Only the thread of the server touches connections; threads at work hand their answers over to it.
* A caller whose request is at work regularly gets a sign of life: the caller sees that the job lives, and the server
  sees whether the caller is still there.
* If there are too many connections, the connection of the caller that has been silent for longest is closed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from penstock.core.errors import StreamError
from penstock.net.control import SIGN_OF_LIFE, Answer, Request, short_address, socket_of
from penstock.ports import Clock
from penstock.private_folders import check_private

log = logging.getLogger(__name__)

Handle = Callable[[Request], dict[str, Any]]
"""Does what a request says, in a thread of its own. The call may take long. Raises `StreamError`."""

_TRIES = 3
_LOOKED_AT_EVERY_S = 0.1
_RECEIVED_AT_ONCE = 65_536


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """What callers may cost."""

    connections: int = 512
    """How many callers may have a connection at once."""
    at_work: int = 128
    """How many requests are worked on at once. Further requests wait for their turn."""
    backlog: int = 1_024
    """How many callers may wait for a connection."""
    request_bytes: int = 65_536
    """The longest request. No request needs as much."""
    request_within_ms: int = 5_000
    """How long after the connection the whole request must have come."""
    answer_taken_within_ms: int = 5_000
    """How long after the answer the caller must have read the whole answer."""
    sign_every_ms: int = 1_000
    """How often a caller whose request is at work gets a sign of life."""
    close_within_ms: int = 10_000
    """How long the end of the job waits for the requests that are at work."""


class _Stage(Enum):
    READING = "reading"
    AT_WORK = "at work"
    ANSWERING = "answering"


@dataclass(eq=False, slots=True)
class _Caller:
    connection: socket.socket
    until_ms: float
    stage: _Stage = _Stage.READING
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))


class ControlServer:
    """Serves one job until it is closed."""

    def __init__(
        self,
        job: str,
        handle: Handle,
        *,
        clock: Clock,
        folder: Path | None = None,
        limits: CallLimits | None = None,
    ) -> None:
        self.path = socket_of(job, folder)
        self._handle = handle
        self._clock = clock
        self._limits = limits or CallLimits()
        self._callers: dict[_Caller, None] = {}
        """In the order in which the callers came."""
        self._requests: deque[tuple[_Caller, Request]] = deque()
        self._workers: dict[threading.Thread, None] = {}
        self._answers: deque[tuple[_Caller, bytes]] = deque()
        self._next_sign_ms = 0.0
        self._closing = threading.Event()
        self._close_by_ms = 0.0
        self._listener = self._listen()
        self._socket = self.path.stat().st_ino
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=f"penstock-control-{job}", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket:
        for _ in range(_TRIES):
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            # Another job that ends may have removed the folder just now, because it was the last job in the folder.
            with contextlib.suppress(FileNotFoundError):
                check_private(self.path.parent, what="the folder of control sockets", setting="TMPDIR")
                self.path.unlink(missing_ok=True)
                return self._bound()
        raise FileNotFoundError(errno.ENOENT, "the folder is removed again and again", str(self.path.parent))

    def _bound(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.settimeout(0)
            with short_address(self.path) as address:
                listener.bind(address)
            listener.listen(self._limits.backlog)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Take no more calls, and wait for the calls that are being answered. The last job removes the folder."""
        # If the socket is not this server's socket, another driver on this host has taken the job over and has put its
        # own socket there.
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._socket:
                self.path.unlink(missing_ok=True)
        self._closing.set()
        self._wake()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()

    def _wake(self) -> None:
        # An error means that the buffer is full: then the server is about to wake up anyway.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    # --- the thread of the server --------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_done():
                for key, _ in self._selector.select(_LOOKED_AT_EVERY_S):
                    self._attend(key)
                self._take_answers()
                self._look_at_time(self._clock.precise_ms())
        finally:
            for caller in list(self._callers):
                self._drop(caller)
            for opened in (self._listener, self._woken, self._waker):
                opened.close()
            self._selector.close()

    def _is_done(self) -> bool:
        """Whether the job has ended, and every caller has its answer or the time to wait for that is over."""
        if not self._closing.is_set():
            return False
        now_ms = self._clock.precise_ms()
        if not self._close_by_ms:
            self._close_by_ms = now_ms + self._limits.close_within_ms
            self._selector.unregister(self._listener)
            for caller in [caller for caller in self._callers if caller.stage is _Stage.READING]:
                self._drop(caller)
        if now_ms >= self._close_by_ms and self._workers:
            log.warning("requests to the job are still at work %d ms after the job's end", self._limits.close_within_ms)
        return not (self._workers or self._callers) or now_ms >= self._close_by_ms

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._woken:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(_RECEIVED_AT_ONCE)
        elif key.fileobj is self._listener:
            self._let_in()
        elif key.data in self._callers:
            # A caller whose connection was closed in this round, to make room for another caller, is not in `_callers`.
            if key.data.stage is _Stage.READING:
                self._read(key.data)
            else:
                self._write(key.data)

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # The caller is gone, or the process has too many files open. Callers that wait are let in later.
            self._selector.unregister(self._listener)
            return
        connection.settimeout(0)
        caller = _Caller(connection, self._clock.precise_ms() + self._limits.request_within_ms)
        self._callers[caller] = None
        self._selector.register(connection, selectors.EVENT_READ, caller)
        # Read at once: a caller that has already sent its request must not be taken for silent when room is made.
        self._read(caller)
        if len(self._callers) > self._limits.connections:
            self._make_room(caller)

    def _make_room(self, newcomer: _Caller) -> None:
        for stage in (_Stage.READING, _Stage.ANSWERING):
            waiting = next((caller for caller in self._callers if caller.stage is stage), None)
            if waiting is not None:
                self._drop(waiting)
                return
        self._drop(newcomer)

    def _read(self, caller: _Caller) -> None:
        try:
            part = caller.connection.recv(_RECEIVED_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)
            return
        caller.received += part
        line, newline, _ = caller.received.partition(b"\n")
        if len(line) > self._limits.request_bytes:
            self._answer(caller, Answer(error=f"the request is longer than {self._limits.request_bytes} bytes"))
        elif newline or (not part and line):
            self._begin(caller, bytes(line))
        elif not part:
            self._drop(caller)

    def _begin(self, caller: _Caller, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.MsgspecError, ValueError) as error:
            self._answer(caller, Answer(error=f"the request cannot be read: {error}"))
            return
        caller.stage = _Stage.AT_WORK
        self._selector.unregister(caller.connection)
        self._requests.append((caller, request))
        self._put_to_work()

    def _put_to_work(self) -> None:
        while self._requests and len(self._workers) < self._limits.at_work:
            caller, request = self._requests.popleft()
            if caller in self._callers:
                worker = threading.Thread(target=self._work, args=(caller, request), name=f"{self._thread.name}-call")
                worker.daemon = True
                self._workers[worker] = None
                worker.start()

    def _take_answers(self) -> None:
        while self._answers:
            caller, content = self._answers.popleft()
            if caller in self._callers:
                self._send(caller, content)
        for worker in [worker for worker in self._workers if not worker.is_alive()]:
            del self._workers[worker]
        self._put_to_work()

    def _answer(self, caller: _Caller, answer: Answer) -> None:
        self._send(caller, _encoded(answer))

    def _send(self, caller: _Caller, content: bytes) -> None:
        caller.until_ms = self._clock.precise_ms() + self._limits.answer_taken_within_ms
        caller.unsent = memoryview(content)
        if caller.stage is _Stage.READING:
            self._selector.unregister(caller.connection)
        caller.stage = _Stage.ANSWERING
        self._selector.register(caller.connection, selectors.EVENT_WRITE, caller)
        self._write(caller)

    def _write(self, caller: _Caller) -> None:
        try:
            sent = caller.connection.send(caller.unsent)
        except BlockingIOError:
            return
        except OSError:
            # The caller is gone and cannot get the answer.
            self._drop(caller)
            return
        caller.unsent = caller.unsent[sent:]
        if not caller.unsent:
            self._drop(caller)

    def _look_at_time(self, now_ms: float) -> None:
        for caller in list(self._callers):
            if caller.stage is not _Stage.AT_WORK and now_ms >= caller.until_ms:
                self._drop(caller)
        if now_ms >= self._next_sign_ms:
            self._next_sign_ms = now_ms + self._limits.sign_every_ms
            for caller in [caller for caller in self._callers if caller.stage is _Stage.AT_WORK]:
                self._show_life(caller)
            if not self._closing.is_set() and self._listener not in self._selector.get_map():
                self._selector.register(self._listener, selectors.EVENT_READ)

    def _show_life(self, caller: _Caller) -> None:
        try:
            caller.connection.send(SIGN_OF_LIFE)
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        del self._callers[caller]
        if caller.stage is not _Stage.AT_WORK:
            self._selector.unregister(caller.connection)
        caller.connection.close()

    # --- threads at work -----------------------------------------------------------------

    def _work(self, caller: _Caller, request: Request) -> None:
        self._answers.append((caller, _done(self._handle, request)))
        self._wake()


def _encoded(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"


def _done(handle: Handle, request: Request) -> bytes:
    """Do what a request says and return the answer. Never raises: a caller that gets no answer would have to guess what
    became of the request."""
    try:
        return _encoded(Answer(result=handle(request)))
    except StreamError as error:
        return _encoded(Answer(error=error.message, hint=error.hint))
    except TimeoutError as error:
        return _encoded(Answer(error=str(error)))
    except Exception as error:
        log.exception("a request from another process failed", extra={"command": request.command})
        return _encoded(Answer(error=f"{request.command} failed in the job: {type(error).__name__}: {error}"))
