"""The aggregates of a window, as users ask for them. Nulls follow SQL: aggregates ignore nulls, and an aggregate of
nulls alone is null, unless its docstring says otherwise.

Every aggregate takes `where`: a condition (Spark SQL text or a Polars expression, as `Stream.where` takes) that a
record must meet to be aggregated, as by Spark's `FILTER (WHERE ...)`. `docs/guide/aggregates.md` has examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import xxhash

from penstock.api.aggregate_functions import AggregateFunction, check_aggregate_function
from penstock.api.aggregate_kinds.description import CUSTOM, OBJECT, Condition, Parameter
from penstock.api.aggregate_kinds.picks import IGNORE_NULLS
from penstock.api.aggregate_kinds.sketches import library
from penstock.api.expressions import ExpressionLike, compile_condition
from penstock.api.steps import Aggregate
from penstock.core.errors import UsageError


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate without a result column: `aggregate(name=...)` names the column."""

    kind: str
    column: str | None
    by: str | None = None
    parameters: tuple[Parameter, ...] = ()
    where: ExpressionLike | None = None

    def __repr__(self) -> str:
        given = [] if self.column is None else [repr(self.column)]
        given += [] if self.by is None else [f"by={self.by!r}"]
        given += [repr(parameter) for parameter in self.parameters]
        given += [] if self.where is None else [f"where={str(self.where)!r}"]
        return f"{self.kind}({', '.join(given)})"


_TIME_KINDS = ("first", "last")
"""The kinds that order records by event time."""


