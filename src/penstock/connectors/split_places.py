"""Which files the splits of a snapshot may name.

Anybody may have written a snapshot. So a file that a split names is read only if the source could have made the split:
the file is one of the files of the source, or lies in a folder of the source. Two paths count as equal if they lead to
the same folder, whatever links and `..` lead there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from penstock.core.errors import CorruptFile


class SplitPlaces(Protocol):
    """The files that splits of a source may name."""

    def check(self, file: str) -> None:
        """Raise `CorruptFile` unless a split of the source can name this file, by its full path."""
        ...


@dataclass(frozen=True, kw_only=True)
class GivenPlaces:
    """The files that a program names, and the data files directly in the folders that a program names."""

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def check(self, file: str) -> None:
        """Raise `CorruptFile` unless `file` is such a file."""
        folder, name = located(file)
        if (folder, name) not in self._files and not (folder in self._folders and is_data_file(name)):
            raise crafted(file, f"the source reads only {', '.join((*self.folders, *self.files)) or 'no file'}")

    @cached_property
    def _files(self) -> frozenset[tuple[str, str]]:
        return frozenset(map(located, self.files))

    @cached_property
    def _folders(self) -> frozenset[str]:
        return frozenset(map(os.path.realpath, self.folders))


@dataclass(frozen=True, kw_only=True)
class BelowFolder:
    """The files below one folder, however deep. No link below the folder is followed."""

    folder: str

    def check(self, file: str) -> None:
        """Raise `CorruptFile` unless `file` is such a file."""
        if not leads_below(self.folder, file):
            raise crafted(file, f"the source reads only files below {self.folder}")


def is_data_file(name: str) -> bool:
    """Whether a file of a folder is read. By convention, files whose names begin with `_` or `.` are hidden: markers,
    checksums, uncommitted files."""
    return name.endswith(".parquet") and name[0] not in "_."


def located(file: str) -> tuple[str, str]:
    """The folder of a file, without links, and the name of the file. Raises `CorruptFile` if `file` is not the full
    path of a file."""
    folder, _, name = file.rpartition("/")
    if not file.startswith("/") or name in ("", ".", "..") or "\0" in file:
        raise crafted(file, "this is not the full path of a file")
    return os.path.realpath(folder or "/"), name


def leads_below(folder: str, file: str) -> bool:
    """Whether a path begins with the path of a folder, and leads to a file below that folder through no link."""
    below = file.removeprefix(f"{folder.rstrip('/')}/")
    if below == file or "\0" in file:
        return False
    return os.path.realpath(file) == f"{os.path.realpath(folder)}/{below}"


def crafted(file: str, why: str) -> CorruptFile:
    """The error for a split that names a file which the source cannot have given out."""
    return CorruptFile(
        f"the snapshot says that the file {file!r} is to be read, and {why}",
        hint="the path of the source was changed since the snapshot, or the snapshot was changed in order to read "
        "other files: give the path as it was, or do not use the snapshot",
    )
