"""Functions that are called once per key and batch: the base of adapters for classes of another system's interface.

A `GroupedFunction` is a keyed function that decides in which form rows are handed to its calls, and makes batches of
what its calls returned. The runtime does the rest as for any keyed function: the runtime groups the rows of a batch by
key, enters the key before each call, consumes what the call returned before the next key, fires timers, and saves
state. So an adapter for classes of another system is a `GroupedFunction` in a package that may import that system, and
the runtime needs to know nothing of that system. `penstock.spark.processor_function` is such an adapter.

The declared states of a `GroupedFunction` are replaced by the tables of the back end (with times to live, see
`penstock.state.handles.keyed_table`), and not by handles: the adapter decides which types go in and out.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.functions import KeyedContext, KeyedFunction
from penstock.sql.schemas import SchemaLike

Wrong = Callable[[str], Exception]
"""Makes the error for a result of the wrong type or with the wrong columns. The argument is the error text."""


class GroupedFunction(KeyedFunction):
    """A keyed function that is called once per key and batch."""

    schema: pa.Schema
    """The schema of the rows that the function makes."""
    dropped_states: tuple[str, ...] = ()
    """The names of states that a snapshot may have, and that are dropped when the snapshot is restored."""

    def admitted(self, batch: pa.RecordBatch, watermark: datetime.datetime | None) -> pa.RecordBatch:  # noqa: ARG002
        """The rows of a batch that are handled. All other rows are left out."""
        return batch

    def rows_of(self, batch: pa.RecordBatch) -> Any:
        """The rows of a batch, as something that can be sliced by position."""
        raise NotImplementedError

    def on_group(self, rows: Any, context: KeyedContext) -> Iterable[Any] | None:
        """Called with the rows of one key, in their order. The returned iterable is consumed before the next call."""
        raise NotImplementedError

    def landed(self, folder: Callable[[], Path] | None) -> GroupedFunction:  # noqa: ARG002
        """The function that goes to the slots. Files that slots must read to make the initial state are written to the
        folder that `folder` makes. None: the state is restored, and there is no initial state. Called on the driver,
        before the job starts."""
        return self

    def initial_batches(self) -> Iterable[pa.RecordBatch]:
        """The rows of the initial state, for all keys. Only asked for when there is no state to restore."""
        return ()

    def on_initial(self, rows: Any, context: KeyedContext) -> None:
        """Called with the rows of one key of an initial batch."""

    def batches_of(self, made: Sequence[Any], wrong: Wrong) -> Iterable[pa.RecordBatch]:
        """Make batches of the results that calls returned. Raises the error that `wrong` makes if a result does not fit
        `schema`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HostedProcessor:
    """A processor of another system's interface that is to run as a step, as the user gave it. Nothing is checked
    yet."""

    processor: Any
    output_schema: SchemaLike | Any
    time_mode: str
    output_mode: str
    initial_state: Any
    kind: str
    """`row` or `pandas`."""
    keys: tuple[str, ...]
    input_schema: pa.Schema
    time_column: str | None
    """The column with the event time of the input; None if the input has no event time."""


ProcessorHost = Callable[[HostedProcessor], GroupedFunction]
"""Makes a function of a processor. Raises `UsageError`."""
