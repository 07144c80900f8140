"""Checks that Arrow data from a snapshot is no larger in memory than in its file.

This package never writes state compressed, nor with types in which a few bytes stand for many values (dictionaries,
runs, views, values without bytes). A file with such data was not written by this package, and might be a bomb: 25 KB
that become gigabytes. So the messages of an Arrow file are checked before the first message is decoded: `check_file`,
`check_stream`, `check_batch` and `check_types` raise `ValueError`. Columns that share bytes of the file are found by
`check_size`, after the data is decoded and validated, and before a value of it becomes an object of Python.

Earlier versions wrote the rows of `collect` compressed. Such a stream says how large its buffers become, and
`unpacked_bytes` adds the sizes up before the first buffer is unpacked.

A message is a flatbuffer. Only the fields that show forbidden data are read here:

    Message      0 version of the format, 1 kind of header, 2 header
    RecordBatch  2 buffers: place, bytes; 3 compression
    Footer       2 dictionaries, 3 record batches: place, bytes of the message, bytes of the body
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

NOT_ARROW = (pa.ArrowException, OSError, EOFError, ValueError, MemoryError)
"""The errors that show that data is not Arrow data, or is Arrow data that this package never writes."""

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
_BLOCK = struct.Struct("<qi4xq")
_BUFFER = struct.Struct("<qq")
_U8, _U16, _U32, _I32, _I64 = (struct.Struct(f"<{code}") for code in "BHIiq")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Kinds of headers."""
_VERSION, _HEADER_KIND, _HEADER, _BUFFERS, _COMPRESSION, _DICTIONARIES, _BATCHES = 0, 1, 2, 2, 3, 2, 3
"""Fields of tables."""
_V5 = 4
"""The version of the format since Arrow 1.0. In messages of earlier versions the compression stands elsewhere."""
_NOT_COMPRESSED = -1
"""What a compressed batch says in place of the size of a buffer that is not compressed."""


def check_types(fields: Iterable[Any]) -> None:
    """Raise `ValueError` if columns could have more values than bytes. A null column at the top is allowed: it has as
    many values as there are rows, and other columns have bytes for each row. A null column inside a list could have any
    number of values."""
    for field in fields:
        if not pt.is_null(field.type):
            _check_type(field.type, field.name)


def _check_type(kind: Any, name: str) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind) or pt.is_map(kind)
    if is_list and _has_no_bytes(inner[0]):
        raise ValueError(f"column {name!r} is of type {kind}, whose values take no bytes")
    if is_list or pt.is_struct(kind):
        for one in inner:
            if not pt.is_null(one):
                _check_type(one, name)
    elif not any(is_plain(kind) for is_plain in _PLAIN):
        raise ValueError(f"column {name!r} is of type {kind}, which no state has")


_PLAIN = (
    pt.is_primitive,
    pt.is_temporal,
    pt.is_decimal,
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_fixed_size_binary,
)


