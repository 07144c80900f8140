"""How much processor time this process and all processes below it use, as the system counts it.

A benchmark whose sides run in different processes, in slots, in the JVM and on the driver, is measured as a whole. The
processes are looked at some times a second: what a process used between the last look and its end is not counted. The
times of a process that has ended are kept here, because the system forgets them where nobody waits for the process, as
for the Python workers of Spark.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

_PROCESSES = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LOOK_EVERY_S = 0.25

_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19
"""Where the fields are in `stat`, behind the name of the process."""


class Process(NamedTuple):
    """A process. Numbers are used again, so the time of the start tells processes apart, too."""

    pid: int
    started: int


def used_ticks(pid: int, *, processes: Path = _PROCESSES) -> dict[Process, int]:
    """The processor time of a process and of each process below it."""
    parents: dict[int, int] = {}
    found: dict[Process, int] = {}
    for place in processes.iterdir():
        if place.name.isdecimal():
            try:
                fields = (place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                # The process has ended since the folder was listed.
                continue
            process = Process(int(place.name), int(fields[_STARTED]))
            parents[process.pid] = int(fields[_PARENT])
            found[process] = int(fields[_USER]) + int(fields[_SYSTEM])
    return {process: ticks for process, ticks in found.items() if _is_below(process.pid, pid, parents)}


def _is_below(number: int, pid: int, parents: dict[int, int]) -> bool:
    while number != pid and number in parents:
        number = parents[number]
    return number == pid


class ProcessorTime:
    """Looks at this process and all processes below it while a block runs."""

    def __init__(self, *, processes: Path = _PROCESSES) -> None:
        self._processes = processes
        self._known: dict[Process, int] = {}
        self._at_ns: list[int] = []
        self._ticks: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="processor-time", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def between(self, start_ns: int, end_ns: int) -> float:
        """The processor seconds from one time to another, both in nanoseconds since 1970."""
        start, end = np.interp([start_ns, end_ns], self._at_ns, self._ticks)
        return float(end - start) / _TICKS_PER_SECOND

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        self._known |= used_ticks(os.getpid(), processes=self._processes)
        self._at_ns.append(time.time_ns())
        self._ticks.append(sum(self._known.values()))
