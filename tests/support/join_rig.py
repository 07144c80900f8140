"""Joins as operators without a job: the records of both sides go in, in any order, and the results are compared with
what a loop over all pairs of records gives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
from golden_runs import SharedFiles
from held_work import HeldWork

from penstock.api.join_steps import (
    LEFT,
    RIGHT,
    WRITTEN,
    Interval,
    JoinKind,
    JoinSide,
    JoinStep,
    Reach,
    RegularJoinStep,
    SameWindow,
    TwoSidedStep,
    VersionJoinStep,
)
from penstock.api.steps import LATE
from penstock.api.streams.join_words import pair_columns, window_bounds
from penstock.api.window_schema import WINDOW_END
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.ids import CheckpointId, Epoch, Instant, JobId, TaskId, VertexId
from penstock.core.messages import OperatorState
from penstock.plan.key_groups import range_of
from penstock.runtime.task.operators.base import Operator, OperatorContext
from penstock.runtime.task.operators.build import build_operator
from penstock.runtime.task.operators.sorted_runs import RunOptions
from penstock.runtime.task.partitioning import partition
from penstock.runtime.task.slices import Slice
from penstock.settings import StateSettings

GROUPS = 16
TIME = pa.timestamp("us", "UTC")


class Record(NamedTuple):
    """A record of either side: `number` tells records apart."""

    key: Any
    time: int | None
    number: int


def schemas(key: pa.DataType) -> tuple[pa.Schema, pa.Schema]:
    """The columns of the left and of the right side."""
    left = pa.schema([("lt", TIME), ("k", key), ("l", pa.int64())])
    return left, pa.schema([("rk", key), ("r", pa.int64()), ("rt", TIME)])


def join_step(
    how: JoinKind, reach: Reach, *, key: pa.DataType | None = None, where: pl.Expr | None = None, hold_us: int = 0
) -> JoinStep:
    """A join of records with keys of this type, `bigint` by default. `where` may read all columns."""
    left, right = schemas(key or pa.int64())
    sides = (
        JoinSide(keys=("k",), schema=left, time_column="lt"),
        JoinSide(keys=("rk",), schema=right, time_column="rt"),
    )
    bounds = window_bounds(sides[LEFT]) if isinstance(reach, SameWindow) and how.has_pairs else ()
    pairs = pair_columns(*sides, suffix=None, bounds=bounds)
    columns = pairs if how.has_pairs else tuple(column for column in pairs if column.left is not None)
    return JoinStep(
        left=sides[LEFT],
        right=sides[RIGHT],
        how=how,
        reach=reach,
        columns=columns,
        where=where,
        where_columns=() if where is None else pairs,
        hold_us=hold_us,
    )


def version_step(how: JoinKind, *, key: pa.DataType | None = None, where: pl.Expr | None = None) -> VersionJoinStep:
    """A join of records with versions, with the columns of `join_step`."""
    step = join_step(how, Interval(lower_us=0, upper_us=0), key=key, where=where)
    return VersionJoinStep(
        left=step.left,
        right=step.right,
        how=how,
        columns=step.columns,
        where=where,
        where_columns=step.where_columns,
    )


def regular_step(
    how: JoinKind,
    *,
    retracts: tuple[bool, bool] = (True, True),
    key: pa.DataType | None = None,
    where: pl.Expr | None = None,
    ttl_ms: int | None = None,
) -> RegularJoinStep:
    """A join of rows with the columns of `join_step`, whatever their times."""
    step = join_step(how, Interval(lower_us=0, upper_us=0), key=key, where=where)
    written = pa.field(WRITTEN, pa.int64())
    left, right = (
        JoinSide(keys=side.keys, schema=side.schema.append(written), time_column=WRITTEN)
        for side in (step.left, step.right)
    )
    return RegularJoinStep(
        left=left,
        right=right,
        how=how,
        columns=step.columns,
        where=where,
        where_columns=step.where_columns,
        retracts=retracts,
        ttl_ms=ttl_ms,
    )


def changes_of(step: RegularJoinStep, side: int, records: Sequence[Record], kinds: Sequence[str]) -> pa.RecordBatch:
    """The records as changes of a side, whose kinds are left out if the side is no changelog."""
    batch = batch_of(
        join_step(step.how, Interval(lower_us=0, upper_us=0), key=step.left.schema.field("k").type), side, records
    )
    return batch.append_column("row_kind", pa.array(kinds, pa.string())) if step.retracts[side] else batch


def batch_of(step: TwoSidedStep, side: int, records: Sequence[Record]) -> pa.RecordBatch:
    """The records as a batch of a side."""
    schema = step.side(side).schema
    values = {"k": "key", "rk": "key", "lt": "time", "rt": "time", "l": "number", "r": "number"}
    arrays = []
    for field in schema:
        given = [getattr(record, values[field.name]) for record in records]
        array: Any = pa.array(given, pa.int64()).cast(TIME) if field.type == TIME else pa.array(given, field.type)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Output:
    """Keeps results and watermarks, and checks that no result is behind a watermark that went before."""

    def __init__(self, time_column: str | None = None, rows: list[tuple[Any, ...]] | None = None) -> None:
        self.rows = [] if rows is None else rows
        self.watermarks: list[int] = []
        self._time = time_column

    def of_subtask(self) -> Output:
        """An output with the same rows and watermarks of its own."""
        return Output(self._time, self.rows)

    def emit(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
        self.rows += zip(*(column.to_pylist() for column in columns), strict=True)
        if self._time is not None and self.watermarks:
            times = batch.column(self._time).cast(pa.int64()).drop_null().to_pylist()
            off = 1 if self._time == WINDOW_END else 0
            assert all(time - off > self.watermarks[-1] for time in times)

    def watermark(self, time_us: int, *, idle: bool = False) -> None:
        assert not self.watermarks or time_us >= self.watermarks[-1]
        self.watermarks.append(time_us)


class Side:
    """A side output that keeps the numbers of its records."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)


