"""The metadata file of a checkpoint: what a restore reads first. A record of `CheckpointMetadata`."""

from __future__ import annotations

import msgspec

from penstock.core.recovery.metadata import METADATA_VERSION, CheckpointMetadata
from penstock.storage.record_formats import RecordFormat

LARGEST_METADATA_BYTES = 1024 * 1024 * 1024
"""More than the metadata of any job takes: a larger file is not read."""

LARGEST_SETTINGS_BYTES = 1024 * 1024
"""More than the settings of any job take. Only the settings in the metadata may have any shape, and one byte of the
settings may become a hundred bytes of memory."""


class _Settings(msgspec.Struct):
    """The settings in the metadata, undecoded; everything else is skipped."""

    settings: msgspec.Raw = msgspec.Raw()


_settings = msgspec.msgpack.Decoder(_Settings)


def _check_settings(data: memoryview) -> None:
    size = len(memoryview(_settings.decode(data).settings))
    if size > LARGEST_SETTINGS_BYTES:
        raise ValueError(f"the settings have {size} bytes, and at most {LARGEST_SETTINGS_BYTES} are expected")


_format = RecordFormat(
    b"PMET",
    METADATA_VERSION,
    CheckpointMetadata,
    what="the metadata of a checkpoint",
    hint="restore the file from a copy, or restore from another checkpoint or savepoint",
    check=_check_settings,
)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The content of the metadata file."""
    return _format.encode(metadata)


def decode_metadata(path: str, content: bytes) -> CheckpointMetadata:
    """The metadata in the file at `path`. Raises `CorruptFile` if the file is cut, changed, foreign or of a newer
    format."""
    return _format.decode(path, content)
