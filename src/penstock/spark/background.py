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
    """`Background` on one daemon thread; `wake` is called from it whenever something has ended."""

    def __init__(self, wake: Callable[[], None], *, name: str) -> None:
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[WorkResult], None]] | None] = (
            queue.SimpleQueue()
        )
        self._ended: deque[tuple[Callable[[WorkResult], None], WorkResult]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[WorkResult], None]) -> None:
        """Run `work`; `done` is called with its outcome by a later `collect`, on the loop."""
        self._work.put((work, done))

    def collect(self) -> None:
        """Call `done` for everything that has ended since."""
        while self._ended:
            done, outcome = self._ended.popleft()
            done(outcome)

    def close(self) -> None:
        """End the thread after the work that is under way; what still waits is dropped."""
        try:
            while True:
                self._work.get_nowait()
        except queue.Empty:
            pass
        self._work.put(None)
        self._thread.join(timeout=CLOSE_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still there: work that hangs keeps it."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (piece := self._work.get()) is not None:
            work, done = piece
            try:
                outcome = WorkResult(value=work())
            except BaseException as error:  # noqa: BLE001  # `sys.exit()` of user code, too: whatever it was, the loop decides what it means
                outcome = WorkResult(error=error)
            self._ended.append((done, outcome))
            self._wake()


class Workers:
    """Makes backgrounds, each with a thread of its own; whoever has them closes those that were `made`."""

    def __init__(self, wake: Callable[[], None], *, prefix: str) -> None:
        self.made: list[ThreadBackground] = []
        self._wake = wake
        self._prefix = prefix

    def make(self, name: str) -> ThreadBackground:
        """One more."""
        self.made.append(ThreadBackground(self._wake, name=f"{self._prefix}{name}"))
        return self.made[-1]
