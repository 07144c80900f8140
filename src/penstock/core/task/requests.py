"""Which records an async function is asked about, and in which order its results leave.

    add ──► waits ── begin ──► asked ── answered ──► done ── leave ──► left
                                │  ▲
                 refused, or no │  │ after a pause that doubles
                 answer in time ▼  │
                               paused ── no try is left ──► given up

Rules of this file:

* Records have numbers, in the order in which they came. Every try has a number of its own, the *call*. News of a call
  that is over changes nothing.
* A record counts against `concurrency` from its first try until its result has left. So neither requests nor results
  can pile up.
* Ordered: results leave in the order of the records. Unordered: results leave as they come, but never across a
  watermark.
* A watermark leaves when the results of all records before the watermark have left.

What a failed record means, to fail the job or to skip the record, is decided by the operator and not here. A record
that is skipped is `answered`, without results.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.core.ids import Instant

LONGEST_PAUSE_MS = 60_000
"""The pause between two tries doubles up to this length."""


class RequestPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How records are asked about."""

    concurrency: int
    """At most this many records are asked about, or have results that have not left."""
    timeout_ms: int
    """How long one try may take."""
    ordered: bool = True
    retries: int = 0
    """How often a record is tried again after its first try."""
    pause_ms: int = 100
    """The pause before the second try. Each further pause is twice as long as the pause before it."""


class Asked(NamedTuple):
    """A try that begins."""

    call: int
    number: int
    """The number of the record."""


class Refused(NamedTuple):
    """A try that failed."""

    call: int
    number: int
    tries: int
    """How many tries the record has had."""
    is_final: bool
    """Whether no try is left. The record must be `answered`, or the task must fail."""


class Leaving(NamedTuple):
    """Records whose results leave, and the watermark that follows them, if a watermark follows."""

    numbers: list[int]
    watermark: tuple[int, bool] | None


class _Segment:
    """The records between two watermarks."""

    __slots__ = ("done", "end", "open", "watermark")

    def __init__(self) -> None:
        self.open = 0
        """How many records of the segment have not left."""
        self.done: list[int] = []
        """Unordered: the records whose results can leave, in the order in which the results came."""
        self.end: int | None = None
        """The number behind the last record; None as long as more records may join."""
        self.watermark: tuple[int, bool] | None = None


