"""The functions of SQL text: of null, of numbers, of texts and of times."""

from __future__ import annotations

from functools import reduce

import polars as pl
from polars.exceptions import PolarsError
from sqlglot import exp

from penstock.sql.kernels import Checked, RoundHalfUp
from penstock.sql.operators import both, cast_to, checked, chosen, compared, operands, remainder
from penstock.sql.translation import Reached, RuleBook, Translator
from penstock.sql.values import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Value,
    guarded,
    sql_name,
)

FUNCTIONS = RuleBook()

_TRUNCATE = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "1y"),
    "QUARTER": "1q",
    **dict.fromkeys(("MONTH", "MM", "MON"), "1mo"),
    "WEEK": "1w",
    **dict.fromkeys(("DAY", "DD"), "1d"),
    "HOUR": "1h",
    "MINUTE": "1m",
    "SECOND": "1s",
    "MILLISECOND": "1ms",
    "MICROSECOND": "1us",
}


def _arguments(translator: Translator, node: exp.Expression, count: int) -> list[exp.Expression]:
    """The arguments of a function that the parser does not know."""
    if len(node.expressions) != count:
        raise translator.error(node, f"has the wrong number of arguments: {node.name} takes {count}")
    return list(node.expressions)


# --- null ------------------------------------------------------------------------------------------------------------


