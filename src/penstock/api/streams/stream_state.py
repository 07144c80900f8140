"""What is known about the records of a stream of any kind, and how a step over keyed records is made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedFunction
from penstock.api.ledger import Ledger
from penstock.api.steps import KeyedProcessStep, WatermarkStep
from penstock.plan.graph import Input, Partitioner, Partitioning
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
    time_offset_us: int = 0
    """Event time is the time in the column plus this: the event time of a window is the last microsecond before its
    end."""
    time_lost: str | None = None
    """How an event time that an earlier step had was lost, as a part of a sentence."""
    partitioning: Partitioning = Partitioning.FORWARD
    """How records go to the next step."""
    partition_keys: tuple[str, ...] = ()
    """The columns by which records go to the next step, if they go by key."""
    partitioner: Partitioner | None = None
    """The function that says where records go, if a function says so."""
    at_most: int | None = None
    """How many subtasks of the next step get records, at most; None: as many as the job has slots."""

    def input(self) -> tuple[Input, ...]:
        """The input of the next step."""
        return (
            Input(
                node=self.last_step,
                partitioning=self.partitioning,
                keys=self.partition_keys,
                partitioner=self.partitioner,
                at_most=self.at_most,
            ),
        )

    def to_one(self) -> StreamState:
        """The same records, all of them sent to a single subtask of the next step."""
        return replace(self, partitioning=Partitioning.REBALANCE, partition_keys=(), partitioner=None, at_most=1)

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
            time_offset_us=self.time_offset_us if kept else 0,
            time_lost=None if kept else lost,
        )

    def input_by_key(self, keys: tuple[str, ...]) -> Input:
        """The input of the next step, if that step gets the records of each key together."""
        return Input(node=self.last_step, partitioning=Partitioning.HASH, keys=keys)

    def described(self) -> str:
        """The last step, the columns and where the event time is."""
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        offset = f" {self.time_offset_us:+} us" if self.time_offset_us else ""
        time = f"; event time in {self.time_column}{offset}" if self.time_column else ""
        return f"{self.ledger.step(self.last_step).name!r}: {columns}{time}"


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
