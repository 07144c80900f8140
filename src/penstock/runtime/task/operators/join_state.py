"""How the records of both sides of a join are saved and restored: in a file for each side, or as runs that checkpoints
share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from penstock.api.join_steps import RegularJoinStep, TwoSidedStep, moved
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.ports import Frame
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.dense import int64_values
from penstock.runtime.task.operators.join_files import JoinRunsHeader, JoinSnapshot, SavedRun, encode_first
from penstock.runtime.task.operators.join_marks import Changes, MarkLog, MarksRun
from penstock.runtime.task.operators.join_run import Bits, Frozen, Run, UInt32s
from penstock.runtime.task.operators.join_runs import JoinRuns
from penstock.runtime.task.operators.join_snapshot import JoinHeader, decode, encode, other_join
from penstock.runtime.task.operators.window_table import FiredRange
from penstock.runtime.task.partitioning import key_groups
from penstock.state.restore_bounds import check_named_once
from penstock.state.runs import LiveRun, RunFiles, is_runs

_SECTION_ROWS = 8_192
"""Runs with fewer records than this together are saved with the index of a snapshot: they will soon be merged."""


class Given(NamedTuple):
    """Records of a side that are in no run of a snapshot. `pending`: they have met no record of the other side."""

    side: int
    parts: tuple[Frozen, ...]
    pending: bool = False


class _NewMarks(NamedTuple):
    """A snapshot writes all marks of a run: in this file, and up to this part of the log."""

    run: Run
    marks: MarksRun
    log: MarkLog
    end: int


class _FrozenRuns:
    """What a snapshot has in files of its own."""

    def __init__(self) -> None:
        self.saved: list[SavedRun] = []
        self.files: list[LiveRun] = []
        self.changes: list[Changes | None] = []
        self.new_marks: list[_NewMarks] = []


HashesOf = Callable[[pa.RecordBatch, int], UInt32s]
TakeBack = Callable[[Given], None]
"""Take restored records in."""


class JoinState:
    """The saved state of one join of one subtask. The records lie where `context` says."""

    def __init__(
        self, sides: tuple[JoinRuns, JoinRuns], step: TwoSidedStep, context: OperatorContext, hashes_of: HashesOf
    ) -> None:
        """`hashes_of` gives the hashes of the keys of records of a side."""
        self._sides = sides
        self._step = step
        self._context = context
        self._hashes_of = hashes_of
        self._counts = isinstance(step, RegularJoinStep)
        self._place = context.runs.place(context.state)
        for runs in sides:
            runs.keep_at(self._place, context.runs.limits)
        self._files = RunFiles(
            # A subtask is not begun twice at the same time.
            f"{context.operator}-{context.task.subtask}-{context.epoch}-{context.now()}",
            groups=context.max_parallelism,
            own_groups=context.key_groups,
        )
        self._new_marks: dict[CheckpointId, list[_NewMarks]] = {}

    def close(self) -> None:
        """The records are not needed any more."""
        for runs in self._sides:
            runs.close()
        self._place.close()

    # --- restoring -------------------------------------------------------------------------

    def load(self, take_back: TakeBack) -> list[FiredRange]:
        """Restore the records of the subtask's key groups: runs into the sides, other records by `take_back`. Returns
        how far event time had come in these key groups. Blocks."""
        passed: list[FiredRange] = []
        context = self._context
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the join")
        for state in context.restored:
            for number, file in enumerate(state.keyed):
                data = context.reader.get(file)
                if number == 0 and is_runs(data):
                    passed += self._load_runs(data, state.keyed, take_back)
                    break
                passed += self._load_part(data, take_back)
        return passed

    def _load_part(self, data: bytes, take_back: TakeBack) -> tuple[FiredRange, ...]:
        context = self._context
        found = decode(data, self._step, context.key_groups, groups=context.max_parallelism, name=context.name)
        most = max(1, found.rows.num_rows * self._sides[0].limits.most_bytes // max(1, found.rows.nbytes))
        for begin in range(0, found.rows.num_rows, most):
            part = found.rows.slice(begin, most)
            parts = (Frozen(part, found.marks[begin : begin + most]),)
            take_back(Given(found.header.side, parts, found.header.pending))
        return found.header.passed

    def _load_runs(self, data: bytes, files: Sequence[StateFile], take_back: TakeBack) -> list[FiredRange]:
        context = self._context
        snapshot = JoinSnapshot(data, files, what=f"the state of {context.name!r}")
        header = snapshot.header
        if header.join != self._step.described():
            raise other_join(context.name, header.join, self._step)
        for number in range(len(snapshot.files)):
            self._load_run(snapshot, number, take_back)
        first, last = context.key_groups
        passed = [
            FiredRange(
                first_group=max(entry.first_group, first),
                last_group=min(entry.last_group, last),
                fired_us=entry.fired_us,
            )
            for entry in header.passed
            if entry.first_group <= last and entry.last_group >= first
        ]
        # Behind the runs, because newer records come behind older records.
        for part in snapshot.parts:
            passed += self._load_part(part, take_back)
        return passed

    def _load_run(self, snapshot: JoinSnapshot, number: int, take_back: TakeBack) -> None:
        context = self._context
        saved, file, marks_file = snapshot.files[number]
        side, runs = self._step.side(saved.side), self._sides[saved.side]
        handle, entry = snapshot.snapshot.files[file], snapshot.snapshot.index.runs[file]
        if entry.marks:
            raise snapshot.corrupt("has a run that has lost other records than its first records")
        buffer = self._place.keep(context.reader.pieces(handle))
        (*others, rows) = snapshot.rows(file, buffer)
        if others or rows.schema.names != side.schema.names or rows.schema.types != side.schema.types:
            raise snapshot.corrupt("has a run with other columns than it says")
        rows = pa.RecordBatch.from_arrays(rows.columns, schema=side.schema)
        if rows.column(side.time_column).null_count:
            raise snapshot.corrupt("has records without a time")
        times = moved(int64_values(rows.column(side.time_column)), side.time_offset_us)
        if not (times[1:] >= times[:-1]).all():
            raise snapshot.corrupt("has a run that is not in the order of its times")
        base = snapshot.marks(number, context.reader, runs.mark_type or np.uint8)
        if (base is None) is not (runs.mark_type is None):
            raise snapshot.corrupt("has other marks than the join")
        of_rows, changed = snapshot.changes(number)
        marks = base
        if marks is not None:
            marks[of_rows] = changed
            snapshot.checked(marks)
        own = self._own(rows, side.keys)
        if not own.all():
            own[: entry.first] = False
            picked: Any = pa.array(own)
            take_back(Given(saved.side, (Frozen(rows.filter(picked), None if marks is None else marks[own]),)))
            return
        if entry.first == entry.rows:
            return
        run = Run(rows, times, self._hashes_of(rows, saved.side), marks)
        run.begin = entry.first
        run.adopt(rows, buffer)
        run.keep_index_at(self._place)
        self._files.adopt(run.stored, handle)
        if marks is not None and marks_file is not None:
            run.saved.log, run.saved.marks = MarkLog(), MarksRun(entry.rows)
            self._files.adopt(run.saved.marks, snapshot.snapshot.files[marks_file])
            if of_rows.size:
                run.saved.log.add(of_rows, marks[of_rows])
        runs.take_in(run)

    def _own(self, rows: pa.RecordBatch, keys: tuple[str, ...]) -> Bits:
        first, last = self._context.key_groups
        groups = key_groups(rows, keys, self._context.max_parallelism)
        own: Bits = (groups >= first) & (groups <= last)
        return own

    # --- saving ----------------------------------------------------------------------------

    def snapshot(
        self,
        checkpoint: CheckpointId,
        options: CheckpointOptions,
        *,
        passed: tuple[FiredRange, ...],
        pending: Sequence[Given],
    ) -> SnapshotWork:
        """Freeze the records by reference. The returned work writes what no completed checkpoint has, and the pending
        records."""
        context, step = self._context, self._step
        is_alone = options.savepoint or options.canonical
        frozen, given = _FrozenRuns(), list[Given]()
        for side, runs in enumerate(self._sides):
            count = 0 if is_alone else self._in_files(runs)
            for run in runs.runs[:count]:
                self._freeze(frozen, run, side, options)
            rest = tuple(run.freeze() for run in runs.runs[count:])
            given += [Given(side, part) for part in _cut(rest, runs.limits.most_bytes)]
        given += pending
        write_runs = self._files.snapshot(checkpoint, frozen.files, options) if frozen.files else None
        header = JoinRunsHeader(
            join=step.described(),
            keys=(step.left.keys, step.right.keys),
            passed=passed,
            runs=tuple(frozen.saved),
            counts=self._counts,
        )

        def write(writer: StateWriter) -> OperatorState:
            # One part after the other: all of them need not be in memory at the same time.
            parts = (self._encoded(each, passed) for each in given)
            if write_runs is None:
                keyed = tuple(writer.put(part) for part in parts)
            else:
                sections: list[Frame] = [encode_first(header, frozen.changes), *parts]
                keyed = write_runs(writer, sections)
                self._new_marks[checkpoint] = frozen.new_marks
            return OperatorState(operator=OperatorId(context.operator), keyed=keyed, key_groups=context.key_groups)

        return write

    def _in_files(self, runs: JoinRuns) -> int:
        """How many runs, from the oldest on, are in files of their own."""
        most = min(runs.limits.section_rows, _SECTION_ROWS)
        count, rows = len(runs.runs), 0
        while count:
            run = runs.runs[count - 1]
            rows += run.size
            if rows > most or self._files.has(run.stored):
                break
            count -= 1
        return count

    def _freeze(self, frozen: _FrozenRuns, run: Run, side: int, options: CheckpointOptions) -> None:
        run.saved.has_rows = True
        frozen.files.append(LiveRun(run.stored, run.begin))
        frozen.saved.append(SavedRun(side=side, marks=run.marks is not None))
        if run.marks is None:
            frozen.changes.append(None)
            return
        log, rows = run.saved.log, run.marks.size
        is_known = log is not None and run.saved.marks is not None and self._files.has(run.saved.marks)
        if log is not None and run.saved.marks is not None and is_known and not options.full and not log.is_long(rows):
            frozen.files.append(LiveRun(run.saved.marks))
            frozen.changes.append(log.frozen())
            return
        if log is None:
            log = run.saved.log = MarkLog()
        made = MarksRun(rows, run.freeze_marks())
        frozen.files.append(LiveRun(made))
        frozen.changes.append(None)
        frozen.new_marks.append(_NewMarks(run, made, log, log.end))

    def _encoded(self, given: Given, passed: tuple[FiredRange, ...]) -> bytes:
        side = self._step.side(given.side)
        header = JoinHeader(
            join=self._step.described(),
            side=given.side,
            keys=side.keys,
            passed=passed,
            pending=given.pending,
            counts=True if self._counts else UNSET,
        )
        return encode(given.parts, side.schema, header, self._context.max_parallelism)

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: the next checkpoint may refer to its files."""
        self._files.completed(checkpoint)
        for run, marks, log, end in self._new_marks.get(checkpoint, ()):
            if run.saved.log is log and self._files.has(marks):
                run.saved.marks = marks
                log.forget(end)
                marks.saved()
        for earlier in [known for known in self._new_marks if known <= checkpoint]:
            del self._new_marks[earlier]

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete."""
        self._files.aborted(checkpoint)
        self._new_marks.pop(checkpoint, None)


def _cut(parts: tuple[Frozen, ...], most_bytes: int) -> list[tuple[Frozen, ...]]:
    """The parts in groups: a file with the parts of a group can be made in memory."""
    found: list[list[Frozen]] = [[]]
    nbytes = 0
    for part in parts:
        if nbytes and nbytes + part.rows.nbytes > most_bytes:
            found.append([])
            nbytes = 0
        found[-1].append(part)
        nbytes += part.rows.nbytes
    return [tuple(group) for group in found]