def count(column: str | None = None, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The number of records; with a column, the number of records whose column is not null. A count is never null.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [{"item": "pen", "price": 3}, {"item": "ink", "price": 8}, {"item": "pen", "price": 5}]
    ...     bids = env.from_iterable(rows)
    ...     counts = bids.key_by("item").aggregate(n=ps.count(), dear=ps.count(where="price > 4"))
    ...     counts.write(ps.collect())
    >>> sorted(run(program), key=str)
    [{'item': 'ink', 'n': 1, 'dear': 1}, {'item': 'pen', 'n': 2, 'dear': 1}]
    """
    return AggregateCall("count", None if column is None else _checked("count", column), where=where)


def sum(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:  # noqa: A001  # users write ps.sum
    """The sum, of Spark's type: bigint for whole numbers, double for floats, and decimal(p + 10, s) for decimal(p, s),
    with 38 digits at most. A sum that does not fit fails the job, as in Spark's ANSI mode. A sum with NaN is NaN.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([3, 8, 5], schema="price bigint")
    ...     prices.aggregate(total=ps.sum("price")).write(ps.collect())
    >>> run(program)
    [{'total': 16}]
    """
    return AggregateCall("sum", _checked("sum", column), where=where)


def min(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:  # noqa: A001  # users write ps.min
    """The least value, of the column's type. NaN is greater than every number, so the result is NaN only if all values
    are NaN.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([3, 8, 5], schema="price bigint")
    ...     prices.aggregate(least=ps.min("price")).write(ps.collect())
    >>> run(program)
    [{'least': 3}]
    """
    return AggregateCall("min", _checked("min", column), where=where)


def max(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:  # noqa: A001  # users write ps.max
    """The greatest value, of the column's type. NaN is greater than every number.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([3, 8, 5], schema="price bigint")
    ...     prices.aggregate(most=ps.max("price")).write(ps.collect())
    >>> run(program)
    [{'most': 8}]
    """
    return AggregateCall("max", _checked("max", column), where=where)


def mean(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The arithmetic mean, as double; of decimal(p, s) as decimal(p + 4, s + 4), with 38 digits at most, rounded once,
    halves away from zero. A mean with NaN is NaN. The sum of whole numbers must fit into 64 bits.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([3, 8, 4], schema="price bigint")
    ...     prices.aggregate(average=ps.mean("price")).write(ps.collect())
    >>> run(program)
    [{'average': 5.0}]
    """
    return AggregateCall("mean", _checked("mean", column), where=where)


def variance(column: str, *, population: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The variance of a sample, as double (Spark's `variance`); null for fewer than two values. With `population` the
    variance of a whole population (`var_pop`); null without values. NaN and infinite values give NaN.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([2, 4, 6], schema="price bigint")
    ...     prices.aggregate(spread=ps.variance("price")).write(ps.collect())
    >>> run(program)
    [{'spread': 4.0}]
    """
    return AggregateCall("var_pop" if population else "variance", _checked("variance", column), where=where)


def stddev(column: str, *, population: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The standard deviation of a sample, as double (Spark's `stddev`); with `population` of a whole population
    (`stddev_pop`). It is the root of `variance`, and null or NaN where the variance is.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     prices = env.from_iterable([2, 4, 6], schema="price bigint")
    ...     prices.aggregate(spread=ps.stddev("price")).write(ps.collect())
    >>> run(program)
    [{'spread': 2.0}]
    """
    return AggregateCall("stddev_pop" if population else "stddev", _checked("stddev", column), where=where)


def any(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:  # noqa: A001  # users write ps.any
    """Whether a value of a boolean column is true (Spark's `bool_or`).

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     orders = env.from_iterable([{"user": "ann", "paid": False}, {"user": "ann", "paid": True}])
    ...     orders.key_by("user").aggregate(has_paid=ps.any("paid")).write(ps.collect())
    >>> run(program)
    [{'user': 'ann', 'has_paid': True}]
    """
    return AggregateCall("any", _checked("any", column), where=where)


def all(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:  # noqa: A001  # users write ps.all
    """Whether every value of a boolean column is true (Spark's `bool_and`).

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     orders = env.from_iterable([{"user": "ann", "paid": False}, {"user": "ann", "paid": True}])
    ...     orders.key_by("user").aggregate(all_paid=ps.all("paid")).write(ps.collect())
    >>> run(program)
    [{'user': 'ann', 'all_paid': False}]
    """
    return AggregateCall("all", _checked("all", column), where=where)


def first(column: str, *, ignore_nulls: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The value of the record with the earliest event time, which may be null; with `ignore_nulls`, of the earliest
    record whose value is not null. Of records with the same event time, the record that arrives first.

    >>> import datetime
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     pages = {2: "cart", 1: "home", 3: "pay"}
    ...     rows = [{"page": page, "ts": datetime.datetime(2026, 1, 1, 12, minute)} for minute, page in pages.items()]
    ...     clicks = env.from_iterable(rows).watermark("ts", delay="5 min")
    ...     clicks.window(ps.tumbling("1h")).aggregate(page=ps.first("page")).select("page").write(ps.collect())
    >>> run(program)
    [{'page': 'home'}]
    """
    return AggregateCall("first", _checked("first", column), parameters=_nulls(ignored=ignore_nulls), where=where)


def last(column: str, *, ignore_nulls: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The value of the record with the latest event time, which may be null; with `ignore_nulls`, of the latest record
    whose value is not null. Of records with the same event time, the record that arrives last.

    >>> import datetime
    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     pages = {1: "home", 3: "pay", 2: "cart"}
    ...     rows = [{"page": page, "ts": datetime.datetime(2026, 1, 1, 12, minute)} for minute, page in pages.items()]
    ...     clicks = env.from_iterable(rows).watermark("ts", delay="5 min")
    ...     clicks.window(ps.tumbling("1h")).aggregate(page=ps.last("page")).select("page").write(ps.collect())
    >>> run(program)
    [{'page': 'pay'}]
    """
    return AggregateCall("last", _checked("last", column), parameters=_nulls(ignored=ignore_nulls), where=where)


def min_by(column: str, by: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The value of `column` in the record with the least value of `by`. Records whose `by` is null are ignored; the
    value of `column` may be null. Of records with the same `by`, the record that arrives first.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     bids = env.from_iterable([{"user": "ann", "price": 3}, {"user": "bob", "price": 8}])
    ...     bids.aggregate(lowest_bidder=ps.min_by("user", by="price")).write(ps.collect())
    >>> run(program)
    [{'lowest_bidder': 'ann'}]
    """
    return AggregateCall("min_by", _checked("min_by", column), by=_checked("min_by", by), where=where)


def max_by(column: str, by: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The value of `column` in the record with the greatest value of `by`; NaN is greater than every number. Records
    whose `by` is null are ignored; the value of `column` may be null. Of records with the same `by`, the record that
    arrives first.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     bids = env.from_iterable([{"user": "ann", "price": 3}, {"user": "bob", "price": 8}])
    ...     bids.aggregate(highest_bidder=ps.max_by("user", by="price")).write(ps.collect())
    >>> run(program)
    [{'highest_bidder': 'bob'}]
    """
    return AggregateCall("max_by", _checked("max_by", column), by=_checked("max_by", by), where=where)


def top_n(column: str, n: int, *, by: str | None = None, where: ExpressionLike | None = None) -> AggregateCall:
    """The `n` greatest values, as a list, the greatest first. With `by`, the values of `column` in the `n` records with
    the greatest values of `by`, which may be null. Records whose `by` is null, or without `by` whose value is null, are
    ignored; without any other record the list is empty. Of equal records, the records that arrive first.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [{"user": "ann", "price": 3}, {"user": "bob", "price": 8}, {"user": "eve", "price": 5}]
    ...     bids = env.from_iterable(rows)
    ...     bids.window(ps.global_window()).aggregate(best=ps.top_n("user", 2, by="price")).write(ps.collect())
    >>> run(program)
    [{'best': ['bob', 'eve']}]
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise UsageError(f"top_n: n is {n!r}; the number of values must be a whole number above 0")
    order = None if by is None else _checked("top_n", by)
    return AggregateCall("top_n", _checked("top_n", column), by=order, parameters=(n,), where=where)


def collect_list(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """All values that are not null, as a list, in the order of their arrival. Without values the list is empty. All
    values are kept as state until the window closes.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [{"item": "pen", "price": price} for price in (5, 3, 5)]
    ...     bids = env.from_iterable(rows)
    ...     items = bids.key_by("item").window(ps.global_window())
    ...     items.aggregate(prices=ps.collect_list("price")).write(ps.collect())
    >>> run(program, parallelism=1)
    [{'item': 'pen', 'prices': [5, 3, 5]}]
    """
    return AggregateCall("collect_list", _checked("collect_list", column), where=where)


def collect_set(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The distinct values that are not null, as a list, in the order of their first arrival. NaN equals NaN, and -0.0
    equals 0.0. Without values the list is empty. The distinct values are kept as state until the window closes.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     rows = [{"item": "pen", "price": price} for price in (5, 3, 5)]
    ...     bids = env.from_iterable(rows)
    ...     items = bids.key_by("item").window(ps.global_window())
    ...     items.aggregate(prices=ps.collect_set("price")).write(ps.collect())
    >>> run(program, parallelism=1)
    [{'item': 'pen', 'prices': [5, 3]}]
    """
    return AggregateCall("collect_set", _checked("collect_set", column), where=where)


def count_distinct(column: str, *, where: ExpressionLike | None = None) -> AggregateCall:
    """The number of distinct values that are not null, exactly. NaN equals NaN, and -0.0 equals 0.0. A count is never
    null. The distinct values are kept as state until the window closes.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     clicks = env.from_iterable(["ann", "bob", "ann"], schema="user string")
    ...     clicks.window(ps.global_window()).aggregate(users=ps.count_distinct("user")).write(ps.collect())
    >>> run(program)
    [{'users': 2}]
    """
    return AggregateCall("count_distinct", _checked("count_distinct", column), where=where)


def approx_count_distinct(
    column: str, *, deviation: float = 0.05, where: ExpressionLike | None = None
) -> AggregateCall:
    """The number of distinct values that are not null, about, with little state however many values there are.
    `deviation` is the greatest relative standard deviation of the result, as in Spark. A count is never null. Needs the
    extra `sketches`.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     clicks = env.from_iterable(["ann", "bob", "ann"], schema="user string")
    ...     clicks.window(ps.global_window()).aggregate(users=ps.approx_count_distinct("user")).write(ps.collect())
    >>> run(program)
    [{'users': 2}]
    """
    if not isinstance(deviation, float) or not 0 < deviation < 1:
        raise UsageError(f"approx_count_distinct: deviation is {deviation!r}; it must be a number between 0 and 1")
    library("approx_count_distinct")
    name = "approx_count_distinct"
    return AggregateCall(name, _checked(name, column), parameters=(deviation,), where=where)


def quantile(column: str, q: float, *, exact: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The value below which the part `q` (from 0 to 1) of all values lies, as double. NaN is greater than every number.

    The result is a value whose rank is wrong by at most 1.33 %, in 99 of 100 cases; state is little, and the extra
    `sketches` is needed. With `exact=True` the result is interpolated between two values (Spark's `percentile`), and
    all values are kept as state until the window closes.

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     times = env.from_iterable(range(101), schema="ms bigint")
    ...     times.window(ps.global_window()).aggregate(p95=ps.quantile("ms", 0.95, exact=True)).write(ps.collect())
    >>> run(program)
    [{'p95': 95.0}]
    """
    if not isinstance(q, int | float) or isinstance(q, bool) or not 0 <= q <= 1:
        raise UsageError(f"quantile: q is {q!r}; the part must be a number from 0 to 1", hint="0.5 is the median")
    if not exact:
        library("a quantile that is not exact")
    kind = "quantile" if exact else "approx_quantile"
    return AggregateCall(kind, _checked("quantile", column), parameters=(float(q),), where=where)


def median(column: str, *, exact: bool = False, where: ExpressionLike | None = None) -> AggregateCall:
    """The value in the middle of all values in order: `quantile` with the part 0.5 (with `exact`, Spark's `median`).

    >>> import penstock as ps
    >>> from penstock.testing import run
    >>> def program(env):
    ...     times = env.from_iterable([30, 10, 20], schema="ms bigint")
    ...     times.window(ps.global_window()).aggregate(middle=ps.median("ms", exact=True)).write(ps.collect())
    >>> run(program)
    [{'middle': 20.0}]
    """
    return quantile(column, 0.5, exact=exact, where=where)


def _nulls(*, ignored: bool) -> tuple[Parameter, ...]:
    return (IGNORE_NULLS,) if ignored else ()


def _checked(kind: str, column: object) -> str:
    if not isinstance(column, str) or not column:
        raise UsageError(
            f"{kind} takes the name of a column, not {column!r}",
            hint="compute an expression with with_columns first",
        )
    return column


def named_aggregate(
    name: str, call: AggregateCall | AggregateFunction, *, schema: pa.Schema, time_column: str | None
) -> Aggregate:
    """The result column of that name, over records of `schema`. Raises `UsageError` if `call` is no aggregate, or if
    the condition of the aggregate is none."""
    if not isinstance(call, AggregateCall | AggregateFunction):
        raise UsageError(
            f"aggregate: {name} is {call!r}, which is no aggregate",
            hint='use count(), sum("column"), min("column"), max("column"), mean("column") or another aggregate',
        )
    if isinstance(call, AggregateFunction):
        return _custom(name, call, schema)
    by = call.by
    if call.kind in _TIME_KINDS:
        if time_column is None:
            raise UsageError(
                f"aggregate {name!r}: {call.kind} needs event time",
                hint='add .watermark("column", delay="5s") before key_by, or use min_by or max_by',
            )
        by = time_column
    where = _condition(name, call.where, schema)
    return Aggregate(name=name, kind=call.kind, column=call.column, by=by, parameters=call.parameters, where=where)


def _custom(name: str, function: AggregateFunction, schema: pa.Schema) -> Aggregate:
    state, _ = check_aggregate_function(function)
    parameters = (type(function).__name__, OBJECT if state is None else str(state), *function.columns)
    where = _condition(name, function.where, schema)
    return Aggregate(name=name, kind=CUSTOM, column=None, parameters=parameters, where=where, function=function)


def _condition(name: str, given: ExpressionLike | None, schema: pa.Schema) -> Condition | None:
    if given is None:
        return None
    expression = compile_condition(given, schema, argument=f"aggregate {name!r}: where")
    return Condition(given if isinstance(given, str) else _text_of(given), expression)


def _text_of(expression: pl.Expr) -> str:
    """The expression in words that no other expression has. Polars shortens long lists, so a digest follows the words.
    A Python function in the expression has no digest: the bytes of equal functions differ from run to run."""
    text = str(expression)
    if "python" in text:
        return text
    return f"{text} #{xxhash.xxh3_64_hexdigest(expression.meta.serialize())}"
