"""The persons, auctions and bids as sources that can be read from any position."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

import msgspec
import pyarrow as pa

from penstock.api.connector import Source, SourceReader
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.nexmark import auction_rows, bid_rows, person_rows
from penstock.connectors.stripes import Stripe, StripedReader
from penstock.core.errors import UsageError

BLOCK_ROWS = bid_rows.BIDS_PER_ROUND * 1424
"""How many bids follow each other in one split: as many whole rounds as have at most 65,536 bids."""
_MAX_ROUNDS = 2**40 // bid_rows.BIDS_PER_ROUND
"""Up to this many rounds of events, event times and ids stay within 64 bits."""


class RowGenerator(Protocol):
    """Makes any range of rows."""

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """The rows from `start` up to, not including, `stop`."""


@dataclass(frozen=True, kw_only=True)
class NumberedRows(Source):
    """Rows that depend on their number and the seed alone."""

    events: int
    seed: int
    events_per_second: int
    split_count: int
    rate: int | None
    base_time: datetime

    per_round: ClassVar[int]
    """How many of 50 events are of this kind."""
    kind: ClassVar[str]
    rounds_per_block: ClassVar[int]

    def __post_init__(self) -> None:
        most = _MAX_ROUNDS * self.per_round
        if not 0 <= self.events <= most:
            raise UsageError(f"events is {self.events}; it must be between 0 and {most}")
        if self.events_per_second < 1:
            raise UsageError(f"events_per_second is {self.events_per_second}; it must be at least 1")
        if self.split_count < 1:
            raise UsageError(f"splits is {self.split_count}; it must be at least 1")
        if self.rate is not None and self.rate < 1:
            raise UsageError(f"rate is {self.rate}; it must be at least 1 row per second, or None for no limit")
        if self.base_time.tzinfo is None:
            raise UsageError("base_time has no time zone", hint="for example datetime(2026, 1, 1, tzinfo=UTC)")

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return f"Nexmark {self.kind}"

    @abstractmethod
    def generator(self) -> RowGenerator:
        """What makes the rows."""

    @property
    def block_rows(self) -> int:
        """How many rows follow each other in one split. With a rate, such a block lasts about a millisecond, so that
        readers of different splits stay together in event time."""
        if self.rate is None:
            return self.per_round * self.rounds_per_block
        return self.per_round * min(max(self.rate // 1000 // self.per_round, 1), self.rounds_per_block)

    def splits(self, parallelism: int) -> list[bytes]:
        """At least one split per subtask, if there are enough rows."""
        count, rows = max(self.split_count, parallelism), self.block_rows
        made = [Stripe(i, count, rows, i * rows, self.events) for i in range(count)]
        return [msgspec.msgpack.encode(split) for split in made if split.position < self.events]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        what = f"a split of {self.saved_as}"
        return _RowReader(self, [decoded_piece(split, Stripe, what=what) for split in splits])


class _RowReader(StripedReader[Stripe]):
    """Always reads the split that is furthest behind, so that event time advances evenly."""

    def __init__(self, source: NumberedRows, splits: list[Stripe]) -> None:
        super().__init__(splits, source.rate)
        self._generator = source.generator()

    def rows(self, split: Stripe, stop: int) -> pa.RecordBatch:
        """The rows from the position of the split up to `stop`."""
        return self._generator.batch(split.position, stop)


@dataclass(frozen=True, kw_only=True)
class Bids(NumberedRows):
    """The source that `bids` makes."""

    columns: tuple[str, ...] = tuple(bid_rows.SCHEMA.names)

    per_round: ClassVar[int] = bid_rows.BIDS_PER_ROUND
    kind: ClassVar[str] = "bids"
    rounds_per_block: ClassVar[int] = 1424

    @property
    def schema(self) -> pa.Schema:
        """The columns that were asked for."""
        return bid_rows.schema_of(self.columns)

    def generator(self) -> RowGenerator:
        """What makes the bids."""
        return bid_rows.BidGenerator(
            seed=self.seed,
            events_per_second=self.events_per_second,
            base_time=self.base_time,
            columns=self.columns,
        )


@dataclass(frozen=True, kw_only=True)
class Auctions(NumberedRows):
    """The source that `auctions` makes."""

    per_round: ClassVar[int] = auction_rows.AUCTIONS_PER_ROUND
    kind: ClassVar[str] = "auctions"
    rounds_per_block: ClassVar[int] = 1424 * 4

    @property
    def schema(self) -> pa.Schema:
        """The columns of an auction."""
        return auction_rows.SCHEMA

    def generator(self) -> RowGenerator:
        """What makes the auctions."""
        return auction_rows.AuctionGenerator(
            seed=self.seed, events_per_second=self.events_per_second, base_time=self.base_time
        )


@dataclass(frozen=True, kw_only=True)
class Persons(NumberedRows):
    """The source that `persons` makes."""

    per_round: ClassVar[int] = 1
    kind: ClassVar[str] = "persons"
    rounds_per_block: ClassVar[int] = 1424 * 8

    @property
    def schema(self) -> pa.Schema:
        """The columns of a person."""
        return person_rows.SCHEMA

    def generator(self) -> RowGenerator:
        """What makes the persons."""
        return person_rows.PersonGenerator(
            seed=self.seed, events_per_second=self.events_per_second, base_time=self.base_time
        )
