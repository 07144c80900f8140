"""What the golden snapshots of running aggregates contain: how today's code writes them, and how they are read.

Two subtasks have counted records, or the changes of rows, and rows are in segments of all ages: frozen by an earlier
snapshot or since then, large enough for files of their own and not. Some keys are gone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

import penstock as ps
from penstock.api.aggregates import named_aggregate
from penstock.api.running_schema import running_partial_schema, running_result_schema
from penstock.api.steps import RunningCombineStep, RunningStep
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
CHANGES = SCHEMA.append(pa.field("row_kind", pa.string()))
KINDS = {"records": False, "changes": True, "over-all": True}
CALLS = {
    "n": ps.count(),
    "total": ps.sum("v"),
    "mean": ps.mean("x"),
    "most": ps.max("v"),
    "earliest": ps.min("ts"),
    "values": ps.collect_set("v"),
    "spread": ps.variance("v", population=True),
    "at_most": ps.max_by("k", "v"),
}


def steps(kind: str) -> tuple[RunningCombineStep, RunningStep]:
    """The two halves of an aggregate."""
    keys: tuple[str, ...] = () if kind == "over-all" else ("k",)
    calls = tuple(named_aggregate(name, call, schema=SCHEMA, time_column=None) for name, call in CALLS.items())
    how: dict[str, Any] = {"keys": keys, "aggregates": calls, "retracts": KINDS[kind]}
    partial, result = running_partial_schema(SCHEMA, **how), running_result_schema(SCHEMA, **how)
    step = RunningStep(input_schema=SCHEMA, partial=partial, schema=result, ttl=ps.ttl("365d"), **how)
    return RunningCombineStep(input_schema=SCHEMA, schema=partial, **how), step


def row(number: int) -> dict[str, Any]:
    """A record."""
    return {
        "k": None if number % 41 == 0 else f"key {number % 41}",
        "v": None if number % 7 == 0 else number * 3 % 100,
        "x": None if number % 5 == 0 else float("nan") if number % 29 == 0 else number / 4,
        "ts": number * 1_000_000,
    }


def given(kind: str, round_: int) -> list[dict[str, Any]]:
    """The records of one of three rounds. In the last round of changes rows are taken back: all rows of some keys."""
    if round_ == 0:
        rows = [row(number) for number in range(120)]
    elif round_ == 1:
        rows = [row(number) for number in range(120, 150)]
    elif KINDS[kind]:
        rows = [row(number) for number in range(150) if number % 41 in (3, 7) or number == 12]
    else:
        rows = [row(number) for number in range(150, 155)]
    if not KINDS[kind]:
        return rows
    change = ("insert", "update_after", "delete")[round_]
    return [{**each, "row_kind": change} for each in rows]


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

    def emit(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        """No watermarks here."""


class _Subtask:
    """One subtask of an aggregate."""

    def __init__(self, kind: str, subtask: int, parallelism: int, restored: Any, files: _Files) -> None:
        self.output = _Kept()
        self.context = OperatorContext(
            job=JobId("job"),
            epoch=Epoch(1),
            task=TaskId(VertexId("vertex"), subtask),
            operator="aggregate",
            name="aggregate",
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
        """Aggregate the records of the subtask's key groups."""
        combine: Any = build_operator(steps(kind)[0])
        partials = _Kept()
        combine.open(self.context, partials)
        combine.process(pa.RecordBatch.from_pylist(rows, CHANGES if KINDS[kind] else SCHEMA))
        combine.before_barrier()
        batch = pa.RecordBatch.from_pylist(partials.rows, combine._step.schema)
        groups = key_groups(batch, steps(kind)[1].keys, GROUPS)
        first, last = self.context.key_groups
        work = self.operator.process(batch.filter(pa.array((groups >= first) & (groups <= last))))
        while work is not None and work.go_on():
            pass

    def snapshot(self, number: int, files: _Files) -> OperatorState:
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
                    subtask.snapshot(round_ + 1, written)
                subtask.take(kind, given(kind, 2))
                state = subtask.snapshot(3, written)
                found.update({f"{kind}/{number}-{i}": written.get(file) for i, file in enumerate(state.keyed)})
            found[f"{kind}/to-come.json"] = json.dumps(expected(kind), indent=1).encode()
    finally:
        running_files.SECTION_ROWS = rows_of_sections
    return found


def after() -> list[dict[str, Any]]:
    """Records that come after the restore: one of each key."""
    return [{**row(number), "row_kind": "insert"} for number in range(1_000, 1_041)]


def expected(kind: str) -> list[str]:
    """The changes that come after the restore, as texts, by an aggregate that was never restored."""
    subtask = _Subtask(kind, 0, 1, None, _Files())
    for round_ in range(3):
        subtask.take(kind, given(kind, round_))
    subtask.output.rows.clear()
    subtask.take(kind, after())
    return texts(subtask.output.rows)


def restored(kind: str, folder: Path, parallelism: int) -> list[str]:
    """The changes that come after a restore of the files of a folder, as texts."""
    read = _Files()
    states = []
    for number in range(PARALLELISM):
        names = sorted((path for path in folder.glob(f"{number}-*")), key=lambda path: int(path.name.partition("-")[2]))
        handles = tuple(read.put(path.read_bytes()) for path in names)
        own = range_of(number, parallelism=PARALLELISM, groups=GROUPS)
        states.append(OperatorState(operator="aggregate", keyed=handles, key_groups=own))
    rows: list[dict[str, Any]] = []
    for number in range(parallelism):
        subtask = _Subtask(kind, number, parallelism, states, read)
        subtask.take(kind, after())
        rows += subtask.output.rows
    return texts(rows)


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as texts, in an order that does not depend on the subtasks, and without the last bits of floats."""
    return sorted(
        str({**each, "values": sorted(each["values"]), "spread": each["spread"] and round(each["spread"], 6)})
        for each in rows
    )
