"""Results that are handed to a function on the driver, as one DataFrame per checkpoint.

Subtasks prepare Parquet files. The committer reads exactly the files of one barrier as a DataFrame and calls the
function. The files are deleted when the function has returned, and not before:

    files written ──► promised by a completed checkpoint ──► function called ──► returned-<id> written ──► files deleted
    ──► returned-<id> deleted

So if a call is due again after a failure, its files exist if the function has not returned, and do not exist if the
function has returned. This also holds for another driver that takes the job over: the folder is in the record of how
the job began. The hold is looked at right before the call, and again before the files are deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.api.connector import Committer, Footprint, Sink, SinkWriter, WriterContext
from penstock.connectors.parquet import ParquetSink
from penstock.connectors.prepared_files import is_staged, staged_before, staged_file
from penstock.core.errors import StorageError
from penstock.core.recovery import layout
from penstock.descents import create_file, opened_folder, remove_tree, unlink
from penstock.spark.active import make_active
from penstock.spark.result_places import ResultFolder, folder_at, folder_of


class StagedResults(ParquetSink):
    """The sink in the slots: Parquet files that stay where they were prepared."""

    @property
    def saved_as(self) -> str:
        """The form of the committables."""
        return "the results of for_each_checkpoint"

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer that names files by their full paths: another job, in another folder, may have to commit them."""
        return _FullPaths(Path(self.path), super().writer(context))

    def _staging(self, job: str) -> Path:  # noqa: ARG002  # the folder is the job's own
        return Path(self.path)


class _FullPaths(SinkWriter):
    def __init__(self, folder: Path, writer: SinkWriter) -> None:
        self._folder = folder
        self._writer = writer

    def write(self, batch: Any) -> None:
        self._writer.write(batch)

    def before_barrier(self) -> None:
        self._writer.before_barrier()

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        work = self._writer.prepare(checkpoint)
        return lambda: [str(self._folder / staged_file(part)).encode() for part in work()]

    def close(self) -> None:
        self._writer.close()


class LandedResults(StagedResults):
    """The sink on the driver, whose committer calls the function of the user. Slots get a `StagedResults`, which only
    writes files."""

    def __init__(self, path: Path, session: Any, function: Callable[[Any, int], Any]) -> None:
        super().__init__(path=str(path))
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_function", function)

    def __reduce__(self) -> tuple[Callable[..., Sink], tuple[Any, ...]]:
        return _staged, (self.path,)

    @property
    def footprint(self) -> Footprint:
        """The folder of the files."""
        return Footprint(place=self.path, in_landing=True, shares_landing=True, written=self.path)

    def committer(self) -> Committer:
        """The committer, which calls the function."""
        return _Calls(Path(self.path), self._session, self._function)  # type: ignore[attr-defined]

    def end(self, job: str) -> None:
        """Nothing is left to do: the committer has removed the folder when it was closed."""


def _staged(path: str) -> Sink:
    return StagedResults(path=path)


class _Calls(Committer):
    """Calls the function for each barrier. A call that has not returned is made again after a failure."""

    def __init__(self, folder: Path, session: Any, function: Callable[[Any, int], Any]) -> None:
        self._folder = folder
        self._session = session
        self._function = function

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Call the function with the records of these files, unless a call with these files has returned."""
        # The files may lie in the folder of another job, if this job was started from a snapshot of that job.
        folder, names = folder_of([part.decode(errors="replace") for part in committables], is_staged)
        returned = f"returned-{checkpoint}"
        known = set(_files_in(folder))
        there = [name for name in names if name in known]
        if there and returned not in known:
            if len(there) < len(names):
                missing = next(name for name in names if name not in known)
                raise StorageError(
                    f"{len(names) - len(there)} of {len(names)} files of checkpoint {checkpoint} are missing, "
                    f"the first of them {folder.path / missing}",
                    hint="the files were deleted by hand; restore from a newer snapshot",
                )
            make_active(self._session)
            frame = self._session.read.parquet(*((folder.path / name).as_uri() for name in names))
            self.hold.check()
            self._function(frame, checkpoint)
            self.hold.check_unless_unknown()
            with opened_folder(Path(folder.landing), folder.names) as inside:
                os.close(create_file(inside, returned))
                os.fsync(inside)
        self.hold.check()
        if there or returned in known:
            with opened_folder(Path(folder.landing), folder.names) as inside:
                for name in (*there, returned):
                    unlink(inside, name)

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:  # noqa: ARG002  # the folder is the job's own
        """Remove the files that earlier attempts wrote, except for files that will be committed."""
        kept = {Path(part.decode()).name for part in keep}
        for file, _ in staged_before(Path(folder_at(self._folder).landing), self._folder, epoch):
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def close(self, *, owes: bool) -> None:
        """Remove the folder of the files, unless another job may have to commit files that are in the folder."""
        if not owes:
            folder = folder_at(self._folder)
            with contextlib.suppress(OSError), opened_folder(Path(folder.landing), folder.names[:-1]) as above:
                remove_tree(above, folder.names[-1])
            remove_empty_parents(self._folder)


def remove_empty_parents(folder: Path) -> None:
    """Remove the folders above a folder of results, up to the folder for the results of all jobs, as far as they are
    empty. Other sinks and jobs may have files there."""
    with contextlib.suppress(OSError):
        for parent in folder.parents:
            parent.rmdir()
            if parent.name == layout.RESULTS:
                return


def _files_in(folder: ResultFolder) -> list[str]:
    """The names of the files in a folder, without links; empty if there is no such folder. Raises `StorageError`."""
    try:
        with opened_folder(Path(folder.landing), folder.names) as inside, os.scandir(inside) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{folder.path} cannot be looked at: {error.strerror}") from error
