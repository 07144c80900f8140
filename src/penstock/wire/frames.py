"""The framing of a link: the packets that two processes of a job send to each other.

A message of the transport is one or more packets; a packet is two frames, a header and a payload:

    header  | sequence, epoch, kind, channel, cost, attempt msgpack, about 15 bytes
    payload | by kind: a message, an element, a batch, a credit, nothing

The sequence number counts the packets of one direction of one link, so that the receiver notices lost packets. Sequence
numbers and epochs are not checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec

from penstock.core.errors import MalformedMessage
from penstock.core.ids import Epoch
from penstock.ports import Frame
from penstock.wire.codec import decode_with

Natural = Annotated[int, msgspec.Meta(ge=0)]


class Kind(IntEnum):
    """What a packet carries. The numbers are part of the format."""

    CONTROL = 0
    """A message between the job master and a slot."""
    ELEMENT = 1
    """An element of a channel that is not data; needs no credit."""
    BATCH = 2
    """Records in a channel."""
    CREDIT = 3
    """Permission to send more bytes on a channel."""
    KEEPALIVE = 4
    """No content. The packet shows that the sender lives, and its sequence number shows whether packets were lost."""


class Channel(NamedTuple):
    """One upstream subtask to one downstream subtask, over an edge of the plan."""

    edge: Natural
    upstream: Natural
    downstream: Natural


class Header(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The first frame of a packet; positional on the wire, so new fields go to the end and have a default."""

    sequence: Natural
    epoch: Annotated[Epoch, msgspec.Meta(ge=0)]
    kind: Kind
    channel: Channel | None = None
    """Set for elements and batches, and for no other packet."""
    cost: Natural = 0
    """The credit, in bytes, that a batch uses up."""
    attempt: Annotated[Epoch, msgspec.Meta(ge=0)] = Epoch(0)
    """Of elements and batches: the epoch of the tasks at both ends of the channel, if some tasks have a later epoch
    than the link; otherwise zero."""


class Packet(NamedTuple):
    """A header and its payload: the unit of a link."""

    header: Header
    payload: Frame


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)
# Constants, because looking a member up in the enum class costs more than the rest of a check.
_BATCH, _KEEPALIVE = Kind.BATCH, Kind.KEEPALIVE
_IN_CHANNEL = (Kind.BATCH, Kind.ELEMENT)


def pack(header: Header, payload: Frame = b"") -> list[Frame]:
    """The two frames of one packet. Frames of several packets to the same peer may be joined into one message."""
    return [_encoder.encode(header), payload]


def unpack(frames: Sequence[Frame]) -> list[Packet]:
    """The packets of one message, in order; payloads are left as they are. Raises `MalformedMessage`."""
    if not frames or len(frames) % 2:
        raise MalformedMessage(f"message of {len(frames)} frames; a packet has two")
    pairs = iter(frames)
    return [Packet(_read_header(header, payload), payload) for header, payload in zip(pairs, pairs, strict=True)]


def _read_header(frame: Frame, payload: Frame) -> Header:
    header = decode_with(_decoder, frame, "header")
    kind, channel = header.kind, header.channel
    if (channel is None) is (kind in _IN_CHANNEL):
        raise MalformedMessage(f"{kind.name.lower()} packet with channel {channel}")
    if header.cost and kind is not _BATCH:
        raise MalformedMessage(f"{kind.name.lower()} packet that costs credit of {header.cost} bytes")
    if kind is _KEEPALIVE and len(payload):
        raise MalformedMessage(f"keepalive packet with a payload of {len(payload)} bytes")
    return header
