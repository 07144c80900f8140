"""Records of completed checkpoints, as drivers write them down and find them."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.ids import CheckpointId, Instant, JobId
from penstock.core.recovery.metadata import CompletedCheckpoint, SnapshotKind


def completed(checkpoint: int, **changes: Any) -> CompletedCheckpoint:
    found = CompletedCheckpoint(
        job=JobId("job"),
        checkpoint=CheckpointId(checkpoint),
        timestamp=Instant(1),
        completed=Instant(2),
        kind=SnapshotKind.CHECKPOINT,
        location=f"job/chk-{checkpoint}",
        path=f"job/chk-{checkpoint}/_metadata",
        size=3,
    )
    return msgspec.structs.replace(found, **changes)


def encoded(checkpoint: int) -> bytes:
    return msgspec.msgpack.encode(completed(checkpoint))
