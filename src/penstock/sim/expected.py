"""The rows that every sink of a job must show, and the order of these rows, computed without running the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.ids import CheckpointId
from penstock.core.recovery.metadata import CheckpointMetadata
from penstock.plan.graph import Partitioning
from penstock.runtime.task.operators.source import SPLITS
from penstock.sim.changing_joins import expected_changes
from penstock.sim.inputs import Row, decode_positions, rows_of, source_of
from penstock.sim.jobs import Shape, Workload
from penstock.sim.joining import expected_join, expected_table_join, table_join_kind
from penstock.sim.matching import expected_matches
from penstock.sim.meeting import expected_meetings
from penstock.sim.on_driver import unfound_splits
from penstock.sim.plan_nodes import SINK
from penstock.sim.ranking import expected_choice
from penstock.sim.row_functions import BUCKETS
from penstock.sim.running import expected_units
from penstock.sim.shapes import SECOND_SINK
from penstock.sim.window_kinds import WindowKind, expected_windows

Order = Callable[[Row, int], Hashable]
"""From a row, and the subtask of the sink that showed the row, to the group of the row. The rows of a group must be
shown in the order of the input. None for a row that has no order."""


def expected_rows(workload: Workload, inputs: Sequence[pa.RecordBatch], *, parallelism: int) -> dict[str, Counter[Row]]:
    """The rows that the job must show, by sink."""
    shape = workload.shape
    records = records_of(inputs)
    if shape.has_windows:
        # Timers make tumbling windows by key.
        is_plain = shape is Shape.TIMERS
        kind, keyed = (WindowKind.TUMBLING, True) if is_plain else (workload.windows, workload.keyed)
        kept = [(key, ts, value) for key, _, value, ts in records if value % 3 != 0]
        return {SINK: expected_windows(kind, workload.window_us, kept, keyed=keyed)}
    match shape:
        case Shape.REBALANCED:
            rows = Counter(_negated(record) for record in records)
        case Shape.TWICE:
            rows = Counter((key, seq, value % BUCKETS, ts) for key, seq, value, ts in records)
        case Shape.DIAMOND:
            rows = Counter(_doubled(record) for record in records)
            rows.update(_negated(record) for record in records if record[2] % 3 != 0)
        case Shape.PIPELINES | Shape.MIXED:
            halves = (records_of(inputs[: workload.splits]), records_of(inputs[workload.splits :]))
            first, second = (Counter(_doubled(record) for record in half) for half in halves)
            return {SINK: first, SECOND_SINK: second}
        case Shape.SPLIT:
            kept, thirds = ([r for r in records if (r[2] % 3 != 0) is keeps] for keeps in (True, False))
            return {SINK: Counter(_doubled(record) for record in kept), SECOND_SINK: Counter(thirds)}
        case Shape.SIDES:
            even, odd = ([record for record in records if record[2] % 2 == rest] for rest in (0, 1))
            return {SINK: Counter(even), SECOND_SINK: Counter(_negated(record) for record in odd)}
        case Shape.LATE:
            rows = Counter((key, ts, ts, 1, 0) for key, _, value, ts in records if value % 3 != 0)
        case Shape.TABLE:
            rows = expected_table_join(table_join_kind(workload.joining.how), records)
        case Shape.JOIN | Shape.CHANGES | Shape.MEETS:
            rows = _of_both(workload, *sides_of(workload, inputs))
        case Shape.SORTED:
            rows = Counter(records)
        case Shape.WAITS:
            rows = Counter(records_of(inputs[: workload.splits]))
        case Shape.LIMIT | Shape.LIMIT_BESIDE:
            rows = Counter(records[: workload.limit])
        case Shape.DISTINCT:
            rows = Counter(record for record in records if record[1] == 0)
        case Shape.KEYED | Shape.UNION | Shape.TWO_SINKS | Shape.SLICES | Shape.GLOBAL | Shape.FEWER | Shape.CHOSEN:
            rows = Counter(_doubled(record) for record in records)
        case Shape.ASKS:
            rows = Counter(_doubled(record) for record in records)
        case Shape.RUNNING:
            rows = expected_units(records)
        case Shape.CHOOSES | Shape.MATCHES:
            chooses = shape is Shape.CHOOSES
            rows = expected_choice(workload.choice, records) if chooses else expected_matches(workload.sought, records)
        case _:
            rows = Counter()
            for record in records:
                rows[record] += parallelism if _goes_to_all(workload, record) else 1
    beside = Counter(map(_doubled, records)) if shape is Shape.LIMIT_BESIDE else rows
    two = (Shape.TWO_SINKS, Shape.SLICES, Shape.LIMIT_BESIDE)
    return {SINK: rows, SECOND_SINK: beside} if shape in two else {SINK: rows}


def _of_both(workload: Workload, left: list[Row], right: list[Row]) -> Counter[Row]:
    if workload.shape is Shape.JOIN:
        return expected_join(workload.joining, left, right)
    if workload.shape is Shape.CHANGES:
        return expected_changes(workload.joining.how, left, right)
    return expected_meetings(left, right)


def sides_of(workload: Workload, inputs: Sequence[pa.RecordBatch]) -> tuple[list[Row], list[Row]]:
    """The records of the first source, and of the second source."""
    return records_of(inputs[: workload.splits]), records_of(inputs[workload.splits :])


def records_of(inputs: Iterable[pa.RecordBatch]) -> list[Row]:
    """The records of some splits."""
    return [row for table in inputs for row in rows_of(table)]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a job's life in which the job had one parallelism."""

    parallelism: int
    restored: CheckpointId | None = None
    """The checkpoint that the first attempt of the stage began from."""
    metadata: CheckpointMetadata | None = None
    """The metadata of the snapshot that the stage began from; None if the stage began at the beginning."""


