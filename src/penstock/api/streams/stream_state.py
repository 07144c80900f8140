"""What is known about the records of a stream of any kind, and how a step over keyed records is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.api.changelog import Changelog, without_row_kind
from penstock.api.functions import TimedFunction
from penstock.api.ledger import Ledger
from penstock.api.steps import LATE, KeyedProcessStep, LateRecords, ProcessStep, WatermarkStep
from penstock.core.errors import UsageError
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
    side: str | None = None
    """The side output of the last step that the records come from; None: the main output."""
    sides: Mapping[str, StreamState] = field(default_factory=dict, repr=False)
    """What is known about the records of the side outputs of the last step, by name."""
    changelog: Changelog | None = None
    """Set if the records are changes of rows, and their last column is `row_kind`."""

    def input(self) -> tuple[Input, ...]:
        """The input of the next step. Raises `UsageError` if the stream is a changelog: a step that takes changes asks
        for `input_of_changes`."""
        self.refuse_changelog("the step")
        return self.input_of_changes()

    def input_of_changes(self) -> tuple[Input, ...]:
        """The input of the next step, which takes changes of rows as well as records."""
        placed = Input(node=self.last_step, partitioning=self.partitioning, keys=self.partition_keys, side=self.side)
        return (replace(placed, partitioner=self.partitioner, at_most=self.at_most),)

    def input_by(self, partitioning: Partitioning, keys: tuple[str, ...] = ()) -> Input:
        """The input of the next step, if the records go to that step in this way. Raises `UsageError` if the stream is
        a changelog."""
        self.refuse_changelog("the step")
        return Input(node=self.last_step, partitioning=partitioning, keys=keys, side=self.side)

    def refuse_changelog(self, what: str) -> None:
        """Raise `UsageError`, which names `what`, if the stream is a changelog."""
        if self.changelog is not None:
            raise UsageError(
                f"{what} takes records that stay as they are, and {self.ledger.step(self.last_step)} makes "
                f"{self.changelog}: rows that change",
                hint="call .changes() before, which makes a record of each change, with its kind in the column "
                "row_kind; select, with_columns, where, key_by(...).aggregate and collect take a changelog as it is",
            )

    @property
    def has_watermark(self) -> bool:
        """Whether there is a watermark on the way to this stream."""
        return any(isinstance(step.step, WatermarkStep) for step in self.ledger.path_to(self.last_step))

    @property
    def row_schema(self) -> pa.Schema:
        """The columns without the `row_kind` of a changelog."""
        return self.schema if self.changelog is None else without_row_kind(self.schema)

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

    def behind_function(self, number: int, step: ProcessStep | KeyedProcessStep) -> StreamState:
        """What is known about the records that a function with side outputs makes in step `number`."""
        sides = {name: replace(self.behind(number, schema), side=name) for name, schema in step.declared_sides.items()}
        if step.late is not None:
            sides[LATE] = self.late_behind(number)
        return replace(self.behind(number, step.schema), sides=sides)

    def late_behind(self, number: int) -> StreamState:
        """What is known about the records of this stream that came to step `number` too late. All these records are
        behind the watermark. So the stream has no event time: a window would drop every record."""
        step = self.ledger.step(number)
        return StreamState(
            ledger=self.ledger,
            last_step=number,
            schema=self.schema,
            time_lost=f"the late records of {step} are behind the watermark, and need a watermark of their own",
            side=LATE,
        )

    @property
    def late_records(self) -> LateRecords | None:
        """What the next step must know to tell late records apart; None if the stream has no event time."""
        if self.time_column is None:
            return None
        return LateRecords(time_column=self.time_column, time_offset_us=self.time_offset_us, schema=self.schema)

    def input_by_key(self, keys: tuple[str, ...]) -> Input:
        """The input of the next step, if that step gets the records of each key together."""
        return self.input_by(Partitioning.HASH, keys)

    def described(self) -> str:
        """The last step, the columns and where the event time is."""
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        offset = f" {self.time_offset_us:+} us" if self.time_offset_us else ""
        time = f"; event time in {self.time_column}{offset}" if self.time_column else ""
        step = repr(self.ledger.step(self.last_step).name)
        changes = f"; {self.changelog}" if self.changelog else ""
        return f"{step if self.side is None else f'{self.side!r} of {step}'}: {columns}{time}{changes}"


def keyed_step(
    function: TimedFunction,
    state: StreamState,
    keys: tuple[str, ...],
    schema: SchemaLike,
    sides: Mapping[str, SchemaLike] | None = None,
) -> KeyedProcessStep:
    """The step that calls `function` with the records of each key."""
    return KeyedProcessStep(
        function=function,
        keys=keys,
        key_schema=pa.schema([pa.field(key, state.schema.field(key).type) for key in keys]),
        schema=as_schema(schema, argument="schema"),
        has_event_time=state.has_watermark,
        declared_sides=side_schemas(sides),
        late=state.late_records,
    )


def side_schemas(sides: Mapping[str, SchemaLike] | None) -> dict[str, pa.Schema]:
    """The schemas of the side outputs that a user declares. Raises `UsageError`."""
    if sides is None:
        return {}
    if not isinstance(sides, Mapping):
        raise UsageError(f"sides is {sides!r}", hint='give a dict of names and columns: sides={"alerts": "n bigint"}')
    for name in sides:
        check_side_name(name, "sides")
    return {name: as_schema(schema, argument=f"sides[{name!r}]") for name, schema in sides.items()}


def check_side_name(name: object, argument: str) -> None:
    """Raise `UsageError` for a name that a side output cannot have. A part of a split must be an attribute."""
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise UsageError(
            f"{argument}: {name!r} cannot be the name of a side output",
            hint="give a name of letters, digits and _ that begins with a letter",
        )
