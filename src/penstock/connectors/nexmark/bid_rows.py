"""Nexmark's bids.

Bid n is event (n // 46) * 50 + 4 + n % 46. Its fields are cut from the bits of its draw:

    bit  0       one: the bid is for the hot auction (half of the bids)
    bits 1-2     not both zero: the bid is from the hot bidder (three quarters of the bids)
    bits 3-18    if not the hot auction: one of the 100 auctions before the newest, the newest, or one of the next 10
    bits 19-31   the octave of the price: there are 20 octaves, from 100 to about 10^8
    bits 32-47   if not the hot bidder: one of the last 1000 persons
    bits 48-63   the price within its octave

The texts are cut from a second draw, with salt 1:

    bit  0       one: the bid came by one of the 4 large channels (half of the bids)
    bits 1-2     which of the large channels
    bits 3-18    if not a large channel: which of 10,000 channels
    bits 19-30   where `extra` begins
    bits 31-46   how long `extra` is

The url belongs to the channel. The hot auction changes every 100 auctions, the hot bidder every 100 persons. The hot
auction is the first of its 100 auctions. The hot bidder is the second of the 100 persons, because the first person is
the hot seller. If they were one person, a join of bidders with sellers would have each of these bids with each of these
auctions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.nexmark.draws import (
    BASE_TIME,
    FIRST_ID,
    OCTAVE_STARTS,
    Draws,
    Int64s,
    bits,
    bits_sql,
    draw_sql,
    micros,
    picks,
    picks_sql,
    prices_sql,
)
from penstock.connectors.nexmark.texts import PLACES, chosen_sql, letters, parts, parts_sql

SCHEMA = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a bid, unless others are asked for."""
WHOLE_SCHEMA = pa.schema(
    [
        *list(SCHEMA)[:3],
        pa.field("channel", pa.string()),
        pa.field("url", pa.string()),
        SCHEMA.field("ts"),
        pa.field("extra", pa.string()),
    ]
)
"""All columns of a bid."""

EVENTS_PER_ROUND = 50
BIDS_PER_ROUND = 46
AUCTIONS_PER_ROUND = 3
HOT_AUCTION_EVERY = 100
HOT_BIDDER_EVERY = 100
AUCTIONS_IN_FLIGHT = 100
AUCTION_LEAD = 10
ACTIVE_PERSONS = 1000
LARGE_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
LEAST_EXTRA, EXTRAS = 54, 28
"""A bid has 100 bytes on average, besides its channel and its url."""

_TEXTS = 1
_TEXT_COLUMNS = ("channel", "url", "extra")
_FOLDER = 5
"""Letters of a folder in a url."""
_FOLDERS = ((7, 0), (11, 1000), (13, 2000))
_CHANNEL_ID = 214_013

UInt32s = npt.NDArray[np.uint32]


class BidGenerator:
    """Makes any range of bids."""

    def __init__(
        self,
        *,
        seed: int,
        events_per_second: int,
        base_time: datetime,
        columns: Sequence[str] = tuple(SCHEMA.names),
    ) -> None:
        self._events_per_second = events_per_second
        self._base_us = micros(base_time)
        self._schema = schema_of(columns)
        self._draws, self._text_draws = Draws(seed), Draws(seed, _TEXTS)
        self._has_texts = not set(columns).isdisjoint(_TEXT_COLUMNS)

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Bids from `start` up to, not including, `stop`."""
        # Whole rounds are made, one per row of a table, and then cut to the range: a value that all bids of a round
        # share is computed once per row.
        first = start // BIDS_PER_ROUND
        rounds = np.arange(first, -(-stop // BIDS_PER_ROUND), dtype=np.int64)[:, None]
        draws = self._draws.of(first * BIDS_PER_ROUND, rounds.size * BIDS_PER_ROUND)
        # Arithmetic on 32 bits is twice as fast as on 64. Ids fit into 32 bits because they are counted from the oldest
        # id that a bid may have.
        low, high = draws.astype(np.uint32), (draws >> np.uint64(32)).astype(np.uint32)
        table = (-1, BIDS_PER_ROUND)
        made: dict[str, Callable[[], Int64s]] = {
            "auction": lambda: _auctions(low.reshape(table), rounds),
            "bidder": lambda: _bidders(low.reshape(table), high.reshape(table), rounds),
            "price": lambda: _prices(low, high),
            "ts": lambda: self._times(rounds),
        }
        skipped = start - first * BIDS_PER_ROUND
        texts = self._texts(start, stop - start) if self._has_texts else {}
        arrays: list[Any] = []
        for field in self._schema:
            if field.name in texts:
                arrays.append(texts[field.name]())
                continue
            column = pa.array(made[field.name]().reshape(-1)[skipped : skipped + stop - start])
            arrays.append(column.view(field.type) if field.name == "ts" else column)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _texts(self, start: int, count: int) -> dict[str, Callable[[], pa.StringArray]]:
        draws = self._text_draws.of(start, count)
        is_large, which = bits(draws, 0, 1), bits(draws, 1, 2)
        channels = np.where(is_large == 1, CHANNELS + which, picks(draws, 3, CHANNELS))
        return {
            "channel": lambda: _channel_names().take(channels),
            "url": lambda: _channel_urls().take(channels),
            "extra": lambda: parts(bits(draws, 19, 12), LEAST_EXTRA + picks(draws, 31, EXTRAS)),
        }

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
    hot = rounds - rounds % HOT_BIDDER_EVERY + 1
    chosen = high & np.uint32(0xFFFF)
    chosen *= active.astype(np.uint32)
    chosen >>= np.uint32(16)
    _set_where((low & np.uint32(6)) != 0, chosen, (hot - oldest).astype(np.uint32))
    return _widened(chosen, oldest + FIRST_ID)


def _prices(low: UInt32s, high: UInt32s) -> Int64s:
    octaves = OCTAVE_STARTS.take((low >> np.uint32(19)).astype(np.int64))
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


@cache
def _channel_names() -> pa.StringArray:
    return pa.array([f"channel-{number}" for number in range(CHANNELS)] + list(LARGE_CHANNELS))


@cache
def _channel_urls() -> pa.StringArray:
    return pa.array([_url(channel) for channel in range(CHANNELS + len(LARGE_CHANNELS))])


def _url(channel: int) -> str:
    starts = [(channel * factor + first) % PLACES for factor, first in _FOLDERS]
    folders = "/".join(letters()[start : start + _FOLDER].decode() for start in starts)
    number = "" if channel >= CHANNELS or channel % 10 == 0 else f"&channel_id={channel * _CHANNEL_ID}"
    return f"https://www.nexmark.com/{folders}/item.htm?query=1{number}"


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of bids with these columns."""
    return pa.schema([WHOLE_SCHEMA.field(name) for name in columns])


