"""Joins of a stream with another stream, with versions or with a table."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, Literal, Self

from penstock.api.boundary import at_user_line
from penstock.api.expressions import ExpressionLike
from penstock.api.state import Ttl
from penstock.api.static_tables import static_table
from penstock.api.streams.join_words import (
    How,
    JoinWords,
    On,
    Versions,
    Within,
    check_joinable,
    check_same_environment,
    check_versions,
    interval_of,
    joined_by_time,
    joined_with_table,
    joined_with_versions,
    window_reach,
)
from penstock.api.streams.regular_joins import joined_without_limit
from penstock.api.streams.stream_state import StreamState
from penstock.api.windows import WindowType
from penstock.core.durations import Duration, duration_ms
from penstock.core.errors import UsageError

_BY_KEY = "by key"
_SPREADS = ("copies", _BY_KEY)
_LEAST_REFRESH_MS = 1_000


def _check_goes_with(fits: bool, rule: str) -> None:  # noqa: FBT001  # the check of a rule
    """Refuses an argument that means nothing for what is joined."""
    if not fits:
        raise UsageError(f"join: {rule}", hint="leave it out")


def _refresh_ms(given: Duration) -> int:
    every_ms = duration_ms(given, argument="join: refresh")
    if every_ms < _LEAST_REFRESH_MS:
        raise UsageError(f"join: refresh is {given!r}; a table is read anew every second at most")
    return every_ms


@at_user_line
class Joins:
    """The methods of a stream that join it with something else."""

    _state: StreamState

    def _with_state(self, state: StreamState) -> Self:
        raise NotImplementedError

    def join(  # noqa: PLR0913  # one keyword per part
        self,
        other: Joins | VersionedStream | Any,
        *,
        on: On,
        how: How = "inner",
        within: Within | None = None,
        window: WindowType | None = None,
        ttl: Ttl | Duration | EllipsisType | None = ...,
        where: ExpressionLike | None = None,
        as_of: str | None = None,
        spread: Literal["copies", "by key"] = "copies",
        refresh: Duration | None = None,
        suffix: str | None = None,
        name: str | None = None,
    ) -> Self:
        """The records of this stream (left) together with the records of another stream (right) that have the same key
        and a time near by, or the same key whatever their times; with the version of their key that held at their time;
        or with the rows of a table that have the same key.

        With `within` or `window` two streams need event time:

        >>> from datetime import datetime
        >>> import penstock as ps
        >>> from penstock.testing import collect, run
        >>> def minute(n):
        ...     return datetime(2026, 1, 1, 12, n)
        >>> def program(env):
        ...     orders = env.from_iterable([{"id": 1, "ts": minute(0)}, {"id": 2, "ts": minute(1)}], name="orders")
        ...     payments = env.from_iterable([{"id": 1, "paid": minute(9)}, {"id": 2, "paid": minute(59)}], name="paid")
        ...     joined = orders.watermark("ts").join(
        ...         payments.watermark("paid"), on="id", within=("0s", "15 min"), how="left")
        ...     joined.select("id", minute="minute(paid)").write(collect())
        >>> sorted(run(program), key=lambda row: row["id"])
        [{'id': 1, 'minute': 9}, {'id': 2, 'minute': None}]

        With `ttl`, and without `within` and `window`, times do not matter. A row is kept for `ttl` after it came, or
        for ever with `ttl=None`. Changelogs can be joined, too. Unless it is an inner or a semi join of records that
        stay as they are, the result is a changelog: a row without a match is taken back when its match comes.

        >>> def program(env):
        ...     people = env.from_iterable([{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}], name="people")
        ...     sales = env.from_iterable([{"seller": 1, "price": 5}, {"seller": 1, "price": 7}], name="sales")
        ...     sums = sales.key_by("seller").aggregate(total=ps.sum("price"))
        ...     people.join(sums, on={"id": "seller"}, how="left", ttl=None).write(collect())
        >>> sorted(run(program), key=lambda row: row["id"])
        [{'id': 1, 'name': 'ann', 'total': 12}, {'id': 2, 'name': 'bob', 'total': None}]

        A table is a batch DataFrame of Spark, a `pa.Table`, or a DataFrame of Polars or pandas. It is read once, when
        the job starts, and does not change while the job runs. A DataFrame of Spark can be read anew every so often,
        with `refresh="1 h"`.

        >>> import pyarrow as pa
        >>> items = pa.table({"item": [1, 2], "title": ["pen", "ink"]})
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": 2, "price": 5}, {"item": 3, "price": 7}])
        ...     bids.join(items, on="item", how="left").write(collect())
        >>> sorted(run(program), key=lambda row: row["item"])
        [{'item': 2, 'price': 5, 'title': 'ink'}, {'item': 3, 'price': 7, 'title': None}]

        `versioned` makes versions of a stream. Each record waits for the watermark, and then gets the last version of
        its key that is not later than the record.

        >>> def program(env):
        ...     orders = env.from_iterable([{"item": 2, "ts": minute(5)}], name="orders").watermark("ts")
        ...     prices = [{"item": 2, "price": price, "since": minute(price)} for price in (3, 4, 6)]
        ...     versions = env.from_iterable(prices, name="prices").watermark("since").versioned("item")
        ...     orders.join(versions, on="item", as_of="ts").select("item", "price").write(collect())
        >>> run(program)
        [{'item': 2, 'price': 4}]

        A record is kept until the watermark says that no match can come. A record without a match is handed on then,
        with nulls in the columns of the other stream, if `how` wants that. A null key matches nothing. Records that are
        not after the watermark are late: they are dropped and counted, or read by `late()` and `late(of="right")`.

        The columns are those of `on`, with their names in this stream, then the other columns of this stream, then
        those of the other stream. Behind the join the stream has the event time of this stream, behind a right join
        that of the other stream, behind windows the end of the window, and behind a full join without windows none.

        Args:
            other: the right stream, a versioned stream, or a table.
            on: the columns that must be equal: a name, several names, or a dict from names in this stream to names in
                the other stream.
            how: "inner" pairs of records that match; "left", "right" and "full" the same, and the records of the left
                stream, the right stream or both that match nothing; "semi" the records of the left stream that match
                something, once; "anti" the records of the left stream that match nothing. With versions and
                with a table there are "inner", "left", "semi" and "anti".
            within: the least and the greatest time of the right record minus the time of the left record, both
                included: `("0s", "15 min")`, `("-5 min", "1 h")`. One duration stands for both directions.
            window: instead of `within`, the window that both records are in: `tumbling("10s")`. The results have
                `window_start` and `window_end`.
            ttl: for two streams instead of `within` and `window`: how long, by the clock, a row of either stream is
                kept for rows of the other stream that come later; None for ever.
            where: a condition over the columns of both streams that pairs must meet.
            as_of: the column with the event time of this stream, for people who read a join with versions.
            spread: where a table is kept: "copies" the whole table in every subtask, so that records stay where they
                are; "by key" the rows of a key in one subtask, which gets all records of the key: for large tables.
            refresh: how often the driver reads a DataFrame of Spark anew, as in refresh="1 h". Records are joined with
                the newest version that their subtask has read; None: the table is read once.
            suffix: what is appended to the names of columns of the right stream that the left stream has, too.
            name: the name of the step. The state of the join is kept under that name.

        """
        words = JoinWords(on=on, how=how, where=where, suffix=suffix, name=name)
        if spread not in _SPREADS:
            raise UsageError(f"join: spread is {spread!r}", hint='give "copies" or "by key"')
        is_of_streams = isinstance(other, Joins)
        is_of_table = not is_of_streams and not isinstance(other, VersionedStream)
        _check_goes_with(ttl is ... or is_of_streams, "ttl says how long rows of two streams are kept")
        _check_goes_with(refresh is None or is_of_table, "refresh says how often a table is read anew")
        if isinstance(other, VersionedStream):
            versions = other._versions  # noqa: SLF001  # streams know each other
            if within is not None or window is not None:
                raise UsageError("join: a version holds until the next version", hint="leave out within and window")
            check_joinable(self._state, versions.state)
            return self._with_state(joined_with_versions(self._state, versions, words, as_of=as_of))
        if as_of is not None:
            raise UsageError(
                "join: as_of is for versions", hint='give a versioned stream: .join(rates.versioned("currency"), ...)'
            )
        if not isinstance(other, Joins):
            table = static_table(other, self._state.ledger.table_host)
            if table is None:
                raise UsageError(f"join takes a stream or a table, not {other!r}")
            if within is not None or window is not None:
                raise UsageError("join: the rows of a table have no event time", hint="leave out within and window")
            self._state.refuse_changelog("join")
            if refresh is not None:
                table = table.refreshed(_refresh_ms(refresh))
            return self._with_state(joined_with_table(self._state, table, words, by_key=spread == _BY_KEY))
        if spread == _BY_KEY:
            raise UsageError("join: spread says where a table is kept; streams are always joined by key")
        right: StreamState = other._state  # noqa: SLF001  # streams know each other
        given = [name for name, value in (("within", within), ("window", window)) if value is not None]
        given += [] if ttl is ... else ["ttl"]
        if len(given) != 1:
            raise UsageError(
                f"join: {' and '.join(given)} were both given" if given else "join: give within, window or ttl",
                hint='for example within=("0s", "15 min"), window=tumbling("10s"), or ttl="1 h" if times do not '
                "matter; ttl=None keeps every row of both streams for ever",
            )
        if not isinstance(ttl, EllipsisType):
            check_same_environment(self._state, right)
            return self._with_state(joined_without_limit(self._state, right, words, ttl=ttl))
        check_joinable(self._state, right)
        reach = interval_of(within) if window is None else window_reach(window)
        return self._with_state(joined_by_time(self._state, right, reach, words))

    def versioned(self, *keys: str) -> VersionedStream:
        """The records of this stream as versions: a record holds from its time on, for the records with the same values
        in `keys`, until the next record with these values. For `join`, which has an example.

        Of two versions of the same key and time the version that came later holds. The stream needs event time. A
        version that comes behind the watermark holds for the records that are still to be handed on.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def at(hour):
        ...     return datetime.datetime(2026, 1, 1, hour)
        >>> def program(env):
        ...     orders = env.from_iterable([{"item": "pen", "ts": at(hour)} for hour in (9, 11)], name="orders")
        ...     changes = [{"item": "pen", "price": 3, "since": at(8)}, {"item": "pen", "price": 5, "since": at(10)}]
        ...     prices = env.from_iterable(changes, name="prices").watermark("since").versioned("item")
        ...     priced = orders.watermark("ts").join(prices, on="item", as_of="ts")
        ...     priced.select("price", hour="hour(ts)").write(ps.collect())
        >>> sorted(run(program), key=lambda row: row["hour"])
        [{'price': 3, 'hour': 9}, {'price': 5, 'hour': 11}]
        """
        versions = Versions(self._state, keys)
        check_versions(versions)
        return VersionedStream(versions)


@at_user_line
class VersionedStream:
    """The records of a stream as versions. Made by `Stream.versioned`, for `Stream.join`."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def __repr__(self) -> str:
        return f"<VersionedStream by {', '.join(self._versions.keys)} of {self._versions.state.described()}>"
