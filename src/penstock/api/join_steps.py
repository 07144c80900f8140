"""What a join of two streams is made of, as plain descriptions.

The two inputs of a join are its *left* side, the stream on which `join` was called, and its *right* side. Two records
match if their keys are equal, if the time of the right record is within *reach* of the left record, and if the extra
condition is true. In a *regular* join times do not matter. A null key equals nothing. In keys NaN equals NaN, and -0.0
equals 0.0, as in Spark.

A record is *done* when no record that is still to come can match the record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.changelog import with_row_kind
from penstock.api.static_tables import StaticTable
from penstock.api.windows import TumblingWindow
from penstock.core.durations import readable
from penstock.core.graph import DeclaredState

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl

_LATE = "late()"
"""The name of the side output with late records in all steps, see `steps.LATE`."""

LEFT, RIGHT = 0, 1
"""The numbers of the sides, and of the inputs."""

LATE_OF_RIGHT = "late-right()"
"""The name of the side output with the late records of the right side. No name that a user gives is equal to it."""

Times = npt.NDArray[np.int64]

_INT64 = np.iinfo(np.int64)


class JoinKind(Enum):
    """Which records a join hands on."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @property
    def has_pairs(self) -> bool:
        """Whether pairs of matching records are handed on; otherwise left records alone."""
        return self not in (JoinKind.SEMI, JoinKind.ANTI)

    def shows_unmatched(self, side: int) -> bool:
        """Whether the records of a side that match nothing are handed on."""
        if side == LEFT:
            return self in (JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI)
        return self in (JoinKind.RIGHT, JoinKind.FULL)

    def marks(self, side: int) -> bool:
        """Whether it matters which records of a side have matched."""
        return self.shows_unmatched(side) or (side == LEFT and self is JoinKind.SEMI)


class Reach(ABC):
    """From which time to which time the records of one side match a record of the other side, both included."""

    @abstractmethod
    def of(self, side: int, times: Times) -> tuple[Times, Times]:
        """For records of a side, given by their times: the first and the last time of records that match them. Neither
        decreases from one time to a later time."""

    @abstractmethod
    def hold_us(self, side: int) -> int:
        """How far the times of the results may be behind the watermark, if results have the times of this side."""

    @abstractmethod
    def described(self) -> str:
        """The same text for the same reach, for ever."""


@dataclass(frozen=True, kw_only=True)
class Interval(Reach):
    """The time of the right record, minus the time of the left record, is from `lower_us` to `upper_us`."""

    lower_us: int
    upper_us: int

    def of(self, side: int, times: Times) -> tuple[Times, Times]:
        """The times, moved by both bounds."""
        if side == LEFT:
            return moved(times, self.lower_us), moved(times, self.upper_us)
        return moved(times, -self.upper_us), moved(times, -self.lower_us)

    def hold_us(self, side: int) -> int:
        """A record may wait for its match that long."""
        return max(0, self.upper_us if side == LEFT else -self.lower_us)

    def described(self) -> str:
        """Both bounds."""
        return f"from {self.lower_us} us to {self.upper_us} us"


@dataclass(frozen=True, kw_only=True)
class SameWindow(Reach):
    """Both records are in the same window."""

    window: TumblingWindow

    def of(self, side: int, times: Times) -> tuple[Times, Times]:  # noqa: ARG002  # windows are the same for both
        """The window of each record."""
        least, most = self.window.times()
        starts = self.window.assign(np.clip(times, least, most))
        return starts, moved(starts, self.window.size_us - 1)

    def hold_us(self, side: int) -> int:  # noqa: ARG002
        """A record may wait for the end of its window."""
        return self.window.size_us - 1

    def described(self) -> str:
        """The window."""
        return f"in the same window, {self.window.described()}"


def moved(times: Times, by_us: int) -> Times:
    """Later times, or earlier times if `by_us` is negative. Times end at the limits of 64 bits."""
    if by_us >= 0:
        return np.minimum(times, int(_INT64.max) - by_us) + by_us
    return np.maximum(times, int(_INT64.min) - by_us) + by_us


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """One input of a join."""

    keys: tuple[str, ...]
    schema: pa.Schema
    time_column: str
    time_offset_us: int = 0
    """Event time is the time in the column plus this."""

    def described(self) -> str:
        """The same text for the same side, for ever."""
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        offset = f" {self.time_offset_us:+} us" if self.time_offset_us else ""
        return f"({columns}) by {', '.join(self.keys)} at {self.time_column}{offset}"


@dataclass(frozen=True, kw_only=True)
class JoinedColumn:
    """A column of the results, and where its values come from. The values of a key come from both sides. The bounds of
    a window come from neither side."""

    field: pa.Field[pa.DataType]
    left: str | None = None
    right: str | None = None


