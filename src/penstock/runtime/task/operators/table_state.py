"""How the state of an operator with several tables of rows is saved and restored: in one file for each table, or as
runs that checkpoints share.

A savepoint has a stream for each *part* of the state: for each table, and for rows that are in no table. A checkpoint
has an index of runs (`penstock.state.runs`) with a section for each part, which is a stream of the same form, and says
how many of the runs have rows of the part. Runs that are in a file already, and runs with many rows, are in files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import UserCodeRaised
from penstock.api.steps import WindowStep
from penstock.core.elements import CheckpointOptions
from penstock.core.errors import CorruptFile
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.ports import Background, Frame
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.run_table import Frozen, TableRun
from penstock.runtime.task.operators.sorted_runs import KEY_HASH, RunLimits, SortedRun, check_sorted
from penstock.runtime.task.operators.user_code import user_code_raised
from penstock.runtime.task.operators.window_table import Header, check_layout, decode, encode_rows
from penstock.runtime.task.partitioning import groups_of_hashes
from penstock.state.restore_bounds import check_named_once
from penstock.state.run_places import RunPlace
from penstock.state.runs import RunFiles, RunSnapshot, is_runs

Bits = npt.NDArray[np.bool_]

ROWS = "rows"
"""The part with the rows of windows."""


class SavedTable(Protocol):
    """Rows in runs."""

    keys: tuple[str, ...]
    time: str
    limits: RunLimits
    row_columns: tuple[str, ...]

    def keep_at(self, place: RunPlace, limits: RunLimits) -> None:
        """Keep runs at this place."""
        ...

    def merge_in(self, background: Background, fail: Callable[[BaseException], None]) -> None:
        """Merge large runs in the background."""
        ...

    def close(self) -> None:
        """The table is not used any more."""
        ...

    @property
    def section_rows(self) -> int:
        """Small runs are saved with the index of a snapshot, up to this many rows."""
        ...

    def take_in(
        self, blocks: Sequence[pa.RecordBatch], buffer: pa.Buffer | None, first: int, gone: Bits | None = None
    ) -> SortedRun:
        """Take in a run that was restored. Only with `takes_marks` there are marks."""
        ...

    def take_in_rows(self, blocks: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of a run that was restored."""
        ...

    @property
    def takes_marks(self) -> bool:
        """Whether a run that has lost rows can be taken in as it is."""
        ...

    def freeze(self) -> Frozen:
        """All rows, by reference."""
        ...

    def encode(self, frozen: Frozen, *, header: Header, groups: int) -> bytes:
        """Frozen rows as a stream."""
        ...


class Loose(NamedTuple):
    """Rows of a snapshot that are in no table."""

    header: Header
    rows: Callable[[], pa.Table]
    """Puts the rows together. Reads nothing that changes: it is called off the loop."""


TakeRows = Callable[[pa.Table, Header], None]