def next_stage(stages: Sequence[Stage], stage: Stage) -> tuple[Stage, ...]:
    """The stages that count when another attempt has begun. Only stages that began from an earlier checkpoint than the
    attempt still count."""
    kept = [each for each in stages if (each.restored or 0) < (stage.restored or 0)]
    # An attempt with the parallelism of the last stage belongs to that stage.
    return tuple(kept) if kept and kept[-1].parallelism == stage.parallelism else (*kept, stage)


_OF_ALL = (
    Shape.LIMIT,
    Shape.LIMIT_BESIDE,
    Shape.DISTINCT,
    Shape.JOIN,
    Shape.CHANGES,
    Shape.RUNNING,
    Shape.CHOOSES,
    Shape.MATCHES,
    Shape.MEETS,
    Shape.SORTED,
)
"""The shapes whose rows follow from all records together."""


def expected_of_stages(
    workload: Workload, inputs: Sequence[pa.RecordBatch], stages: Sequence[Stage]
) -> dict[str, Counter[Row]]:
    """The rows that a job whose parallelism has changed must show, by sink: the records that a stage has read give rows
    as in a job with the parallelism of the stage."""
    if workload.shape.has_windows or workload.shape in _OF_ALL or not stages:
        return expected_rows(workload, inputs, parallelism=stages[0].parallelism if stages else 1)
    starts = [_starts(workload, stage.metadata, inputs) for stage in stages]
    ends = [*starts[1:], [table.num_rows for table in inputs]]
    found: dict[str, Counter[Row]] = {}
    for stage, start, end in zip(stages, starts, ends, strict=True):
        read = [table.slice(a, max(0, b - a)) for table, a, b in zip(inputs, start, end, strict=True)]
        for target, rows in expected_rows(workload, read, parallelism=stage.parallelism).items():
            found[target] = found.get(target, Counter()) + rows
    return found


def _starts(workload: Workload, metadata: CheckpointMetadata | None, inputs: Sequence[pa.RecordBatch]) -> list[int]:
    if metadata is None:
        return [0 for _ in inputs]
    return [min(row, table.num_rows) for table, row in _positions(workload, metadata, inputs)]


def _doubled(record: Row) -> Row:
    key, seq, value, ts = record
    return (key, seq, value * 2, ts)


def _negated(record: Row) -> Row:
    key, seq, value, ts = record
    return (key, seq, -1 - value, ts)


def _goes_to_all(workload: Workload, record: Row) -> bool:
    if workload.shape is Shape.HASH_BROADCAST:
        return source_of(workload, record[0]) == 1
    return workload.shape is Shape.BROADCAST


def order_of(workload: Workload) -> Order | None:
    """How the rows of a job are ordered; None if the rows have no order. In all shapes with an order the sequence
    number is the second column."""
    match workload.shape:
        case Shape.KEYED | Shape.UNION | Shape.TWO_SINKS | Shape.HASH_HASH | Shape.HASH_FORWARD | Shape.PIPELINES:
            return lambda row, _: row[0]
        case Shape.RUNNING:
            return lambda row, _: row[0]
        case Shape.SLICES | Shape.MIXED | Shape.WAITS | Shape.SPLIT | Shape.GLOBAL | Shape.CHOSEN:
            return lambda row, _: row[0]
        case Shape.LIMIT | Shape.LIMIT_BESIDE:
            return lambda row, _: row[0]
        case Shape.SIDES:
            # Values are negative behind the step that gets the odd records in turn.
            return lambda row, _: row[0] if row[2] >= 0 else None
        case Shape.ASKS:
            # After a rescale, only rows that came by key are where the later rows of their key are.
            is_kept = workload.asks.ordered and workload.asks.partitioning is Partitioning.HASH
            return (lambda row, _: row[0]) if is_kept else None
        case Shape.TWICE:
            return lambda row, _: (row[0], row[2])
        case Shape.DIAMOND:
            return lambda row, _: (row[0], row[2] < 0)
        case Shape.BROADCAST | Shape.HASH_BROADCAST:
            return lambda row, subtask: (row[0], subtask)
        case Shape.REBALANCE_HASH:
            return lambda row, _: row[0] if source_of(workload, row[0]) == 1 else None
        case _:
            return None


def read_before(
    workload: Workload, metadata: CheckpointMetadata, inputs: Sequence[pa.RecordBatch]
) -> tuple[pa.RecordBatch, ...]:
    """The records that the sources had read when a snapshot was taken, by the positions in the snapshot."""
    return tuple(table.slice(0, row) for table, row in _positions(workload, metadata, inputs))


def _positions(
    workload: Workload, metadata: CheckpointMetadata, inputs: Sequence[pa.RecordBatch]
) -> list[tuple[pa.RecordBatch, int]]:
    # A split that is in the state of no reader has been read to its end, or has not been found yet.
    rows = dict.fromkeys(unfound_splits(workload, metadata), 0)
    rows |= {
        position.split: position.row
        for operator in metadata.operators.values()
        for state in operator.subtasks.values()
        for position in decode_positions(state.split_lists.get(SPLITS, ()))
    }
    return [(table, rows.get(split, table.num_rows)) for split, table in enumerate(inputs)]
