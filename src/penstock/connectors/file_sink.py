"""Sinks of files that appear when their checkpoint completes: what is common to all formats.

Records are buffered, and written off the loop to files below `_penstock/`. Spark and other readers of the folder ignore
`_penstock/`. A commit renames the files into the folder itself, so that readers see whole files of completed
checkpoints, and nothing else.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.api.connector import Footprint, Sink, SinkWriter, WriterContext
from penstock.connectors.file_writing import FileFormat, FileLayout, FileWriter
from penstock.connectors.partitions import check_partitions
from penstock.connectors.prepared_files import STAGING, file_name_of, publish_files, staged_before, staged_file
from penstock.core.errors import StorageError, UsageError
from penstock.descents import create_file, make_folders, opened_folder, remove_tree, unlink


def as_columns(given: str | Sequence[str]) -> tuple[str, ...]:
    """The columns to partition by. Raises `UsageError` if a column is given twice, or is no text."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    for column in columns:
        if not isinstance(column, str) or columns.count(column) > 1:
            raise UsageError(f"partition_by is {given!r}", hint="give names of columns, each once")
    return columns


def local_path(path: str | Path) -> str:
    """The absolute path of a local file or folder. Raises `UsageError` for an address of another file system."""
    text = str(path)
    if "://" in text:
        scheme, rest = text.split("://", 1)
        if scheme != "file":
            raise UsageError(f"path {text!r} is not a local path", hint="use a folder that every slot can reach")
        text = rest
    return str(Path(text).absolute())


@dataclass(frozen=True, kw_only=True, eq=False)
class FileSink(Sink):
    """A folder of files that appear when their checkpoint completes. Two sinks are equal if they have the same folder,
    whatever their formats are: readers could not tell the files of two sinks in one folder apart, and each sink would
    remove files that the other sink prepared."""

    path: str
    partition_by: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return self.path == other.path if isinstance(other, FileSink) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def saved_as(self) -> str:
        """The form of the committables."""
        return "a sink of files"

    @property
    @abstractmethod
    def format(self) -> FileFormat:
        """What the files are."""

    @property
    def name(self) -> str:
        """The name of the step, unless the user names the step."""
        return self.format.ending.split(".")[1]

    def check(self, schema: pa.Schema) -> None:
        """Raise `UsageError` if Spark could not read a column back, or if the records cannot be partitioned."""
        check_partitions(schema, self.partition_by)
        self.format.check(pa.schema([column for column in schema if column.name not in self.partition_by]))

    @property
    def footprint(self) -> Footprint:
        """The folder that results are written to."""
        return Footprint(written=self.path)

    def start(self, job: str) -> None:
        """Make the folder. Raises `UsageError` if no file can be written there."""
        folder = Path(self.path)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"output {self.path!r} is a file, and a folder is needed")
        names = self._staging(job).relative_to(folder).parts
        try:
            folder.mkdir(parents=True, exist_ok=True)
            make_folders(folder, names)
            with opened_folder(folder, names) as staging:
                os.close(create_file(staging, ".probe"))
                unlink(staging, ".probe")
        except OSError as error:
            raise UsageError(
                f"output {self.path!r} cannot be written: {error.strerror}",
                hint="choose another path, or give this user the right to write there",
            ) from error

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer for one subtask."""
        layout = FileLayout(
            folder=Path(self.path),
            staging=self._staging(context.job),
            format=self.format,
            partition_by=self.partition_by,
        )
        return FileWriter(layout, context)

    def commit(self, committables: Sequence[bytes]) -> None:
        """Rename prepared files to their final names. A file that has its final name already stays as it is."""
        publish_files(Path(self.path), committables)

    def clean(self, context: WriterContext, keep: Sequence[bytes]) -> None:
        """Remove the files that this subtask wrote in earlier attempts, except for the files that are to be
        committed."""
        kept = {staged_file(part) for part in keep}
        for file in self.left_by_earlier(context):
            if str(file.relative_to(self.path)) not in kept:
                file.unlink(missing_ok=True)

    def left_by_earlier(self, context: WriterContext) -> list[Path]:
        """The files that this subtask wrote in earlier attempts and did not commit; files that a checkpoint promises to
        commit are included."""
        own = (context.subtask, context.parallelism)
        # A change of the parallelism deals the prepared files out anew. A file that a subtask with this number wrote at
        # another parallelism may be another subtask's to commit, and must stay.
        staged = staged_before(Path(self.path), self._staging(context.job), context.epoch)
        return [file for file, writer in staged if writer == own]

    def end(self, job: str) -> None:
        """Remove the folder of files that were not committed."""
        staging, folder = self._staging(job), Path(self.path)
        try:
            with opened_folder(folder, staging.relative_to(folder).parts[:-1]) as above:
                remove_tree(above, staging.name)
            with opened_folder(folder, ()) as inside, suppress(OSError):
                # The folder is not empty, and stays, if another job has files there.
                os.rmdir(STAGING, dir_fd=inside)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise StorageError(f"{staging} could not be deleted: {error.strerror}") from error

    def _staging(self, job: str) -> Path:
        return Path(self.path) / STAGING / file_name_of(job)
