"""What the coordinator may be told beyond the job's checkpoint settings."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.coordinator.schedule import BacklogInterval


class CoordinatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the job and of its surroundings that are no checkpoint settings."""

    during_backlog: BacklogInterval | None = None
    """The period while a source works through old data; None: as always."""
    savepoint_target: str | None = None
    """Where savepoints go that name no target."""
    job_settings: dict[str, Any] = {}
    """Written into each checkpoint."""
    history_size: int = 10
    """How many ended checkpoints the statistics remember."""
    queue_limit: int = 1_000
    """How many requests may wait."""
