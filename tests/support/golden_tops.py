"""What the golden snapshots of the first records of each key and of deduplications contain, and how they are read.

Two subtasks have kept the first records of each key, of records and of the changes of rows, or have deduplicated
records within a time. Rows are in segments of all ages, as in the snapshots of running aggregates, and event time has
come somewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from penstock.api.changelog import with_row_kind
from penstock.api.running_schema import running_partial_schema
from penstock.api.steps import DeduplicateStep, LateRecords, RunningCombineStep, Step, TopStep
from penstock.api.streams.ranking import TopWords, checked_top, listed_rows
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, TaskId, VertexId
from penstock.core.messages import OperatorState, StateFile
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators import running_files
from penstock.runtime.task.operators.base import OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.partitioning import key_groups

GROUPS = 16
PARALLELISM = 2
FILE_ROWS = 20
"""In these snapshots segments of more rows lie in files of their own."""

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", pa.float64()), ("ts", pa.timestamp("us"))])
KINDS = ("top", "top-of-changes", "first", "last")
WATERMARK_US = 60_000_000


def steps(kind: str) -> tuple[RunningCombineStep | None, Step]:
    """The half before the exchange, if there is one, and the step with the state."""
    if kind in ("first", "last"):
        late = LateRecords(time_column="ts", schema=SCHEMA)
        last = kind == "last"
        schema = with_row_kind(SCHEMA) if last else SCHEMA
        return None, DeduplicateStep(keys=("k",), within_us=80_000_000, late=late, schema=schema, keeps_last=last)
    words = TopWords(most=2, by=["v", "x"], descending=[True, False], rank="rank")
    calls = (listed_rows(words, checked_top(words, SCHEMA, ("k",)), SCHEMA, ("k",)),)
    how: dict[str, Any] = {"keys": ("k",), "aggregates": calls, "input_schema": SCHEMA, "retracts": kind != "top"}
    partial = running_partial_schema(SCHEMA, keys=("k",), aggregates=calls, retracts=kind != "top")
    schema = with_row_kind(SCHEMA.append(pa.field("rank", pa.int32())))
    return RunningCombineStep(**how, schema=partial), TopStep(
        **how, partial=partial, schema=schema, most=2, rank="rank"
    )


def row(number: int) -> dict[str, Any]:
    """A record."""
    return {
        "k": None if number % 41 == 0 else f"key {number % 41}",
        "v": None if number % 7 == 0 else number * 3 % 10,
        "x": None if number % 5 == 0 else number / 4,
        "ts": number * 1_000_000,
    }


def given(kind: str, round_: int) -> list[dict[str, Any]]:
    """The records of one of three rounds."""
    first, last = ((0, 120), (120, 150), (150, 155))[round_]
    rows = [row(number) for number in range(first, last)]
    if kind != "top-of-changes":
        return rows
    if round_ == 2:
        rows = [row(number) for number in range(150) if number % 41 in (3, 7) or number == 12]
    return [{**each, "row_kind": "delete" if round_ == 2 else "insert"} for each in rows]


class _Files:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: Any) -> StateFile:
        data = bytes(memoryview(data))
        self.data[name := str(len(self.data))] = data
        return StateFile(path=name, size=len(data), checksum=xxhash.xxh3_64_intdigest(data))

    def put_shared(self, data: Any, key: str) -> StateFile:
        return self.put(data)

    def get(self, file: StateFile) -> bytes:
        return self.data[str(file.path)]

    def pieces(self, file: StateFile) -> Any:
        yield self.get(file)


class _Kept:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.batches: list[pa.RecordBatch] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.to_pylist()

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """Nothing reads watermarks here."""


class _Subtask:
    """One subtask of a step."""

    def __init__(self, kind: str, subtask: int, parallelism: int, restored: Any, files: _Files) -> None:
        self.output = _Kept()
        self.context = OperatorContext(
            job=JobId("job"),
            epoch=Epoch(1),
            task=TaskId(VertexId("vertex"), subtask),
            operator="step",
            name="step",
            parallelism=parallelism,
            max_parallelism=GROUPS,
            key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
            now=lambda: Instant(1_000),
            background=None,  # type: ignore[arg-type]  # nothing is done in the background
            restored=tuple(restored or ()),
            fresh=restored is None,
            reader=files,
            fail=lambda error: None,
        )
        self.operator: Any = build_operator(steps(kind)[1])
        self.operator.load(self.context)
        self.operator.open(self.context, self.output)

    def take(self, kind: str, rows: list[dict[str, Any]]) -> None:
        """Process the records of the subtask's key groups."""
        schema = with_row_kind(SCHEMA) if kind == "top-of-changes" else SCHEMA
        batch, half = pa.RecordBatch.from_pylist(rows, schema), steps(kind)[0]
        if half is not None:
            combine: Any = build_operator(half)
            partials = _Kept()
            combine.open(self.context, partials)
            combine.process(batch)
            combine.before_barrier()
            (batch,) = partials.batches
        groups = key_groups(batch, ("k",), GROUPS)
        first, last = self.context.key_groups
        work = self.operator.process(batch.filter(pa.array((groups >= first) & (groups <= last))))
        while work is not None and work.go_on():
            pass

    def watermark(self, time_us: int) -> None:
        """Event time has come to a time."""
        work = self.operator.watermark(time_us)
        while work is not None and work.go_on():
            pass

    def snapshot(self, number: int, files: _Files) -> OperatorState:
        """The state, written to files."""
        state: OperatorState = self.operator.snapshot(CheckpointId(number), CheckpointOptions())(files)
        self.operator.completed(CheckpointId(number))
        return state


