"""Small records with a checksum: a reader gets exactly the record that was written, or an error that says what is wrong
with the file.

    4 bytes   kind of the record
    2 bytes   version of the format
    8 bytes   number of data bytes
    8 bytes   xxh3-64 of the data
    …         the data

Numbers are unsigned, most significant byte first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import xxhash

from penstock.core.errors import CorruptFile

T = TypeVar("T")

_HEADER = struct.Struct(">4sHQQ")
LARGEST_RECORD_BYTES = 1024 * 1024 * 1024
"""More than any record has: a larger file is not read."""


class RecordFormat(Generic[T]):
    """One kind of record: `kind` is a struct, written as msgpack. Nothing in a record is pickled."""

    def __init__(
        self,
        magic: bytes,
        version: int,
        kind: type[T],
        *,
        what: str,
        hint: str,
        check: Callable[[memoryview], None] = lambda _: None,
    ) -> None:
        """`what` and `hint` are for error texts. `check` looks at the data of a file before the data is decoded, and
        raises `ValueError` or `MsgspecError`."""
        self._magic = magic
        self._version = version
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._check = check
        self._what = what
        self._hint = hint

    def encode(self, record: T) -> bytes:
        """The content of the file."""
        data = msgspec.msgpack.encode(record)
        return _HEADER.pack(self._magic, self._version, len(data), xxhash.xxh3_64_intdigest(data)) + data

    def decode(self, path: str, content: bytes) -> T:
        """The record in the file at `path`. Raises `CorruptFile` if the file is cut, changed, foreign or of a newer
        format."""
        if len(content) < _HEADER.size:
            raise self._corrupt(f"{path} is cut: it has only {len(content)} bytes, less than its header")
        magic, version, size, checksum = _HEADER.unpack_from(content)
        data = memoryview(content)[_HEADER.size :]
        if magic != self._magic:
            raise self._corrupt(f"{path} is not {self._what}")
        if version > self._version:
            raise CorruptFile(
                f"{path} has format version {version}; this program reads up to {self._version}",
                hint="use a newer penstock",
            )
        if len(data) != size:
            raise self._corrupt(f"{path} has {len(data)} bytes of data instead of {size}")
        if xxhash.xxh3_64_intdigest(data) != checksum:
            raise self._corrupt(f"{path} was changed: its checksum does not fit")
        try:
            self._check(data)
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self._corrupt(f"{path} cannot be read: {error}") from error

    def _corrupt(self, text: str) -> CorruptFile:
        return CorruptFile(text, hint=self._hint)
