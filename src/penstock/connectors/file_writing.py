"""Writes the records of one subtask into prepared files, in whatever format.

Records are buffered, and written off the loop. When the buffer is full before the checkpoint comes, the buffer is
written to a file of its own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from penstock.api.connector import SinkWriter, WriterContext
from penstock.connectors.partitions import by_partition
from penstock.connectors.prepared_files import PreparedFile, file_name_of, sync_folder
from penstock.core.errors import StorageError
from penstock.descents import create_file, make_folders, opened_folder

BUFFER_BYTES = 64 * 1024 * 1024
"""When the buffered records of a subtask have this many bytes, they are written to a file before the checkpoint
comes."""


class FileFormat(ABC):
    """How records become the content of a file."""

    @property
    @abstractmethod
    def ending(self) -> str:
        """How the names of the files end: `.parquet`."""

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read records of this schema back. Columns that are in the names of
        folders are not in `schema`."""

    @abstractmethod
    def write(self, rows: pa.Table, out: IO[bytes]) -> None:
        """Write a whole file. Called off the loop. May be called again for another file after it raised `OSError`."""


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """Where the files of a sink lie, and what they are."""

    folder: Path
    """The sink's folder."""
    staging: Path
    """The folder of files that are not committed, below `folder`."""
    format: FileFormat
    partition_by: tuple[str, ...] = ()


class _Chunk:
    """Records that go into one file, or into one file for each partition."""

    def __init__(self, layout: FileLayout, name: str, batches: list[pa.RecordBatch]) -> None:
        """`name` is the name of the file without its ending."""
        self._layout = layout
        self._name = name
        self._batches = batches
        self.parts: list[tuple[Path, str]] = []
        """Each file that was written, and the folder that its final name is in."""
        self._written = False

    def write(self) -> None:
        """Write the files, durably, and let go of the records. A second call does nothing. A call that raised may be
        tried again."""
        if self._written:
            return
        table = pa.Table.from_batches(self._batches)
        self.parts = []
        if self._layout.partition_by:
            for number, (folder, rows) in enumerate(by_partition(table, self._layout.partition_by)):
                self._write(f"{self._name}.{number}", rows, f"{folder}/")
        else:
            self._write(self._name, table, "")
        self._written = True
        self._batches = []

    def _write(self, name: str, rows: pa.Table, folder: str) -> None:
        layout = self._layout
        file = layout.staging / f"{name}{layout.format.ending}"
        try:
            names = layout.staging.relative_to(layout.folder).parts
            layout.folder.mkdir(parents=True, exist_ok=True)
            make_folders(layout.folder, names)
            with opened_folder(layout.folder, names) as staging:
                descriptor = create_file(staging, file.name)
            with open(descriptor, "wb") as out:  # noqa: PTH123  # a descriptor has no path
                layout.format.write(rows, out)
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise StorageError(f"{file} could not be written: {error}") from error
        self.parts.append((file, folder))


class FileWriter(SinkWriter):
    """Buffers the records of the open transaction, and writes them early if they would take too much memory."""

    def __init__(self, layout: FileLayout, context: WriterContext) -> None:
        self._layout = layout
        self._context = context
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._chunks: list[_Chunk] = []
        self._files = 0
        self._thread: ThreadPoolExecutor | None = None
        self._early: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch. A full buffer is written to a file on another thread. The call blocks only if a buffer is
        full while the file of the last full buffer is still being written."""
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= BUFFER_BYTES:
            chunk = self._cut()
            self._wait()
            if self._thread is None:
                self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-files")
            self._early = self._thread.submit(chunk.write)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        """Close the transaction. The returned work makes the files of the transaction durable and chooses their final
        names."""
        if self._batches:
            self._cut()
        chunks, early = self._chunks, self._early
        self._chunks, self._early = [], None

        def work() -> list[bytes]:
            if early is not None:
                # This waits, and ignores an error: a file that could not be written is tried again below.
                early.exception()
            for chunk in chunks:
                chunk.write()
            if chunks:
                sync_folder(self._layout.staging)
            return self._prepared(checkpoint, chunks)

        return work

    def close(self) -> None:
        """Abandon the open transaction. The files of the transaction are removed by the next attempt, or when the job
        ends."""
        self._batches, self._chunks = [], []
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None

    def _cut(self) -> _Chunk:
        context = self._context
        name = f"s{context.subtask}-p{context.parallelism}-e{context.epoch}-{self._files}"
        chunk = _Chunk(self._layout, name, self._batches)
        self._files += 1
        self._chunks.append(chunk)
        self._batches, self._bytes = [], 0
        return chunk

    def _wait(self) -> None:
        if self._early is not None:
            self._early.result()

    def _prepared(self, checkpoint: int, chunks: Sequence[_Chunk]) -> list[bytes]:
        folder, ending = self._layout.folder, self._layout.format.ending
        part = f"part-{file_name_of(self._context.job)}-{self._context.subtask}-{checkpoint}"
        found: list[bytes] = []
        number = 0
        for file, place in (written for chunk in chunks for written in chunk.parts):
            # A job that is restored from an older checkpoint counts the same checkpoint numbers again. Files that have
            # these numbers in their names must stay.
            while (folder / (final := f"{place}{part}-{number}{ending}")).exists():
                number += 1
            number += 1
            staged = str(file.relative_to(folder))
            found.append(msgspec.msgpack.encode(PreparedFile(staged, final, str(folder))))
        return found
