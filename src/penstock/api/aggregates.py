"""The aggregates of a window. Nulls follow SQL: aggregates ignore nulls, and an aggregate of nulls alone is null."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.api.steps import Aggregate
from penstock.core.errors import UsageError


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate without a result column: `aggregate(name=...)` names the column."""

    kind: str
    column: str | None

    def __repr__(self) -> str:
        return f"{self.kind}({'' if self.column is None else repr(self.column)})"


def count(column: str | None = None) -> AggregateCall:
    """The number of records; with a column, the number of records whose column is not null. A count is never null."""
    return AggregateCall("count", None if column is None else _checked("count", column))


def sum(column: str) -> AggregateCall:  # noqa: A001  # users write ps.sum
    """The sum: bigint for whole numbers (an overflow fails the job), double for other numbers. A sum with NaN is
    NaN."""
    return AggregateCall("sum", _checked("sum", column))


def min(column: str) -> AggregateCall:  # noqa: A001  # users write ps.min
    """The least value, of the column's type. NaN is greater than every number, so the result is NaN only if all values
    are NaN."""
    return AggregateCall("min", _checked("min", column))


def max(column: str) -> AggregateCall:  # noqa: A001  # users write ps.max
    """The greatest value, of the column's type. NaN is greater than every number."""
    return AggregateCall("max", _checked("max", column))


def mean(column: str) -> AggregateCall:
    """The arithmetic mean, as double. A mean with NaN is NaN."""
    return AggregateCall("mean", _checked("mean", column))


def _checked(kind: str, column: object) -> str:
    if not isinstance(column, str) or not column:
        raise UsageError(
            f"{kind} takes the name of a column, not {column!r}",
            hint="compute an expression with with_columns first",
        )
    return column


def named_aggregate(name: str, call: AggregateCall) -> Aggregate:
    """The result column of that name. Raises `UsageError` if `call` is no aggregate."""
    if not isinstance(call, AggregateCall):
        raise UsageError(
            f"aggregate: {name} is {call!r}, which is no aggregate",
            hint='use count(), sum("column"), min("column"), max("column") or mean("column")',
        )
    return Aggregate(name=name, kind=call.kind, column=call.column)
