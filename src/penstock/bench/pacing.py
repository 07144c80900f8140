"""Sources that are read no faster than a given rate, in a few large batches a second.

A job with few records would otherwise end before a worker can be killed. A source that paces single records would have
small batches, whose cost is not to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.connector import Pause, Polled, Source, SourceReader, SplitProgress

BITES_PER_SECOND = 20


@dataclass(frozen=True)
class PacedReads(Source):
    """The source `inner`, of which each reader reads at most `rate` records a second."""

    inner: Source
    rate: int

    @property
    def schema(self) -> pa.Schema:
        """As the inner source's."""
        return self.inner.schema

    @property
    def name(self) -> str:
        """As the inner source's."""
        return self.inner.name

    def splits(self, parallelism: int) -> list[bytes]:
        """As the inner source's."""
        return self.inner.splits(parallelism)

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader that keeps to the rate, counted from its first poll."""
        return _PacedReader(self.inner.open(splits), self.rate)


class _PacedReader(SourceReader):
    def __init__(self, inner: SourceReader, rate: int) -> None:
        self._inner = inner
        self._rate = rate
        self._start_ms: int | None = None
        self._rows = 0

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        if self._start_ms is None:
            self._start_ms = now_ms
        # There is no further batch before the time that the records so far should take has passed.
        wait_ms = self._start_ms + self._rows * 1_000 // self._rate - now_ms
        if wait_ms > 0:
            return Pause(wait_ms)
        polled = self._inner.poll(min(max_rows, max(self._rate // BITES_PER_SECOND, 1)), now_ms)
        if isinstance(polled, pa.RecordBatch):
            self._rows += polled.num_rows
        return polled

    def snapshot(self) -> list[bytes]:
        return self._inner.snapshot()

    def progress(self) -> SplitProgress | None:
        return self._inner.progress()

    def checkpoint_completed(self, checkpoint: int) -> None:
        self._inner.checkpoint_completed(checkpoint)

    def close(self) -> None:
        self._inner.close()
