"""Reading no faster than a given rate, in a few large bites a second.

For a job that would otherwise be over before anything could happen to it. A source that is paced record by record would
show other things: what small batches cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.connector import Pause, Polled, Source, SourceReader, SplitProgress

BITES_PER_SECOND = 20


@dataclass(frozen=True)
class PacedReads(Source):
    """`inner`, of which each reader hands out at most `rate` records a second."""

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
        """A reader that takes its time, counted anew from its first poll."""
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
        # What was handed out is paid for before there is more.
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
