"""Nexmark's events: the persons, auctions and bids of an online auction, as sources and as Spark SQL.

Of 50 events (a round) the first is a person, the next three are auctions and the other 46 are bids. Row n of a kind
depends on n and the seed alone, so any part of a stream can be read again and gives the same rows. Ids start at 1000.

The queries of the benchmark, `q0` to `q23` without `q6`, are functions that take streams of these events:

    bids = env.read(ps.nexmark.bids(events=1_000_000)).watermark("ts", delay="4s")
    ps.nexmark.q5(bids).write(ps.parquet("hottest"))
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.connectors.nexmark.auction_rows import AuctionGenerator, auction_columns_sql
from penstock.connectors.nexmark.bid_rows import SCHEMA, WHOLE_SCHEMA, BidGenerator, bid_columns_sql
from penstock.connectors.nexmark.draws import BASE_TIME
from penstock.connectors.nexmark.person_rows import PersonGenerator, person_columns_sql
from penstock.connectors.nexmark.sources import BLOCK_ROWS, Auctions, Bids, Persons
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.connectors.nexmark.queries import (
        q0,
        q1,
        q2,
        q3,
        q4,
        q5,
        q7,
        q8,
        q9,
        q10,
        q11,
        q12,
        q13,
        q14,
        q15,
        q16,
        q17,
        q18,
        q19,
        q20,
        q21,
        q22,
        q23,
        side_input,
    )

__all__ = [
    "BASE_TIME",
    "BLOCK_ROWS",
    "SCHEMA",
    "AuctionGenerator",
    "BidGenerator",
    "PersonGenerator",
    "auction_columns_sql",
    "auctions",
    "auctions_sql",
    "bid_columns_sql",
    "bids",
    "bids_sql",
    "person_columns_sql",
    "persons",
    "persons_sql",
    "q0",
    "q1",
    "q2",
    "q3",
    "q4",
    "q5",
    "q7",
    "q8",
    "q9",
    "q10",
    "q11",
    "q12",
    "q13",
    "q14",
    "q15",
    "q16",
    "q17",
    "q18",
    "q19",
    "q20",
    "q21",
    "q22",
    "q23",
    "shares",
    "side_input",
]


def __getattr__(name: str) -> Any:
    """Import a query when it is first used: a slot that reads events must not wait for the imports of queries."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("penstock.connectors.nexmark.queries"), name)


BidColumns = Sequence[str] | Literal["all"] | None


def bids(
    *,
    events: int,
    seed: int = 0,
    events_per_second: int = 10_000,
    splits: int = 8,
    rate: int | None = None,
    base_time: datetime = BASE_TIME,
    columns: BidColumns = None,
) -> Bids:
    """A stream of `events` bids: auction, bidder, price (int64) and ts (timestamp, UTC).

    `events_per_second` is about event time: how many events, persons and auctions included, share one second of `ts`.
    `rate` is about the clock: all subtasks together hand out at most `rate` bids per second. If `rate` is None, bids
    are handed out as fast as they are read. `columns="all"` has the texts channel, url and extra as well; a list has
    these columns and no other.

        >>> bids(events=1_000_000, columns=("auction", "channel")).schema.names
        ['auction', 'channel']
    """
    return Bids(
        events=events,
        seed=seed,
        events_per_second=events_per_second,
        split_count=splits,
        rate=rate,
        base_time=base_time,
        columns=_columns(columns),
    )


def auctions(
    *,
    events: int,
    seed: int = 0,
    events_per_second: int = 10_000,
    splits: int = 8,
    rate: int | None = None,
    base_time: datetime = BASE_TIME,
) -> Auctions:
    """A stream of `events` auctions: what is sold, by whom (`seller` is the id of a person), and until when.

    The arguments are those of `bids`. With the same seed and the same `events_per_second` these are the auctions of the
    bids.

        >>> auctions(events=1_000).schema.names[:3]
        ['id', 'item_name', 'description']
    """
    return Auctions(
        events=events,
        seed=seed,
        events_per_second=events_per_second,
        split_count=splits,
        rate=rate,
        base_time=base_time,
    )


def persons(
    *,
    events: int,
    seed: int = 0,
    events_per_second: int = 10_000,
    splits: int = 8,
    rate: int | None = None,
    base_time: datetime = BASE_TIME,
) -> Persons:
    """A stream of `events` persons, who sell in auctions and make bids. The arguments are those of `bids`.

    >>> persons(events=1_000).schema.names[:3]
    ['id', 'name', 'email_address']
    """
    return Persons(
        events=events,
        seed=seed,
        events_per_second=events_per_second,
        split_count=splits,
        rate=rate,
        base_time=base_time,
    )


def shares(events: int) -> dict[str, int]:
    """How many of the first `events` events are persons, auctions and bids.

    >>> shares(1_000)
    {'persons': 20, 'auctions': 60, 'bids': 920}
    """
    rounds, rest = divmod(events, 50)
    return {
        "persons": rounds + min(rest, 1),
        "auctions": rounds * 3 + min(max(rest - 1, 0), 3),
        "bids": rounds * 46 + max(rest - 4, 0),
    }


def bids_sql(
    *,
    events: int,
    seed: int = 0,
    events_per_second: int = 10_000,
    base_time: datetime = BASE_TIME,
    columns: BidColumns = None,
) -> str:
    """A Spark SQL query that gives exactly the rows of `bids` with the same arguments (in no particular order)."""
    return _query(
        bid_columns_sql(seed=seed, events_per_second=events_per_second, base_time=base_time, columns=_columns(columns)),
        events,
    )


def auctions_sql(
    *, events: int, seed: int = 0, events_per_second: int = 10_000, base_time: datetime = BASE_TIME
) -> str:
    """A Spark SQL query that gives exactly the rows of `auctions` with the same arguments (in no particular order)."""
    return _query(auction_columns_sql(seed=seed, events_per_second=events_per_second, base_time=base_time), events)


def persons_sql(*, events: int, seed: int = 0, events_per_second: int = 10_000, base_time: datetime = BASE_TIME) -> str:
    """A Spark SQL query that gives exactly the rows of `persons` with the same arguments (in no particular order)."""
    return _query(person_columns_sql(seed=seed, events_per_second=events_per_second, base_time=base_time), events)


def _query(columns: Sequence[str], events: int) -> str:
    return f"SELECT {', '.join(columns)} FROM (SELECT id AS n FROM range({events}))"


def _columns(given: BidColumns) -> tuple[str, ...]:
    if given is None:
        return tuple(SCHEMA.names)
    if given == "all":
        return tuple(WHOLE_SCHEMA.names)
    unknown = [name for name in given if name not in WHOLE_SCHEMA.names]
    if isinstance(given, str) or unknown or not given:
        raise UsageError(
            f"columns is {given!r}; bids have the columns {', '.join(WHOLE_SCHEMA.names)}",
            hint="give a list of columns, or 'all'",
        )
    return tuple(given)
