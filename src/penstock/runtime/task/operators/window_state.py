"""How the state of one window operator is saved and restored: in one file, or as runs that checkpoints share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.connector import UserCodeRaised
from penstock.api.steps import SortStep, WindowStep
from penstock.core.elements import CheckpointOptions
from penstock.core.ids import CheckpointId, OperatorId
from penstock.core.messages import OperatorState, StateFile
from penstock.runtime.task.operators.base import OperatorContext, SnapshotWork, StateWriter
from penstock.runtime.task.operators.sorted_rows import SortedRows
from penstock.runtime.task.operators.sorted_runs import KEY_HASH, check_sorted
from penstock.runtime.task.operators.user_code import user_code_raised
from penstock.runtime.task.operators.window_table import (
    FiredRange,
    Header,
    WindowTable,
    check_layout,
    decode,
    encode_rows,
)
from penstock.runtime.task.partitioning import groups_of_hashes
from penstock.state.restore_bounds import check_named_once
from penstock.state.runs import RunFiles, RunSnapshot, is_runs

TakeRows = Callable[[pa.Table, Header], None]


class WindowState:
    """The saved state of one window operator of one subtask. The table of the operator lies where `context` says."""

    def __init__(self, table: WindowTable | SortedRows, step: WindowStep | SortStep, context: OperatorContext) -> None:
        self._table = table
        self._step = step
        self._context = context
        self._place = context.runs.place(context.state)
        table.keep_at(self._place, context.runs.limits)
        self._files = RunFiles(
            # A subtask is not begun twice at the same time.
            f"{context.operator}-{context.task.subtask}-{context.epoch}-{context.now()}",
            groups=context.max_parallelism,
            own_groups=context.key_groups,
        )

    # --- restoring -----------------------------------------------------------------------

    def load(self, take_rows: TakeRows) -> list[FiredRange]:
        """Restore the rows of the subtask's key groups: runs into the table, other rows by `take_rows`. Returns how far
        the windows of these key groups have fired. Blocks."""
        context, fired = self._context, list[FiredRange]()
        if context.fresh:
            return fired
        what = f"the state of {context.name!r}"
        check_named_once((file for state in context.restored for file in state.keyed), what="the state of the window")
        for state in context.restored:
            if not state.keyed:
                continue
            first = context.reader.get(state.keyed[0])
            if not is_runs(first):
                for number, file in enumerate(state.keyed):
                    rows, header = self._decoded(first if number == 0 else context.reader.get(file))
                    take_rows(rows, header)
                    fired += header.fired
                continue
            snapshot = RunSnapshot(first, state.keyed, what=what)
            sections = [self._decoded(section) for section in snapshot.sections]
            for number, file in enumerate(snapshot.files):
                self._take_run(snapshot, number, file)
            # After the runs: sessions that are taken in are merged with the sessions of all runs.
            for rows, header in sections:
                take_rows(rows, header)
                fired += header.fired
        return fired

    def _decoded(self, data: bytes) -> tuple[pa.Table, Header]:
        rows, header = decode(data, self._context.key_groups)
        check_layout(header.layout, self._step, self._context.name)
        return rows, header

    def _take_run(self, snapshot: RunSnapshot, number: int, file: StateFile) -> None:
        context, table = self._context, self._table
        buffer = self._place.keep(context.reader.pieces(file))
        blocks = snapshot.blocks(number, buffer, block_rows=table.limits.block_rows)
        check_sorted(blocks, table.row_columns, table.keys, table.time)
        first, gone = snapshot.index.runs[number].first, snapshot.gone[number]
        own = [self._own(block) for block in blocks]
        if gone is None and all(rows.all() for rows in own):
            self._files.adopt(table.take_in(blocks, buffer, first), file)
            return
        kept = np.concatenate([np.empty(0, np.bool_), *own])
        kept[:first] = False
        if gone is not None:
            kept &= ~gone
        places = np.concatenate([[0], np.cumsum([block.num_rows for block in blocks])])
        found = [block.filter(pa.array(kept[begin : begin + block.num_rows])) for block, begin in zip(blocks, places)]  # noqa: B905
        table.take_in_rows([block for block in found if block.num_rows])

    def _own(self, block: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        first, last = self._context.key_groups
        hashes: Any = block.column(KEY_HASH).to_numpy()
        groups = groups_of_hashes(hashes.copy(), self._context.max_parallelism)
        own: npt.NDArray[np.bool_] = (groups >= first) & (groups <= last)
        return own

    # --- saving --------------------------------------------------------------------------

    def snapshot(
        self,
        checkpoint: CheckpointId,
        options: CheckpointOptions,
        *,
        header: Header,
        rows: Sequence[pa.Table] = (),
        windows: Sequence[Callable[[], pa.Table | None]] = (),
    ) -> SnapshotWork:
        """Freeze the table by reference. The returned work writes the table, other rows of the same form, and whole
        windows that are put together from panes by `windows`."""
        table, context = self._table, self._context
        frozen = table.freeze()
        is_alone = options.savepoint or options.canonical
        runs, rest = ((), frozen) if is_alone else frozen.split(self._files, table.limits.section_rows)
        write_runs = self._files.snapshot(checkpoint, runs, options) if runs else None
        rest = replace(rest, tables=(*rest.tables, *rows))
        groups = context.max_parallelism

        def write(writer: StateWriter) -> OperatorState:
            try:
                files = [table.encode(rest, header=header, groups=groups)]
                put_together = [rows for make in windows if (rows := make()) is not None]
            except UserCodeRaised as error:
                # Off the loop, where nothing else says which step the code belongs to.
                raise user_code_raised(error, context) from error
            if put_together:
                of_windows = msgspec.structs.replace(header, leaving=True)
                leaving = pa.concat_tables(put_together)
                files.append(encode_rows(leaving, keys=table.keys, header=of_windows, groups=groups))
            keyed = tuple(map(writer.put, files)) if write_runs is None else write_runs(writer, files)
            return OperatorState(operator=OperatorId(context.operator), keyed=keyed, key_groups=context.key_groups)

        return write

    def completed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is complete: the next checkpoint may refer to its files."""
        self._files.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The checkpoint will never complete."""
        self._files.aborted(checkpoint)

    # --- merging -------------------------------------------------------------------------

    def begin(self) -> None:
        """The operator is open: large runs of a window are merged in the background."""
        if isinstance(self._table, SortedRows):
            return
        self._table.merge_in(self._context.background, self._merge_failed)

    def _merge_failed(self, error: BaseException) -> None:
        if isinstance(error, UserCodeRaised):
            error = user_code_raised(error, self._context)
        self._context.fail(error)
