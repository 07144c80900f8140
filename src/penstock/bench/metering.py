"""The throughput of a job: sources note the time of every batch that they read, and sinks note the time of every batch
that they write.

The counts that slots report may be half a second old, which is not exact enough for a benchmark. And records that were
read may still wait in queues: a job has processed all records only when its last result is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import Polled, Sink, SinkWriter, Source, SourceReader, SplitProgress, WriterContext

_NOTE = np.dtype([("at_ns", "<i8"), ("rows", "<i8"), ("cpu_ns", "<i8")])
_READ = "read"
_WRITTEN = "written"


class _Notes:
    """The time and the number of rows of every batch of one reader or writer, and the processor time that the process
    has used by then, kept in memory until the reader or writer is closed."""

    def __init__(self, directory: str, kind: str) -> None:
        self._directory = Path(directory)
        self._kind = kind
        self._notes: list[tuple[int, int, int]] = []

    def add(self, rows: int) -> None:
        self._notes.append((time.time_ns(), rows, time.process_time_ns()))

    def save(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._kind}-{os.getpid()}-{time.time_ns()}"
        path.write_bytes(np.array(self._notes, dtype=_NOTE).tobytes())


@dataclass(frozen=True)
class MeteredSource(Source):
    """The source `inner`, with a file in `directory` for each reader: when the reader read how many records."""

    inner: Source
    directory: str

    @property
    def schema(self) -> pa.Schema:
        """That of the inner source."""
        return self.inner.schema

    @property
    def name(self) -> str:
        """That of the inner source."""
        return self.inner.name

    def splits(self, parallelism: int) -> list[bytes]:
        """That of the inner source."""
        return self.inner.splits(parallelism)

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader that also notes the time of every batch."""
        return _MeteredReader(self.inner.open(splits), _Notes(self.directory, _READ))


class _MeteredReader(SourceReader):
    def __init__(self, inner: SourceReader, notes: _Notes) -> None:
        self._inner = inner
        self._notes = notes

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        polled = self._inner.poll(max_rows, now_ms)
        if isinstance(polled, pa.RecordBatch):
            self._notes.add(polled.num_rows)
        return polled

    def snapshot(self) -> list[bytes]:
        return self._inner.snapshot()

    def progress(self) -> SplitProgress | None:
        return self._inner.progress()

    def checkpoint_completed(self, checkpoint: int) -> None:
        self._inner.checkpoint_completed(checkpoint)

    def close(self) -> None:
        self._inner.close()
        self._notes.save()


@dataclass(frozen=True)
class MeteredSink(Sink):
    """The sink `inner`, with a file in `directory` for each writer: when the writer got how many records."""

    inner: Sink
    directory: str

    @property
    def name(self) -> str:
        """That of the inner sink."""
        return self.inner.name

    def check(self, schema: pa.Schema) -> None:
        """Call `check` of the inner sink."""
        self.inner.check(schema)

    def start(self, job: str) -> None:
        """Call `start` of the inner sink."""
        self.inner.start(job)

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer that also notes the time of every batch."""
        return _MeteredWriter(self.inner.writer(context), _Notes(self.directory, _WRITTEN))

    def commit(self, committables: Sequence[bytes]) -> None:
        """Call `commit` of the inner sink."""
        self.inner.commit(committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Call `clean` of the inner sink."""
        self.inner.clean(context, keep)

    def end(self, job: str) -> None:
        """Call `end` of the inner sink."""
        self.inner.end(job)


class _MeteredWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, notes: _Notes) -> None:
        self._inner = inner
        self._notes = notes

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)
        self._notes.add(batch.num_rows)

    def before_barrier(self) -> None:
        self._inner.before_barrier()

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        return self._inner.prepare(checkpoint)

    def close(self) -> None:
        self._inner.close()
        self._notes.save()


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The throughput of one run."""

    rows: int
    """Records read in the whole run."""
    seconds: float
    """From the end of the warm-up to the last result."""
    rows_per_second: float
    """Records read after the warm-up, divided by `seconds`."""
    cpu_seconds: float = 0.0
    """The processor time of the slots, from the end of the warm-up on; 0 if it was not noted."""
    started_ns: int = 0
    """When the warm-up ended, in nanoseconds since 1970."""

    @property
    def cpu_seconds_per_million(self) -> float:
        """The processor time of the slots for a million records."""
        return self.cpu_seconds * 1e6 / (self.rows_per_second * self.seconds)


def read_throughput(directory: Path, *, warmup_share: float) -> Throughput | None:
    """Records per second of all readers together, without the first `warmup_share` of the records.

    None if too few records were read to compute it.
    """
    read, written = _noted(directory, _READ), _noted(directory, _WRITTEN)
    if not len(read):
        return None
    rows = np.cumsum(read["rows"])
    total = int(rows[-1])
    first = int(np.searchsorted(rows, total * warmup_share))
    end_ns = max(int(notes["at_ns"][-1]) for notes in (read, written) if len(notes))
    seconds = (end_ns - int(read["at_ns"][first])) / 1e9
    if seconds <= 0:
        return None
    return Throughput(
        rows=total,
        seconds=seconds,
        rows_per_second=float(total - rows[first]) / seconds,
        cpu_seconds=_cpu_seconds(directory, int(read["at_ns"][first])),
        started_ns=int(read["at_ns"][first]),
    )


def _cpu_seconds(directory: Path, from_ns: int) -> float:
    """The processor time that all processes used from a time on."""
    of_process: dict[str, list[npt.NDArray[np.void]]] = {}
    for path in sorted(directory.iterdir()):
        of_process.setdefault(path.name.split("-")[1], []).append(np.frombuffer(path.read_bytes(), dtype=_NOTE))
    found = 0
    for parts in of_process.values():
        notes = np.sort(np.concatenate(parts), order="at_ns")
        steady = notes["cpu_ns"][notes["at_ns"] >= from_ns]
        found += int(steady[-1] - steady[0]) if steady.size else 0
    return found / 1e9


def _noted(directory: Path, kind: str) -> npt.NDArray[np.void]:
    parts = [np.frombuffer(path.read_bytes(), dtype=_NOTE) for path in sorted(directory.glob(f"{kind}-*"))]
    return np.sort(np.concatenate(parts), order="at_ns") if parts else np.empty(0, dtype=_NOTE)
