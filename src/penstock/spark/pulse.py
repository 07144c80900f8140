"""The thread beside a loop: it has the driver of the loop say that the process lives, whatever the loop is in."""

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
                # Without a pulse the loop says itself that it lives, as long as it turns.
                log.exception("what a process says beside its loop failed; it says no more")
                return
