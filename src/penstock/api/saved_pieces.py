"""Splits, positions and committables as they come from a snapshot."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.core.errors import CorruptFile

PieceT = TypeVar("PieceT")


def decoded_piece(data: bytes, kind: type[PieceT], *, what: str) -> PieceT:
    """What a connector had encoded as MessagePack. Raises `CorruptFile`, which names `what`, for other bytes."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptFile(
            f"{what} in the snapshot cannot be read: {error}",
            hint="the step was another source or sink when the snapshot was taken, or the snapshot was changed: give "
            "the step another name, or start over with fresh=True",
        ) from error