class JoinRig:
    """A join with some subtasks, which can be stopped with a snapshot and begun again with another number of
    subtasks."""

    def __init__(
        self,
        step: TwoSidedStep,
        output: Output,
        *,
        parallelism: int = 1,
        most: int | None = None,
        runs: RunOptions | None = None,
        state: StateSettings | None = None,
    ) -> None:
        """With `most` the join does at most so many rows in a slice. With `runs` large runs are merged when
        `background` is collected."""
        self.step = step
        self.output = output
        self._most = most
        self._runs = runs or RunOptions()
        self._settings = state or StateSettings()
        self.background: Any = None if runs is None else HeldWork()
        self.now_ms = 0
        self.store = SharedFiles({})
        self._checkpoints = 0
        self.operators = self._opened(parallelism, ())

    def _opened(self, parallelism: int, states: tuple[OperatorState, ...]) -> list[Operator]:
        made = []
        unused: Any = None
        self._checkpoints += 1
        for subtask in range(parallelism):
            context = OperatorContext(
                job=JobId("job"),
                epoch=Epoch(self._checkpoints),
                task=TaskId(VertexId("join"), subtask),
                operator="join",
                name="join",
                parallelism=parallelism,
                max_parallelism=GROUPS,
                key_groups=range_of(subtask, parallelism=parallelism, groups=GROUPS),
                now=lambda: Instant(self.now_ms),
                background=self.background,
                runs=self._runs,
                state=self._settings,
                restored=states,
                fresh=not states,
                reader=self.store,
                fail=unused,
            )
            operator = build_operator(self.step)
            operator.slice = Slice()
            if self._most is not None:
                operator.slice.run_by(lambda: 0.0, self._most)
            operator.load(context)
            operator.open(context, self.output.of_subtask())
            made.append(operator)
        return made

    def feed(self, side: int, records: Sequence[Record], *, cut: Callable[[], bool] = lambda: False) -> bool:
        """Hand records to the join. Where a snapshot may be taken and `cut` says so, the work that is left is left:
        only `restored` may follow. Returns whether the work was left."""
        return self.feed_batch(side, batch_of(self.step, side, records), cut=cut)

    def feed_batch(self, side: int, batch: pa.RecordBatch, *, cut: Callable[[], bool] = lambda: False) -> bool:
        """Hand a batch to the join, as `feed` does."""
        keys = self.step.side(side).keys
        parts = partition(batch, keys, parallelism=len(self.operators), groups=GROUPS)
        given = [(op, part) for op, part in zip(self.operators, parts, strict=True) if part is not None]
        left = [self._done(op, op.process_input, (part, side), cut) for op, part in given]
        return any(left)

    def advance(self, time_us: int, *, cut: Callable[[], bool] = lambda: False) -> bool:
        """Event time has come to a time."""
        left = [self._done(op, op.watermark, (time_us,), cut) for op in self.operators]
        return any(left)

    def _done(self, operator: Operator, call: Any, given: tuple[Any, ...], cut: Callable[[], bool]) -> bool:
        operator.slice.begin()
        work = call(*given)
        while work is not None:
            if work.may_snapshot and cut():
                return True
            operator.slice.begin()
            if not work.go_on():
                work = None
        return False

    def end(self) -> None:
        """All data has been seen."""
        self.advance(MAX_WATERMARK)
        for operator in self.operators:
            self._done(operator, operator.finish, (), lambda: False)

    def snapshot(self) -> tuple[OperatorState, ...]:
        """The state of all subtasks."""
        taken = [operator.snapshot(CheckpointId(1), CheckpointOptions()) for operator in self.operators]
        return tuple(work(self.store) for work in taken if work is not None)

    def checkpoint(
        self, options: CheckpointOptions | None = None, *, completes: bool = True
    ) -> tuple[OperatorState, ...]:
        """The state of all subtasks in a checkpoint that completes or is aborted."""
        self._checkpoints += 1
        checkpoint = CheckpointId(self._checkpoints)
        taken = [operator.snapshot(checkpoint, options or CheckpointOptions()) for operator in self.operators]
        states = tuple(work(self.store) for work in taken if work is not None)
        for operator in self.operators:
            (operator.completed if completes else operator.aborted)(checkpoint)
        return states

    def restored(self, parallelism: int, states: tuple[OperatorState, ...] | None = None) -> None:
        """Begin again from a snapshot of this moment, or from other states, with so many subtasks."""
        states = self.snapshot() if states is None else states
        for operator in self.operators:
            operator.close()
        self.operators = self._opened(parallelism, states)
        for operator in self.operators:
            self._done(operator, operator.fire, (Instant(0),), lambda: False)

    @property
    def late(self) -> dict[str, Side]:
        """From here on late records are read."""
        sides = {LATE: Side(), "late-right()": Side()}
        for operator in self.operators:
            operator.sides = sides
        return sides


