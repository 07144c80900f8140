"""Rows that are numbered, and can be made from their numbers: how the numbers are dealt out, and how they are paced.

The numbers are cut into blocks. Split `index` of `count` splits has the blocks `index`, `index + count`, and so on. So
all splits stay together, and any row can be made again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from penstock.api.connector import End, Pause, Polled, SourceReader


class Stripe(msgspec.Struct, frozen=True, array_like=True):
    """Blocks `index`, `index + count`, ... of the rows, read up to `position`. The split carries `count` and
    `block_rows`, so that a program that gives other values still reads each row once."""

    index: int
    count: int
    block_rows: int
    position: int
    end: int | None
    """None: the rows have no end."""


AnyStripe = TypeVar("AnyStripe", bound=Stripe)


class StripedReader(SourceReader, Generic[AnyStripe]):
    """Always reads the split that is furthest behind: the rows come in the order of their numbers."""

    def __init__(self, splits: list[AnyStripe], rate: int | None) -> None:
        self._splits = [split for split in splits if split.end is None or split.position < split.end]
        self._rate = rate
        self._paced_from: tuple[int, int] | None = None

    @abstractmethod
    def rows(self, split: AnyStripe, stop: int) -> pa.RecordBatch:
        """The rows of a split from its position up to, not including, `stop`. All of them are of one block."""

    def poll(self, max_rows: int, now_ms: int) -> Polled:
        """The next rows of one block that are due."""
        if not self._splits:
            return End()
        split = min(self._splits, key=lambda s: s.position)
        block_end = split.position - split.position % split.block_rows + split.block_rows
        stop = min(split.position + max_rows, block_end)
        if split.end is not None:
            stop = min(stop, split.end)
        if self._rate is not None:
            due = self._due(split, now_ms, self._rate)
            if isinstance(due, Pause):
                return due
            stop = min(stop, due)
        batch = self.rows(split, stop)
        position = stop if stop < block_end else block_end + (split.count - 1) * split.block_rows
        self._splits.remove(split)
        if split.end is None or position < split.end:
            self._splits.append(msgspec.structs.replace(split, position=position))
        return batch

    def snapshot(self) -> list[bytes]:
        """The unread splits, furthest behind first."""
        return [msgspec.msgpack.encode(split) for split in self.unread]

    @property
    def unread(self) -> list[AnyStripe]:
        """The unread splits, furthest behind first."""
        return sorted(self._splits, key=lambda s: s.position)

    def _due(self, split: Stripe, now_ms: int, rate: int) -> int | Pause:
        """The first row that is not due yet, or how long to wait until the next row of the split is due."""
        if self._paced_from is None:
            # All readers count from the same row, whichever splits they have.
            stripe = split.count * split.block_rows
            self._paced_from = (now_ms, split.position - split.position % stripe)
        start_ms, start_row = self._paced_from
        due = start_row + (now_ms - start_ms) * rate // 1000
        if due > split.position:
            return due
        next_ms = start_ms - (-(split.position + 1 - start_row) * 1000 // rate)
        return Pause(wait_ms=max(1, next_ms - now_ms))
