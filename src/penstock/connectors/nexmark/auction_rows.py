"""Nexmark's auctions.

Auction n is event (n // 3) * 50 + 1 + n % 3. Its fields are cut from four draws:

salt 20  bits 0-1 not both zero: the seller is the hot seller (three quarters of the auctions)
         bits 16-31 if not the hot seller: one of the last 1000 persons
         bits 32-47 the category; bits 48-63 how long the auction lasts
salt 21  two prices: the initial bid, and what the reserve is above the initial bid
salt 22  the name of the item, and its description: where they begin (12 bits each), how long they are (16 bits)
salt 23  the same for `extra`
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.nexmark.draws import (
    FIRST_ID,
    Draws,
    bits,
    bits_sql,
    draw_sql,
    micros,
    picks,
    picks_sql,
    prices,
    prices_sql,
)
from penstock.connectors.nexmark.texts import parts, parts_sql, short_parts

_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64()),
    pa.field("item_name", pa.string()),
    pa.field("description", pa.string()),
    pa.field("initial_bid", pa.int64()),
    pa.field("reserve", pa.int64()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("expires", pa.timestamp("us", "UTC")),
    pa.field("seller", pa.int64()),
    pa.field("category", pa.int64()),
    pa.field("extra", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
EVENTS_PER_ROUND = 50
AUCTIONS_PER_ROUND = 3
AUCTIONS_IN_FLIGHT = 100
HOT_SELLER_EVERY = 100
ACTIVE_PERSONS = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
LEAST_NAME, NAMES = 3, 17
LEAST_DESCRIPTION, DESCRIPTIONS = 3, 97
LEAST_EXTRA, EXTRAS = 312, 156
"""An auction has 500 bytes on average."""

_FACTS, _PRICES, _TEXTS, _EXTRA = 20, 21, 22, 23


def _longest_us(events_per_second: int) -> int:
    """An auction lasts up to this long: twice the time in which 100 auctions are made."""
    return max(1, 2 * (AUCTIONS_IN_FLIGHT * EVENTS_PER_ROUND // AUCTIONS_PER_ROUND) * 1_000_000 // events_per_second)


class AuctionGenerator:
    """Makes any range of auctions."""

    def __init__(self, *, seed: int, events_per_second: int, base_time: datetime) -> None:
        self._events_per_second = events_per_second
        self._base_us = micros(base_time)
        self._facts, self._prices, self._texts, self._extra = (
            Draws(seed, salt) for salt in (_FACTS, _PRICES, _TEXTS, _EXTRA)
        )

    def batch(self, start: int, stop: int) -> pa.RecordBatch:
        """Auctions from `start` up to, not including, `stop`."""
        count = stop - start
        numbers = np.arange(start, stop, dtype=np.int64)
        facts, drawn, texts, extra = (
            draws.of(start, count) for draws in (self._facts, self._prices, self._texts, self._extra)
        )
        rounds, place = np.divmod(numbers, AUCTIONS_PER_ROUND)
        events = rounds * EVENTS_PER_ROUND + 1 + place
        times = events * 1_000_000 // self._events_per_second + self._base_us
        active = np.minimum(rounds + 1, ACTIVE_PERSONS)
        cold = rounds + 1 - active + picks(facts, 16, active)
        initial = prices(drawn, 0)
        columns: list[Any] = [
            pa.array(numbers + FIRST_ID),
            short_parts(bits(texts, 0, 12), LEAST_NAME + picks(texts, 24, NAMES)),
            short_parts(bits(texts, 12, 12), LEAST_DESCRIPTION + picks(texts, 40, DESCRIPTIONS)),
            pa.array(initial),
            pa.array(initial + prices(drawn, 29)),
            pa.array(times).view(SCHEMA.field("ts").type),
            pa.array(times + 1 + picks(facts, 48, _longest_us(self._events_per_second))).view(SCHEMA.field("ts").type),
            pa.array(FIRST_ID + np.where(bits(facts, 0, 2) != 0, rounds - rounds % HOT_SELLER_EVERY, cold)),
            pa.array(FIRST_CATEGORY + picks(facts, 32, CATEGORIES)),
            parts(bits(extra, 0, 12), LEAST_EXTRA + picks(extra, 12, EXTRAS)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def auction_columns_sql(*, seed: int, events_per_second: int, base_time: datetime) -> tuple[str, ...]:
    """Spark SQL expressions for the columns of auction `n`, where `n` is a column of type bigint."""
    facts, drawn, texts, extra = (draw_sql(seed, salt) for salt in (_FACTS, _PRICES, _TEXTS, _EXTRA))
    rounds = f"(n div {AUCTIONS_PER_ROUND})"
    event = f"({rounds} * {EVENTS_PER_ROUND} + 1 + n % {AUCTIONS_PER_ROUND})"
    time = f"{micros(base_time)}L + {event} * 1000000L div {events_per_second}"
    active = f"least({rounds} + 1, {ACTIVE_PERSONS}L)"
    cold = f"{rounds} + 1 - {active} + {picks_sql(facts, 16, active)}"
    hot = f"{rounds} - {rounds} % {HOT_SELLER_EVERY}"
    name = parts_sql(bits_sql(texts, 0, 12), f"{LEAST_NAME} + {picks_sql(texts, 24, NAMES)}")
    description = parts_sql(bits_sql(texts, 12, 12), f"{LEAST_DESCRIPTION} + {picks_sql(texts, 40, DESCRIPTIONS)}")
    lasts = picks_sql(facts, 48, f"{_longest_us(events_per_second)}L")
    return (
        f"{FIRST_ID} + n AS id",
        f"{name} AS item_name",
        f"{description} AS description",
        f"{prices_sql(drawn, 0)} AS initial_bid",
        f"{prices_sql(drawn, 0)} + {prices_sql(drawn, 29)} AS reserve",
        f"timestamp_micros({time}) AS ts",
        f"timestamp_micros({time} + 1 + {lasts}) AS expires",
        f"{FIRST_ID} + IF({bits_sql(facts, 0, 2)} > 0, {hot}, {cold}) AS seller",
        f"{FIRST_CATEGORY} + {picks_sql(facts, 32, CATEGORIES)} AS category",
        f"{parts_sql(bits_sql(extra, 0, 12), f'{LEAST_EXTRA} + {picks_sql(extra, 12, EXTRAS)}')} AS extra",
    )
