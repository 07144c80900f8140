"""The windows of a world's job, and what must be in them, computed record by record.

All numbers follow from `Workload.window_us`. The size of sliding windows is not a multiple of their slide.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any, assert_never

from penstock.api.other_windows import CountWindow, GlobalWindow
from penstock.api.pane_windows import CumulativeWindow, SlidingWindow
from penstock.api.windows import SessionWindow, TumblingWindow, WindowType

Row = tuple[Any, ...]


class WindowKind(Enum):
    """How the job of a world cuts event time."""

    TUMBLING = "tumbling"
    SLIDING = "sliding"
    CUMULATIVE = "cumulative"
    SESSION = "session"
    GLOBAL = "global"
    """All records of a key."""
    COUNT = "count"
    """The last three records of a key, after every two records."""
    CLOCK = "clock"
    """Tumbling windows of processing time."""
    CLOCK_SESSION = "clock-session"
    """Sessions of processing time."""

    @property
    def is_timed(self) -> bool:
        """Whether event time says in which windows a record is."""
        return self in TIMED

    @property
    def is_moved(self) -> bool:
        """Whether the bounds of windows differ from run to run, when a job is drained or the clock says otherwise."""
        return self in (WindowKind.SESSION, *BY_CLOCK)

    @property
    def has_parts(self) -> bool:
        """Whether only all windows of a key together have the same records in every run."""
        return self in BY_CLOCK


TIMED = (WindowKind.TUMBLING, WindowKind.SLIDING, WindowKind.CUMULATIVE, WindowKind.SESSION)
BY_CLOCK = (WindowKind.CLOCK, WindowKind.CLOCK_SESSION)

COUNTED, EVERY = 3, 2
"""The number of records of a window of the kind `COUNT`, and after how many records there is such a window."""


def window_of(kind: WindowKind, window_us: int) -> WindowType:
    """The windows of the job."""
    third_us = window_us // 3
    match kind:
        case WindowKind.TUMBLING:
            return TumblingWindow(size_us=window_us)
        case WindowKind.SLIDING:
            return SlidingWindow(size_us=3 * third_us, slide_us=2 * third_us)
        case WindowKind.CUMULATIVE:
            return CumulativeWindow(size_us=3 * third_us, step_us=third_us)
        case WindowKind.SESSION:
            return SessionWindow(gap_us=third_us)
        case WindowKind.GLOBAL:
            return GlobalWindow()
        case WindowKind.COUNT:
            return CountWindow(size=COUNTED, slide=EVERY)
        case WindowKind.CLOCK:
            return TumblingWindow(size_us=window_us, by_clock=True)
        case WindowKind.CLOCK_SESSION:
            return SessionWindow(gap_us=third_us, by_clock=True)
        case _:
            assert_never(kind)


def expected_windows(
    kind: WindowKind, window_us: int, records: Iterable[tuple[int, int, int]], *, keyed: bool
) -> Counter[Row]:
    """The results over records of (key, time, value): the key unless all records belong together, the bounds of the
    window, the number of its records and the greatest value. The records of a key come in the order of the input. Of
    windows of processing time, the records of all windows together."""
    by_key: dict[Row, list[tuple[int, int]]] = defaultdict(list)
    for key, time, value in records:
        by_key[(key,) if keyed else ()].append((time, value))
    found: Counter[Row] = Counter()
    for key_row, timed in by_key.items():
        if kind is WindowKind.COUNT:
            values = [value for _, value in timed]
            ends = range(EVERY, len(values) + 1, EVERY)
            lasts = (values[max(0, end - COUNTED) : end] for end in ends)
            found.update((*key_row, len(last), max(last)) for last in lasts)
            continue
        if kind is WindowKind.GLOBAL or kind in BY_CLOCK:
            bounds = (0, 0) if kind in BY_CLOCK else ()
            found[*key_row, *bounds, len(timed), max(value for _, value in timed)] += 1
            continue
        places = _sessions(timed, window_us // 3) if kind is WindowKind.SESSION else _places(kind, window_us, timed)
        found.update((*key_row, start, end, len(values), max(values)) for (start, end), values in places.items())
    return found


def is_last_window(kind: WindowKind, window_us: int, time: int, end: int) -> bool:
    """Whether no window with a later end than `end` has a record with this time. A session has all its records."""
    return kind is WindowKind.SESSION or end == max(last for _, last in _bounds(kind, window_us, time))


def _places(kind: WindowKind, window_us: int, timed: list[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    places = defaultdict(list)
    for time, value in timed:
        for bounds in _bounds(kind, window_us, time):
            places[bounds].append(value)
    return places


def _bounds(kind: WindowKind, window_us: int, time: int) -> list[tuple[int, int]]:
    """The starts and the ends of the windows that have a record with this time."""
    third_us = window_us // 3
    match kind:
        case WindowKind.SLIDING:
            latest = time // (2 * third_us) * 2 * third_us
            found = [(start, start + 3 * third_us) for start in (latest - 2 * third_us, latest)]
        case WindowKind.CUMULATIVE:
            start = time // (3 * third_us) * 3 * third_us
            found = [(start, start + steps * third_us) for steps in (1, 2, 3)]
        case _:
            start = time // window_us * window_us
            found = [(start, start + window_us)]
    return [(start, end) for start, end in found if time < end]


def _sessions(timed: list[tuple[int, int]], gap_us: int) -> dict[tuple[int, int], list[int]]:
    sessions: list[tuple[int, int, list[int]]] = []
    for time, value in sorted(timed):
        if sessions and time <= sessions[-1][1]:
            start, _, values = sessions.pop()
            sessions.append((start, time + gap_us, [*values, value]))
        else:
            sessions.append((time, time + gap_us, [value]))
    return {(start, end): values for start, end, values in sessions}
