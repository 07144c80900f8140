"""Nexmark's bids: the bid stream of an online auction, as a source and as Spark SQL.

Bid n depends on n and the seed alone, so any part of the stream can be read again and gives the same rows. The fields
of a bid are computed by integer arithmetic from one 64-bit draw, such that Spark SQL can compute the same: the draw is
Spark's own `xxhash64` of n mixed with the seed, and the fields are cut from the bits of the draw.

    bit  0       one: the bid is for the hot auction (half of the bids)
    bits 1-2     not both zero: the bid is from the hot bidder (three quarters of the bids)
    bits 3-18    if not the hot auction: one of the 100 auctions before the newest, the newest, or one of the next 10
    bits 19-31   the octave of the price: there are 20 octaves, from 100 to about 10^8
    bits 32-47   if not the hot bidder: one of the last 1000 persons
    bits 48-63   the price within its octave

Of 50 events (a round) the first is a person, the next three are auctions and the other 46 are bids, so bid n is event
(n // 46) * 50 + 4 + n % 46. Only bids are produced; persons and auctions are only counted. The hot auction changes
every 100 auctions, the hot bidder every 100 persons. Ids start at 1000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import Source, SourceReader
from penstock.api.saved_pieces import decoded_piece
from penstock.connectors.stripes import Stripe, StripedReader
from penstock.core.errors import UsageError

SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
BASE_TIME = datetime(2015, 7, 15, tzinfo=UTC)

EVENTS_PER_ROUND = 50
BIDS_PER_ROUND = 46
AUCTIONS_PER_ROUND = 3
FIRST_ID = 1000
HOT_AUCTION_EVERY = 100
HOT_BIDDER_EVERY = 100
AUCTIONS_IN_FLIGHT = 100
AUCTION_LEAD = 10
ACTIVE_PERSONS = 1000
OCTAVES = 20

BLOCK_ROWS = BIDS_PER_ROUND * 1424
"""How many bids follow each other in one split: as many whole rounds as have at most 65,536 bids."""
_MAX_EVENTS = 2**40
"""Up to this many events, event times and ids stay far from the limits of 64 bits."""

_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5
_SPARK_SEED = 42
_MASK = 2**64 - 1

_OCTAVE_STARTS = np.array([100 << (draw * OCTAVES >> 13) for draw in range(1 << 13)], np.int64)
"""For each of the 8192 values of bits 19-31: the least price of the octave."""

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]


def bids(
    *,
    events: int,
    seed: int = 0,
    events_per_second: int = 10_000,
    splits: int = 8,
    rate: int | None = None,
    base_time: datetime = BASE_TIME,
) -> Bids:
    """A stream of `events` bids: auction, bidder, price (int64) and ts (timestamp, UTC).

    `events_per_second` is about event time: how many events, persons and auctions included, share one second of `ts`.
    `rate` is about the clock: all subtasks together hand out at most `rate` bids per second. If `rate` is None, bids
    are handed out as fast as they are read.
    """
    return Bids(
        events=events,
        seed=seed,
        events_per_second=events_per_second,
        split_count=splits,
        rate=rate,
        base_time=base_time,
    )


def bids_sql(*, events: int, seed: int = 0, events_per_second: int = 10_000, base_time: datetime = BASE_TIME) -> str:
    """A Spark SQL query that gives exactly the rows of `bids` with the same arguments (in no particular order)."""
    columns = bid_columns_sql(seed=seed, events_per_second=events_per_second, base_time=base_time)
    return f"SELECT {', '.join(columns)} FROM (SELECT id AS n FROM range({events}))"


def bid_columns_sql(
    *, seed: int = 0, events_per_second: int = 10_000, base_time: datetime = BASE_TIME
) -> tuple[str, ...]:
    """Spark SQL expressions for the columns of bid `n`, where `n` is a column of type bigint."""
    draw = f"xxhash64(n ^ {_seed_mask(seed)}L)"
    rounds = f"n div {BIDS_PER_ROUND}"
    last_auction = f"({rounds} * {AUCTIONS_PER_ROUND} + {AUCTIONS_PER_ROUND - 1})"
    oldest_auction = f"greatest({last_auction} - {AUCTIONS_IN_FLIGHT}, 0L)"
    choice = f"{last_auction} - {oldest_auction} + {1 + AUCTION_LEAD}"
    cold_auction = f"{oldest_auction} + shiftright({_bits(draw, 3, 16)} * ({choice}), 16)"
    hot_auction = f"{last_auction} - {last_auction} % {HOT_AUCTION_EVERY}"
    persons = f"({rounds} + 1)"
    active = f"least({persons}, {ACTIVE_PERSONS}L)"
    cold_bidder = f"{persons} - {active} + shiftright({_bits(draw, 32, 16)} * {active}, 16)"
    hot_bidder = f"{rounds} - ({rounds}) % {HOT_BIDDER_EVERY}"
    octave = f"shiftleft(100L, CAST(shiftright({_bits(draw, 19, 13)} * {OCTAVES}, 13) AS INT))"
    event = f"(n + {rounds} * {EVENTS_PER_ROUND - BIDS_PER_ROUND} + {EVENTS_PER_ROUND - BIDS_PER_ROUND})"
    time = f"{_micros(base_time)}L + {event} * 1000000L div {events_per_second}"
    return (
        f"{FIRST_ID} + IF({_bits(draw, 0, 1)} = 1, {hot_auction}, {cold_auction}) AS auction",
        f"{FIRST_ID} + IF({_bits(draw, 1, 2)} > 0, {hot_bidder}, {cold_bidder}) AS bidder",
        f"{octave} + shiftright({_bits(draw, 48, 16)} * {octave}, 16) AS price",
        f"timestamp_micros({time}) AS ts",
    )


def _bits(draw: str, first: int, count: int) -> str:
    return f"(shiftrightunsigned({draw}, {first}) & {2**count - 1}L)"


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _seed_mask(seed: int) -> int:
    """The mask that the number `n` of a bid is xor-ed with. The mask has at most 62 bits, so that the mask is a
    positive literal in SQL."""
    return _scalar_draw(seed & _MASK) >> 2


def _scalar_draw(value: int) -> int:
    rotated = (value * _P2) & _MASK
    rotated = ((rotated << 31) | (rotated >> 33)) & _MASK
    mixed = (_SPARK_SEED + _P5 + 8) ^ ((rotated * _P1) & _MASK)
    mixed &= _MASK
    mixed = ((mixed << 27) | (mixed >> 37)) & _MASK
    mixed = (mixed * _P1 + _P4) & _MASK
    mixed = ((mixed ^ (mixed >> 33)) * _P2) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * _P3) & _MASK
    return mixed ^ (mixed >> 32)


@dataclass(frozen=True, kw_only=True)
class Bids(Source):
    """The source that `bids` makes."""

    events: int
    seed: int
    events_per_second: int
    split_count: int
    rate: int | None
    base_time: datetime

    def __post_init__(self) -> None:
        if not 0 <= self.events <= _MAX_EVENTS:
            raise UsageError(f"events is {self.events}; it must be between 0 and {_MAX_EVENTS}")
        if self.events_per_second < 1:
            raise UsageError(f"events_per_second is {self.events_per_second}; it must be at least 1")
        if self.split_count < 1:
            raise UsageError(f"splits is {self.split_count}; it must be at least 1")
        if self.rate is not None and self.rate < 1:
            raise UsageError(f"rate is {self.rate}; it must be at least 1 bid per second, or None for no limit")
        if self.base_time.tzinfo is None:
            raise UsageError("base_time has no time zone", hint="for example datetime(2026, 1, 1, tzinfo=UTC)")

    @property
    def saved_as(self) -> str:
        """The form of the splits."""
        return "Nexmark bids"

    @property
    def schema(self) -> pa.Schema:
        """The columns auction, bidder, price and ts."""
        return SCHEMA

    @property
    def block_rows(self) -> int:
        """How many bids follow each other in one split. With a rate, such a block lasts about a millisecond, so that
        readers of different splits stay together in event time."""
        if self.rate is None:
            return BLOCK_ROWS
        return BIDS_PER_ROUND * min(max(self.rate // 1000 // BIDS_PER_ROUND, 1), BLOCK_ROWS // BIDS_PER_ROUND)

    def splits(self, parallelism: int) -> list[bytes]:
        """At least one split per subtask, if there are enough bids."""
        count, rows = max(self.split_count, parallelism), self.block_rows
        made = [Stripe(i, count, rows, i * rows, self.events) for i in range(count)]
        return [msgspec.msgpack.encode(split) for split in made if split.position < self.events]

    def open(self, splits: Sequence[bytes]) -> SourceReader:
        """A reader over these splits."""
        return _BidReader(self, [decoded_piece(split, Stripe, what="a split of Nexmark bids") for split in splits])


class _BidReader(StripedReader[Stripe]):
    """Always reads the split that is furthest behind, so that event time advances evenly."""

    def __init__(self, source: Bids, splits: list[Stripe]) -> None:
        super().__init__(splits, source.rate)
        self._generator = BidGenerator(
            seed=source.seed, events_per_second=source.events_per_second, base_time=source.base_time
        )

    def rows(self, split: Stripe, stop: int) -> pa.RecordBatch:
        """The bids from the position of the split up to `stop`."""
        return self._generator.batch(split.position, stop)


class BidGenerator:
    """Makes any range of bids."""

    def __init__(self, *, seed: int, events_per_second: int, base_time: datetime) -> None:
        self._mask = np.uint64(_seed_mask(seed))
        self._events_per_second = events_per_second
        self._base_us = _micros(base_time)
        # These arrays are kept from batch to batch: to allocate memory takes longer than to fill it.
        self._counted = self._value = self._spare = np.empty(0, np.uint64)

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Bids from `start` up to, not including, `stop`."""
        # Whole rounds are made, one per row of a table, and then cut to the range: a value that all bids of a round
        # share is computed once per row.
        first = start // BIDS_PER_ROUND
        rounds = np.arange(first, -(-stop // BIDS_PER_ROUND), dtype=np.int64)[:, None]
        draws = self._draws(first * BIDS_PER_ROUND, rounds.size * BIDS_PER_ROUND)
        # Arithmetic on 32 bits is twice as fast as on 64. Ids fit into 32 bits because they are counted from the oldest
        # id that a bid may have.
        low, high = draws.astype(np.uint32), (draws >> np.uint64(32)).astype(np.uint32)
        table = (-1, BIDS_PER_ROUND)
        columns = (
            _auctions(low.reshape(table), rounds),
            _bidders(low.reshape(table), high.reshape(table), rounds),
            _prices(low, high),
            self._times(rounds),
        )
        skipped = start - first * BIDS_PER_ROUND
        arrays: list[Any] = [pa.array(column.reshape(-1)[skipped : skipped + stop - start]) for column in columns]
        arrays[3] = arrays[3].view(SCHEMA.field(3).type)
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _times(self, rounds: Int64s) -> Int64s:
        first_events = rounds * EVENTS_PER_ROUND + (EVENTS_PER_ROUND - BIDS_PER_ROUND)
        offsets = np.arange(BIDS_PER_ROUND, dtype=np.int64)
        if 1_000_000 % self._events_per_second == 0:
            step = 1_000_000 // self._events_per_second
            return (first_events * step + self._base_us) + offsets * step
        times = first_events + offsets
        times *= 1_000_000
        times //= self._events_per_second
        times += self._base_us
        return times

    def _draws(self, first: int, count: int) -> UInt64s:
        """Spark's `xxhash64` of each number, mixed with the seed."""
        if self._counted.size < count:
            self._counted = np.arange(count, dtype=np.uint64)
            self._value, self._spare = np.empty_like(self._counted), np.empty_like(self._counted)
        value, spare = self._value[:count], self._spare[:count]
        np.add(self._counted[:count], np.uint64(first), out=value)
        value ^= self._mask
        value *= np.uint64(_P2)
        _rotate_left(value, 31, spare)
        value *= np.uint64(_P1)
        value ^= np.uint64((_SPARK_SEED + _P5 + 8) & _MASK)
        _rotate_left(value, 27, spare)
        value *= np.uint64(_P1)
        value += np.uint64(_P4)
        for shift, factor in ((33, _P2), (29, _P3)):
            np.right_shift(value, np.uint64(shift), out=spare)
            value ^= spare
            value *= np.uint64(factor)
        np.right_shift(value, np.uint64(32), out=spare)
        value ^= spare
        return value


def _auctions(low: UInt32s, rounds: Int64s) -> Int64s:
    newest = rounds * AUCTIONS_PER_ROUND + (AUCTIONS_PER_ROUND - 1)
    oldest = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
    hot = newest - newest % HOT_AUCTION_EVERY
    chosen = low >> np.uint32(3)
    chosen &= np.uint32(0xFFFF)
    chosen *= (newest - oldest + (1 + AUCTION_LEAD)).astype(np.uint32)
    chosen >>= np.uint32(16)
    _set_where((low & np.uint32(1)) != 0, chosen, (hot - oldest).astype(np.uint32))
    return _widened(chosen, oldest + FIRST_ID)


def _bidders(low: UInt32s, high: UInt32s, rounds: Int64s) -> Int64s:
    active = np.minimum(rounds + 1, ACTIVE_PERSONS)
    oldest = rounds + 1 - active
    hot = rounds - rounds % HOT_BIDDER_EVERY
    chosen = high & np.uint32(0xFFFF)
    chosen *= active.astype(np.uint32)
    chosen >>= np.uint32(16)
    _set_where((low & np.uint32(6)) != 0, chosen, (hot - oldest).astype(np.uint32))
    return _widened(chosen, oldest + FIRST_ID)


def _prices(low: UInt32s, high: UInt32s) -> Int64s:
    octaves = _OCTAVE_STARTS.take((low >> np.uint32(19)).astype(np.int64))
    prices = (high >> np.uint32(16)).astype(np.int64)
    prices *= octaves
    prices >>= 16
    prices += octaves
    return prices


def _set_where(mask: npt.NDArray[np.bool_], values: UInt32s, other: UInt32s) -> None:
    """Replace `values` by `other` where the mask is true, by arithmetic: branches on a random mask are predicted
    badly."""
    difference = other - values
    difference *= mask
    values += difference


def _widened(values: UInt32s, base: Int64s) -> Int64s:
    wide = values.astype(np.int64)
    wide += base
    return wide


def _rotate_left(values: UInt64s, bits: int, spare: UInt64s) -> None:
    np.right_shift(values, np.uint64(64 - bits), out=spare)
    np.left_shift(values, np.uint64(bits), out=values)
    values |= spare
