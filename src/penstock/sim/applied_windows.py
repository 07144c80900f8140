"""Windows of a world whose records a function of the user's gets all at once. What the function counts is what other
worlds let aggregates count, so the same results are expected."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.aggregate_kinds.description import ROWS
from penstock.api.steps import WINDOW_ROWS, Aggregate, ApplyStep
from penstock.sim.jobs import SCHEMA

APPLIED = (Aggregate(name=WINDOW_ROWS, kind=ROWS, column=None, parameters=tuple(SCHEMA.names)),)
_MADE = pa.schema([pa.field("n", pa.int64()), pa.field("top", pa.int64())])


def count(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The number of the records of a window, and the greatest value."""
    values: Any = rows.column("value")
    return pa.record_batch([pa.array([rows.num_rows]), pa.array([pc.max(values).as_py()])], schema=_MADE)


def apply_step(results: pa.Schema) -> ApplyStep:
    """The step behind windows with these results."""
    places = [field for field in results if field.name != WINDOW_ROWS]
    return ApplyStep(
        function=count,
        kind="arrow",
        takes_window=False,
        rows=SCHEMA,
        made=_MADE,
        schema=pa.schema([*places, *_MADE]),
    )
