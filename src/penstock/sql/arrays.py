"""The functions of SQL text that make arrays."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from penstock.sql.kernels import SplitText
from penstock.sql.translation import Reached, RuleBook, Translator
from penstock.sql.values import NULL, STRING, Value, sql_name

ARRAYS = RuleBook()

_ANCHORS = ("^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\G")
"""Parts of a pattern that match a place between characters, and no character."""


@ARRAYS.rule(exp.RegexpSplit, arguments=("this", "expression", "limit"))
def _split(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    pattern = translator.string_literal(node.expression, "pattern of split")
    text = translator.of_type(node.this, STRING, reached).expr
    _check_pattern(translator, node, pattern)
    dtype, most = pl.List(STRING), _most_parts(translator, node)
    if most == 1:
        return Value(pl.when(text.is_not_null()).then(pl.concat_list([text])), dtype)
    kernel = SplitText(pattern, most)
    return Value(pl.map_batches([text], kernel, return_dtype=dtype, is_elementwise=True), dtype)


def _most_parts(translator: Translator, node: exp.Expression) -> int | None:
    limit = node.args.get("limit")
    if limit is None or (isinstance(limit, exp.Neg) and isinstance(limit.this, exp.Literal)):
        return None
    # As in Spark, 0 and negative numbers mean that there is no limit.
    return translator.integer_literal(limit, "limit of split") or None


def _check_pattern(translator: Translator, node: exp.Expression, pattern: str) -> None:
    hint = "patterns of split have the syntax of RE2: no look-around, no back references"
    try:
        matches_nothing = pc.match_substring_regex(pa.array([""]), f"^(?:{pattern})$")[0].as_py()
    except pa.ArrowInvalid as error:
        raise translator.error(node, f"has a pattern that cannot be read: {error}", hint=hint) from None
    if matches_nothing or any(part in _ANCHORS for part in _parts_outside_classes(pattern)):
        raise translator.error(
            node,
            "has a pattern that can match between two characters, which is not supported",
            hint="write a pattern of the characters to split at",
        )


def _parts_outside_classes(pattern: str) -> list[str]:
    """The characters of a pattern, each with the backslash before it, without the classes in brackets."""
    found: list[str] = []
    characters, in_class = iter(pattern), False
    for character in characters:
        part = character + next(characters, "") if character == "\\" else character
        if part == "[":
            in_class = True
        elif part == "]":
            in_class = False
        elif not in_class:
            found.append(part)
    return found


@ARRAYS.rule(exp.Array, arguments=("expressions", "bracket_notation", "struct_name_inheritance"))
def _array(translator: Translator, node: exp.Expression, reached: Reached) -> Value:
    if not node.expressions:
        raise translator.error(node, "has no elements, and so no type")
    values, inner = translator.unified(translator.values(node.expressions, reached), node)
    if inner == NULL or inner.is_nested():
        raise translator.error(node, f"is an array of {sql_name(inner)}, which is not supported")
    return Value(pl.concat_list([value.expr for value in values]), pl.List(inner))
