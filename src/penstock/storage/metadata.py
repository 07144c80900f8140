"""The metadata file of a checkpoint: what a restore reads first. A sealed record of `CheckpointMetadata`."""

from __future__ import annotations

import msgspec

from penstock.core.recovery.metadata import METADATA_VERSION, CheckpointMetadata
from penstock.storage.sealed import Seal

LARGEST_METADATA_BYTES = 1024 * 1024 * 1024
"""More than any job puts into its metadata: a file that is larger is not read."""

LARGEST_SETTINGS_BYTES = 1024 * 1024
"""More than the settings of any job take. Of all that is in the metadata they alone may have any shape, and a byte of
them may become a hundred bytes of memory."""


class _Settings(msgspec.Struct):
    """The part of the metadata that is not decoded as it is read here, but skipped."""

    settings: msgspec.Raw = msgspec.Raw()


_settings = msgspec.msgpack.Decoder(_Settings)


def _check_settings(data: memoryview) -> None:
    size = len(memoryview(_settings.decode(data).settings))
    if size > LARGEST_SETTINGS_BYTES:
        raise ValueError(f"its settings have {size} bytes, and at most {LARGEST_SETTINGS_BYTES} are expected")


_seal = Seal(
    b"PMET",
    METADATA_VERSION,
    CheckpointMetadata,
    what="the metadata of a checkpoint",
    hint="restore it from a copy, or restore from another checkpoint or savepoint",
    check=_check_settings,
)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The content of the metadata file."""
    return _seal.encode(metadata)


def decode_metadata(path: str, content: bytes) -> CheckpointMetadata:
    """What the metadata file at `path` says. Raises `CorruptFile` if it is cut, changed, foreign or newer."""
    return _seal.decode(path, content)
