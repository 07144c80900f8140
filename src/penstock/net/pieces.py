"""Frames of any size over connections that refuse large frames.

ZeroMQ takes memory for a frame as soon as the sender says how large the frame is, and the sender may be a stranger that
has not shown the keys. So the largest frame is small, and a larger frame is sent in pieces, which only members of the
job can send. A message in pieces begins with a frame that says how long the original frames are:

    mark, length of each frame | piece | piece | …

Almost all messages are small, and are sent as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.ports import Frame

PIECE_BYTES = 1024 * 1024
"""The size of a piece. A batch is smaller, unless a single row is as large."""
LARGEST_FRAME_BYTES = PIECE_BYTES + 1_024
"""A piece with the bytes that encryption adds."""

_MARK = b"\0pieces\0"


def in_pieces(frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames to send for a message: the message's own frames, or its pieces."""
    sizes = [len(frame) if isinstance(frame, bytes) else memoryview(frame).nbytes for frame in frames]
    if max(sizes) <= PIECE_BYTES and not _begins_with_mark(frames[0]):
        return frames
    pieces: list[Frame] = [_MARK + struct.pack(f"<{len(sizes)}Q", *sizes)]
    for frame, size in zip(frames, sizes, strict=True):
        whole = memoryview(frame).cast("B") if size else b""
        pieces += [whole[start : start + PIECE_BYTES] for start in range(0, size, PIECE_BYTES)]
    return pieces


def whole(frames: list[Frame]) -> list[Frame]:
    """The original frames of a received message. A message that begins with the mark but is not in pieces is returned
    as it came; the reader of the message refuses it."""
    if not _begins_with_mark(frames[0]):
        return frames
    lengths = bytes(frames[0][len(_MARK) :])
    if len(lengths) % 8:
        return frames
    joined, rest = [], iter(frames[1:])
    for size in struct.unpack(f"<{len(lengths) // 8}Q", lengths):
        found: list[Frame] = []
        missing = size
        while missing > 0 and (piece := next(rest, None)) is not None:
            found.append(piece)
            missing -= len(piece)
        if missing:
            return frames
        joined.append(b"".join(found))
    return frames if next(rest, None) is not None else joined


def _begins_with_mark(frame: Frame) -> bool:
    return bytes(memoryview(frame)[: len(_MARK)]) == _MARK if len(frame) >= len(_MARK) else False
