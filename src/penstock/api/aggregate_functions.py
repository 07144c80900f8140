"""Aggregates that users write, as classes.

    class Range(ps.AggregateFunction):
        state_type = "struct<low: double, high: double>"
        result_type = "double"

        def create(self):
            return {"low": math.inf, "high": -math.inf}

        def add(self, state, row):
            return {"low": min(state["low"], row["price"]), "high": max(state["high"], row["price"])}

        def merge(self, a, b):
            return {"low": min(a["low"], b["low"]), "high": max(a["high"], b["high"])}

        def result(self, state):
            return state["high"] - state["low"]

    bids.key_by("auction").window(ps.tumbling("10s")).aggregate(spread=Range("price"))

Records are added before the exchange by key, and states are merged behind the exchange. So the result must not depend
on which records were added to which state, nor on the order in which states are merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from penstock.api.boundary import at_user_line
from penstock.api.callables import refuse_async_methods
from penstock.core.errors import UsageError
from penstock.sql.python_values import rows_of
from penstock.sql.schemas import TypeLike, as_type

if TYPE_CHECKING:
    # Every slot imports this module, and most slots start sooner without Polars.
    import polars as pl


@at_user_line
class AggregateFunction:
    """An aggregate of your own. Give the names of the columns that the aggregate reads, and `where` if the aggregate
    takes only some records.

    A method must not change the object: the same object serves all keys, windows and threads of a slot. A method may
    change the state that the method was given, and returns the state, which is never None. The name of the class is
    part of the state: a class of another name starts without state.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> class Product(ps.AggregateFunction):
    ...     state_type = "double"
    ...     result_type = "double"
    ...     def create(self):
    ...         return 1.0
    ...     def add(self, state, row):
    ...         return state * row["factor"]
    ...     def merge(self, a, b):
    ...         return a * b
    ...     def result(self, state):
    ...         return state
    >>> def program(env):
    ...     factors = env.from_iterable([2.0, 0.5, 3.0], schema="factor double")
    ...     factors.window(ps.global_window()).aggregate(product=Product("factor")).write(ps.collect())
    >>> run(program)
    [{'product': 3.0}]
    """

    state_type: ClassVar[TypeLike | type[object]]
    """The type of the state between two calls: a type of Spark SQL, such as `struct<n: bigint, total: double>`, or
    `object` for any object that can be pickled."""
    result_type: ClassVar[TypeLike]
    """The type of the result, such as `double`."""

    def __init__(self, *columns: str, where: str | pl.Expr | None = None) -> None:
        self.columns = columns
        self.where = where

    def create(self) -> Any:
        """The state of no records."""
        raise NotImplementedError

    def add(self, state: Any, row: dict[str, Any]) -> Any:
        """The state with one more record. `row` has the columns of the aggregate."""
        raise NotImplementedError

    def add_batch(self, state: Any, batch: pa.RecordBatch) -> Any:
        """The state with more records, all of one key and one window. A class that has this method needs no `add`.
        `batch` has the columns of the aggregate."""
        for row in rows_of(batch):
            state = self.add(state, row)
        return state

    def merge(self, a: Any, b: Any) -> Any:
        """The state of the records of two states. The records of `a` arrived before the records of `b`."""
        raise NotImplementedError

    def result(self, state: Any) -> Any:
        """The result of a window, from the state of all its records."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.columns))})"


def check_aggregate_function(given: AggregateFunction) -> tuple[pa.DataType | None, pa.DataType]:
    """The types of the state (None for objects) and of the result. Raises `UsageError` if the class is not complete."""
    kind, base = type(given), AggregateFunction
    name = kind.__name__
    missing = [method for method in ("create", "merge", "result") if getattr(kind, method) is getattr(base, method)]
    if kind.add is base.add and kind.add_batch is base.add_batch:
        missing.append("add or add_batch")
    if missing:
        raise UsageError(
            f"{name} has no method {missing[0]}", hint="penstock.AggregateFunction says what each method does"
        )
    refuse_async_methods(given, base)
    untyped = [attribute for attribute in ("state_type", "result_type") if not hasattr(kind, attribute)]
    if untyped:
        raise UsageError(f"{name} has no {untyped[0]}", hint=f'give the class a type, such as {untyped[0]} = "double"')
    columns = getattr(given, "columns", ())
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise UsageError(
            f"{name} has no columns to read, or columns without a name",
            hint=f'give the names of the columns, such as {name}("price"); an __init__ must call super().__init__(...)',
        )
    state = None if kind.state_type is object else as_type(kind.state_type, argument=f"state_type of {name}")
    return state, as_type(kind.result_type, argument=f"result_type of {name}")
