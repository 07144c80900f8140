"""How simulated slots keep the rows of windows and of joins: as large runs, which no small job has; or as many short
runs, which checkpoints share, in memory or in files.

Files of a simulated slot are bytes in memory. The rows of a run in a file are read from these bytes, as rows of a real
run are read from a mapped file.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from random import Random

import pyarrow as pa

from penstock.runtime.task.operators.sorted_runs import RunLimits, RunOptions
from penstock.state.run_places import MemoryPlace, RunBuilder, RunPlace

SHORT = RunLimits(
    run_rows=6,
    block_rows=3,
    part_blocks=1,
    loop_rows=12,
    turn_rows=8,
    section_rows=2,
    file_bytes=1,
    first_fanout=2,
    once_fanout=2,
    fanout=2,
    most_bytes=600,
)


class KeptRuns(Enum):
    """How the rows of windows and of joins are kept."""

    WHOLE = "whole"
    """In runs so large that the state is saved in one file."""
    IN_MEMORY = "in-memory"
    IN_FILES = "in-files"


def draw_runs(random: Random) -> KeptRuns:
    """A way to keep rows."""
    return random.choice((KeptRuns.WHOLE, KeptRuns.IN_MEMORY, KeptRuns.IN_FILES))


def run_options(kept: KeptRuns) -> RunOptions:
    """The options of a slot that keeps runs in this way."""
    if kept is KeptRuns.WHOLE:
        return RunOptions()
    make = MemoryPlace if kept is KeptRuns.IN_MEMORY else BytesPlace
    return RunOptions(limits=SHORT, make_place=lambda _: make())


class BytesPlace(RunPlace):
    """Every run is in a file, whose bytes are in memory."""

    def build(self) -> RunBuilder:
        """Begin a run."""
        return _InBytes()

    def keep(self, pieces: Iterable[bytes]) -> pa.Buffer:
        """The bytes of a file of a snapshot."""
        return pa.py_buffer(b"".join(pieces))

    def close(self) -> None:
        """Nothing to do."""


class _InBytes(RunBuilder):
    def __init__(self) -> None:
        self._blocks: list[pa.RecordBatch] = []

    def add(self, block: pa.RecordBatch) -> None:
        """Keep the block until the end."""
        self._blocks.append(block)

    def end(self) -> tuple[list[pa.RecordBatch], pa.Buffer | None]:
        """Write all blocks, and read them again."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._blocks[0].schema) as stream:
            for block in self._blocks:
                stream.write_batch(block)
        buffer = sink.getvalue()
        return list(pa.ipc.open_stream(buffer)), buffer

    def give_up(self) -> None:
        """Nothing to do."""