def same_key(one: Any, other: Any) -> bool:
    """Whether two keys are equal."""
    if one is None or other is None:
        return False
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def expected(
    step: JoinStep,
    left: Sequence[Record],
    right: Sequence[Record],
    matches: Callable[[Record, Record], bool] = lambda one, other: True,
) -> Counter[tuple[Any, ...]]:
    """The numbers of the left and the right record of each result, by a loop over all pairs."""
    pairs = [
        (one, other)
        for one in left
        for other in right
        if same_key(one.key, other.key) and _near(step.reach, one.time, other.time) and matches(one, other)
    ]
    met = {one.number for one, _ in pairs}, {other.number for _, other in pairs}
    alone = [one.number for one in left if one.number not in met[0]]
    match step.how:
        case JoinKind.SEMI:
            return Counter((one.number,) for one in left if one.number in met[0])
        case JoinKind.ANTI:
            return Counter((number,) for number in alone)
        case _:
            found = Counter((one.number, other.number) for one, other in pairs)
            if step.how in (JoinKind.LEFT, JoinKind.FULL):
                found.update((number, None) for number in alone)
            if step.how in (JoinKind.RIGHT, JoinKind.FULL):
                found.update((None, other.number) for other in right if other.number not in met[1])
            return found


def _near(reach: Reach, left: int | None, right: int | None) -> bool:
    if left is None or right is None:
        return False
    if isinstance(reach, Interval):
        return reach.lower_us <= right - left <= reach.upper_us
    assert isinstance(reach, SameWindow)
    return left // reach.window.size_us == right // reach.window.size_us


def numbers(step: TwoSidedStep, rows: Sequence[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """The numbers of the left and the right record of each result."""
    names = step.schema.names
    wanted = [names.index(name) for name in ("l", "r") if name in names]
    return Counter(tuple(row[at] for at in wanted) for row in rows)
