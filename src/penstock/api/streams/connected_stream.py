"""Keyed records together with the records of a broadcast stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.api.boundary import at_user_line
from penstock.api.functions import KeyedBroadcastFunction, KeyedFunction, check_function
from penstock.api.streams.data_stream import Stream, stream_behind
from penstock.api.streams.stream_state import StreamState, keyed_step
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
        )
        inputs = (state.input_by_key(self._keys), other.input_by(Partitioning.BROADCAST))
        return stream_behind(step, state, inputs=inputs, kind="connect", name=name)

    def __repr__(self) -> str:
        keys = ", ".join(self._keys)
        return f"<ConnectedStream by {keys} of {self._state.described()} and {self._broadcast.described()}>"
