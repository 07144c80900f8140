"""The steps a program is made of, as plain descriptions. The runtime builds an operator from each.

Expressions are Polars expressions by the time they are here; texts have been parsed and checked when the step was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.connector import Sink, Source
from penstock.api.functions import KeyedFunction, ProcessFunction

if TYPE_CHECKING:
    # Every slot imports this module, and most start sooner without it.
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class ReadStep:
    """Records from a source."""

    source: Source
    splits: tuple[bytes, ...] = ()
    """The source's splits at their beginnings, filled in when the job starts."""

    @property
    def is_coordinated(self) -> bool:
        """Whether a part of it runs on the driver."""
        return self.source.discovers


@dataclass(frozen=True, kw_only=True)
class WatermarkStep:
    """Event time is in `column`; records may be late by `delay_us`."""

    column: str
    delay_us: int
    idle_after_ms: int | None


@dataclass(frozen=True, kw_only=True)
class WhereStep:
    """Only records for which `condition` is true."""

    condition: pl.Expr
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class SelectStep:
    """Columns computed from the record; `keep` has the others stay too."""

    columns: tuple[pl.Expr, ...]
    keep: bool
    schema: pa.Schema
    """Of the output."""


@dataclass(frozen=True, kw_only=True)
class MapBatchesStep:
    """A function from batch to batch (or None, or several)."""

    function: Callable[[Any], Any]
    kind: str
    """What the function takes: `arrow`, `polars` or `pandas`."""
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class MapStep:
    """A function from row (a dict) to row, or with `flat` to an iterable of rows."""

    function: Callable[[dict[str, Any]], Any]
    flat: bool
    schema: pa.Schema


@dataclass(frozen=True, kw_only=True)
class ProcessStep:
    """A function with state, over all records of a subtask."""

    function: ProcessFunction
    schema: pa.Schema
    """Of the output."""


@dataclass(frozen=True, kw_only=True)
class KeyedProcessStep:
    """A function with state per key; with a second input that every subtask gets all records of, if it is connected."""

    function: KeyedFunction
    keys: tuple[str, ...]
    key_schema: pa.Schema
    """The key columns."""
    schema: pa.Schema
    """Of the output."""
    is_connected: bool = False
    broadcast_has_time: bool = False
    """Whether the broadcast input has event time, and so holds that of the step back."""


@dataclass(frozen=True, kw_only=True)
class UnionStep:
    """The records of several inputs, all with the same columns."""

    schema: pa.Schema
    """Of the output; a column may be null if it may be in one of the inputs."""


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One result column of a window."""

    name: str
    kind: str
    """`count`, `sum`, `min`, `max` or `mean`."""
    column: str | None
    """None only for `count`."""


@dataclass(frozen=True, kw_only=True)
class TumblingWindow:
    """Windows of `size_us` that follow each other; the first begins at `offset_us` after 1970."""

    size_us: int
    offset_us: int = 0


@dataclass(frozen=True, kw_only=True)
class CombineStep:
    """Partial aggregates of each batch, before it is exchanged by key. Holds no state."""

    keys: tuple[str, ...]
    time_column: str
    window: TumblingWindow
    aggregates: tuple[Aggregate, ...]
    schema: pa.Schema
    """Of the partial aggregates."""


@dataclass(frozen=True, kw_only=True)
class WindowStep:
    """Aggregates per key and event-time window, from what `CombineStep` made; emitted when the watermark passes."""

    keys: tuple[str, ...]
    window: TumblingWindow
    aggregates: tuple[Aggregate, ...]
    schema: pa.Schema
    """Of the results: keys, `window_start`, `window_end`, then the aggregates."""


@dataclass(frozen=True, kw_only=True)
class WriteStep:
    """Records into a sink."""

    sink: Sink
    schema: pa.Schema
    """Of what is written."""

    @property
    def is_coordinated(self) -> bool:
        """Whether a part of it runs on the driver."""
        return self.sink.commits_on_driver


Step = (
    ReadStep
    | WatermarkStep
    | WhereStep
    | SelectStep
    | MapBatchesStep
    | MapStep
    | ProcessStep
    | KeyedProcessStep
    | UnionStep
    | CombineStep
    | WindowStep
    | WriteStep
)
