"""The job that is tortured, and the judgement of its committed output.

                ┌═by key═► uneven ─► rows                          every record, as it came
    sequences ──┤
                └─► watermark ─► combine ═by key═► window ─► windows    how many records each window had, and their sum

The rows show whether records are lost, repeated or out of order. The windows show whether keyed state or timers are
lost or repeated. The row function is slow for one stretch of numbers and quick for the next stretch, so that
back-pressure comes and goes. The buffers between tasks are small, so that back-pressure reaches the sources.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.api.checkpointing import Checkpointing
from penstock.api.connector import Sink
from penstock.api.steps import (
    Aggregate,
    CombineStep,
    MapStep,
    ReadStep,
    WatermarkStep,
    WindowStep,
    WriteStep,
)
from penstock.api.window_schema import partial_schema, result_schema
from penstock.api.windows import TumblingWindow
from penstock.bench.pacing import PacedReads
from penstock.bench.sequences import (
    SCHEMA,
    TICK_US,
    Damage,
    Int64s,
    Sequences,
    Windows,
    check_sequences,
    check_windows,
    expected_numbers,
)
from penstock.connectors.parquet import parquet
from penstock.core.ids import OperatorId
from penstock.plan.graph import Input, Node, Partitioning, Plan, build_plan
from penstock.settings import NetworkSettings

KEYS = 50
"""How many keys each split has."""
RATE = 4_000
"""Records a second of each split."""
STRETCH = 80
"""How many numbers of a key, about a second of records, are slow or quick; slow and quick stretches alternate."""
SLOW_ROW_S = 0.0003
"""How long a row of a slow stretch takes: so long that more rows come in than a subtask can process."""
WINDOW_NUMBERS = 20
ALIGNED_TIMEOUT = "100ms"
NETWORK = NetworkSettings(channel_bytes=16 * 1024, output_bytes=8 * 1024, batch_bytes=4 * 1024)

_ROWS_SCHEMA = pa.schema([SCHEMA.field("key"), SCHEMA.field("seq")])
_AGGREGATES = (Aggregate(name="n", kind="count", column=None), Aggregate(name="total", kind="sum", column="seq"))
_COMMITTED = re.compile(r"part-.+-(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class Places:
    """The folders of one job."""

    root: Path

    @property
    def rows(self) -> Path:
        """The folder of the output with every record."""
        return self.root / "rows"

    @property
    def windows(self) -> Path:
        """The folder of the output of the windows."""
        return self.root / "windows"

    @property
    def control(self) -> Path:
        """The folder by which the source is told to end."""
        return self.root / "control"

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory of the job."""
        return self.root / "checkpoints"


def torture_checkpointing(mode: str, places: Places, *, interval_ms: int) -> Checkpointing:
    """The checkpoint settings of a mode: `aligned`, `unaligned`, or `timeout`, in which checkpoints begin aligned and
    turn unaligned after a time."""
    return Checkpointing(
        interval=timedelta(milliseconds=interval_ms),
        directory=places.checkpoints,
        unaligned=mode != "aligned",
        aligned_timeout=ALIGNED_TIMEOUT if mode == "timeout" else None,
    )


class Output(Protocol):
    """Where the outputs `rows` and `windows` of a job go, and what is in them."""

    def sink(self, name: str) -> Sink:
        """The sink of an output."""
        ...

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """These columns of an output, in the order in which the records of a key were committed."""
        ...


@dataclass(frozen=True)
class FileOutput:
    """Folders of Parquet files."""

    places: Places

    def sink(self, name: str) -> Sink:
        """A sink of Parquet files."""
        return parquet(self.places.root / name)

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """The files, in the order of the checkpoints that committed them."""
        tables = [pq.read_table(file, columns=schema.names) for file in committed_files(self.places.root / name)]
        return pa.concat_tables(tables) if tables else pa.Table.from_batches([], schema)


