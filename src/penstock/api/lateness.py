"""What steps know of event time to tell late records apart."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class LateRecords:
    """What a step must know of its input to tell late records apart."""

    time_column: str
    schema: pa.Schema
    """The schema of the input."""
    time_offset_us: int = 0
    """Event time is the time in the column plus this."""
