"""The operator at the head of a source task: reads its share of a source's splits."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import assert_never

import pyarrow as pa

from penstock.api.connector import End, Pause, Polled, SourceReader, SplitProgress, UserCodeRaised
from penstock.api.steps import ReadStep
from penstock.core.elements import MAX_WATERMARK, CheckpointOptions
from penstock.core.errors import InvariantError, UsageError
from penstock.core.ids import CheckpointId, Instant, OperatorId
from penstock.core.messages import OperatorState
from penstock.runtime.task.operators.base import Operator, OperatorContext, Output, SnapshotWork, StateWriter
from penstock.runtime.task.operators.events import NoMoreSplits, SplitsAdded, decode_reader_event
from penstock.runtime.task.operators.user_code import user_code_raised

WAIT_MS = 1_000
"""A reader without splits is asked again after this time, or when the reader is given splits."""

SPLITS = "splits"
"""The name of the source's state: the splits that are not read to their ends, with their positions. The splits are
dealt out anew when the parallelism changes."""


class SourceOperator(Operator):
    """Reads splits. The task calls `poll`, and hands each batch that it got to `process`, which hands the batch down
    the chain."""

    def __init__(self, step: ReadStep) -> None:
        self._step = step
        self._schema = step.source.schema
        self._reader: SourceReader | None = None
        self.ended = False
        self._is_left_off = False
        """Whether the data has ended before the reader came to its end, because nothing needs more records."""
        self._may_get_more = step.source.discovers
        self._told = 0
        """How many splits the enumerator was told to be read."""
        self._is_behind = False
        """Whether the master was told that the reader is behind."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Open a reader over the splits of this subtask. On a fresh start the splits are dealt out in turn; after a
        restore the restored state has the splits."""
        super().open(context, output)
        if context.fresh:
            own = list(self._step.splits[context.task.subtask :: context.parallelism])
        else:
            own = [part for state in context.restored for part in state.split_lists.get(SPLITS, ())]
        self._reader = self._step.source.open(own)

    def poll(self, max_rows: int, now: Instant) -> Polled:
        """The next records, or why there are none. Never blocks. After `End` every call returns `End`."""
        if self.ended or self._reader is None:
            return End()
        polled = self._poll(self._reader, max_rows, now)
        if isinstance(polled, End):
            if self._may_get_more:
                return Pause(WAIT_MS)
            self.ended = True
        elif isinstance(polled, pa.RecordBatch) and not polled.schema.equals(self._schema):
            raise UsageError(
                f"source {self._step.source.name!r} returned columns {_columns(polled.schema)}, "
                f"but its schema has {_columns(self._schema)}"
            )
        return polled

    def _poll(self, reader: SourceReader, max_rows: int, now: Instant) -> Polled:
        try:
            polled = reader.poll(max_rows, now)
        except UserCodeRaised as error:
            raise user_code_raised(error, self.context) from error
        if reader.splits_read != self._told:
            self._told = reader.splits_read
            self.context.splits_read(self._told)
        is_behind = reader.catching_up and not isinstance(polled, End)
        if is_behind != self._is_behind:
            self._is_behind = is_behind
            self.context.catching_up(is_behind)
        return polled

    def leave_off(self) -> None:
        """The data ends here. The splits that are not read to their ends stay in the state: a changed program that
        needs more records goes on with them."""
        self._is_left_off = True
        if self._is_behind:
            self._is_behind = False
            self.context.catching_up(self._is_behind)

    @property
    def induces(self) -> bool:
        """Whether marks in the data say where checkpoints begin."""
        return self._step.source.induces_checkpoints

    def mark(self) -> CheckpointId | None:
        """The checkpoint whose mark the data has come to; None if the data is at no mark. Every mark is told once."""
        found = None if self._reader is None or self.ended else self._reader.induced_checkpoint()
        return None if found is None else CheckpointId(found)

    def handle_event(self, event: bytes) -> None:
        """The enumerator has found splits for this subtask, or will find no more."""
        match found := decode_reader_event(event):
            case SplitsAdded():
                if self.ended or self._reader is None:
                    raise InvariantError(f"{len(found.splits)} splits were given to a reader that has ended")
                self._reader.add_splits(found.splits)
            case NoMoreSplits():
                self._may_get_more = False
            case _:
                assert_never(found)

    def progress(self) -> SplitProgress | None:
        """How far the reader has come with its splits; None if the reader does not tell its splits apart."""
        return None if self._reader is None else self._reader.progress()

    @property
    def holds_splits(self) -> bool:
        """Whether the reader can hold single splits."""
        return self._reader is not None and self._reader.holds_splits

    def hold(self, splits: Collection[Hashable]) -> None:
        """Have the reader give no records of these splits until the next call."""
        if self._reader is not None:
            self._reader.hold(splits)

    def metrics(self) -> dict[str, float]:
        """The running totals of the reader."""
        return {} if self._reader is None else self._reader.metrics()

    def process(self, batch: pa.RecordBatch) -> None:
        """Hand polled records down the chain."""
        self.output.emit(batch)

    def finish(self) -> None:
        """No record will follow: event time is at its end."""
        self.output.watermark(MAX_WATERMARK)

    def snapshot(self, checkpoint: CheckpointId, options: CheckpointOptions) -> SnapshotWork | None:  # noqa: ARG002
        """Freeze the splits that are not read to their ends, with their positions."""
        if self._reader is None:
            return None
        parts = () if self.ended else tuple(self._reader.snapshot_for(checkpoint))
        state = OperatorState(operator=OperatorId(self.context.operator), split_lists={SPLITS: parts})

        def give(writer: StateWriter) -> OperatorState:  # noqa: ARG001  # positions are small and travel in the handle
            return state

        return give

    def completed(self, checkpoint: CheckpointId) -> None:
        """Tell the reader, which may release what it keeps for data before the checkpoint."""
        if self._reader is not None:
            self._reader.checkpoint_completed(checkpoint)

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