class TableState:
    """The saved state of one window operator of one subtask, in tables by the name of their part. The first table has
    the runs of an index that does not say whose its runs are."""

    def __init__(self, tables: Mapping[str, SavedTable], step: WindowStep, context: OperatorContext) -> None:
        self._tables = dict(tables)
        self._step = step
        self._context = context
        self._places = {name: context.runs.place(context.state) for name in tables}
        for name, table in tables.items():
            table.keep_at(self._places[name], context.runs.limits)
        self._files = RunFiles(
            # A subtask is not begun twice at the same time.
            f"{context.operator}-{context.task.subtask}-{context.epoch}-{context.now()}",
            groups=context.max_parallelism,
            own_groups=context.key_groups,
        )

    # --- restoring -----------------------------------------------------------------------

    def load(self, take_rows: TakeRows) -> None:
        """Restore the rows of the subtask's key groups: runs into their tables, other rows by `take_rows`. Blocks."""
        context = self._context
        if context.fresh:
            return
        what = f"the state of {context.name!r}"
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the window")
        for state in context.restored:
            if not state.keyed:
                continue
            first = context.reader.get(state.keyed[0])
            if not is_runs(first):
                for number, file in enumerate(state.keyed):
                    take_rows(*self._decoded(first if number == 0 else context.reader.get(file)))
                continue
            snapshot = RunSnapshot(first, state.keyed, what=what)
            sections = [self._decoded(section) for section in snapshot.sections]
            parts = parts_of_runs([header for _, header in sections], len(snapshot.files), what=what)
            for number, (file, part) in enumerate(zip(snapshot.files, parts, strict=True)):
                name = next(iter(self._tables)) if part is None else part
                if name not in self._tables:
                    raise CorruptFile(f"{what} has a run of {name!r}, which the step does not keep", hint=_HINT)
                self._take_run(self._tables[name], self._places[name], snapshot, number, file)
            for rows, header in sections:
                take_rows(rows, header)

    def _decoded(self, data: bytes) -> tuple[pa.Table, Header]:
        rows, header = decode(data, self._context.key_groups)
        check_layout(header.layout, self._step, self._context.name)
        return rows, header

    def _take_run(
        self, table: SavedTable, place: RunPlace, snapshot: RunSnapshot, number: int, file: StateFile
    ) -> None:
        buffer = place.keep(self._context.reader.pieces(file))
        blocks = snapshot.blocks(number, buffer, block_rows=table.limits.block_rows)
        check_sorted(blocks, table.row_columns, table.keys, table.time)
        first, gone = snapshot.index.runs[number].first, snapshot.gone[number]
        own = [self._own(block) for block in blocks]
        if blocks and all(rows.all() for rows in own) and (gone is None or table.takes_marks):
            self._files.adopt(table.take_in(blocks, buffer, first, gone), file)
            return
        kept = np.concatenate([np.empty(0, np.bool_), *own])
        kept[:first] = False
        if gone is not None:
            kept &= ~gone
        ends = np.cumsum([block.num_rows for block in blocks])
        found = [
            block.filter(pa.array(kept[end - block.num_rows : end])) for block, end in zip(blocks, ends, strict=True)
        ]
        table.take_in_rows([block for block in found if block.num_rows])

    def _own(self, block: pa.RecordBatch) -> Bits:
        first, last = self._context.key_groups
        hashes: Any = block.column(KEY_HASH).to_numpy()
        groups = groups_of_hashes(hashes.copy(), self._context.max_parallelism)
        own: Bits = (groups >= first) & (groups <= last)
        return own

    # --- saving --------------------------------------------------------------------------

    def snapshot(
        self,
        checkpoint: CheckpointId,
        options: CheckpointOptions,
        *,
        headers: Mapping[str, Header],
        loose: Sequence[Loose] = (),
    ) -> SnapshotWork:
        """Freeze the tables by reference. The returned work writes what no completed checkpoint has. A table with a
        header is saved; a table without one has no rows."""
        context, groups = self._context, self._context.max_parallelism
        is_alone = options.savepoint or options.canonical
        runs: list[TableRun] = []
        rests: list[tuple[SavedTable, Frozen, Header]] = []
        for name, header in headers.items():
            table = self._tables[name]
            saved, rest = ((), table.freeze()) if is_alone else table.freeze().split(self._files, table.section_rows)
            rests.append((table, rest, msgspec.structs.replace(header, runs=len(saved)) if saved else header))
            runs += saved
        write_runs = self._files.snapshot(checkpoint, runs, options) if runs else None
        if write_runs is not None:
            # The runs of a section that does not say how many they are would be taken for runs of another section.
            rests = [
                (table, rest, header if header.runs is not msgspec.UNSET else msgspec.structs.replace(header, runs=0))
                for table, rest, header in rests
            ]
        keys = self._step.keys

        def write(writer: StateWriter) -> OperatorState:
            try:
                files: list[Frame] = [table.encode(rest, header=header, groups=groups) for table, rest, header in rests]
                files += [encode_rows(rows(), keys=keys, header=header, groups=groups) for header, rows in loose]
            except UserCodeRaised as error:
                # Off the loop, where nothing else says which step the code belongs to.
                raise user_code_raised(error, context) from error
            keyed = tuple(map(writer.put, files)) if write_runs is None else write_runs(writer, files)
            return OperatorState(operator=OperatorId(context.operator), keyed=keyed, key_groups=context.key_groups)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: the next checkpoint may refer to its files."""
        self._files.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete."""
        self._files.aborted(checkpoint)

    # --- upkeep --------------------------------------------------------------------------

    def begin(self) -> None:
        """The operator is open: large runs are merged in the background."""
        for table in self._tables.values():
            table.merge_in(self._context.background, self._merge_failed)

    def close(self) -> None:
        """The state is not used any more."""
        for table in self._tables.values():
            table.close()

    def _merge_failed(self, error: BaseException) -> None:
        if isinstance(error, UserCodeRaised):
            error = user_code_raised(error, self._context)
        self._context.fail(error)


_HINT = "restore the file from a copy, or restore the job from another checkpoint or savepoint"


def parts_of_runs(headers: Sequence[Header], runs: int, *, what: str) -> list[str | None]:
    """Of which part each run of an index is; None: of the first part. Raises `CorruptFile`."""
    if not any(header.runs for header in headers):
        return [None] * runs
    parts = [
        None if header.part is msgspec.UNSET else header.part
        for header in headers
        for _ in range(header.runs if isinstance(header.runs, int) else 0)
    ]
    if len(parts) != runs:
        raise CorruptFile(f"{what} says whose {len(parts)} of its {runs} runs are", hint=_HINT)
    return parts