class Requests:
    """The records of one subtask that have come and whose results have not left."""

    def __init__(self, policy: RequestPolicy) -> None:
        self._policy = policy
        self._next = 0
        """The number of the next record that comes."""
        self._unasked = 0
        """The first record that has not been asked about."""
        self._next_call = 0
        self._inside: dict[int, bool] = {}
        """The records that have been asked about and have not left; whether the record is done. In order."""
        self._calls: dict[int, int] = {}
        """The record of every call that is under way."""
        self._tries: dict[int, int] = {}
        """The number of tries of the records that were refused."""
        self._deadlines: deque[tuple[Instant, int]] = deque()
        """When calls are over, in order, with calls that have been answered meanwhile."""
        self._paused: list[tuple[Instant, int]] = []
        """A heap: when records are tried again."""
        self._segments: deque[_Segment] = deque([_Segment()])

    # --- what comes ----------------------------------------------------------------------

    def add(self, count: int) -> int:
        """Records have come. Returns the number of the first record."""
        first = self._next
        self._next += count
        self._segments[-1].open += count
        return first

    def add_watermark(self, time_us: int, *, idle: bool) -> None:
        """A watermark has come: it leaves behind all records that have come. Watermarks without a record between them
        become one watermark."""
        last = self._segments[-1]
        before = self._segments[-2] if len(self._segments) > 1 else None
        if not last.open and before is not None and before.watermark is not None and before.end == self._next:
            before.watermark = max(before.watermark[0], time_us), idle
            return
        last.end, last.watermark = self._next, (time_us, idle)
        self._segments.append(_Segment())

    # --- tries ---------------------------------------------------------------------------

    def begin(self, now: Instant) -> list[Asked]:
        """The tries that begin now: records whose pause is over, and further records while there is room."""
        begun: list[Asked] = []
        while self._paused and self._paused[0][0] <= now:
            begun.append(self._ask(heapq.heappop(self._paused)[1], now))
        while self._unasked < self._next and len(self._inside) < self._policy.concurrency:
            number = self._unasked
            self._unasked += 1
            self._inside[number] = False
            begun.append(self._ask(number, now))
        return begun

    def _ask(self, number: int, now: Instant) -> Asked:
        call = self._next_call
        self._next_call += 1
        self._calls[call] = number
        self._deadlines.append((Instant(now + self._policy.timeout_ms), call))
        return Asked(call, number)

    def returned(self, call: int) -> int | None:
        """A call has come back with a result. Returns the number of its record; None if the call is over, because its
        time was up."""
        return self._calls.pop(call, None)

    def refused(self, call: int, now: Instant) -> Refused | None:
        """A call has failed. Returns what that means for its record; None if the call is over."""
        number = self._calls.pop(call, None)
        return None if number is None else self._refuse(call, number, now)

    def expired(self, now: Instant) -> list[Refused]:
        """The calls whose time is up. These calls are over."""
        found: list[Refused] = []
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][1] not in self._calls):
            call = self._deadlines.popleft()[1]
            number = self._calls.pop(call, None)
            if number is not None:
                found.append(self._refuse(call, number, now))
        return found

    def _refuse(self, call: int, number: int, now: Instant) -> Refused:
        tries = self._tries[number] = self._tries.get(number, 0) + 1
        is_final = tries > self._policy.retries
        if not is_final:
            pause_ms = min(self._policy.pause_ms * 2 ** (tries - 1), LONGEST_PAUSE_MS)
            heapq.heappush(self._paused, (Instant(now + pause_ms), number))
        return Refused(call, number, tries, is_final)

    def next_deadline(self) -> Instant | None:
        """When `expired` and `begin` must be called at the latest; None if only an answer can help."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._calls:
            deadlines.popleft()
        times = (*(time for time, _ in (*self._paused[:1],)), *(deadlines[0][:1] if deadlines else ()))
        return min(times, default=None)

    # --- what leaves ---------------------------------------------------------------------

    def answered(self, numbers: Iterable[int]) -> None:
        """The results of these records are there."""
        ordered, segments = self._policy.ordered, self._segments
        for number in numbers:
            self._inside[number] = True
            self._tries.pop(number, None)
            if not ordered:
                segment = next(s for s in segments if s.end is None or number < s.end)
                segment.done.append(number)

    @property
    def can_leave(self) -> bool:
        """Whether `leave` would return something."""
        first = self._segments[0]
        if first.watermark is not None and not first.open:
            return True
        if self._policy.ordered:
            return next(iter(self._inside.values()), False)
        return bool(first.done)

    def leave(self) -> list[Leaving]:
        """The results and watermarks that leave now, in the order in which they leave."""
        found: list[Leaving] = []
        while self.can_leave:
            first = self._segments[0]
            numbers = self._done_in_order(first) if self._policy.ordered else first.done
            if not self._policy.ordered:
                first.done = []
            for number in numbers:
                del self._inside[number]
            first.open -= len(numbers)
            is_over = first.watermark is not None and not first.open
            found.append(Leaving(numbers, first.watermark if is_over else None))
            if is_over:
                self._segments.popleft()
        return found

    def _done_in_order(self, segment: _Segment) -> list[int]:
        numbers: list[int] = []
        for number, is_done in self._inside.items():
            if not is_done or (segment.end is not None and number >= segment.end):
                break
            numbers.append(number)
        return numbers

    # --- how much there is ---------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many further records would be asked about at once."""
        return max(0, self._policy.concurrency - len(self._inside) - self.waiting)

    @property
    def waiting(self) -> int:
        """How many records have come that have not been asked about."""
        return self._next - self._unasked

    @property
    def in_flight(self) -> int:
        """How many calls are under way."""
        return len(self._calls)

    @property
    def is_empty(self) -> bool:
        """Whether every result and every watermark has left."""
        return len(self._segments) == 1 and not self._segments[0].open

    def unfinished(self) -> list[int]:
        """The records whose results have not left, in order: a snapshot must have these records."""
        return [*self._inside, *range(self._unasked, self._next)]
