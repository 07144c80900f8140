"""The events that operator coordinators send to the subtasks of their operators, each inside an `OperatorEvent`."""

from __future__ import annotations

import msgspec


class SplitsAdded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Enumerator to reader: read these splits, too."""

    splits: tuple[bytes, ...]


class NoMoreSplits(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Enumerator to reader: no further splits will come. The data ends with the splits that the reader has. Sent again
    in every attempt."""


class Committed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Committer to sink: all transactions up to `checkpoint` are committed, and need not be carried any longer."""

    checkpoint: int


ReaderEvent = SplitsAdded | NoMoreSplits

_reader_events: msgspec.msgpack.Decoder[ReaderEvent] = msgspec.msgpack.Decoder(ReaderEvent)
_committed = msgspec.msgpack.Decoder(Committed)


def encode_event(event: ReaderEvent | Committed) -> bytes:
    """The payload of an `OperatorEvent`."""
    return msgspec.msgpack.encode(event)


def decode_reader_event(payload: bytes) -> ReaderEvent:
    """The event of an enumerator."""
    return _reader_events.decode(payload)


def decode_committed(payload: bytes) -> Committed:
    """The event of a committer."""
    return _committed.decode(payload)
