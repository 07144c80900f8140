"""Checks that the blocks of a RocksDB table file are no larger in memory than this package can have made them.

This package compresses blocks with LZ4 only. A block of LZ4 unpacks to at most `MOST_UNPACKED` times its size. Other
methods have no such limit: 90 KB of Zstandard become gigabytes. RocksDB unpacks a block by whatever method the block
names, and it unpacks a whole block to read a single entry. So `check_table` walks over the blocks of a file before
RocksDB opens the file, and raises `ValueError` if the file has blocks that this package never writes.

    data blocks, filter, properties, deleted ranges   any number of blocks
    metaindex                                         names and places of the blocks that are not data
    index                                             places of the data blocks
    footer, 53 bytes                                  places of metaindex and index, the version, the magic number

Behind each block are 5 bytes: the method of compression, and a checksum. A compressed block begins with its unpacked
size. A place is the offset of a block and its size without these 5 bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

MOST_UNPACKED = 255
"""How many bytes one byte of LZ4 can stand for."""
_MORE_IN_KEYS = 4
_ALWAYS_ALLOWED = 64 * 1024 * 1024

_FOOTER_BYTES, _TRAILER_BYTES = 53, 5
_VERSION_AND_MAGIC = struct.Struct("<IQ")
_MAGIC = 0x88E241B785F4CFF7
_VERSION = 5
_PLAIN, _LZ4 = 0, 4
_U32 = struct.Struct("<I")

_PROPERTIES = b"rocksdb.properties"
_DELETED = b"rocksdb.range_del"
_BESIDES_DATA = (_PROPERTIES, b"fullfilter.rocksdb.BuiltinBloomFilter", _DELETED)
_FORMAT_OF_INDEX = {
    b"rocksdb.block.based.table.index.type": _U32.pack(0),
    b"rocksdb.index.value.is.delta.encoded": b"\x01",
}
"""The properties that say how an index is to be read. With other values RocksDB would find other blocks than this
check."""


def most_entry_bytes(stored_bytes: int) -> int:
    """How many bytes the entries of table files of this size can have, in total. LZ4 sets the limit for values. Keys in
    a block are also written without the bytes that they have in common, so the limit for both is a few times higher."""
    return _ALWAYS_ALLOWED + _MORE_IN_KEYS * MOST_UNPACKED * stored_bytes


class _Place(NamedTuple):
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size + _TRAILER_BYTES


def check_table(path: Path) -> None:
    """Raise `ValueError` if the file is no table file, or has blocks that this package never writes."""
    with path.open("rb") as file:
        if path.stat().st_size < _FOOTER_BYTES:
            raise ValueError("it is too short for a table file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                _Table(data).check()
            except (struct.error, IndexError) as error:
                raise ValueError(f"a block is not complete: {error}") from error


class _Table:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data

    def check(self) -> None:
        data = self._data
        footer = len(data) - _FOOTER_BYTES
        version, magic = _VERSION_AND_MAGIC.unpack_from(data, len(data) - _VERSION_AND_MAGIC.size)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"its footer has format version {version} and magic number {magic:#x}")
        metaindex, at = _place(data, footer + 1)
        index, _ = _place(data, at)
        besides = {name: _place(value, 0)[0] for name, value in self._entries(metaindex)}
        if unknown := [name for name in besides if name not in _BESIDES_DATA]:
            raise ValueError(f"it has a block named {unknown[0]!r}")
        self._check_properties(besides)
        for place in besides.values():
            self._unpacked_bytes(place)
        for _ in self._entries(besides[_DELETED]) if _DELETED in besides else ():
            pass
        end = 0
        for place in _data_places(self._content(index)):
            # Each block once: otherwise few blocks could be unpacked any number of times.
            if place.offset < end:
                raise ValueError(f"its index names the block at byte {place.offset} out of order")
            self._unpacked_bytes(place)
            end = place.end

    def _check_properties(self, besides: dict[bytes, _Place]) -> None:
        if _PROPERTIES not in besides:
            raise ValueError("it has no properties")
        entries = list(self._entries(besides[_PROPERTIES]))
        found = dict(entries)
        if len(found) != len(entries):
            raise ValueError("it has two properties of one name")
        for name, expected in _FORMAT_OF_INDEX.items():
            if found.get(name) != expected:
                raise ValueError(f"its property {name.decode()} is {found.get(name)!r}")

    def _unpacked_bytes(self, place: _Place) -> int:
        """How many bytes a block has when it is unpacked."""
        if place.end > len(self._data) - _FOOTER_BYTES:
            raise ValueError(f"the block at byte {place.offset} lies outside of the file")
        method = self._data[place.offset + place.size]
        if method == _PLAIN:
            return place.size
        if method != _LZ4:
            raise ValueError(f"the block at byte {place.offset} is compressed by method {method}, and not by LZ4")
        size, _ = _number(self._data, place.offset)
        if size > MOST_UNPACKED * place.size:
            raise ValueError(
                f"the block at byte {place.offset} has {place.size} bytes and says that it unpacks to {size} bytes; "
                f"at most {MOST_UNPACKED * place.size} bytes are possible"
            )
        return size

    def _entries(self, place: _Place) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of a block that RocksDB reads as a whole. Raises `ValueError` if all keys and values
        together are too large: keys with many bytes in common take few bytes in a block."""
        left = MOST_UNPACKED * place.size
        for key, value in _entries(self._content(place)):
            left -= len(key) + len(value)
            if left < 0:
                raise ValueError(
                    f"the block at byte {place.offset} has {place.size} bytes, and its entries have more than "
                    f"{MOST_UNPACKED * place.size} bytes"
                )
            yield key, value

    def _content(self, place: _Place) -> bytes:
        """A block, unpacked."""
        size = self._unpacked_bytes(place)
        stored = self._data[place.offset : place.offset + place.size]
        if self._data[place.offset + place.size] == _PLAIN:
            return stored
        _, start = _number(stored, 0)
        try:
            return bytes(pa.Codec("lz4_raw").decompress(stored[start:], size, asbytes=True))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"the block at byte {place.offset} cannot be unpacked: {error}") from error


