"""The queries of Nexmark, each beside the same query as Spark SQL over all events at once.

Spark SQL reads the views `persons`, `auctions` and `bids`, which have the events that the sources have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.api.changelog import ROW_KIND
from penstock.bench.comparison import Comparison, compare
from penstock.bench.structured_streaming import session_settings
from penstock.connectors import nexmark
from penstock.connectors.nexmark import queries
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.api.connector import Sink, Source
    from penstock.api.program import Program
    from penstock.api.streams.data_stream import Stream
    from penstock.connectors.nexmark.sources import NumberedRows

LATENESS = "4s"

_BID = ("auction", "bidder", "price", "ts", "extra")
_EUROS = "CAST(0.908 * price AS DECIMAL(23, 3))"
_DAY, _MINUTE = "date_format(ts, 'yyyy-MM-dd')", "date_format(ts, 'HH:mm')"
_RANKS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query."""

    build: Callable[..., Stream]
    columns: tuple[str, ...]
    """The columns of bids that the query needs."""
    sql: str
    """The same query as Spark SQL."""
    keys: tuple[str, ...]
    """The columns that tell the rows of the result apart."""
    found: str = "SELECT * FROM found"
    """What of the view `found`, which has the result, is compared."""
    has_equal_rows: bool = False
    """Whether rows of the result may be equal in all columns. Then it is compared how often each row is there."""
    partition_by: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For example `q5`."""
        return self.build.__name__

    @property
    def sentence(self) -> str:
        """What the query is about."""
        return (inspect.getdoc(self.build) or "").splitlines()[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events that the query reads."""
        return tuple(inspect.signature(self.build).parameters)


def _ranked(aggregate: str, of: str) -> str:
    """An aggregate of all bids, and of those in each range of prices."""
    filtered = (f"{aggregate} FILTER (WHERE {rank}) AS rank{n}_{of}" for n, rank in enumerate(_RANKS, 1))
    return ", ".join((f"{aggregate} AS total_{of}", *filtered))


_COUNTED = ", ".join(
    _ranked(aggregate, of)
    for aggregate, of in (
        ("count(*)", "bids"),
        ("count(DISTINCT bidder)", "bidders"),
        ("count(DISTINCT auction)", "auctions"),
    )
)
_HOT = "SELECT auction, count(*) AS num, window.start AS window_start, window.end AS window_end FROM bids "
_HOT += "GROUP BY auction, window(ts, '10 seconds', '2 seconds')"
_CHANNELS = " ".join(f"WHEN lower(channel) = '{name}' THEN '{number}'" for name, number in queries.CHANNEL_IDS.items())
_IN_URL = "CASE WHEN url RLIKE '(&|^)channel_id=' THEN regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END"

_WHOLE_BID = ("auction", "bidder", "price", "channel", "url", "ts", "extra")
_IN_TIME = "auctions a JOIN bids b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires"
_PERSON = "name, email_address, credit_card, city, state"
_OFFER = "item_name, description, initial_bid, reserve"