def _has_no_bytes(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_no_bytes(kind.storage_type)
    if pt.is_fixed_size_binary(kind):
        return bool(kind.byte_width == 0)
    if pt.is_fixed_size_list(kind):
        return kind.list_size == 0 or _has_no_bytes(kind.value_type)
    if pt.is_struct(kind):
        return all(_has_no_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return pt.is_null(kind)


def check_size(table: pa.Table | pa.RecordBatch, stored_bytes: int) -> None:
    """Raise `ValueError` if the values of a table that was read from `stored_bytes` bytes have more bytes: then columns
    share bytes of the file. The table must have been validated in full."""
    if table.nbytes > stored_bytes:
        raise ValueError(f"the columns have {table.nbytes} bytes, and the file holds only {stored_bytes} bytes of them")


def check_batch(data: pa.Buffer) -> None:
    """Raise `ValueError` unless data is a message of a record batch that is not compressed."""
    _check_message(memoryview(pa.ipc.read_message(data).metadata), (_BATCH,))


def check_stream(data: pa.Buffer) -> None:
    """Raise `ValueError` unless data is a stream of batches that are not compressed, without dictionaries."""
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        _check_message(memoryview(message.metadata), (_SCHEMA, _BATCH))


def unpacked_bytes(data: pa.Buffer) -> int:
    """How many bytes the buffers of a stream take when they are unpacked, as the stream says: no buffer becomes larger
    than it says. Raises `ValueError` unless data is a stream of batches without dictionaries."""
    reader = pa.ipc.MessageReader.open_stream(data)
    found = 0
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return found
        metadata = memoryview(message.metadata)
        kind, header = _header(metadata, (_SCHEMA, _BATCH))
        if kind == _BATCH:
            try:
                found += _unpacked(metadata, header, memoryview(b"" if message.body is None else message.body))
            except struct.error as error:
                raise ValueError(f"a batch cannot be read: {error}") from error


def _unpacked(metadata: memoryview, header: int, body: memoryview) -> int:
    is_compressed = _field(metadata, header, _COMPRESSION) is not None
    at, count = _vector(metadata, header, _BUFFERS)
    found = 0
    for number in range(count):
        place, length = _BUFFER.unpack_from(metadata, at + number * _BUFFER.size)
        if place < 0 or length < 0 or place + length > len(body):
            raise ValueError("a buffer lies outside of the batch")
        said = _I64.unpack_from(body, place)[0] if is_compressed and length else _NOT_COMPRESSED
        if said < _NOT_COMPRESSED:
            raise ValueError("a buffer says that it has less than no bytes")
        found += length if said == _NOT_COMPRESSED else said
    return found


def check_file(data: pa.Buffer) -> None:
    """Raise `ValueError` unless data is an Arrow file of batches that are not compressed, each once, without
    dictionaries."""
    view = memoryview(data)
    try:
        bodies = 0
        for start, length, body in _blocks(view):
            _check_message(_flatbuffer(view, start, length), (_BATCH,))
            bodies += length + body
    except struct.error as error:
        raise ValueError(f"the footer of the file cannot be read: {error}") from error
    if bodies > len(view):
        raise ValueError("the footer of the file names more batches than the file has")


def _blocks(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Place, bytes of the message and bytes of the body of each batch of a file."""
    if bytes(view[-len(_MAGIC) :]) != _MAGIC:
        raise ValueError("the file has no footer")
    (length,) = _I32.unpack_from(view, len(view) - len(_MAGIC) - 4)
    start = len(view) - len(_MAGIC) - 4 - length
    if length <= 0 or start < 0:
        raise ValueError("the footer of the file is not complete")
    footer = view[start : start + length]
    root = _U32.unpack_from(footer)[0]
    if _vector(footer, root, _DICTIONARIES)[1]:
        raise ValueError("the file has dictionaries, which no state has")
    at, count = _vector(footer, root, _BATCHES)
    for number in range(count):
        place, message, body = _BLOCK.unpack_from(footer, at + number * _BLOCK.size)
        if place < 0 or message < 0 or body < 0:
            raise ValueError("a batch lies outside of the file")
        yield place, message, body


def _flatbuffer(view: memoryview, start: int, length: int) -> memoryview:
    (first,) = _U32.unpack_from(view, start)
    prefix = 8 if first == _CONTINUES else 4
    return view[start + prefix : start + length]


def _check_message(data: memoryview, kinds: tuple[int, ...]) -> None:
    kind, header = _header(data, kinds)
    try:
        if kind == _BATCH and _field(data, header, _COMPRESSION) is not None:
            raise ValueError("a batch is compressed, which no state is")
    except struct.error as error:
        raise ValueError(f"a message cannot be read: {error}") from error


def _header(data: memoryview, kinds: tuple[int, ...]) -> tuple[int, int]:
    """The kind of a message, and the offset of its header."""
    try:
        root = _U32.unpack_from(data)[0]
        version_at = _field(data, root, _VERSION)
        kind_at, header_at = _field(data, root, _HEADER_KIND), _field(data, root, _HEADER)
        kind = 0 if kind_at is None else _U8.unpack_from(data, kind_at)[0]
        if kind == _DICTIONARY:
            raise ValueError("the data has dictionaries, which no state has")
        if kind not in kinds or header_at is None:
            raise ValueError(f"the data has a message of kind {kind}, which no state has")
        if version_at is None or _U16.unpack_from(data, version_at)[0] != _V5:
            raise ValueError("the data has a message of another version of the Arrow format, which no state has")
        return kind, header_at + _U32.unpack_from(data, header_at)[0]
    except struct.error as error:
        raise ValueError(f"a message cannot be read: {error}") from error


def _field(data: memoryview, table: int, number: int) -> int | None:
    """The offset of a field of a table; None if the table does not have the field."""
    fields = table - _I32.unpack_from(data, table)[0]
    at = 4 + 2 * number
    if fields < 0 or table < 0:
        raise ValueError("a message cannot be read: a table lies outside of the message")
    if at >= _U16.unpack_from(data, fields)[0]:
        return None
    offset = _U16.unpack_from(data, fields + at)[0]
    return table + offset if offset else None


def _vector(data: memoryview, table: int, number: int) -> tuple[int, int]:
    """The offset of the first element of a vector, and the number of elements."""
    at = _field(data, table, number)
    if at is None:
        return 0, 0
    start = at + _U32.unpack_from(data, at)[0]
    return start + 4, _U32.unpack_from(data, start)[0]
