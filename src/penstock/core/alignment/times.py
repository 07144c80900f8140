"""How far event time has come, as the subtasks of a watermark group tell each other."""

from __future__ import annotations

import msgspec

NOT_BEGUN = -(2**63)
"""Event time has not begun: a reader has records to read, and has read none."""

LeastTime = int | None
"""The event time of the split of a reader that is furthest behind, in microseconds; `NOT_BEGUN` if no split has begun.
None: the reader holds nobody back, because all its splits have ended or are idle, or because it has no splits."""


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """A watermark group, and how far a source may read ahead of the group."""

    group: str
    drift_us: int
    interval_ms: int
    """How often sources tell each other how far they have come."""
