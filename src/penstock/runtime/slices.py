"""Long batches of slow row functions, cut so that a barrier or a timer never waits long behind one."""

from __future__ import annotations

import pyarrow as pa

SLICE_MS = 3.0
"""How long a slice should take."""
FIRST_ROWS = 16
"""Few, for every attempt begins with them, and a barrier may wait behind the first slice already."""
LEAST_ROWS = 1
MOST_ROWS = 65_536


class Slices:
    """Learns how many rows a task's functions get through in `SLICE_MS`."""

    def __init__(self) -> None:
        self.rows = FIRST_ROWS

    def cut(self, batch: pa.RecordBatch, cost: int) -> tuple[pa.RecordBatch, pa.RecordBatch, int]:
        """The next slice, the rest, and the share of the cost that the rest keeps."""
        rest = batch.slice(self.rows)
        return batch.slice(0, self.rows), rest, cost * rest.num_rows // batch.num_rows

    def took(self, rows: int, took_ms: float) -> None:
        """So many rows took so long. The size changes by a factor of two at most: one slow row proves nothing."""
        if rows < self.rows // 2 or took_ms <= 0:
            return
        wanted = int(rows * SLICE_MS / took_ms)
        self.rows = max(LEAST_ROWS, self.rows // 2, min(wanted, self.rows * 2, MOST_ROWS))