def bid_columns_sql(
    *,
    seed: int = 0,
    events_per_second: int = 10_000,
    base_time: datetime = BASE_TIME,
    columns: Sequence[str] = tuple(SCHEMA.names),
) -> tuple[str, ...]:
    """Spark SQL expressions for the columns of bid `n`, where `n` is a column of type bigint."""
    draw = draw_sql(seed)
    rounds = f"n div {BIDS_PER_ROUND}"
    last_auction = f"({rounds} * {AUCTIONS_PER_ROUND} + {AUCTIONS_PER_ROUND - 1})"
    oldest_auction = f"greatest({last_auction} - {AUCTIONS_IN_FLIGHT}, 0L)"
    choice = f"({last_auction} - {oldest_auction} + {1 + AUCTION_LEAD})"
    cold_auction = f"{oldest_auction} + {picks_sql(draw, 3, choice)}"
    hot_auction = f"{last_auction} - {last_auction} % {HOT_AUCTION_EVERY}"
    persons = f"({rounds} + 1)"
    active = f"least({persons}, {ACTIVE_PERSONS}L)"
    cold_bidder = f"{persons} - {active} + {picks_sql(draw, 32, active)}"
    hot_bidder = f"{rounds} - ({rounds}) % {HOT_BIDDER_EVERY} + 1"
    event = f"(n + {rounds} * {EVENTS_PER_ROUND - BIDS_PER_ROUND} + {EVENTS_PER_ROUND - BIDS_PER_ROUND})"
    made = {
        "auction": f"{FIRST_ID} + IF({bits_sql(draw, 0, 1)} = 1, {hot_auction}, {cold_auction})",
        "bidder": f"{FIRST_ID} + IF({bits_sql(draw, 1, 2)} > 0, {hot_bidder}, {cold_bidder})",
        "price": prices_sql(draw, 19, within=48),
        "ts": f"timestamp_micros({micros(base_time)}L + {event} * 1000000L div {events_per_second})",
        **_texts_sql(draw_sql(seed, _TEXTS)),
    }
    return tuple(f"{made[name]} AS {name}" for name in columns)


def _texts_sql(draw: str) -> dict[str, str]:
    large, other = bits_sql(draw, 1, 2), picks_sql(draw, 3, CHANNELS)
    is_large = f"{bits_sql(draw, 0, 1)} = 1"
    channel = f"IF({is_large}, {CHANNELS} + {large}, {other})"
    folders = (parts_sql(f"(({channel}) * {factor} + {first}) % {PLACES}", _FOLDER) for factor, first in _FOLDERS)
    number = f"IF({is_large} OR {other} % 10 = 0, '', concat('&channel_id=', {other} * {_CHANNEL_ID}))"
    path = ", '/', ".join(folders)
    return {
        "channel": f"IF({is_large}, {chosen_sql(LARGE_CHANNELS, large)}, concat('channel-', {other}))",
        "url": f"concat('https://www.nexmark.com/', {path}, '/item.htm?query=1', {number})",
        "extra": parts_sql(bits_sql(draw, 19, 12), f"{LEAST_EXTRA} + {picks_sql(draw, 31, EXTRAS)}"),
    }
