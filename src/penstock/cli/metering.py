"""How fast a source is really read: every poll is noted where it happens, with the time.

The counts that slots report are for people to look at, and are half a second old; a benchmark needs better.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.api.connector import Polled, Source, SourceReader

_NOTE = np.dtype([("at_ns", "<i8"), ("rows", "<i8")])


@dataclass(frozen=True)
class MeteredSource(Source):
    """`inner`, with a file in `directory` for each reader that tells when it read how many records."""

    inner: Source
    directory: str

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
        """A reader that also notes."""
        return _MeteredReader(self.inner.open(splits), Path(self.directory))


class _MeteredReader(SourceReader):
    def __init__(self, inner: SourceReader, directory: Path) -> None:
        self._inner = inner
        self._directory = directory
        self._notes: list[tuple[int, int]] = []

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        polled = self._inner.poll(max_rows, now_ms)
        if isinstance(polled, pa.RecordBatch):
            self._notes.append((time.time_ns(), polled.num_rows))
        return polled

    def snapshot(self) -> list[bytes]:
        return self._inner.snapshot()

    def checkpoint_completed(self, checkpoint: int) -> None:
        self._inner.checkpoint_completed(checkpoint)

    def close(self) -> None:
        self._inner.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{os.getpid()}-{time.time_ns()}"
        path.write_bytes(np.array(self._notes, dtype=_NOTE).tobytes())


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What the readers of one run noted."""

    rows: int
    """All that was read."""
    seconds: float
    """From the end of the warm-up to the last record."""
    rows_per_second: float
    """Over those seconds."""


def read_throughput(directory: Path, *, warmup_share: float) -> Throughput | None:
    """Records per second of all readers together, without the first `warmup_share` of the records.

    None if too little was read to tell.
    """
    parts = [np.frombuffer(path.read_bytes(), dtype=_NOTE) for path in sorted(directory.glob("*"))]
    notes = np.sort(np.concatenate(parts), order="at_ns") if parts else np.empty(0, dtype=_NOTE)
    if not len(notes):
        return None
    read = np.cumsum(notes["rows"])
    total = int(read[-1])
    first = int(np.searchsorted(read, total * warmup_share))
    seconds = float(notes["at_ns"][-1] - notes["at_ns"][first]) / 1e9
    if seconds <= 0:
        return None
    return Throughput(rows=total, seconds=seconds, rows_per_second=float(total - read[first]) / seconds)
