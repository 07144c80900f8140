"""Keyed records together with the records of a broadcast stream, or of another keyed stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.api.boundary import at_user_line
from penstock.api.functions import KeyedBroadcastFunction, KeyedCoFunction, KeyedFunction, check_function
from penstock.api.join_steps import LATE_OF_RIGHT, LEFT, RIGHT
from penstock.api.steps import RightInput
from penstock.api.streams.data_stream import Stream, stream_behind
from penstock.api.streams.stream_state import StreamState, keyed_step
from penstock.core.errors import UsageError
from penstock.core.task.waiting import WaitFor
from penstock.plan.graph import Partitioning
from penstock.sql.schemas import SchemaLike


@at_user_line
class ConnectedStream:
    """Keyed records, and the records of a broadcast stream. Made by `KeyedStream.connect`."""

    def __init__(
        self, state: StreamState, keys: tuple[str, ...], broadcast: StreamState, wait: WaitFor | None = None
    ) -> None:
        self._state = state
        self._keys = keys
        self._broadcast = broadcast
        self._wait = wait

    def process(
        self,
        function: KeyedBroadcastFunction,
        *,
        schema: SchemaLike,
        sides: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
    ) -> Stream:
        """The records that a function with state makes of the records of both streams; see `KeyedBroadcastFunction`.

        If the broadcast stream has a watermark, the event time of the step is the event time of the stream that is
        behind. Otherwise the event time of the step is the event time of the keyed stream alone. `sides` declares side
        outputs for `context.emit`.

        >>> import penstock as ps
        >>> from penstock.testing import run
        >>> class Prices(ps.KeyedBroadcastFunction):
        ...     prices = ps.broadcast_state("prices", key="string", value="bigint")
        ...     def on_broadcast(self, row, context):
        ...         self.prices[row["item"]] = row["price"]
        ...     def on_row(self, row, context):
        ...         return {"item": row["item"], "price": self.prices.get(row["item"])}
        >>> def program(env):
        ...     orders = env.from_iterable([{"item": "pen"}], name="orders")
        ...     prices = env.from_iterable([{"item": "pen", "price": 3}], name="prices")
        ...     both = orders.key_by("item").connect(prices, wait="end")
        ...     both.process(Prices(), schema="item string, price bigint").write(ps.collect())
        >>> run(program)
        [{'item': 'pen', 'price': 3}]
        """
        check_function(function, KeyedBroadcastFunction, argument="process", methods=("on_broadcast",))
        check_function(function, KeyedFunction, argument="process", methods=("on_row",))
        state, other = self._state, self._broadcast
        step = replace(
            keyed_step(function, state, self._keys, schema, sides),
            is_connected=True,
            broadcast_has_time=other.time_column is not None,
            wait=self._wait,
            waiting_schema=None if self._wait is None else state.row_schema,
        )
        inputs = (state.input_by_key(self._keys), other.input_by(Partitioning.BROADCAST))
        return stream_behind(step, state, inputs=inputs, kind="connect", name=name)

    def __repr__(self) -> str:
        keys = ", ".join(self._keys)
        return f"<ConnectedStream by {keys} of {self._state.described()} and {self._broadcast.described()}>"


@at_user_line
class ConnectedKeyedStreams:
    """The records of two keyed streams, by their common keys. Made by `KeyedStream.connect`. The *left* stream is the
    stream that `connect` was called on."""

    def __init__(
        self, left: StreamState, left_keys: tuple[str, ...], right: StreamState, right_keys: tuple[str, ...]
    ) -> None:
        self._left = left
        self._right = right
        self._keys = left_keys, right_keys
        _check_keys(left, left_keys, right, right_keys)

    def process(
        self,
        function: KeyedCoFunction,
        *,
        schema: SchemaLike,
        sides: Mapping[str, SchemaLike] | None = None,
        name: str | None = None,
    ) -> Stream:
        """The records that a function makes of the records of both streams and of timers, with state that both streams
        share; see `KeyedCoFunction`.

        The event time of the step is the event time of the stream that is behind. If only one of the streams has a
        watermark, the event time of the step is the event time of that stream. Behind the step, event time is in the
        column of the left stream's event time, if `schema` has this column. `late()` and `late(of="right")` are the
        late records of both streams: the function does not get late records that are read. `sides` declares side
        outputs for `context.emit`. State and timers are kept under `name`.

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
        """
        check_function(function, KeyedCoFunction, argument="process", methods=("on_left",))
        check_function(function, KeyedCoFunction, argument="process", methods=("on_right",))
        left, right = self._left, self._right
        keys, right_keys = self._keys
        timeless = None
        if left.has_watermark != right.has_watermark:
            timeless = RIGHT if left.has_watermark else LEFT
        step = replace(
            keyed_step(function, left, keys, schema, sides),
            has_event_time=left.has_watermark or right.has_watermark,
            right=RightInput(keys=right_keys, late=right.late_records, timeless=timeless),
        )
        inputs = (left.input_by_key(keys), right.input_by_key(right_keys))
        number = left.ledger.add(step, kind="connect", label="-".join(("connect", *keys)), inputs=inputs, name=name)
        behind = left.behind_function(number, step)
        if right.time_column is not None:
            late = replace(right.late_behind(number), side=LATE_OF_RIGHT)
            behind = replace(behind, sides={**behind.sides, LATE_OF_RIGHT: late})
        return Stream(behind)

    def __repr__(self) -> str:
        both = zip(self._keys, (self._left, self._right), strict=True)
        described = " and ".join(f"by {', '.join(keys)} of {state.described()}" for keys, state in both)
        return f"<ConnectedKeyedStreams {described}>"


def _check_keys(left: StreamState, left_keys: tuple[str, ...], right: StreamState, right_keys: tuple[str, ...]) -> None:
    """Raise `UsageError` unless equal keys of both streams go to the same subtask."""
    described = [
        ", ".join(f"{key} {state.schema.field(key).type}" for key in keys)
        for keys, state in ((left_keys, left), (right_keys, right))
    ]
    types = [[state.schema.field(key).type for key in keys] for keys, state in ((left_keys, left), (right_keys, right))]
    if types[LEFT] != types[RIGHT]:
        raise UsageError(
            f"connect: the records of this stream are by {described[LEFT]}, and the records of the other stream are by "
            f"{described[RIGHT]}: no key of the one type is equal to a key of the other type",
            hint="give key_by as many columns of the same types in both streams; cast a column before, for example "
            f'.with_columns({right_keys[0]}="CAST({right_keys[0]} AS ...)")',
        )
