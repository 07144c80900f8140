"""The metadata file of a checkpoint: what a restore reads first. A sealed record of `CheckpointMetadata`."""

from __future__ import annotations

from penstock.core.recovery.metadata import METADATA_VERSION, CheckpointMetadata
from penstock.storage.sealed import Seal

_seal = Seal(
    b"PMET",
    METADATA_VERSION,
    CheckpointMetadata,
    what="the metadata of a checkpoint",
    hint="restore it from a copy, or restore from another checkpoint or savepoint",
)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """The content of the metadata file."""
    return _seal.encode(metadata)


def decode_metadata(path: str, content: bytes) -> CheckpointMetadata:
    """What the metadata file at `path` says. Raises `CorruptFile` if it is cut, changed, foreign or newer."""
    return _seal.decode(path, content)