def files() -> dict[str, bytes]:
    """The files, by their paths."""
    found: dict[str, bytes] = {}
    rows_of_sections, running_files.SECTION_ROWS = running_files.SECTION_ROWS, FILE_ROWS
    try:
        for kind in KINDS:
            written = _Files()
            for number in range(PARALLELISM):
                subtask = _Subtask(kind, number, PARALLELISM, None, written)
                for round_ in range(2):
                    subtask.take(kind, given(kind, round_))
                    subtask.watermark(WATERMARK_US * round_)
                    subtask.snapshot(round_ + 1, written)
                subtask.take(kind, given(kind, 2))
                state = subtask.snapshot(3, written)
                found.update({f"{kind}/{number}-{i}": written.get(file) for i, file in enumerate(state.keyed)})
                found[f"{kind}/{number}-lists.json"] = msgspec.json.encode(state.union_lists)
            found[f"{kind}/to-come.json"] = json.dumps(expected(kind), indent=1).encode()
    finally:
        running_files.SECTION_ROWS = rows_of_sections
    return found


def after(kind: str) -> list[dict[str, Any]]:
    """Records that come after the restore: some of each key, and some that are late."""
    rows = [row(number) for number in (*range(40, 62), *range(200, 241))]
    return [{**each, "row_kind": "insert"} for each in rows] if kind == "top-of-changes" else rows


def expected(kind: str) -> list[str]:
    """What comes out after the restore, as texts, of a step that was never restored."""
    subtask = _Subtask(kind, 0, 1, None, _Files())
    for round_ in range(3):
        subtask.take(kind, given(kind, round_))
        if round_ < 2:
            subtask.watermark(WATERMARK_US * round_)
    subtask.output.rows.clear()
    subtask.take(kind, after(kind))
    return sorted(map(str, subtask.output.rows))


def restored(kind: str, folder: Path, parallelism: int) -> list[str]:
    """What comes out after a restore of the files of a folder, as texts."""
    read = _Files()
    states = []
    for number in range(PARALLELISM):
        paths = (path for path in folder.glob(f"{number}-*") if path.suffix != ".json")
        names = sorted(paths, key=lambda path: int(path.name.partition("-")[2]))
        handles = tuple(read.put(path.read_bytes()) for path in names)
        own = range_of(number, parallelism=PARALLELISM, groups=GROUPS)
        lists = msgspec.json.decode((folder / f"{number}-lists.json").read_bytes(), type=dict[str, tuple[bytes, ...]])
        states.append(OperatorState(operator="step", keyed=handles, key_groups=own, union_lists=lists))
    rows: list[dict[str, Any]] = []
    for number in range(parallelism):
        subtask = _Subtask(kind, number, parallelism, states, read)
        subtask.take(kind, after(kind))
        rows += subtask.output.rows
    return sorted(map(str, rows))
