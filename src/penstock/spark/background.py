"""Blocking work off the loop: one helper thread per process."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.ports import WorkResult

CLOSE_TIMEOUT_S = 30


class ThreadBackground:
    """`Background` on one daemon thread. The thread calls `wake` whenever a piece of work has ended."""

    def __init__(self, wake: Callable[[], None], *, name: str) -> None:
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[WorkResult], None]] | None] = (
            queue.SimpleQueue()
        )
        self._ended: deque[tuple[Callable[[WorkResult], None], WorkResult]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[WorkResult], None]) -> None:
        """Run `work` on the thread. A later `collect` calls `done`, on the loop, with the result of `work`."""
        self._work.put((work, done))

    def collect(self) -> None:
        """Call `done` for every piece of work that has ended since the last call."""
        while self._ended:
            done, result = self._ended.popleft()
            done(result)

    def close(self) -> None:
        """End the thread after the work that is under way. Work that still waits is dropped. The call returns after
        `CLOSE_TIMEOUT_S`, even if the thread has not ended."""
        try:
            while True:
                self._work.get_nowait()
        except queue.Empty:
            pass
        self._work.put(None)
        self._thread.join(timeout=CLOSE_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended. After `close`, only work that hangs keeps the thread alive."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (piece := self._work.get()) is not None:
            work, done = piece
            try:
                result = WorkResult(value=work())
            except BaseException as error:  # noqa: BLE001  # also `sys.exit()` of user code: the loop decides what an error means
                result = WorkResult(error=error)
            self._ended.append((done, result))
            self._wake()


class Workers:
    """Makes backgrounds, each with a thread of its own. The owner of this object closes the backgrounds in `made`."""

    def __init__(self, wake: Callable[[], None], *, prefix: str) -> None:
        self.made: list[ThreadBackground] = []
        self._wake = wake
        self._prefix = prefix

    def make(self, name: str) -> ThreadBackground:
        """Another background. `name` is the end of the name of its thread."""
        self.made.append(ThreadBackground(self._wake, name=f"{self._prefix}{name}"))
        return self.made[-1]
