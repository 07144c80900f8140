"""Results that are handed to a function on the driver, as one DataFrame per checkpoint.

Subtasks prepare Parquet files; the committer reads exactly those of one barrier as a DataFrame and calls the function.
A file goes when the function has returned, and not before:

    written ──► promised by a completed checkpoint ──► function called ──► returned-<id> written ──► files gone, then it

So a call that is due again after a failure finds its files if the function has not returned, and none if it has. That
holds for another driver, too, that takes the job over: it finds the folder in the record of how the job began. Whether
this driver still has the job is looked at right before the call, and again before the files go.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.api.connector import Committer, Sink, SinkWriter, WriterContext
from penstock.connectors.parquet import ParquetSink, staged_before, staged_file
from penstock.core.errors import StorageError
from penstock.core.recovery import layout
from penstock.spark.active import make_active


class StagedResults(ParquetSink):
    """The part in the slots: Parquet files that stay where they were prepared."""

    @property
    def commits_on_driver(self) -> bool:
        """Always."""
        return True

    def writer(self, context: WriterContext) -> SinkWriter:
        """A writer that names files by their full paths: another job may have to commit them."""
        return _FullPaths(Path(self.path), super().writer(context))

    def _staging(self, job: str) -> Path:  # noqa: ARG002  # the folder is the job's own
        return Path(self.path)


class _FullPaths(SinkWriter):
    def __init__(self, folder: Path, writer: SinkWriter) -> None:
        self._folder = folder
        self._writer = writer

    def write(self, batch: Any) -> None:
        self._writer.write(batch)

    def prepare(self, checkpoint: int) -> Callable[[], list[bytes]]:
        work = self._writer.prepare(checkpoint)
        return lambda: [str(self._folder / staged_file(part)).encode() for part in work()]

    def close(self) -> None:
        self._writer.close()


class LandedResults(StagedResults):
    """The sink as the driver has it. In slots there is only the part that writes files."""

    def __init__(self, path: Path, session: Any, function: Callable[[Any, int], Any]) -> None:
        super().__init__(path=str(path))
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_function", function)

    def __reduce__(self) -> tuple[Callable[..., Sink], tuple[Any, ...]]:
        return _staged, (self.path,)

    def committer(self) -> Committer:
        """Calls the function."""
        return _Calls(Path(self.path), self._session, self._function)  # type: ignore[attr-defined]

    def end(self, job: str) -> None:
        """Nothing is left to do: the committer has been closed."""


def _staged(path: str) -> Sink:
    return StagedResults(path=path)


class _Calls(Committer):
    """Calls the function once per barrier, and again until it has returned."""

    def __init__(self, folder: Path, session: Any, function: Callable[[Any, int], Any]) -> None:
        self._folder = folder
        self._session = session
        self._function = function

    def commit(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        """Call the function with the records of these files, unless it has returned from that already."""
        files = [Path(part.decode()) for part in committables]
        there = [file for file in files if file.exists()]
        returned = files[0].parent / f"returned-{checkpoint}"
        if there and not returned.exists():
            if len(there) < len(files):
                raise StorageError(
                    f"{len(files) - len(there)} of {len(files)} files of checkpoint {checkpoint} are missing, "
                    f"the first of them {next(file for file in files if file not in there)}",
                    hint="they were deleted by hand; restore from a newer snapshot",
                )
            make_active(self._session)
            frame = self._session.read.parquet(*(file.as_uri() for file in files))
            self.hold.check()
            self._function(frame, checkpoint)
            self.hold.check_unless_unknown()
            _touch_durably(returned)
        self.hold.check()
        for file in there:
            file.unlink(missing_ok=True)
        returned.unlink(missing_ok=True)

    def clean_up(self, job: str, epoch: int, keep: Sequence[bytes]) -> None:  # noqa: ARG002  # the folder is the job's own
        """Remove files that earlier attempts wrote and nobody will commit."""
        kept = {Path(part.decode()).name for part in keep}
        for file, _ in staged_before(self._folder, epoch):
            if file.name not in kept:
                file.unlink(missing_ok=True)

    def close(self, *, owes: bool) -> None:
        """Remove the folder, unless another job may have to go on with what is in it."""
        if not owes:
            shutil.rmtree(self._folder, ignore_errors=True)
            remove_empty_parents(self._folder)


def remove_empty_parents(folder: Path) -> None:
    """Remove the folders that results lie in, up to that of all jobs. Other sinks and jobs may have something there."""
    with contextlib.suppress(OSError):
        for parent in folder.parents:
            parent.rmdir()
            if parent.name == layout.RESULTS:
                return


def _touch_durably(path: Path) -> None:
    path.touch()
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
