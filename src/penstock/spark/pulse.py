"""A thread beside a loop, which tells other processes that this process lives, even while the loop is busy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.core.ids import Instant
from penstock.spark.clock import WallClock

BEATS_EVERY_S = 0.25

log = logging.getLogger(__name__)


class PulseThread:
    """Calls `beat` several times in a second while a block runs."""

    def __init__(self, beat: Callable[[Instant], None], clock: WallClock, *, name: str) -> None:
        self._beat = beat
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(BEATS_EVERY_S):
            try:
                self._beat(self._clock.now())
            except Exception:
                # Without this thread, the loop itself tells that the process lives, as long as the loop turns.
                log.exception("the pulse failed and has stopped; only the loop still tells that this process lives")
                return