_ALL = (
    Query(build=queries.q0, columns=_BID, keys=("ts",), sql="SELECT auction, bidder, price, ts, extra FROM bids"),
    Query(
        build=queries.q1,
        columns=_BID,
        keys=("ts",),
        sql=f"SELECT auction, bidder, ts, extra, {_EUROS} AS price FROM bids",
    ),
    Query(
        build=queries.q2,
        columns=("auction", "price"),
        keys=("auction", "price"),
        sql="SELECT auction, price FROM bids WHERE auction % 123 = 0",
        has_equal_rows=True,
    ),
    Query(
        build=queries.q3,
        columns=(),
        keys=("id",),
        sql="SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id "
        "WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')",
    ),
    Query(
        build=queries.q4,
        columns=("auction", "price", "ts"),
        keys=("category",),
        sql="SELECT category, avg(final) AS final FROM (SELECT max(b.price) AS final, a.category "
        f"FROM {_IN_TIME} GROUP BY a.id, a.category) GROUP BY category",
    ),
    Query(
        build=queries.q5,
        columns=("auction", "ts"),
        keys=("auction", "window_start"),
        sql=f"SELECT auction, num, window_start, window_end FROM ({_HOT}) WHERE (window_start, num) IN "
        f"(SELECT window_start, max(num) FROM ({_HOT}) GROUP BY window_start)",
    ),
    Query(
        build=queries.q7,
        columns=_BID,
        keys=("ts",),
        sql="SELECT b.auction, b.bidder, b.price, b.ts, b.extra FROM bids b JOIN (SELECT max(price) AS highest, "
        "window.end AS ending FROM bids GROUP BY window(ts, '10 seconds')) ON b.price = highest "
        "WHERE b.ts BETWEEN ending - INTERVAL 10 SECONDS AND ending",
    ),
    Query(
        build=queries.q8,
        columns=(),
        keys=("id",),
        sql="SELECT p.id, p.name, p.starttime FROM (SELECT id, name, window.start AS starttime FROM persons GROUP BY "
        "id, name, window(ts, '10 seconds')) p JOIN (SELECT seller, window.start AS starttime FROM auctions GROUP BY "
        "seller, window(ts, '10 seconds')) a ON p.id = a.seller AND p.starttime = a.starttime",
    ),
    Query(
        build=queries.q9,
        columns=_BID,
        keys=("id",),
        sql="SELECT * EXCEPT (place) FROM (SELECT a.*, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS "
        "bid_extra, row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts ASC) AS place "
        f"FROM {_IN_TIME}) WHERE place <= 1",
    ),
    Query(
        build=queries.q10,
        columns=_BID,
        keys=("ts",),
        sql=f"SELECT auction, bidder, price, ts, extra, {_DAY} AS dt, {_MINUTE} AS hm FROM bids",
        partition_by=("dt", "hm"),
    ),
    Query(
        build=queries.q11,
        columns=("bidder", "ts"),
        keys=("bidder", "starttime"),
        sql="SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime "
        "FROM bids GROUP BY bidder, session_window(ts, '10 seconds')",
    ),
    Query(
        build=queries.q12,
        columns=("bidder", "ts"),
        keys=("bidder",),
        sql="SELECT bidder, count(*) AS bid_count FROM bids GROUP BY bidder",
        found="SELECT bidder, sum(bid_count) AS bid_count FROM found GROUP BY bidder",
    ),
    Query(
        build=queries.q13,
        columns=("auction", "bidder", "price", "ts"),
        keys=("ts",),
        sql="SELECT auction, bidder, price, ts, concat('value ', auction % 10000) AS value FROM bids",
    ),
    Query(
        build=queries.q14,
        columns=_BID,
        keys=("ts",),
        sql=f"""SELECT auction, bidder, ts, extra, {_EUROS} AS price, CASE
            WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
            WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
            CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
            FROM bids WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    ),
    Query(
        build=queries.q15,
        columns=("auction", "bidder", "price", "ts"),
        keys=("day",),
        sql=f"SELECT {_DAY} AS day, {_COUNTED} FROM bids GROUP BY {_DAY}",
    ),
    Query(
        build=queries.q16,
        columns=("auction", "bidder", "price", "channel", "ts"),
        keys=("channel", "day"),
        sql=f"SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute, {_COUNTED} FROM bids GROUP BY channel, {_DAY}",
    ),
    Query(
        build=queries.q17,
        columns=("auction", "price", "ts"),
        keys=("auction", "day"),
        sql=f"SELECT auction, {_DAY} AS day, {_ranked('count(*)', 'bids')}, min(price) AS min_price, "
        f"max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price FROM bids GROUP BY auction, {_DAY}",
    ),
    Query(
        build=queries.q18,
        columns=_WHOLE_BID,
        keys=("bidder", "auction"),
        sql="SELECT * EXCEPT (place) FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) "
        "AS place FROM bids) WHERE place <= 1",
    ),
    Query(
        build=queries.q19,
        columns=_WHOLE_BID,
        keys=("auction", "rank_number"),
        # The reference says nothing about bids with the same price.
        sql="SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, bidder, channel, "
        "url, ts, extra) AS rank_number FROM bids) WHERE rank_number <= 10",
    ),
    Query(
        build=queries.q20,
        columns=_WHOLE_BID,
        keys=("bid_ts",),
        sql=f"SELECT auction, bidder, price, channel, url, b.ts AS bid_ts, b.extra AS bid_extra, {_OFFER}, "
        "a.ts AS auction_ts, expires, seller, category, a.extra AS auction_extra "
        "FROM bids b JOIN auctions a ON b.auction = a.id WHERE a.category = 10",
    ),
    Query(
        build=queries.q21,
        columns=("auction", "bidder", "price", "channel", "url", "ts"),
        keys=("auction", "bidder", "price", "channel"),
        sql=f"SELECT * FROM (SELECT auction, bidder, price, channel, CASE {_CHANNELS} ELSE {_IN_URL} END AS channel_id "
        "FROM bids) WHERE channel_id IS NOT NULL",
        has_equal_rows=True,
    ),
    Query(
        build=queries.q22,
        columns=("auction", "bidder", "price", "channel", "url", "ts"),
        keys=("auction", "bidder", "price", "channel"),
        sql="SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, split(url, '/')[4] AS dir2, "
        "split(url, '/')[5] AS dir3 FROM bids",
        has_equal_rows=True,
    ),
    Query(
        build=queries.q23,
        columns=("bidder", "price", "channel", "url", "extra"),
        keys=("bidder", "price", "channel", "bid_extra", "auction_ts"),
        sql=f"SELECT bidder, price, channel, url, b.extra AS bid_extra, p.id AS person_id, {_PERSON}, p.extra AS "
        f"person_extra, {_OFFER}, a.ts AS auction_ts, expires, seller, category, a.extra AS auction_extra "
        "FROM bids b JOIN persons p ON p.id = b.bidder JOIN auctions a ON a.seller = b.bidder",
        has_equal_rows=True,
    ),
)
QUERIES: Mapping[str, Query] = {query.name: query for query in _ALL}
LEFT_OUT = {"q6": "the public runner of the benchmark does not run q6"}


def query_of(name: str) -> Query:
    """The query of this name. Raises `UsageError` if there is none."""
    found = QUERIES.get(name.lower() if name[:1] in "qQ" else f"q{name}")
    if found is not None:
        return found
    if name in LEFT_OUT:
        raise UsageError(f"there is no query {name!r}: {LEFT_OUT[name]}")
    close = get_close_matches(name, QUERIES, n=1, cutoff=0.3)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"there is no query {name!r}", hint=f"{hint}the queries are {', '.join(QUERIES)}")


@dataclass(frozen=True, kw_only=True)
class Events:
    """Which events there are."""

    events: int
    seed: int = 1
    events_per_second: int = 10_000
    base_time: datetime = nexmark.BASE_TIME

    def rows(self, query: Query) -> int:
        """How many events a query reads."""
        return sum(nexmark.shares(self.events)[kind] for kind in query.kinds)

    def sources(self, query: Query) -> dict[str, NumberedRows]:
        """The sources that a query reads, by kind."""
        made: dict[str, NumberedRows] = {}
        for kind in query.kinds:
            given: dict[str, Any] = {"events": nexmark.shares(self.events)[kind], "seed": self.seed}
            given |= {"events_per_second": self.events_per_second, "base_time": self.base_time}
            if kind == "bids":
                made[kind] = nexmark.bids(**given, columns=query.columns)
            else:
                made[kind] = nexmark.auctions(**given) if kind == "auctions" else nexmark.persons(**given)
        return made

    def columns_sql(self, kind: str, columns: Sequence[str]) -> tuple[str, ...]:
        """Spark SQL expressions for the columns of row `n` of a kind; `columns` are those of bids."""
        given: dict[str, Any] = {"seed": self.seed, "events_per_second": self.events_per_second}
        given |= {"base_time": self.base_time}
        if kind == "bids":
            return nexmark.bid_columns_sql(**given, columns=columns)
        return nexmark.auction_columns_sql(**given) if kind == "auctions" else nexmark.person_columns_sql(**given)


def add_query(program: Program, query: Query, sources: Mapping[str, Source], sink: Sink) -> None:
    """Add a query to a program. The changes of a result that changes are written, with their kind."""
    result = query.build(*(_timed(program.read(sources[kind], name=kind)) for kind in query.kinds))
    (result.changes() if ROW_KIND in result.schema.names else result).write(sink)


def _timed(rows: Stream) -> Stream:
    return rows.watermark("ts", delay=LATENESS) if "ts" in rows.schema.names else rows


def compare_with_spark(spark: Any, query: Query, events: Events, output: Path) -> Comparison:
    """Compare what a job has written into a folder with the result of the query by Spark SQL over all events."""
    for kind in query.kinds:
        numbers = spark.range(nexmark.shares(events.events)[kind]).withColumnRenamed("id", "n")
        numbers.selectExpr(*events.columns_sql(kind, query.columns)).createOrReplaceTempView(kind)
    asked, given = query.sql, query.found
    if query.has_equal_rows:
        asked, given = (f"SELECT *, count(*) AS n FROM ({rows}) GROUP BY ALL" for rows in (asked, given))
    expected = spark.sql(asked)
    # If the job wrote no row, the folder does not exist, and Spark cannot read an empty folder.
    if output.exists() and any(output.rglob("*.parquet")):
        # The values of partitions are texts, whatever they look like.
        with session_settings(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):
            _as_rows(spark.read.parquet(output.as_uri())).createOrReplaceTempView("found")
            found = spark.sql(given)
    else:
        found = expected.where("false")
    values = [name for name in expected.columns if name not in query.keys]
    return compare(expected, found, keys=query.keys, values=values)


def _as_rows(output: Any) -> Any:
    """A result that changes, put together from its changes: a row is there as often as the changes say."""
    from pyspark.sql import functions as sql

    if ROW_KIND not in output.columns:
        return output
    columns = [name for name in output.columns if name != ROW_KIND]
    sign = sql.when(sql.col(ROW_KIND).isin("insert", "update_after"), 1).otherwise(-1)
    left = output.groupBy(*columns).agg(sql.sum(sign).alias("_times")).where("_times <> 0")
    return left.selectExpr(*columns, "explode(sequence(1L, abs(_times))) AS _one").drop("_one")
