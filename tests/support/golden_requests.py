"""What the golden snapshots of async calls hold: the rows of requests whose results had not left, of functions that get
rows, rows that came by key, and batches.

`files()` writes the states anew with the code of today; what lies in `tests/golden/requests-v1` was written once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.api.steps import AsyncMapStep
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, OperatorId, TaskId, VertexId
from penstock.core.messages import OperatorState
from penstock.core.recovery.metadata import OperatorSnapshot
from penstock.core.recovery.operator_state import deal
from penstock.core.task.requests import RequestPolicy
from penstock.plan.key_groups import range_of
from penstock.ports import WorkResult
from penstock.runtime.task.operators.async_map import AsyncMapOperator
from penstock.runtime.task.operators.base import OperatorContext

GROUPS = 16
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("parts", pa.list_(pa.float64()))])
KINDS = {"rows": ("rows", ()), "by-key": ("rows", ("k",)), "batches": ("table", ())}
"""By name: what the function gets, and by which columns the rows came."""
TO_COME = "to-come.json"


async def asked(row: Any) -> Any:
    raise AssertionError("the calls of these tests end when the test says so")


class Calls:
    """Calls that end when `answer` says so, with no results."""

    def __init__(self) -> None:
        self.asked: dict[int, Any] = {}
        self._answered: Callable[[Sequence[tuple[int, WorkResult]]], None] = lambda _: None

    def begin(self, _function: object, answered: Callable[[Sequence[tuple[int, WorkResult]]], None]) -> Calls:
        self._answered = answered
        return self

    def ask(self, calls: Sequence[tuple[int, Any]]) -> None:
        self.asked.update(calls)

    def answer(self, calls: Sequence[int]) -> None:
        self._answered([(call, WorkResult(value=None)) for call in calls])


def opened(
    kind: str, *, subtask: int = 0, parallelism: int = 1, states: tuple[OperatorState, ...] = ()
) -> tuple[AsyncMapOperator, Calls]:
    """The operator, restored from `states` if there are any, and its calls."""
    gets, keys = KINDS[kind]
    step = AsyncMapStep(
        function=asked,
        kind=gets,
        policy=RequestPolicy(concurrency=1_000, timeout_ms=1_000),
        skips_failed=False,
        input_schema=ROWS,
        keys=keys,
        schema=ROWS,
    )
    calls, unused = Calls(), None
    context = OperatorContext(
        job=JobId("job"),
        epoch=Epoch(1),
        task=TaskId(VertexId("asks"), subtask),
        operator="asks",
        name="asks",
        parallelism=parallelism,
        max_parallelism=GROUPS,
        key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
        now=lambda: Instant(0),
        background=unused,  # type: ignore[arg-type]
        restored=states,
        fresh=not states,
        reader=unused,  # type: ignore[arg-type]
        fail=unused,  # type: ignore[arg-type]
        calls=calls,  # type: ignore[arg-type]
    )
    operator = AsyncMapOperator(step)
    operator.load(context)
    operator.open(context, _Nothing())
    return operator, calls


class _Nothing:
    """An output for results that are not there."""

    def emit(self, batch: pa.RecordBatch) -> None:
        raise AssertionError(f"{batch.num_rows} results")

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        raise AssertionError("a watermark")


def batch(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = {
        "k": [None if n % 17 == 0 else f"key {n % 7}" for n in numbers],
        "n": list(numbers),
        "parts": [None if n % 5 == 0 else [n / 2] * (n % 3) for n in numbers],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in ROWS], schema=ROWS)


def files() -> dict[str, bytes]:
    """The state of each kind, and the rows that are to be asked about again."""
    found: dict[str, bytes] = {}
    for kind in KINDS:
        operator, calls = opened(kind)
        # More rows than a part of the list has.
        for first, count in ((0, 300), (300, 20), (320, 1)):
            operator.process(batch(first, count))
        is_rows = KINDS[kind][0] == "rows"
        # The first results leave before the barrier. The results of later rows have come, and wait for the others.
        done = [*range(10), *range(50, 60)] if is_rows else [0]
        calls.answer(done)
        left = 10 if is_rows else 300
        operator.before_barrier()
        written = operator.snapshot(CheckpointId(1), CheckpointOptions())(None)  # type: ignore[arg-type]
        found[f"{kind}/state"] = msgspec.msgpack.encode(written)
        rows = pa.Table.from_batches([batch(left, 321 - left)]).to_pylist()
        found[f"{kind}/{TO_COME}"] = json.dumps(rows, indent=1).encode()
    return found


def restored(kind: str, data: bytes, parallelism: int) -> list[list[dict[str, Any]]]:
    """The rows that each of so many subtasks asks about again."""
    state = msgspec.msgpack.decode(data, type=OperatorState)
    snapshot = OperatorSnapshot(
        operator=OperatorId("asks"), vertex=VertexId("asks"), parallelism=1, max_parallelism=GROUPS, subtasks={0: state}
    )
    found = []
    for subtask, states in enumerate(deal(snapshot, parallelism)):
        operator, calls = opened(kind, subtask=subtask, parallelism=parallelism, states=states)
        operator.look(Instant(0))
        asked_about = calls.asked.values()
        is_rows = KINDS[kind][0] == "rows"
        found.append(list(asked_about) if is_rows else [row for table in asked_about for row in table.to_pylist()])
    return found


def rows_of(parts: Sequence[bytes]) -> list[pa.Table]:
    """The rows of each part of a list."""
    return [pa.ipc.open_stream(part).read_all() for part in parts]
