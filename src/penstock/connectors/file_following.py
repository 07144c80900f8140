"""Files that appear in a folder while the job runs.

The enumerator's position is the set of files that are known: a digest of each name, with the size of the file. Times
are not looked at, but for the order in which files are read: a file that appears with an old time is read like any
other file.

The bound: 24 bytes for each file, in every checkpoint. A name is forgotten when there are more than `KNOWN_FILES` names
and the file of the name is gone. So the set is never larger than `KNOWN_FILES`, or than the number of files in the
folder. Until the name is forgotten, another file of the same name is taken for the first file: the file is not read,
and is refused if its size is another one. Nothing is forgotten while no known file is found: then most probably the
folder is not mounted.
"""

from __future__ import annotations

import msgspec
import xxhash

from penstock.api.connector import Found, SplitEnumerator
from penstock.connectors.file_listing import FileSet, Listed
from penstock.connectors.file_reading import FileSplit
from penstock.core.errors import StorageError

KNOWN_FILES = 100_000
"""Names of files that are gone are remembered up to this number of names."""
LOOK_EVERY_MS = 500
FOUND_AT_ONCE = 1_000
"""How many files are given out with one look."""
UNREAD_FILES = 200
"""The enumerator gives out more files only while a subtask has fewer files than this left to read."""

_DIGEST_BYTES = 16
_SIZE_BYTES = 8
_ENTRY_BYTES = _DIGEST_BYTES + _SIZE_BYTES


class FileEnumerator(SplitEnumerator):
    """Finds the files of a folder that are not known yet."""

    unread = UNREAD_FILES

    def __init__(self, files: FileSet) -> None:
        self._files = files

    def discover(self, position: bytes | None) -> Found:
        """The files that are there and not known. Raises `StorageError` if a known file has another size."""
        known = decoded(position)
        listed = self._files.listed()
        present = {_digest(file.name): file for file in listed}
        for digest, file in present.items():
            if known.get(digest, file.size) != file.size:
                raise _changed(self._files.shown(file.name), file, known[digest])
        found = [file for digest, file in present.items() if digest not in known]
        given = found[:FOUND_AT_ONCE]
        known |= {_digest(file.name): file.size for file in given}
        gone = [digest for digest in known if digest not in present]
        if len(known) > KNOWN_FILES and len(gone) < len(known) - len(given):
            for digest in gone:
                del known[digest]
        is_behind = len(given) < len(found)
        return Found(
            position=encoded(known),
            splits=[msgspec.msgpack.encode(FileSplit(file.name, file.size)) for file in given],
            wait_ms=1 if is_behind else LOOK_EVERY_MS,
            catching_up=is_behind,
        )


def encoded(known: dict[bytes, int]) -> bytes:
    """The known files as a position: the same set gives the same bytes."""
    return b"".join(digest + size.to_bytes(_SIZE_BYTES, "big") for digest, size in sorted(known.items()))


def decoded(position: bytes | None) -> dict[bytes, int]:
    """The known files of a position, as digests of names with sizes."""
    given = position or b""
    entries = (given[start : start + _ENTRY_BYTES] for start in range(0, len(given), _ENTRY_BYTES))
    return {entry[:_DIGEST_BYTES]: int.from_bytes(entry[_DIGEST_BYTES:], "big") for entry in entries}


def _digest(name: str) -> bytes:
    return xxhash.xxh3_128_digest(name.encode(errors="surrogateescape"))


def _changed(shown: str, file: Listed, size: int) -> StorageError:
    return StorageError(
        f"{shown} has changed since it was found: the file has {file.size} bytes, and had {size} bytes",
        hint="files that are followed must be complete when they appear, and stay as they are: write a file under "
        "another name, such as one that ends with .tmp, and rename the file; give each file a name of its own",
    )