@dataclass(frozen=True, kw_only=True)
class TwoSidedStep(ABC):
    """A join of two streams with event time."""

    left: JoinSide
    right: JoinSide
    how: JoinKind
    columns: tuple[JoinedColumn, ...]
    """The columns of the results."""
    where: pl.Expr | None = None
    """An extra condition that pairs must meet."""
    where_columns: tuple[JoinedColumn, ...] = ()
    """The columns that the condition reads."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        return pa.schema([column.field for column in self.columns])

    def side(self, number: int) -> JoinSide:
        """The side of that number."""
        return self.left if number == LEFT else self.right

    @property
    @abstractmethod
    def sides(self) -> Mapping[str, pa.Schema]:
        """The schema of each side output."""

    @abstractmethod
    def described(self) -> str:
        """What the state of the join depends on: the same text for the same join, for ever."""

    @property
    def declared_keys(self) -> tuple[str, ...]:
        """The key columns, with their types."""
        return tuple(f"{key}: {self.left.schema.field(key).type}" for key in self.left.keys)

    @property
    def declared_states(self) -> dict[str, DeclaredState]:
        """What a join keeps. A join can go on from a snapshot only if this description is the same as in the
        snapshot."""
        return {"join": DeclaredState(kind="join", type=self.described())}


@dataclass(frozen=True, kw_only=True)
class JoinStep(TwoSidedStep):
    """Records of two streams that match by key and time."""

    reach: Reach
    hold_us: int = 0
    """How far the watermark behind the join is behind the watermark before the join."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        return readable(f"{self.how.value}, {self.reach.described()}")

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """The late records of both sides."""
        return {_LATE: self.left.schema, LATE_OF_RIGHT: self.right.schema}

    def described(self) -> str:
        """The kind of the join, its times and both sides."""
        return (
            f"{self.how.value}, {self.reach.described()}, left {self.left.described()}, right {self.right.described()}"
        )


@dataclass(frozen=True, kw_only=True)
class VersionJoinStep(TwoSidedStep):
    """Records of a stream, each with the version of its key that held at the time of the record. The versions are the
    right side."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        return f"{self.how.value}, the version that held"

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """The late records of the left side. A version is never late."""
        return {_LATE: self.left.schema}

    def described(self) -> str:
        """The kind of the join and both sides."""
        return f"{self.how.value}, versions, left {self.left.described()}, right {self.right.described()}"


WRITTEN = "__written"
"""The column that a regular join adds to the rows that it keeps: when the row came, in milliseconds since 1970."""


@dataclass(frozen=True, kw_only=True)
class RegularJoinStep(TwoSidedStep):
    """Rows of two streams that match by key, whatever their times. Either side may be a changelog, whose rows change.
    The rows of both sides are kept with the time at which they came, in the column `WRITTEN`."""

    retracts: tuple[bool, bool]
    """For each side whether it is a changelog."""
    ttl_ms: int | None
    """How long a row is kept; None: for ever."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        kept = "rows are kept for ever" if self.ttl_ms is None else f"rows are kept for {self.ttl_ms * 1_000} us"
        return readable(f"{self.how.value}, {kept}")

    @property
    def has_changes(self) -> bool:
        """Whether the results are a changelog: a later record may take a result back."""
        return any(self.retracts) or self.how not in (JoinKind.INNER, JoinKind.SEMI)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        rows = super().schema
        return with_row_kind(rows) if self.has_changes else rows

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """No record is late."""
        return {}

    def described(self) -> str:
        """The kind of the join and both sides."""
        return f"{self.how.value}, whatever the times, left {self.left.described()}, right {self.right.described()}"


@dataclass(frozen=True, kw_only=True)
class TableJoinStep:
    """Records of a stream, and the rows of a table that match them by key. Holds no state: the table is read anew in
    every attempt."""

    keys: tuple[str, ...]
    """The key columns of the stream."""
    table_keys: tuple[str, ...]
    table: StaticTable
    by_key: bool
    """Whether a subtask gets the records of its keys alone, and keeps the rows of its keys alone; otherwise every
    subtask keeps the whole table."""
    how: JoinKind
    columns: tuple[JoinedColumn, ...]
    """The columns of the results. The table is the right side."""
    where: pl.Expr | None = None
    """An extra condition that pairs must meet."""
    where_columns: tuple[JoinedColumn, ...] = ()
    """The columns that the condition reads."""

    @property
    def shown(self) -> str:
        """What `explain` says of the step."""
        return f"{self.how.value}, with a table{', by key' if self.by_key else ''}"

    @property
    def schema(self) -> pa.Schema:
        """The schema of the results."""
        return pa.schema([column.field for column in self.columns])