@FUNCTIONS.rule(exp.Coalesce, arguments=("this", "expressions"))
def _coalesce(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    values: list[Value] = []
    for argument in (node.this, *node.expressions):
        value = translator.value(argument, reached)
        values.append(value)
        reached = both(reached, value.expr.is_null())
    values, dtype = translator.unified(values, node)
    return Value(pl.coalesce([value.expr for value in values]), dtype)


@FUNCTIONS.rule(exp.Nullif, arguments=("this", "expression"))
def _nullif(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.value(node.this, reached)
    equal = compared(translator, node, [value, translator.value(node.expression, reached)])
    return chosen(translator, node, [equal.expr.fill_null(value=False)], [Value(pl.lit(None), NULL), value])


@FUNCTIONS.rule(exp.Nvl2, arguments=("this", "true", "false"))
def _nvl2(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    holds = translator.value(node.this, reached).expr.is_not_null()
    values = [
        translator.value(node.args["true"], both(reached, holds)),
        translator.value(node.args["false"], both(reached, ~holds)),
    ]
    return chosen(translator, node, [holds], values)


@FUNCTIONS.function("isnull", "isnotnull")
def _is_null(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    (argument,) = _arguments(translator, node, 1)
    expr = translator.value(argument, reached).expr
    return Value(expr.is_null() if node.name.lower() == "isnull" else expr.is_not_null(), BOOLEAN)


# --- numbers ---------------------------------------------------------------------------------------------------------


@FUNCTIONS.function("pmod")
def _pmod(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    sides = operands(translator, node, _arguments(translator, node, 2), reached)
    return remainder(translator, node, sides, positive=True)


@FUNCTIONS.rule(exp.Abs)
def _abs(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.numeric(node.this, reached)
    if value.is_integer:
        return checked(translator, node, "abs", [Value(guarded(value.expr, reached), value.dtype)])
    return Value(value.expr.abs(), value.dtype)


@FUNCTIONS.rule(exp.Round, arguments=("this", "decimals"))
def _round(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.numeric(node.this, reached)
    digits_node = node.args.get("decimals")
    digits = 0 if digits_node is None else translator.integer_literal(digits_node, "number of digits")
    if value.is_integer or value.dtype == NULL:
        return value
    if digits > 15:
        raise translator.error(node, "rounds to more than 15 digits, which a double does not have")
    kernel = RoundHalfUp(digits)
    return Value(
        pl.map_batches([value.expr], kernel, return_dtype=value.dtype, is_elementwise=True),
        value.dtype,
    )


@FUNCTIONS.rule(exp.Floor, exp.Ceil)
def _floor_or_ceil(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.numeric(node.this, reached)
    if not value.is_float:
        return Value(value.expr.cast(BIGINT), BIGINT)
    expr = guarded(value.expr, reached)
    whole = expr.floor() if isinstance(node, exp.Floor) else expr.ceil()
    return Value(whole.fill_nan(0.0).cast(BIGINT), BIGINT)


@FUNCTIONS.rule(exp.Sqrt)
def _sqrt(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return Value(translator.numeric(node.this, reached).expr.cast(DOUBLE).sqrt(), DOUBLE)


@FUNCTIONS.rule(exp.IsNan)
def _is_nan(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    value = translator.numeric(node.this, reached)
    return Value(value.expr.cast(DOUBLE).is_nan().fill_null(value=False), BOOLEAN)


@FUNCTIONS.rule(exp.Greatest, exp.Least, arguments=("this", "expressions", "ignore_nulls"))
def _extreme(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    values, dtype = translator.unified(translator.values([node.this, *node.expressions], reached), node)
    if dtype.is_nested():
        raise translator.error(node, f"compares {sql_name(dtype)}, which is not supported")
    exprs = [value.expr for value in values]
    if isinstance(node, exp.Least):
        return Value(pl.min_horizontal(exprs), dtype)
    greatest = pl.max_horizontal(exprs)
    if dtype in (pl.Float32(), DOUBLE):
        # Polars ignores NaN; in Spark NaN is greater than every number.
        has_nan = reduce(lambda one, other: one | other, [expr.is_nan().fill_null(value=False) for expr in exprs])
        greatest = pl.when(has_nan).then(pl.lit(float("nan"), dtype)).otherwise(greatest)
    return Value(greatest, dtype)


# --- texts -----------------------------------------------------------------------------------------------------------


@FUNCTIONS.rule(exp.DPipe, arguments=("this", "expression", "safe"))
def _pipe(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    if isinstance(node.expression, exp.Add | exp.Sub):
        # Spark gives || and + the same precedence and reads both from left to right; the parser does not.
        raise translator.error(node, "can be read in two ways", hint="put parentheses around what belongs together")
    return _joined(translator, [node.this, node.expression], node, reached)


@FUNCTIONS.rule(exp.Concat, arguments=("expressions", "safe"))
def _concat(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return _joined(translator, node.expressions, node, reached)


def _joined(translator: Translator, parts: list[exp.Expression], node: exp.Expression, reached: Reached) -> Value:
    texts = [
        translator.cast(translator.value(part, reached), STRING, node, reached=None, lenient=False).expr
        for part in parts
    ]
    return Value(pl.concat_str(texts, ignore_nulls=False), STRING)


@FUNCTIONS.rule(exp.Upper, exp.Lower, arguments=("this",))
def _letters(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    text = translator.of_type(node.this, STRING, reached).expr.str
    return Value(text.to_uppercase() if isinstance(node, exp.Upper) else text.to_lowercase(), STRING)


@FUNCTIONS.rule(exp.Length)
def _length(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return Value(translator.of_type(node.this, STRING, reached).expr.str.len_chars().cast(INT), INT)


@FUNCTIONS.rule(exp.Trim, arguments=("this", "expression", "position"))
def _trim(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    text = translator.of_type(node.this, STRING, reached).expr.str
    characters = " "
    if node.expression is not None:
        characters = translator.string_literal(node.expression, "the characters to trim")
    match node.args.get("position"):
        case "LEADING":
            return Value(text.strip_chars_start(characters), STRING)
        case "TRAILING":
            return Value(text.strip_chars_end(characters), STRING)
        case _:
            return Value(text.strip_chars(characters), STRING)


@FUNCTIONS.rule(exp.Substring, arguments=("this", "start", "length"))
def _substring(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    text = translator.of_type(node.this, STRING, reached).expr
    start = translator.whole(node.args["start"], reached).expr
    # Positions count from 1, and positions below 0 count from the end; 0 means 1.
    size = text.str.len_chars().cast(BIGINT)
    first = pl.when(start > 0).then(start - 1).when(start < 0).then(size + start).when(start == 0).then(0)
    length_node = node.args.get("length")
    length = pl.lit(2**31 - 1, BIGINT) if length_node is None else translator.whole(length_node, reached).expr
    # A start before the text uses up part of the length.
    offset = pl.max_horizontal(first, pl.lit(0, BIGINT))
    left = pl.max_horizontal(first + length - offset, pl.lit(0, BIGINT))
    return Value(pl.when((first + length).is_not_null()).then(text.str.slice(offset, left)), STRING)


@FUNCTIONS.rule(exp.StartsWith, exp.EndsWith, exp.Contains, arguments=("this", "expression"))
def _has_part(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    text = translator.of_type(node.this, STRING, reached).expr.str
    part = translator.of_type(node.expression, STRING, reached).expr
    match node:
        case exp.StartsWith():
            return Value(text.starts_with(part), BOOLEAN)
        case exp.EndsWith():
            return Value(text.ends_with(part), BOOLEAN)
        case _:
            return Value(text.contains(part, literal=True), BOOLEAN)


@FUNCTIONS.rule(exp.Like, exp.ILike, arguments=("this", "expression", "negate"))
def _like(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return _matches_like(translator, node, "\\", reached)


@FUNCTIONS.rule(exp.Escape, arguments=("this", "expression"))
def _like_escape(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    escape = translator.string_literal(node.expression, "escape character")
    if len(escape) != 1 or not isinstance(node.this, exp.Like | exp.ILike):
        raise translator.unsupported(node)
    translator.check_arguments(node.this, ("this", "expression", "negate"))
    return _matches_like(translator, node.this, escape, reached)


def _matches_like(translator: Translator, node: exp.Expression, escape: str, reached: Reached) -> Value:
    pattern = translator.string_literal(node.expression, "pattern of LIKE")
    text = translator.of_type(node.this, STRING, reached).expr
    regex = ""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise translator.error(node, f"has {escape!r} before a character that needs no escape")
            regex += pl.escape_regex(escaped)
        else:
            regex += {"%": ".*", "_": "."}.get(character) or pl.escape_regex(character)
    flags = "(?is)" if isinstance(node, exp.ILike) else "(?s)"
    matches = text.str.contains(f"{flags}^(?:{regex})$")
    return Value(~matches if node.args.get("negate") else matches, BOOLEAN)


@FUNCTIONS.rule(exp.RegexpLike, arguments=("this", "expression", "negate"))
def _rlike(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    pattern = translator.string_literal(node.expression, "pattern of RLIKE")
    text = translator.of_type(node.this, STRING, reached).expr
    try:
        pl.Series([""]).str.contains(pattern)
    except PolarsError as error:
        reasons = [line for line in str(error).splitlines() if line.startswith("error: ")]
        raise translator.error(
            node,
            f"has a pattern that cannot be read: {(reasons or [str(error)])[0].removeprefix('error: ')}",
            hint="patterns have the syntax of Rust's regex: no look-around, no back references",
        ) from None
    matches = text.str.contains(pattern)
    return Value(~matches if node.args.get("negate") else matches, BOOLEAN)


# --- times -----------------------------------------------------------------------------------------------------------


def _time(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    """What a node computes, as a timestamp: a date means its midnight, a string literal the time that its text
    shows."""
    value = translator.value(node, reached)
    if value.dtype == TIMESTAMP_NTZ:
        return value
    if value.dtype in (TIMESTAMP, DATE, NULL) or value.text is not None:
        return translator.cast(value, TIMESTAMP, node, reached=None, lenient=False)
    raise translator.error(node, f"is {sql_name(value.dtype)} where a timestamp or a date is needed")


@FUNCTIONS.rule(exp.TsOrDsToDate, arguments=("this", "safe"))
def _to_date(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    return translator.cast(_time(translator, node.this, reached), DATE, node, reached=None, lenient=False)


@FUNCTIONS.rule(exp.Year, exp.Month, exp.Day, exp.DayOfMonth, exp.Hour, exp.Minute, exp.Second)
def _time_part(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    # The parser puts a cast to date around some operands; the part of a time is the same without the cast.
    operand = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
    time = _time(translator, operand, reached).expr.dt
    match node:
        case exp.Year():
            part = time.year()
        case exp.Month():
            part = time.month()
        case exp.Day() | exp.DayOfMonth():
            part = time.day()
        case exp.Hour():
            part = time.hour()
        case exp.Minute():
            part = time.minute()
        case _:
            part = time.second()
    return Value(part.cast(INT), INT)


@FUNCTIONS.rule(exp.TimestampTrunc, arguments=("this", "unit"))
def _date_trunc(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    unit = node.args["unit"].name.upper()
    if unit not in _TRUNCATE:
        raise translator.error(node, f"has the unit {unit!r}; the units are {', '.join(_TRUNCATE)}")
    time = _time(translator, node.this, reached)
    return Value(time.expr.dt.truncate(_TRUNCATE[unit]), time.dtype)


@FUNCTIONS.rule(exp.UnixMicros, exp.UnixMillis, exp.UnixSeconds)
def _unix_time(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    micros = translator.of_type(node.this, TIMESTAMP, reached).expr.dt.timestamp("us")
    match node:
        case exp.UnixMicros():
            return Value(micros, BIGINT)
        case exp.UnixMillis():
            return Value(micros // 1_000, BIGINT)
        case _:
            return Value(micros // 1_000_000, BIGINT)


@FUNCTIONS.rule(exp.StrToUnix, arguments=("this", "format"))
def _unix_timestamp(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    # The parser always gives a format. The format is for texts, and does not matter for a time.
    time = translator.cast(_time(translator, node.this, reached), TIMESTAMP, node, reached=None, lenient=False)
    micros = time.expr.dt.timestamp("us")
    # Unlike unix_seconds, unix_timestamp rounds towards 1970.
    towards_zero = pl.when(micros < 0).then(-(-micros // 1_000_000)).otherwise(micros // 1_000_000)
    return Value(towards_zero, BIGINT)


@FUNCTIONS.function("timestamp_micros", "timestamp_millis", "timestamp_seconds")
def _time_from_number(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    (argument,) = _arguments(translator, node, 1)
    factor = {"micros": 1, "millis": 1_000, "seconds": 1_000_000}[node.name.lower().removeprefix("timestamp_")]
    number = guarded(translator.whole(argument, reached).expr, reached)
    kernel = Checked("multiply_checked", translator.written(node))
    micros = pl.map_batches([number, pl.lit(factor, BIGINT)], kernel, return_dtype=BIGINT, is_elementwise=True)
    return Value(micros.cast(TIMESTAMP), TIMESTAMP)


@FUNCTIONS.function("tinyint", "smallint", "bigint", "binary")
def _cast_by_name(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    _arguments(translator, node, 1)
    return cast_to(translator, node, node.name, reached)
