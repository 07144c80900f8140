"""Durations as connectors read them. A connector depends on the public contracts, and not on the core."""

from __future__ import annotations

from penstock.core.durations import Duration, duration_ms

__all__ = ["Duration", "duration_ms"]
