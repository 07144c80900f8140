"""Notices, from inside a slot, that Spark has let go of the slot.

When Spark ends a task, Spark only closes the socket between the JVM and the Python worker. A slot never reads this
socket, and would live on, unseen, on a core that Spark gives to other tasks. So a thread watches the socket. The thread
ends before the slot's task returns, because the process may be reused, and the next task is not Penstock's.
"""

from __future__ import annotations

import inspect
import os
import select
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

GRACE_MS = 5_000
"""How long the slot's loop may take to end by itself before the process is ended."""


def jvm_socket() -> int | None:
    """The file descriptor of the socket to this worker's JVM; None outside of a Spark worker.

    PySpark has no function that returns the socket. The socket is a local variable of the worker's main function,
    further up the stack.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") in ("pyspark.worker", "__main__"):
            stream = frame.f_locals.get("infile")
            return int(stream.fileno()) if stream is not None else None
        frame = frame.f_back
    return None


class JvmWatch:
    """Watches a socket while a block runs. When the far end closes the socket, `on_closed` is called, from another
    thread.

    If the block has not ended `grace_ms` after that, the slot's loop hangs, and `end` is called to end the process.
    """

    def __init__(
        self,
        descriptor: int | None,
        on_closed: Callable[[], None],
        *,
        grace_ms: int = GRACE_MS,
        end: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self.closed = False
        """Whether the far end has closed the socket."""
        self._on_closed = on_closed
        self._grace_ms = grace_ms
        self._end = end
        self._descriptor = descriptor
        self._stop_receiver, self._stop_sender = -1, -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._descriptor is not None:
            self._stop_receiver, self._stop_sender = os.pipe()
            self._thread = threading.Thread(target=self._watch, name="penstock-jvm-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            os.close(self._stop_sender)
            self._thread.join()
            os.close(self._stop_receiver)

    def _watch(self) -> None:
        assert self._descriptor is not None
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        poll.register(self._stop_receiver, 0)
        if any(descriptor == self._stop_receiver for descriptor, _ in poll.poll()):
            return
        self.closed = True
        self._on_closed()
        poll.unregister(self._descriptor)
        if not poll.poll(self._grace_ms):
            self._end()
