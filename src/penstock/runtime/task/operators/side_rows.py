"""Rows that a user's function emits to side outputs, held until they become batches."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from penstock.core.errors import UsageError
from penstock.runtime.task.operators.base import Side
from penstock.runtime.task.operators.functions import from_arrow
from penstock.runtime.task.operators.rows import batch_of
from penstock.runtime.task.operators.user_code import Wrong

_MOST_ROWS = 65_536
"""Rows of a side output become a batch when there are this many rows."""


class SideRows:
    """The rows that a function has emitted, by side output. The operator must call `flush` before a snapshot may be
    taken: these rows are in no state."""

    def __init__(self, schemas: Mapping[str, pa.Schema]) -> None:
        self._schemas = schemas
        self._rows: dict[str, list[Any]] = {name: [] for name in schemas}
        self._outputs: Mapping[str, Side] = {}
        self.may_emit = False
        """Whether the function may emit rows: not before the step has begun, and not where a snapshot is taken."""
        self.has_rows = False

    def open(self, outputs: Mapping[str, Side], wrong: Wrong) -> None:
        """The step begins. Rows for a side output that is not in `outputs` are dropped, because nothing reads them."""
        self._outputs = outputs
        self._wrong = wrong
        self.may_emit = True

    def add(self, name: str, given: Any) -> None:
        """Take a row, or an Arrow batch of rows, for a side output. Raises `UsageError` for a side output that the step
        does not have."""
        rows = self._rows.get(name)
        if rows is None:
            raise self._unknown(name)
        if not self.may_emit:
            raise UsageError(
                f"emit({name!r}, ...) was called where the function may make no rows",
                hint="emit rows where the function may return rows, for example in on_row, on_timer or on_end",
            )
        if name not in self._outputs:
            return
        if isinstance(given, pa.RecordBatch | pa.Table):
            self._flush(name)
            for batch in from_arrow(given, self._schemas[name], self._wrong_in(name)):
                self._outputs[name].emit(batch)
            return
        rows.append(given)
        self.has_rows = True
        if len(rows) >= _MOST_ROWS:
            self._flush(name)

    def flush(self) -> None:
        """Hand on all rows."""
        self.has_rows = False
        for name in self._rows:
            self._flush(name)

    def _flush(self, name: str) -> None:
        rows = self._rows[name]
        if rows:
            self._rows[name] = []
            self._outputs[name].emit(batch_of(rows, self._schemas[name], self._wrong_in(name)))

    def _wrong_in(self, name: str) -> Wrong:
        return lambda what: self._wrong(f"side output {name!r}: {what}")

    def _unknown(self, name: Any) -> UsageError:
        names = list(self._schemas)
        near = get_close_matches(str(name), names, n=1, cutoff=0.5)
        if not names:
            return UsageError(
                f"emit({name!r}, ...): the step declares no side outputs",
                hint=f'declare the side output where the step is made: sides={{"{name}": "<columns>"}}',
            )
        return UsageError(
            f"emit: there is no side output {name!r}; there are {', '.join(names)}",
            hint=f"did you mean {near[0]!r}?" if near else "declare it in sides= where the step is made",
        )