# --- what a block holds ----------------------------------------------------------------------------------------------


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block. A key is written without the bytes that it has in common with the key before."""
    end, starts = _restarts(block)
    at, key = 0, b""
    while at < end:
        starts.pop(at, None)
        common, at = _number(block, at)
        own, at = _number(block, at)
        length, at = _number(block, at)
        if common > len(key) or at + own + length > end:
            raise ValueError("an entry lies outside of its block")
        key = key[:common] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length
    _check_restarts(starts)


def _data_places(block: bytes) -> Iterator[_Place]:
    """The places in an index. An entry whose key has bytes in common with the key before says only how much larger its
    block is than the block before. The keys are skipped."""
    end, starts = _restarts(block)
    at, place = 0, _Place(0, 0)
    while at < end:
        starts.pop(at, None)
        common, at = _number(block, at)
        own, at = _number(block, at)
        at += own
        if common == 0:
            place, at = _place(block, at)
        else:
            change, at = _number(block, at)
            place = _Place(place.end, place.size + (change >> 1 ^ -(change & 1)))
        if at > end or place.size < 0:
            raise ValueError("an entry lies outside of its block")
        yield place
    _check_restarts(starts)


def _restarts(block: bytes) -> tuple[int, dict[int, None]]:
    """Where the entries of a block end, and the offsets of entries from which a search in the block may begin."""
    (count,) = _U32.unpack_from(block, len(block) - _U32.size)
    end = len(block) - _U32.size * (count + 1)
    if end < 0:
        raise ValueError("a block has more places to begin than bytes")
    return end, dict.fromkeys(struct.unpack_from(f"<{count}I", block, end))


def _check_restarts(left: dict[int, None]) -> None:
    # A search that begins inside of an entry would read other places than the places that were checked. The block of an
    # index without entries has one place to begin, which is 0.
    if any(left):
        raise ValueError(f"a search can begin at byte {max(left)} of a block, where no entry begins")


def _place(data: bytes | mmap.mmap, at: int) -> tuple[_Place, int]:
    offset, at = _number(data, at)
    size, at = _number(data, at)
    return _Place(offset, size), at


def _number(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, 7 bits in each byte, and the offset behind the number."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has too many bytes")
