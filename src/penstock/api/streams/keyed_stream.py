"""Records that belong together by key."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import pyarrow as pa

from penstock.api.aggregate_functions import AggregateFunction
from penstock.api.aggregates import AggregateCall
from penstock.api.boundary import at_user_line
from penstock.api.callables import check_callable, refuse_async_methods
from penstock.api.functions import KeyedBroadcastFunction, KeyedCoFunction, KeyedFunction, check_function
from penstock.api.grouped import HostedProcessor
from penstock.api.patterns import Pattern
from penstock.api.reductions import RunningReduce
from penstock.api.state import Ttl
from penstock.api.streams.connected_stream import ConnectedKeyedStreams, ConnectedStream
from penstock.api.streams.data_stream import Stream, stream_behind
from penstock.api.streams.matching import matches_of_keys
from penstock.api.streams.ranking import By, Descending, TopWords, top_of_keys
from penstock.api.streams.running_aggregate import running_aggregate
from penstock.api.streams.sorting import sorted_by_time
from penstock.api.streams.stream_state import Row, StreamState, keyed_step
from penstock.api.streams.windowed_stream import WindowedStream, windowed
from penstock.api.waiting import wait_for
from penstock.api.windows import WindowType
from penstock.core.durations import Duration
from penstock.core.errors import UsageError
from penstock.sql.schemas import SchemaLike


@at_user_line
class KeyedStream:
    """Records that belong together by key. Made by `Stream.key_by`."""

    def __init__(self, state: StreamState, keys: tuple[str, ...]) -> None:
        self._state = state
        self._keys = keys

    def window(self, window: WindowType, *, allowed_lateness: Duration = "0s") -> WindowedStream:
        """The records of each key, cut into windows of event time. Needs a watermark before `key_by`.

        A record that comes behind the watermark, by `allowed_lateness` at most, still counts in its window. The result
        of the window waits for such records, or is updated by them: see `Stream.final` and `Stream.updates`.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     noon = datetime.datetime(2026, 1, 1, 12)
        ...     rows = [{"user": "ann", "ts": noon}, {"user": "bob", "ts": noon}, {"user": "ann", "ts": noon}]
        ...     clicks = env.from_iterable(rows)
        ...     windows = clicks.watermark("ts").key_by("user").window(ps.tumbling("10 min"))
        ...     windows.aggregate(clicks=ps.count()).select("user", "clicks").write(ps.collect())
        >>> sorted(run(program), key=str)
        [{'user': 'ann', 'clicks': 2}, {'user': 'bob', 'clicks': 1}]
        """
        return windowed(self._state, self._keys, window, allowed_lateness=allowed_lateness)

    def aggregate(
        self, *, ttl: Ttl | Duration | None = None, **aggregates: AggregateCall | AggregateFunction
    ) -> Stream:
        """A **changelog** of one row per key: the keys and one column per aggregate, over all records of the key so
        far. Every batch of records that changes the row of a key gives its changes, told apart by the last column,
        `row_kind`: an `insert`, or an `update_before` and an `update_after`. If nothing in the row is changed, there is
        no change.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     lines = env.from_iterable(["to be", "or not to be"], schema="line string")
        ...     words = lines.select(word="explode(split(line, ' '))")
        ...     words.key_by("word").aggregate(n=ps.count()).where("n > 1").write(ps.collect())
        >>> sorted(run(program), key=str)
        [{'word': 'be', 'n': 2}, {'word': 'to', 'n': 2}]

        `collect()` gives the rows after all changes, and `changes()` is the stream of the changes themselves. A stream
        that is a changelog itself can be aggregated: rows that it changes are taken back, and a key that has no rows
        left is a `delete`. State is one row per key. With `ttl="1h"` the row of a key is forgotten, without a change,
        an hour after the last record of the key: the next record of the key makes an `insert`.

        To name the step, call `.name(...)` on the result; the state of the step is kept under that name.
        """
        return Stream(running_aggregate(self._state, self._keys, aggregates, ttl))

    def top(
        self,
        n: int,
        *,
        by: By,
        descending: Descending = True,
        rank: str | None = None,
        ttl: Ttl | Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """A **changelog** of the first `n` records of each key, in the order of the columns in `by`, of all records so
        far: the greatest values first, or with `descending=False` the smallest. `descending` may have a direction for
        each column.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [("pen", 3), ("pen", 7), ("ink", 8), ("pen", 5)]
        ...     bids = env.from_iterable(rows, schema="item string, price bigint")
        ...     bids.key_by("item").top(2, by="price", rank="place").write(ps.collect())
        >>> sorted(run(program), key=lambda row: (row["item"], row["place"]))[1:]
        [{'item': 'pen', 'price': 7, 'place': 1}, {'item': 'pen', 'price': 5, 'place': 2}]

        Records are ordered as Spark orders them: nulls are first in ascending order, and last in descending order. NaN
        is greater than every number. Records that are equal in `by` are ordered by all their other columns, in the
        order of the columns, ascending. `rank="place"` adds a column with the place of each record, from 1.

        A record that comes among the first is an `insert`, and a record that is no longer among them a `delete`. With
        `rank`, and for `n=1`, a record that takes the place of another record is an update. A changelog can be ordered,
        too: then all rows of a key are state, so that the next row follows when a row is taken back. Otherwise `n`
        records of each key are state. With `ttl="1h"` the records of a key are forgotten, without a change, an hour
        after the last record of the key. State is kept under `name`.
        """
        words = TopWords(most=n, by=by, descending=descending, rank=rank)
        return Stream(top_of_keys(self._state, self._keys, words, ttl=ttl, name=name))

    def sort(self, by: By | None = None, *, descending: Descending = False, name: str | None = None) -> Stream:
        """The records of each key in the order of their event time: a record leaves when the watermark has come to its
        time, behind all records of earlier times.

        A subtask hands on the records of all its keys in the order of their times. So the steps that follow without an
        exchange, such as `select` and `write`, get records in order. Behind an exchange the records of several subtasks
        are mixed: only the records of one key, sent by that key, are still in order. Needs a watermark before; see
        `Stream.sort` for `by`, late records and ties.

        >>> import datetime
        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [("ann", 3), ("bob", 1), ("ann", 1), ("bob", 2), ("ann", 2)]
        ...     day = datetime.datetime(2026, 1, 1)
        ...     events = [{"user": user, "n": n, "ts": day.replace(hour=n)} for user, n in rows]
        ...     ordered = env.from_iterable(events).watermark("ts", delay="1 day").key_by("user").sort()
        ...     ordered.select("user", "n").write(ps.collect())
        >>> [row["n"] for row in run(program) if row["user"] == "ann"]
        [1, 2, 3]
        """
        return Stream(sorted_by_time(self._state, self._state, self._keys, by, descending=descending, name=name))

    def match(self, pattern: Pattern, *, name: str | None = None) -> Stream:
        """The matches of a pattern among the records of each key, in the order of event time. Needs a watermark before
        `key_by`.

        A match is a record: the keys, then for each part of the pattern a struct with the record that the part took
        (null if an optional part took none), or an array of structs if the part may take several records; then
        `match_time`, the event time at which the match was certain, which is the event time of the stream.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> def program(env):
        ...     rows = [("ann", "login", 1), ("bob", "login", 2), ("ann", "buy", 5), ("bob", "buy", 900)]
        ...     clicks = env.from_iterable(rows, schema="user string, page string, s bigint")
        ...     timed = clicks.with_columns(ts="timestamp_seconds(s)").watermark("ts")
        ...     sale = ps.pattern("login", where="page = 'login'").followed_by("buy", where="page = 'buy'")
        ...     timed.key_by("user").match(sale.within("1 min")).select("user", "buy.s").write(ps.collect())
        >>> run(program)
        [{'user': 'ann', 's': 5}]

        `timed_out()` of the result has the partial matches whose time was over, and `late()` the records that came too
        late. Records of the same time are taken in the order in which they came. State is kept under `name`: records
        that event time has not come to, and partial matches until their time is over.
        """
        return Stream(matches_of_keys(self._state, self._keys, pattern, name=name))

    def process(
        self,
        function: KeyedFunction,
        *,
        schema: SchemaLike,
        sides: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
    ) -> Stream:
        """The records that a function with state makes of each record and each timer; see `KeyedFunction`.

        State and timers are kept under `name`. Records of one key are handled in the order in which they come. `sides`
        declares side outputs, by name, for `context.emit`; `side(name)` of the result is the stream of a side output.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Totals(ps.KeyedFunction):
        ...     total = ps.value_state("total", "bigint", default=0)
        ...     def on_row(self, row, context):
        ...         self.total.set(self.total.get() + row["n"])
        ...         if self.total.get() > 10:
        ...             context.emit("alerts", {"user": context.key, "total": self.total.get()})
        ...         return {"user": context.key, "n": row["n"]}
        >>> def program(env):
        ...     rows = env.from_iterable([{"user": "a", "n": 8}, {"user": "b", "n": 1}, {"user": "a", "n": 7}])
        ...     totals = rows.key_by("user").process(
        ...         Totals(), schema="user string, n bigint", sides={"alerts": "user string, total bigint"})
        ...     totals.side("alerts").write(ps.collect())
        >>> run(program)
        [{'user': 'a', 'total': 15}]
        """
        if isinstance(function, KeyedCoFunction):
            raise UsageError(
                f"{type(function).__name__} needs two keyed streams",
                hint="write .key_by(...).connect(other_stream.key_by(...)).process(...)",
            )
        check_function(function, KeyedFunction, argument="process", methods=("on_row",))
        if isinstance(function, KeyedBroadcastFunction):
            raise UsageError(
                f"{type(function).__name__} needs a broadcast stream",
                hint="write .key_by(...).connect(broadcast_stream).process(...)",
            )
        step = keyed_step(function, self._state, self._keys, schema, sides)
        return stream_behind(
            step, self._state, inputs=(self._state.input_by_key(self._keys),), kind="process", name=name
        )

    def reduce(self, function: Callable[[Row, Row], Row], *, name: str | None = None) -> Stream:
        """For each record, all records of its key so far, reduced to one record by `function(before, record)`: a dict
        with the same columns. The first record of a key is handed on as it is.

        >>> from penstock.testing import collect, run
        >>> def dearer(before, bid):
        ...     return bid if bid["price"] > before["price"] else before
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": price} for price in (3, 5, 4)])
        ...     bids.key_by("item").reduce(dearer).write(collect())
        >>> [row["price"] for row in run(program, parallelism=1)]
        [3, 5, 5]
        """
        check_callable(function, "reduce")
        step = keyed_step(RunningReduce(function, self.schema), self._state, self._keys, self.schema)
        return stream_behind(
            step, self._state, inputs=(self._state.input_by_key(self._keys),), kind="reduce", name=name
        )

    def transform_with_state(
        self,
        processor: Any,
        *,
        output_schema: Any,
        time_mode: str = "None",
        output_mode: str = "Append",
        initial_state: Any = None,
        kind: Literal["row", "pandas"] = "row",
        name: str | None = None,
    ) -> Stream:
        """The records that a PySpark `StatefulProcessor` makes of each key's records and timers. The processor runs
        unchanged.

        `time_mode` and `output_mode` mean what they mean to Spark's `transformWithState`. With `kind="pandas"` the
        processor is a processor for `transformWithStateInPandas`. `initial_state` is a DataFrame with the key columns,
        whose rows go to `handleInitialState` before anything else. State and timers are kept under `name`. See
        docs/spark.md.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> from pyspark.sql import Row
        >>> from pyspark.sql.streaming import StatefulProcessor
        >>> class Count(StatefulProcessor):
        ...     def init(self, handle):
        ...         self.n = handle.getValueState("n", "n bigint")
        ...     def handleInputRows(self, key, rows, timerValues):
        ...         n = (self.n.get()[0] if self.n.exists() else 0) + len(list(rows))
        ...         self.n.update((n,))
        ...         yield Row(item=key[0], n=n)
        ...     def close(self):
        ...         pass
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen"}, {"item": "pen"}]).key_by("item")
        ...     counts = bids.transform_with_state(Count(), output_schema="item string, n bigint")
        ...     counts.write(ps.collect())
        >>> run(program, parallelism=1)
        [{'item': 'pen', 'n': 2}]
        """
        self._state.refuse_changelog("transform_with_state")
        host = self._state.ledger.processor_host
        if host is None:
            raise UsageError("transform_with_state needs an Environment on Spark", hint="make a ps.Environment(spark)")
        refuse_async_methods(processor, type(processor))
        function = host(
            HostedProcessor(
                processor=processor,
                output_schema=output_schema,
                time_mode=time_mode,
                output_mode=output_mode,
                initial_state=initial_state,
                kind=kind,
                keys=self._keys,
                input_schema=self._state.schema,
                time_column=self._state.time_column,
            )
        )
        step = keyed_step(function, self._state, self._keys, function.schema)
        inputs = (self._state.input_by_key(self._keys),)
        return stream_behind(step, self._state, inputs=inputs, kind="transform-with-state", name=name)

    @overload
    def connect(
        self, other: Stream, *, wait: Literal["end"] | Duration | datetime.datetime | None = None
    ) -> ConnectedStream: ...

    @overload
    def connect(self, other: KeyedStream) -> ConnectedKeyedStreams: ...

    def connect(
        self, other: Stream | KeyedStream, *, wait: Literal["end"] | Duration | datetime.datetime | None = None
    ) -> ConnectedStream | ConnectedKeyedStreams:
        """These records together with the records of another stream. The records of another **keyed** stream come by
        key, too: a function sees the records of both streams, with the state of their key (`KeyedCoFunction`). The
        records of any other stream are **broadcast**: every subtask gets all of them, as rules, settings or prices
        (`KeyedBroadcastFunction`).

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Settled(ps.KeyedCoFunction):
        ...     rest = ps.value_state("rest", "bigint", default=0)
        ...     def on_left(self, order, context):
        ...         return self.add(order["price"], context)
        ...     def on_right(self, payment, context):
        ...         return self.add(-payment["paid"], context)
        ...     def add(self, amount, context):
        ...         self.rest.set(self.rest.get() + amount)
        ...         if self.rest.get() == 0:
        ...             return {"order": context.key}
        >>> def program(env):
        ...     orders = env.from_iterable([{"id": 1, "price": 5}, {"id": 2, "price": 7}], name="orders")
        ...     payments = env.from_iterable([{"order": 1, "paid": 2}, {"order": 1, "paid": 3}], name="payments")
        ...     both = orders.key_by("id").connect(payments.key_by("order"))
        ...     both.process(Settled(), schema="order bigint").write(ps.collect())
        >>> run(program)
        [{'order': 1}]

        The key columns of two keyed streams have the same types, one by one, and may have different names. The records
        of two streams come in no particular order: the first keyed records may come before any rule. With `wait` the
        keyed records wait for a broadcast stream in front of the step: until the broadcast stream has been read to its
        end (`"end"`, for a stream that ends), until the event time of the broadcast stream has come to a `datetime`, or
        for a duration (`"30s"`) after each start of the step. Checkpoints are taken while keyed records wait; records
        that must be read for a checkpoint are kept in its state.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Alerts(ps.KeyedBroadcastFunction):
        ...     limits = ps.broadcast_state("limits", key="string", value="bigint")
        ...     def on_broadcast(self, row, context):
        ...         self.limits[row["item"]] = row["limit"]
        ...     def on_row(self, row, context):
        ...         if row["price"] > self.limits.get(row["item"], 0):
        ...             return row
        >>> def program(env):
        ...     bids = env.from_iterable([{"item": "pen", "price": 3}, {"item": "pen", "price": 9}])
        ...     limits = env.from_iterable([{"item": "pen", "limit": 5}], name="limits")
        ...     both = bids.key_by("item").connect(limits, wait="end")
        ...     both.process(Alerts(), schema="item string, price bigint").write(ps.collect())
        >>> run(program)
        [{'item': 'pen', 'price': 9}]
        """
        if not isinstance(other, Stream | KeyedStream):
            raise UsageError(f"connect takes a stream, not {other!r}")
        state: StreamState = other._state  # noqa: SLF001  # streams know each other
        if state.ledger is not self._state.ledger:
            raise UsageError("connect takes a stream of the same environment")
        if isinstance(other, KeyedStream):
            if wait is not None:
                raise UsageError(
                    f"connect: wait is {wait!r}, and the other stream is keyed: only a broadcast stream is waited for",
                    hint="leave wait out, and keep records in state until the records that they need have come",
                )
            return ConnectedKeyedStreams(self._state, self._keys, state, other._keys)  # noqa: SLF001
        return ConnectedStream(self._state, self._keys, state, wait_for(wait, has_time=state.time_column is not None))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self._state.schema

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self._keys)} of {self._state.described()}>"
