"""The operators of SQL text: literals, arithmetic, comparisons, logic with null, CASE and CAST."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
from sqlglot import exp

from penstock.core.durations import duration_us
from penstock.core.errors import UsageError
from penstock.sql.ddl import parse_type
from penstock.sql.kernels import Checked, Remainder
from penstock.sql.schemas import polars_type
from penstock.sql.translation import Reached, RuleBook, Translator
from penstock.sql.values import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INT,
    INTERVAL,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Value,
    guarded,
    sql_name,
)

OPERATORS = RuleBook()

_BOTH = ("this", "expression")
_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)


def both(reached: Reached, condition: pl.Expr) -> pl.Expr:
    """The rows that reach this far and for which a condition (never null) holds."""
    return condition if reached is None else reached & condition


# --- literals and columns --------------------------------------------------------------------------------------------


@OPERATORS.rule(exp.Paren)
def _paren(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return translator.value(node.this, reached)


@OPERATORS.rule(exp.Column, arguments=("this", "table", "db", "catalog"))
def _column(translator: Translator, node: exp.Expression, reached: Reached) -> Value:  # noqa: ARG001
    assert isinstance(node, exp.Column)
    return translator.column(node)


@OPERATORS.rule(exp.Null, arguments=())
def _null(translator: Translator, node: exp.Expression, reached: Reached) -> Value:  # noqa: ARG001
    return Value(pl.lit(None), NULL)


@OPERATORS.rule(exp.Boolean)
def _boolean(translator: Translator, node: exp.Expression, reached: Reached) -> Value:  # noqa: ARG001
    return Value(pl.lit(bool(node.this)), BOOLEAN)


@OPERATORS.rule(exp.Literal, exp.RawString, arguments=("this", "is_string"))
def _literal(translator: Translator, node: exp.Expression, reached: Reached) -> Value:  # noqa: ARG001
    if isinstance(node, exp.RawString) or node.is_string:
        return Value(pl.lit(str(node.this)), STRING, text=str(node.this))
    return _number(translator, node, str(node.this))


def _number(translator: Translator, node: exp.Expression, digits: str) -> Value:
    if not digits.lstrip("-").isdigit():
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise translator.error(node, "is too large for a double")
        return Value(pl.lit(number), DOUBLE)
    whole = int(digits)
    for dtype, bits in ((INT, 31), (BIGINT, 63)):
        if -(2**bits) <= whole < 2**bits:
            return Value(pl.lit(whole, dtype), dtype)
    raise translator.error(node, "is too large for a bigint")


@OPERATORS.rule(exp.Interval, arguments=("this", "unit"))
def _interval(translator: Translator, node: exp.Expression, reached: Reached) -> Value:  # noqa: ARG001
    unit = node.args.get("unit")
    try:
        microseconds = duration_us(f"{node.name} {unit.name if unit else ''}", argument="interval")
    except UsageError:
        raise translator.error(
            node, "is not supported", hint="intervals are literals in days, hours, minutes and seconds"
        ) from None
    return Value(pl.lit(timedelta(microseconds=microseconds), INTERVAL), INTERVAL)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def checked(translator: Translator, node: exp.Expression, function: str, operands: list[Value]) -> Value:
    """A function of whole numbers of one type, or of doubles, that fails rather than give a wrong result."""
    kernel = Checked(f"{function}_checked", translator.written(node))
    dtype = operands[0].dtype
    exprs = [operand.expr for operand in operands]
    return Value(pl.map_batches(exprs, kernel, return_dtype=dtype, is_elementwise=True), dtype)


def operands(
    translator: Translator, node: exp.Expression, sides: list[exp.Expression], reached: Reached
) -> list[Value]:
    """Two numbers in their common type, double if both are null; the first number is null in rows that are not
    computed."""
    values = [translator.numeric(side, reached) for side in sides]
    (left, right), dtype = translator.unified(values, node)
    if dtype == NULL:
        left, right = (translator.cast(side, DOUBLE, node, reached=None, lenient=False) for side in (left, right))
    return [Value(guarded(left.expr, reached), left.dtype), right]


def _sides(translator: Translator, node: exp.Expression, reached: Reached) -> list[Value]:
    return operands(translator, node, [node.this, node.expression], reached)


@OPERATORS.rule(exp.Add, exp.Sub, exp.Mul, arguments=_BOTH)
def _arithmetic(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    if isinstance(node, exp.Add | exp.Sub) and (moved := _moved_time(translator, node, reached)) is not None:
        return moved
    left, right = _sides(translator, node, reached)
    match node:
        case exp.Add():
            function, floating = "add", left.expr + right.expr
        case exp.Sub():
            function, floating = "subtract", left.expr - right.expr
        case _:
            function, floating = "multiply", left.expr * right.expr
    return Value(floating, left.dtype) if left.is_float else checked(translator, node, function, [left, right])


def _moved_time(translator: Translator, node: exp.Expression, reached: Reached) -> Value | None:
    """A timestamp with an interval added or taken away; None if no interval is there."""
    left, right = node.this, node.expression
    if isinstance(node, exp.Add) and isinstance(left, exp.Interval):
        left, right = right, left
    if not isinstance(right, exp.Interval):
        return None
    time = translator.value(left, reached)
    if time.dtype not in (TIMESTAMP, TIMESTAMP_NTZ):
        raise translator.error(left, f"is {sql_name(time.dtype)}; an interval can be added to a timestamp only")
    interval = translator.value(right, reached)
    moved = time.expr + interval.expr if isinstance(node, exp.Add) else time.expr - interval.expr
    return Value(moved, time.dtype)


@OPERATORS.rule(exp.Div, arguments=(*_BOTH, "typed", "safe"))
def _divide(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    sides = _sides(translator, node, reached)
    doubles = [Value(side.expr.cast(DOUBLE), DOUBLE) for side in sides]
    return checked(translator, node, "divide", doubles)


@OPERATORS.rule(exp.IntDiv, arguments=_BOTH)
def _divide_whole(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    sides = _sides(translator, node, reached)
    if not all(side.is_integer for side in sides):
        raise translator.error(node, "needs whole numbers on both sides", hint="use / for doubles")
    longs = [Value(side.expr.cast(BIGINT), BIGINT) for side in sides]
    return checked(translator, node, "divide", longs)


@OPERATORS.rule(exp.Mod, arguments=_BOTH)
def _modulo(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return remainder(translator, node, _sides(translator, node, reached), positive=False)


def remainder(translator: Translator, node: exp.Expression, operands: list[Value], *, positive: bool) -> Value:
    """The remainder of a division towards zero; see `Remainder` for `positive`."""
    kernel = Remainder(positive=positive, text=translator.written(node))
    dtype = operands[0].dtype
    exprs = [operand.expr for operand in operands]
    return Value(pl.map_batches(exprs, kernel, return_dtype=dtype, is_elementwise=True), dtype)


@OPERATORS.rule(exp.Neg)
def _negate(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(translator, node, f"-{node.this.this}")
    value = translator.numeric(node.this, reached)
    if value.is_float or value.dtype == NULL:
        return Value(-value.expr, value.dtype)
    return checked(translator, node, "negate", [Value(guarded(value.expr, reached), value.dtype)])


# --- comparisons -----------------------------------------------------------------------------------------------------


@OPERATORS.rule(*_COMPARISONS, arguments=_BOTH)
def _comparison(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    right = node.expression
    # Spark reads several comparisons from left to right, and the parser reads them by precedence. With <=> the parser
    # adds parentheses of its own.
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ) and isinstance(right, exp.Paren):
        right = right.this
    if isinstance(right, _COMPARISONS):
        raise translator.error(
            node, "can be read in two ways", hint="put the comparison on the right into a column first"
        )
    sides = [translator.value(node.this, reached), translator.value(node.expression, reached)]
    return compared(translator, node, sides)


def compared(translator: Translator, node: exp.Expression, sides: list[Value]) -> Value:
    """Two values compared as `node` says, or for equality if `node` is no comparison."""
    (left, right), dtype = translator.unified(sides, node)
    if dtype.is_nested():
        raise translator.error(node, f"compares {sql_name(dtype)}, which is not supported")
    match node:
        case exp.NEQ():
            expr = left.expr != right.expr
        case exp.NullSafeEQ():
            expr = left.expr.eq_missing(right.expr)
        case exp.NullSafeNEQ():
            expr = left.expr.ne_missing(right.expr)
        case exp.GT():
            expr = left.expr > right.expr
        case exp.GTE():
            expr = left.expr >= right.expr
        case exp.LT():
            expr = left.expr < right.expr
        case exp.LTE():
            expr = left.expr <= right.expr
        case _:
            expr = left.expr == right.expr
    # A comparison of null with null gives a column without a type.
    return Value(expr.cast(BOOLEAN) if dtype == NULL else expr, BOOLEAN)


@OPERATORS.rule(exp.Is, arguments=_BOTH)
def _is(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    if isinstance(node.expression, exp.Null):
        return Value(translator.value(node.this, reached).expr.is_null(), BOOLEAN)
    if isinstance(node.expression, exp.Boolean):
        value = translator.boolean(node.this, reached)
        return Value(value.expr.eq_missing(pl.lit(bool(node.expression.this))), BOOLEAN)
    raise translator.unsupported(node)


@OPERATORS.rule(exp.Between, arguments=("this", "low", "high"))
def _between(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.value(node.this, reached)
    low, high = node.args["low"], node.args["high"]
    from_low = compared(translator, exp.GTE(this=node.this, expression=low), [value, translator.value(low, reached)])
    still_open = both(reached, from_low.expr.fill_null(value=True))
    to_high = compared(
        translator, exp.LTE(this=node.this, expression=high), [value, translator.value(high, still_open)]
    )
    return Value(from_low.expr & to_high.expr, BOOLEAN)


@OPERATORS.rule(exp.In, arguments=("this", "expressions"))
def _in(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.value(node.this, reached)
    (value, *items), dtype = translator.unified([value, *translator.values(node.expressions, reached)], node)
    if dtype.is_nested():
        raise translator.error(node, f"compares {sql_name(dtype)}, which is not supported")
    # One by one, since a null among the items makes "not found" unknown.
    found = pl.lit(value=False)
    for item in items:
        found = found | (value.expr == item.expr).cast(BOOLEAN)
    return Value(found, BOOLEAN)


# --- logic -----------------------------------------------------------------------------------------------------------


@OPERATORS.rule(exp.And, exp.Or, arguments=_BOTH)
def _connective(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    left = translator.boolean(node.this, reached).expr
    if isinstance(node, exp.And):
        right = translator.boolean(node.expression, both(reached, left.fill_null(value=True))).expr
        return Value(left & right, BOOLEAN)
    right = translator.boolean(node.expression, both(reached, ~left.fill_null(value=False))).expr
    return Value(left | right, BOOLEAN)


@OPERATORS.rule(exp.Not)
def _not(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return Value(~translator.boolean(node.this, reached).expr, BOOLEAN)


# --- choices ---------------------------------------------------------------------------------------------------------


@OPERATORS.rule(exp.Case, arguments=("this", "ifs", "default"))
def _case(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    operand = translator.value(node.this, reached) if node.this else None
    still_open = reached
    conditions: list[pl.Expr] = []
    values: list[Value] = []
    for branch in node.args["ifs"]:
        if operand is None:
            condition = translator.boolean(branch.this, still_open).expr
        else:
            condition = compared(translator, branch, [operand, translator.value(branch.this, still_open)]).expr
        holds = condition.fill_null(value=False)
        conditions.append(holds)
        values.append(translator.value(branch.args["true"], both(still_open, holds)))
        still_open = both(still_open, ~holds)
    default = node.args.get("default")
    values.append(Value(pl.lit(None), NULL) if default is None else translator.value(default, still_open))
    return chosen(translator, node, conditions, values)


@OPERATORS.rule(exp.If, arguments=("this", "true", "false"))
def _if(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    holds = translator.boolean(node.this, reached).expr.fill_null(value=False)
    otherwise = node.args.get("false")
    values = [
        translator.value(node.args["true"], both(reached, holds)),
        Value(pl.lit(None), NULL) if otherwise is None else translator.value(otherwise, both(reached, ~holds)),
    ]
    return chosen(translator, node, [holds], values)


def chosen(translator: Translator, node: exp.Expression, conditions: list[pl.Expr], values: list[Value]) -> Value:
    """The value of the first condition that holds, or the last value; there is one more value than conditions."""
    values, dtype = translator.unified(values, node)
    result = values[-1].expr
    for condition, value in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        result = pl.when(condition).then(value.expr).otherwise(result)
    return Value(result, dtype)


# --- casts -----------------------------------------------------------------------------------------------------------


@OPERATORS.rule(exp.Cast, exp.TryCast, arguments=("this", "to", "safe"))
def _cast(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return cast_to(translator, node, translator.written(node.args["to"]), reached)


def cast_to(translator: Translator, node: exp.Expression, type_name: str, reached: Reached) -> Value:
    """The operand of a node turned into the type of that name."""
    operand = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
    try:
        kind = parse_type(type_name, argument="type")
    except UsageError:
        raise translator.error(node, f"is not supported: {type_name.lower()} is no known type") from None
    value = translator.value(operand, reached)
    return translator.cast(value, polars_type(kind), node, reached=reached, lenient=bool(node.args.get("safe")))
