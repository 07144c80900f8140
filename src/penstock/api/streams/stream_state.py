"""What is known about the records of a stream of any kind, and how a step over keyed records is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedFunction
from penstock.api.ledger import Ledger
from penstock.api.steps import KeyedProcessStep, WatermarkStep
from penstock.plan.graph import Input, Partitioning
from penstock.sql.schemas import SchemaLike, as_schema

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """What is known about the records of a stream."""

    ledger: Ledger
    last_step: int
    schema: pa.Schema
    time_column: str | None = None
    """The column with the event time of the watermarks; None if the stream has no event time."""
    time_lost: str | None = None
    """How an event time that an earlier step had was lost, as a part of a sentence."""
    partitioning: Partitioning = Partitioning.FORWARD
    """How records go to the next step."""
    partition_keys: tuple[str, ...] = ()
    """The columns by which records go to the next step, if they go by key."""
    side: str | None = None
    """The side output of the last step that the records come from; None: the main output."""

    def input(self) -> tuple[Input, ...]:
        """The input of the next step."""
        return (self.input_by(self.partitioning, self.partition_keys),)

    def input_by(self, partitioning: Partitioning, keys: tuple[str, ...] = ()) -> Input:
        """The input of the next step, if the records go to that step in this way."""
        return Input(node=self.last_step, partitioning=partitioning, keys=keys, side=self.side)

    def behind(self, number: int, schema: pa.Schema) -> StreamState:
        """What is known about the records that a function makes in step `number`. A function may compute anything; a
        column with the name and the type of the time column is taken to be the same time."""
        column, lost = self.time_column, self.time_lost
        kept = column is not None and column in schema.names and self.schema.field(column) == schema.field(column)
        if column is not None and not kept:
            lost = f"the event time in {column!r} was lost in {self.ledger.step(number)}"
        return StreamState(
            ledger=self.ledger,
            last_step=number,
            schema=schema,
            time_column=column if kept else None,
            time_lost=None if kept else lost,
        )

    def input_by_key(self, keys: tuple[str, ...]) -> Input:
        """The input of the next step, if that step gets the records of each key together."""
        return self.input_by(Partitioning.HASH, keys)

    def described(self) -> str:
        """The last step, the columns and where the event time is."""
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        time = f"; event time in {self.time_column}" if self.time_column else ""
        step = repr(self.ledger.step(self.last_step).name)
        return f"{step if self.side is None else f'{self.side!r} of {step}'}: {columns}{time}"


def keyed_step(
    function: KeyedFunction, state: StreamState, keys: tuple[str, ...], schema: SchemaLike
) -> KeyedProcessStep:
    """The step that calls `function` with the records of each key."""
    return KeyedProcessStep(
        function=function,
        keys=keys,
        key_schema=pa.schema([pa.field(key, state.schema.field(key).type) for key in keys]),
        schema=as_schema(schema, argument="schema"),
        has_event_time=any(isinstance(s.step, WatermarkStep) for s in state.ledger.path_to(state.last_step)),
    )
