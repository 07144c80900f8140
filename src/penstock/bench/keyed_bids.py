"""Bids with a key of any number of distinct values, as a number and as text.

The key as text is made by the source. So two runs that differ only in the column of the key have the same source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.connector import Source, SourceReader
from penstock.connectors.nexmark import BASE_TIME, BLOCK_ROWS, SCHEMA, BidGenerator
from penstock.connectors.stripes import Stripe, StripedReader

NUMBER = "number"
TEXT = "text"
SPLITS = 8
_SPREAD = np.uint64(0x9E3779B185EBCA87)
"""An odd number: the products with the numbers of the bids are spread over 64 bits."""
_MOST_PER_ROW = 4


@dataclass(frozen=True, kw_only=True)
class KeyedBids(Source):
    """Bids: `number` and `text` (the same key twice), price and ts."""

    events: int
    keys: int | None = None
    """How many distinct keys there are, in no order. None: the key is the auction of the bid."""
    has_text: bool = True
    """Whether there is a column `text`."""
    seed: int = 1
    events_per_second: int = 10_000
    """Events per second of event time; 46 of 50 events are bids."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        fields = {NUMBER: pa.int64(), TEXT: pa.string(), **{name: SCHEMA.field(name).type for name in ("price", "ts")}}
        if not self.has_text:
            del fields[TEXT]
        return pa.schema(fields)

    def splits(self, parallelism: int) -> list[bytes]:
        """At least one split per subtask, if there are enough bids."""
        count = max(SPLITS, parallelism)
        made = [Stripe(i, count, BLOCK_ROWS, i * BLOCK_ROWS, self.events) for i in range(count)]
        return [msgspec.msgpack.encode(split) for split in made if split.position < self.events]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        return _Reader(self, [msgspec.msgpack.decode(split, type=Stripe) for split in splits])


class _Reader(StripedReader[Stripe]):
    def __init__(self, source: KeyedBids, splits: list[Stripe]) -> None:
        super().__init__(splits, None)
        self._source = source
        self._generator = BidGenerator(
            seed=source.seed, events_per_second=source.events_per_second, base_time=BASE_TIME
        )

    def rows(self, split: Stripe, stop: int) -> pa.RecordBatch:
        source, bids = self._source, self._generator.batch(split.position, stop)
        numbers: Any = bids.column("auction")
        if source.keys is not None:
            hashed = np.arange(split.position, stop, dtype=np.uint64) * _SPREAD >> np.uint64(11)
            numbers = pa.array((hashed % np.uint64(source.keys)).astype(np.int64))
        text = [_texts(numbers)] if source.has_text else []
        columns = [numbers, *text, bids.column("price"), bids.column("ts")]
        return pa.RecordBatch.from_arrays(columns, schema=source.schema)


def _texts(numbers: Any) -> Any:
    """Numbers as text. Each text is made once if the numbers lie close together."""
    values = np.asarray(numbers.to_numpy())
    least, most = int(values.min()), int(values.max())
    if most - least >= _MOST_PER_ROW * values.size:
        return numbers.cast(pa.string())
    return pa.array(np.arange(least, most + 1)).cast(pa.string()).take(pa.array(values - least))
