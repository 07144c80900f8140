"""The metadata file of a checkpoint: what a restore reads first.

    4 bytes   PMET
    2 bytes   version of this format
    8 bytes   number of data bytes
    8 bytes   xxh3-64 of the data
    …         the data: `CheckpointMetadata` as msgpack

Numbers are unsigned, most significant byte first. Nothing in it is pickled.
"""

from __future__ import annotations

import struct

import msgspec
import xxhash

from penstock.core.errors import CorruptFile
from penstock.core.recovery.metadata import METADATA_VERSION, CheckpointMetadata

_MAGIC = b"PMET"
_HEADER = struct.Struct(">4sHQQ")
_decoder = msgspec.msgpack.Decoder(CheckpointMetadata)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The content of the metadata file."""
    data = msgspec.msgpack.encode(metadata)
    return _HEADER.pack(_MAGIC, METADATA_VERSION, len(data), xxhash.xxh3_64_intdigest(data)) + data


def decode_metadata(path: str, content: bytes) -> CheckpointMetadata:
    """What the metadata file at `path` says. Raises `CorruptFile` if it is cut, changed, foreign or newer."""
    hint = "restore it from a copy, or restore from another checkpoint or savepoint"
    if len(content) < _HEADER.size:
        raise CorruptFile(f"{path} is cut: {len(content)} bytes are not even its header", hint=hint)
    magic, version, size, checksum = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    if magic != _MAGIC:
        raise CorruptFile(f"{path} is not the metadata of a checkpoint", hint=hint)
    if version > METADATA_VERSION:
        raise CorruptFile(
            f"{path} has format version {version}; this program reads up to {METADATA_VERSION}",
            hint="use a newer penstock",
        )
    if len(data) != size:
        raise CorruptFile(f"{path} has {len(data)} bytes of data instead of {size}", hint=hint)
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise CorruptFile(f"{path} was changed: its checksum does not fit", hint=hint)
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} cannot be read: {error}", hint=hint) from error
