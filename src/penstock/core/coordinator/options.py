"""Options of the coordinator beyond the job's checkpoint settings."""

from __future__ import annotations

from typing import Any

import msgspec


class CoordinatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the coordinator that are not checkpoint settings."""

    job_settings: dict[str, Any] = {}
    """The job's settings as they are written into the metadata of each checkpoint."""
    queue_limit: int = 1_000
    """How many requests may wait."""
