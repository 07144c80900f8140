"""The sign of life of a process in which native code holds Python's lock, so that no Python thread can run.

The thread beside the loop winds a watchdog up, several times in a second. If that thread cannot run, the watchdog runs
down, and dumps the stacks of all threads, again and again. The watchdog is a native thread of Python's `faulthandler`
and needs no lock. The dumps go to the master (`net/dumps.py`).

A process has only one such watchdog: only a process in which nothing but a slot runs may use this file.
"""

from __future__ import annotations

import faulthandler
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.core.ids import Instant
from penstock.net.dumps import DumpRelay
from penstock.net.keys import JobKeys
from penstock.settings import SlotSettings

LEAST_PERIOD_MS = 500

log = logging.getLogger(__name__)


class LockWatch:
    """The watchdog of one slot, while a block runs."""

    def __init__(self, slot: str, master: str, *, keys: JobKeys, settings: SlotSettings) -> None:
        """The dumps go to the process that listens at the address `master`."""
        self._relay = DumpRelay(slot, master, keys=keys)
        self._period_s = dump_period_ms(settings) / 1_000
        self._is_on = False

    def __enter__(self) -> Self:
        try:
            self._relay.__enter__()
            self._is_on = True
            # The loop may come to native code before the thread beside the loop has run once.
            self._wind_up()
        except OSError as error:
            text = "this slot looks dead while native code holds Python's lock, since it cannot dump its stacks: %s"
            log.warning(text, error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_on:
            self._is_on = False
            faulthandler.cancel_dump_traceback_later()
            self._relay.__exit__(kind, error, trace)

    def before(self, beat: Callable[[Instant], None]) -> Callable[[Instant], None]:
        """A function that winds the watchdog up, and then calls `beat`."""

        def wind_up_and_beat(now: Instant) -> None:
            self._wind_up()
            beat(now)

        return wind_up_and_beat

    def _wind_up(self) -> None:
        if self._is_on:
            faulthandler.dump_traceback_later(self._period_s, repeat=True, file=self._relay.fd)


def dump_period_ms(settings: SlotSettings) -> int:
    """How long no Python thread has run when the first dump is made, and the time from one dump to the next. The second
    dump, which shows that the first is whole, comes when the slot counts as stuck. Several dumps come before the slot
    would count as lost."""
    return max(LEAST_PERIOD_MS, min(settings.stuck_after_ms // 2, settings.heartbeat_timeout_ms // 4))
