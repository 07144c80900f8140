"""Sources that are read for a limited time, so that a run of a benchmark ends on a slow machine, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.api.connector import End, Polled, Source, SourceReader, SplitProgress


@dataclass(frozen=True)
class LimitedReads(Source):
    """The source `inner`, of which each reader says after `seconds` that it has ended."""

    inner: Source
    seconds: float

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
        """A reader whose time is counted from its first poll."""
        return _LimitedReader(self.inner.open(splits), int(self.seconds * 1_000))


class _LimitedReader(SourceReader):
    def __init__(self, inner: SourceReader, most_ms: int) -> None:
        self._inner = inner
        self._most_ms = most_ms
        self._start_ms: int | None = None

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        if self._start_ms is None:
            self._start_ms = now_ms
        if now_ms - self._start_ms >= self._most_ms:
            return End()
        return self._inner.poll(max_rows, now_ms)

    def snapshot(self) -> list[bytes]:
        return self._inner.snapshot()

    def progress(self) -> SplitProgress | None:
        return self._inner.progress()

    def checkpoint_completed(self, checkpoint: int) -> None:
        self._inner.checkpoint_completed(checkpoint)

    def close(self) -> None:
        self._inner.close()
