"""Functions that are called once per key and batch: what a host for classes of another system's interface is built on.

A `GroupedFunction` is a keyed function that says itself what a row is, and makes batches of what its calls returned.
The runtime does the rest as for any keyed function: it groups the rows of a batch by key, enters the key before each
call and consumes what the call returned before it goes on to the next key, fires timers, and saves state. So whoever
wants to run classes of another system writes an adapter of this kind where that system may be imported, and the runtime
needs to know nothing of it. `penstock.spark.processor_function` is one.

Such a function's declared states are not replaced by handles but by the tables of the back end (with times to live, see
`penstock.state.handles.keyed_table`): which types go in and out is the adapter's business.
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
"""Makes the error for a result that is not what was promised."""


class GroupedFunction(KeyedFunction):
    """A keyed function that is called once per key and batch."""

    schema: pa.Schema
    """Of what it makes."""
    dropped_states: tuple[str, ...] = ()
    """States that a snapshot may have, and that are not to be kept any longer."""

    def admitted(self, batch: pa.RecordBatch, watermark: datetime.datetime | None) -> pa.RecordBatch:  # noqa: ARG002
        """The rows that are to be handled at all."""
        return batch

    def rows_of(self, batch: pa.RecordBatch) -> Any:
        """The rows of a batch, as something that can be sliced by position."""
        raise NotImplementedError

    def on_group(self, rows: Any, context: KeyedContext) -> Iterable[Any] | None:
        """Called with the rows of one key, in their order. What it returns is consumed before the next call."""
        raise NotImplementedError

    def landed(self, folder: Path | None) -> GroupedFunction:  # noqa: ARG002
        """The function as it goes to the slots, with what they must be able to read in the folder, if there is
        something; with None if its state is restored. Called on the driver, before the job starts."""
        return self

    def initial_batches(self) -> Iterable[pa.RecordBatch]:
        """What state is to be made of before the first row, when there is nothing to restore; all keys."""
        return ()

    def on_initial(self, rows: Any, context: KeyedContext) -> None:
        """Called with the rows of one key of an initial batch."""

    def batches_of(self, made: Sequence[Any], wrong: Wrong) -> Iterable[pa.RecordBatch]:
        """Batches of what calls returned. Raises what `wrong` makes for what is not as promised."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HostedProcessor:
    """A class of another system's interface that is to run as a step, as the user gave it; nothing is checked yet."""

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
    """Where the event time of the input is, if it has one."""


ProcessorHost = Callable[[HostedProcessor], GroupedFunction]
"""Makes a function of a processor. Raises `UsageError`."""
