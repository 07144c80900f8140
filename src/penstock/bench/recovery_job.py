"""The job whose recoveries are timed: paced records, a function that can be made to fail, state per key, and a sink
that notes when results come and when they are committed.

A note is a file with a time of the machine's clock in it. The benchmark runs on the same machine, and reads the notes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.connector import Sink, SinkWriter, WriterContext
from penstock.bench.latency import KEY_STRIDE, KEYS, SCHEMA, PacedSource
from penstock.core.errors import UserCodeError

if TYPE_CHECKING:
    # Slots import this module, and need not import the code of the driver.
    from penstock.spark.environment import Environment

RATE = 2_000
"""Records a second. Few are enough: the time of a recovery is measured, not the time to catch up."""
LONGEST_S = 3_600.0
DDL = "key bigint, created_us bigint"


@dataclass(frozen=True)
class Fuse:
    """A function on batches. When the file at `path` exists, the function removes the file, notes the time, and
    raises."""

    path: str

    @property
    def note(self) -> Path:
        """The file in which the function notes when it raised."""
        return Path(f"{self.path}.blown")

    def light(self) -> None:
        """Make the function raise at the next batch."""
        self.note.unlink(missing_ok=True)
        Path(self.path).touch()

    def blown_ns(self) -> int | None:
        """When the function raised; None if it has not raised since `light`."""
        return _read_ns(self.note)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch unchanged, or raise."""
        if Path(self.path).exists():
            try:
                Path(self.path).unlink()
            except FileNotFoundError:
                # Another subtask has removed the file, and raises.
                return batch
            _write_ns(self.note)
            raise UserCodeError(operator="fuse", subtask=0, traceback_text="the fuse has blown, as it was told to")
        return batch


@dataclass(frozen=True)
class NotingSink(Sink):
    """Notes, for each attempt and subtask, when the first result came and when the first result was committed."""

    directory: str

    def start(self, job: str) -> None:  # noqa: ARG002
        """Make the directory."""
        Path(self.directory).mkdir(parents=True, exist_ok=True)

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer that notes when the first result comes."""
        return _NotingWriter(Path(self.directory), context)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Note the time of the commit, unless the attempt and subtask have committed before."""
        for committable in committables:
            note = Path(self.directory, committable.decode())
            if not note.exists():
                _write_ns(note)

    def first_ns(self, kind: str, *, after_epoch: int) -> int | None:
        """When an attempt after `after_epoch` emitted or committed its first result; None if no such attempt has done
        so yet. `kind` is `emitted` or `committed`."""
        times = [_read_ns(path) for epoch, path in self._notes(kind) if epoch > after_epoch]
        return min((t for t in times if t is not None), default=None)

    def newest_committed(self) -> int | None:
        """The epoch of the newest attempt that has committed a result; None if no attempt has."""
        return max((epoch for epoch, _ in self._notes("committed")), default=None)

    def _notes(self, kind: str) -> list[tuple[int, Path]]:
        return [(int(path.name.split("-")[1]), path) for path in Path(self.directory).glob(f"{kind}-*")]


class _NotingWriter(SinkWriter):
    def __init__(self, directory: Path, context: WriterContext) -> None:
        self._directory = directory
        self._suffix = f"{context.epoch}-{context.subtask}"
        self._has_rows = False
        self._noted = False

    def write(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002
        self._has_rows = True
        if not self._noted:
            self._noted = True
            _write_ns(self._directory / f"emitted-{self._suffix}")

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:  # noqa: ARG002
        had_rows, self._has_rows = self._has_rows, False
        return lambda: [f"committed-{self._suffix}".encode()] if had_rows else []


def recovery_program(environment: Environment, fuse: Fuse, sink: NotingSink) -> None:
    """The program for Penstock: for every record, the latest record of its key."""
    stream = environment.read(PacedSource(rate=RATE, seconds=LONGEST_S)).map_batches(fuse, name="fuse")
    stream.key_by("key").reduce(_latest).write(sink)


def _latest(_before: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    return dict(record)


def start_query(spark: Any, fuse: Fuse, directory: Path) -> Any:
    """Start the query for Structured Streaming: the same program, over Spark's own source of paced records, with
    micro-batches that follow each other at once. The query goes on from the checkpoint in `directory`, if there is
    one."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield fuse(batch)

    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", RATE)
        .load()
        .selectExpr(f"value * {KEY_STRIDE} % {KEYS} AS key", "unix_micros(timestamp) AS created_us")
        .mapInArrow(through, DDL)
        .groupBy("key")
        .agg({"created_us": "max"})
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", directory.as_uri())
        .trigger(processingTime="0 seconds")
        .start()
    )


def committed_batches(directory: Path) -> dict[int, int]:
    """The numbers of the micro-batches that a query has committed, each with the time of the commit."""
    notes = [path for path in (directory / "commits").glob("*") if path.name.isdigit()]
    return {int(path.name): path.stat().st_mtime_ns for path in notes}


assert SCHEMA.names == [column.split()[0] for column in DDL.split(", ")]


def _write_ns(path: Path) -> None:
    """Write the time to a file. The file gets its name only when the time is in it."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(str(time.time_ns()))
    hidden.rename(path)


def _read_ns(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return None
