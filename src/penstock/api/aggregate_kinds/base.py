"""What every kind of aggregate says of itself, and the calculations that a grouping makes.

A partial is one row per key and window, with the partial columns of each aggregate. To group is to make one row of all
rows with the same keys. Two groupings use the calculations of a kind: records become partials, and partials become
fewer partials.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.api.aggregate_kinds.description import Aggregate
from penstock.core.errors import UsageError

Rows = npt.NDArray[np.intp]


class Groups:
    """Which rows of a table belong together."""

    def __init__(self, order: Rows, starts: Rows) -> None:
        self.order = order
        """The rows of the table, group by group; rows of one group stay in the order of the table."""
        self.starts = starts
        """Where each group begins in `order`. No group is empty."""

    @cached_property
    def lengths(self) -> Rows:
        """How many rows each group has."""
        return np.diff(self.starts, append=self.order.size)

    @cached_property
    def numbers(self) -> Rows:
        """The number of the group, for each entry of `order`."""
        return np.repeat(np.arange(self.starts.size), self.lengths)

    def __len__(self) -> int:
        return int(self.starts.size)


class Fold(Protocol):
    """A calculation that Arrow does not have: makes one value per group from columns of the table."""

    def __call__(self, table: pa.Table, groups: Groups) -> Any:
        """An Arrow array with one value per group."""
        ...


class Calculation(NamedTuple):
    """One column of a grouping."""

    column: str | None
    """None: rows are counted, or a fold names its columns itself."""
    function: str | Fold
    """`count`, `sum`, `min`, `max`, `any` or `all`, which Arrow computes; or a fold."""
    name: str
    """The name of the result column."""


class AggregateKind(ABC):
    """A kind of aggregate. Stateless: one object serves all aggregates of the kind."""

    name: str
    needs_column = True
    """Whether an aggregate without a column is refused."""
    takes: str
    """The types of columns that the kind takes, in the words of an error."""

    @abstractmethod
    def partial_fields(self, aggregate: Aggregate, schema: pa.Schema) -> list[pa.Field[Any]]:
        """The columns that are kept and sent for the aggregate over records of `schema`. The first column has the name
        of the aggregate. Raises `UsageError` if the kind does not take the type of the aggregate's column."""

    @abstractmethod
    def result_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The type of the result over records of `schema`. `partial_fields` has accepted the aggregate."""

    @abstractmethod
    def of_records(self, aggregate: Aggregate) -> list[Calculation]:
        """The calculations that make the partial columns of records. `value_of` names the columns of the records."""

    @abstractmethod
    def of_partials(self, aggregate: Aggregate) -> list[Calculation]:
        """The calculations that merge the partial columns."""

    @abstractmethod
    def result(self, aggregate: Aggregate, merged: pa.Table) -> Any:
        """The result column, from partial columns that are completely merged."""

    def value_type(self, aggregate: Aggregate, schema: pa.Schema, takes: Callable[[pa.DataType], bool]) -> pa.DataType:
        """The type of the aggregate's column. Raises `UsageError` unless `takes` accepts the type."""
        column = aggregate.column
        if column is None:
            raise UsageError(f"aggregate {aggregate.name!r}: {self.name} needs a column")
        kind = type_of(schema, column, role=f"aggregate {aggregate.name!r}: column")
        if not takes(kind):
            raise UsageError(
                f"aggregate {aggregate.name!r}: column {column!r} of type {kind} has no {self.name}",
                hint=f"{self.name} takes {self.takes}; cast the column first",
            )
        return kind

    def by_type(self, aggregate: Aggregate, schema: pa.Schema) -> pa.DataType:
        """The type of the column that orders the records. Raises `UsageError` unless the type has an order."""
        assert aggregate.by is not None, "the functions that users call demand the column"
        kind = type_of(schema, aggregate.by, role=f"aggregate {aggregate.name!r}: column")
        if not has_order(kind):
            raise UsageError(
                f"aggregate {aggregate.name!r}: {self.name} cannot order by column {aggregate.by!r} of type {kind}",
                hint=f"{self.name} orders by {ORDERED}; cast the column first",
            )
        return kind


# --- columns -----------------------------------------------------------------------


def value_name(column: str) -> str:
    """The name of a value column while records are grouped. Records may have a `window_start` column of their own, so a
    value column needs another name."""
    return f"\0{column}"


def value_of(aggregate: Aggregate, column: str | None) -> str | None:
    """The name of an aggregate's value column while records are grouped; None if all records are counted. An aggregate
    with a condition has value columns of its own, in which records that do not meet the condition are null."""
    if aggregate.where is None:
        return None if column is None else value_name(column)
    return f"\0{aggregate.name}\0{column or ''}"


def type_of(schema: pa.Schema, column: str, *, role: str) -> pa.DataType:
    """The type of a column. Raises `UsageError`, which names `role`, unless there is exactly one such column."""
    found = schema.get_all_field_indices(column)
    if len(found) == 1:
        kind: pa.DataType = schema.field(found[0]).type
        return kind
    if found:
        raise UsageError(f"{role} {column!r} is ambiguous, there are {len(found)} columns of that name")
    near = get_close_matches(column, schema.names, n=1)
    raise UsageError(
        f"{role} {column!r} does not exist, the columns are: {', '.join(schema.names)}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


ORDERED = "numbers, booleans, decimals, dates, times, timestamps and strings"
"""The types that `has_order` accepts, in the words of an error."""


def has_order(kind: pa.DataType) -> bool:
    """Whether values of a type are smaller or greater than each other."""
    return (
        pt.is_integer(kind)
        or pt.is_boolean(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_decimal(kind)
        or pt.is_date(kind)
        or pt.is_time(kind)
        or pt.is_timestamp(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
    )


KEPT = "columns of every type that Spark SQL has, and no dictionaries"
"""The types that `can_be_kept` accepts, in the words of an error."""


def can_be_kept(kind: pa.DataType) -> bool:
    """Whether state can have values of a type."""
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_struct(kind) or pt.is_map(kind):
        return all(can_be_kept(kind.field(number).type) for number in range(kind.num_fields))
    return has_order(kind) or pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_duration(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is a number of any precision."""
    return pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind) or pt.is_decimal(kind)


def one_zero(column: Any) -> Any:
    """A column of floats with 0.0 in place of -0.0. Any other column as it is."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pt.is_floating(column.type) else column


def normal_keys(column: Any) -> Any:
    """The column with one NaN and one zero, so that equal keys are one key."""
    if not pt.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), one_zero(column))


def one_array(column: Any) -> Any:
    """The column of a table as a single array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def names_of(kinds: Sequence[AggregateKind]) -> str:
    """The names of kinds, in the words of an error."""
    *most, last = [kind.name for kind in kinds]
    return f"{', '.join(most)} and {last}"
