"""Which files a path stands for: a file, the files of a folder and its sub-folders, or the files that a pattern names.

Splits and positions name a file relative to the folder in which the source looks. A name from a snapshot is believed
only if the source could have listed it: anybody may have written the snapshot, and no name may lead out of the folder.
"""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow.fs as pafs

from penstock.core.errors import CorruptFile, StorageError, UsageError

HIDDEN = (".", "_")
"""Names that begin so are ignored: by convention they are markers, checksums and files that are being written."""
TEMPORARY = (".tmp", ".part", "._COPYING_", ".crdownload", "~")
"""Names that end so are ignored: by convention they are files that are being written."""

_EVERYTHING = ("**",)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A file that was found."""

    name: str
    """Relative to the folder in which the source looks."""
    size: int
    modified_ns: int


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """The files below a folder whose names fit a pattern."""

    root: str
    """The folder: an absolute path, or a URI."""
    pattern: tuple[str, ...]
    """One part for each folder and for the file; `**` stands for any number of folders."""
    is_file: bool = False
    """Whether the user named a single file, which may have any name."""

    def listed(self) -> list[Listed]:
        """The files that are there, oldest first. Raises `StorageError` if the folder cannot be listed."""
        system, base = _opened(self.root)
        selector = pafs.FileSelector(base, recursive=len(self.pattern) > 1 or self.pattern == _EVERYTHING)
        try:
            found = system.get_file_info(selector)
        except OSError as error:
            raise StorageError(f"{self.root} cannot be listed: {error}") from error
        start = len(base.rstrip("/")) + 1
        files = [
            Listed(name=info.path[start:], size=info.size, modified_ns=info.mtime_ns or 0)
            for info in found
            if info.type is pafs.FileType.File and self._has(info.path[start:])
        ]
        return sorted(files, key=lambda file: (file.modified_ns, file.name))

    def system(self) -> pafs.FileSystem:
        """The file system that the files are in."""
        return _opened(self.root)[0]

    def path_of(self, name: str) -> str:
        """The path of a file for `system`. Raises `CorruptFile` if the source cannot have listed such a file."""
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts) or not self._has(name):
            raise CorruptFile(
                f"the snapshot says that the file {name!r} in {self.root} is to be read, and no such file can have "
                "been found there",
                hint="the path of the source was changed since the snapshot, or the snapshot was changed in order to "
                "read other files: give the path as it was, or do not use the snapshot",
            )
        return f"{_opened(self.root)[1].rstrip('/')}/{name}"

    def shown(self, name: str) -> str:
        """The path of a file, for people."""
        return f"{self.root.partition('?')[0].rstrip('/')}/{name}"

    def _has(self, name: str) -> bool:
        parts = name.split("/")
        return (self.is_file or not any(map(_is_ignored, parts))) and _fits(parts, self.pattern)


def file_set(path: str | os.PathLike[str], *, may_be_missing: bool) -> FileSet:
    """The files that a path, a pattern or a URI stands for. Raises `UsageError` if there is no such file or folder;
    with `may_be_missing` a folder of object storage, which exists only together with its files, may be missing."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"the path of ps.files is {text!r}", hint="give the path of a folder or a file, or a pattern")
    is_uri = "://" in text
    # In a URI a question mark separates the options, and cannot be part of a pattern.
    address, mark, options = text.partition("?") if is_uri else (str(Path(text).expanduser().absolute()), "", "")
    parts = address.rstrip("/").split("/")
    magic = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if magic is not None and (is_uri or _kind(address) is pafs.FileType.NotFound):
        root = "/".join(parts[:magic]) or "/"
        return FileSet(root=f"{root}{mark}{options}", pattern=tuple(parts[magic:]))
    kind = _kind(f"{address}{mark}{options}")
    if kind is pafs.FileType.File:
        root = "/".join(parts[:-1]) or "/"
        return FileSet(root=f"{root}{mark}{options}", pattern=(glob.escape(parts[-1]),), is_file=True)
    is_local = not is_uri or address.startswith("file:")
    if kind is not pafs.FileType.Directory and (is_local or not may_be_missing):
        raise UsageError(f"path {text!r} does not exist", hint="ps.files takes a folder, a file, or a pattern with *")
    return FileSet(root=f"{address}{mark}{options}", pattern=_EVERYTHING)


def _kind(address: str) -> pafs.FileType:
    system, base = _opened(address)
    try:
        return system.get_file_info(base).type
    except OSError as error:
        raise UsageError(f"path {address!r} cannot be looked at: {error}") from error


@functools.lru_cache(maxsize=64)
def _opened(address: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in address:
        return pafs.LocalFileSystem(), address
    try:
        return pafs.FileSystem.from_uri(address)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"path {address!r} is no address of a file system that can be read: {error}",
            hint="give a path, or a URI such as s3://bucket/folder",
        ) from error


def _is_ignored(part: str) -> bool:
    return part.startswith(HIDDEN) or part.endswith(TEMPORARY)


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        # A pattern that ends with `**` stands for all files below.
        rest = pattern[1:] or ("*",)
        return any(_fits(parts[start:], rest) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
