"""Schemas and types as Spark writes them: "auction bigint, tags array<string>, at timestamp NOT NULL".

The names are Spark's, in any case: boolean, tinyint (byte), smallint (short), int (integer), bigint (long), float
(real), double, string (varchar(n) and char(n) are read as string), binary, date, timestamp, timestamp_ntz, decimal(p,
s), array<…>, map<…, …>, struct<name: type, …>. `timestamp` is in UTC, `timestamp_ntz` has no time zone; both count
microseconds. A column name that is no plain word stands in `backquotes`.
"""

from __future__ import annotations

import re

import pyarrow as pa

from penstock.core.errors import UsageError

TIMESTAMP = pa.timestamp("us", tz="UTC")

_PLAIN_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([^\W\d]\w*)|(\d+)|([<>(),:]))")
_KNOWN = (
    "boolean, tinyint, smallint, int, bigint, float, double, string, binary, date, timestamp, timestamp_ntz, "
    "decimal(p, s), array<…>, map<…, …>, struct<…>"
)


def parse_columns(text: str, *, argument: str) -> pa.Schema:
    """The schema that `text` describes. Raises `UsageError` naming `argument` and the place."""
    parser = _Parser(text, argument)
    return pa.schema(parser.columns(end=""))


def parse_type(text: str, *, argument: str) -> pa.DataType:
    """The type that `text` names. Raises `UsageError` naming `argument` and the place."""
    parser = _Parser(text, argument)
    found = parser.type()
    parser.expect("")
    return found


class _Parser:
    """Reads one text from left to right; the end of the text is the empty token."""

    def __init__(self, text: str, argument: str) -> None:
        self._text = text
        self._argument = argument
        self._tokens: list[tuple[int, str]] = []
        self._next = 0
        position = 0
        while text[position:].strip():
            token = _TOKEN.match(text, position)
            if token is None:
                raise self._error(position, "a name, a type or one of < > ( ) , :")
            self._tokens.append((token.start(token.lastindex or 0), token.group(token.lastindex or 0)))
            position = token.end()

    def columns(self, *, end: str) -> list[pa.Field[pa.DataType]]:
        fields: list[pa.Field[pa.DataType]] = []
        while True:
            name = self._name()
            self._accept(":")
            kind = self.type()
            required = self._accept("not")
            if required:
                self.expect("null")
            fields.append(pa.field(name, kind, nullable=not required))
            if not self._accept(","):
                self.expect(end)
                return fields

    def type(self) -> pa.DataType:
        position, word = self._position(), self._take().lower()
        match word:
            case "varchar" | "char":
                self._numbers(1)
                return pa.string()
            case "decimal" | "dec" | "numeric":
                precision, scale = self._numbers(2) if self._peek() == "(" else (10, 0)
                if not 1 <= precision <= 38 or scale > precision:
                    raise self._error(
                        position, "a decimal with a precision from 1 to 38 and a scale up to the precision"
                    )
                return pa.decimal128(precision, scale)
            case "array":
                self.expect("<")
                item = self.type()
                self.expect(">")
                return pa.list_(item)
            case "map":
                self.expect("<")
                key = self.type()
                self.expect(",")
                value = self.type()
                self.expect(">")
                return pa.map_(key, value)
            case "struct":
                self.expect("<")
                return pa.struct(self.columns(end=">"))
            case _ if word in _PLAIN_TYPES:
                return _PLAIN_TYPES[word]
            case _:
                raise self._error(position, "a type")

    def expect(self, token: str) -> None:
        if not self._accept(token):
            raise self._error(self._position(), repr(token) if token else "',' or the end")

    def _numbers(self, most: int) -> tuple[int, int]:
        self.expect("(")
        numbers = [self._number()]
        while len(numbers) < most and self._accept(","):
            numbers.append(self._number())
        self.expect(")")
        return numbers[0], numbers[1] if len(numbers) > 1 else 0

    def _number(self) -> int:
        if not self._peek().isdigit():
            raise self._error(self._position(), "a number")
        return int(self._take())

    def _name(self) -> str:
        token = self._peek()
        if token.startswith("`"):
            return self._take()[1:-1].replace("``", "`")
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise self._error(self._position(), "a column name")
        return self._take()

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += bool(token)
        return token

    def _accept(self, token: str) -> bool:
        if self._peek().lower() != token:
            return False
        self._take()
        return True

    def _position(self) -> int:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else len(self._text)

    def _error(self, position: int, expected: str) -> UsageError:
        rest = self._text[position:].strip()
        return UsageError(
            f"{self._argument} is {self._text!r}; expected {expected} at {repr(rest) if rest else 'the end'}",
            hint=f"write 'name type, name type'; types are {_KNOWN}",
        )
