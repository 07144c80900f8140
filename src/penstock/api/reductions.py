"""The function behind `KeyedStream.reduce`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedContext, KeyedFunction, Row
from penstock.api.state_declarations import value_state


class RunningReduce(KeyedFunction):
    """Keeps one row per key, made of all records of the key, and hands the row on with every record."""

    def __init__(self, function: Callable[[Row, Row], Row], schema: pa.Schema) -> None:
        self._function = function
        self._reduced = value_state("reduced", pa.struct(list(schema)))

    def on_row(self, row: Row, context: KeyedContext) -> dict[str, Any]:  # noqa: ARG002
        """The record, reduced with the row of its key. The first record of a key is taken as it is."""
        before = self._reduced.get()
        reduced = row if before is None else self._function(before, row)
        self._reduced.set(reduced)
        return reduced
