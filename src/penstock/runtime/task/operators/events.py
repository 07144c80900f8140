"""What the coordinators of operators say to their subtasks. It travels inside `OperatorEvent`."""

from __future__ import annotations

import msgspec


class SplitsAdded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Enumerator to reader: read these, too."""

    splits: tuple[bytes, ...]


class NoMoreSplits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Enumerator to reader: when you have read what you have, you are done. Said again in every attempt."""


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Committer to sink: everything up to `checkpoint` is committed, and need not be carried any more."""

    checkpoint: int


ReaderEvent = SplitsAdded | NoMoreSplits

_reader_events: msgspec.msgpack.Decoder[ReaderEvent] = msgspec.msgpack.Decoder(ReaderEvent)
_committed = msgspec.msgpack.Decoder(Committed)


def encode_event(event: ReaderEvent | Committed) -> bytes:
    """The payload of an `OperatorEvent`."""
    return msgspec.msgpack.encode(event)


def decode_reader_event(payload: bytes) -> ReaderEvent:
    """What an enumerator says."""
    return _reader_events.decode(payload)


def decode_committed(payload: bytes) -> Committed:
    """What a committer says."""
    return _committed.decode(payload)