def torture_plan(places: Places, *, parallelism: int, output: Output | None = None) -> Plan:
    """The plan of the job. Without an `output` the outputs are Parquet files in `places`."""
    output = output or FileOutput(places)
    source = PacedReads(Sequences(keys=KEYS, control=str(places.control)), rate=RATE)
    window = TumblingWindow(size_us=WINDOW_NUMBERS * TICK_US)
    keys = ("key",)
    partial = partial_schema(SCHEMA, keys=keys, time_column="ts", aggregates=_AGGREGATES)
    result = result_schema(SCHEMA, keys=keys, time_column="ts", aggregates=_AGGREGATES)
    combine = CombineStep(keys=keys, time_column="ts", window=window, aggregates=_AGGREGATES, schema=partial)
    nodes = (
        _node(0, "sequences", ReadStep(source=source)),
        _node(1, "uneven", MapStep(function=_uneven, flat=False, schema=_ROWS_SCHEMA), after=0, key="key"),
        _node(2, "rows", WriteStep(sink=output.sink("rows"), schema=_ROWS_SCHEMA), after=1),
        _node(3, "watermark", WatermarkStep(column="ts", delay_us=0, idle_after_ms=None), after=0),
        _node(4, "combine", combine, after=3),
        _node(
            5, "window", WindowStep(keys=keys, window=window, aggregates=_AGGREGATES, schema=result), after=4, key="key"
        ),
        _node(6, "windows", WriteStep(sink=output.sink("windows"), schema=result), after=5),
    )
    return build_plan(nodes, parallelism=parallelism, max_parallelism=None)


def _node(number: int, name: str, step: Any, *, after: int | None = None, key: str | None = None) -> Node:
    inputs: tuple[Input, ...] = ()
    if after is not None:
        partitioning = Partitioning.FORWARD if key is None else Partitioning.HASH
        inputs = (Input(node=after, partitioning=partitioning, keys=() if key is None else (key,)),)
    return Node(number=number, operator=OperatorId(name), name=name, step=step, inputs=inputs, is_source=after is None)


def _uneven(row: dict[str, Any]) -> dict[str, Any]:
    number = row["seq"]
    if number // STRETCH % 2:
        time.sleep(SLOW_ROW_S)
    return {"key": row["key"], "seq": number}


# --- the judgement ---------------------------------------------------------------------------------------------------


def judge(places: Places, *, parallelism: int, is_finished: bool, output: Output | None = None) -> Damage:
    """The faults of the committed output. `is_finished` says that the job has read its source to the end, so that a
    record that is not in the output is lost."""
    expected = expected_numbers(places.control, splits=parallelism, keys=KEYS) if is_finished else None
    output = output or FileOutput(places)
    result = result_schema(SCHEMA, keys=("key",), time_column="ts", aggregates=_AGGREGATES)
    rows = _read(output, "rows", _ROWS_SCHEMA)
    found = _read(output, "windows", pa.schema([result.field(n) for n in ("key", "window_start", "n", "total")]))
    windows = Windows(
        keys=found["key"],
        windows=found["window_start"] // (WINDOW_NUMBERS * TICK_US),
        counts=found["n"],
        sums=found["total"],
    )
    return check_sequences(rows["key"], rows["seq"], expected=expected) + check_windows(
        windows, size=WINDOW_NUMBERS, expected=expected
    )


def committed_files(folder: Path) -> list[Path]:
    """The files of a Parquet sink, in the order of the checkpoints that committed them."""
    named = [(match, file) for file in folder.glob("*.parquet") if (match := _COMMITTED.fullmatch(file.name))]

    def place(entry: tuple[re.Match[str], Path]) -> tuple[int, int, int]:
        subtask, checkpoint, number = map(int, entry[0].groups())
        return checkpoint, subtask, number

    return [file for _, file in sorted(named, key=place)]


def _read(output: Output, name: str, schema: pa.Schema) -> dict[str, Int64s]:
    """Columns of an output as integers, in the order of commits. Times become microseconds."""
    table = output.read(name, schema)
    return {column: _numbers(table.column(column)) for column in schema.names}


def _numbers(column: Any) -> Int64s:
    found: Int64s = column.cast(pa.int64()).to_numpy()
    return found
